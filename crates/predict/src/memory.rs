//! Observations of the memory that tasks need, and predictions from them.
//!
//! The control core learns sizes from it (`predictions/sizes.rs`), since a size depends on the slices of a cluster.

use serde::{Deserialize, Serialize};
use tessera_model::Bytes;

/// The observation from one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryEvidence {
    /// It ended; this was its peak.
    Peak(Bytes),
    /// It ran out of memory on a slice with this amount.
    OutOf(Bytes),
}

/// The predicted need of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEstimate {
    /// On how many runs it is based.
    pub runs: u32,
    /// A run is expected to have this much at least.
    pub low: Bytes,
    /// What to request.
    pub value: Bytes,
    /// A run is expected to have no more.
    pub high: Bytes,
    /// The largest slice that a run ran out of, if more than that is requested.
    pub ran_out_of: Option<Bytes>,
    /// Whether it is cautious, since the task's predictions were no longer accurate.
    pub cautious: bool,
}

impl MemoryEstimate {
    /// Returns whether a run stayed within it: a run that ran out of memory did not.
    pub fn covers(&self, shown: MemoryEvidence) -> bool {
        match shown {
            MemoryEvidence::Peak(peak) => self.low <= peak && peak <= self.high,
            MemoryEvidence::OutOf(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_covers_peaks_in_its_interval_and_no_run_that_ran_out() {
        let estimate = MemoryEstimate {
            runs: 3,
            low: Bytes::new(10),
            value: Bytes::new(20),
            high: Bytes::new(21),
            ran_out_of: None,
            cautious: false,
        };

        for (peak, is_covered) in [(9, false), (10, true), (21, true), (22, false)] {
            assert_eq!(estimate.covers(MemoryEvidence::Peak(Bytes::new(peak))), is_covered);
        }
        assert!(!estimate.covers(MemoryEvidence::OutOf(Bytes::new(15))));
    }
}
