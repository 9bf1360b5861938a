//! State under a lock, and threads that sleep until something changed. `tests/model` checks that no wake-up is lost.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// State that threads share, with the bell of those that sleep.
pub struct Signalled<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Signalled<T> {
    /// Returns state with a new lock and bell.
    pub const fn new(state: Mutex<T>, changed: Condvar) -> Self {
        Self { state, changed }
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all sleeping threads. The state that they read may also be outside of the lock. A
    /// thread that has read it before the change already sleeps when this has the lock, so it is
    /// woken.
    pub fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Sleeps until the state changed, at most for `span`. The thread has looked at everything since it took
    /// the lock. Returns whether the time is over.
    pub fn sleep<'lock>(
        &self,
        state: MutexGuard<'lock, T>,
        span: Duration,
    ) -> (MutexGuard<'lock, T>, bool) {
        let slept = self.changed.wait_timeout(state, span);
        let (state, result) = slept.unwrap_or_else(PoisonError::into_inner);
        (state, result.timed_out())
    }
}
