//! System calls for which the standard library has no safe form.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use libc::c_int;

/// A child that isn't reaped yet, so its pid can't belong to another process.
#[derive(Debug)]
pub struct Child {
    /// The number of the started process.
    pub pid: i32,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
}

impl Child {
    /// Kills it, and never another process: the descriptor refers to this one only.
    pub fn kill(&self) {
        let (none, no_flags) = (ptr::null::<libc::siginfo_t>(), 0);
        // SAFETY: plain numbers; no information comes with the signal.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.pidfd.as_raw_fd(),
                libc::SIGKILL,
                none,
                no_flags,
            )
        };
    }

    /// Returns whether it has ended, and reaps it.
    pub fn is_over(&self) -> bool {
        let ended = poll(&[self.pidfd.as_raw_fd()], 0).contains(&true);
        if ended {
            // Another sweep may have reaped it.
            let _ = wait(self.pid, false);
        }
        ended
    }
}

/// How a process ended, with what it used.
#[derive(Clone, Copy, Debug)]
pub struct ReapedChild {
    /// The process that ended.
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

/// Returns the result of a system call, or the error that it left.
///
/// # Errors
///
/// The call failed.
pub fn check(result: impl Into<i64>) -> io::Result<i64> {
    let result = result.into();
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What [`fork`] returns to each of the two processes.
#[derive(Debug)]
pub enum Forked {
    /// To the one that called it.
    Parent(Child),
    /// To the new one. It ends here if it had to join a group and could not.
    Child {
        /// Whether it is in its group.
        joined: io::Result<()>,
    },
}

/// Forks this process, which must have one thread. The child begins in `group` if the kernel allows it. With
/// `must_join` it never begins elsewhere.
///
/// # Errors
///
/// No process could be made.
pub fn fork(group: Option<BorrowedFd<'_>>, must_join: bool) -> io::Result<Forked> {
    let mut pidfd: c_int = -1;
    let mut pid = clone3(&mut pidfd, group.map(|group| group.as_raw_fd()));
    let mut joined = Ok(());
    if pid < 0 && is_hidden(&io::Error::last_os_error()) {
        pid = clone(&mut pidfd);
        if let (0, Some(group)) = (pid, group) {
            joined = join_group(group).or_else(|error| if must_join { Err(error) } else { Ok(()) });
        }
    } else if pid < 0 && group.is_some() && !must_join {
        // An old kernel, or a group that accepts no members: only the sweep of descendants ends it.
        pid = clone3(&mut pidfd, None);
    }
    match pid {
        0 => Ok(Forked::Child { joined }),
        // SAFETY: the kernel stored a new descriptor here that nobody else owns.
        1.. => Ok(Forked::Parent(Child { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether a filter of system calls hides `clone3`: its flags are in memory, where a filter can't
/// read them. Docker's filter reports a missing call, and its older versions a forbidden one.
fn is_hidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// Puts this process into a control group.
fn join_group(group: BorrowedFd<'_>) -> io::Result<()> {
    let (name, flags) = (c"cgroup.procs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
    // SAFETY: the name is a C string, and the descriptor is new and nobody else's.
    let mut members = unsafe {
        let fd = check(libc::openat(group.as_raw_fd(), name, flags))?;
        #[expect(clippy::cast_possible_truncation, reason = "descriptors are small numbers")]
        std::fs::File::from_raw_fd(fd as RawFd)
    };
    io::Write::write_all(&mut members, b"0")
}

/// The older call, which can't start a child in a group.
fn clone(pidfd: &mut c_int) -> i32 {
    let flags = PIDFD | u64::from(libc::SIGCHLD.cast_unsigned());
    let (no_stack, none) = (0_usize, ptr::null_mut::<c_int>());
    // SAFETY: no memory is shared (no CLONE_VM), so this returns twice like fork; the place for the descriptor
    // outlives the call. On x86_64 and aarch64 that place is the third argument.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone, flags, no_stack, ptr::from_mut(pidfd), none, none)
    };
    #[expect(clippy::cast_possible_truncation, reason = "a pid has 22 bits, and -1 stays -1")]
    let pid = pid as i32;
    pid
}

fn clone3(pidfd: &mut c_int, group: Option<RawFd>) -> i32 {
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
    // SAFETY: no memory is shared (no CLONE_VM), so this returns twice like fork; the structure and the place
    // for the descriptor outlive the call.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    #[expect(clippy::cast_possible_truncation, reason = "a pid has 22 bits, and -1 stays -1")]
    let pid = pid as i32;
    pid
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
    // The times that a process used: never negative, and no longer than the machine has run.
    time.tv_sec.cast_unsigned() * 1000 + time.tv_usec.cast_unsigned() / 1000
}

/// Signals a process, or with a negative number its group. A process that has ended needs no signal.
pub fn signal(pid: i32, number: c_int) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid, number) };
}

/// A variable that all processes of steps have, and the job's own program lacks.
const STEP_VARIABLE: &[u8] = b"SLURM_STEP_ID=";

/// Signals the processes of a session that belong to steps of its job. The session's leader isn't reaped yet,
/// so its number belongs to no other process.
pub fn signal_steps(session: i32, number: c_int) {
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != session) else { continue };
        // SAFETY: plain numbers.
        let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let Ok(handle) = i32::try_from(handle) else { continue };
        if handle < 0 {
            continue;
        }
        // SAFETY: plain numbers. Looked at while the handle is open: the number is still this process's.
        let is_in_session = unsafe { libc::getsid(pid) } == session;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_of_step =
            environment.split(|byte| *byte == 0).any(|word| word.starts_with(STEP_VARIABLE));
        // SAFETY: plain numbers, a null pointer that stands for no further data, and an open descriptor.
        unsafe {
            if is_in_session && is_of_step {
                let none = ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, handle, number, none, 0);
            }
            libc::close(handle);
        }
    }
}

/// Makes this process ignore signals that would end it by accident: of a closed terminal, a broken pipe, a
/// stray `kill`.
pub fn ignore_signals() {
    for signal in ACCIDENTAL_SIGNALS {
        // SAFETY: ignoring a signal installs no handler code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

const ACCIDENTAL_SIGNALS: [c_int; 5] =
    [libc::SIGPIPE, libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT];

/// Gives a program the signals that it expects: none ignored and none blocked.
pub fn reset_signals() {
    /// The kernel's own structure, for the default action of a signal: all zero.
    static DEFAULT: [u64; 4] = [0; 4];
    const SIGNALS: c_int = 64;
    // SAFETY: default actions install no handler code, and the set is a local value.
    unsafe {
        for signal in 1..=SIGNALS {
            // The C library reserves two signals, and ignoring them is inherited as well.
            let (new, old) = (DEFAULT.as_ptr(), ptr::null_mut::<u64>());
            libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size_of::<u64>());
        }
        let mut none: MaybeUninit<libc::sigset_t> = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Makes this process die with its parent. A change of the account undoes this, and so does a program with
/// setuid.
pub fn die_with_parent() {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Adopts the orphans among its descendants.
///
/// # Errors
///
/// The kernel is older than 3.4.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }).map(drop)
}

/// Returns the parent's pid.
pub fn parent() -> i32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::getppid() }
}

/// Returns the real and the effective uid.
pub fn uids() -> (u32, u32) {
    // SAFETY: take nothing and always succeed.
    unsafe { (libc::getuid(), libc::geteuid()) }
}

/// Mounts `source` over `target`.
///
/// # Errors
///
/// One of them is no descriptor.
pub fn replace(source: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: the caller owns both; the standard streams are what is replaced.
    check(unsafe { libc::dup2(source.as_raw_fd(), target) }).map(drop)
}

/// Leaves only the standard streams open across the execution of a program.
pub fn close_others_on_exec() {
    const ON_EXEC: libc::c_uint = 4;
    // SAFETY: marks descriptors; closes nothing now. Kernels before 5.11 don't know it: all descriptors of this
    // program are marked one by one as well.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, ON_EXEC) };
}

/// Closes all descriptors but the standard streams and one.
pub fn close_others(kept: RawFd) {
    let close = |from: RawFd, to: libc::c_uint| {
        // SAFETY: nothing of this process uses a descriptor afterwards but the standard streams and the one that
        // is kept. Kernels before 5.9 don't know it: the descriptors then go with the process.
        unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
    };
    if kept > 3 {
        close(3, kept.cast_unsigned() - 1);
    }
    close(kept + 1, u32::MAX);
}

/// Executes a program; returns only if that fails, with the error.
pub fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<_> {
        strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays are null-terminated, and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process at once, without destructors or handlers.
pub fn exit(code: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Reads `CLOCK_BOOTTIME` in milliseconds.
pub fn boot_millis() -> u64 {
    let mut now: MaybeUninit<libc::timespec> = MaybeUninit::zeroed();
    // SAFETY: the place is valid for writes; zeroed integers are valid.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// Waits until one of the descriptors has something to read, or for so many milliseconds (-1: without a limit).
///
/// Returns which of them have.
pub fn poll(descriptors: &[RawFd], millis: c_int) -> Vec<bool> {
    let polled =
        descriptors.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 });
    let mut polled: Vec<_> = polled.collect();
    // SAFETY: the array is valid for the whole call, and its length is given.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    polled.iter().map(|descriptor| ready > 0 && descriptor.revents != 0).collect()
}

/// Waits until the writers of a pipe are gone, or a process has ended; returns which of them is so. What is in the
/// pipe is left there.
pub fn poll_ends(pipe: RawFd, process: RawFd) -> [bool; 2] {
    // The end is reported whatever is requested.
    let pipe = libc::pollfd { fd: pipe, events: 0, revents: 0 };
    let process = libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 };
    let mut polled = [pipe, process];
    // SAFETY: the array is valid for the whole call, and its length is given.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
    polled.map(|descriptor| descriptor.revents != 0)
}

/// Makes a file that exists only in memory, for a message of any length.
///
/// # Errors
///
/// There is no memory or no descriptor left.
pub fn memory_file() -> io::Result<std::fs::File> {
    // SAFETY: the name is a C string; the descriptor is new and nobody else's.
    unsafe {
        let fd = check(libc::memfd_create(c"order".as_ptr(), libc::MFD_CLOEXEC))?;
        #[expect(clippy::cast_possible_truncation, reason = "descriptors are small numbers")]
        Ok(std::fs::File::from_raw_fd(fd as RawFd))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;

    use super::*;

    /// Lets `clone3` fail for this thread and its children, as Docker's filter for system calls does.
    fn hide_clone3(error: c_int) {
        // Loads the number of the call, and compares it.
        let rules = [
            libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
            libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_clone3.try_into().unwrap() },
            libc::sock_filter {
                code: 0x06,
                jt: 0,
                jf: 0,
                k: libc::SECCOMP_RET_ERRNO | error.cast_unsigned(),
            },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
        ];
        let program = libc::sock_fprog { len: 4, filter: rules.as_ptr().cast_mut() };
        // SAFETY: the program and its rules outlive the calls.
        unsafe {
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).unwrap();
            let filter = libc::SECCOMP_MODE_FILTER;
            check(libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program)).unwrap();
        }
    }

