//! The wait of the first launches for the first session. `tests/model` checks that it ends for every thread.

use std::time::Duration;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, PoisonError};

/// Whether launches wait for the first session, and their bell.
pub struct FirstWait {
    is_awaited: AtomicBool,
    waiting: Mutex<()>,
    over: Condvar,
}

impl FirstWait {
    /// Returns a wait that has not begun.
    pub const fn new(is_awaited: AtomicBool, waiting: Mutex<()>, over: Condvar) -> Self {
        Self { is_awaited, waiting, over }
    }

    /// Makes later launches wait.
    pub fn begin(&self) {
        self.is_awaited.store(true, Ordering::Release);
    }

    /// Returns whether launches wait.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    /// Waits until the wait is over, at most for `longest`. After one timeout no launch waits any
    /// more.
    pub fn wait(&self, longest: Duration) {
        if !self.is_awaited.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.is_awaited.load(Ordering::Acquire) {
            let slept = self.over.wait_timeout(waiting, longest);
            let (guard, result) = slept.unwrap_or_else(PoisonError::into_inner);
            waiting = guard;
            if result.timed_out() {
                break;
            }
        }
        drop(waiting);
        self.end();
    }

    /// Ends the wait of all launches.
    pub fn end(&self) {
        if self.is_awaited.swap(false, Ordering::AcqRel) {
            // With the lock, so that no thread sleeps after it has read the flag.
            drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            self.over.notify_all();
        }
    }
}
