//! Watches the processes of sessions, so that their deaths are noticed at once.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub struct WatchedProcess(Option<AsyncFd<OwnedFd>>);

impl WatchedProcess {
    /// Watches a process by the pid that it sent. Must be called within a runtime.
    ///
    /// A process in another pid namespace can't be watched, or another process is watched instead.
    /// Then its silence ends the session, and a session that ends by mistake is begun again.
    pub fn watch(pid: u32) -> Self {
        let open = || {
            let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
            let file = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
            // SAFETY: the file is owned by the `AsyncFd` alone, and open for as long.
            unsafe { AsyncFd::register(file) }.ok()
        };
        Self(open())
    }

    /// Waits for its end. Never returns if it can't be watched.
    pub async fn ended(&self) {
        match &self.0 {
            // A pidfd becomes readable when its process ends, and stays so.
            Some(file) => drop(file.readable().await),
            None => std::future::pending().await,
        }
    }
}
