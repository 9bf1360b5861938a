//! The priority of the threads that all launches wait for: the endpoint's own, and each shim's session thread.
//!
//! A shim can't raise its own thread: that needs `CAP_SYS_NICE`, or a limit that would let all of the job's threads
//! rise. So the agent raises the one thread that a session names, after a check of whose it is, and lowers it at the
//! session's end. What that thread starts has ordinary priority (`SCHED_FLAG_RESET_ON_FORK`). A program that names another
//! thread of its own gains one raised thread for each session, and a slice has few sessions.

use std::fs;
use std::io;

use tessera_frames::kernel::SESSION_THREAD_NAME;

/// The nice value of raised threads: they run before busy threads of the program and its data loaders.
const NICE: i32 = -10;
/// The number of `CAP_SYS_NICE`.
const SYS_NICE: u32 = 23;

/// Has this thread run before busy threads, where the account may do that. It is a nice value and no real-time policy:
/// Linux wakes a real-time thread on the processor on which it ran last, also if another one is idle. There it interrupted
/// the programs of holders (`docs/benchmarks.md`).
///
/// Launches of all fillers wait for it, and data loaders keep every processor busy. It runs for microseconds at a time.
pub fn raise() {
    // SAFETY: a plain number; zero is this thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy != libc::SCHED_OTHER {
        // The agent was started with another one on purpose.
        return;
    }
    // Without the right to it the thread stays ordinary. Programs that it starts are ordinary again.
    let _ = set_nice(0, NICE, libc::SCHED_FLAG_RESET_ON_FORK);
}

/// Returns whether this process may raise threads of jobs.
pub fn may_raise() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_capability(&status, SYS_NICE)
}

/// Reads `/proc/PID/status`.
fn has_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|set| set & (1 << number) != 0)
}

/// A thread as a shim names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedThread {
    /// Its process.
    pub pid: u32,
    /// Its own number.
    pub thread: u32,
    /// The account of the attempt.
    pub uid: u32,
}

/// Why a thread is not raised.
#[derive(Debug, thiserror::Error)]
pub enum RaiseError {
    /// It is no session thread of the attempt's, or of another pid namespace.
    #[error("the process has no such thread: {0}")]
    NotOfProcess(&'static str),
    /// The kernel refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A thread with raised priority. Dropping this restores its former one.
#[derive(Debug)]
pub struct RaisedThread {
    named: NamedThread,
    before: i32,
}

impl RaisedThread {
    /// Raises the thread of a session. Returns `None` if it has no ordinary priority: the program was started with
    /// another one on purpose.
    ///
    /// # Errors
    ///
    /// It isn't the attempt's, or this process may not raise it.
    pub fn raise(named: NamedThread) -> Result<Option<Self>, RaiseError> {
        named.check()?;
        let Some(before) = nice_of(named.thread)? else { return Ok(None) };
        if before <= NICE {
            return Ok(None);
        }
        set_nice(named.thread, NICE, libc::SCHED_FLAG_RESET_ON_FORK)?;
        // It may have ended since the first check, and its number was given to another thread.
        if let Err(error) = named.check() {
            let _ = set_nice(named.thread, before, 0);
            return Err(error);
        }
        Ok(Some(Self { named, before }))
    }
}

impl Drop for RaisedThread {
    fn drop(&mut self) {
        // Most end with their process.
        if self.named.check().is_ok() {
            let _ = set_nice(self.named.thread, self.before, 0);
        }
    }
}

impl NamedThread {
    /// Checks whose thread it is.
    fn check(self) -> Result<(), RaiseError> {
        let path = format!("/proc/{}/task/{}/status", self.pid, self.thread);
        let why_not = self.why_not(&fs::read_to_string(path)?);
        why_not.map_or(Ok(()), |reason| Err(RaiseError::NotOfProcess(reason)))
    }

    /// Reads the status of a thread. Returns why it is not the one that was named, if it isn't.
    fn why_not(self, status: &str) -> Option<&'static str> {
        let field = |name: &str, place: usize| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().nth(place)
        };
        let is = |name, place, number: u32| {
            field(name, place).and_then(|text| text.parse().ok()) == Some(number)
        };
        if !is("Pid:", 0, self.thread) || !is("Tgid:", 0, self.pid) {
            return Some("its number is another's");
        }
        // In a nested namespace the numbers that it sent stand for other threads here.
        if field("NSpid:", 1).is_some() {
            return Some("it is in another pid namespace");
        }
        // The real, effective and saved user.
        if !(0..3).all(|place| is("Uid:", place, self.uid)) {
            return Some("it belongs to another account");
        }
        match field("Name:", 0) {
            Some(SESSION_THREAD_NAME) => None,
            _ => Some("it has another name"),
        }
    }
}

