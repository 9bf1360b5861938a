//! A hostile user with a shell on every machine of a cluster, and jobs on its nodes, by real accounts. What that user
//! tries is in separate programs.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tessera_api_types::{AuditPage, TokenCreated};
use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// Accounts that exist for these tests only.
const ADA: u32 = 64_001;
const EVE: u32 = 64_002;
const ACCOUNTS: &str = "ada:x:64001:64001:Ada:/:/bin/sh\neve:x:64002:64002:Eve:/:/bin/sh\n";
const LONG: Duration = Duration::from_secs(60);

struct Rig {
    cluster: Cluster,
    folder: TempDir,
}

/// A process of a test's own, which ends with it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rig {
    /// Two nodes with two GPUs each, whose jobs run as their submitters. `None` where tests are not root's.
    fn new() -> Option<Self> {
        Self::with_agents(|_| None)
    }

    /// The same with agents that a program starts, which is made in the rig's folder.
    fn with_agents(wrapper: impl FnOnce(&Path) -> Option<PathBuf>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can become other accounts");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at("accounts"), ACCOUNTS).unwrap();
        for (name, program) in [
            ("calls.py", include_str!("hostile/calls.py")),
            ("hold.py", include_str!("hostile/hold.py")),
            ("others.py", include_str!("hostile/others.py")),
        ] {
            fs::write(at(name), program).unwrap();
        }
        for (name, uid) in [("ada", ADA), ("eve", EVE)] {
            fs::create_dir(at(name)).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o700)).unwrap();
            chown(at(name), Some(uid), Some(uid)).unwrap();
        }
        // In a place where every account may execute it. A separate process copies it: while this process has
        // it open for writing, no process of another test could execute it.
        let copied = Command::new("cp").arg(programs().path("tessera")).arg(at("tessera")).status();
        assert!(copied.unwrap().success());
        let links = at("links").display().to_string();
        let made = Command::new(at("tessera")).args(["slurm-links", &links]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut settings = format!("accounts = \"{}\"\n", at("accounts").display());
        let wrapper = wrapper(folder.path());
        if wrapper.is_some() {
            settings += &format!("launch = \"{}\"\n", at("tessera-launch").display());
        }
        let plan = Plan::new()
            .run_as_submitter()
            .agent_settings(settings.leak())
            .whole_gpu_node("n1", "a30-24gb,a30-24gb")
            .whole_gpu_node("n2", "a30-24gb,a30-24gb");
        let cluster = match wrapper {
            Some(wrapper) => plan.agent_wrapper(wrapper).start(),
            None => plan.start(),
        };
        Some(Self { cluster, folder })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Submits a line as a job of an account, and returns its number. Its output is in `out.txt` of the account's folder.
    fn submit(&self, user: &str, options: &[&str], line: &str) -> u64 {
        let uid = if user == "ada" { ADA } else { EVE };
        let path = std::env::var("PATH").unwrap_or_default();
        let words = [&["--parsable", "-o", "out.txt"], options, &["--wrap", line]].concat();
        let submitted = Command::new(self.at("links/sbatch"))
            .args(words)
            .current_dir(self.at(user))
            .uid(uid)
            .gid(uid)
            .env("HOME", self.at(user))
            .env("PATH", format!("{}:{path}", self.at("links").display()))
            .env("TESSERA_URL", format!("http://{}", self.cluster.http()))
            .env("TESSERA_TOKEN", self.cluster.token_for(user, "user"))
            .output()
            .unwrap();
        let number = String::from_utf8_lossy(&submitted.stdout).trim().parse();
        number.unwrap_or_else(|_| panic!("{submitted:?}"))
    }

    fn output(&self, user: &str) -> String {
        fs::read_to_string(self.at(user).join("out.txt")).unwrap_or_default()
    }

    fn run(&self, user: &str, options: &[&str], line: &str) -> String {
        let job = self.submit(user, options, line);
        let ended = self.cluster.wait_end(job, Duration::from_secs(120));
        assert_eq!(ended.job.state, "succeeded", "{ended:?} {}", self.output(user));
        self.output(user)
    }

    /// Waits for a number that a process wrote.
    fn number(&self, path: &Path) -> u32 {
        wait::until(LONG, &format!("a number in {}", path.display()), || {
            fs::read_to_string(path).ok()?.trim().parse().ok()
        })
    }

    fn calls(&self) -> String {
        let sockets = [0, 1].map(|node| self.cluster.agent_data(node).join("calls.sock"));
        sockets.map(|socket| socket.display().to_string()).join(" ")
    }

    /// Runs a shell line as eve, outside of any job.
    fn as_eve(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).current_dir(self.at("eve")).uid(EVE).gid(EVE);
        command
    }
}

