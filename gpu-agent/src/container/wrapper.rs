//! The program in front of a container. It runs as the attempt's account, starts the runtime, passes signals to the
//! program inside, and ends with its exit code.
//!
//! It makes its own user namespace, in which the account is root and nobody else exists. Podman then needs no
//! setuid program, which attempts could not use, and no process of it outlives the attempt.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tessera_agent_core::container::{
    self, ContainerGround, ContainerPlan, ContainerRuntime, ContainerStreams, ImageStore,
    NOT_STARTED_CODE, PLAN_VARIABLE, REFUSAL, RUN_FOLDER, StepContainer,
};
use tessera_model::container::ContainerRules;

use super::{find_libraries, find_runtimes};
use crate::devices;

/// A container that did not start.
#[derive(Debug, thiserror::Error)]
enum WrapperError {
    #[error("its plan can't be read: {0}")]
    Plan(String),
    #[error(
        "the node allows no user namespaces ({0}): its operator sets sysctl user.max_user_namespaces, and on Debian \
         kernel.unprivileged_userns_clone=1"
    )]
    Namespace(io::Error),
    #[error("{what}: {error}")]
    File { what: String, error: io::Error },
    #[error("{program} can't be run: {error}")]
    Runtime { program: String, error: io::Error },
    #[error(
        "{user} has no image {image} on node {node}: get it there with podman pull {image}, and see podman images"
    )]
    NoImage { user: String, image: String, node: String },
    #[error("node {node} has no file {image}")]
    NoFile { image: String, node: String },
    #[error("there is nothing to mount at {0} on this node")]
    NoMount(String),
    #[error("{0}")]
    Refused(String),
}

/// Runs a program in the container that the environment describes. Returns the exit code.
pub fn run(words: &[String]) -> u8 {
    ended(run_words(words))
}

/// Runs a process of a step in its own container: the first word describes it. Returns the exit code.
pub fn run_step(words: &[String]) -> u8 {
    ended(run_step_words(words))
}

fn ended(result: Result<u8, WrapperError>) -> u8 {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{REFUSAL}{error}");
            NOT_STARTED_CODE
        }
    }
}

fn run_words(words: &[String]) -> Result<u8, WrapperError> {
    let text =
        std::env::var(PLAN_VARIABLE).map_err(|error| WrapperError::Plan(error.to_string()))?;
    let plan: ContainerPlan =
        serde_json::from_str(&text).map_err(|error| WrapperError::Plan(error.to_string()))?;
    run_planned(&plan, words)
}

fn run_step_words(words: &[String]) -> Result<u8, WrapperError> {
    let (first, words) =
        words.split_first().ok_or_else(|| WrapperError::Plan("it is missing".to_owned()))?;
    let requested: StepContainer =
        serde_json::from_str(first).map_err(|error| WrapperError::Plan(error.to_string()))?;
    let rules = ContainerRules::parse(&requested.image, &requested.mounts, requested.work_dir)
        .map_err(|bad| WrapperError::Plan(bad.to_string()))?;
    let env = environment();
    let tmp = std::env::temp_dir();
    let own = tmp.join(format!("tessera-container-{}", std::process::id())).display().to_string();
    let folder = std::env::current_dir().map(|folder| folder.display().to_string()).ok();
    let companion = env.get("TESSERA_MEMORY_PIPE").and_then(|_| env.get("PYTHONPATH"));
    let companion = companion.and_then(|paths| paths.split(':').next());
    let ground = ContainerGround {
        own: &own,
        work_dir: folder.as_deref(),
        env: &env,
        companion,
        device: None,
        private_tmp: tmp == Path::new("/tmp"),
    };
    let is_root = rustix::process::geteuid().is_root();
    let plan = container::plan(&rules, &find_runtimes(), is_root, ground)
        .map_err(|refused| WrapperError::Refused(refused.to_string()))?;
    let plan = plan.with_driver(devices::openable_nodes(), &find_libraries(None));
    let code = run_planned(&plan, words);
    let _ = fs::remove_dir_all(own);
    code
}

