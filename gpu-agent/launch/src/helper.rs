//! The launcher's one loop: its shepherd, its child, and the children that open files for readers. It never
//! waits for any of them.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use crate::child::{
    self, Descriptors, FAILED, MOUNTS, OPENS, READABLE, Surroundings, become_reader,
};
use crate::devices::Filter;
use crate::order::{DeviceRules, FileOrder, Input, Order, Output, ReadableOutput, Reply, Request};
use crate::paths::{OpenError, identity_of, open_reader};
use crate::policy::{self, AccountRefusal, Policy, Settings};
use crate::socket::{Received, Socket};
use crate::sys::{self, Child, Forked, boot_millis};
use crate::{user_worker, worker};

/// Raised with each change of the messages.
pub const VERSION: u16 = 3;
/// Argument with which the program only prints [`VERSION`].
pub const PROTOCOL_FLAG: &str = "--protocol";
/// Argument with which the program only checks what it can do on this machine, and prints it.
pub const PROBE_FLAG: &str = "--probe";
/// What a launcher with setuid obeys.
const POLICY_FILE: &str = "/etc/tessera/launch.conf";
/// How long a child that was killed may take to end, in milliseconds. One that takes longer hangs in the
/// kernel: nothing of the user has run in it.
const GONE_WITHIN: u64 = 800;
/// Most files that are opened at once.
const FILES_MAX: usize = 8;
/// Maximum number of rounds of [`sweep`]: each one kills one generation of descendants.
const SWEEPS_MAX: usize = 64;

