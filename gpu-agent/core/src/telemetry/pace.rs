//! How often a GPU is sampled: rarely without attempts, often with attempts, and within a limit on
//! the cost.

use std::time::Duration;

use tessera_model::Millis;

/// The shortest span: ten samples a second.
pub const FASTEST: Millis = Millis::new(100);
/// The longest span, one minute: the energy of a span is attributed by the sample at its end.
pub const SLOWEST: Millis = Millis::from_secs(60);
/// Sampling may take this part of the time: a driver that answers slowly is queried less often.
const COST_SHARE: u32 = 50;

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingPace {
    idle: Millis,
    busy: Millis,
}

impl SamplingPace {
    /// Sets the required spans between samples, limited to [`FASTEST`] and [`SLOWEST`].
    pub fn new(idle: Millis, busy: Millis) -> Self {
        let within = |span: Millis| span.clamp(FASTEST, SLOWEST);
        let idle = within(idle);
        Self { idle, busy: within(busy).min(idle) }
    }

    /// Returns the span from one sample, which took `cost`, to the next.
    pub fn next(self, busy: bool, cost: Duration) -> Duration {
        let span = if busy { self.busy } else { self.idle };
        span.duration().max(cost * COST_SHARE).min(SLOWEST.duration())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_more_than_ten_a_second_nor_more_than_its_share_of_the_time(
            idle: u64, busy: u64, is_busy: bool, cost_us in 0..2_000_000_u64,
        ) {
            let cost = Duration::from_micros(cost_us);
            let span = SamplingPace::new(Millis::new(idle), Millis::new(busy)).next(is_busy, cost);

            prop_assert!(span >= FASTEST.duration() && span <= SLOWEST.duration());
            prop_assert!(span >= cost * COST_SHARE || span == SLOWEST.duration());
        }
    }

    #[test]
    fn a_gpu_in_use_is_sampled_more_often() {
        let pace = SamplingPace::new(Millis::from_secs(1), Millis::new(100));

        assert_eq!(pace.next(true, Duration::from_millis(1)), Duration::from_millis(100));
        assert_eq!(pace.next(false, Duration::from_millis(1)), Duration::from_secs(1));
        assert_eq!(pace.next(true, Duration::from_millis(20)), Duration::from_secs(1));
    }
}
