//! Starting and reaping an attempt's program: `clone3` into its control group, then `execve`.
//!
//! The only unsafe code of the shepherd. It relies on the shepherd being single-threaded: then
//! everything is allowed between `clone3` and `execve`. Kept to async-signal-safe calls anyway.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int};

/// Everything that a program is started with.
pub struct ProgramImage<'a> {
    /// Path of the program, relative to `folder` if it isn't absolute.
    pub program: &'a CStr,
    /// Arguments, the program's name first.
    pub arguments: &'a [CString],
    /// `NAME=value` pairs.
    pub environment: &'a [CString],
    /// Where it runs.
    pub folder: &'a CStr,
    /// Standard input, output and error; all above 2.
    pub streams: [BorrowedFd<'a>; 3],
    /// The control group that it is born in.
    pub group: Option<BorrowedFd<'a>>,
}

/// A started program, not reaped yet: so its pid can't belong to anyone else.
#[derive(Debug)]
pub struct SpawnedChild {
    /// Its pid.
    pub pid: i32,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
}

/// Which step of a start went wrong.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No process could be made.
    #[error("no process could be made")]
    Clone(#[source] io::Error),
    /// The working folder could not be entered.
    #[error("the working folder could not be entered")]
    Folder(#[source] io::Error),
    /// The program could not be executed.
    #[error("the program could not be executed")]
    Execute(#[source] io::Error),
}

/// How a process ended, with what it used.
#[derive(Clone, Copy, Debug)]
pub struct ReapedChild {
    /// Its pid.
    pub pid: i32,
    /// The wait status.
    pub status: i32,
    /// User time in milliseconds.
    pub user_ms: u64,
    /// System time in milliseconds.
    pub system_ms: u64,
    /// Largest resident set, in KiB.
    pub max_rss_kib: u64,
}

/// `CLONE_INTO_CGROUP` (Linux 5.7); its type differs between versions of the libc crate.
const INTO_GROUP: u64 = 0x2_0000_0000;
/// `CLONE_PIDFD`.
const PIDFD: u64 = 0x1000;

const STAGE_FOLDER: u8 = 1;
const STAGE_EXECUTE: u8 = 2;

/// Starts a program in a session of its own; it dies with this process.
///
/// # Errors
///
/// [`SpawnError`]; nothing runs then.
pub fn spawn(image: &ProgramImage<'_>) -> Result<SpawnedChild, SpawnError> {
    let arguments = pointers(image.arguments);
    let environment = pointers(image.environment);
    let (errors, errors_in) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|cause| SpawnError::Clone(cause.into()))?;
    let parent = std::process::id();
    let mut pidfd: c_int = -1;
    let mut pid = clone(&mut pidfd, image.group.map(|group| group.as_raw_fd()));
    if pid < 0 && image.group.is_some() {
        // An old kernel, or a group that takes no members: the sweep of descendants remains.
        pid = clone(&mut pidfd, None);
    }
    if pid < 0 {
        return Err(SpawnError::Clone(io::Error::last_os_error()));
    }
    if pid == 0 {
        // SAFETY: this is the child of a single-threaded process; the arrays are
        // null-terminated and their strings outlive the call, which doesn't return.
        unsafe {
            become_program(image, &arguments, &environment, parent, errors_in.as_raw_fd());
        }
    }
    drop(errors_in);
    // SAFETY: the kernel stored a new descriptor here that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    match read_report(errors) {
        None => Ok(SpawnedChild { pid, pidfd }),
        Some((stage, errno)) => {
            // It has exited or is about to: reap it, so that no zombie stays.
            let _ = wait(pid, true);
            let cause = io::Error::from_raw_os_error(errno);
            Err(if stage == STAGE_FOLDER {
                SpawnError::Folder(cause)
            } else {
                SpawnError::Execute(cause)
            })
        }
    }
}