/// Runs the launcher; standard input is its connection to the shepherd.
pub fn main() -> ExitCode {
    let flag = std::env::args().nth(1).unwrap_or_default();
    if flag == PROTOCOL_FLAG {
        let _ = writeln!(io::stdout(), "{VERSION}");
        return ExitCode::SUCCESS;
    }
    if flag == worker::FLAG {
        let error = worker::main(std::env::args().skip(2));
        let _ = writeln!(io::stderr(), "tessera-launch: {error}");
        return ExitCode::FAILURE;
    }
    if flag == user_worker::FLAG {
        let error = user_worker::main(std::env::args().skip(2));
        let _ = writeln!(io::stderr(), "tessera-launch: {error}");
        return ExitCode::FAILURE;
    }
    if flag == PROBE_FLAG {
        let [mounts, hidden] = child::try_walls();
        let filters = Filter::load(&DeviceRules::default()).is_ok();
        let words = [
            (mounts, "mounts"),
            (hidden, "hidden-processes"),
            (filters, "device-filters"),
            (worker::is_allowed(), "nvml-worker"),
            (user_worker::is_allowed(), "mps"),
        ];
        let able = words.iter().filter(|(able, _)| *able).map(|(_, word)| *word);
        let _ = writeln!(io::stdout(), "{}", able.collect::<Vec<_>>().join(" "));
        return ExitCode::SUCCESS;
    }
    match Launcher::start() {
        Ok(mut launcher) => {
            launcher.run();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "tessera-launch: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Launcher {
    socket: Socket,
    policy: Policy,
    /// Whether the caller is root, and so decides on its own which accounts attempts have.
    trusts_caller: bool,
    null: File,
    job: Option<Job>,
    files: Vec<FileChild>,
    /// Children that were killed and have not ended: they hang in the kernel.
    stuck: Vec<Child>,
    /// The filter that the shepherd's group has.
    filter: Option<(u64, Filter)>,
}

struct Job {
    child: Child,
    group: Option<OwnedFd>,
    /// Whether the group is its own, and is emptied with its end.
    owns_group: bool,
    /// The mounts that only it sees. They are removed when this is dropped, after the report of its end,
    /// since that takes the kernel 2 ms.
    mounts: Option<OwnedFd>,
    phase: Phase,
}

enum Phase {
    /// It opens its files.
    Starting {
        report: Socket,
        opens: String,
        readable: Vec<(ReadableOutput, OwnedFd)>,
        deadline: u64,
    },
    /// It reported why it can't start, and ends.
    Failing(Reply),
    /// It was killed before it started.
    Aborted {
        reply: Option<Reply>,
        deadline: u64,
    },
    Running,
}

/// Why no child opens or empties a user's path.
#[derive(Debug)]
enum FileRefusal {
    /// As many as may be are at work, and don't end.
    TooMany,
    /// The account may not be become.
    Account(AccountRefusal),
    /// There is no process for it.
    Process(io::Error),
}

impl fmt::Display for FileRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => {
                f.write_str("too many files are being opened: their file systems don't answer")
            }
            Self::Account(refusal) => refusal.fmt(f),
            Self::Process(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for FileRefusal {
    fn from(error: io::Error) -> Self {
        Self::Process(error)
    }
}

impl From<AccountRefusal> for FileRefusal {
    fn from(refusal: AccountRefusal) -> Self {
        Self::Account(refusal)
    }
}

struct FileChild {
    child: Child,
    report: Socket,
    deadline: u64,
    is_removal: bool,
}

impl Launcher {
    fn start() -> io::Result<Self> {
        let (caller, own) = sys::uids();
        let policy = find_settings(caller, own)?.policy;
        if own != caller {
            become_effective(own)?;
        }
        sys::ignore_signals();
        sys::die_with_parent();
        sys::adopt_orphans()?;
        let null = File::open("/dev/null")?;
        let end = io::stdin().as_fd().try_clone_to_owned()?;
        sys::replace(null.as_fd(), 0)?;
        sys::close_others_on_exec();
        let socket = Socket::from_end(end);
        Ok(Self {
            socket,
            policy,
            trusts_caller: caller == 0,
            null,
            job: None,
            files: Vec::new(),
            stuck: Vec::new(),
            filter: None,
        })
    }

    fn run(&mut self) {
        loop {
            let (ready, requests) = self.wait();
            // What a child reported before it was killed comes first.
            self.look_at_job(&ready);
            self.look_at_files();
            if requests && !self.receive() {
                break;
            }
            self.look_at_clock();
        }
        // The shepherd is gone: nothing may continue without it.
        if let Some(job) = &self.job {
            job.kill();
        }
        sweep(&self.others());
    }

    fn wait(&self) -> (Vec<RawFd>, bool) {
        let mut descriptors = vec![self.socket.number()];
        if let Some(job) = &self.job {
            descriptors.push(job.child.pidfd.as_raw_fd());
            if let Phase::Starting { report, .. } = &job.phase {
                descriptors.push(report.number());
            }
        }
        descriptors.extend(self.files.iter().map(|file| file.report.number()));
        let deadline = self.job.as_ref().and_then(Job::deadline).into_iter();
        let deadline = deadline.chain(self.files.iter().map(|file| file.deadline)).min();
        let left = deadline.map(|deadline| deadline.saturating_sub(boot_millis()) + 1);
        let millis = left.map_or(-1, |left| i32::try_from(left).unwrap_or(i32::MAX));
        let ready = sys::poll(&descriptors, millis);
        let requests = ready.first().is_some_and(|ready| *ready);
        let ready =
            descriptors.into_iter().zip(ready).filter_map(|(fd, ready)| ready.then_some(fd));
        (ready.collect(), requests)
    }

    /// Carries out what the shepherd sent; returns whether the shepherd is still there.
    fn receive(&mut self) -> bool {
        match self.socket.receive_request() {
            Ok(Received::Message(request, descriptors)) => {
                self.carry_out(request, descriptors);
                true
            }
            Ok(Received::Nothing) => true,
            Ok(Received::End) | Err(_) => false,
        }
    }

    fn reply(&self, reply: &Reply) {
        // Fails only if the shepherd is gone, which the next read shows.
        let _ = self.socket.reply(reply, &[]);
    }

    fn carry_out(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
        match request {
            Request::Start(order) => {
                if let Err(reply) = self.begin(&order, descriptors) {
                    self.reply(&reply);
                }
            }
            Request::Signal(number) => {
                if let Some(job) = &mut self.job {
                    job.signal(number);
                }
            }
            Request::SignalPart { number, first_only } => {
                if let Some(job) = &self.job {
                    job.signal_part(number, first_only);
                }
            }
            Request::Kill => {
                if let Some(job) = &mut self.job {
                    job.signal(libc::SIGKILL);
                }
            }
            Request::Read { file, device, inode, born } => {
                let opened = self.with_file(&file, false, |report| {
                    let path = Path::new(&file.path);
                    let refusal = match open_reader(path) {
                        Ok(opened) => match opened.metadata() {
                            Ok(found) if identity_of(&found) == (device, inode, born) => {
                                // A message without bytes would be an end.
                                let _ = report.send_raw(b" ", &[opened.as_fd()]);
                                return;
                            }
                            Ok(_) => "the file was replaced since the attempt opened it".to_owned(),
                            Err(error) => error.to_string(),
                        },
                        Err(OpenError::NoFile(kind)) => format!("it is now {kind}"),
                        Err(OpenError::Refused(error)) => error.to_string(),
                    };
                    let _ = report.send_raw(refusal.as_bytes(), &[]);
                });
                if let Err(refusal) = opened {
                    self.reply(&Reply::Opened { refusal: refusal.to_string() });
                }
            }
            Request::Remove(folder) => {
                let removed =
                    self.with_file(&folder, true, |_| remove_content(Path::new(&folder.path)));
                if removed.is_err() {
                    self.reply(&Reply::Removed);
                }
            }
        }
    }

    fn policy_for(&self, uid_min: u32, root_allowed: bool) -> Policy {
        match self.trusts_caller {
            true => Policy { uid_min, root_jobs: root_allowed, ..self.policy },
            false => self.policy,
        }
    }

    /// Forks the child of an attempt.
    fn begin(&mut self, order: &Order, descriptors: Vec<OwnedFd>) -> Result<(), Reply> {
        let by_node = |detail: String| Reply::Failed { by_job: false, lease: false, detail };
        if self.job.is_some() {
            return Err(by_node("the launcher has an attempt already".to_owned()));
        }
        let policy = self.policy_for(order.uid_min, order.walls.root_allowed);
        let change = policy.change(order.account.as_ref()).map_err(|refusal| Reply::Failed {
            by_job: true,
            lease: false,
            detail: refusal.to_string(),
        })?;
        let descriptors = sort(order, descriptors)
            .ok_or_else(|| by_node("a descriptor is missing in the shepherd's order".to_owned()))?;
        self.check_groups(&descriptors).map_err(|error| {
            by_node(format!("the node may not use the attempt's control group: {error}"))
        })?;
        self.guard_devices(order, &descriptors).map_err(|error| {
            by_node(format!("the node could not close other jobs' devices: {error}"))
        })?;
        let failed =
            |error: io::Error| by_node(format!("the node could not start a process: {error}"));
        let (report, theirs) = Socket::pair().map_err(failed)?;
        let group = descriptors.group.as_ref().map(|group| group.as_fd());
        let parent = std::process::id();
        let child = match sys::fork(group, order.devices.is_some()).map_err(failed)? {
            Forked::Parent(child) => child,
            Forked::Child { joined } => {
                drop(report);
                let around = Surroundings {
                    report: &theirs,
                    null: self.null.as_fd(),
                    parent,
                    caller: self.policy.caller,
                };
                child::run(order, change, (descriptors, joined), &around)
            }
        };
        let deadline = boot_millis() + u64::from(order.open_within_ms);
        let (opens, readable) = (String::new(), Vec::new());
        let phase = Phase::Starting { report, opens, readable, deadline };
        let owns_group = !order.joins;
        self.job = Some(Job { child, group: descriptors.group, owns_group, mounts: None, phase });
        Ok(())
    }

    /// Checks that the control groups are the caller's. Otherwise it could use the launcher's privileges to
    /// put attempts into any group, and deny devices to everything in it.
    fn check_groups(&self, descriptors: &Descriptors) -> io::Result<()> {
        descriptors.group.iter().chain(&descriptors.v1_groups).try_for_each(|group| {
            child::check_callers(&File::from(group.try_clone()?), self.policy.caller)
        })
    }

    /// Attaches the filter of an attempt's devices to its group, unless the group has it already.
    fn guard_devices(&mut self, order: &Order, descriptors: &Descriptors) -> io::Result<()> {
        // A group that is joined already has the filter of its attempt.
        let Some(rules) = order.devices.as_ref().filter(|_| !order.joins) else { return Ok(()) };
        let group = descriptors.group.as_ref().ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "there is no control group of version 2")
        })?;
        let inode = File::from(group.try_clone()?).metadata()?.ino();
        let current = self.filter.as_ref().filter(|(of, _)| *of == inode).map(|(_, filter)| filter);
        if current.is_some_and(|filter| filter.is_of(rules)) {
            return Ok(());
        }
        let filter = Filter::load(rules)?;
        filter.attach(group.as_fd(), current)?;
        self.filter = Some((inode, filter));
        Ok(())
    }

    fn look_at_job(&mut self, ready: &[RawFd]) {
        let Some(mut job) = self.job.take() else { return };
        self.take_report(&mut job);
        if !ready.contains(&job.child.pidfd.as_raw_fd()) {
            self.job = Some(job);
            return;
        }
        let Some(reaped) = sys::wait(job.child.pid, false) else {
            self.job = Some(job);
            return;
        };
        // Its last report.
        self.take_report(&mut job);
        let reply = match job.phase {
            Phase::Failing(reply) | Phase::Aborted { reply: Some(reply), .. } => reply,
            Phase::Aborted { reply: None, .. } | Phase::Running | Phase::Starting { .. } => {
                let group_killed = job.owns_group && job.group.as_ref().is_some_and(clear);
                let clean = sweep(&self.others());
                Reply::Ended {
                    status: reaped.status,
                    user_ms: reaped.user_ms,
                    system_ms: reaped.system_ms,
                    max_rss_kib: reaped.max_rss_kib,
                    group_killed,
                    clean,
                }
            }
        };
        self.reply(&reply);
        drop(job.mounts);
    }

    fn take_report(&self, job: &mut Job) {
        if let Some((reply, descriptors)) = job.read_report() {
            let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
            let _ = self.socket.reply(&reply, &descriptors);
        }
    }

    /// Lists the children that are no descendants of an attempt.
    fn others(&self) -> Vec<i32> {
        let files = self.files.iter().map(|file| file.child.pid);
        files.chain(self.stuck.iter().map(|stuck| stuck.pid)).collect()
    }

    fn look_at_clock(&mut self) {
        let now = boot_millis();
        let late =
            self.job.as_ref().and_then(Job::deadline).is_some_and(|deadline| deadline <= now);
        if late && let Some(mut job) = self.job.take() {
            match job.phase {
                Phase::Starting { opens, .. } => {
                    sys::signal(job.child.pid, libc::SIGKILL);
                    let opens = if opens.is_empty() { "its files".to_owned() } else { opens };
                    let detail = format!(
                        "{opens} could not be opened in time: its file system doesn't answer"
                    );
                    let reply = Some(Reply::Failed { by_job: false, lease: false, detail });
                    job.phase = Phase::Aborted { reply, deadline: now + GONE_WITHIN };
                    self.job = Some(job);
                }
                Phase::Aborted { reply, .. } => {
                    // It hangs in the kernel, and nothing of the user ran in it.
                    self.stuck.push(job.child);
                    self.reply(&reply.unwrap_or(Reply::Ended {
                        status: libc::SIGKILL,
                        user_ms: 0,
                        system_ms: 0,
                        max_rss_kib: 0,
                        group_killed: false,
                        clean: false,
                    }));
                }
                Phase::Failing(_) | Phase::Running => self.job = Some(job),
            }
        }
        self.stuck.retain(|child| !child.is_over());
    }

    /// Lets a child do something with a file as its account.
    fn with_file(
        &mut self,
        file: &FileOrder,
        is_removal: bool,
        act: impl FnOnce(&Socket),
    ) -> Result<(), FileRefusal> {
        if self.files.len() + self.stuck.len() >= FILES_MAX {
            return Err(FileRefusal::TooMany);
        }
        let policy = self.policy_for(file.uid_min, file.root_allowed);
        let change = policy.change(file.account.as_ref())?;
        let (report, theirs) = Socket::pair()?;
        let Forked::Parent(child) = sys::fork(None, false)? else {
            drop(report);
            match become_reader(change) {
                Ok(()) => {
                    sys::die_with_parent();
                    act(&theirs);
                }
                Err(error) => drop(theirs.send_raw(error.to_string().as_bytes(), &[])),
            }
            sys::exit(0)
        };
        let deadline = boot_millis() + u64::from(file.within_ms);
        self.files.push(FileChild { child, report, deadline, is_removal });
        Ok(())
    }

    fn look_at_files(&mut self) {
        let now = boot_millis();
        for file in std::mem::take(&mut self.files) {
            let answer = match file.report.receive_raw() {
                Ok((bytes, descriptors)) => Some((bytes, descriptors)),
                Err(_) if file.deadline <= now => {
                    let late = b"its file system doesn't answer".to_vec();
                    Some((late, Vec::new()))
                }
                Err(_) => None,
            };
            let Some((bytes, mut descriptors)) = answer else {
                self.files.push(file);
                continue;
            };
            // An open file needs no child any more, and the launcher never waits for a child that hangs.
            file.child.kill();
            self.stuck.push(file.child);
            if file.is_removal {
                self.reply(&Reply::Removed);
                continue;
            }
            let refusal = match (descriptors.is_empty(), bytes.is_empty()) {
                (false, _) => String::new(),
                (true, false) => String::from_utf8_lossy(&bytes).into_owned(),
                (true, true) => "the file could not be opened".to_owned(),
            };
            descriptors.truncate(1);
            let opened: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
            let _ = self.socket.reply(&Reply::Opened { refusal }, &opened);
        }
    }
}

