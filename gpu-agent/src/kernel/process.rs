//! The processes behind the sessions: their deaths are seen at once.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

/// A process that is watched.
#[derive(Debug)]
pub struct Process(Option<AsyncFd<OwnedFd>>);

impl Process {
    /// Watches a process by the number that it gave; within a runtime only.
    ///
    /// One in another name space of processes can't be watched, or another is watched in its
    /// stead. Then its silence ends it, and a death elsewhere ends a session that connects anew.
    pub fn watch(pid: u32) -> Self {
        let open = || {
            let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
            let file = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
            // SAFETY: the file is owned by the `AsyncFd` alone, and open for as long.
            unsafe { AsyncFd::register(file) }.ok()
        };
        Self(open())
    }

    /// Waits for its end; for ever, if it can't be watched.
    pub async fn ended(&self) {
        match &self.0 {
            // A pidfd becomes readable when its process ends, and stays so.
            Some(file) => drop(file.readable().await),
            None => std::future::pending().await,
        }
    }
}
