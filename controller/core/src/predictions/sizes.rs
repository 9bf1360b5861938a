//! Memory that tasks need, learned from their runs.
//!
//! The observations are censored. A success on a slice shows that the need is between the observed
//! peak and the slice's memory. Peaks are sampled ten times a second, so a short one is missed. An
//! out-of-memory failure shows that the need is larger than the slice. So runs are intervals,
//! separated by GPU model, since libraries need different memory on each. While few peaks are
//! known, the request is a quantile of the upper bounds, which were enough. After that it is a
//! quantile of the peaks with headroom, if that is less.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use tessera_model::number::clamped;
use tessera_model::sizing::next_size;
use tessera_model::{AttemptId, Bytes};
use tessera_predict::drift::{DriftWatch, PredictorTrust};
use tessera_predict::memory::{MemoryEstimate, MemoryEvidence};

use crate::predictions::MemorySample;

/// How many runs of a task on one GPU model are kept: enough for its spread, and few enough to
/// forget a version of the program that needed more.
pub(crate) const RUNS_MAX: usize = 20;

/// Maximum number of tasks that are kept; the one with the oldest last run is forgotten.
const TASKS_MAX: usize = 100_000;

/// Maximum number of GPU models for which a task's runs are kept.
const MODELS_MAX: usize = 16;

/// The number of known peaks from which a request may be less than an amount that was enough. With
/// fewer, one missed peak would decide.
pub(crate) const MEASURED_MIN: usize = 5;

/// The part of the runs, in thousandths, whose need the request covers.
const QUANTILE: usize = 950;

/// The headroom that is added to peaks, in thousandths: samples miss short peaks, and inputs vary.
/// Kubernetes' vertical autoscaler adds 15 %, and its samples miss nothing.
const HEADROOM: u64 = 200;

/// By how much an interval extends beyond the known values, in thousandths.
const MARGIN: u64 = 50;

/// The cautious estimate of a task whose runs leave their intervals, in thousandths. On GPUs whose
/// slices double in memory, that is usually the next larger slice.
const CAUTION: u64 = 1_500;

/// The observation from one run: the need is in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Observation {
    attempt: AttemptId,
    /// The lower end: the peak, or the first size above the memory that ran out; zero if nothing
    /// was measured.
    low: Bytes,
    /// The upper end: the memory that was enough, or the first size that may be.
    high: Bytes,
    /// The memory that ran out, if it did.
    ran_out_of: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TaskSizes {
    /// The runs by GPU model, the oldest first.
    models: BTreeMap<String, VecDeque<Observation>>,
    /// The number of the last run over all tasks.
    last: u64,
    /// Whether its predictions were accurate.
    watch: DriftWatch,
    /// The size learned from its runs. It is cached, since rounds read it for each waiting job and
    /// runs end rarely.
    size: Option<LearnedSize>,
}

/// What a learned size is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedBasis {
    /// An amount that was enough; too few peaks are known to request less.
    Enough {
        /// How many runs measured a peak.
        measured: usize,
    },
    /// Peaks of runs, with headroom.
    Peaks {
        /// The peak that all but the highest twentieth of the runs stayed within.
        peak: Bytes,
    },
    /// A run ran out of this amount.
    RanOutOf(Bytes),
}

/// The size of a task, learned from its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedSize {
    /// The request with its interval.
    pub estimate: MemoryEstimate,
    /// What it is based on.
    pub basis: LearnedBasis,
    /// The proven need of a run: a slice with less is never enough.
    pub at_least: Bytes,
}

/// The known tasks by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LearnedSizes {
    /// A hash map, since keys of tasks have long common prefixes.
    tasks: HashMap<String, TaskSizes>,
    runs: u64,
    /// How many tasks are low-confidence. It is a counter, since there may be very many tasks and
    /// it is read often.
    alarmed: usize,
}

impl Observation {
    fn of(sample: &MemorySample) -> Self {
        let (low, high, ran_out_of) = match sample.evidence {
            MemoryEvidence::Peak(peak) => (peak, sample.slice.max(peak), None),
            MemoryEvidence::OutOf(slice) => (next_size(slice), next_size(slice), Some(slice)),
        };
        Self { attempt: sample.attempt, low, high, ran_out_of }
    }