/// Returns this process's variables that are text.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn run_planned(plan: &ContainerPlan, words: &[String]) -> Result<u8, WrapperError> {
    if let Some(missing) = plan.mounts.iter().find(|mount| !Path::new(&mount.source).exists()) {
        return Err(WrapperError::NoMount(missing.source.clone()));
    }
    let mounts = plan.all_mounts(|path| Path::new(path).exists());
    let attempt = environment();
    match plan.runtime {
        ContainerRuntime::Apptainer => {
            if !Path::new(&plan.image).exists() {
                return Err(WrapperError::NoFile { image: plan.image.clone(), node: node_name() });
            }
            let error = command(&plan.apptainer_words(&mounts, words)).exec();
            Err(WrapperError::Runtime { program: plan.program.clone(), error })
        }
        ContainerRuntime::Podman => {
            let streams = streams();
            match running(plan) {
                Some(of) => exec_inside(plan, &attempt, of, (words, streams)),
                None => run_new(plan, &attempt, (words, streams)),
            }
        }
    }
}

/// What holds a container that runs, as a session finds it.
struct RunningContainer {
    /// The process whose namespaces podman has.
    holder: i32,
    store: ImageStore,
    /// The image's variables.
    image: Vec<String>,
}

/// Returns the attempt's container, if it runs: a session joins it.
fn running(plan: &ContainerPlan) -> Option<RunningContainer> {
    let read = |name: &str| fs::read_to_string(Path::new(&plan.folder).join(name)).ok();
    let pid: i32 = read("pid")?.trim().parse().ok()?;
    let holder: i32 = read("holder")?.trim().parse().ok()?;
    let lives = |pid: i32| Path::new(&format!("/proc/{pid}")).exists();
    if !lives(pid) || !lives(holder) {
        return None;
    }
    let (folder, driver, image): (String, String, Vec<String>) =
        serde_json::from_str(&read("images")?).ok()?;
    let driver = DRIVERS.into_iter().find(|known| **known == driver)?;
    Some(RunningContainer { holder, store: ImageStore { folder, driver }, image })
}

/// Drivers of stores, the faster one first.
const DRIVERS: [&str; 2] = ["overlay", "vfs"];

fn run_new(
    plan: &ContainerPlan,
    attempt: &BTreeMap<String, String>,
    program: (&[String], ContainerStreams),
) -> Result<u8, WrapperError> {
    let stores = image_stores(attempt);
    let uid = rustix::process::geteuid().as_raw();
    enter_namespaces().map_err(WrapperError::Namespace)?;
    let folder = Path::new(&plan.folder);
    // What an earlier container of this attempt left, if its end was not seen.
    let _ = fs::remove_dir_all(folder);
    let mut make = fs::DirBuilder::new();
    make.recursive(true).mode(0o700);
    let run_folder = folder.join("run");
    make.create(&run_folder).map_err(|error| file_error("its folder", error))?;
    show_run_folder(&run_folder).map_err(|error| WrapperError::File {
        what: format!("its folder can't be shown at {RUN_FOLDER}"),
        error,
    })?;
    let (store, image) = find_image(plan, &stores, uid)?;
    let note = |name: &str, text: String| {
        fs::write(folder.join(name), text).map_err(|error| file_error(name, error))
    };
    note("holder", std::process::id().to_string())?;
    let found = (&store.folder, store.driver, &image);
    note("images", serde_json::to_string(&found).unwrap_or_default())?;
    let variables = plan.environment(attempt, &image);
    let mounts = plan.all_mounts(|path| Path::new(path).exists());
    let words = plan.run_words(&store, &variables, &mounts, program);
    let is_terminal = program.1.is_terminal;
    let inner = || fs::read_to_string(folder.join("pid")).ok()?.trim().parse().ok();
    let status = start(&words, &variables, uid, is_terminal)
        .and_then(|child| watch(child, inner))
        .map_err(|error| WrapperError::Runtime { program: plan.program.clone(), error })?;
    let has_run = inner().is_some();
    let _ = fs::remove_dir_all(folder);
    let code = code_of(status);
    match has_run || !(NOT_STARTED_CODE..=NOT_FOUND_CODE).contains(&code) {
        true => Ok(code),
        false => Err(WrapperError::Refused(format!(
            "podman gave up with exit code {code} and the reason above"
        ))),
    }
}

