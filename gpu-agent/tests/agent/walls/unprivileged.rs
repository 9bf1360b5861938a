//! An agent with its own account, behind a launcher with setuid.

use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tessera_frames::cluster::{MigReport, PlanEnd, StopCause, ToAgent};
use tessera_model::life::Outcome;
use tessera_model::mig::{PlanStep, Slot};
use tessera_model::spec::OutputPaths;

use super::{EVE, Stage, gates, is_root, let_share, share_by_kernel, stage_with};
use crate::common::plan;

/// The account of an agent without privileges.
pub(super) const AGENT: u32 = 64_010;

/// Which processes the agent sees on its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostProc {
    All,
    /// Only those of its own account: the machine's `/proc` is mounted with `hidepid`.
    Own,
}

/// Who may divide the GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GpuRights {
    /// The agent's account.
    Agent,
    /// Root: the stand-in's GPUs lie in a folder of root's, and the launcher starts the worker.
    Root,
}

/// A node whose agent has its own account, and whose launcher is root's with setuid. `None` where this machine
/// can't give the agent its own view on `/etc`.
async fn unprivileged_stage(host: HostProc, gpus: GpuRights) -> Option<Stage> {
    unprivileged_stage_with(host, gpus, "", |_, _| ()).await
}

/// The same with more settings, and what else its agent is started with.
pub(super) async fn unprivileged_stage_with(
    host: HostProc,
    gpus: GpuRights,
    more: &str,
    set: impl FnOnce(&Path, &mut Command),
) -> Option<Stage> {
    let folder = tempfile::tempdir().unwrap();
    let etc = folder.path().join("etc");
    let copied = Command::new("cp").arg("-a").arg("/etc").arg(&etc).status().unwrap();
    assert!(copied.success());
    std::fs::create_dir_all(etc.join("tessera")).unwrap();
    // Where every account reaches it: a worker of MPS runs it as a user.
    let worker = folder.path().join("tessera-agent");
    std::fs::copy(env!("CARGO_BIN_EXE_tessera-agent"), &worker).unwrap();
    let mut rules = format!("caller = {AGENT}\nuid_min = 1000\nworker = {}\n", worker.display());
    if gpus == GpuRights::Root {
        let gpus_folder = root_gpus(folder.path());
        std::fs::create_dir(&gpus_folder).unwrap();
        std::fs::set_permissions(&gpus_folder, PermissionsExt::from_mode(0o700)).unwrap();
        rules += &format!(
            "nvml = {}\nworker_env = TESSERA_SIM_NODE={}\n\
             worker_env = TESSERA_SIM_GPUS=a100-40gb\nworker_env = TESSERA_SIM_LATENCY=0\n",
            tessera_stand_in::library::build().unwrap().display(),
            gpus_folder.display(),
        );
    }
    std::fs::write(etc.join("tessera/launch.conf"), rules).unwrap();
    let enter = own_view(&etc, host);
    let mut probe = Command::new("true");
    // SAFETY: only system calls are made between fork and exec.
    unsafe { probe.pre_exec(enter.clone()) };
    if probe.status().is_err() {
        eprintln!("SKIPPED: this machine gives a process no private mounts");
        return None;
    }
    let launcher = folder.path().join("tessera-launch");
    let settings = format!("launch = \"{}\"\n{more}", launcher.display());
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_tessera-agent")).with_file_name("tessera-launch");
    std::fs::copy(own, &launcher).unwrap();
    std::fs::set_permissions(&launcher, PermissionsExt::from_mode(0o4755)).unwrap();
    let mut stage = stage_with(&std::env::temp_dir(), &settings, |at, command| {
        set(at, command);
        let data = at.join("n1");
        let mut give = Command::new("chown");
        give.arg("-R").arg(format!("{AGENT}:{AGENT}")).arg(&data);
        assert!(give.status().unwrap().success());
        run_as_agent(command, &etc, host);
    })
    .await;
    // Removed with the node's own folder.
    stage.extra.push(folder);
    Some(stage)
}

/// Returns what gives a process its own view on `/etc`, and on `/proc` if processes of others are hidden.
fn own_view(
    etc: &Path,
    host: HostProc,
) -> impl Fn() -> std::io::Result<()> + Clone + Send + Sync + use<> {
    let text = |path: &Path| CString::new(path.display().to_string()).unwrap();
    let (etc, target, root) = (text(etc), text(Path::new("/etc")), text(Path::new("/")));
    let (proc, kind, hidden) =
        (text(Path::new("/proc")), text(Path::new("proc")), text(Path::new("hidepid=invisible")));
    move || -> std::io::Result<()> {
        let check = |result: libc::c_int| match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
        // SAFETY: all texts are C strings that live as long as the closure, and only system calls are made.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            check(libc::mount(none, root.as_ptr(), none, private, none.cast()))?;
            check(libc::mount(etc.as_ptr(), target.as_ptr(), none, libc::MS_BIND, none.cast()))?;
            if host == HostProc::Own {
                let options = hidden.as_ptr().cast();
                check(libc::mount(kind.as_ptr(), proc.as_ptr(), kind.as_ptr(), 0, options))?;
            }
            Ok(())
        }
    }
}

