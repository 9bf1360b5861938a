//! The least memory that a task needs.
//!
//! MIGM §2.2 names the ways to know it, in this order: declared; learned from earlier runs;
//! estimated; unknown, which starts on the smallest slice and grows.
//!
//! Each task is watched by itself ([`crate::drift`]): what one needs doesn't predict another. If a
//! task's runs leave their intervals, the estimate is half as much again as the most that it had.

use std::collections::{BTreeMap, VecDeque};
use tessera_model::number::clamped;

use serde::{Deserialize, Serialize};
use tessera_model::Bytes;

use crate::drift::{DriftWatch, PredictorTrust};
use crate::outcome::{PredictedQuantity, Prediction, PredictionSource};

/// Runs of a task that are looked back at: enough for its spread, few enough to forget a version
/// of the program that needed more.
pub const RUNS_MAX: usize = 20;

/// Tasks that are known at once; the one that ran longest ago is forgotten.
pub const TASKS_MAX: usize = 100_000;

/// By how much the interval goes beyond the peaks, in thousandths: allocators round, and inputs vary.
const MARGIN: u64 = 50;

/// The cautious estimate of a task whose runs leave their intervals, in thousandths of the most that it had. On
/// GPUs whose slices double in memory that is the next larger slice, more often than not. Ours.
const CAUTION: u64 = 1_500;

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryEvidence {
    /// It ended; this was its peak.
    Peak(Bytes),
    /// It ran out of memory on a slice with so much.
    OutOf(Bytes),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct TaskMemory {
    runs: VecDeque<MemoryEvidence>,
    /// The number of the last run over all tasks.
    last: u64,
    /// Whether what was predicted of it was accurate.
    watch: DriftWatch,
}

impl TaskMemory {
    fn is_alarmed(&self) -> bool {
        self.watch.trust() == PredictorTrust::Alarmed
    }
}

/// What a task is predicted to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEstimate {
    /// How many runs it rests on.
    pub runs: u32,
    /// A run is expected to have this much at least.
    pub low: Bytes,
    /// What to request.
    pub value: Bytes,
    /// A run is expected to have no more.
    pub high: Bytes,
    /// The largest slice that a run ran out of, if more than that is requested.
    pub ran_out_of: Option<Bytes>,
    /// Whether it is a cautious one, since what was predicted of the task stopped to are accurate.
    pub cautious: bool,
}

impl MemoryEstimate {
    /// Returns whether a run kept to it: nobody who ran out of memory did.
    pub fn covers(&self, shown: MemoryEvidence) -> bool {
        match shown {
            MemoryEvidence::Peak(peak) => self.low <= peak && peak <= self.high,
            MemoryEvidence::OutOf(_) => false,
        }
    }
}

/// What is known of tasks by their key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEstimator {
    tasks: BTreeMap<String, TaskMemory>,
    runs: u64,
    /// How many of the tasks are alarmed: there may be very many, and it is read often.
    alarmed: usize,
}

impl MemoryEstimator {
    /// Takes a run of a task.
    pub fn take(&mut self, task: &str, shown: MemoryEvidence) {
        if self.tasks.len() >= TASKS_MAX && !self.tasks.contains_key(task) {
            let oldest = self.tasks.iter().min_by_key(|(_, task)| task.last);
            if let Some(gone) =
                oldest.map(|(key, _)| key.clone()).and_then(|k| self.tasks.remove(&k))
            {
                self.alarmed -= usize::from(gone.is_alarmed());
            }
        }
        self.runs += 1;
        let entry = self.tasks.entry(task.to_owned()).or_default();
        entry.last = self.runs;
        entry.runs.push_back(shown);
        if entry.runs.len() > RUNS_MAX {
            entry.runs.pop_front();
        }
    }

    /// Takes the outcome of an estimate, before the run itself is taken: nothing is known of a task that
    /// never ran.
    pub fn observe_outcome(
        &mut self,
        task: &str,
        estimate: &MemoryEstimate,
        shown: MemoryEvidence,
    ) {
        if let Some(known) = self.tasks.get_mut(task) {
            self.alarmed -= usize::from(known.is_alarmed());
            known.watch.take(estimate.covers(shown));
            self.alarmed += usize::from(known.is_alarmed());
        }
    }

    /// Returns how many tasks are given cautious estimates.
    pub const fn alarmed(&self) -> usize {
        self.alarmed
    }

    /// Returns what a task needs. Its value is the estimate to request: the highest peak, and more than
    /// anything that it ran out of. Its interval goes from a twentieth below the lowest peak to a
    /// twentieth above the estimate. `None` for a task that never ran.
    ///
    /// The twentieth is not requested: programs that take whatever memory there is would be given a
    /// larger slice each time.
    pub fn estimate(&self, task: &str) -> Option<MemoryEstimate> {
        let known = self.tasks.get(task)?;
        let (mut high, mut low, mut ran_out_of) = (0_u64, u64::MAX, None);
        for run in &known.runs {
            match run {
                MemoryEvidence::Peak(peak) => {
                    low = low.min(peak.get());
                    if peak.get() > high {
                        (high, ran_out_of) = (peak.get(), None);
                    }
                }
                MemoryEvidence::OutOf(slice) if slice.get() >= high => {
                    (high, ran_out_of) = (slice.get().saturating_add(1), Some(*slice));
                }
                MemoryEvidence::OutOf(_) => {}
            }
        }
        let cautious = known.is_alarmed();
        let value = if cautious { part(high, CAUTION) } else { high };
        let low = low.min(high);
        Some(MemoryEstimate {
            runs: clamped(known.runs.len()),
            low: Bytes::new(low - part(low, MARGIN)),
            value: Bytes::new(value),
            high: Bytes::new(value.saturating_add(part(value, MARGIN))),
            ran_out_of,
            cautious,
        })
    }
}

