//! Which processes are alive, without trusting a bare process id.

use std::fs;

use serde::{Deserialize, Serialize};

/// One process, distinguished from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub started_ticks: u64,
}

impl ProcessIdentity {
    /// Returns the calling process, or `None` where `/proc` can't be read.
    pub fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self { pid, started_ticks: started(&stat_of(pid)?)? })
    }

    /// Returns whether the process still runs. A zombie doesn't: the kernel has already released
    /// its devices.
    ///
    /// Where `/proc` hides the processes of other accounts, one that can't be seen is not taken for dead: the
    /// driver, in the kernel, knows all of them.
    pub fn is_alive(self) -> bool {
        match stat_of(self.pid) {
            Some(stat) => started(&stat) == Some(self.started_ticks),
            None => exists(self.pid),
        }
    }
}

fn stat_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// Returns whether a process has this number, also if this one may neither see nor signal it.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| {
        !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH))
    })
}

fn started(stat: &str) -> Option<u64> {
    // The command name may hold spaces and brackets, so fields count from its last bracket.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // Field 22 of the line is the 19th after the state.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_exits_and_never_confused_with_its_successor() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = stat_of(child.id()).unwrap();
        let process = ProcessIdentity { pid: child.id(), started_ticks: started(&stat).unwrap() };
        let namesake = ProcessIdentity { started_ticks: process.started_ticks + 1, ..process };

        assert!(process.is_alive());
        assert!(!namesake.is_alive());

        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
