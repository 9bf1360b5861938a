//! How often a GPU is sampled: seldom while nobody has it, often while somebody does, and never
//! so often that it costs more than it may.

use std::time::Duration;

use tessera_model::Millis;

/// Nobody gets to sample more often than ten times a second.
pub const FASTEST: Millis = Millis::new(100);
/// Nor less often than once a minute: the energy of a span goes by what is seen at its end.
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
    /// Takes the required spans between samples, within [`FASTEST`] and [`SLOWEST`].
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
    fn a_card_in_use_is_looked_at_more_often() {
        let pace = SamplingPace::new(Millis::from_secs(1), Millis::new(100));

        assert_eq!(pace.next(true, Duration::from_millis(1)), Duration::from_millis(100));
        assert_eq!(pace.next(false, Duration::from_millis(1)), Duration::from_secs(1));
        assert_eq!(pace.next(true, Duration::from_millis(20)), Duration::from_secs(1));
    }
}