/// Exit code of a program that the image does not have, the last of those that podman uses itself.
const NOT_FOUND_CODE: u8 = 127;

fn exec_inside(
    plan: &ContainerPlan,
    attempt: &BTreeMap<String, String>,
    of: RunningContainer,
    program: (&[String], ContainerStreams),
) -> Result<u8, WrapperError> {
    let uid = rustix::process::geteuid().as_raw();
    join_namespaces(of.holder).map_err(WrapperError::Namespace)?;
    let variables = plan.environment(attempt, &of.image);
    let words = plan.exec_words(&of.store, &variables, program);
    let status = start(&words, &variables, uid, program.1.is_terminal)
        // Podman passes what its program gets on.
        .and_then(|child| watch(child, || None))
        .map_err(|error| WrapperError::Runtime { program: plan.program.clone(), error })?;
    Ok(code_of(status))
}

fn file_error(what: &str, error: io::Error) -> WrapperError {
    WrapperError::File { what: format!("{what} can't be written"), error }
}

fn node_name() -> String {
    std::env::var("TESSERA_NODE").unwrap_or_else(|_| "this one".to_owned())
}

fn streams() -> ContainerStreams {
    // SAFETY: a plain number.
    let is_terminal = unsafe { libc::isatty(0) } == 1;
    // The null device is what programs without input have.
    let null = fs::metadata("/dev/null").ok();
    let stdin = fs::metadata("/proc/self/fd/0").ok();
    let number = |found: Option<fs::Metadata>| {
        use std::os::unix::fs::MetadataExt as _;
        found.map(|found| (found.rdev(), found.ino(), found.dev()))
    };
    let has_input = stdin.is_some() && number(stdin) != number(null);
    ContainerStreams { has_input, is_terminal }
}

/// Lists where the user's images may be.
fn image_stores(attempt: &BTreeMap<String, String>) -> Vec<ImageStore> {
    let home = attempt.get("HOME").map(|home| format!("{home}/.local/share"));
    let data = attempt.get("XDG_DATA_HOME").filter(|data| !data.is_empty()).cloned();
    let folders = data.into_iter().chain(home).map(|data| format!("{data}/containers/storage"));
    let folders: Vec<_> = folders.collect();
    let stores = folders.iter().flat_map(|folder| {
        DRIVERS.iter().map(|driver| ImageStore { folder: folder.clone(), driver })
    });
    stores
        .filter(|store| {
            let list = format!("{}-images/images.json", store.driver);
            Path::new(&store.folder).join(list).exists()
        })
        .collect()
}

/// What podman reports of an image that is not in a store.
const NOT_KNOWN: &str = "image not known";

/// Finds the image, and returns its store and its variables.
fn find_image(
    plan: &ContainerPlan,
    stores: &[ImageStore],
    uid: u32,
) -> Result<(ImageStore, Vec<String>), WrapperError> {
    for store in stores {
        let mut query = command(&plan.inspect_words(store));
        set_podman(&mut query, uid);
        let output = query.stdin(Stdio::null()).output();
        let output = output
            .map_err(|error| WrapperError::Runtime { program: plan.program.clone(), error })?;
        if output.status.success() {
            // An image without variables has null here.
            let variables: Option<Vec<String>> =
                serde_json::from_slice(&output.stdout).unwrap_or_default();
            return Ok((store.clone(), variables.unwrap_or_default()));
        }
        let reported = String::from_utf8_lossy(&output.stderr);
        if !reported.contains(NOT_KNOWN) {
            let reason = reported.lines().last().unwrap_or("it gave no reason").to_owned();
            let folder = &store.folder;
            return Err(WrapperError::Refused(format!(
                "podman can't read the images in {folder}: {reason}"
            )));
        }
        // The other store's driver must not find what this one made.
        let _ = fs::remove_dir_all(Path::new(&plan.folder).join("store"));
        let _ = fs::remove_dir_all(Path::new(&plan.folder).join("run/libpod"));
    }
    Err(WrapperError::NoImage {
        user: std::env::var("USER").unwrap_or_else(|_| "this user".to_owned()),
        image: plan.image.clone(),
        node: node_name(),
    })
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(words.first().map_or("podman", String::as_str));
    command.args(words.iter().skip(1)).env_remove(PLAN_VARIABLE);
    command
}