/// The account of agents without privileges.
const AGENT: u32 = 64_010;

/// Makes what starts an agent under its own account, on a machine that shows it no processes of others, with a
/// launcher of root's.
fn unprivileged_agents(folder: &Path) -> Option<PathBuf> {
    let at = |name: &str| folder.join(name);
    let run = |line: String| Command::new("sh").args(["-c", &line]).status().unwrap().success();
    let launcher = programs().path("tessera-launch");
    let (etc, copy) = (at("etc").display().to_string(), at("tessera-launch").display().to_string());
    assert!(run(format!(
        "cp -a /etc {etc} && mkdir -p {etc}/tessera && printf 'caller = {AGENT}\\n' > {etc}/tessera/launch.conf && \
         install -m 4755 {} {copy}",
        launcher.display()
    )));
    let script = format!(
        "#!/bin/sh\n\
         for word; do [ \"$before\" = --data ] && data=$word; before=$word; done\n\
         mkdir -p \"$TESSERA_SIM_NODE\" && chown -R {AGENT}:{AGENT} \"$TESSERA_SIM_NODE\" \"$data\"\n\
         exec unshare --mount sh -c 'mount --bind {etc} /etc && mount -t proc -o hidepid=invisible proc /proc && \
         exec setpriv --reuid {AGENT} --regid {AGENT} --clear-groups \"$@\"' sh \"$@\"\n"
    );
    fs::write(at("agent.sh"), script).unwrap();
    fs::set_permissions(at("agent.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    Some(at("agent.sh"))
}

/// Returns whether the kernel reports a process's parent by a descriptor, which it does since 6.13.
fn names_parents() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    version >= (Some(6_u32), Some(13_u32))
}

#[test]
fn srun_in_a_job_reaches_other_nodes_whose_agents_are_not_root_and_see_no_processes_of_others() {
    if !names_parents() {
        eprintln!("SKIPPED: the kernel tells no process's parent by a descriptor (Linux 6.13)");
        return;
    }
    let Some(rig) = Rig::with_agents(unprivileged_agents) else { return };
    let agent = rig.cluster.agents[0].pid().unwrap();
    let status = fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    assert!(status.contains("Uid:\t64010\t64010\t64010\t64010"), "{status}");

    let printed = rig.run("ada", &["-N2", "--gpus-per-node=1"], "srun -N2 --gpus-per-node=1 id -u");

    assert_eq!(printed, "64001\n64001\n");
    // A shell outside of any job, and a job's call for another job, are refused as before.
    let hers = rig.submit("ada", &["-N2", "--gpus-per-node=1"], "sleep 600");
    rig.cluster.wait_job(hers, LONG, "running");
    let attack = format!("python3 {} {hers} {}", rig.at("calls.py").display(), rig.calls());
    let both = ["-N2", "--gpus-per-node=1", "--ntasks-per-node=1"];
    assert_eq!(rig.run("eve", &both, &format!("{{ {attack} ; }} || true")), "done\n");
    let by_shell = rig.as_eve(&attack).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&by_shell.stdout), "done\n");
    rig.cluster.act(hers, "cancel").expect(200);
}