fn clone(pidfd: &mut c_int, group: Option<RawFd>) -> i32 {
    let (flags, cgroup) = match group.and_then(|fd| u64::try_from(fd).ok()) {
        Some(fd) => (PIDFD | INTO_GROUP, fd),
        None => (PIDFD, 0),
    };
    // SAFETY: the kernel's structure is plain integers, for which zero means "not used".
    let mut args: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
    args.flags = flags;
    args.cgroup = cgroup;
    args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    args.pidfd = ptr::from_mut(pidfd).addr() as u64;
    // SAFETY: no memory is shared (no CLONE_VM), so this returns twice like fork; the
    // structure and the place for the descriptor outlive the call.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    #[expect(clippy::cast_possible_truncation, reason = "a pid has 22 bits, and -1 stays -1")]
    let pid = pid as i32;
    pid
}

/// Turns the child into the program. Only async-signal-safe calls.
///
/// # Safety
///
/// Only in the child of a single-threaded process; both arrays must be null-terminated.
unsafe fn become_program(
    image: &ProgramImage<'_>,
    arguments: &[*const c_char],
    environment: &[*const c_char],
    parent: u32,
    errors: RawFd,
) -> ! {
    // SAFETY: plain system calls on descriptors and strings that this process owns.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The shepherd may have died before the line above: then nobody would watch.
        if u32::try_from(libc::getppid()).ok() != Some(parent) {
            libc::_exit(127);
        }
        for signal in [libc::SIGPIPE, libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: MaybeUninit<libc::sigset_t> = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        // The shepherd's protection from the out-of-memory killer isn't the program's.
        let adjust = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        if adjust >= 0 {
            libc::write(adjust, c"0".as_ptr().cast(), 1);
            libc::close(adjust);
        }
        for (target, stream) in (0..).zip(image.streams) {
            libc::dup2(stream.as_raw_fd(), target);
        }
        let stage = if libc::chdir(image.folder.as_ptr()) == 0 {
            libc::execve(image.program.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            STAGE_EXECUTE
        } else {
            STAGE_FOLDER
        };
        let errno = *libc::__errno_location();
        let mut report = [stage, 0, 0, 0, 0];
        report[1..].copy_from_slice(&errno.to_ne_bytes());
        libc::write(errors, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

/// Returns what the child reported; `None` once it has become the program.
fn read_report(errors: OwnedFd) -> Option<(u8, i32)> {
    use std::io::Read as _;
    let mut report = [0; 5];
    let mut errors = std::fs::File::from(errors);
    errors.read_exact(&mut report).ok()?;
    let [stage, errno @ ..] = report;
    Some((stage, i32::from_ne_bytes(errno)))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Reaps a child: `pid`, or any with -1. `None` if there is none to reap (yet).
pub fn wait(pid: i32, block: bool) -> Option<ReapedChild> {
    let mut status = 0;
    let mut usage: MaybeUninit<libc::rusage> = MaybeUninit::zeroed();
    let options = if block { 0 } else { libc::WNOHANG };
    // SAFETY: both places are valid for writes for the whole call.
    let reaped = unsafe { libc::wait4(pid, &raw mut status, options, usage.as_mut_ptr()) };
    if reaped <= 0 {
        return None;
    }
    // SAFETY: zeroed integers are valid, and the kernel has filled them in.
    let usage = unsafe { usage.assume_init() };
    Some(ReapedChild {
        pid: reaped,
        status,
        user_ms: millis(usage.ru_utime),
        system_ms: millis(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss.cast_unsigned(),
    })
}

fn millis(time: libc::timeval) -> u64 {
    // Times that a process used: never negative, and no longer than the machine runs.
    time.tv_sec.cast_unsigned() * 1000 + time.tv_usec.cast_unsigned() / 1000
}

/// Makes this process deaf to what would end it by accident: a closed terminal, a broken pipe,
/// a stray `kill`.
pub fn ignore_signals() {
    for signal in [libc::SIGPIPE, libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: ignoring a signal installs no handler code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Takes the socket out of standard input and puts `null` in its place, so that no program of
/// an attempt inherits it.
///
/// # Errors
///
/// Standard input is closed, or no descriptor is left.
pub fn take_stdin(null: &std::fs::File) -> io::Result<OwnedFd> {
    use std::os::fd::AsFd as _;
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    // SAFETY: replaces descriptor 0, which only the standard library's stdin refers to, with
    // another open one.
    if unsafe { libc::dup2(null.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(taken)
}
