//! Figures over time, in bounded memory: every sample of the last minute or more, and spans of
//! ten seconds of the last hour. A figure that could not be read is a gap, never a zero.

use std::collections::VecDeque;

use tessera_model::Millis;

/// How many single samples are kept: one minute at ten a second, or ten minutes at one.
const FINE_MAX: usize = 600;
/// Length of a coarse span.
const COARSE: Millis = Millis::from_secs(10);
/// How many coarse spans are kept: one hour.
const COARSE_MAX: usize = 360;
/// Maximum number of spans in one answer: fewer than a wide terminal has columns.
pub const SPANS_MAX: usize = 1_000;

/// All samples within one span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesSpan {
    /// When it begins, in milliseconds since 1970: a multiple of its length.
    pub start: Millis,
    /// How many samples; never zero.
    pub count: u64,
    /// The sum of all samples in the span.
    pub sum: u128,
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
}

impl SeriesSpan {
    fn of(start: Millis, value: u64) -> Self {
        Self { start, count: 1, sum: value.into(), min: value, max: value }
    }

    fn take(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Returns the mean, rounded down.
    pub fn mean(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "a mean is at most the largest value")]
        let mean = (self.sum / u128::from(self.count.max(1))) as u64;
        mean
    }
}

/// One figure over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    fine: VecDeque<(Millis, u64)>,
    coarse: VecDeque<SeriesSpan>,
}

impl Series {
    /// Adds a sample. A sample that is older than the newest (the clock was changed) is ignored.
    pub fn push(&mut self, at: Millis, value: u64) {
        if self.newest().is_some_and(|(newest, _)| at < newest) {
            return;
        }
        self.fine.push_back((at, value));
        if self.fine.len() > FINE_MAX {
            self.fine.pop_front();
        }
        add(&mut self.coarse, SeriesSpan::of(round_down(at, COARSE), value));
        if self.coarse.len() > COARSE_MAX {
            self.coarse.pop_front();
        }
    }

    /// Returns the newest sample.
    pub fn newest(&self) -> Option<(Millis, u64)> {
        self.fine.back().copied()
    }

    /// Returns what was sampled from `from` on in spans of `step`, oldest first: the newest
    /// [`SPANS_MAX`] of them. Older than the single samples, spans are at least ten seconds
    /// long, and begin where those begin.
    pub fn since(&self, from: Millis, step: Millis) -> Vec<SeriesSpan> {
        let step = Millis::new(step.get().max(1));
        let oldest = self.fine.front().map_or(Millis::new(u64::MAX), |(at, _)| *at);
        // Only whole coarse spans from before the samples: none is counted twice.
        let coarse = self.coarse.iter().filter(|span| span.start.plus(COARSE) <= oldest).copied();
        let coarse = coarse.filter(|span| span.start.plus(COARSE) > from);
        let covered = self.coarse.iter().map(|span| span.start.plus(COARSE));
        let covered = covered.filter(|end| *end <= oldest).max().unwrap_or(Millis::ZERO);
        let fine = self.fine.iter().filter(|(at, _)| *at >= from && *at >= covered);
        let fine = fine.map(|(at, value)| SeriesSpan::of(*at, *value));
        let mut spans = VecDeque::new();
        for span in coarse.chain(fine) {
            add(&mut spans, SeriesSpan { start: round_down(span.start, step), ..span });
            if spans.len() > SPANS_MAX {
                spans.pop_front();
            }
        }
        spans.into()
    }
}

/// Adds a span to the last one if both begin at the same moment, otherwise after it.
fn add(spans: &mut VecDeque<SeriesSpan>, span: SeriesSpan) {
    match spans.back_mut() {
        Some(last) if last.start == span.start => last.take(span),
        Some(_) | None => spans.push_back(span),
    }
}

fn round_down(at: Millis, step: Millis) -> Millis {
    Millis::new(at.get() - at.get() % step.get())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(samples: &[(u64, u64)]) -> (Series, Vec<(u64, u64)>) {
        let mut series = Series::default();
        let mut at = 1_000_000;
        let mut kept = Vec::new();
        for (after, value) in samples {
            at += after;
            series.push(Millis::new(at), *value);
            kept.push((at, *value));
        }
        (series, kept)
    }

    proptest! {
        #[test]
        fn down_sampling_keeps_count_sum_and_extremes_and_adds_nothing(
            samples in prop::collection::vec((0..30_000_u64, any::<u64>()), 1..500),
            step in 1..120_000_u64,
        ) {
            let (series, kept) = filled(&samples);

            let spans = series.since(Millis::ZERO, Millis::new(step));

            if spans.len() < SPANS_MAX && kept.len() <= FINE_MAX {
                prop_assert_eq!(spans.iter().map(|s| s.count).sum::<u64>(), u64::try_from(kept.len()).unwrap());
                prop_assert_eq!(
                    spans.iter().map(|s| s.sum).sum::<u128>(),
                    kept.iter().map(|(_, v)| u128::from(*v)).sum::<u128>()
                );
                prop_assert_eq!(spans.iter().map(|s| s.max).max(), kept.iter().map(|(_, v)| *v).max());
                prop_assert_eq!(spans.iter().map(|s| s.min).min(), kept.iter().map(|(_, v)| *v).min());
            }
            prop_assert!(spans.windows(2).all(|pair| pair[0].start < pair[1].start));
            for span in &spans {
                prop_assert!(span.count > 0, "a span without samples is a gap");
                prop_assert!(span.start.get() % step == 0);
                prop_assert!(span.min <= span.mean() && span.mean() <= span.max);
                let within = kept.iter().any(|(at, _)| round_down(Millis::new(*at), Millis::new(step)) == span.start);
                prop_assert!(within, "nothing was sampled in {span:?}");
            }
        }

        #[test]
        fn coarser_spans_are_the_sums_of_finer_ones(
            samples in prop::collection::vec((0..2_000_u64, 0..1_000_000_u64), 1..400),
            step in 1..5_000_u64, times in 2..10_u64,
        ) {
            let (series, _) = filled(&samples);
            let coarse = Millis::new(step * times);

            let direct = series.since(Millis::ZERO, coarse);
            let mut twice = VecDeque::new();
            for span in series.since(Millis::ZERO, Millis::new(step)) {
                add(&mut twice, SeriesSpan { start: round_down(span.start, coarse), ..span });
            }

            if series.since(Millis::ZERO, Millis::new(step)).len() < SPANS_MAX {
                prop_assert_eq!(direct, Vec::from(twice));
            }
        }

        #[test]
        fn memory_is_bounded_and_no_sample_of_the_last_hour_is_counted_twice(
            count in 600..5_000_u64, every in 50..3_000_u64,
        ) {
            let mut series = Series::default();
            for number in 0..count {
                series.push(Millis::new(1_000_000 + number * every), number);
            }

            prop_assert!(series.fine.len() <= FINE_MAX && series.coarse.len() <= COARSE_MAX);
            let spans = series.since(Millis::ZERO, COARSE);
            prop_assert!(spans.iter().map(|s| s.count).sum::<u64>() <= count);
            let newest = spans.iter().map(|s| s.max).max();
            prop_assert_eq!(newest, Some(count - 1));
        }
    }

    #[test]
    fn a_gap_stays_a_gap() {
        let (series, _) = filled(&[(0, 5), (1_000, 7), (60_000, 9)]);

        let spans = series.since(Millis::ZERO, Millis::from_secs(1));

        assert_eq!(spans.iter().map(SeriesSpan::mean).collect::<Vec<_>>(), [5, 7, 9]);
        assert_eq!(spans[2].start.minus(spans[1].start), Millis::from_secs(60));
    }
}
