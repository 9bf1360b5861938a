//! FIKIT's Algorithm 1 as in the paper: it fills one gap at once.
//!
//! The queue itself fills step by step, because it keeps fewer kernels in the device's queue. With
//! a window as large as the gap both choose the same launches, which a test checks.

use crate::time::Nanos;
use crate::waiting::{LaunchRequest, WaitingLaunches};

/// Gaps up to this length are not filled: ε of Algorithm 1.
pub const EPSILON: Nanos = Nanos::from_micros(100);

/// Launches the best fit, subtracts its time from the gap, and repeats until nothing fits
/// (Algorithm 1). `idle` is the gap after the holder's kernel; without it nothing is launched.
pub fn fill_gap(
    waiting: &mut WaitingLaunches,
    idle: Option<Nanos>,
    epsilon: Nanos,
    mut launch: impl FnMut(LaunchRequest),
) {
    let Some(mut idle) = idle.filter(|idle| *idle > epsilon) else { return };
    while idle > Nanos::ZERO {
        let Some(request) = waiting.best_fit(idle) else { break };
        idle = idle.minus(request.predicted.unwrap_or(idle));
        launch(request);
    }
}
