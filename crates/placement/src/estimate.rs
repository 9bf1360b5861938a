//! Estimates a task's run time on a slice from its earlier runs.
//!
//! The controller uses an [`Estimator`]. [`Empirical`] is the one that needs no training. It has
//! quantiles of earlier run times, by task and kind of slice, and a fixed rule for slices without
//! runs of the task. The rule is conservative both ways: a larger slice is not faster than the
//! largest one seen, and a smaller one is slower in proportion to its size. GPU models are compared by the tasks that
//! ran on both ([`comparison`]), once there are enough of them.
//!
//! The remaining time of a run depends on how long it has lasted ([`Prediction::after`]). The
//! longer a run exceeds its expected time, the longer it is expected to continue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use tessera_model::Millis;

use crate::numbers::{saturating_millis, saturating_u32};

use self::comparison::{ModelComparison, TimeRatio};

mod comparison;

/// How many runs are kept of a task on one kind of slice. They are enough for a 10 % quantile, and
/// few enough that a changed task is predicted correctly after a day.
pub const RUNS_MAX: usize = 32;
/// How many kinds of slices are kept of a task: more than the GPU models of a cluster have
/// profiles.
const KINDS_MAX: usize = 64;
/// How many tasks are kept; the one with the oldest last run is removed first.
pub const TASKS_MAX: usize = 20_000;
/// With at least so many runs, quantiles are used without widening.
const ENOUGH: usize = 5;

/// The properties of a slice that determine run time: its GPU's model, its profile, and its part of
/// the GPU's compute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceKind {
    /// The driver's name for the board.
    pub model: String,
    /// The profile's name, or `whole GPU`.
    pub profile: String,
    /// Its part of the GPU's compute slices, in thousandths; 1,000 for a whole GPU.
    pub part: u16,
}

impl SliceKind {
    /// Returns the kind of a whole GPU with MIG off.
    pub fn whole(model: &str) -> Self {
        Self { model: model.to_owned(), profile: "whole GPU".to_owned(), part: 1_000 }
    }
}

/// What a prediction is based on, the most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Runs of the task on this kind of slice.
    SameSlice,
    /// Runs on other slices of the model, scaled as other tasks scale between these slices.
    Learned,
    /// Runs on other models, scaled by the ratio that other tasks have between these slices.
    ComparedModels,
    /// Runs on other slices of the model, scaled by the rule.
    OtherSlice,
    /// Runs on other models, scaled by the rule.
    OtherModel,
    /// Only the time limit that its user set.
    TimeLimit,
}

impl Basis {
    /// Every basis, in order.
    pub const ALL: [Self; 6] = [
        Self::SameSlice,
        Self::Learned,
        Self::ComparedModels,
        Self::OtherSlice,
        Self::OtherModel,
        Self::TimeLimit,
    ];

    /// Returns whether the time follows from runs on such slices, of the task or of tasks that compare them. All
    /// other times are cautious guesses.
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::SameSlice | Self::Learned | Self::ComparedModels)
    }

    /// Returns the stable value in the API and the store.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SameSlice => "same_slice",
            Self::Learned => "learned",
            Self::ComparedModels => "compared_models",
            Self::OtherSlice => "other_slice",
            Self::OtherModel => "other_model",
            Self::TimeLimit => "time_limit",
        }
    }

    /// Returns the same for people, after "from".
    pub const fn words(self) -> &'static str {
        match self {
            Self::SameSlice => "earlier runs on such slices",
            Self::Learned => "earlier runs on other slices, and how other tasks compare on them",
            Self::ComparedModels => {
                "earlier runs on other GPUs, and how other tasks compare on both"
            }
            Self::OtherSlice => "earlier runs on other slices of such GPUs",
            Self::OtherModel => "earlier runs on other GPUs",
            Self::TimeLimit => "its time limit alone",
        }
    }
}

