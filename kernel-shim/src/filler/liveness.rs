//! Whether the queue is alive: it sends frames, writes heartbeats to the gate page, or serves the page.
//! On a machine with more to do than processors the last one distinguishes a dead queue from one
//! that waits for a processor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_frames::gate::is_queue_dead as is_dead;
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
    let is_dead = is_dead(begun.max(last_frame), heartbeat, clock::now(), gate::is_served);
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
