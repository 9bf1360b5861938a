//! Attacks on other users and on the node, by jobs of real accounts under a real agent that is root. Where the
//! tests are not root's, they can become nobody else, and print that.

mod unit;
mod unprivileged;
mod user_mps;

use std::ffi::CString;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Agent, Cluster, LogRead, Place, Session, order, shell};
use tessera_frames::cluster::{
    ExitRecord, FromSession, KernelQueueSpec, LaunchOrder, LogStream, StopCause, ToAgent,
};
use tessera_frames::kernel::variables;
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::share::MpsShare;
use tessera_model::spec::{Class, JobProgram, OutputPaths};
use tessera_model::{Bytes, Millis};

/// Accounts that exist for these tests only.
const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/sh\n\
                        daemon:x:2:2:daemon:/:/bin/false\n\
                        ada:x:64001:64001:Ada:/home/ada:/bin/sh\n\
                        eve:x:64002:64002:Eve:/home/eve:/bin/sh\n";
const ADA: u32 = 64_001;
const EVE: u32 = 64_002;

struct Stage {
    cluster: Cluster,
    agent: Agent,
    session: Session,
    place: Place,
    /// Folders that the node needs in addition to its own.
    extra: Vec<tempfile::TempDir>,
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can let jobs run as other accounts");
    }
    is_root
}

/// A node whose jobs run as their submitters, in a folder that they can reach.
async fn stage_in(folder: &Path, settings: &str) -> Stage {
    stage_with(folder, settings, |_, _| ()).await
}

async fn stage_with(folder: &Path, settings: &str, set: impl FnOnce(&Path, &mut Command)) -> Stage {
    let cluster = Cluster::new_in(folder);
    let data = cluster.enrol("n1");
    let file = |name: &str| cluster.folder.path().join(name);
    std::fs::set_permissions(cluster.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(file("accounts"), ACCOUNTS).unwrap();
    let accounts = file("accounts").display().to_string();
    std::fs::write(file("agent.toml"), format!("accounts = \"{accounts}\"\n{settings}")).unwrap();
    let agent = start_agent(&cluster, &data, set);
    let session = cluster.welcome().await;
    let place = Place::on(&session.gpu("A100"));
    Stage { cluster, agent, session, place, extra: Vec::new() }
}

/// Starts the agent of a node whose jobs run as their submitters.
fn start_agent(cluster: &Cluster, data: &Path, set: impl FnOnce(&Path, &mut Command)) -> Agent {
    cluster.start_with(data, |command| {
        command
            .env("TESSERA_SIM_MIG", "off")
            .env("TESSERA_AGENT_RUN_AS", "submitter")
            .env("TESSERA_AGENT_ROOT_JOBS", "false")
            .env("TESSERA_AGENT_CONFIG", cluster.folder.path().join("agent.toml"));
        set(cluster.folder.path(), command);
    })
}

async fn stage() -> Stage {
    stage_in(&std::env::temp_dir(), "").await
}

impl Stage {
    fn of(&self, user: &str, line: &str) -> LaunchOrder {
        LaunchOrder { user: user.to_owned(), ..shell(&self.place, line) }
    }

    async fn run(&mut self, order: &LaunchOrder) -> (ExitRecord, String) {
        let record = self.session.run(order).await;
        let text = self.read(order).await.unwrap_or_default();
        (record, text)
    }

    async fn read(&self, order: &LaunchOrder) -> Result<String, String> {
        match self.session.read_log(order.attempt, LogStream::Stdout, false).await {
            LogRead::Text(text, _) => Ok(text),
            LogRead::Unknown(reason) => Err(reason),
        }
    }

    /// A folder of ada's.
    fn home(&self) -> PathBuf {
        let home = self.cluster.folder.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(ADA), Some(ADA)).unwrap();
        home
    }
}

#[tokio::test]
async fn a_job_runs_as_its_submitter_with_no_rights_beyond() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let line = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; umask; \
                grep -E '^(CapEff|CapBnd|NoNewPrivs|SigBlk|SigIgn)' /proc/self/status; \
                ls /proc/self/fd | wc -l; touch here; ls -ln here slurm_script | cut -d' ' -f3";
    let mut order = stage.of("ada", "");
    order.run.program = JobProgram::Script(format!("#!/bin/sh\n{line}\n"));

    let (record, text) = stage.run(&order).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");
    let zero = "0000000000000000";
    let expected = format!(
        "64001\n64001\n64001\n/home/ada ada ada\n0022\nSigBlk:\t{zero}\nSigIgn:\t{zero}\n\
         CapEff:\t{zero}\nCapBnd:\t{zero}\nNoNewPrivs:\t1\n4\n64001\n64001\n"
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn users_without_an_account_and_the_systems_accounts_are_refused_for_good() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    for (user, words) in [
        ("ghost", "this node has no account ghost"),
        ("root", "jobs of root are refused"),
        ("daemon", "belongs to the system"),
    ] {
        let order = stage.of(user, "id -u");

        let (record, text) = stage.run(&order).await;

        assert_eq!(record.outcome, Outcome::LaunchFailed, "{user}: {record:?}");
        assert!(record.detail.contains(words), "{user}: {record:?}");
        assert_eq!(text, "");
    }
}

