//! Jobs in containers, by the machine's own podman without privileges, with an image that is made of this machine's
//! programs. Where podman is missing, or the tests are not root's, they print that.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Agent, Cluster, LogRead, Place, Session, order};
use tessera_frames::cluster::{
    ExitRecord, FromSession, LaunchOrder, LogStream, StopCause, ToAgent,
};
use tessera_model::Bytes;
use tessera_model::container::ContainerRules;
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::spec::JobProgram;

/// An account that exists for these tests only. It has no subordinate ids, as on many clusters.
const ADA: u32 = 64_021;
/// What the image is made of.
const PROGRAMS: [&str; 9] = ["sh", "sleep", "env", "id", "cat", "ls", "tail", "touch", "stat"];
const IMAGE: &str = "localhost/house:1";

/// Returns whether containers can be tested here.
fn is_possible() -> bool {
    let found = rustix::process::geteuid().is_root() && Path::new("/usr/bin/podman").exists();
    if !found {
        eprintln!(
            "SKIPPED: containers need podman (apt-get install podman) and tests that root runs"
        );
    }
    found
}

struct Stage {
    agent: Agent,
    session: Session,
    place: Place,
    home: PathBuf,
    cluster: Cluster,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes the file system of an image in `folder`: programs with their libraries, and a mark.
fn make_root(folder: &Path) {
    for name in ["bin", "tmp", "etc", "dev", "proc", "sys", "run", "home"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("mark"), "of the image\n").unwrap();
    for name in PROGRAMS {
        let program =
            run(Command::new("sh").args(["-c", &format!("readlink -f $(command -v {name})")]));
        let program = program.trim();
        std::fs::copy(program, folder.join("bin").join(name)).unwrap();
        let listed = run(Command::new("ldd").arg(program));
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = folder.join(library.trim_start_matches('/'));
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::copy(library, target).unwrap();
        }
    }
}

/// Puts the image into ada's own store, as she would on a node.
fn import_image(home: &Path) {
    let root = home.join("root");
    make_root(&root);
    run(Command::new("chown").arg("-R").arg(format!("{ADA}:{ADA}")).arg(home));
    let archive = home.join("root.tar").display().to_string();
    let mut tar = Command::new("tar");
    // Root of the image: no other account exists in ada's user namespace.
    tar.args(["--owner=0", "--group=0"]);
    run(tar.arg("-C").arg(&root).args(["-cf", &archive, "."]).uid(ADA).gid(ADA));
    let mut import = Command::new("unshare");
    import
        .args(["--user", "--map-root-user", "--mount", "podman", "--storage-driver=vfs"])
        .args(["--cgroup-manager=cgroupfs", "--events-backend=none", "import"])
        .args(["--change=ENV OF_IMAGE=yes", "--change=ENV LANG=of-image", &archive, IMAGE])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home.join("run"))
        .env("_CONTAINERS_USERNS_CONFIGURED", "done")
        .env("_CONTAINERS_ROOTLESS_UID", ADA.to_string())
        .env("_CONTAINERS_ROOTLESS_GID", ADA.to_string())
        .current_dir(home)
        .uid(ADA)
        .gid(ADA);
    run(&mut import);
}

/// A node with an image of ada's, the device nodes of two GPUs, and a driver's library.
async fn stage(settings: &str) -> Stage {
    let cluster = Cluster::new_in(Path::new("/var/lib"));
    let data = cluster.enrol("n1");
    let folder = cluster.folder.path().to_owned();
    let file = |name: &str| folder.join(name);
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let home = file("home");
    std::fs::create_dir_all(home.join("run")).unwrap();
    std::fs::set_permissions(home.join("run"), PermissionsExt::from_mode(0o700)).unwrap();
    import_image(&home);
    std::fs::create_dir_all(file("dev")).unwrap();
    std::fs::create_dir_all(file("libraries")).unwrap();
    std::fs::write(file("libraries/libcuda.so.1"), "the driver\n").unwrap();
    // Two devices that every kernel has, by numbers that differ.
    for (index, minor) in [(0, "5"), (1, "7")] {
        let node = file(&format!("dev/nvidia{index}"));
        run(Command::new("mknod").args(["-m", "666"]).arg(&node).args(["c", "1", minor]));
    }
    let accounts = format!("ada:x:{ADA}:{ADA}:Ada:{}:/bin/sh\n", home.display());
    std::fs::write(file("accounts"), accounts).unwrap();
    let shown = |name: &str| file(name).display().to_string();
    let settings = format!(
        "accounts = \"{}\"\ndriver_libraries = \"{}\"\nguard_devices = false\n{settings}\n\
         [device_files]\nfolder = \"{}\"\nminors = \"/dev/null\"\n",
        shown("accounts"),
        shown("libraries"),
        shown("dev"),
    );
    std::fs::write(file("agent.toml"), settings).unwrap();
    let agent = cluster.start_with(&data, |command| {
        command
            .env("TESSERA_SIM_MIG", "off")
            .env("TESSERA_AGENT_RUN_AS", "submitter")
            .env("TESSERA_AGENT_ROOT_JOBS", "false")
            .env("TESSERA_AGENT_CONFIG", file("agent.toml"));
    });
    let session = cluster.welcome().await;
    let place = Place::on(&session.gpu("A100"));
    Stage { agent, session, place, home, cluster }
}

