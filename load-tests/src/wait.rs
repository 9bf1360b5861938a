//! Waiting for a condition, with a timeout.

use std::thread;
use std::time::{Duration, Instant};

/// Interval of checks: short compared with all waits, long compared with the cost of a check.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Calls `look` until it finds something.
///
/// # Panics
///
/// After `within`; the message states that `what` did not happen.
#[track_caller]
pub fn until<T>(within: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match within_time(within, &mut look) {
        Some(found) => found,
        None => panic!("after {within:?} still not: {what}"),
    }
}

/// Calls `look` at a given interval until it finds something, for expensive checks.
///
/// # Panics
///
/// After `within`; the message states that `what` did not happen.
#[track_caller]
pub fn until_every<T>(
    every: Duration,
    within: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    match looking(every, within, &mut look) {
        Some(found) => found,
        None => panic!("after {within:?} still not: {what}"),
    }
}

/// Calls `look` until it finds something, or returns `None` after `within`.
pub fn within_time<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    looking(LOOK_EVERY, within, &mut look)
}

fn looking<T>(
    every: Duration,
    within: Duration,
    look: &mut impl FnMut() -> Option<T>,
) -> Option<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(every);
    }
}
