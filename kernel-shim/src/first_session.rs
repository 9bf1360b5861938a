//! The wait of the first launches for the first session.
//!
//! A program launches a thousand kernels ahead in the time that a session needs to begin. These
//! could no longer be withheld from the device, and a filler's would delay the holder. So while a
//! living queue answers, the first launches wait, for [`FIRST_SESSION_WITHIN`] at most.

use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::first_wait::FirstWait;

/// Longest wait for the first session: far longer than it takes on an idle machine.
const FIRST_SESSION_WITHIN: Duration = Duration::from_millis(100);

static FIRST_WAIT: FirstWait =
    FirstWait::new(AtomicBool::new(false), Mutex::new(()), Condvar::new());

/// Makes later launches wait.
pub fn begin_wait() {
    FIRST_WAIT.begin();
}

/// Returns whether launches wait for the first session.
pub fn is_awaited() -> bool {
    FIRST_WAIT.is_awaited()
}

/// Waits until the first session has begun or failed.
pub fn wait() {
    FIRST_WAIT.wait(FIRST_SESSION_WITHIN);
}

/// Releases the launches that wait for the first session.
pub fn end_wait() {
    FIRST_WAIT.end();
}