impl From<MemoryEstimate> for Prediction {
    fn from(estimate: MemoryEstimate) -> Self {
        Self {
            quantity: PredictedQuantity::MemoryBytes,
            value: estimate.value.get(),
            low: estimate.low.get(),
            high: estimate.high.get(),
            source: if estimate.cautious {
                PredictionSource::Conservative
            } else {
                PredictionSource::Measured
            },
            model: 0,
        }
    }
}

fn part(of: u64, thousandths: u64) -> u64 {
    let part = u128::from(of) * u128::from(thousandths) / 1_000;
    clamped(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(number: u64) -> Bytes {
        Bytes::from_mib(number * 1_024)
    }

    #[test]
    fn an_estimate_is_the_highest_peak_and_above_what_was_not_enough() {
        let mut estimator = MemoryEstimator::default();
        assert!(estimator.estimate("train").is_none());
        estimator.take("train", MemoryEvidence::Peak(gib(3)));
        estimator.take("train", MemoryEvidence::Peak(gib(4)));
        let estimate = estimator.estimate("train").unwrap();
        assert_eq!((estimate.runs, estimate.value, estimate.cautious), (2, gib(4), false));
        assert!(estimate.low < gib(3) && estimate.low > Bytes::from_mib(2_900));
        assert!(estimate.high > gib(4) && estimate.high < gib(5));
        estimator.take("train", MemoryEvidence::OutOf(gib(10)));
        let estimate = estimator.estimate("train").unwrap();
        assert!(estimate.value > gib(10) && estimate.ran_out_of == Some(gib(10)), "{estimate:?}");
        estimator.take("train", MemoryEvidence::Peak(gib(12)));
        assert_eq!(estimator.estimate("train").unwrap().ran_out_of, None);
    }

    #[test]
    fn a_task_whose_runs_leave_their_intervals_gets_half_as_much_again_until_they_keep_to_that() {
        let mut estimator = MemoryEstimator::default();
        let mut run = |task: &str, shown: MemoryEvidence| {
            if let Some(estimate) = estimator.estimate(task) {
                estimator.observe_outcome(task, &estimate, shown);
            }
            estimator.take(task, shown);
            (estimator.estimate(task).unwrap(), estimator.alarmed())
        };
        run("steady", MemoryEvidence::Peak(gib(8)));
        // Each needs more than any before it.
        for peak in 1..=3 {
            assert!(
                !run("grows", MemoryEvidence::Peak(gib(peak))).0.cautious,
                "{peak} misses could be chance"
            );
        }

        let (estimate, alarmed) = run("grows", MemoryEvidence::OutOf(gib(5)));

        assert!(estimate.cautious && alarmed == 1);
        assert!(estimate.value > Bytes::from_mib(7_680) && estimate.value < gib(8), "{estimate:?}");
        assert!(
            !run("steady", MemoryEvidence::Peak(gib(8))).0.cautious,
            "other tasks keep their confidence"
        );
        for _ in 0..crate::drift::WINDOW {
            run("grows", MemoryEvidence::Peak(gib(5)));
        }
        let (estimate, alarmed) = run("grows", MemoryEvidence::Peak(gib(5)));
        assert_eq!((estimate.value, estimate.cautious, alarmed), (gib(5), false, 0));
    }

    #[test]
    fn an_estimate_and_its_interval_contain_what_was_seen() {
        let mut estimator = MemoryEstimator::default();
        for mib in [0, 1, 7, 4_000, 3_999, 1 << 40] {
            let peak = Bytes::from_mib(mib);
            estimator.take("any", MemoryEvidence::Peak(peak));
            let estimate = estimator.estimate("any").unwrap();
            assert!(
                estimate.covers(MemoryEvidence::Peak(peak)) && estimate.low <= estimate.value,
                "{estimate:?}"
            );
            assert!(
                estimate.value <= estimate.high && !estimate.covers(MemoryEvidence::OutOf(peak))
            );
        }
    }

    #[test]
    fn what_a_program_needed_long_ago_is_forgotten() {
        let mut estimator = MemoryEstimator::default();
        estimator.take("train", MemoryEvidence::Peak(gib(30)));
        for _ in 0..RUNS_MAX {
            estimator.take("train", MemoryEvidence::Peak(gib(2)));
        }
        assert_eq!(estimator.estimate("train").unwrap().value, gib(2));
    }

    #[test]
    fn a_forgotten_task_has_no_alarm() {
        let mut estimator = MemoryEstimator::default();
        while estimator.alarmed() == 0 {
            let estimate = estimator.estimate("grows");
            if let Some(estimate) = estimate {
                estimator.observe_outcome("grows", &estimate, MemoryEvidence::OutOf(gib(5)));
            }
            estimator.take("grows", MemoryEvidence::Peak(gib(1)));
        }

        (0..TASKS_MAX)
            .for_each(|task| estimator.take(&task.to_string(), MemoryEvidence::Peak(gib(1))));

        assert!(estimator.estimate("grows").is_none());
        assert_eq!(estimator.alarmed(), 0);
    }
}