/// An expected time with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The 10 % quantile: nine in ten runs are expected to take longer.
    pub low: Millis,
    /// The median.
    pub expected: Millis,
    /// The 90 % quantile: one in ten runs is expected to take longer.
    pub high: Millis,
    /// What it is based on.
    pub basis: Basis,
    /// On how many runs it is based.
    pub runs: u32,
}

impl Prediction {
    /// Returns the prediction from a user's time limit alone: any time up to it.
    pub const fn by_limit(limit: Millis) -> Self {
        Self { low: Millis::ZERO, expected: limit, high: limit, basis: Basis::TimeLimit, runs: 0 }
    }

    /// Returns the prediction for a job that may not run longer than `limit`.
    #[must_use]
    pub fn within(self, limit: Option<Millis>) -> Self {
        let Some(limit) = limit else { return self };
        Self {
            low: self.low.min(limit),
            expected: self.expected.min(limit),
            high: self.high.min(limit),
            ..self
        }
    }

    /// Returns the remaining time of a run that has lasted `ran` so far, with the same
    /// probabilities.
    ///
    /// Between the three points, the probability that a run has ended grows linearly with time.
    /// Beyond the upper point a run is expected to last as long again as it has lasted so far (the
    /// tail of a Pareto distribution of index one). So the slice of a job that has exceeded its
    /// prediction by far is not planned for other jobs. A time limit alone implies only the latest
    /// end of a run.
    #[must_use]
    pub fn after(self, ran: Millis) -> Self {
        if self.basis == Basis::TimeLimit {
            let left = self.high.minus(ran);
            return Self { low: Millis::ZERO, expected: left, high: left, ..self };
        }
        if ran == Millis::ZERO {
            return self;
        }
        if ran >= self.high {
            let left = |by, over| scaled(ran, by, over).max(Millis::new(1));
            return Self { low: left(1, 9), expected: left(1, 1), high: left(9, 1), ..self };
        }
        let over = self.over_by(ran);
        let left = |tenths: u64| {
            let open = u64::from(MILLION) - over;
            self.over_at(over + open * tenths / 10).minus(ran).max(Millis::new(1))
        };
        Self { low: left(1), expected: left(5), high: left(9), ..self }
    }

    /// Returns the probability that a run has ended by a time, in millionths. A time limit alone
    /// implies nothing for earlier times than itself.
    pub fn over_by(&self, ran: Millis) -> u64 {
        if self.basis == Basis::TimeLimit {
            return if ran >= self.high { u64::from(MILLION) } else { 0 };
        }
        if ran >= self.high {
            let longer = scaled(self.high, 100_000, ran.get().max(1)).get();
            return u64::from(MILLION).saturating_sub(longer);
        }
        let (from, to, below, part) = if ran < self.low {
            (Millis::ZERO, self.low, 0, 100_000)
        } else if ran < self.expected {
            (self.low, self.expected, 100_000, 400_000)
        } else {
            (self.expected, self.high, 500_000, 400_000)
        };
        let gone =
            u128::from(ran.minus(from).get()) * part / u128::from(to.minus(from).get().max(1));
        below + saturating_millis(gone).get()
    }

    /// Returns the time by which a run has ended with a probability, in millionths. A time limit
    /// alone implies only the latest end.
    pub fn over_at(&self, probability: u64) -> Millis {
        if self.basis == Basis::TimeLimit {
            return self.high;
        }
        let between = |from: Millis, to: Millis, gone: u64, whole: u64| {
            from.plus(scaled(to.minus(from), gone, whole))
        };
        match probability {
            0..100_000 => scaled(self.low, probability, 100_000),
            100_000..500_000 => between(self.low, self.expected, probability - 100_000, 400_000),
            500_000..900_000 => between(self.expected, self.high, probability - 500_000, 400_000),
            900_000.. => scaled(self.high, 100_000, u64::from(MILLION).saturating_sub(probability)),
        }
    }

