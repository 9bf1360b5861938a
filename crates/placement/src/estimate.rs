//! How long a task takes on a slice, from how long it took before.
//!
//! The controller uses an [`Estimator`]. [`Empirical`] is the one that needs no training. It has
//! quantiles of what ran, by task and kind of slice, and a declared rule for slices that the task
//! was never seen on. The rule is conservative both ways: a larger slice is not quicker than the
//! largest one seen, a smaller one is slower by as much as it is smaller.
//!
//! What is left of a run depends on how long it has lasted ([`Prediction::after`]). The longer a run
//! outlives what was expected of it, the longer it is expected to go on.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use tessera_model::Millis;

use crate::numbers::{saturating_millis, saturating_u32};

/// Runs that are kept of a task on one kind of slice: enough for a tenth's quantile, few enough
/// that a task that changed is trusted after a day.
pub const RUNS_MAX: usize = 32;
/// Kinds of slices that are kept of a task: more than the models of a cluster have profiles.
const KINDS_MAX: usize = 64;
/// Tasks that are kept; the one that ran longest ago goes first.
pub const TASKS_MAX: usize = 20_000;
/// Runs from which on quantiles are used as they are.
const ENOUGH: usize = 5;

/// What of a slice decides about time: its GPU's model, its profile, and how much of the GPU's
/// compute it has.
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
    /// The kind that a whole GPU with MIG off is.
    pub fn whole(model: &str) -> Self {
        Self { model: model.to_owned(), profile: "whole GPU".to_owned(), part: 1_000 }
    }
}

/// What a prediction rests on, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Runs of the task on this very kind of slice.
    SameSlice,
    /// Runs on other slices of the model, by how slices compare for other tasks.
    Learned,
    /// Runs on other slices of the model, by the rule.
    OtherSlice,
    /// Runs on other models, by the rule.
    OtherModel,
    /// Nothing but the time that its user allows it.
    TimeLimit,
}

impl Basis {
    /// Every basis, in order.
    pub const ALL: [Self; 5] =
        [Self::SameSlice, Self::Learned, Self::OtherSlice, Self::OtherModel, Self::TimeLimit];

    /// Returns the stable word of the API and the store.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SameSlice => "same_slice",
            Self::Learned => "learned",
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
            Self::OtherSlice => "earlier runs on other slices of such GPUs",
            Self::OtherModel => "earlier runs on other GPUs",
            Self::TimeLimit => "its time limit alone",
        }
    }
}

/// How long something is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Nine in ten are expected to take longer.
    pub low: Millis,
    /// Half of them.
    pub expected: Millis,
    /// One in ten.
    pub high: Millis,
    /// What it rests on.
    pub basis: Basis,
    /// How many runs.
    pub runs: u32,
}

impl Prediction {
    /// Returns the prediction by a user's limit alone: anything up to it.
    pub const fn by_limit(limit: Millis) -> Self {
        Self { low: Millis::ZERO, expected: limit, high: limit, basis: Basis::TimeLimit, runs: 0 }
    }

    /// Returns it for somebody who may not run longer than `limit`.
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

    /// Returns what is left of a run that has lasted `ran` so far, with the same probabilities.
    ///
    /// Between its three points the probability that a run is over by some time grows evenly. Beyond the
    /// upper one nothing is known but that such a run is a long one. There it is expected to go on for
    /// as long again as it has lasted (the tail of a Pareto distribution of index one). So the space of a
    /// job that is long overdue is given to no other job. Of a time limit alone follows only
    /// when a run ends at the latest.
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

    /// Returns the probability that a run is over by then, in millionths. A time limit alone implies nothing for
    /// earlier times than itself.
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

    /// Returns by when a run is over with such a probability, in millionths. Of a time limit alone follows its
    /// latest end.
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

    /// Returns by how many thousandths of itself the expectation was off.
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

/// Learns from runs and predicts more of them. Pure: equal samples in equal order make equal
/// predictions.
pub trait Estimator: Send + Sync + std::fmt::Debug {
    /// Takes in how long a whole run took, alone on its slice.
    fn learn(&mut self, task: &str, on: &SliceKind, ran: Millis);

    /// Predicts a whole run, alone on such a slice; `None` if the task was never seen.
    fn predict(&self, task: &str, on: &SliceKind) -> Option<Prediction>;

    /// Forgets everything.
    fn clear(&mut self);
}

/// Quantiles of what ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Empirical {
    /// Hashed: keys of tasks have long common beginnings, so that each comparison of an ordered table would
    /// read most of one.
    tasks: HashMap<String, Task>,
    /// Rises with each sample, so that the oldest task is known.
    samples: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Task {
    kinds: BTreeMap<SliceKind, Runs>,
    last_sample: u64,
}

/// The newest runs on one kind of slice, with their prediction: it is read far more often than a
/// run ends.
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
        let known = self.tasks.entry(task.to_owned()).or_default();
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
        known.kinds.insert(on.clone(), runs);
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
        by_rule(of_model(true), on.part, Basis::OtherSlice).or_else(|| {
            let other = by_rule(of_model(false), on.part, Basis::OtherModel)?;
            // Nothing states how the models compare: twice as quick, twice as slow.
            Some(other.stretched((1, 2), (1, 1), (2, 1), Basis::OtherModel))
        })
    }

    fn clear(&mut self) {
        *self = Self::default();
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
        // At best as much quicker as the slice is larger.
        let best = (u64::from(seen.max(1)), own);
        return Some(runs.stretched(best, one, one, basis));
    }
    let (seen, runs) = above?;
    let slower = (u64::from(seen), own);
    Some(runs.stretched(one, slower, slower, basis))
}

/// Returns the tenth, the half and the nine tenths of some runs; of a few wider ones.
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
        0 | 1 => known.stretched((1, 2), (1, 1), (2, 1), Basis::SameSlice),
        2..ENOUGH => known.stretched((3, 4), (1, 1), (5, 4), Basis::SameSlice),
        ENOUGH.. => known,
    }
}

#[cfg(test)]
mod tests;