    const fn is_measured(&self) -> bool {
        self.ran_out_of.is_some() || self.low.get() > 0
    }
}

impl TaskSizes {
    fn is_alarmed(&self) -> bool {
        self.watch.trust() == PredictorTrust::Alarmed
    }

    fn all(&self) -> impl Iterator<Item = &Observation> {
        self.models.values().flatten()
    }

    /// Adds the observation from a run; a later report of the same attempt replaces the earlier
    /// one.
    fn keep(&mut self, observation: Observation, gpu_model: &str) {
        if self.models.len() >= MODELS_MAX && !self.models.contains_key(gpu_model) {
            self.models.pop_first();
        }
        let runs = self.models.entry(gpu_model.to_owned()).or_default();
        if let Some(known) = runs.iter_mut().find(|known| known.attempt == observation.attempt) {
            *known = observation;
            return;
        }
        runs.push_back(observation);
        if runs.len() > RUNS_MAX {
            runs.pop_front();
        }
    }

    /// Returns the size learned from the runs.
    fn learn(&self) -> Option<LearnedSize> {
        let of_models = self.models.values().filter_map(bound);
        let (value, basis) = of_models.min_by_key(|(value, _)| *value)?;
        let at_least = self.models.values().filter_map(needed).max().unwrap_or(Bytes::ZERO);
        let worst = self.all().filter_map(|run| run.ran_out_of).max();
        let (value, basis) = match worst {
            Some(slice) if at_least >= value && next_size(slice) >= at_least => {
                (at_least.max(next_size(slice)), LearnedBasis::RanOutOf(slice))
            }
            _ if at_least > value => (at_least, LearnedBasis::Peaks { peak: at_least }),
            _ => (value, basis),
        };
        let cautious = self.is_alarmed();
        let value = if cautious { part(value, CAUTION) } else { value };
        let low = self.all().filter(|run| run.is_measured()).map(|run| run.low).min();
        let low = low.unwrap_or(Bytes::ZERO).min(value);
        let ran_out_of = match basis {
            LearnedBasis::RanOutOf(slice) => Some(slice),
            LearnedBasis::Enough { .. } | LearnedBasis::Peaks { .. } => None,
        };
        let estimate = MemoryEstimate {
            runs: clamped(self.all().count()),
            low: Bytes::new(low.get() - part(low, MARGIN).get()),
            value,
            high: Bytes::new(value.get().saturating_add(part(value, MARGIN).get())),
            ran_out_of,
            cautious,
        };
        Some(LearnedSize { estimate, basis, at_least })
    }
}

impl LearnedSizes {
    /// Records the observation from a run; a later report of the same attempt replaces the earlier
    /// one.
    pub(crate) fn take(&mut self, sample: &MemorySample) {
        if self.tasks.len() >= TASKS_MAX && !self.tasks.contains_key(&sample.task) {
            let oldest = self.tasks.iter().min_by_key(|(_, task)| task.last);
            let gone = oldest.map(|(key, _)| key.clone()).and_then(|key| self.tasks.remove(&key));
            self.alarmed -= usize::from(gone.is_some_and(|gone| gone.is_alarmed()));
        }
        self.runs += 1;
        let task = self.tasks.entry(sample.task.clone()).or_default();
        task.last = self.runs;
        task.keep(Observation::of(sample), &sample.gpu_model);
        task.size = task.learn();
    }

    /// Records the outcome of an estimate. This comes before the run itself is recorded, since
    /// nothing is known about a task that never ran.
    pub(crate) fn observe_outcome(
        &mut self,
        task: &str,
        estimate: &MemoryEstimate,
        shown: MemoryEvidence,
    ) {
        if let Some(known) = self.tasks.get_mut(task) {
            self.alarmed -= usize::from(known.is_alarmed());
            known.watch.take(estimate.covers(shown));
            known.size = known.learn();
            self.alarmed += usize::from(known.is_alarmed());
        }
    }

    /// Returns how many tasks are given cautious estimates.
    pub(crate) const fn alarmed(&self) -> usize {
        self.alarmed
    }