#[test]
fn steps_on_other_nodes_run_as_their_jobs_user_and_nobody_else_reaches_them() {
    let Some(rig) = Rig::new() else { return };
    let line = "srun -N2 --gpus-per-node=1 sh -c 'echo secret > made.$SLURM_PROCID; id -u > uid.$SLURM_PROCID; \
                echo $$ > pid.$SLURM_PROCID; exec sleep 600'";
    let hers = rig.submit("ada", &["-N2", "--gpus-per-node=1"], line);
    let pids = [0, 1].map(|rank| rig.number(&rig.at("ada").join(format!("pid.{rank}"))));
    for (rank, pid) in pids.iter().enumerate() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for line in [
            "Uid:\t64001\t64001\t64001\t64001",
            "Gid:\t64001\t64001\t64001\t64001",
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
        ] {
            assert!(status.contains(line), "{rank}: no {line} in {status}");
        }
        let uid = fs::read_to_string(rig.at("ada").join(format!("uid.{rank}"))).unwrap();
        assert_eq!(uid.trim(), "64001");
    }

    // Each attack that succeeds is named.
    let [one, two] = pids;
    let ada = rig.at("ada");
    let attack = format!(
        "exec 2>/dev/null; for pid in {one} {two}; do \
           kill -0 $pid && echo SIGNAL; kill -9 $pid; head -c 1 /proc/$pid/environ && echo ENVIRONMENT; \
           ls /proc/$pid/fd/ >/dev/null && echo DESCRIPTORS; ls /proc/$pid/root/ >/dev/null && echo ROOT; \
           head -c 1 /proc/$pid/mem && echo MEMORY; \
           for group in $(sed -n 's/^0:://p' /proc/$pid/cgroup); do \
             for mount in /sys/fs/cgroup /sys/fs/cgroup/unified; do \
               (echo 0 > $mount$group/cgroup.procs) && echo GROUP; (echo 1 > $mount$group/cgroup.kill) && echo KILL; \
             done; \
           done; \
         done; \
         cat {ada}/made.0 && echo READ; touch {ada}/new && echo WROTE; \
         python3 {calls} {hers} {sockets}",
        ada = ada.display(),
        calls = rig.at("calls.py").display(),
        sockets = rig.calls(),
    );
    // Once by a job on the same nodes, and once by a shell.
    let both = ["-N2", "--gpus-per-node=1", "--ntasks-per-node=1"];
    let printed = rig.run("eve", &both, &format!("{{ {attack} ; }} || true"));
    assert_eq!(printed, "done\n", "attacks by a job");
    let by_shell = rig.as_eve(&attack).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&by_shell.stdout), "done\n", "attacks by a shell");

    for pid in pids {
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "a step was killed");
    }
    assert_eq!(rig.cluster.job(hers).job.state, "running");
    // The file that the attack looked for is there.
    assert_eq!(fs::read_to_string(ada.join("made.0")).unwrap(), "secret\n");
    rig.cluster.act(hers, "cancel").expect(200);
    rig.cluster.wait_job(hers, LONG, "cancelled");
    wait::until(SOON, "the steps' end", || {
        pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    });
}

#[test]
fn a_job_that_holds_all_the_calls_it_gets_keeps_no_other_users_steps_from_starting() {
    let Some(rig) = Rig::new() else { return };
    let hold = format!(
        "python3 {} $TESSERA_CALLS 700 {}",
        rig.at("hold.py").display(),
        rig.at("eve").join("ready").display()
    );
    let holder = rig.submit("eve", &["-N2", "--gpus-per-node=1"], &hold);
    wait::until(LONG, "held connections", || rig.at("eve").join("ready").exists().then_some(()));

    let printed = rig.run("ada", &["-N2", "--gpus-per-node=1"], "srun -N2 --gpus-per-node=1 id -u");

    assert_eq!(printed, "64001\n64001\n");
    assert_eq!(rig.cluster.job(holder).job.state, "running");
}

