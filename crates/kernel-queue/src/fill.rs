//! Algorithm 1 of FIKIT as it stands in the paper: fill one gap at once.
//!
//! The queue itself fills step by step, because it keeps fewer kernels in the device's queue;
//! with a window as large as the gap both do the same, and tests hold that.

use crate::time::Nanos;
use crate::waiting::{Request, Waiting};

/// Gaps up to this are not worth filling: ε of Algorithm 1.
pub const EPSILON: Nanos = Nanos::from_micros(100);

/// Algorithm 1: launches the best fit, takes its time off the gap, and goes on until nothing
/// fits. `idle` is the gap after the holder's kernel, or `SG`; nothing is done if neither is
/// known.
pub fn fill(
    waiting: &mut Waiting,
    idle: Option<Nanos>,
    epsilon: Nanos,
    mut launch: impl FnMut(Request),
) {
    let Some(mut idle) = idle.filter(|idle| *idle > epsilon) else { return };
    while idle > Nanos::ZERO {
        let Some(request) = waiting.best_fit(idle) else { break };
        idle = idle.minus(request.predicted.unwrap_or(idle));
        launch(request);
    }
}
