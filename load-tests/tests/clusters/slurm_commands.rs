//! Slurm's commands other than `sbatch`, `squeue` and `srun`, called as scripts and users call them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    /// Two nodes with one GPU each.
    fn new() -> Self {
        let plan = Plan::new().whole_gpu_node("n1", "a30-24gb").whole_gpu_node("n2", "a30-24gb");
        let rig = Self { cluster: plan.start() };
        let made = Command::new(programs().path("tessera"))
            .args(["slurm-links", &rig.links().display().to_string()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        rig
    }

    fn links(&self) -> PathBuf {
        self.cluster.scratch().join("links")
    }

    fn call(&self, command: &str, words: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new(self.links().join(command))
            .args(words)
            .current_dir(self.cluster.scratch())
            .env("PATH", format!("{}:{path}", self.links().display()))
            .env("TESSERA_URL", self.cluster.url())
            .env("TESSERA_TOKEN", self.cluster.token())
            .output()
            .unwrap()
    }

    /// Calls a command that has to succeed, and returns what it prints.
    #[track_caller]
    fn printed(&self, command: &str, words: &[&str]) -> String {
        let ran = self.call(command, words);
        assert!(ran.status.success(), "{command} {words:?}: {ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    }

    /// Submits a script, and returns its job.
    fn submit(&self, options: &[&str], script: &str) -> u64 {
        let path = self.cluster.scratch().join("job.sh");
        fs::write(&path, script).unwrap();
        let words = [&["--parsable", "-o", "out.txt"], options, &["job.sh"]].concat();
        self.printed("sbatch", &words).trim().parse().unwrap()
    }

    fn output(&self) -> String {
        fs::read_to_string(self.cluster.scratch().join("out.txt")).unwrap_or_default()
    }
}

#[test]
fn a_job_that_has_ended_is_requeued_and_runs_again_under_its_number() {
    let rig = Rig::new();
    let script =
        "#!/bin/sh\necho run ${SLURM_RESTART_COUNT:-first}\nexit ${SLURM_RESTART_COUNT:-3}\n";
    let job = rig.submit(&["--open-mode=append", "--gres=gpu:1"], script);
    rig.cluster.wait_job(job, SOON, "failed");
    let after = rig.submit(&[&format!("--dependency=afterok:{job}"), "-o", "after.txt"], script);

    rig.printed("scontrol", &["requeue", &job.to_string()]);

    // Its second run has the code 1, which is its count.
    wait::until(SOON, "two runs", || (rig.cluster.job(job).job.attempts == 2).then_some(()));
    rig.cluster.wait_job(job, SOON, "failed");
    assert!(
        rig.output().contains("run first") && rig.output().contains("run 1"),
        "{}",
        rig.output()
    );
    let runs = rig.printed(
        "sacct",
        &["-D", "-X", "-n", "-P", "-o", "state,exitcode", "-j", &job.to_string()],
    );
    assert_eq!(runs.lines().collect::<Vec<_>>(), ["FAILED|3:0", "FAILED|1:0"]);
    let waits = rig.cluster.job(after).job;
    assert_eq!(waits.state, "queued", "it waits for a success");
    let waiting = rig.call("scontrol", &["requeue", &after.to_string()]);
    let told = String::from_utf8_lossy(&waiting.stderr).into_owned();
    assert_eq!(
        (waiting.status.code(), told.trim()),
        (Some(1), &*format!("Job is pending execution for job {after}"))
    );
}

#[test]
fn all_members_of_a_job_on_two_nodes_run_again() {
    let rig = Rig::new();
    let script = "#!/bin/sh\nsrun sh -c 'echo rank $SLURM_PROCID run ${SLURM_RESTART_COUNT:-0}'\n";
    let job = rig.submit(&["-N2", "--gpus-per-node=1", "--open-mode=append"], script);
    rig.cluster.wait_job(job, SOON, "succeeded");

    rig.printed("scontrol", &["requeue", &job.to_string()]);

    wait::until(SOON, "the second run", || (rig.cluster.job(job).job.attempts == 2).then_some(()));
    rig.cluster.wait_job(job, SOON, "succeeded");
    for line in ["rank 0 run 0", "rank 1 run 0", "rank 0 run 1", "rank 1 run 1"] {
        assert!(rig.output().contains(line), "{line} is not in\n{}", rig.output());
    }
}

#[test]
fn a_script_is_written_back_as_it_was_submitted_to_its_owner_only() {
    let rig = Rig::new();
    let script = "#!/bin/bash\n#SBATCH --time=5\n# a remark\nsleep 0\n";
    let job = rig.submit(&[], script).to_string();

    let said = rig.printed("scontrol", &["write", "batch_script", &job]);
    let printed = rig.printed("scontrol", &["write", "batch_script", &job, "-"]);

    assert_eq!(said, format!("batch script for job {job} written to slurm-{job}.sh\n"));
    assert_eq!(printed, script);
    let written = fs::read_to_string(rig.cluster.scratch().join(format!("slurm-{job}.sh")));
    assert_eq!(written.unwrap(), script);
    let others = Command::new(rig.links().join("scontrol"))
        .args(["write", "batch_script", &job, "-"])
        .env("TESSERA_URL", rig.cluster.url())
        .env("TESSERA_TOKEN", rig.cluster.token_for("eve", "user"))
        .output()
        .unwrap();
    assert_eq!((others.status.code(), others.stdout.len()), (Some(1), 0), "{others:?}");
    let unknown = rig.call("scontrol", &["write", "batch_script", "999999"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

#[test]
fn a_file_is_copied_to_every_node_of_a_job() {
    let rig = Rig::new();
    let script = "#!/bin/bash\nhead -c 3000000 /dev/urandom > data\nchmod 750 data\n\
                  sbcast data copy-$SLURM_JOB_ID; echo first $?\n\
                  sbcast data copy-$SLURM_JOB_ID; echo again $?\n\
                  sbcast -f -p data copy-$SLURM_JOB_ID; echo forced $?\n\
                  cmp data copy-$SLURM_JOB_ID && stat -c %a copy-$SLURM_JOB_ID\n\
                  sbcast missing x; echo missing $?\n";
    let job = rig.submit(&["-N2", "--gpus-per-node=1"], script);
    rig.cluster.wait_end(job, SOON);

    let output = rig.output();

    // Both simulated nodes have the same folder, so that one of the two finds the other's copy.
    for line in ["again 17", "forced 0", "750", "missing 255"] {
        assert!(output.lines().any(|found| found == line), "{line} is not in\n{output}");
    }
    assert!(output.contains("File exists"), "{output}");
}

#[test]
fn processes_and_what_they_use_are_listed_by_step() {
    let rig = Rig::new();
    let script = "#!/bin/bash\nsrun -n1 --output=none sleep 600 &\nsleep 600 &\n\
                  until scontrol listpids $SLURM_JOB_ID.0 > pids; do sleep 0.1; done\nmv pids listed\nwait\n";
    let job = rig.submit(&[], script).to_string();
    let listed = rig.cluster.scratch().join("listed");
    let found = wait::until(SOON, "the processes", || fs::read_to_string(&listed).ok());

    let lines: Vec<Vec<&str>> =
        found.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["PID", "JOBID", "STEPID", "LOCALID", "GLOBALID"]);
    assert_eq!(lines[1][1..], [job.as_str(), "0", "0", "0"], "{found}");
    let used =
        rig.printed("sstat", &["-a", "-P", "-n", "-o", "jobid,ntasks,maxrss,nodelist", "-j", &job]);
    let names: Vec<&str> = used.lines().filter_map(|line| line.split('|').next()).collect();
    assert_eq!(names, [format!("{job}.batch"), format!("{job}.0")], "{used}");
    for line in used.lines() {
        let cells: Vec<&str> = line.split('|').collect();
        let kib: u64 = cells[2].trim_end_matches('K').parse().unwrap();
        assert!(kib > 0 && cells[1] == "1" && cells[3].starts_with('n'), "{used}");
    }
    rig.printed("scontrol", &["wait_job", &job]);
    rig.printed("scancel", &[&job]);
}

#[test]
fn priorities_and_shares_are_shown() {
    let rig = Rig::new();
    let blocker = rig.submit(&["-N2", "--gpus-per-node=1"], "#!/bin/sh\nsleep 600\n");
    rig.cluster.wait_job(blocker, SOON, "running");
    let waiting = rig.submit(&["-N2", "--gpus-per-node=1"], "#!/bin/sh\ntrue\n");

    let priorities = rig.printed("sprio", &["-h", "-o", "%i %Y", "-j", &waiting.to_string()]);
    let account = rig.printed("sshare", &["-U", "--format", "Account%256", "--noheader"]);

    assert_eq!(priorities, format!("{waiting} 4001\n"));
    assert!(account.lines().all(|line| line.len() >= 256), "{account}");
    let none = rig.printed("sprio", &["-j", &blocker.to_string()]);
    assert_eq!(none, "Unable to find jobs matching user/id(s) specified\n");
    rig.printed("scancel", &[&blocker.to_string(), &waiting.to_string()]);
}

#[test]
fn a_time_limit_is_raised_by_a_span_and_files_are_named_as_they_are() {
    let rig = Rig::new();
    let job = rig.submit(&["-t", "10", "-o", "%x-%j.log", "-J", "named"], "#!/bin/sh\nsleep 600\n");
    let job = job.to_string();

    rig.printed("scontrol", &["update", &format!("JobId={job}"), "TimeLimit=+5"]);

    let shown = rig.printed("scontrol", &["show", "job", "-o", &job]);
    assert!(shown.contains("TimeLimit=00:15:00"), "{shown}");
    assert!(shown.contains(&format!("/named-{job}.log ")), "{shown}");
    rig.printed("scancel", &[&job]);
}

#[test]
fn steps_are_accounted_for_with_their_ends() {
    let rig = Rig::new();
    let script = "#!/bin/bash\nsrun -n2 -J first sh -c 'exit $SLURM_PROCID'\nsrun true\n\
                  srun sh -c 'kill -9 $$'\nsrun -J left sleep 600 &\n\
                  until squeue -h -s -j $SLURM_JOB_ID -o %j | grep -q left; do sleep 0.1; done\n\
                  squeue -h -s -j $SLURM_JOB_ID -o '%i %j %A'\n\
                  scontrol show step $SLURM_JOB_ID.3 | grep -o 'Name=[^ ]*'\n";
    let path = rig.cluster.scratch().join("token");
    fs::write(&path, rig.cluster.token()).unwrap();
    let token = format!("export TESSERA_TOKEN=$(cat {})\n", path.display());
    let script = script.replacen('\n', &format!("\n{token}"), 1);
    let job = rig.submit(&[], &script);
    rig.cluster.wait_end(job, SOON);

    let found = rig.printed(
        "sacct",
        &["-n", "-P", "-o", "jobid,jobname,state,exitcode,ntasks,nnodes", "-j", &job.to_string()],
    );

    let expected = [
        "J|job.sh|COMPLETED|0:0||1",
        "J.batch|batch|COMPLETED|0:0|1|1",
        "J.0|first|FAILED|1:0|2|1",
        "J.1|true|COMPLETED|0:0|1|1",
        "J.2|sh|CANCELLED|0:9|1|1",
        "J.3|left|CANCELLED|0:15|1|1",
    ];
    let expected = expected.map(|line| line.replacen('J', &job.to_string(), 1));
    assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{}", rig.output());
    let output = rig.output();
    for line in [format!("{job}.batch batch 1"), format!("{job}.3 left 1"), "Name=left".to_owned()]
    {
        assert!(output.lines().any(|found| found == line), "{line} is not in\n{output}");
    }
    let derived = rig.printed("sacct", &["-nXP", "-o", "derivedexitcode", "-j", &job.to_string()]);
    assert_eq!(derived, "1:0\n");
    let one = rig.printed("sacct", &["-nP", "-o", "elapsed,jobname", "-j", &format!("{job}.1")]);
    assert!(one.ends_with("|true\n") && one.lines().count() == 1, "{one}");
    let bare = rig.printed("sacct", &["-nXP", "-o", "jobid", "-j", &job.to_string()]);
    assert_eq!(bare, format!("{job}\n"));
}

#[test]
fn scontrol_updates_what_users_change_of_waiting_jobs() {
    let rig = Rig::new();
    let job = rig.submit(&["--hold", "-J", "before"], "#!/bin/sh\nsleep 600\n").to_string();
    let update = |word: &str| rig.call("scontrol", &["update", &format!("JobId={job}"), word]);

    for word in ["JobName=after", "Comment=for the paper", "Requeue=0", "StartTime=now+1hour"] {
        assert!(update(word).status.success(), "{word}");
    }
    rig.printed("scontrol", &["release", &job]);

    let listed = rig.printed("squeue", &["-h", "-n", "after", "-o", "%i|%j|%k"]);
    assert_eq!(listed, format!("{job}|after|for the paper\n"));
    let shown = rig.printed("scontrol", &["show", "job", &job]);
    assert!(shown.contains("Requeue=0 ") && shown.contains("JobName=after"), "{shown}");
    wait::until(SOON, "the job waits for its time", || {
        let reason = rig.printed("squeue", &["-h", "-j", &job, "-o", "%t %r"]);
        (reason == "PD BeginTime\n").then_some(())
    });
    assert!(update("StartTime=now").status.success());
    rig.cluster.wait_job(job.parse().unwrap(), SOON, "running");
    assert_eq!(update("StartTime=now+1hour").status.code(), Some(1), "it has started");
    let refused = update("Partition=other");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("submit it again"), "{refused:?}");
    rig.printed("scancel", &[&job]);
}

#[test]
fn the_throttle_of_an_array_can_be_changed() {
    let rig = Rig::new();
    let array = rig.submit(&["--array=0-3%1"], "#!/bin/sh\nsleep 600\n");
    let running = || rig.printed("squeue", &["-h", "-t", "R", "-j", &array.to_string()]);
    let count = |wanted: usize| {
        wait::until(SOON, "as many tasks run", || {
            (running().lines().count() == wanted).then_some(())
        });
    };
    count(1);
    let waiting = rig.printed("squeue", &["-h", "-t", "PD", "-j", &array.to_string(), "-o", "%i"]);
    assert_eq!(waiting, format!("{array}_[1-3%1]\n"));

    rig.printed("scontrol", &["update", &format!("JobId={array}"), "ArrayTaskThrottle=2"]);

    count(2);
    let waiting =
        rig.printed("squeue", &["-h", "-t", "PD", "-j", &array.to_string(), "-o", "%i %r"]);
    assert_eq!(waiting, format!("{array}_[2-3%2] JobArrayTaskLimit\n"));
    let alone = rig.submit(&["--hold"], "#!/bin/sh\ntrue\n").to_string();
    let word = format!("JobId={alone}");
    let refused = rig.call("scontrol", &["update", &word, "ArrayTaskThrottle=2"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    rig.printed("scancel", &[&array.to_string(), &alone]);
}