/// Makes a command run with the agent's view and account.
pub(super) fn run_as_agent(command: &mut Command, etc: &Path, host: HostProc) {
    let enter = own_view(etc, host);
    let become_agent = move || {
        enter()?;
        // SAFETY: plain numbers and an empty list.
        let is_agent = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setgid(AGENT) == 0
                && libc::setuid(AGENT) == 0
        };
        if is_agent { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: only system calls are made between fork and exec.
    unsafe { command.pre_exec(become_agent) };
}

/// Returns the folder of the GPUs that only root reaches.
fn root_gpus(folder: &Path) -> PathBuf {
    folder.join("gpus")
}

/// The processes of a node's workers, which answer requests: neither the launchers between, nor those of events.
fn workers(stage: &Stage) -> Vec<u32> {
    let gpus_folder = root_gpus(stage.extra[0].path()).display().to_string();
    let is_worker = |pid: &u32| {
        let text = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let (line, environment) = (text("cmdline"), text("environ"));
        let has =
            |words: &[u8], word: &str| words.windows(word.len()).any(|at| at == word.as_bytes());
        has(&line, "\0nvml-worker\0") && !has(&line, "--events") && has(&environment, &gpus_folder)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_worker).collect()
}

#[tokio::test]
async fn an_agent_without_privileges_divides_gpus_by_a_worker_of_roots_that_ends_when_it_hangs() {
    if !is_root() {
        return;
    }
    let Some(mut stage) = unprivileged_stage(HostProc::All, GpuRights::Root).await else { return };
    let gpu = stage.session.gpu("A100");
    let MigReport::On { geometry } = &gpu.mig else { panic!("{gpu:?}") };
    let slot = |start| {
        let profile = geometry.by_name(&"1g.5gb".parse().unwrap()).unwrap();
        PlanStep::Create(Slot { start, profile: profile.id })
    };

    let (end, report) = stage.session.apply(plan(&gpu.gpu, 1, vec![slot(0)])).await;

    assert_eq!(end, PlanEnd::Done);
    assert_eq!(report.unwrap().instances.len(), 1);
    let agent = std::fs::read_to_string(format!("/proc/{}/status", stage.agent.child.id()));
    assert!(agent.unwrap().contains("Uid:\t64010\t64010\t64010\t64010"));
    let [worker] = workers(&stage)[..] else { panic!("{:?}", workers(&stage)) };
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    assert!(status.contains("Uid:\t0\t0\t0\t0"), "{status}");

    // The agent may not kill it: the end of its input does.
    crate::common::kill(worker, "-STOP");
    crate::common::eventually("the hung worker ends", || !crate::common::runs(worker)).await;
    let (end, report) = stage.session.apply(plan(&gpu.gpu, 2, vec![slot(1)])).await;
    assert_eq!(end, PlanEnd::Done);
    assert_eq!(report.unwrap().instances.len(), 2);

    // Nothing of root's outlives the agent.
    let [worker] = workers(&stage)[..] else { panic!("{:?}", workers(&stage)) };
    stage.agent.child.kill().unwrap();
    crate::common::eventually("the worker ends with the agent", || !crate::common::runs(worker))
        .await;
}

/// Returns why a launcher refuses to start a worker for an account.
pub(super) fn refusal(launcher: &Path, etc: &Path, uid: u32, words: &[&str]) -> String {
    let mut command = Command::new("unshare");
    // The same view of the machine that the agent has.
    let line = format!(
        "mount --bind {} /etc && exec setpriv --reuid {uid} --regid {uid} --clear-groups \"$@\"",
        etc.display()
    );
    command.args(["--mount", "sh", "-c", &line, "sh"]).arg(launcher).args(words);
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_setuid_launcher_starts_no_other_worker_and_loads_no_other_library() {
    if !is_root() {
        return;
    }
    let Some(stage) = unprivileged_stage(HostProc::All, GpuRights::Root).await else { return };
    let launcher = stage.extra[0].path().join("tessera-launch");
    let etc = stage.extra[0].path().join("etc");
    let library = tessera_stand_in::library::build().unwrap().display().to_string();
    let run = |uid: u32, words: &[&str]| refusal(&launcher, &etc, uid, words);

    for (uid, words, reason) in [
        (AGENT, vec!["--nvml-worker", "/tmp/mine.so"], "may load"),
        (AGENT, vec!["--nvml-worker", &library, "--other"], "takes no"),
        (AGENT, vec!["--nvml-worker"], "may load"),
        (EVE, vec!["--nvml-worker", &library], "may not start it"),
    ] {
        let refusal = run(uid, &words);
        assert!(refusal.contains(reason), "{words:?}: {refusal}");
    }
    // A program that others may change is not started as root.
    let rules = std::fs::read_to_string(etc.join("tessera/launch.conf")).unwrap();
    let (changed, program) = (etc.join("tessera/changed"), etc.join("tessera/worker"));
    std::fs::write(&program, "").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o775)).unwrap();
    let own = stage.extra[0].path().join("tessera-agent").display().to_string();
    std::fs::write(&changed, rules.replace(&own, "/etc/tessera/worker")).unwrap();
    std::fs::rename(&changed, etc.join("tessera/launch.conf")).unwrap();
    let refusal = run(AGENT, &["--nvml-worker", &library]);
    assert!(refusal.contains("writable for nobody else"), "{refusal}");
}

