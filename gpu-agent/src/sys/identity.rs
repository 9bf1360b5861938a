//! Identity of a process: a pid alone may now belong to an unrelated process (A5).

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tessera_model::BootId;

/// How long a killed process may take to end. Chosen: a busy machine takes milliseconds.
const GONE_WITHIN: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// One process of one boot; two processes never share all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The boot that it runs in.
    pub boot: BootId,
    /// The process as the kernel numbers it, which may use the number again later.
    pub pid: u32,
    /// When it was started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// Identifies a process that runs now.
    ///
    /// # Errors
    ///
    /// There is no such process.
    pub fn of(boot: BootId, pid: u32) -> io::Result<Self> {
        Ok(Self { boot, pid, start_ticks: start_ticks(pid)? })
    }

    /// Returns whether this very process still runs (a zombie doesn't).
    pub fn is_alive(&self, boot: BootId) -> bool {
        self.boot == boot && start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }

    /// Kills this very process, if it still runs; never another one.
    pub fn kill(&self, boot: BootId) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        // The descriptor pins the process; only then is its identity compared.
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if self.is_alive(boot) {
            // Fails only if it has just ended by itself.
            let _ = pidfd_send_signal(&descriptor, Signal::KILL);
        }
    }
}

/// A process that is watched. It may be another account's, also where `/proc` hides those.
#[derive(Debug)]
pub struct WatchedProcess(OwnedFd);

impl WatchedProcess {
    /// Opens the process that has a number now.
    ///
    /// # Errors
    ///
    /// There is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Returns whether it still runs (a zombie doesn't).
    pub fn is_alive(&self) -> bool {
        let mut ends = [PollFd::new(&self.0, PollFlags::IN)];
        // Readable once it has ended.
        matches!(poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// Returns whether a process runs now, whatever program it is. A zombie doesn't count.
pub fn runs(pid: u32) -> bool {
    start_ticks(pid).is_ok()
}

/// Reads field 22 of `/proc/PID/stat`.
fn start_ticks(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_ticks(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Returns `None` for a text that is not a `stat` line, and for a zombie.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    // The name may hold spaces and brackets: the fields start after the last one.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns whether a process belongs to an attempt, by its environment.
pub fn belongs_to(pid: u32, attempt: &str) -> bool {
    let mark = format!("TESSERA_ATTEMPT_ID={attempt}");
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
}

/// Kills every process that belongs to an attempt by its environment; returns how many
/// were found.
pub fn kill_by_environment(attempt: &str) -> usize {
    kill_marked(&format!("TESSERA_ATTEMPT_ID={attempt}"))
}

/// Kills every process whose environment holds this `NAME=value`, and waits until they are gone; returns how
/// many were found. A process that was killed holds its files and its GPU until it has ended.
pub fn kill_marked(mark: &str) -> usize {
    let killed: RefCell<Vec<OwnedFd>> = RefCell::default();
    let found = each_marked(mark, |descriptor| {
        let _ = pidfd_send_signal(descriptor, Signal::KILL);
        killed.borrow_mut().extend(descriptor.try_clone());
    });
    for descriptor in killed.take() {
        let mut ends = [PollFd::new(&descriptor, PollFlags::IN)];
        // What does not end in this time hangs in the kernel, and no signal reaches it. There is no
        // longer wait for others: the node has other work.
        if !matches!(poll(&mut ends, Some(&GONE_WITHIN)), Ok(1..)) {
            break;
        }
    }
    found.len()
}

/// Returns every process whose environment holds this `NAME=value`.
pub fn marked(mark: &str) -> Vec<u32> {
    each_marked(mark, |_| ())
}

/// Does something with every process whose environment holds this `NAME=value`, while its
/// descriptor pins it.
fn each_marked(mark: &str, act: impl Fn(&OwnedFd)) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in processes.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else { continue };
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes()) {
            found.push(number);
            act(&descriptor);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1";

        assert_eq!(parse_start_ticks(stat), Some(777));
    }

    #[test]
    fn a_zombie_counts_as_dead() {
        let stat = "42 (a) Z 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1";

        assert_eq!(parse_start_ticks(stat), None);
    }

    #[test]
    fn a_watched_process_is_alive_until_it_ends_though_nobody_has_reaped_it() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let watched = WatchedProcess::open(child.id()).unwrap();
        assert!(watched.is_alive());

        drop(child.stdin.take());
        let left_as_zombie =
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let process = rustix::process::WaitId::Pid(Pid::from_child(&child));
        rustix::process::waitid(process, left_as_zombie).unwrap();

        assert!(!watched.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn this_process_is_alive_and_another_start_time_is_not_it() {
        let boot = BootId::from_uuid(uuid::Uuid::nil());
        let me = ProcessIdentity::of(boot, std::process::id()).unwrap();

        assert!(me.is_alive(boot));
        assert!(!ProcessIdentity { start_ticks: me.start_ticks + 1, ..me }.is_alive(boot));
        assert!(!me.is_alive(BootId::from_uuid(uuid::Uuid::max())));
    }
}
