//! When the session's thread may sleep, and who wakes it. `tests/model` checks that no record waits while it sleeps.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether the reader of records sleeps and must be woken.
pub struct ParkFlag(AtomicBool);

impl ParkFlag {
    /// Returns the flag of a reader that is awake.
    pub const fn new(is_parked: AtomicBool) -> Self {
        Self(is_parked)
    }

    /// Called after a record was added. Returns whether the reader sleeps; then this caller, and no other,
    /// wakes it.
    #[inline]
    pub fn announce(&self) -> bool {
        // Orders the record before the look at the flag; see `may_park`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.take()
    }

    /// Returns whether the reader sleeps; then this caller, and no other, wakes it.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    /// Prepares the reader for sleep. Returns false if there is a record.
    pub fn may_park(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Relaxed);
        // With the fence in `announce`, either the writer sees the flag or this sees the record.
        fence(Ordering::SeqCst);
        if is_empty() {
            return true;
        }
        self.unpark();
        false
    }

    /// Notes that the reader is awake.
    pub fn unpark(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The pause of the reader between two looks at the records. Most of them wait for its end, and an urgent one ends it.
pub struct PauseFlag {
    paused: ParkFlag,
    is_urgent: AtomicBool,
}

impl PauseFlag {
    /// Returns the flag of a reader that does not pause.
    pub const fn new(paused: ParkFlag, is_urgent: AtomicBool) -> Self {
        Self { paused, is_urgent }
    }

    /// Called after an urgent record was added. Returns whether the reader pauses; then this caller, and no other,
    /// wakes it.
    pub fn end_early(&self) -> bool {
        self.is_urgent.store(true, Ordering::Release);
        self.paused.announce()
    }

    /// Prepares the reader for a pause. Returns false if there is an urgent record, or if `must_look` returns true.
    pub fn may_pause(&self, must_look: impl FnOnce() -> bool) -> bool {
        self.paused.may_park(|| !self.is_urgent.swap(false, Ordering::AcqRel) && !must_look())
    }

    /// Notes that the reader pauses no longer.
    pub fn end(&self) {
        self.paused.unpark();
    }
}