#[tokio::test]
async fn a_job_reaches_nothing_of_the_node_and_of_other_users() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let mut victim = stage.of("ada", "echo hers > secret; chmod 644 secret; exec sleep 300");
    victim.run.env.insert("SECRET".into(), "hers".into());
    stage.session.launch(&victim).await;
    let pid = stage.session.until_running(victim.attempt).await;
    let data = stage.agent.data.display().to_string();
    let other = Place::on(&stage.session.gpu("A30"));
    // Each attack that succeeds is named.
    let attack = format!(
        "exec 2>/dev/null; cd {data}; \
         for file in $(find {data} -type f) identity/* state lease lock journal* outputs/* shepherds/* gpus/* \
             attempts/*/exit attempts/{attempt}/work/secret attempts/{attempt}/work/slurm_script; do \
           head -c 1 $file >/dev/null && echo READ $file; \
           (: >> $file) && echo WROTE $file; \
         done; \
         ls {data} {data}/attempts {data}/shepherds && echo LISTED; \
         touch {data}/new {data}/attempts/new && echo MADE; \
         head -c 1 /proc/{pid}/environ && echo ENVIRONMENT; ls /proc/{pid}/fd/ && echo DESCRIPTORS; \
         ls /proc/{pid}/cwd/ && echo FOLDER; \
         kill -0 {pid} && echo SIGNAL; kill -9 {pid}; \
         for group in $(find /sys/fs/cgroup -path '*tessera-jobs*' -name cgroup.procs); do \
           (echo 0 > $group) && echo GROUP $group; \
         done; \
         for group in $(find /sys/fs/cgroup -path '*tessera-jobs*' -name cgroup.kill); do \
           (echo 1 > $group) && echo KILL $group; \
         done; \
         ps -e -o comm= | grep -q tessera-shepherd && kill -9 $(pidof tessera-shepherd tessera-launch tessera-agent) \
           && echo SHEPHERD; echo done",
        attempt = victim.attempt.as_uuid().hyphenated(),
    );
    let attack = LaunchOrder { user: "eve".into(), ..shell(&other, &attack) };

    let (record, text) = stage.run(&attack).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert_eq!(text, "done\n");
    assert!(crate::common::runs(pid), "the victim was killed");
    // The victim's own file shows that the attack looked in the right place.
    assert!(Path::new(&format!("/proc/{pid}/cwd/secret")).exists());
}

#[tokio::test]
async fn outputs_that_are_traps_are_refused_and_cost_the_slice_nothing() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let home = stage.home();
    let at = |name: &str| home.join(name).display().to_string();
    let pipe = CString::new(at("pipe")).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o666) }, 0);
    std::fs::set_permissions(at("pipe"), PermissionsExt::from_mode(0o666)).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", at("shadow")).unwrap();
    for (path, words) in [
        (at("pipe"), "a named pipe"),
        (at("shadow"), "can't be written"),
        ("/etc/shadow".to_owned(), "can't be written"),
        ("/proc/self/fd/1".to_owned(), "can't be written"),
        ("/dev/zero".to_owned(), "a device"),
        (at("."), "can't be written"),
    ] {
        for append in [false, true] {
            let mut order = stage.of("ada", "echo x");
            order.number = if append { 2 } else { 1 };
            order.run.output = OutputPaths { stdout: Some(path.clone()), stderr: None };

            let (record, _) = stage.run(&order).await;

            assert_eq!(record.outcome, Outcome::LaunchFailed, "{path}: {record:?}");
            assert!(record.detail.contains(words), "{path}: {record:?}");
            let read = stage.read(&order).await.unwrap_err();
            assert!(read.contains("may not read it"), "{path}: {read}");
        }
    }
    let (record, text) = stage.run(&stage.of("ada", "echo still here")).await;
    assert_eq!((record.outcome, text.as_str()), (Outcome::Succeeded, "still here\n"));
}

#[tokio::test]
async fn readers_get_the_file_that_the_attempt_opened_and_no_other_in_its_place() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let home = stage.home();
    let path = home.join("log");
    let mut order = stage.of("ada", "echo mine");
    order.run.output = OutputPaths { stdout: Some(path.display().to_string()), stderr: None };
    let (record, text) = stage.run(&order).await;
    assert_eq!((record.outcome, text.as_str()), (Outcome::Succeeded, "mine\n"), "{record:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), ADA);

    // A key that only the agent may read, at the path of the log.
    std::fs::remove_file(&path).unwrap();
    let key = std::fs::read_dir(stage.agent.data.join("identity")).unwrap().flatten();
    let key = key.map(|file| file.path()).find(|path| path.display().to_string().contains("key"));
    std::os::unix::fs::symlink(key.unwrap(), &path).unwrap();
    let refused = stage.read(&order).await.unwrap_err();
    assert!(refused.contains("denied"), "{refused}");

    // A file that the user may read, but another one.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another").unwrap();
    let refused = stage.read(&order).await.unwrap_err();
    assert!(refused.contains("replaced"), "{refused}");
}

