//! Waiting for something to become true, with an end.

use std::thread;
use std::time::{Duration, Instant};

/// Short against everything that is waited for, long against the cost of a look.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until `look` finds something.
///
/// # Panics
///
/// After `within`; the message is that `what` did not come.
#[track_caller]
pub fn until<T>(within: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match within_time(within, &mut look) {
        Some(found) => found,
        None => panic!("after {within:?} still not: {what}"),
    }
}

/// Looks every so often until `look` finds something: for looks that are dear.
///
/// # Panics
///
/// After `within`; the message is that `what` did not come.
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

/// Looks until `look` finds something, or returns `None` after `within`.
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
