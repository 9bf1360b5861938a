//! Whether the queue is alive: it sends frames, writes heartbeats to the gate page, or holds the page's
//! lock. On a machine with more to do than processors the last one distinguishes a dead queue from one
//! that waits for a processor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_frames::gate::{QUEUE_DEAD_AFTER, QUEUE_HANGS_AFTER};
use tessera_kernel_queue::Nanos;

use crate::{clock, gate};

/// Set when a wait ended because the queue was silent. While it is set, no launch waits.
static QUEUE_IS_DEAD: AtomicBool = AtomicBool::new(false);
/// When the queue was declared dead.
static DEAD_SINCE: AtomicU64 = AtomicU64::new(0);
/// When the last frame arrived.
static LAST_FRAME: AtomicU64 = AtomicU64::new(0);

/// Notes that a frame arrived.
pub fn note_frame() {
    LAST_FRAME.store(clock::now().get(), Ordering::Relaxed);
}

/// Begins a session: the queue is alive.
pub fn begin_session() {
    QUEUE_IS_DEAD.store(false, Ordering::Relaxed);
    note_frame();
}

/// Declares the queue dead if it has been silent since a wait began at `begun`. Returns whether it
/// is dead.
pub fn detect_dead_queue(begun: Nanos, now: Nanos) -> bool {
    let last_frame = Nanos::new(LAST_FRAME.load(Ordering::Relaxed));
    let heartbeat = gate::heartbeat().unwrap_or(Nanos::ZERO);
    // A queue that holds the page's lock lives, and is only not scheduled. One that hangs is noticed later.
    let silent_since = begun.max(last_frame);
    let is_dead = is_silent(silent_since, heartbeat, clock::now(), QUEUE_DEAD_AFTER)
        && (is_silent(silent_since, heartbeat, clock::now(), QUEUE_HANGS_AFTER)
            || !gate::is_held_by_queue());
    if is_dead {
        QUEUE_IS_DEAD.store(true, Ordering::Relaxed);
        DEAD_SINCE.store(now.get(), Ordering::Relaxed);
        crate::log::note(format_args!("the queue is silent: launches pass until it is back"));
    }
    is_dead
}

/// Returns whether the queue was declared dead and has been silent since.
pub fn is_queue_dead() -> bool {
    if !QUEUE_IS_DEAD.load(Ordering::Relaxed) {
        return false;
    }
    let since = Nanos::new(DEAD_SINCE.load(Ordering::Relaxed));
    let has_heartbeat = gate::heartbeat().is_some_and(|at| at > since && at <= clock::now());
    let has_frame = Nanos::new(LAST_FRAME.load(Ordering::Relaxed)) > since;
    if has_heartbeat || has_frame {
        QUEUE_IS_DEAD.store(false, Ordering::Relaxed);
    }
    !(has_heartbeat || has_frame)
}

/// Returns whether a queue is silent whose last frame came at `last_frame` and whose page shows
/// `heartbeat`.
///
/// `now` must be read after the heartbeat, which would otherwise lie in the future.
fn is_silent(last_frame: Nanos, heartbeat: Nanos, now: Nanos, longest: Nanos) -> bool {
    // The page may hold any number: a heartbeat in the future is ignored.
    let heartbeat = if heartbeat > now { Nanos::ZERO } else { heartbeat };
    now.minus(last_frame.max(heartbeat)) >= longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_silent_after_its_last_frame_or_heartbeat_and_future_heartbeats_are_ignored() {
        let dead = QUEUE_DEAD_AFTER;
        let at = Nanos::from_millis(1_000);
        let is_silent = |last_frame, heartbeat, now| is_silent(last_frame, heartbeat, now, dead);
        assert!(!is_silent(at, Nanos::ZERO, at.plus(dead).minus(Nanos::new(1))));
        assert!(is_silent(at, Nanos::ZERO, at.plus(dead)));
        assert!(!is_silent(at, at.plus(dead), at.plus(dead)));
        assert!(is_silent(at, Nanos::MAX, at.plus(dead)));
    }
}