#[tokio::test]
async fn an_agent_without_privileges_runs_jobs_as_their_submitters_by_a_setuid_launcher() {
    if !is_root() {
        return;
    }
    for host in [HostProc::All, HostProc::Own] {
        let Some(stage) = unprivileged_stage(host, GpuRights::Agent).await else { return };
        run_jobs_of_others(stage).await;
    }
}

async fn run_jobs_of_others(mut stage: Stage) {
    let agent = format!("/proc/{}/status", stage.agent.child.id());
    let agent = std::fs::read_to_string(agent).unwrap();
    assert!(agent.contains("Uid:\t64010\t64010\t64010\t64010"), "{agent}");
    assert!(agent.contains("CapEff:\t0000000000000000"), "{agent}");

    let line = "id -u; id -G; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; \
                cat $IDENTITY/* 2>/dev/null && echo read; kill -0 $AGENT 2>/dev/null && echo signalled; \
                kill -0 $PPID 2>/dev/null && echo signalled; touch here && ls -ln here | cut -d' ' -f3";
    let mut order = stage.of("ada", line);
    let identity = stage.agent.data.join("identity").display().to_string();
    order.run.env.insert("IDENTITY".into(), identity);
    order.run.env.insert("AGENT".into(), stage.agent.child.id().to_string());
    let (record, text) = stage.run(&order).await;
    let zero = "0000000000000000";
    let expected =
        format!("64001\n64001\nCapEff:\t{zero}\nCapBnd:\t{zero}\nNoNewPrivs:\t1\n64001\n");
    assert_eq!((record.outcome, text), (Outcome::Succeeded, expected), "{record:?}");

    // Outputs are opened and read as the user: the agent itself can't read them.
    let home = stage.home();
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).unwrap();
    let mut order = stage.of("ada", "echo hers");
    let path = home.join("out").display().to_string();
    order.run.output = OutputPaths { stdout: Some(path), stderr: None };
    let (record, text) = stage.run(&order).await;
    assert_eq!((record.outcome, text.as_str()), (Outcome::Succeeded, "hers\n"), "{record:?}");

    // A job of another account is stopped by the launcher.
    let order = stage.of("ada", "trap '' TERM; sleep 300 & wait; sleep 300");
    stage.session.launch(&order).await;
    stage.session.until_running(order.attempt).await;
    let (attempt, cause) = (order.attempt, StopCause::Cancel);
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    let record = stage.session.until_ended(attempt).await;
    assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");

    for (user, words) in [("root", "jobs of root are refused"), ("daemon", "belongs to the system")]
    {
        let (record, _) = stage.run(&stage.of(user, "id -u")).await;
        assert_ne!(record.outcome, Outcome::Succeeded, "{user}: {record:?}");
        assert!(record.detail.contains(words), "{user}: {record:?}");
    }
}

#[tokio::test]
async fn an_agent_without_privileges_shares_slices_by_kernel() {
    if !is_root() {
        return;
    }
    let (memory, gates) = gates();
    std::os::unix::fs::chown(memory.path(), Some(AGENT), Some(AGENT)).unwrap();
    let settings = format!("kernel_gates = \"{}\"\n", gates.display());
    let stage =
        unprivileged_stage_with(HostProc::All, GpuRights::Agent, &settings, let_share).await;
    let Some(stage) = stage else { return };
    share_by_kernel(stage, &gates, AGENT).await;
}

#[tokio::test]
async fn a_setuid_launcher_serves_nobody_but_the_account_that_it_names() {
    if !is_root() {
        return;
    }
    let Some(stage) = unprivileged_stage(HostProc::All, GpuRights::Agent).await else { return };
    let launcher = stage.extra[0].path().join("tessera-launch");
    let run = |uid: u32| {
        let mut command = Command::new(&launcher);
        command.uid(uid).gid(uid).stdin(std::process::Stdio::null());
        command.output().unwrap()
    };

    // This machine's own /etc names no caller.
    let output = run(EVE);

    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("launch.conf") || text.contains("may not start it"), "{text}");
}