    /// Returns the size learned from a task's runs; `None` for a task that never ran.
    ///
    /// One request holds for every GPU model: the least size that was learned for one of them, but
    /// at least the proven need on any of them.
    pub(crate) fn size_of(&self, task: &str) -> Option<LearnedSize> {
        self.tasks.get(task)?.size
    }
}

/// Returns the request that follows from the runs on one GPU model, and its basis.
fn bound(runs: &VecDeque<Observation>) -> Option<(Bytes, LearnedBasis)> {
    let enough = quantile(runs.iter().map(|run| run.high))?;
    let measured = runs.iter().filter(|run| run.is_measured()).count();
    if measured < MEASURED_MIN {
        return Some((enough, LearnedBasis::Enough { measured }));
    }
    let peak = quantile(runs.iter().filter(|run| run.is_measured()).map(|run| run.low))?;
    let narrow = Bytes::new(peak.get().saturating_add(part(peak, HEADROOM).get()));
    Some(match narrow < enough {
        true => (narrow, LearnedBasis::Peaks { peak }),
        false => (enough, LearnedBasis::Enough { measured }),
    })
}

/// Returns the proven need of most runs on one GPU model.
fn needed(runs: &VecDeque<Observation>) -> Option<Bytes> {
    quantile(runs.iter().map(|run| run.low))
}

/// Returns the smallest amount that all but the highest twentieth stay within.
fn quantile(amounts: impl Iterator<Item = Bytes>) -> Option<Bytes> {
    let mut amounts: Vec<Bytes> = amounts.collect();
    amounts.sort_unstable();
    let rank = (amounts.len() * QUANTILE).div_ceil(1_000);
    amounts.get(rank.checked_sub(1)?).copied()
}

