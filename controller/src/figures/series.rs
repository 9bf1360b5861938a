//! Figures over time, in bounded memory. Pure: samples come with their times.
//!
//! A figure that could not be read is a gap, never a zero.

use std::collections::VecDeque;

use tessera_model::Millis;

/// Length of the finest points: nodes report this often by default.
const FINEST: Millis = Millis::from_secs(5);
/// Points of a GPU: an hour of the finest.
const GPU_POINTS: usize = 720;
/// Points of an attempt: its whole life, however long, in points that grow with it.
const LIFE_POINTS: usize = 240;
/// Maximum number of points in one answer.
pub const POINTS_MAX: u32 = 720;

/// The figures of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, in milliseconds since 1970 on the node's clock.
    pub at: Millis,
    /// Memory in use, in bytes.
    pub memory: Option<u64>,
    /// The busy share of the GPU, in thousandths.
    pub activity: Option<u64>,
    /// Power, in milliwatts.
    pub power_mw: Option<u64>,
    /// Energy so far, in millijoules.
    pub energy_mj: Option<u64>,
}

/// Several values of one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    count: u64,
    sum: u64,
    max: u64,
}

impl Stat {
    fn take(&mut self, other: Self) {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Returns their mean, rounded down; `None` if there are none.
    pub fn mean(&self) -> Option<u64> {
        self.sum.checked_div(self.count)
    }

    /// Returns the largest; `None` if there are none.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }
}

impl From<Option<u64>> for Stat {
    fn from(value: Option<u64>) -> Self {
        value.map_or_else(Self::default, |value| Self { count: 1, sum: value, max: value })
    }
}

/// All figures within a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// When it begins: a multiple of its length.
    pub start: Millis,
    /// Memory in use, in bytes.
    pub memory: Stat,
    /// The busy share of the GPU, in thousandths.
    pub activity: Stat,
    /// Power, in milliwatts.
    pub power_mw: Stat,
    /// Energy at its end, in millijoules.
    pub energy_mj: Option<u64>,
}

impl Point {
    fn take(&mut self, other: Self) {
        self.memory.take(other.memory);
        self.activity.take(other.activity);
        self.power_mw.take(other.power_mw);
        self.energy_mj = other.energy_mj.or(self.energy_mj);
    }
}

/// How a full series is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// Its oldest point goes.
    Forgets,
    /// Its points grow to twice their length.
    Coarsens,
}

/// The figures of a GPU or an attempt over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    step: Millis,
    points: VecDeque<Point>,
    most: usize,
    full: Full,
}

impl Series {
    /// Creates the series of a GPU: the last hour.
    pub const fn of_gpu() -> Self {
        Self { step: FINEST, points: VecDeque::new(), most: GPU_POINTS, full: Full::Forgets }
    }

    /// Creates the series of an attempt: its whole life.
    pub const fn of_attempt() -> Self {
        Self { step: FINEST, points: VecDeque::new(), most: LIFE_POINTS, full: Full::Coarsens }
    }

    /// Adds a sample. One from before the newest point (the clock went backwards) is left out.
    pub fn push(&mut self, sample: Sample) {
        let start = start_of_point(sample.at, self.step);
        if self.points.back().is_some_and(|newest| start < newest.start) {
            return;
        }
        add(
            &mut self.points,
            Point {
                start,
                memory: sample.memory.into(),
                activity: sample.activity.into(),
                power_mw: sample.power_mw.into(),
                energy_mj: sample.energy_mj,
            },
        );
        while self.points.len() > self.most {
            match self.full {
                Full::Forgets => drop(self.points.pop_front()),
                Full::Coarsens => {
                    self.step = Millis::new(self.step.get() * 2);
                    self.points = merged(self.points.iter(), self.step);
                }
            }
        }
    }

