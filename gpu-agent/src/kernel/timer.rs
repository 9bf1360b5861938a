//! A timer to the microsecond: gaps last some hundred of them, and the runtime's own timers count
//! milliseconds.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tessera_kernel_queue::Nanos;
use tokio::io::unix::AsyncFd;

/// Goes off at moments of `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct Timer {
    file: AsyncFd<OwnedFd>,
    armed: Cell<Nanos>,
}

impl Timer {
    /// Makes a timer that is not set; within a runtime only.
    ///
    /// # Errors
    ///
    /// The kernel has none.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the file is owned by the `AsyncFd` alone, and open for as long.
        let file = unsafe { AsyncFd::register(file)? };
        Ok(Self { file, armed: Cell::new(Nanos::MAX) })
    }

    /// Has it go off at `at` instead of whenever it was set to before.
    pub fn set(&self, at: Nanos) {
        if self.armed.replace(at) == at {
            return;
        }
        let nanos = if at == Nanos::MAX { 0 } else { at.get().max(1) };
        let value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: never, it_value: value };
        // Fails only for settings that the kernel can't read.
        let _ = timerfd_settime(self.file.get_ref(), TimerfdTimerFlags::ABSTIME, &setting);
    }

    /// Waits until it goes off.
    pub async fn wait(&self) {
        loop {
            let Ok(mut ready) = self.file.readable().await else { return };
            let mut count = [0; 8];
            let read = rustix::io::read(self.file.get_ref(), &mut count);
            ready.clear_ready();
            // Set anew meanwhile: nothing has gone off.
            if read.is_ok() {
                self.armed.set(Nanos::MAX);
                return;
            }
        }
    }
}
