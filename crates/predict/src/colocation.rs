//! Predicts speeds of co-located jobs from a controller's knowledge about jobs.
//!
//! MMK (§III-A) profiles each job's use of multiprocessors, bandwidth and L2 before it runs. A
//! controller knows how busy some tasks' kernels keep a slice, and nothing about the others.
//! Unknown values have their own column on which a tree may split, so they never look like
//! known numbers. Co-runners change while a job runs, so the training samples have their average
//! over the run. The columns are ours.

use serde::{Deserialize, Serialize};

use crate::learn::{LearnerKind, TrainingTable};
use crate::number::{float, hash};
use crate::outcome::Prediction;
use crate::trained::{TooFewRows, TrainedModel};

/// A forest with a larger relative error than this is not used. A co-runner rarely slows a job by
/// more than half, so the middle of that range would be nearly as good. The value is ours.
const USEFUL: f64 = 0.25;

/// A job under MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SharingClient {
    /// Whether it is an online job.
    pub online: bool,
    /// Its percentage of the slice's multiprocessors.
    pub sm_percent: u8,
    /// The part of its time alone in which one of its kernels runs, in thousandths; `None` if that
    /// was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u16>,
}

/// The co-runners on a slice, averaged over the time of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CoRunners {
    /// Their number, in thousandths.
    pub count: u64,
    /// The sum of their percentages, in thousandths of a percent.
    pub sm: u64,
    /// The sum of the known busy parts, in millionths.
    pub busy: u64,
    /// The number of co-runners with an unknown busy part, in thousandths.
    pub unknown: u64,
}

impl CoRunners {
    /// Adds a co-runner that was present for a part of the time, in thousandths.
    pub fn add(&mut self, other: &SharingClient, part: u64) {
        self.count += part;
        self.sm += u64::from(other.sm_percent) * part;
        match other.busy {
            Some(busy) => self.busy += u64::from(busy) * part,
            None => self.unknown += part,
        }
    }
}

/// One job with its co-runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Colocation {
    /// The slice's part of the GPU's compute, in thousandths.
    pub slice: u16,
    /// The job.
    pub own: SharingClient,
    /// Its co-runners.
    pub others: CoRunners,
}

const COLUMNS: usize = 11;

impl Colocation {
    fn row(&self) -> [f64; COLUMNS] {
        let thousandths = |value: u64| float(value) / 1_000.0;
        let own = u64::from(self.own.busy.unwrap_or(0));
        let sm = u64::from(self.own.sm_percent) * 1_000 + self.others.sm;
        [
            f64::from(u8::from(self.own.online)),
            f64::from(self.slice),
            f64::from(self.own.sm_percent),
            float(own),
            f64::from(u8::from(self.own.busy.is_none())),
            thousandths(self.others.count),
            thousandths(self.others.sm),
            thousandths(self.others.busy),
            thousandths(self.others.unknown),
            thousandths(sm),
            thousandths(own * 1_000 + self.others.busy),
        ]
    }
}

/// A run with co-runners, and its speed relative to that of its task alone on such a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColocatedRun {
    /// The task; rows of one task are held out together.
    pub task: u64,
    /// Its co-runners.
    #[serde(rename = "company")]
    pub colocation: Colocation,
    /// Its speed, in thousandths of that alone.
    pub speed_per_mille: u32,
}

/// Predicts speeds with co-runners.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColocationPredictor {
    /// The model with its version and error.
    pub trained: TrainedModel,
}

impl ColocatedRun {
    /// Adds a run of a task.
    pub fn of(task: &str, colocation: Colocation, speed_per_mille: u32) -> Self {
        Self { task: hash(task.as_bytes()), colocation, speed_per_mille }
    }
}

impl ColocationPredictor {
    /// Learns from runs, with a random forest (MMK, §III-A).
    ///
    /// # Errors
    ///
    /// [`TooFewRows`] if there are too few runs.
    pub fn learn(rows: &[ColocatedRun], seed: u64) -> Result<Self, TooFewRows> {
        let few = TooFewRows { rows: rows.len() };
        let mut table = TrainingTable::new(COLUMNS);
        for row in rows {
            let speed = f64::from(row.speed_per_mille) / 1_000.0;
            table.push(row.task, &row.colocation.row(), speed).map_err(|_| few)?;
        }
        Ok(Self { trained: TrainedModel::learn(LearnerKind::Forest, &table, seed)? })
    }

    /// Returns whether its error on unseen tasks is small enough for use.
    pub fn is_useful(&self) -> bool {
        self.trained.held_out.relative <= USEFUL
    }

    /// Predicts a job's speed, in thousandths of its speed alone on the slice.
    pub fn predict(&self, colocation: &Colocation) -> Prediction {
        self.trained.predict_speed(&colocation.row())
    }

