//! A histogram of gaps. It predicts the least duration of a gap, given its age.
//!
//! It has 160 buckets, eight to an octave, from 1 µs to 1 s, so a bucket is at most an eighth wide.
//! It also keeps the shortest and longest gap, so that a gap that never varies is predicted exactly.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

const BUCKETS: usize = 160;
/// The lowest octave begins at 2¹⁰ ns. Shorter gaps are in the first bucket.
const FIRST_OCTAVE: u32 = 10;
/// At this many gaps all counts are halved, so that old gaps lose weight.
const HELD_MAX: u32 = 512;
/// Weight of one gap, so that a bucket can be split at any age.
const PARTS: u64 = 1_024;

/// The gaps that were observed after one pair of kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredSketch", into = "StoredSketch")]
pub struct Sketch {
    counts: [u16; BUCKETS],
    held: u32,
    shortest: Nanos,
    longest: Nanos,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], held: 0, shortest: Nanos::MAX, longest: Nanos::ZERO }
    }
}

impl Sketch {
    /// Adds one gap.
    pub fn add(&mut self, gap: Nanos) {
        self.counts[bucket(gap)] += 1;
        self.held += 1;
        self.shortest = self.shortest.min(gap);
        self.longest = self.longest.max(gap);
        if self.held >= HELD_MAX {
            self.halve();
        }
    }

    /// Adds all gaps of another.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine = mine.saturating_add(theirs);
        }
        self.held = self.counts.iter().map(|count| u32::from(*count)).sum();
        self.shortest = self.shortest.min(other.shortest);
        self.longest = self.longest.max(other.longest);
        while self.held >= HELD_MAX {
            self.halve();
        }
    }

    /// Returns the number of gaps in the histogram.
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// Returns the shortest gap in the histogram. [`Nanos::MAX`] if there is none.
    pub const fn shortest(&self) -> Nanos {
        self.shortest
    }

    /// Returns the longest gap in the histogram.
    pub const fn longest(&self) -> Nanos {
        self.longest
    }

    /// Returns the length that all but `risk_thousandths` of the gaps longer than `elapsed` reach.
    /// `None` if no gap was that long.
    ///
    /// Gaps are assumed to be evenly distributed within a bucket.
    pub fn reached(&self, elapsed: Nanos, risk_thousandths: u64) -> Option<Nanos> {
        if self.held == 0 || elapsed >= self.longest {
            return None;
        }
        let first = bucket(elapsed);
        let last = bucket(self.longest);
        let entered = self.parts_beyond(first, elapsed);
        let beyond: u64 =
            self.counts[first + 1..=last.max(first)].iter().map(|count| u64::from(*count)).sum();
        let mass = entered + beyond * PARTS;
        let mut skip = mass * risk_thousandths.min(1_000) / 1_000;
        for index in first..=last {
            let from = self.edges(index).0.max(elapsed);
            let to = self.edges(index).1;
            let parts =
                if index == first { entered } else { u64::from(self.counts[index]) * PARTS };
            if skip < parts {
                let width = to.minus(from).get();
                return Some(from.plus(Nanos::new(scaled(width, skip, parts))));
            }
            skip -= parts;
        }
        Some(self.longest)
    }

    /// Returns the weight of a bucket's gaps that are longer than `elapsed`.
    fn parts_beyond(&self, index: usize, elapsed: Nanos) -> u64 {
        let all = u64::from(self.counts[index]) * PARTS;
        let (from, to) = self.edges(index);
        if elapsed <= from {
            return all;
        }
        let width = to.minus(from).get();
        if width == 0 { 0 } else { scaled(all, to.minus(elapsed).get(), width) }
    }

    /// Returns a bucket's edges, narrowed to the shortest and longest gap.
    fn edges(&self, index: usize) -> (Nanos, Nanos) {
        let from = edge(index).max(self.shortest).min(self.longest);
        let to = edge(index + 1).min(self.longest).max(self.shortest);
        (from, to)
    }

    fn halve(&mut self) {
        for count in &mut self.counts {
            *count /= 2;
        }
        self.held = self.counts.iter().map(|count| u32::from(*count)).sum();
        let first = self.counts.iter().position(|count| *count > 0);
        let last = self.counts.iter().rposition(|count| *count > 0);
        // An end whose bucket became empty moves to the next bucket.
        if let (Some(first), Some(last)) = (first, last) {
            self.shortest = self.shortest.max(edge(first));
            self.longest = self.longest.min(edge(last + 1));
        }
    }
}

/// Returns `value · part / whole` without overflow. `part` is at most `whole`.
#[expect(clippy::cast_possible_truncation, reason = "part ≤ whole, so the result is at most value")]
fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    if cfg!(test) {
        assert!(part <= whole, "{part} of {whole}");
    }
    (u128::from(value) * u128::from(part) / u128::from(whole.max(1))) as u64
}

fn bucket(gap: Nanos) -> usize {
    let nanos = gap.get();
    let octave = nanos.max(1).ilog2();
    if octave < FIRST_OCTAVE {
        return 0;
    }
    let eighth = ((nanos >> (octave - 3)) & 7) as usize;
    ((octave - FIRST_OCTAVE) as usize * 8 + eighth).min(BUCKETS - 1)
}

