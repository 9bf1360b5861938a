//! Jobs over several GPUs and nodes: all of their processes start and end together; with real
//! processes on two nodes.

use std::process::{Command, Output};

use tessera_api_types::{GangRequest, JobPage, JobView, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

fn cluster() -> Cluster {
    let pair = "a30-24gb,a30-24gb";
    Plan::new().whole_gpu_node("n1", pair).whole_gpu_node("n2", pair).start()
}

fn tessera(cluster: &Cluster, words: &[&str]) -> Output {
    Command::new(programs().path("tessera"))
        .args(words)
        .env("TESSERA_URL", cluster.url())
        .output()
        .unwrap()
}

/// A gang whose members print their variables, and run until `go` exists in the folder.
fn gang(cluster: &Cluster, nodes: u32, gpus_per_node: u32) -> SubmitRequest {
    let folder = cluster.scratch().display().to_string();
    SubmitRequest {
        gang: Some(GangRequest { nodes, gpus_per_node }),
        gpu_whole: true,
        grace_secs: Some(1),
        max_retries: Some(1),
        env: [("FOLDER".to_owned(), folder)].into(),
        ..script(
            "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $TESSERA_NODE\n\
             echo $MASTER_ADDR $MASTER_PORT $TESSERA_GANG_ID $TESSERA_GANG_NODELIST\n\
             echo $$ > $FOLDER/pid.$RANK.$TESSERA_ATTEMPT\n\
             while [ ! -e $FOLDER/go ]; do sleep 0.1; done",
        )
    }
}

fn members(cluster: &Cluster, gang: u64) -> Vec<JobView> {
    let page = cluster.call("GET", &format!("/v1/jobs?array={gang}"), None).expect(200);
    let mut jobs = page.json::<JobPage>().items;
    jobs.sort_by_key(|job| job.id);
    jobs
}

/// Waits until every member is in the given state; none may be in another final state.
#[track_caller]
fn wait_all(cluster: &Cluster, gang: u64, state: &str) -> Vec<JobView> {
    wait::until(3 * SOON, &format!("gang {gang} to be {state}"), || {
        let jobs = members(cluster, gang);
        jobs.iter().all(|job| job.state == state).then_some(jobs)
    })
}

#[test]
fn a_gang_over_two_nodes_starts_together_loses_a_member_runs_again_and_succeeds() {
    let cluster = cluster();

    let submitted = cluster.submit(&gang(&cluster, 2, 2));
    let first = submitted.job_id;
    let jobs = wait_all(&cluster, first, "running");

    assert_eq!(submitted.tasks, 4);
    let places: std::collections::BTreeSet<_> = jobs.iter().map(|job| job.gpu.clone()).collect();
    assert_eq!(places.len(), 4, "each member has its own GPU");
    let pid = |rank: u64, attempt: u32| {
        let file = cluster.scratch().join(format!("pid.{rank}.{attempt}"));
        wait::until(SOON, "the member's process", || {
            std::fs::read_to_string(&file).ok()?.trim().parse::<i32>().ok()
        })
    };
    let pids = [0, 1, 2, 3].map(|rank| pid(rank, 1));
    let lines: Vec<Vec<String>> = (0..4)
        .map(|rank| cluster.logs(first + rank).lines().map(str::to_owned).collect())
        .collect();
    assert_eq!(
        lines.iter().map(|lines| lines[0].as_str()).collect::<Vec<_>>(),
        ["0 0 4 2 0 n1", "1 1 4 2 0 n1", "2 0 4 2 1 n2", "3 1 4 2 1 n2"]
    );
    let meeting = format!(" {first} n1,n2");
    assert!(lines[0][1].ends_with(&meeting), "{lines:?}");
    assert!(
        lines.iter().all(|other| other[1] == lines[0][1]),
        "all have one master address: \
                                                                {lines:?}"
    );
    assert!(lines[0][1].starts_with("127.0.0.1 2"), "{lines:?}");

    // One of them is killed, and all of them run again.
    Command::new("kill").args(["-9", &pids[2].to_string()]).status().unwrap();
    let again: Vec<i32> = (0..4).map(|rank| pid(rank, 2)).collect();
    assert!(again.iter().all(|pid| !pids.contains(pid)));
    wait::until(SOON, "no process of the first try", || {
        let alive = |pid: &i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        (!pids.iter().any(alive)).then_some(())
    });
    std::fs::write(cluster.scratch().join("go"), "").unwrap();

    let jobs = wait_all(&cluster, first, "succeeded");
    assert!(jobs.iter().all(|job| job.attempts == 2), "{jobs:#?}");
    let ends: Vec<String> =
        (0..4).map(|rank| cluster.job(first + rank).attempt_list[0].state.clone()).collect();
    assert_eq!(ends, ["preempted", "preempted", "failed", "preempted"]);
    let why = cluster.job(first).attempt_list[0].detail.clone().unwrap();
    assert!(why.contains("rank 2 ended failed"), "{why}");
}

#[test]
fn the_cancel_of_one_member_ends_all_and_what_never_fits_is_refused() {
    let cluster = cluster();
    let first = cluster.submit(&gang(&cluster, 2, 1)).job_id;
    wait_all(&cluster, first, "running");

    // A second gang needs the GPUs of the first one.
    let second = cluster.submit(&gang(&cluster, 2, 2)).job_id;
    let why = wait::until(SOON, "its reason", || {
        let explain = cluster.explain(second + 1);
        let text = serde_json::to_string(&explain).unwrap();
        text.contains("places are free now").then_some(text)
    });
    assert!(why.contains("2 of 4 places"), "{why}");
    assert!(why.contains("reserved for it: GPU"), "{why}");
    cluster.act(format!("{first}_1"), "cancel").expect(200);

    let ended = wait_all(&cluster, first, "cancelled");
    assert_eq!(ended.len(), 2);
    wait_all(&cluster, second, "running");
    cluster.act(second, "cancel").expect(200);
    wait_all(&cluster, second, "cancelled");

    let message = tessera(&cluster, &["submit", "--gpus", "4", "--", "true"]);
    let message = String::from_utf8(message.stderr).unwrap();
    assert!(message.contains("the largest node has 2 suitable GPUs"), "{message}");
    assert!(message.contains("--gpus 4 --nodes 2"), "{message}");
    let done =
        tessera(&cluster, &["submit", "--gpus", "4", "--nodes", "2", "--wait", "--", "true"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_script_over_two_gpus_runs_once_and_sees_both() {
    let cluster = Plan::new().whole_gpu_node("n1", "a30-24gb,a30-24gb").start();
    let file = cluster.scratch().join("train.sh");
    let text = "#!/bin/bash\n#SBATCH --gres=gpu:2 --ntasks=1\n\
                # A launcher of two workers counts its devices like this.\n\
                IFS=, read -ra devices <<< \"$CUDA_VISIBLE_DEVICES\"\n\
                for rank in ${!devices[@]}; do echo \"worker $rank of ${#devices[@]}\"; done\n\
                echo \"$SLURM_GPUS_ON_NODE $SLURM_JOB_GPUS $SLURM_NTASKS $1\" >&2\n\
                test -d \"$TMPDIR\" && echo private > \"$TMPDIR/note\" && echo \"$TMPDIR\"\n";
    std::fs::write(&file, text).unwrap();

    let script = file.display().to_string();
    let done = tessera(&cluster, &["submit", "--wait", &script, "argument"]);

    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let jobs = cluster.call("GET", "/v1/jobs", None).expect(200).json::<JobPage>().items;
    let first = jobs.iter().map(|job| job.id).min().unwrap();
    let log = cluster.logs(first);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[..3], ["worker 0 of 2", "worker 1 of 2", "2 0,1 1 argument"], "{log}");
    let tmp = std::path::Path::new(lines[3]);
    wait::until(SOON, "the temporary files to be gone", || (!tmp.exists()).then_some(()));
    let all = wait_all(&cluster, first, "succeeded");
    assert_eq!(all.len(), 2);
}

#[test]
fn several_whole_gpus_need_mig_off_and_are_refused_with_the_reason_otherwise() {
    let cluster = Plan::new().node("n1", "a30-24gb,a30-24gb").start();

    let refused = tessera(&cluster, &["submit", "--gres=gpu:2", "--wrap", "true"]);

    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("MIG off") && message.contains("mig-mode"), "{message}");
    assert!(message.contains("--allow-pending") && !message.contains("allow_pending"), "{message}");
}

#[test]
fn each_task_of_an_array_is_a_separate_gang() {
    let cluster = cluster();
    // The first attempt of the first task fails: a gang that runs again counts towards the limit of running
    // tasks, too.
    let request = SubmitRequest {
        max_retries: Some(1),
        array_indexes: vec![3, 7, 9],
        array_limit: Some(1),
        gang: Some(GangRequest { nodes: 1, gpus_per_node: 2 }),
        gpu_whole: true,
        env: [("FOLDER".to_owned(), cluster.scratch().display().to_string())].into(),
        ..script(
            "[ $SLURM_ARRAY_TASK_ID != 3 ] || [ $TESSERA_ATTEMPT = 2 ] || exit 1\n\
             echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $RANK $TESSERA_GANG_ID\n\
             while [ ! -e $FOLDER/go ]; do sleep 0.1; done",
        )
    };

    let submitted = cluster.submit(&request);
    let array = submitted.job_id;
    let after = SubmitRequest { dependency: Some(format!("afterok:{array}_9")), ..script("true") };
    let after = cluster.submit(&after).job_id;
    wait::until(SOON, "the first task to run", || {
        let jobs = members(&cluster, array);
        let runs_again = |job: &JobView| job.attempts == 2 && job.state == "running";
        jobs[..2].iter().all(runs_again).then_some(())
    });

    assert_eq!(submitted.tasks, 6);
    let jobs = members(&cluster, array);
    let named: Vec<_> = jobs
        .iter()
        .map(|job| (job.name_id.clone(), job.array_index, job.gang.map(|gang| gang.rank)))
        .collect();
    let member = |name: String, index, rank| (name, Some(index), Some(rank));
    assert_eq!(
        named,
        [
            member(format!("{array}_3"), 3, 0),
            member((array + 1).to_string(), 3, 1),
            member(format!("{array}_7"), 7, 0),
            member((array + 3).to_string(), 7, 1),
            member(format!("{array}_9"), 9, 0),
            member((array + 5).to_string(), 9, 1),
        ]
    );
    assert_eq!(cluster.logs(array), format!("{array} 3 3 0 {array}\n"));
    // Two more GPUs are idle, so only the limit of the array keeps the second task from starting.
    let why = wait::until(SOON, "its reason", || {
        let reason = cluster.job(array + 3).job.reason?;
        (reason == "array_task_limit").then_some(reason)
    });
    assert_eq!(why, "array_task_limit");
    let queue = String::from_utf8(tessera(&cluster, &["queue"]).stdout).unwrap();
    assert!(
        queue.contains(&format!("{array}_[7-9]")) || queue.contains(&format!("{array}_7")),
        "{queue}"
    );
    let shown = tessera(&cluster, &["show", &format!("{array}_7")]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("index 7") && shown.contains("rank 0 of 2"), "{shown}");
    assert!(shown.contains(&(array + 3).to_string()), "it lists both members: {shown}");

    cluster.act(format!("{array}_7"), "cancel").expect(200);
    let states = |jobs: &[JobView]| jobs.iter().map(|job| job.state.clone()).collect::<Vec<_>>();
    assert_eq!(states(&members(&cluster, array))[2..4], ["cancelled", "cancelled"]);
    std::fs::write(cluster.scratch().join("go"), "").unwrap();

    cluster.wait_end(after, 3 * SOON);
    let ended = states(&members(&cluster, array));
    assert_eq!(ended[..2], ["succeeded", "succeeded"]);
    assert_eq!(ended[4..], ["succeeded", "succeeded"], "what waits for task 9 ran after it");
    assert_eq!(cluster.logs(array + 4), format!("{array} 9 3 0 {}\n", array + 4));
    assert_eq!(cluster.job(after).job.state, "succeeded");
}
