//! FIKIT's constants.
//!
//! Its Algorithm 1 fills a gap at once. The queue fills step by step instead, since it keeps fewer kernels in the
//! device's queue (`queue/gaps.rs`). With a window as large as the gap both choose the same launches: `tests/fikit.rs`
//! compares them. Algorithm 2 is [`crate::waiting::WaitingLaunches::best_fit`].

use crate::time::Nanos;

/// Gaps up to this length are not filled: ε of Algorithm 1.
pub const EPSILON: Nanos = Nanos::from_micros(100);