impl Stage {
    fn script(&self, image: &str, mounts: &[&str], text: &str) -> LaunchOrder {
        let mounts: Vec<String> = mounts.iter().map(|mount| (*mount).to_owned()).collect();
        let mut order = LaunchOrder { user: "ada".into(), ..order(&self.place, &["true"]) };
        order.run.program = JobProgram::Script(format!("#!/bin/sh\n{text}\n"));
        order.run.container = Some(ContainerRules::parse(image, &mounts, None).unwrap());
        order.run.work_dir = Some(self.home.display().to_string());
        order
    }

    async fn run(&mut self, order: &LaunchOrder) -> (ExitRecord, String) {
        let record = self.session.run(order).await;
        let text = self.log(order).await;
        (record, text)
    }

    async fn log(&self, order: &LaunchOrder) -> String {
        match self.session.read_log(order.attempt, LogStream::Stdout, false).await {
            LogRead::Text(text, _) => text,
            LogRead::Unknown(reason) => reason,
        }
    }

    fn container_folder(&self, order: &LaunchOrder) -> PathBuf {
        let attempt = order.attempt.as_uuid().hyphenated().to_string();
        self.agent.data.join("attempts").join(attempt).join("work/container")
    }
}

#[tokio::test]
async fn a_job_in_a_container_has_its_image_folders_variables_and_slice_and_its_exit_code_counts() {
    if !is_possible() {
        return;
    }
    let mut stage = stage("").await;
    let set = stage.cluster.folder.path().join("set");
    std::fs::create_dir_all(&set).unwrap();
    std::fs::write(set.join("note"), "mounted\n").unwrap();
    let dev = stage.cluster.folder.path().join("dev").display().to_string();
    let text = format!(
        "cat /mark /data/note; pwd; id -u; touch /data/new 2>/dev/null || echo read-only; echo made > here; \
         echo $OF_IMAGE $LANG $MINE $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES; cat /run/tessera/driver/libcuda.so.1; \
         echo $LD_LIBRARY_PATH; ls {dev}; [ -e {home}/../agent.toml ] || echo walled; echo $1; \
         [ -w $TMPDIR ] && echo tmp; echo to error >&2; exit 7",
        home = stage.home.display()
    );
    let mount = format!("{}:/data:ro", set.display());
    let mut order = stage.script(IMAGE, &[&mount], &text);
    order.run.env.insert("MINE".into(), "set by ada".into());
    order.run.env.insert("LANG".into(), "of-the-job".into());
    order.run.batch.arguments = vec!["word".into()];

    let (record, text) = stage.run(&order).await;

    // Podman passes both streams on, each by itself.
    let mut lines: Vec<_> = text.lines().collect();
    let error = lines.iter().position(|line| *line == "to error");
    lines.remove(error.unwrap_or_else(|| panic!("{record:?} {text}")));
    let expected = format!(
        "of the image\nmounted\n{home}\n0\nread-only\nyes of-image set by ada {job} {slice}\nthe driver\n\
         /run/tessera/driver\nnvidia0\nwalled\nword\ntmp",
        home = stage.home.display(),
        job = order.job,
        slice = order.slice,
    );
    assert_eq!(lines.join("\n"), expected, "{record:?}");
    assert_eq!((record.outcome, record.exit), (Outcome::Failed, Some(ProgramExit::Code(7))));
    let made = std::fs::metadata(stage.home.join("here")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), ADA, "root inside is ada outside");
    assert!(!stage.container_folder(&order).exists(), "it left its files");
    let described = || {
        let name = format!("/var/run/cdi/tessera-{}.json", order.attempt.as_uuid().hyphenated());
        Path::new(&name).exists()
    };
    crate::common::eventually("the slice's description is removed", || !described()).await;
}

#[tokio::test]
async fn what_no_container_can_start_from_is_named_and_the_job_is_not_tried_again() {
    if !is_possible() {
        return;
    }
    let mut stage = stage("").await;
    for (image, mounts, words) in [
        (
            "localhost/none:1",
            vec![],
            "ada has no image localhost/none:1 on node n1: get it there with podman pull",
        ),
        (IMAGE, vec!["/nowhere:/data"], "there is nothing to mount at /nowhere"),
        ("/images/a.sif", vec![], "this node has no apptainer, which runs /images/a.sif"),
    ] {
        let order = stage.script(image, &mounts, "echo ran");

        let (record, text) = stage.run(&order).await;

        assert_eq!(record.outcome, Outcome::LaunchFailed, "{image}: {record:?} {text}");
        assert!(record.detail.contains(words), "{image}: {record:?} {text}");
        assert!(!text.contains("ran"));
    }
    // A program that the image does not have.
    let mut order = stage.script(IMAGE, &[], "");
    order.run.program = JobProgram::Command(vec!["no-such-program".into()]);
    let (record, text) = stage.run(&order).await;
    assert_eq!(record.outcome, Outcome::LaunchFailed, "{record:?} {text}");
    assert!(text.contains("no-such-program"), "{text}");
    // The node is as good as before.
    let (record, text) = stage.run(&stage.script(IMAGE, &[], "cat /mark")).await;
    assert_eq!(
        (record.outcome, text.as_str()),
        (Outcome::Succeeded, "of the image\n"),
        "{record:?}"
    );
}