fn part(of: Bytes, thousandths: u64) -> Bytes {
    Bytes::new(clamped(u128::from(of.get()) * u128::from(thousandths) / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: Bytes = Bytes::from_mib(4_864);
    const MEDIUM: Bytes = Bytes::from_mib(9_856);

    fn gib(hundredths: u64) -> Bytes {
        Bytes::from_mib(hundredths * 1_024 / 100)
    }

    fn sample(run: u64, slice: Bytes, evidence: MemoryEvidence) -> MemorySample {
        MemorySample {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(run.into())),
            task: "train".to_owned(),
            gpu_model: "a100".to_owned(),
            slice,
            evidence,
            prediction: None,
        }
    }

    fn learned(runs: &[(Bytes, MemoryEvidence)]) -> LearnedSize {
        let mut sizes = LearnedSizes::default();
        for (run, (slice, evidence)) in (1..).zip(runs) {
            sizes.take(&sample(run, *slice, *evidence));
        }
        sizes.size_of("train").unwrap()
    }

    /// Observed in practice: samples recorded 0 B and 4.29 GiB of 8.3 GiB.
    #[test]
    fn a_task_whose_peaks_were_missed_is_not_given_less_than_what_was_enough() {
        let missed =
            [(MEDIUM, MemoryEvidence::Peak(Bytes::ZERO)), (MEDIUM, MemoryEvidence::Peak(gib(429)))];

        let size = learned(&missed);

        assert_eq!(size.estimate.value, MEDIUM);
        assert_eq!(size.basis, LearnedBasis::Enough { measured: 1 });
        assert_eq!(size.at_least, gib(429));
    }

    #[test]
    fn many_peaks_lower_the_request_to_them_with_headroom() {
        let runs = [(MEDIUM, MemoryEvidence::Peak(gib(300))); MEASURED_MIN];

        let size = learned(&runs);

        assert_eq!(size.basis, LearnedBasis::Peaks { peak: gib(300) });
        assert_eq!(size.estimate.value, Bytes::new(gib(300).get() + gib(300).get() / 5));
        let few = learned(&runs[1..]);
        assert_eq!(few.estimate.value, MEDIUM, "one peak less");
    }

    #[test]
    fn headroom_never_exceeds_an_amount_that_was_enough() {
        let runs = [(MEDIUM, MemoryEvidence::Peak(gib(900))); 8];

        assert_eq!(learned(&runs).estimate.value, MEDIUM);
    }

    #[test]
    fn a_run_that_ran_out_raises_the_request_above_its_slice() {
        let size = learned(&[(SMALL, MemoryEvidence::OutOf(SMALL))]);

        assert_eq!(size.estimate.value, next_size(SMALL));
        assert_eq!(size.basis, LearnedBasis::RanOutOf(SMALL));
        let after = learned(&[
            (SMALL, MemoryEvidence::OutOf(SMALL)),
            (MEDIUM, MemoryEvidence::Peak(Bytes::ZERO)),
        ]);
        assert_eq!(after.estimate.value, MEDIUM, "that amount was enough, whatever was measured");
    }

    #[test]
    fn a_later_report_of_an_attempt_replaces_the_earlier_one() {
        let mut sizes = LearnedSizes::default();
        sizes.take(&sample(1, MEDIUM, MemoryEvidence::Peak(Bytes::ZERO)));
        sizes.take(&sample(1, MEDIUM, MemoryEvidence::Peak(gib(500))));

        let size = sizes.size_of("train").unwrap();

        assert_eq!((size.estimate.runs, size.at_least), (1, gib(500)));
    }

    #[test]
    fn gpu_models_are_separate_and_no_proven_need_is_forgotten() {
        let mut sizes = LearnedSizes::default();
        let large = MemorySample {
            gpu_model: "h200".to_owned(),
            ..sample(1, gib(1_700), MemoryEvidence::Peak(gib(600)))
        };
        sizes.take(&large);
        sizes.take(&sample(2, MEDIUM, MemoryEvidence::Peak(gib(500))));

        assert_eq!(sizes.size_of("train").unwrap().estimate.value, MEDIUM);
        sizes.take(&MemorySample { evidence: MemoryEvidence::Peak(gib(1_200)), ..large });
        assert_eq!(sizes.size_of("train").unwrap().estimate.value, gib(1_200));
    }

    #[test]
    fn old_needs_of_a_program_are_forgotten() {
        let mut runs = vec![(gib(3_000), MemoryEvidence::Peak(gib(2_900)))];
        runs.extend([(MEDIUM, MemoryEvidence::Peak(gib(200))); RUNS_MAX]);

        assert_eq!(learned(&runs).estimate.value, Bytes::new(gib(200).get() + gib(200).get() / 5));
    }

    #[test]
    fn a_task_whose_runs_leave_their_intervals_gets_half_as_much_again() {
        let mut sizes = LearnedSizes::default();
        let mut run = 0;
        while sizes.alarmed() == 0 {
            run += 1;
            assert!(run < 40, "it never becomes low-confidence");
            if let Some(size) = sizes.size_of("train") {
                sizes.observe_outcome("train", &size.estimate, MemoryEvidence::OutOf(SMALL));
            }
            sizes.take(&sample(run, SMALL, MemoryEvidence::Peak(gib(100))));
        }

        let size = sizes.size_of("train").unwrap();

        assert!(size.estimate.cautious);
        (0..TASKS_MAX).for_each(|task| {
            sizes.take(&MemorySample {
                task: task.to_string(),
                ..sample(1, SMALL, MemoryEvidence::Peak(SMALL))
            });
        });
        assert_eq!(
            (sizes.alarmed(), sizes.size_of("train")),
            (0, None),
            "a forgotten task is not low-confidence"
        );
    }

    proptest! {
        #[test]
        fn a_request_is_at_least_the_proven_need_and_at_most_an_amount_that_was_enough(
            runs in prop::collection::vec((0_u64..40, 1_u64..40), 1..19),
        ) {
            let runs: Vec<_> = runs
                .into_iter()
                .map(|(peak, more)| {
                    (Bytes::from_mib((peak + more) * 512), MemoryEvidence::Peak(Bytes::from_mib(peak * 512)))
                })
                .collect();

            let size = learned(&runs);

            let peak = runs.iter().map(|(slice, _)| slice).max().unwrap();
            prop_assert!(size.estimate.value <= *peak, "{size:?}");
            prop_assert!(size.estimate.value >= size.at_least, "{size:?}");
            prop_assert!(size.estimate.low <= size.estimate.value && size.estimate.value <= size.estimate.high);
        }
    }
}