/// Returns the nice value of a thread with ordinary scheduling; `None` for any other.
fn nice_of(thread: u32) -> io::Result<Option<i32>> {
    let thread = libc::pid_t::try_from(thread).map_err(io::Error::other)?;
    // SAFETY: plain numbers. Only `errno` distinguishes the value -1 from a failure.
    unsafe {
        let policy = libc::sched_getscheduler(thread);
        if policy < 0 {
            return Err(io::Error::last_os_error());
        }
        if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_OTHER {
            return Ok(None);
        }
        *libc::__errno_location() = 0;
        let nice = libc::getpriority(libc::PRIO_PROCESS, thread.unsigned_abs());
        match (nice, *libc::__errno_location()) {
            (-1, code) if code != 0 => Err(io::Error::from_raw_os_error(code)),
            (nice, _) => Ok(Some(nice)),
        }
    }
}

/// Sets the nice value and the flags of an ordinary thread, in one step.
fn set_nice(thread: u32, nice: i32, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // The kernel's first version has 48 bytes, which all later ones take.
    attributes.size = 48;
    attributes.sched_policy = libc::SCHED_OTHER.unsigned_abs();
    attributes.sched_flags = flags.unsigned_abs().into();
    attributes.sched_nice = nice;
    // SAFETY: a structure of ours, of which the kernel reads `size` bytes.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::process::geteuid;
    use rustix::thread::gettid;

    use super::*;

    const THREAD: NamedThread = NamedThread { pid: 70, thread: 71, uid: 1_001 };
    const STATUS: &str =
        "Name:\ttessera-queue\nTgid:\t70\nPid:\t71\nUid:\t1001\t1001\t1001\t1001\nNSpid:\t71\n";

    #[test]
    fn only_the_session_thread_of_the_attempts_account_is_raised() {
        assert_eq!(THREAD.why_not(STATUS), None);
        let refused = [
            ("Tgid:\t70", "Tgid:\t69", "its number is another's"),
            ("Pid:\t71", "Pid:\t72", "its number is another's"),
            ("NSpid:\t71", "NSpid:\t71\t3", "it is in another pid namespace"),
            ("Uid:\t1001\t1001", "Uid:\t0\t1001", "it belongs to another account"),
            ("Uid:\t1001\t1001", "Uid:\t1001\t0", "it belongs to another account"),
            ("tessera-queue", "python3", "it has another name"),
            (STATUS, "", "its number is another's"),
        ];
        for (from, to, why) in refused {
            let status = STATUS.replacen(from, to, 1);
            assert_eq!(THREAD.why_not(&status), Some(why), "{status}");
        }
    }

    #[test]
    fn the_right_to_raise_threads_is_read_from_the_effective_capabilities() {
        assert!(has_capability("CapPrm:\t0\nCapEff:\t0000000000800000\n", SYS_NICE));
        assert!(!has_capability("CapPrm:\t0000000000800000\nCapEff:\t0\n", SYS_NICE));
        assert!(!has_capability("", SYS_NICE));
    }

    /// Runs `scene` with a thread of this process that has a name, and waits for its end.
    fn with_thread(name: &str, scene: impl FnOnce(NamedThread)) {
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let body = move || {
            // Programs of tests may be started with another policy.
            let ordinary = libc::sched_param { sched_priority: 0 };
            // SAFETY: plain numbers and a structure of ours; zero is this thread.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) };
            let number = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
            tell.send(number).unwrap();
            let _ = ended.recv();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
        let uid = geteuid().as_raw();
        scene(NamedThread { pid: std::process::id(), thread: told.recv().unwrap(), uid });
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_raised_thread_is_ordinary_again_at_the_sessions_end() {
        if !may_raise() {
            eprintln!("SKIPPED: this account may raise no threads");
            return;
        }
        with_thread(SESSION_THREAD_NAME, |named| {
            let before = nice_of(named.thread).unwrap();
            let raised = RaisedThread::raise(named).unwrap();
            assert!(raised.is_some());
            assert_eq!(nice_of(named.thread).unwrap(), Some(NICE));
            // A second session of the thread has nothing to restore.
            assert!(RaisedThread::raise(named).unwrap().is_none());

            drop(raised);
            assert_eq!(nice_of(named.thread).unwrap(), before);
        });
    }

    #[test]
    fn a_thread_that_raises_itself_has_no_real_time_policy_and_starts_ordinary_programs() {
        if !may_raise() {
            eprintln!("SKIPPED: this account may raise no threads");
            return;
        }
        let raised = std::thread::spawn(|| {
            let ordinary = libc::sched_param { sched_priority: 0 };
            // SAFETY: plain numbers and a structure of ours; zero is this thread.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) };
            raise();
            let nice_of_this = || nice_of(u32::try_from(gettid().as_raw_nonzero().get()).unwrap());
            let started = std::thread::spawn(move || nice_of_this().unwrap());
            (nice_of_this().unwrap(), started.join().unwrap())
        });

        assert_eq!(raised.join().unwrap(), (Some(NICE), Some(0)));
    }

    #[test]
    fn a_thread_that_is_no_session_thread_stays_as_it_is() {
        with_thread("worker", |named| {
            let before = nice_of(named.thread).unwrap();
            let refused = RaisedThread::raise(named);
            assert!(matches!(refused, Err(RaiseError::NotOfProcess(_))), "{refused:?}");
            assert_eq!(nice_of(named.thread).unwrap(), before);
        });
    }
}
