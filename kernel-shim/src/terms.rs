//! The terms of the current session: the role of the process and the limits of its launches. The launch
//! path reads each with one load.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tessera_frames::kernel::ShimWelcome;
use tessera_kernel_queue::{Nanos, Role};

use crate::state;

/// Roles as numbers, so that the launch path needs one load. Zero is no role.
pub const MEASURE: u32 = 1;
/// See [`Role::Free`].
pub const FREE: u32 = 2;
/// See [`Role::Hold`].
pub const HOLD: u32 = 3;
/// See [`Role::Fill`].
pub const FILL: u32 = 4;

/// Longest wait of a launch, whatever the queue sends.
const WAIT_MAX: Nanos = Nanos::from_millis(1_000);

static ROLE: AtomicU32 = AtomicU32::new(0);
static WAIT_BOUND: AtomicU64 = AtomicU64::new(0);
static SAMPLE_EVERY: AtomicU32 = AtomicU32::new(0);

/// Returns the role of the process; zero without a session.
#[inline]
pub fn role() -> u32 {
    ROLE.load(Ordering::Relaxed)
}

/// Returns whether launches need grants.
pub fn is_filler() -> bool {
    state::mode() == state::ACTIVE && role() == FILL
}

/// Returns the longest wait of one launch.
pub fn wait_max() -> Nanos {
    Nanos::new(WAIT_BOUND.load(Ordering::Relaxed))
}

/// Returns the sampling interval in launches during the sharing stage; 0 for no samples.
#[inline]
pub fn sample_every() -> u32 {
    SAMPLE_EVERY.load(Ordering::Relaxed)
}

pub fn store_role(role: Role) {
    let number = match role {
        Role::Measure => MEASURE,
        Role::Free => FREE,
        Role::Hold => HOLD,
        Role::Fill => FILL,
    };
    ROLE.store(number, Ordering::Relaxed);
}

/// Removes the role, since the session is over.
pub fn clear_role() {
    ROLE.store(0, Ordering::Relaxed);
}

/// Stores the limits of a new session.
pub fn store_limits(welcome: &ShimWelcome) {
    WAIT_BOUND.store(welcome.wait_max.min(WAIT_MAX).get(), Ordering::Relaxed);
    SAMPLE_EVERY.store(welcome.sample_every, Ordering::Relaxed);
}