#[test]
fn a_user_who_locks_and_holds_what_can_be_opened_keeps_no_daemon_from_serving_and_starting() {
    let Some(mut rig) = Rig::new() else { return };
    let data = rig.cluster.controller_data();
    let agent = rig.cluster.agent_data(0);
    // It locks every file that the account may open, and holds connections to every socket.
    let lock = format!(
        "for file in $(find {0} {1} {0}/lock {0}/token {0}/receipt.key {0}/identity/ca.key {0}/identity/key.pem \
           {1}/lock {1}/state {1}/lease {1}/identity/key.pem -type f -readable 2>/dev/null); do \
           echo $file; flock -s $file sleep 600 & done; echo all; wait",
        data.display(),
        agent.display()
    );
    let mut lock = rig.as_eve(&lock);
    lock.stdout(fs::File::create(rig.at("locked")).unwrap()).process_group(0);
    let locker = Process(lock.spawn().unwrap());
    wait::until(LONG, "locks", || {
        fs::read_to_string(rig.at("locked")).ok()?.lines().any(|line| line == "all").then_some(())
    });
    let locked = fs::read_to_string(rig.at("locked")).unwrap();
    for secret in ["lock", "token", "receipt.key", "ca.key", "key.pem", "state", "lease"] {
        assert!(!locked.lines().any(|line| line.ends_with(secret)), "eve opens {secret}: {locked}");
    }
    let ready = rig.at("eve").join("ready");
    let mut holders = Vec::new();
    for socket in [data.join("api.sock"), data.join("job-calls.sock"), agent.join("calls.sock")] {
        let line = format!(
            "exec python3 {} {} 1500 {}",
            rig.at("hold.py").display(),
            socket.display(),
            ready.display()
        );
        holders.push(Process(rig.as_eve(&line).spawn().unwrap()));
        wait::until(LONG, "held connections", || ready.exists().then_some(()));
        fs::remove_file(&ready).unwrap();
    }

    // Its other clients are served, by both ways in.
    let listed = Command::new(rig.at("tessera"))
        .args(["--url", &rig.cluster.url(), "nodes", "--json"])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    assert_eq!(rig.cluster.nodes().len(), 2);
    let printed = rig.run("ada", &["-N2", "--gpus-per-node=1"], "srun -N2 --gpus-per-node=1 id -u");
    assert_eq!(printed, "64001\n64001\n");

    // And both start again.
    rig.cluster.controller.stop();
    rig.cluster.controller.start();
    rig.cluster.agents[0].stop();
    rig.cluster.agents[0].start();
    rig.cluster.wait_ready();
    let group = rustix::process::Pid::from_child(&locker.0);
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
}

/// An account that every machine has, and that is nobody special to the controller.
const DAEMON: u32 = 1;

#[test]
fn another_account_of_the_machine_neither_reads_nor_commands_a_job_by_the_socket() {
    let Some(rig) = Rig::new() else { return };
    let hers = rig.submit("ada", &["--gpus=1"], ": hers-alone; echo secret; exec sleep 600");
    rig.cluster.wait_job(hers, LONG, "running");
    let attack = |uid: u32| {
        let mut command = Command::new("python3");
        let socket = rig.cluster.controller_data().join("api.sock");
        command.arg(rig.at("others.py")).arg(socket).arg(hers.to_string()).uid(uid).gid(uid);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };

    assert_eq!(attack(DAEMON), "daemon user socket\ndone\n");

    assert_eq!(rig.cluster.job(hers).job.state, "running");
    assert_eq!(rig.output("ada"), "secret\n");
    // What refuses a user is there for an administrator.
    let by_root = attack(0);
    for done in ["GET /v1/jobs/{job} 200", "GET /v1/jobs/{job}/logs 200", "audit 200"] {
        assert!(by_root.lines().any(|line| line == done), "{done}: {by_root}");
    }
}