impl Job {
    fn deadline(&self) -> Option<u64> {
        match &self.phase {
            Phase::Starting { deadline, .. } | Phase::Aborted { deadline, .. } => Some(*deadline),
            Phase::Failing(_) | Phase::Running => None,
        }
    }

    fn kill(&self) {
        if let Some(group) = self.group.as_ref().filter(|_| self.owns_group) {
            kill_group(group);
        }
        sys::signal(-self.child.pid, libc::SIGKILL);
        sys::signal(self.child.pid, libc::SIGKILL);
    }

    /// Signals the program and its process group. Neither can belong to another process: the program isn't
    /// reaped yet, so its pid is not reused.
    fn signal(&mut self, number: i32) {
        match self.phase {
            Phase::Running => {
                sys::signal(-self.child.pid, number);
                if number == libc::SIGKILL {
                    sys::signal(self.child.pid, number);
                }
            }
            // A stopped child couldn't handle it.
            Phase::Starting { .. } if number == libc::SIGCONT => {}
            Phase::Starting { .. } => {
                sys::signal(self.child.pid, libc::SIGKILL);
                let deadline = boot_millis() + GONE_WITHIN;
                self.phase = Phase::Aborted { reply: None, deadline };
            }
            Phase::Failing(_) | Phase::Aborted { .. } => {}
        }
    }