    /// Predicts the speed of each of several jobs on a slice of such a part of a GPU, relative to
    /// its speed alone on all of that slice. Speeds are limited to that, since more would be noise.
    pub fn next_to_each_other(&self, slice: u16, clients: &[SharingClient]) -> Vec<Prediction> {
        let one = |(at, own): (usize, &SharingClient)| {
            let mut others = CoRunners::default();
            let rest = clients.iter().enumerate().filter(|(other, _)| *other != at);
            rest.for_each(|(_, other)| others.add(other, 1_000));
            let found = self.predict(&Colocation { slice, own: *own, others });
            let [low, value, high] = [found.low, found.value, found.high].map(|at| at.min(1_000));
            Prediction { low, value, high, ..found }
        };
        clients.iter().enumerate().map(one).collect()
    }

    /// Predicts the speed of each of several jobs on a slice of such a part of a GPU, in
    /// thousandths of its speed there with its percentage and without co-runners.
    pub fn together(&self, slice: u16, clients: &[SharingClient]) -> Vec<u64> {
        let speed = |own: &SharingClient, others: CoRunners| {
            self.predict(&Colocation { slice, own: *own, others }).value.max(1)
        };
        let others = |at: usize| {
            let mut others = CoRunners::default();
            let rest = clients.iter().enumerate().filter(|(other, _)| *other != at);
            rest.for_each(|(_, other)| others.add(other, 1_000));
            others
        };
        let relative = |(at, own): (usize, &SharingClient)| {
            let alone = speed(own, CoRunners::default());
            // No job is faster with co-runners: that would be noise.
            (speed(own, others(at)) * 1_000 / alone).clamp(1, 1_000)
        };
        clients.iter().enumerate().map(relative).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SeededRng;

    fn client(sm_percent: u8, busy: Option<u16>) -> SharingClient {
        SharingClient { online: false, sm_percent, busy }
    }

    /// Runs of tasks that are slowed in proportion to their co-runners' known busy parts.
    fn runs(tasks: u64, known: impl Fn(u64) -> bool) -> Vec<ColocatedRun> {
        let mut rng = SeededRng::new(3);
        let mut draw = |below: usize| u16::try_from(rng.index_below(below)).unwrap();
        let mut rows = Vec::new();
        for task in 0..tasks {
            for _ in 0..4 {
                let (own, met) = (draw(1_000), draw(1_000));
                let mut others = CoRunners::default();
                let with = u64::from(draw(2)) * 1_000;
                others.add(&client(50, known(task).then_some(met)), with);
                let lost = u32::from(own) * u32::from(met) / 2_000 * u32::from(with > 0);
                let colocation = Colocation { slice: 1_000, own: client(50, Some(own)), others };
                rows.push(ColocatedRun { task, colocation, speed_per_mille: 1_000 - lost });
            }
        }
        rows
    }

    #[test]
    fn busier_co_runners_slow_more_and_none_do_not() {
        let forest = ColocationPredictor::learn(&runs(300, |_| true), 1).unwrap();
        assert!(forest.is_useful(), "{:?}", forest.trained.held_out);
        let (busy, idle) = (client(50, Some(950)), client(50, Some(30)));

        let loud = forest.together(1_000, &[busy, busy]);
        let quiet = forest.together(1_000, &[busy, idle]);

        assert!(loud[0] + 200 < quiet[0], "{loud:?} {quiet:?}");
        assert_eq!(forest.together(1_000, &[busy]), [1_000]);
        assert_eq!(forest.together(1_000, &[]), Vec::<u64>::new());
    }

    #[test]
    fn an_unknown_job_is_not_taken_for_idle() {
        let forest = ColocationPredictor::learn(&runs(400, |task| task % 2 == 0), 1).unwrap();
        let busy = client(50, Some(900));

        let next_to_idle = forest.together(1_000, &[busy, client(50, Some(10))])[0];
        let next_to_unknown = forest.together(1_000, &[busy, client(50, None)])[0];

        assert!(next_to_unknown + 80 < next_to_idle, "{next_to_unknown}, {next_to_idle}");
    }

    #[test]
    fn a_handful_of_runs_is_too_few_for_training() {
        assert!(ColocationPredictor::learn(&runs(4, |_| true), 1).is_err());
    }

    #[test]
    fn co_runners_count_by_their_time() {
        let mut others = CoRunners::default();
        others.add(&client(40, Some(500)), 250);
        others.add(&client(20, None), 1_000);

        let expected = CoRunners { count: 1_250, sm: 30_000, busy: 125_000, unknown: 1_000 };
        assert_eq!(others, expected);
    }
}
