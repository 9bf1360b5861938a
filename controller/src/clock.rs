//! The clocks of this process. Leases are reckoned on the boot clock, which goes on while the
//! machine sleeps; the wall clock is for display only.

use std::time::{Duration, Instant};
use tessera_model::number::clamped;

use rustix::time::{ClockId, clock_gettime};
use tessera_model::Millis;

use tessera_control::Stopwatch;

/// Returns the time since boot, suspend included.
pub fn boot() -> Millis {
    millis(ClockId::Boottime)
}

/// Returns the time since 1970.
pub fn unix() -> Millis {
    millis(ClockId::Realtime)
}

/// Returns the time since 1970 in seconds, as certificates have it.
pub fn unix_secs() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

fn millis(clock: ClockId) -> Millis {
    let now = clock_gettime(clock);
    let seconds = clamped(now.tv_sec);
    let rest = clamped::<u64>(now.tv_nsec) / 1_000_000;
    Millis::from_secs(seconds).plus(Millis::new(rest))
}

/// Runs from its creation on.
#[derive(Clone, Copy, Debug)]
pub struct Running(Instant);

impl Running {
    /// Begins to measure.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Stopwatch for Running {
    fn read(&self) -> Duration {
        self.0.elapsed()
    }
}