    /// Signals the program alone, or only what its steps started.
    fn signal_part(&self, number: i32, first_only: bool) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        match first_only {
            true => sys::signal(self.child.pid, number),
            false => sys::signal_steps(self.child.pid, number),
        }
    }

    /// Reads what the child reported; returns what is new about its start.
    fn read_report(&mut self) -> Option<(Reply, Vec<OwnedFd>)> {
        loop {
            let Phase::Starting { report, opens, readable, .. } = &mut self.phase else {
                return None;
            };
            let Ok((bytes, mut descriptors)) = report.receive_raw() else { return None };
            match bytes.split_first() {
                Some((&OPENS, what)) => *opens = String::from_utf8_lossy(what).into_owned(),
                Some((&READABLE, numbers)) => {
                    let outputs = numbers.as_chunks::<9>().0.iter().map(|[stream, length @ ..]| {
                        let length = u64::from_le_bytes(*length);
                        ReadableOutput { stream: *stream, length }
                    });
                    *readable = outputs.zip(descriptors).collect();
                }
                Some((&MOUNTS, _)) => self.mounts = descriptors.pop(),
                Some((&FAILED, [by_job, lease, detail @ ..])) => {
                    let (by_job, lease) = (*by_job != 0, *lease != 0);
                    let detail = String::from_utf8_lossy(detail).into_owned();
                    self.phase = Phase::Failing(Reply::Failed { by_job, lease, detail });
                }
                Some(_) => {}
                // Its side of the socket is closed: it has become the program, or it was killed.
                None => {
                    let (numbers, files) = std::mem::take(readable).into_iter().unzip();
                    let pid = self.child.pid.cast_unsigned();
                    self.phase = Phase::Running;
                    return Some((Reply::Started { pid, readable: numbers }, files));
                }
            }
        }
    }
}