/// Lets podman know that it is in a namespace of its user's, and where its files are.
fn set_podman(command: &mut Command, uid: u32) {
    command
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("XDG_RUNTIME_DIR", RUN_FOLDER)
        .env("_CONTAINERS_USERNS_CONFIGURED", "done")
        .env("_CONTAINERS_ROOTLESS_UID", uid.to_string())
        .env("_CONTAINERS_ROOTLESS_GID", uid.to_string())
        // The program's, not podman's.
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH");
}

/// Starts podman in its own process group: signals for the attempt's group are this program's to pass on.
fn start(
    words: &[String],
    variables: &BTreeMap<String, String>,
    uid: u32,
    is_terminal: bool,
) -> io::Result<Child> {
    let mut command = command(words);
    set_podman(&mut command, uid);
    // Podman hands on what `--env NAME` names; what its own linker would read is given by value.
    command.envs(variables.iter().filter(|(name, _)| !name.starts_with("LD_")));
    let parent = std::process::id();
    // SAFETY: only calls that are allowed between a fork and a program.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            libc::setpgid(0, 0);
            if is_terminal {
                // In the foreground, so that it may read, and learns of the terminal's size.
                libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                libc::tcsetpgrp(0, libc::getpid());
                libc::signal(libc::SIGTTOU, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    block_signals();
    command.spawn()
}

/// Signals that a program may be sent, and that are passed on.
const PASSED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
];

fn signal_set() -> libc::sigset_t {
    // SAFETY: zeroed sets are made empty before they are used, and all signals exist.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in PASSED.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn block_signals() {
    let set = signal_set();
    // SAFETY: the set is valid, and the old one is not requested.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for the runtime, and passes signals to the group of the program inside; to the runtime, where there is none.
fn watch(mut child: Child, inner: impl Fn() -> Option<i32>) -> io::Result<ExitStatus> {
    let set = signal_set();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        // SAFETY: the set is valid, and no information is requested.
        let signal = unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) };
        if PASSED.contains(&signal) {
            let group = inner().unwrap_or_else(|| child.id().cast_signed());
            // SAFETY: plain numbers. A group that is gone needs no signal.
            unsafe { libc::kill(-group, signal) };
        }
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let signalled = || status.signal().and_then(|signal| u8::try_from(128 + signal).ok());
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(signalled).unwrap_or(u8::MAX)
}

/// Becomes root of a new user namespace that holds this account only, with its own mounts.
fn enter_namespaces() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: plain numbers; this program has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Lets podman find the container's folder for files of the moment under a short name. Only this namespace sees it.
fn show_run_folder(folder: &Path) -> io::Result<()> {
    let (source, target) = (CString::new(folder.display().to_string())?, CString::new(RUN_FOLDER)?);
    let nothing = std::ptr::null();
    // SAFETY: the paths are C strings, and a bind takes neither a type nor data.
    let mounted = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), nothing, libc::MS_BIND, nothing.cast())
    };
    if mounted == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Enters the namespaces of the process that started the container.
fn join_namespaces(holder: i32) -> io::Result<()> {
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let open = |kind: &str| fs::File::open(format!("/proc/{holder}/ns/{kind}"));
    let (user, mounts) = (open("user")?, open("mnt")?);
    for (file, kind) in [(user, libc::CLONE_NEWUSER), (mounts, libc::CLONE_NEWNS)] {
        use std::os::fd::AsRawFd as _;
        // SAFETY: a descriptor and a plain number; this program has one thread.
        if unsafe { libc::setns(file.as_raw_fd(), kind) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let folder = CString::new(folder.display().to_string())?;
    // SAFETY: the path is a C string. Where the folder is missing, the root will do.
    unsafe { libc::chdir(folder.as_ptr()) };
    Ok(())
}