/// A file system that never answers.
struct HungMount {
    folder: PathBuf,
    _device: std::fs::File,
}

impl HungMount {
    fn make(folder: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&folder).unwrap();
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let text = |text: &str| CString::new(text).unwrap();
        let (target, kind) = (text(&folder.display().to_string()), text("fuse"));
        let fd = device.as_raw_fd();
        let options = text(&format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"));
        // SAFETY: all texts are C strings.
        let mounted = unsafe {
            libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        (mounted == 0).then_some(Self { folder, _device: device })
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        let target = CString::new(self.folder.display().to_string()).unwrap();
        // SAFETY: the path is a C string.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

/// A file system that serves ada and refuses all other users, root included, as a home folder on
/// NFS with `root_squash` does for what only its owner may read.
struct SquashedMount {
    folder: PathBuf,
    server: std::process::Child,
}

impl SquashedMount {
    fn make(parent: &Path) -> Option<Self> {
        let at = |name: &str| parent.join(name);
        for name in ["home", "lower", "upper", "work"] {
            std::fs::create_dir_all(at(name)).unwrap();
            std::os::unix::fs::chown(at(name), Some(ADA), Some(ADA)).unwrap();
        }
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let text = |text: &str| CString::new(text).unwrap();
        let (target, kind) = (text(&at("home").display().to_string()), text("fuse"));
        let fd = device.as_raw_fd();
        // Without `allow_other` the kernel lets nobody in but this user.
        let options = text(&format!("fd={fd},rootmode=40000,user_id={ADA},group_id={ADA}"));
        // SAFETY: all texts are C strings.
        let mounted = unsafe {
            libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        if mounted != 0 {
            return None;
        }
        let layers = ["lowerdir=", "upperdir=", "workdir="]
            .into_iter()
            .zip(["lower", "upper", "work"])
            .map(|(option, name)| format!("{option}{}", at(name).display()))
            .collect::<Vec<_>>();
        let mut command = Command::new("fuse-overlayfs");
        command.args(["-f", "-o", &layers.join(","), &format!("/dev/fd/{fd}")]).uid(ADA).gid(ADA);
        // SAFETY: a plain number: the server inherits the device.
        unsafe {
            command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        match command.spawn() {
            Ok(server) => Some(Self { folder: at("home"), server }),
            Err(_) => {
                // SAFETY: the path is a C string.
                unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
                None
            }
        }
    }
}

impl Drop for SquashedMount {
    fn drop(&mut self) {
        let target = CString::new(self.folder.display().to_string()).unwrap();
        // SAFETY: the path is a C string.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[tokio::test]
async fn a_home_folder_that_root_may_not_enter_holds_the_program_its_folder_and_its_outputs() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let Some(home) = SquashedMount::make(stage.cluster.folder.path()) else {
        eprintln!(
            "SKIPPED: no FUSE mounts here, or no fuse-overlayfs (apt install fuse-overlayfs)"
        );
        return;
    };
    assert!(std::fs::read_dir(&home.folder).is_err(), "root may not enter");
    let make =
        "printf '#!/bin/sh\\necho made by hand; id -u; pwd; touch more\\n' > run; chmod 700 run";
    let mut first = stage.of("ada", make);
    first.run.work_dir = Some(home.folder.display().to_string());
    let (record, text) = stage.run(&first).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");

    let at = |name: &str| home.folder.join(name).display().to_string();
    let mut order = order(&stage.place, &[&at("run")]);
    order.user = "ada".into();
    order.run.work_dir = Some(home.folder.display().to_string());
    order.run.output = OutputPaths { stdout: Some(at("out")), stderr: Some(at("err")) };
    let (record, text) = stage.run(&order).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");
    let expected = format!("made by hand\n64001\n{}\n", home.folder.display());
    // The kernel answers no question of root's about such a file, so that only its user reads it.
    assert_eq!(text, "");
    let refused = stage.read(&order).await.unwrap_err();
    assert!(refused.contains("may not read it"), "{refused}");
    let line = format!("cat {}; ls {}", at("out"), home.folder.display());
    let (_, text) = stage.run(&stage.of("ada", &line)).await;
    assert_eq!(text, format!("{expected}err\nmore\nout\nrun\n"));
}

/// The kernel's number for NFS (`NFS_SUPER_MAGIC`).
const NFS: u64 = 0x6969;

/// A folder of ada's with mode 0700 on a mounted NFS export with `root_squash`. Nothing here may make one: the server
/// is the kernel's. `load-tests/nfs/in-user-mode-linux` does, and runs this test.
fn squashed_home() -> Option<PathBuf> {
    let Some(home) = std::env::var_os("TESSERA_TEST_SQUASHED_HOME").map(PathBuf::from) else {
        eprintln!(
            "SKIPPED: no folder on NFS with root_squash (TESSERA_TEST_SQUASHED_HOME; \
             load-tests/nfs/in-user-mode-linux has one)"
        );
        return None;
    };
    let kind = rustix::fs::statfs(&home).unwrap().f_type;
    assert_eq!(u64::try_from(kind).unwrap(), NFS, "{} is not on NFS", home.display());
    Some(home)
}

#[tokio::test]
async fn a_home_folder_on_nfs_with_root_squash_holds_the_program_its_folder_its_outputs_and_its_logs()
 {
    if !is_root() {
        return;
    }
    let Some(home) = squashed_home() else { return };
    let mut stage = stage().await;
    let refused = std::fs::read_dir(&home).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "root may not enter");
    let make = "printf '#!/bin/sh\\necho made by hand; id -u; pwd; echo kept > more\\n' > run; chmod 700 run";
    let mut first = stage.of("ada", make);
    first.run.work_dir = Some(home.display().to_string());
    let (record, text) = stage.run(&first).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");

    let at = |name: &str| home.join(name).display().to_string();
    let mut order = order(&stage.place, &[&at("run")]);
    order.user = "ada".into();
    order.run.work_dir = Some(home.display().to_string());
    order.run.output = OutputPaths { stdout: Some(at("out")), stderr: Some(at("err")) };
    let (record, text) = stage.run(&order).await;

    // The descriptor that the user opened serves root as well.
    let expected = format!("made by hand\n64001\n{}\n", home.display());
    assert_eq!((record.outcome, &text), (Outcome::Succeeded, &expected), "{record:?}");
    let line =
        format!("cat {} {}; ls -ln {} | tail -n +2 | cut -d' ' -f3", at("out"), at("more"), at(""));
    let (_, text) = stage.run(&stage.of("ada", &line)).await;
    assert_eq!(text, format!("{expected}kept\n64001\n64001\n64001\n64001\n"));

    // Another user's job reads and writes nothing there.
    let line = format!(
        "cat {0} 2>/dev/null && echo READ; (: > {0}) 2>/dev/null && echo WROTE; true",
        at("out")
    );
    let mut attack = stage.of("eve", &line);
    let (record, text) = stage.run(&attack).await;
    assert_eq!((record.outcome, text.as_str()), (Outcome::Succeeded, ""), "{record:?}");
    attack.attempt = tessera_model::AttemptId::from_uuid(uuid::Uuid::now_v7());
    attack.run.output = OutputPaths { stdout: Some(at("out")), stderr: None };
    let record = stage.session.run(&attack).await;
    assert_eq!(record.outcome, Outcome::LaunchFailed, "{record:?}");
}

#[tokio::test]
async fn a_file_system_that_hangs_holds_up_neither_cancel_nor_the_time_limit_nor_the_slice() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let Some(hung) = HungMount::make(stage.cluster.folder.path().join("hung")) else {
        eprintln!("SKIPPED: this machine mounts no FUSE file system");
        return;
    };
    let at = |name: &str| Some(hung.folder.join(name).display().to_string());
    let hang = |change: &dyn Fn(&mut LaunchOrder)| {
        let mut order = order(&stage.place, &["/bin/true"]);
        order.user = "ada".into();
        change(&mut order);
        order
    };
    let orders = [
        hang(&|order| order.run.output.stdout = at("out")),
        hang(&|order| order.run.work_dir = at("folder")),
        hang(&|order| order.run.program = JobProgram::Command(vec![at("program").unwrap()])),
    ];
    for order in orders {
        let limited = LaunchOrder {
            attempt: tessera_model::AttemptId::from_uuid(uuid::Uuid::now_v7()),
            run: tessera_model::spec::RunSpec {
                time_limit: Some(Millis::new(300)),
                ..order.run.clone()
            },
            ..order.clone()
        };
        let begun = tokio::time::Instant::now();
        let record = stage.session.run(&limited).await;
        assert_eq!(record.outcome, Outcome::TimedOut, "{record:?}");
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());

        stage.session.launch(&order).await;
        let (attempt, cause) = (order.attempt, StopCause::Cancel);
        stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
        let record = stage.session.until_ended(attempt).await;
        assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");

        let (record, text) = stage.run(&stage.of("ada", "echo free")).await;
        assert_eq!((record.outcome, text.as_str()), (Outcome::Succeeded, "free\n"));
    }
}

#[tokio::test]
async fn a_job_has_its_own_tmp_and_sees_no_processes_of_others() {
    if !is_root() {
        return;
    }
    // Not in /tmp, which would hide the data folder.
    let mut stage = stage_in(Path::new("/var/lib"), "").await;
    let name = format!("tessera-walls-{}", std::process::id());
    let line = format!(
        "touch /tmp/{name} && ls -A /tmp /var/tmp; [ -e /proc/1/status ] && echo SEES; \
         [ -e /proc/self/status ] && echo itself"
    );

    let (record, text) = stage.run(&stage.of("ada", &line)).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");
    assert_eq!(text, format!("/tmp:\n{name}\n\n/var/tmp:\n{name}\nitself\n"));
    assert!(!Path::new("/tmp").join(&name).exists());
    assert!(Path::new("/proc/1/status").exists(), "the machine's own /proc is as it was");
}

#[tokio::test]
async fn a_shepherd_that_is_silent_when_its_job_should_have_ended_is_killed() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let order = stage.of("ada", "exec sleep 300");
    stage.session.launch(&order).await;
    let pid = stage.session.until_running(order.attempt).await;
    let shepherds = std::fs::read_dir(stage.agent.data.join("shepherds")).unwrap().flatten();
    for shepherd in shepherds.filter_map(|entry| crate::common::shepherd_pid(&entry.path())) {
        crate::common::kill(shepherd, "-STOP");
    }

    let (attempt, cause) = (order.attempt, StopCause::Cancel);
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    let record = stage.session.until_ended(attempt).await;

    assert_eq!(record.outcome, Outcome::Lost, "{record:?}");
    crate::common::eventually("the job is dead", || !crate::common::runs(pid)).await;
    let (record, _) = stage.run(&stage.of("ada", "true")).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
}

#[tokio::test]
async fn an_agent_that_would_run_all_jobs_as_root_without_permission_does_not_start() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let mut command: Command = cluster.command(&data);
    let output = command.env("TESSERA_AGENT_ROOT_JOBS", "false").output().unwrap();

    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("run every job as root"), "{text}");
}