/// Assigns the descriptors of an order; `None` if there are too few.
fn sort(order: &Order, descriptors: Vec<OwnedFd>) -> Option<Descriptors> {
    let mut descriptors = descriptors.into_iter();
    let lease = File::from(descriptors.next()?);
    let group = if order.has_group { Some(descriptors.next()?) } else { None };
    let v1_groups: Vec<_> = descriptors.by_ref().take(usize::from(order.v1_groups)).collect();
    let stdin = match order.stdin {
        Input::Null => None,
        Input::Given | Input::Terminal => Some(descriptors.next()?),
    };
    let outputs: Vec<_> = descriptors.collect();
    let given = [&order.stdout, &order.stderr].into_iter().filter(|o| **o == Output::Given).count();
    let is_whole = v1_groups.len() == usize::from(order.v1_groups) && outputs.len() == given;
    is_whole.then_some(Descriptors { lease, group, v1_groups, stdin, outputs })
}

/// Finds out the rules of this launcher.
///
/// # Errors
///
/// The file of a launcher with setuid can't be read or trusted, or names another caller.
pub fn find_settings(caller: u32, own: u32) -> io::Result<Settings> {
    if own == caller {
        let uid_min = policy::UID_MIN;
        // Root decides for itself with each order; others change nothing.
        let policy = Policy { own, caller, uid_min, root_jobs: false };
        return Ok(Settings { policy, worker: None, mps_worker: None });
    }
    let refuse = |reason: String| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    let file = File::open(POLICY_FILE)
        .map_err(|error| refuse(format!("{POLICY_FILE} can't be read: {error}")))?;
    check_trusted(&file, POLICY_FILE)?;
    let settings = policy::parse(&io::read_to_string(file)?)
        .map_err(|bad| refuse(format!("{POLICY_FILE}: {bad}")))?;
    if settings.policy.caller != caller {
        let expected = settings.policy.caller;
        return Err(refuse(format!("uid {caller} may not start it, only uid {expected}")));
    }
    Ok(settings)
}