#[tokio::test]
async fn a_node_without_podman_refuses_containers_in_words() {
    if !is_possible() {
        return;
    }
    let mut stage = stage("podman = \"/nonexistent\"").await;

    let (record, _) = stage.run(&stage.script(IMAGE, &[], "true")).await;

    assert_eq!(record.outcome, Outcome::LaunchFailed, "{record:?}");
    assert!(record.detail.contains("this node has no podman"), "{record:?}");
}

#[tokio::test]
async fn signals_reach_all_processes_of_a_container_and_a_kill_leaves_none() {
    if !is_possible() {
        return;
    }
    let mut stage = stage("").await;
    // As without a container, the script's child gets the signal, too.
    let text = "trap 'echo caught; wait; exit 0' TERM; \
                sh -c 'trap \"echo child; exit\" TERM; echo ready > ready; while :; do sleep 0.1; done' & \
                while :; do sleep 0.1; done";
    let order = stage.script(IMAGE, &[], text);
    stage.session.launch(&order).await;
    let ready = stage.home.join("ready");
    crate::common::eventually("the program runs", || ready.exists()).await;
    let (attempt, cause) = (order.attempt, StopCause::Cancel);
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    let record = stage.session.until_ended(attempt).await;
    let text = stage.log(&order).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "it ended by itself: {record:?} {text}");
    // The shells report their `sleep`, which gets the signal, too.
    let mut lines: Vec<_> = text.lines().filter(|line| *line != "Terminated").collect();
    lines.sort_unstable();
    assert_eq!(lines, ["caught", "child"]);

    // One that does not listen is killed with all that it started.
    let order = stage.script(IMAGE, &[], "trap '' TERM; (sleep 3131 &); touch deaf; sleep 3131");
    stage.session.launch(&order).await;
    let deaf = stage.home.join("deaf");
    crate::common::eventually("the program runs", || deaf.exists()).await;
    let attempt = order.attempt;
    stage.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
    let record = stage.session.until_ended(attempt).await;
    assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");
    let mut left = processes_of(ADA);
    // Other tests run theirs under the same account.
    let own = stage.cluster.folder.path().display().to_string();
    left.retain(|process| process.contains("3131") || process.contains(&own));
    assert!(left.is_empty(), "{left:?}");
}

/// Returns what an account runs, but for what only waits to be reaped.
fn processes_of(uid: u32) -> Vec<String> {
    let listed = Command::new("ps").args(["-o", "stat=,args=", "-u", &uid.to_string()]).output();
    let text = String::from_utf8(listed.unwrap().stdout).unwrap();
    text.lines().filter(|line| !line.starts_with('Z')).map(str::to_owned).collect()
}

#[tokio::test]
async fn limits_of_memory_hold_inside_of_a_container() {
    if !is_possible() {
        return;
    }
    let mut stage = stage("").await;
    let mut greedy = stage.script(IMAGE, &[], "tail /dev/zero");
    greedy.run.host_memory = Some(Bytes::from_mib(200));

    let (record, text) = stage.run(&greedy).await;

    if record.detail.contains("could not limit") {
        eprintln!("SKIPPED: this machine has no control groups for memory");
        return;
    }
    assert_eq!(record.outcome, Outcome::OutOfMemory, "{record:?} {text}");
}

#[tokio::test]
async fn a_session_joins_its_jobs_container() {
    if !is_possible() {
        return;
    }
    let mut stage = stage("").await;
    let order = stage.script(IMAGE, &[], "echo inside > /tmp/mark; touch up; exec sleep 300");
    stage.session.launch(&order).await;
    let up = stage.home.join("up");
    crate::common::eventually("the program runs", || up.exists()).await;

    let line = "cat /mark /tmp/mark; echo $OF_IMAGE $SLURM_JOB_ID; exit 5";
    let (text, end) = stage.session.session(order.attempt, line, false).await;

    assert_eq!(text, format!("of the image\ninside\nyes {}\n", order.job));
    assert_eq!(end, FromSession::Ended { exit: Some(ProgramExit::Code(5)), detail: String::new() });
    let line = "stat -c %F $(ls -d /dev/tty); cat /mark";
    let (text, _) = stage.session.session(order.attempt, line, true).await;
    assert_eq!(text, "character special file\r\nof the image\r\n");
    chown(&stage.home, Some(ADA), Some(ADA)).unwrap();
}
