//! How often MPS failed since the agent started, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Counts a fault that ended the sharers of a slice.
pub(super) fn count_fault() {
    FAULTS.fetch_add(1, Ordering::Relaxed);
}

/// Returns how many faults there were.
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}