    /// Returns whether a run lay within the interval.
    pub fn covers(&self, ran: Millis) -> bool {
        self.low <= ran && ran <= self.high
    }

    /// Returns the error of the expected time, in thousandths of it.
    pub fn error(&self, ran: Millis) -> u64 {
        let expected = self.expected.get();
        ran.get().abs_diff(expected).saturating_mul(1_000) / expected.max(1)
    }

    fn stretched(
        self,
        low: (u64, u64),
        middle: (u64, u64),
        high: (u64, u64),
        basis: Basis,
    ) -> Self {
        Self {
            low: scaled(self.low, low.0, low.1),
            expected: scaled(self.expected, middle.0, middle.1),
            high: scaled(self.high, high.0, high.1),
            basis,
            runs: self.runs,
        }
    }
}

const MILLION: u32 = 1_000_000;

fn scaled(time: Millis, by: u64, over: u64) -> Millis {
    let wide = u128::from(time.get()) * u128::from(by) / u128::from(over.max(1));
    saturating_millis(wide)
}

/// Learns from finished runs and predicts later ones. It is pure: equal samples in equal order make
/// equal predictions.
pub trait Estimator: Send + Sync + std::fmt::Debug {
    /// Adds a training sample: the time of a whole run, alone on its slice.
    fn learn(&mut self, task: &str, on: &SliceKind, ran: Millis);

    /// Predicts a whole run, alone on such a slice; `None` if the task was never seen.
    fn predict(&self, task: &str, on: &SliceKind) -> Option<Prediction>;

    /// Returns whether any run of the task is known. A round needs this for each waiting job.
    fn knows(&self, task: &str) -> bool;

    /// Forgets everything.
    fn clear(&mut self);
}

/// Predicts by the quantiles of earlier runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Empirical {
    /// A hash map, since keys of tasks have long common prefixes: each comparison in an ordered map
    /// would read most of a key.
    tasks: HashMap<String, Task>,
    /// It rises with each sample and identifies the task with the oldest last run.
    samples: u64,
    compared: ModelComparison,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Task {
    kinds: BTreeMap<SliceKind, Runs>,
    /// Identifies the task in comparisons.
    first_sample: u64,
    last_sample: u64,
}

/// The newest runs on one kind of slice, with their prediction: predictions are read far more often
/// than runs end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Runs {
    ran: VecDeque<Millis>,
    known: Prediction,
}

impl Empirical {
    fn task(&mut self, task: &str) -> &mut Task {
        self.samples += 1;
        if !self.tasks.contains_key(task) && self.tasks.len() >= TASKS_MAX {
            let oldest = self.tasks.iter().min_by_key(|(_, known)| known.last_sample);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.tasks.remove(&oldest);
            }
        }
        let last_sample = self.samples;
        let new = || Task { first_sample: last_sample, ..Task::default() };
        let known = self.tasks.entry(task.to_owned()).or_insert_with(new);
        known.last_sample = last_sample;
        known
    }
}

impl Estimator for Empirical {
    fn learn(&mut self, task: &str, on: &SliceKind, ran: Millis) {
        let known = self.task(task);
        if !known.kinds.contains_key(on) && known.kinds.len() >= KINDS_MAX {
            return;
        }
        let mut runs = known.kinds.remove(on).map(|runs| runs.ran).unwrap_or_default();
        if runs.len() >= RUNS_MAX {
            runs.pop_front();
        }
        runs.push_back(ran.max(Millis::new(1)));
        let runs = Runs { known: quantiles(&runs), ran: runs };
        let here = (on, runs.known.expected);
        known.kinds.insert(on.clone(), runs);
        let elsewhere = known.kinds.iter().filter(|(kind, _)| kind.model != on.model);
        let elsewhere: Vec<(SliceKind, Millis)> =
            elsewhere.map(|(kind, runs)| (kind.clone(), runs.known.expected)).collect();
        let id = known.first_sample;
        for (kind, expected) in &elsewhere {
            self.compared.note(id, (kind, *expected), here);
        }
    }