/// Checks that nobody but root can have changed a file.
///
/// # Errors
///
/// Others can.
pub fn check_trusted(file: &File, name: &str) -> io::Result<()> {
    let found = file.metadata()?;
    if found.uid() == 0 && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let reason = format!("{name} must be root's, and writable for nobody else");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Makes the effective account, which is root, the only one. Nothing of the caller's account is left: the caller can't
/// signal or trace this process.
///
/// # Errors
///
/// The kernel refuses it.
pub fn become_effective(own: u32) -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe {
        sys::check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()))?;
        sys::check(libc::syscall(libc::SYS_setresgid, own, own, own))?;
        sys::check(libc::syscall(libc::SYS_setresuid, own, own, own))?;
    }
    Ok(())
}

/// Removes what is in a folder, as far as the account may.
fn remove_content(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Neither follows a link.
        let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
    }
}

/// Kills what an ended attempt left in its group; returns whether there was anything.
fn clear(group: &OwnedFd) -> bool {
    let events = fs::read_to_string(in_group(group, "cgroup.events")).unwrap_or_default();
    let is_empty = events.lines().any(|line| line == "populated 0");
    if !is_empty {
        kill_group(group);
    }
    !is_empty
}

fn kill_group(group: &OwnedFd) {
    // Fails only where the group is gone, and with it its members.
    let _ = fs::write(in_group(group, "cgroup.kill"), "1");
}

fn in_group(group: &OwnedFd, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", group.as_raw_fd())
}

/// Kills every descendant of this process, which must be a child subreaper: those whose parent dies become
/// its children, so each round sees the next generation. Returns whether none is left.
fn sweep(others: &[i32]) -> bool {
    for _ in 0..SWEEPS_MAX {
        let children: Vec<i32> =
            children().into_iter().filter(|pid| !others.contains(pid)).collect();
        if children.is_empty() {
            return true;
        }
        for child in children {
            // The pid of a child that isn't reaped can't belong to another process.
            sys::signal(child, libc::SIGKILL);
            sys::wait(child, false);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    false
}

fn children() -> Vec<i32> {
    let pid = std::process::id();
    fs::read_to_string(format!("/proc/self/task/{pid}/children"))
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}
