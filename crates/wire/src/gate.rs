//! The gate page: what the sessions of one slice share in memory, so that a holder's launch ends
//! grants without a message (FIKIT's early stop at the speed of memory).
//!
//! The file has [`GATE_BYTES`] on a file system in memory. Both sides map it shared and look at it
//! as a [`GatePage`]; the mapping is theirs. Anybody who may write it may write nonsense: what
//! stands here may shorten or prolong a wait within its bound, and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use tessera_kernel_queue::{Epoch, Gate, Nanos};

/// Length of the file: one page, the least that can be mapped.
pub const GATE_BYTES: usize = 4096;

/// What stands in the first eight bytes: "TSRGATE" and the layout's version, 1.
pub const GATE_MAGIC: u64 = u64::from_le_bytes(*b"TSRGATE\x01");

/// The queue writes its beat at least this often while a filler waits, or may under a grant.
pub const BEAT_EVERY: Nanos = Nanos::from_millis(2);

/// The queue writes its beat at least this often while nobody asked and no grant stands.
pub const IDLE_BEAT_EVERY: Nanos = Nanos::from_millis(100);

/// A filler that waits, sees no newer beat and hears no frame for so long takes the queue for
/// dead: ten beats, and reliability's bound on a wait for a dead queue.
pub const QUEUE_DEAD_AFTER: Nanos = Nanos::from_millis(20);

/// A number with a cache line of its own, so that its writers don't slow down the others' readers.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line(AtomicU64);

/// The page. Any bytes are one: map the file and look.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct GatePage {
    magic: Line,
    epoch: Line,
    launches: Line,
    beat: Line,
}

const _: () = assert!(size_of::<GatePage>() == GATE_BYTES);

impl GatePage {
    /// Tells whether this is a gate of this layout; else do without.
    pub fn is_sound(&self) -> bool {
        self.magic.0.load(Ordering::Acquire) == GATE_MAGIC
    }

    /// Opens the page: the queue, once, after its first epoch stands.
    pub fn open(&self) {
        self.magic.0.store(GATE_MAGIC, Ordering::Release);
    }

    /// Closes the page: who looks from now on does without.
    pub fn close(&self) {
        self.magic.0.store(0, Ordering::Release);
    }

    /// Returns what a grant is held against: look before each launch under one.
    pub fn gate(&self) -> Gate {
        // A launch of a holder that is seen, and what it did before, go together with the epoch
        // that follows it: the order of these two loads makes no difference, each ends grants alone.
        let launches = self.launches.0.load(Ordering::Acquire);
        Gate { epoch: Epoch::new(self.epoch.0.load(Ordering::Acquire)), launches }
    }

    /// Adds one launch of a holder, before it is made; returns what to tell as its `count`.
    pub fn add_launch(&self) -> u64 {
        self.launches.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// Writes the epoch: the queue only.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.0.store(epoch.get(), Ordering::Release);
    }

    /// Writes that the queue was alive at `now`, on `CLOCK_MONOTONIC`: the queue only.
    pub fn set_beat(&self, now: Nanos) {
        self.beat.0.store(now.get(), Ordering::Release);
    }

    /// Returns when the queue was last alive, on `CLOCK_MONOTONIC`.
    pub fn beat(&self) -> Nanos {
        Nanos::new(self.beat.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_zeros_is_no_gate_until_it_is_opened() {
        let page = GatePage::default();
        assert!(!page.is_sound());

        page.open();
        assert!(page.is_sound());

        page.close();
        assert!(!page.is_sound());
    }

    #[test]
    fn a_launch_of_a_holder_and_an_epoch_each_pass_a_gate() {
        let page = GatePage::default();
        let given = page.gate();
        assert!(!page.gate().has_passed(given));

        assert_eq!(page.add_launch(), 1);
        assert!(page.gate().has_passed(given));

        let given = page.gate();
        page.set_epoch(Epoch::new(1));
        assert!(page.gate().has_passed(given));
    }
}