    /// The status of a child that reports whether it joined `group`: 0 or 9.
    fn status_under_a_filter(error: c_int, group: Option<File>, must_join: bool) -> i32 {
        let forked = move || {
            hide_clone3(error);
            let group = group.as_ref().map(|group| group.as_fd());
            match fork(group, must_join).unwrap() {
                Forked::Child { joined: Ok(()) } => exit(0),
                Forked::Child { .. } => exit(9),
                Forked::Parent(child) => {
                    assert_eq!(poll(&[child.pidfd.as_raw_fd()], 10_000), [true]);
                    libc::WEXITSTATUS(wait(child.pid, true).unwrap().status)
                }
            }
        };
        std::thread::spawn(forked).join().unwrap()
    }

    #[test]
    fn where_a_filter_hides_clone3_a_child_is_made_by_the_older_call() {
        for error in [libc::ENOSYS, libc::EPERM] {
            assert_eq!(status_under_a_filter(error, None, false), 0);
        }
    }

    #[test]
    fn there_a_child_joins_its_group_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let members = folder.path().join("cgroup.procs");
        fs::write(&members, "").unwrap();

        let group = File::open(folder.path()).unwrap();
        let status = status_under_a_filter(libc::ENOSYS, Some(group), true);

        assert_eq!(status, 0);
        assert_eq!(fs::read_to_string(&members).unwrap(), "0");
    }

    #[test]
    fn a_child_that_has_to_join_and_can_not_goes_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Some(File::open(folder.path()).unwrap());

        assert_eq!(status_under_a_filter(libc::ENOSYS, open(), true), 9);
        assert_eq!(status_under_a_filter(libc::ENOSYS, open(), false), 0);
    }
}