/// Returns the start of a bucket. The first starts at zero, the last has no end.
#[expect(clippy::cast_possible_truncation, reason = "an index is below BUCKETS")]
fn edge(index: usize) -> Nanos {
    if index == 0 {
        return Nanos::ZERO;
    }
    if index >= BUCKETS {
        return Nanos::MAX;
    }
    let octave = FIRST_OCTAVE + (index / 8) as u32;
    let eighth = (index % 8) as u64;
    Nanos::new((8 + eighth) << (octave - 3))
}

/// The stored form of a [`Sketch`]: only the buckets that are not empty.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSketch {
    shortest_ns: Nanos,
    longest_ns: Nanos,
    counts: Vec<(u8, u16)>,
}

/// The stored histogram is impossible for any gaps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the histogram is damaged: expected buckets 0 to 159 in order, fewer than 512 gaps, and ends in the outermost buckets; measure again"
)]
pub struct BadSketch;

impl From<Sketch> for StoredSketch {
    fn from(sketch: Sketch) -> Self {
        let held = (0..=u8::MAX).zip(sketch.counts).filter(|(_, count)| *count > 0);
        Self { shortest_ns: sketch.shortest, longest_ns: sketch.longest, counts: held.collect() }
    }
}

impl TryFrom<StoredSketch> for Sketch {
    type Error = BadSketch;

    fn try_from(stored: StoredSketch) -> Result<Self, BadSketch> {
        let mut sketch = Self::default();
        for (index, count) in &stored.counts {
            let slot = sketch.counts.get_mut(usize::from(*index)).ok_or(BadSketch)?;
            *slot = *count;
            sketch.held += u32::from(*count);
        }
        let (Some((first, _)), Some((last, _))) = (stored.counts.first(), stored.counts.last())
        else {
            return Ok(Self::default());
        };
        sketch.shortest = stored.shortest_ns;
        sketch.longest = stored.longest_ns;
        let fits = |gap: Nanos, index: u8| {
            let index = usize::from(index);
            edge(index) <= gap && gap <= edge(index + 1)
        };
        let ordered = stored.counts.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let ends = fits(sketch.shortest, *first) && fits(sketch.longest, *last);
        if !ordered || !ends || sketch.held >= HELD_MAX || sketch.shortest > sketch.longest {
            return Err(BadSketch);
        }
        Ok(sketch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(gaps: impl IntoIterator<Item = u64>) -> Sketch {
        let mut sketch = Sketch::default();
        gaps.into_iter().for_each(|gap| sketch.add(Nanos::new(gap)));
        sketch
    }

    #[test]
    fn a_gap_that_never_varies_is_predicted_exactly() {
        let sketch = of([1_234_567; 300]);

        assert_eq!(sketch.reached(Nanos::ZERO, 100), Some(Nanos::new(1_234_567)));
        assert_eq!(sketch.reached(Nanos::new(900_000), 100), Some(Nanos::new(1_234_567)));
        assert_eq!(sketch.reached(Nanos::new(1_234_567), 100), None);
    }

    #[test]
    fn a_gap_longer_than_the_short_ones_is_predicted_as_a_long_one() {
        let sketch = of((0..100).map(|i| if i % 2 == 0 { 1_000_000 } else { 50_000_000 }));

        let at_first = sketch.reached(Nanos::ZERO, 100).unwrap();
        let later = sketch.reached(Nanos::from_millis(2), 100).unwrap();

        assert!(at_first <= Nanos::from_micros(1_200), "{at_first}");
        assert!(later >= Nanos::from_millis(43), "{later}");
    }

    proptest! {
        #[test]
        fn all_gaps_but_the_accepted_risk_reach_the_prediction(
            gaps in prop::collection::vec(1_000_u64..50_000_000, 20..400),
            risk in 0_u64..500,
        ) {
            let reached = of(gaps.clone()).reached(Nanos::ZERO, risk).unwrap();
            let shorter = gaps.iter().filter(|gap| Nanos::new(**gap) < reached).count();

            // One bucket is an eighth wide: that many gaps may be misplaced.
            let eighth = reached.get() - reached.get() / 8;
            let misplaced = gaps
                .iter()
                .filter(|gap| (eighth..=reached.get() + reached.get() / 8).contains(*gap))
                .count();
            prop_assert!(
                shorter * 1_000 <= gaps.len() * usize::try_from(risk).unwrap() + misplaced * 1_000
            );
        }

        #[test]
        fn a_prediction_lies_ahead_and_was_observed(
            gaps in prop::collection::vec(0_u64..1 << 32, 1..600),
            elapsed in 0_u64..1 << 32,
            risk in 0_u64..1_000,
        ) {
            let sketch = of(gaps.clone());
            if let Some(reached) = sketch.reached(Nanos::new(elapsed), risk) {
                prop_assert!(reached.get() >= elapsed);
                prop_assert!(reached <= sketch.longest());
            } else {
                prop_assert!(elapsed >= sketch.longest().get());
            }
        }

        #[test]
        fn a_stored_histogram_reads_back(gaps in prop::collection::vec(0_u64..1 << 36, 0..600)) {
            let sketch = of(gaps);
            let text = serde_json::to_string(&sketch).unwrap();
            prop_assert_eq!(serde_json::from_str::<Sketch>(&text).unwrap(), sketch);
        }

        #[test]
        fn every_gap_lies_between_its_buckets_edges(gap in 0_u64..1 << 40) {
            let index = bucket(Nanos::new(gap));
            prop_assert!(edge(index) <= Nanos::new(gap) && Nanos::new(gap) < edge(index + 1));
        }
    }
}