#[test]
fn a_shell_that_a_stolen_token_opened_ends_with_its_revocation() {
    let Some(rig) = Rig::new() else { return };
    let job = rig.submit("ada", &["--gpus=1"], "exec sleep 600");
    rig.cluster.wait_job(job, LONG, "running");
    let request = br#"{"name": "stolen", "user": "ada", "role": "user"}"#;
    let stolen = rig.cluster.call("POST", "/v1/tokens", Some(request)).expect(201);
    let stolen = stolen.json::<TokenCreated>();
    let mut shell = Command::new(rig.at("tessera"));
    shell
        .args(["exec", &job.to_string(), "--", "sh", "-c", "echo in; exec cat"])
        .env("TESSERA_URL", format!("http://{}", rig.cluster.http()))
        .env("TESSERA_TOKEN", &stolen.secret)
        .env("HOME", rig.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = Process(shell.spawn().unwrap());
    let mut first = [0; 3];
    shell.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"in\n");

    rig.cluster.call("DELETE", &format!("/v1/tokens/{}", stolen.token.id), None).expect(200);

    let ended = wait::until(SOON, "the shell's end", || shell.0.try_wait().unwrap());
    assert!(!ended.success(), "{ended:?}");
    assert_eq!(rig.cluster.job(job).job.state, "running");
}

#[test]
fn what_nodes_do_not_enforce_is_stated_and_who_submitted_is_audited() {
    let Some(rig) = Rig::new() else { return };
    let job = rig.submit("ada", &["--gpus=1"], "true");

    // Data folders in /tmp switch the private /tmp off.
    let about = Command::new(rig.at("tessera"))
        .args(["--url", &rig.cluster.url(), "info"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&about.stdout).into_owned();
    assert!(text.contains("on all nodes, jobs share /tmp"), "{text}");
    let doctor = rig.cluster.call("GET", "/v1/nodes/n1/doctor", None).expect(200).text();
    assert!(doctor.contains("jobs share /tmp"), "{doctor}");

    let audit = rig.cluster.call("GET", "/v1/audit?principal=ada", None).expect(200);
    let audit = audit.json::<AuditPage>();
    let entry = audit.items.iter().find(|entry| entry.action == "POST /v1/jobs").unwrap();
    assert_eq!((entry.object.as_str(), entry.status), (&*format!("/v1/jobs/{job}"), 201));
    assert_eq!(entry.role.as_deref(), Some("user"));
    assert!(entry.origin.starts_with("token "), "{entry:?}");
}

#[test]
fn containers_run_as_the_user_who_submits_them_by_the_command_and_as_steps_on_both_nodes() {
    if !Path::new("/usr/bin/podman").exists() {
        eprintln!("SKIPPED: containers need podman (apt-get install podman)");
        return;
    }
    let Some(rig) = Rig::new() else { return };
    fs::write(rig.at("image.sh"), include_str!("hostile/image.sh")).unwrap();
    let mut import = Command::new("/bin/sh");
    import.arg(rig.at("image.sh")).current_dir(rig.at("ada")).uid(ADA).gid(ADA).env_clear();
    import.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", rig.at("ada"));
    let imported = import.output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let image = "--container-image=localhost/house:1";
    let owner = |name: &str| {
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(rig.at("ada").join(name)).unwrap())
    };

    let text = rig.run("ada", &[image], "cat /mark; id -u; touch made");
    assert_eq!((text.as_str(), owner("made")), ("of the image\n0\n", ADA));
    let line = format!("srun {image} sh -c 'cat /mark; touch made-$SLURM_PROCID-$SLURMD_NODENAME'");
    let two = ["-N2", "--ntasks-per-node=1", "--gpus-per-node=1"];
    let text = rig.run("ada", &two, &line);
    assert_eq!(text, "of the image\nof the image\n");
    assert_eq!([owner("made-0-n1"), owner("made-1-n2")], [ADA; 2]);

    // Another user's store is not hers.
    let job = rig.submit("eve", &[image], "cat /mark");
    let ended = rig.cluster.wait_end(job, Duration::from_secs(120)).job;
    let why = ended.reason_text.clone().unwrap_or_default() + &rig.output("eve");
    assert_eq!(ended.state, "failed", "{ended:?}");
    assert!(why.contains("podman pull localhost/house:1"), "{ended:?} {why}");
}