    /// Returns the newest `since` of it in at most `most` points of one length, with that
    /// length; oldest first. A time without samples has no point.
    pub fn newest(&self, since: Millis, most: u32) -> (Millis, Vec<Point>) {
        let Some(last) = self.points.back() else { return (self.step, Vec::new()) };
        // The newest point is always returned.
        let from = last.start.plus(self.step).minus(since).min(last.start);
        let chosen = || self.points.iter().filter(|point| point.start >= from);
        let span = chosen().next().map_or(0, |first| last.start.minus(first.start).get());
        let steps = span / self.step.get() + 1;
        let mut times = steps.div_ceil(u64::from(most.max(1)));
        loop {
            let step = Millis::new(self.step.get() * times);
            let points = merged(chosen(), step);
            // Points begin at multiples of their length: one more may be needed than their number.
            if points.len() <= most.max(1) as usize {
                return (step, points.into());
            }
            times += 1;
        }
    }
}

fn merged<'a>(points: impl Iterator<Item = &'a Point>, step: Millis) -> VecDeque<Point> {
    let mut merged = VecDeque::new();
    for point in points {
        add(&mut merged, Point { start: start_of_point(point.start, step), ..*point });
    }
    merged
}

/// Adds a point to the last one if both begin at the same moment, otherwise after it.
fn add(points: &mut VecDeque<Point>, point: Point) {
    match points.back_mut() {
        Some(last) if last.start == point.start => last.take(point),
        Some(_) | None => points.push_back(point),
    }
}

fn start_of_point(at: Millis, step: Millis) -> Millis {
    Millis::new(at.get() - at.get() % step.get().max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(at: u64, memory: u64) -> Sample {
        Sample { at: Millis::new(at), memory: Some(memory), ..Sample::default() }
    }

    const ALL: Millis = Millis::new(u64::MAX / 2);

    proptest! {
        #[test]
        fn a_life_of_any_length_is_whole_and_bounded(
            gaps in prop::collection::vec(1..200_000_u64, 1..1_500),
            most in 1..200_u32,
        ) {
            let mut series = Series::of_attempt();
            let mut at = 1_000_000_000;
            for (number, gap) in gaps.iter().enumerate() {
                at += gap;
                series.push(sample(at, u64::try_from(number).unwrap()));
            }

            let (step, points) = series.newest(ALL, most);

            prop_assert!(series.points.len() <= LIFE_POINTS);
            prop_assert!(points.len() <= usize::try_from(most).unwrap());
            prop_assert_eq!(
                points.iter().map(|point| point.memory.count).sum::<u64>(),
                u64::try_from(gaps.len()).unwrap()
            );
            prop_assert_eq!(
                points.iter().filter_map(|point| point.memory.max()).max(),
                Some(u64::try_from(gaps.len() - 1).unwrap())
            );
            prop_assert!(points.windows(2).all(|pair| pair[0].start < pair[1].start));
            prop_assert!(points.iter().all(|point| point.start.get() % step.get() == 0));
            prop_assert!(points.iter().all(|point| point.memory.mean() <= point.memory.max()));
        }

        #[test]
        fn a_gpu_keeps_its_newest_hour(count in 1..3_000_u64, since in 1..7_200_u64) {
            let mut series = Series::of_gpu();
            for number in 0..count {
                series.push(sample(1_000_000 + number * 5_000, number));
            }

            let (step, points) = series.newest(Millis::from_secs(since), POINTS_MAX);

            prop_assert!(series.points.len() <= GPU_POINTS);
            prop_assert_eq!(step, FINEST);
            prop_assert_eq!(points.last().and_then(|point| point.memory.max()), Some(count - 1));
            let expected = since.div_ceil(5).min(count).min(720);
            let reported = u64::try_from(points.len()).unwrap();
            prop_assert!(reported == expected || reported + 1 == expected, "{reported} of {expected}");
        }
    }

    #[test]
    fn a_gap_stays_a_gap_and_what_was_not_reported_is_absent() {
        let mut series = Series::of_gpu();
        series.push(sample(10_000, 7));
        series.push(Sample { at: Millis::new(60_000), ..Sample::default() });
        series.push(sample(20_000, 9));

        let (_, points) = series.newest(ALL, 100);

        assert_eq!(points.iter().map(|p| p.start.get()).collect::<Vec<_>>(), [10_000, 60_000]);
        assert_eq!((points[0].memory.mean(), points[1].memory.mean()), (Some(7), None));
    }
}
