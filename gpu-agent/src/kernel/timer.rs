//! A timer with microsecond accuracy. Gaps last some hundred microseconds, while the runtime's own
//! timers count milliseconds.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tessera_kernel_queue::Nanos;
use tokio::io::unix::AsyncFd;

/// A timer on `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct Timer {
    file: AsyncFd<OwnedFd>,
    armed: Cell<Nanos>,
}

impl Timer {
    /// Returns a timer that is not set. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// The kernel can't create a timer.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the file is owned by the `AsyncFd` alone, and open for as long.
        let file = unsafe { AsyncFd::register(file)? };
        Ok(Self { file, armed: Cell::new(Nanos::MAX) })
    }

    /// Sets the timer to `at`, in place of any earlier setting.
    #[expect(clippy::cast_possible_wrap, reason = "2⁶⁴ ns are fewer than 2⁶³ s")]
    pub fn set(&self, at: Nanos) {
        if self.armed.replace(at) == at {
            return;
        }
        let nanos = if at == Nanos::MAX { 0 } else { at.get().max(1) };
        let value = Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as i64,
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: never, it_value: value };
        // Fails only for invalid settings.
        let _ = timerfd_settime(self.file.get_ref(), TimerfdTimerFlags::ABSTIME, &setting);
    }

    /// Waits until the timer expires.
    pub async fn wait(&self) {
        loop {
            let Ok(mut ready) = self.file.readable().await else { return };
            let mut count = [0; 8];
            let read = rustix::io::read(self.file.get_ref(), &mut count);
            ready.clear_ready();
            // After a new setting nothing has expired.
            if read.is_ok() {
                self.armed.set(Nanos::MAX);
                return;
            }
        }
    }
}
