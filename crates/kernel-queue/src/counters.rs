//! What the queue did, as numbers that only grow.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Counters of a slice or of one of its sessions. A gap is counted at its holder (`gaps_…`), what
/// fills it at who fills it; the slice's counters hold both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Kernels launched, granted or not.
    pub launches: u64,
    /// Gaps longer than ε that were predicted and came to their end.
    pub gaps_seen: u64,
    /// Those in which another session launched something.
    pub gaps_filled: u64,
    /// Those that ended before their predicted end while a grant stood.
    pub early_stops: u64,
    /// Kernels launched under grants.
    pub filled_kernels: u64,
    /// Their predicted time.
    pub filled_time: Nanos,
    /// Times that the holder returned while a filler's kernel was in flight.
    pub overshoots: u64,
    /// How long those kernels went on, all together.
    pub overshoot_time: Nanos,
    /// How long the longest of them went on.
    pub overshoot_max: Nanos,
    /// Grants given.
    pub grants: u64,
    /// Launches that were let go because they had waited long enough.
    pub aged: u64,
    /// Launches beside a running kernel.
    pub beside: u64,
    /// Launches under a grant that had ended when they were reported.
    pub late: u64,
    /// Waits for a grant that came to an end.
    pub waits: u64,
    /// How long they lasted, all together.
    pub waited_time: Nanos,
    /// How long the longest of them lasted.
    pub waited_max: Nanos,
    /// Kernels whose times changed, so that they are measured again.
    pub drifts: u64,
}

impl Counters {
    /// Adds what another counted.
    pub fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.gaps_seen += other.gaps_seen;
        self.gaps_filled += other.gaps_filled;
        self.early_stops += other.early_stops;
        self.filled_kernels += other.filled_kernels;
        self.filled_time = self.filled_time.plus(other.filled_time);
        self.overshoots += other.overshoots;
        self.overshoot_time = self.overshoot_time.plus(other.overshoot_time);
        self.overshoot_max = self.overshoot_max.max(other.overshoot_max);
        self.grants += other.grants;
        self.aged += other.aged;
        self.beside += other.beside;
        self.late += other.late;
        self.waits += other.waits;
        self.waited_time = self.waited_time.plus(other.waited_time);
        self.waited_max = self.waited_max.max(other.waited_max);
        self.drifts += other.drifts;
    }

    /// Returns which part of its time a filler got on with: of what it waited and what its kernels
    /// were predicted to run, the thousandths that they ran. Nothing if it did neither.
    pub fn progress_thousandths(&self) -> Option<u64> {
        let whole = self.filled_time.plus(self.waited_time).get();
        u64::try_from(u128::from(self.filled_time.get()) * 1_000 / u128::from(whole.max(1)))
            .ok()
            .filter(|_| whole > 0)
    }

    /// Notes the end of a wait.
    pub(crate) fn note_wait(&mut self, waited: Nanos) {
        self.waits += 1;
        self.waited_time = self.waited_time.plus(waited);
        self.waited_max = self.waited_max.max(waited);
    }

    /// Notes a filler's kernel that ended after the holder's return.
    pub(crate) fn note_overshoot(&mut self, over: Nanos) {
        self.overshoots += 1;
        self.overshoot_time = self.overshoot_time.plus(over);
        self.overshoot_max = self.overshoot_max.max(over);
    }

    /// Notes a launch under a grant.
    pub(crate) fn note_fill(&mut self, predicted: Nanos) {
        self.filled_kernels += 1;
        self.filled_time = self.filled_time.plus(predicted);
    }
}