    fn predict(&self, task: &str, on: &SliceKind) -> Option<Prediction> {
        let known = self.tasks.get(task)?;
        if let Some(runs) = known.kinds.get(on) {
            return Some(runs.known);
        }
        let of_model = |same: bool| {
            let kinds = known.kinds.iter().filter(move |(k, _)| (k.model == on.model) == same);
            kinds.map(|(kind, runs)| (kind.part, runs.known))
        };
        let by_own_model = by_rule(of_model(true), on.part, Basis::OtherSlice);
        by_own_model.or_else(|| self.by_comparison(known, on)).or_else(|| {
            let other = by_rule(of_model(false), on.part, Basis::OtherModel)?;
            // How the models compare is unknown: the interval reaches from half the time to twice
            // the time.
            Some(other.stretched((1, 2), (1, 1), (2, 1), Basis::OtherModel))
        })
    }

    fn knows(&self, task: &str) -> bool {
        self.tasks.get(task).is_some_and(|known| !known.kinds.is_empty())
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Empirical {
    /// Predicts a task that ran on other models only, from the kind of slice whose ratio is the narrowest.
    fn by_comparison(&self, known: &Task, on: &SliceKind) -> Option<Prediction> {
        let compared = known.kinds.iter().filter_map(|(kind, runs)| {
            let ratio = self.compared.ratio(kind, on)?;
            Some((ratio, runs.known))
        });
        // Kinds are in the order of their names, and the first of equals is taken.
        let width = |ratio: &TimeRatio| ratio.high * 1_000 / ratio.low.max(1);
        let (ratio, runs) =
            compared.min_by_key(|(ratio, _)| (width(ratio), Reverse(ratio.tasks)))?;
        let by = |ratio: u64| (ratio, 1_000);
        let basis = Basis::ComparedModels;
        Some(runs.stretched(by(ratio.low), by(ratio.median), by(ratio.high), basis))
    }
}

/// Predicts from the nearest slices that were seen, below and above.
fn by_rule(
    seen: impl Iterator<Item = (u16, Prediction)>,
    part: u16,
    basis: Basis,
) -> Option<Prediction> {
    let (mut below, mut above): (Option<(u16, _)>, Option<(u16, _)>) = (None, None);
    for (seen, runs) in seen {
        if seen <= part && below.is_none_or(|(known, _)| seen > known) {
            below = Some((seen, runs));
        }
        if seen > part && above.is_none_or(|(known, _)| seen < known) {
            above = Some((seen, runs));
        }
    }
    let (own, one) = (u64::from(part.max(1)), (1, 1));
    if let Some((seen, runs)) = below {
        // The lower end assumes that the time shrinks in proportion to the slice's size.
        let best = (u64::from(seen.max(1)), own);
        return Some(runs.stretched(best, one, one, basis));
    }
    let (seen, runs) = above?;
    let slower = (u64::from(seen), own);
    Some(runs.stretched(one, slower, slower, basis))
}

/// Returns the 10 %, 50 % and 90 % quantiles of runs; with few runs the interval is wider.
fn quantiles(runs: &VecDeque<Millis>) -> Prediction {
    let mut sorted: Vec<Millis> = runs.iter().copied().collect();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    let at = |tenths: usize| sorted.get((last * tenths + 5) / 10).copied().unwrap_or(Millis::ZERO);
    let known = Prediction {
        low: at(1),
        expected: at(5),
        high: at(9),
        basis: Basis::SameSlice,
        runs: saturating_u32(sorted.len()),
    };
    match sorted.len() {
        // The next of so few runs is longer than all of them with a probability of a fifth to a half.
        0..ENOUGH => known.stretched((1, 2), (1, 1), (2, 1), Basis::SameSlice),
        ENOUGH.. => known,
    }
}

#[cfg(test)]
mod tests;