#[tokio::test]
async fn a_job_opens_its_own_gpus_device_nodes_and_no_others() {
    if !is_root() {
        return;
    }
    let devices = tempfile::tempdir_in("/var/lib").unwrap();
    std::fs::set_permissions(devices.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(devices.path().join("nvidia-caps")).unwrap();
    // Numbers without a driver: what may be opened has no device behind it.
    for (name, major, minor) in [
        ("nvidiactl", 240, 255),
        ("nvidia0", 240, 0),
        ("nvidia1", 240, 1),
        ("nvidia-caps/nvidia-cap12", 241, 12),
    ] {
        let path = CString::new(devices.path().join(name).display().to_string()).unwrap();
        // SAFETY: the path is a C string.
        unsafe {
            assert_eq!(libc::mknod(path.as_ptr(), libc::S_IFCHR, libc::makedev(major, minor)), 0);
            libc::chmod(path.as_ptr(), 0o666);
        }
    }
    let folder = devices.path().display();
    let settings = format!("[device_files]\nfolder = \"{folder}\"\nminors = \"{folder}/none\"\n");
    let mut stage = stage_in(&std::env::temp_dir(), &settings).await;
    let line = format!(
        "export LC_ALL=C; cd {folder}; for node in nvidiactl nvidia0 nvidia1 nvidia-caps/nvidia-cap12; do \
         echo $node $(cat $node 2>&1 | sed 's/.*: //'); done; cat /dev/null && echo others"
    );
    for (gpu, own, other) in [("A100", 0, 1), ("A30", 1, 0)] {
        stage.place = Place::on(&stage.session.gpu(gpu));

        let (record, text) = stage.run(&stage.of("ada", &line)).await;

        assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
        if !Path::new("/sys/fs/cgroup/unified").exists()
            && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
        {
            eprintln!("SKIPPED: this machine has no control groups of version 2");
            return;
        }
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let mut expected = vec![
            format!("nvidia{own} No such device or address"),
            format!("nvidia{other} Operation not permitted"),
            "nvidia-caps/nvidia-cap12 Operation not permitted".to_owned(),
            "nvidiactl No such device or address".to_owned(),
            "others".to_owned(),
        ];
        expected.sort_unstable();
        assert_eq!(lines, expected);
    }
}

#[tokio::test]
async fn a_job_that_uses_more_memory_than_its_limit_ends_as_out_of_memory_and_hurts_nobody() {
    if !is_root() {
        return;
    }
    let mut stage = stage().await;
    let other = Place::on(&stage.session.gpu("A30"));
    let neighbour = LaunchOrder { user: "eve".into(), ..shell(&other, "sleep 5 && echo unharmed") };
    stage.session.launch(&neighbour).await;
    stage.session.until_running(neighbour.attempt).await;
    // 600 MiB in one process that holds them.
    let mut greedy = stage.of("ada", "head -c 600M /dev/zero | tail -n 1 > /dev/null");
    greedy.run.host_memory = Some(tessera_model::Bytes::from_mib(100));

    let (record, _) = stage.run(&greedy).await;

    if !limits_memory() {
        eprintln!("SKIPPED: this machine limits no memory");
        return;
    }
    assert_eq!(record.outcome, Outcome::OutOfMemory, "{record:?}");
    assert!(record.detail.contains("host memory"), "{record:?}");
    assert!(record.detail.contains("100 MiB (--mem)"), "{record:?}");
    let record = stage.session.until_ended(neighbour.attempt).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert_eq!(stage.read(&neighbour).await.unwrap(), "unharmed\n");
}

fn limits_memory() -> bool {
    tessera_agent::shepherd::limits::Controllers::find(
        tessera_agent::shepherd::group::find_parent().as_deref(),
    )
    .has(tessera_agent::shepherd::limits::Controller::Memory)
}

#[tokio::test]
async fn a_job_that_forks_without_end_or_uses_all_processors_gets_its_share() {
    if !is_root() {
        return;
    }
    let mut stage = stage_in(&std::env::temp_dir(), "tasks_max = 20\n").await;
    let line = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do sleep 5 & done; wait";
    let (record, _) = stage.run(&stage.of("ada", line)).await;
    assert_ne!(record.outcome, Outcome::Succeeded, "more than 20 processes: {record:?}");

    // Two processes that spin for a second, on one processor.
    let mut busy = stage.of(
        "ada",
        "timeout 1 sh -c 'while :; do :; done' & timeout 1 sh -c 'while :; do :; done'; wait",
    );
    busy.run.cpus = Some(1);
    let (record, _) = stage.run(&busy).await;
    let used = record.user_time.plus(record.system_time);
    assert!(used < Millis::new(1_400), "{record:?}");
}

/// Returns what `./x build` left for simulated nodes.
fn built(path: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_tessera-agent")).parent().unwrap();
    let found = programs.join("..").join(path);
    assert!(found.is_file(), "there is no {}: run ./x build", found.display());
    found
}

/// A node that shares slices, with its programs where every account reaches them.
async fn sharing_stage(settings: &str) -> Stage {
    stage_with(&std::env::temp_dir(), settings, let_share).await
}

/// Gives an agent the programs of shared slices.
fn let_share(folder: &Path, command: &mut Command) {
    for name in
        ["nvidia-cuda-mps-control", "tessera-sim-client", "tessera-sim-player", "libcuda.so.1"]
    {
        std::fs::copy(built(&format!("stand-in/{name}")), folder.join(name)).unwrap();
    }
    name_programs(folder, command);
}

/// Names the programs of shared slices to an agent.
fn name_programs(folder: &Path, command: &mut Command) {
    let at = |name: &str| folder.join(name);
    let canary = format!("{} --mps --canary", at("tessera-sim-client").display());
    command
        .env("TESSERA_AGENT_MPS_CONTROL", at("nvidia-cuda-mps-control"))
        .env("TESSERA_AGENT_MPS_CANARY", canary)
        .env("TESSERA_AGENT_KERNEL_SHIM", built("kernel-shim/libcuda.so.1"));
    // The simulated GPU is files that all of its users write. What is to be closed has its own mode.
    let open_files = || {
        // SAFETY: a plain number.
        unsafe { libc::umask(0) };
        Ok(())
    };
    // SAFETY: only a system call is made between fork and exec.
    unsafe { command.pre_exec(open_files) };
}

impl Stage {
    fn program(&self, name: &str) -> String {
        self.cluster.folder.path().join(name).display().to_string()
    }

    /// Waits until an attempt printed some words.
    async fn until_prints(&self, order: &LaunchOrder, words: &str) {
        let ends = tokio::time::Instant::now() + crate::common::PATIENCE;
        loop {
            let text = self.read(order).await.unwrap_or_default();
            if text.contains(words) {
                return;
            }
            assert!(tokio::time::Instant::now() < ends, "it never prints {words}: {text}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Runs a line as a user who shares nothing, on the other GPU.
    async fn elsewhere(&mut self, user: &str, line: &str) -> String {
        let other = Place::on(&self.session.gpu("A30"));
        let order = LaunchOrder { user: user.into(), ..shell(&other, line) };
        let (record, text) = self.run(&order).await;
        assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");
        text
    }

    /// A client of the slice's MPS server, until a file is there.
    fn client(&self, user: &str, until: &Path) -> LaunchOrder {
        let program = self.program("tessera-sim-client");
        // Deaf to polite requests, so that ends need the daemon's help.
        let line = format!("trap '' TERM; exec {program} --mps --until {}", until.display());
        let share = MpsShare { sm: 50.try_into().unwrap(), memory: Bytes::from_mib(1_000) };
        LaunchOrder { share: Some(share), ..self.of(user, &line) }
    }
}

/// A variable of a process.
fn variable(pid: u32, name: &str) -> PathBuf {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let text = String::from_utf8(environment).unwrap();
    let found = text.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    PathBuf::from(found.unwrap_or_else(|| panic!("{pid} has no {name}")))
}

/// The owner and the permissions of a file.
fn owner(path: &Path) -> (u32, u32) {
    let found = std::fs::metadata(path).unwrap();
    (found.uid(), found.mode() & 0o777)
}

#[tokio::test]
async fn jobs_of_a_user_share_a_slice_by_mps_and_nobody_else_reaches_their_daemon() {
    if !is_root() {
        return;
    }
    let mut stage = sharing_stage("").await;
    let home = stage.home();
    let done = home.join("done");
    let (one, two) = (stage.client("ada", &done), stage.client("ada", &done));
    let mut pids = Vec::new();
    for order in [&one, &two] {
        stage.session.launch(order).await;
        pids.push(stage.session.until_running(order.attempt).await);
        stage.until_prints(order, "shares ").await;
    }
    let pipes = variable(pids[0], "CUDA_MPS_PIPE_DIRECTORY");
    assert_eq!(pipes, variable(pids[1], "CUDA_MPS_PIPE_DIRECTORY"), "they have one daemon");
    let folder = pipes.parent().unwrap().to_owned();
    assert_eq!(owner(&pipes), (ADA, 0o700));
    assert_eq!(owner(&folder.join("l")), (ADA, 0o700));
    assert_eq!(owner(&folder), (0, 0o711));
    let daemon = std::fs::read_to_string(pipes.join("nvidia-cuda-mps-control.pid")).unwrap();
    assert_eq!(owner(Path::new(&format!("/proc/{}", daemon.trim()))).0, ADA);

    attack_daemon(&mut stage, &folder).await;

    // One ends by force, in the order that NVIDIA prescribes, and the other goes on.
    let (attempt, cause) = (two.attempt, StopCause::Cancel);
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    let record = stage.session.until_ended(attempt).await;
    assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");
    std::fs::write(&done, "").unwrap();
    let record = stage.session.until_ended(one.attempt).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert!(!pipes.exists(), "the daemon's folders are gone");

    // The next user of the slice gets a daemon of her own.
    let next = stage.client("eve", &home.join("never"));
    stage.session.launch(&next).await;
    let pid = stage.session.until_running(next.attempt).await;
    stage.until_prints(&next, "shares ").await;
    assert_eq!(owner(&variable(pid, "CUDA_MPS_PIPE_DIRECTORY")), (EVE, 0o700));
    let (attempt, cause) = (next.attempt, StopCause::Cancel);
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    let record = stage.session.until_ended(attempt).await;
    assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");
}

/// Lets another user attack a daemon of ada's.
async fn attack_daemon(stage: &mut Stage, folder: &Path) {
    // Each attack that succeeds is named.
    let (folder, mps) = (folder.display(), stage.agent.data.join("mps").display().to_string());
    let (client, control) =
        (stage.program("tessera-sim-client"), stage.program("nvidia-cuda-mps-control"));
    let attack = format!(
        "exec 2>/dev/null; export CUDA_MPS_PIPE_DIRECTORY={folder}/p CUDA_MPS_LOG_DIRECTORY={folder}/l; \
         {client} --mps --canary >/dev/null && echo CONNECTED; \
         echo get_server_list | {control} >/dev/null && echo COMMANDED; \
         ls {folder}/p >/dev/null && echo LISTED; cat {folder}/l/*.log >/dev/null && echo READ; \
         ls {mps} {folder} >/dev/null && echo FOLDERS; cat {folder}/sharers.json >/dev/null && echo NOTES; \
         touch {folder}/new {mps}/new && echo MADE; echo done"
    );
    assert_eq!(stage.elsewhere("eve", &attack).await, "done\n");
    // The same of their own user shows that the attack looked in the right place.
    assert_eq!(stage.elsewhere("ada", &attack).await, "CONNECTED\nCOMMANDED\nLISTED\nREAD\ndone\n");
}

/// A folder for gate pages in memory, where every account may go.
fn gates() -> (tempfile::TempDir, PathBuf) {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::set_permissions(memory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let gates = memory.path().join("gates");
    (memory, gates)
}

#[tokio::test]
async fn jobs_of_a_user_share_a_slice_by_kernel_and_nobody_else_opens_their_gate_page() {
    if !is_root() {
        return;
    }
    let (_memory, gates) = gates();
    let stage = sharing_stage(&format!("kernel_gates = \"{}\"\n", gates.display())).await;
    share_by_kernel(stage, &gates, 0).await;
}

/// Runs jobs of two users on a slice that they share by kernel, under an agent of this account.
async fn share_by_kernel(mut stage: Stage, gates: &Path, agent: u32) {
    // Root gives the socket to the user. Others let everyone connect, and the kernel names the clients.
    let page_of = |user: u32| if agent == 0 { (user, 0o600) } else { (agent, 0o666) };
    let home = stage.home();
    let (recording, log) = (home.join("recording"), home.join("shim.log"));
    let steps = "player 1\nmemory 64MiB\niterations 100000\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\n\
                 gap 8ms\n";
    std::fs::write(&recording, steps).unwrap();
    let line = format!(
        "export TESSERA_KERNEL_LOG={}; exec {} {}",
        log.display(),
        stage.program("tessera-sim-player"),
        recording.display()
    );
    let player = |user: &str, priority: u8| {
        let mut order = stage.of(user, &line);
        let driver = stage.cluster.folder.path().display().to_string();
        order.run.env.insert("LD_LIBRARY_PATH".into(), driver);
        order.kernel = Some(KernelQueueSpec {
            memory: Bytes::from_mib(1_000),
            sm: None,
            exclusive: false,
            priority: priority.try_into().unwrap(),
            class: Class::Offline,
            task_key: Some(format!("task {priority}")),
        });
        order
    };
    let (one, two, last) = (player("ada", 0), player("ada", 7), player("eve", 0));
    let mut pids = Vec::new();
    for order in [&one, &two] {
        stage.session.launch(order).await;
        pids.push(stage.session.until_running(order.attempt).await);
    }
    let has_page = |pid: &u32| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains("tessera-gate")
    };
    crate::common::eventually("both jobs have the page", || pids.iter().all(has_page)).await;
    let sessions = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| line.contains("session ")).count()
    };
    crate::common::eventually("both jobs are in the queue", || sessions() >= 2).await;
    let page = variable(pids[0], variables::GATE);
    assert_eq!(page, variable(pids[1], variables::GATE));
    assert_eq!(owner(&page), page_of(ADA));
    assert_eq!(owner(gates), (agent, 0o711));

    // Each attack that succeeds is named.
    let fetch = "python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
                 sys.exit(not socket.recv_fds(s, 1, 1)[1])'";
    let (kernel, page_text) =
        (stage.agent.data.join("kernel").display().to_string(), page.display());
    let attack = format!(
        "exec 2>/dev/null; ls {kernel} {kernel}/attempts {} && echo LISTED; cat {kernel}/*key* {kernel}/port && echo SECRETS; \
         touch {}/new && echo MADE; rm -f {page_text} && echo REMOVED; \
         (: <> {page_text}) && echo OPENED; (: > {page_text}) && echo TRUNCATED; \
         {fetch} {page_text} && echo FETCHED; echo done",
        gates.display(),
        gates.display(),
    );
    assert_eq!(stage.elsewhere("eve", &attack).await, "done\n");
    assert!(pids.iter().all(|pid| crate::common::runs(*pid)), "both jobs go on");
    // Not even their own user can shorten it: it is no file.
    assert_eq!(stage.elsewhere("ada", &attack).await, "FETCHED\ndone\n");
    assert!(pids.iter().all(|pid| crate::common::runs(*pid)), "both jobs go on");
    assert!(stage.agent.child.try_wait().unwrap().is_none(), "the agent goes on");

    for order in [&one, &two] {
        let (attempt, cause) = (order.attempt, StopCause::Cancel);
        stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
        stage.session.until_ended(attempt).await;
    }
    // The simulated GPU's memory is files of its first user, which a real GPU's is not.
    let sim = stage.agent.data.join("sim");
    assert!(Command::new("chmod").args(["-R", "a+rwX"]).arg(sim).status().unwrap().success());
    // The next user of the slice gets a page of her own.
    stage.session.launch(&last).await;
    let pid = stage.session.until_running(last.attempt).await;
    // Only then the program runs: before, the process has its launcher's environment.
    crate::common::eventually("the next job has the page", || has_page(&pid)).await;
    let next_page = variable(pid, variables::GATE);
    assert_eq!(owner(&next_page), page_of(EVE));
    let (attempt, cause) = (last.attempt, StopCause::Cancel);
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    stage.session.until_ended(attempt).await;
}

#[tokio::test]
async fn a_session_has_the_account_folders_and_walls_of_its_job_and_its_own_terminal() {
    if !is_root() {
        return;
    }
    // Not below /tmp, where attempts have no private /tmp.
    let mut stage = stage_in(Path::new("/var/lib"), "").await;
    let mut job = stage.of("ada", "echo hers > /tmp/mark; echo here > mark; exec sleep 300");
    job.run.env.insert("SECRET".into(), "hers".into());
    stage.session.launch(&job).await;
    stage.session.until_running(job.attempt).await;
    let line = "until [ -e mark ]; do sleep 0.1; done; id -u; id -g; id -G; cat /tmp/mark mark; echo $SECRET; \
                grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; ls -d /proc/1 2>/dev/null; \
                echo more > /tmp/mark2; ls /proc/self/fd | wc -l; exit 7";

    let (text, end) = stage.session.session(job.attempt, line, false).await;

    let zero = "0000000000000000";
    let expected = format!(
        "64001\n64001\n64001\nhers\nhere\nhers\nCapEff:\t{zero}\nCapBnd:\t{zero}\nNoNewPrivs:\t1\n4\n"
    );
    assert_eq!(text, expected);
    assert_eq!(end, FromSession::Ended { exit: Some(ProgramExit::Code(7)), detail: String::new() });
    let line = "cat /tmp/mark2; stat -c %u $(tty); exec < $(tty) && echo opened; ps -o tty= -p $$ >/dev/null; \
                [ -e /dev/tty ] && : > /dev/tty && echo controlled";
    let (text, _) = stage.session.session(job.attempt, line, true).await;
    assert_eq!(text, "more\r\n64001\r\nopened\r\ncontrolled\r\n");
}

#[tokio::test]
async fn a_link_in_the_place_of_the_private_tmp_leads_no_session_elsewhere() {
    if !is_root() {
        return;
    }
    let mut stage = stage_in(Path::new("/var/lib"), "").await;
    let job = stage.of("ada", "mv tmp old; ln -s /root tmp; touch done; exec sleep 300");
    stage.session.launch(&job).await;
    stage.session.until_running(job.attempt).await;

    let mut tries = 0;
    let end = loop {
        // Until the job has made its link a session has the folder.
        let (text, end) = stage.session.session(job.attempt, "ls -A /tmp; echo in", false).await;
        tries += 1;
        assert!(tries < 200, "the link was never made: {text}");
        if text.is_empty() {
            break end;
        }
        assert_eq!(text, "in\n");
    };

    let FromSession::Ended { exit: None, detail } = end else { panic!("{end:?}") };
    assert!(detail.contains("its own folders"), "{detail}");
}
