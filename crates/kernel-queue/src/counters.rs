//! Counters of a queue. They only grow.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Counters of a slice or of one of its sessions.
///
/// A gap is counted at its holder (`gaps_…`), and the kernels in it at the filler. The counters of
/// the slice include both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    /// Kernels launched, with or without a grant.
    pub launches: u64,
    /// Predicted gaps longer than ε that ended.
    pub gaps_seen: u64,
    /// Such gaps in which a filler launched a kernel.
    pub gaps_filled: u64,
    /// Such gaps that ended before their predicted end while a grant was valid.
    pub early_stops: u64,
    /// Kernels launched under grants.
    pub filled_kernels: u64,
    /// The predicted time of these kernels.
    pub filled_time: Nanos,
    /// Filler kernels that were in flight when the holder returned.
    pub overshoots: u64,
    /// The total time that these kernels ran after the holder's return.
    pub overshoot_time: Nanos,
    /// The longest time that one of them ran after the holder's return.
    pub overshoot_max: Nanos,
    /// Grants given.
    pub grants: u64,
    /// Those of them that were given before their gap began.
    #[serde(default)]
    pub grants_ahead: u64,
    /// Those of these under which a kernel was launched.
    #[serde(default)]
    pub grants_ahead_used: u64,
    /// Launches that were granted because of their wait.
    pub aged: u64,
    /// Launches of unknown kernels that were granted in a gap to learn their times.
    #[serde(default)]
    pub probes: u64,
    /// Launches that were granted next to a running kernel.
    pub colocated: u64,
    /// Launches under a grant that was over when they were reported.
    pub late: u64,
    /// Waits for a grant that ended.
    pub waits: u64,
    /// The total duration of these waits.
    pub waited_time: Nanos,
    /// The longest of these waits.
    pub waited_max: Nanos,
    /// Kernels that are measured again because their times changed.
    pub drifts: u64,
    /// Launches of holders in the measuring stage.
    #[serde(default)]
    pub measuring_launches: u64,
    /// Samples of kernels' times.
    #[serde(default)]
    pub samples: u64,
}

impl QueueCounters {
    /// Adds other counters.
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
        self.grants_ahead += other.grants_ahead;
        self.grants_ahead_used += other.grants_ahead_used;
        self.aged += other.aged;
        self.probes += other.probes;
        self.colocated += other.colocated;
        self.late += other.late;
        self.waits += other.waits;
        self.waited_time = self.waited_time.plus(other.waited_time);
        self.waited_max = self.waited_max.max(other.waited_max);
        self.drifts += other.drifts;
        self.measuring_launches += other.measuring_launches;
        self.samples += other.samples;
    }

    /// Returns a filler's progress in thousandths: the predicted time of its kernels as a share of
    /// that time and its waits. `None` if it neither launched nor waited.
    pub fn progress_thousandths(&self) -> Option<u64> {
        let whole = self.filled_time.plus(self.waited_time).get();
        u64::try_from(u128::from(self.filled_time.get()) * 1_000 / u128::from(whole.max(1)))
            .ok()
            .filter(|_| whole > 0)
    }

    /// Counts a wait that ended.
    pub(crate) fn note_wait(&mut self, waited: Nanos) {
        self.waits += 1;
        self.waited_time = self.waited_time.plus(waited);
        self.waited_max = self.waited_max.max(waited);
    }

    /// Counts a filler kernel that ended after the holder's return.
    pub(crate) fn note_overshoot(&mut self, over: Nanos) {
        self.overshoots += 1;
        self.overshoot_time = self.overshoot_time.plus(over);
        self.overshoot_max = self.overshoot_max.max(over);
    }

    /// Counts a launch under a grant.
    pub(crate) fn note_fill(&mut self, predicted: Nanos) {
        self.filled_kernels += 1;
        self.filled_time = self.filled_time.plus(predicted);
    }
}
