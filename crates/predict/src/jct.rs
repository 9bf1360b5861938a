//! Predicts how long a task takes on a size of slice.
//!
//! Source: Dyna-P, eq. 5: boosted regression trees predict the time on a partition from counters of
//! one run (activity of the graphics engine, of DRAM and of tensor cores, memory in use, time).
//!
//! Choices of ours: the model learns the **ratio** of two sizes' times, from every pair of sizes on
//! which a task ran on the same GPU model. So a task of seconds is a sample for one of hours.
//! Earlier runs on the same size have precedence. Ratios are limited to what slices can do: a
//! smaller slice is not faster, and a larger one gains at most its size ratio and half again.
//! Without a model the study's rule for slices is used (the resources that a slice lacks, weighted
//! by the job's need).

mod history;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::drift::PredictorTrust;
use crate::learn::{LearnerKind, TrainingTable};
use crate::number::{float, hash, whole};
use crate::outcome::{PredictedQuantity, Prediction, PredictionSource};
use crate::trained::TrainedModel;

use history::{ModelHistory, SizeHistory};
pub use history::{RunCounters, TaskRun};

/// The assumed relative spread of repeated runs, if it is not known.
const REPEAT: f64 = 0.2;

/// How much more than its size a larger slice can gain: caches fit all at once.
const SUPERLINEAR: f64 = 1.5;

/// Columns of a row.
const COLUMNS: usize = 8;

/// Predicts times on slices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimePredictor {
    places: BTreeMap<String, Vec<(String, ModelHistory)>>,
    ratios: Option<TrainedModel>,
    /// Half of the interval of a repeated run, as a logarithm.
    repeat: f64,
}

impl TimePredictor {
    /// Learns from completed runs, the oldest first.
    pub fn learn(runs: &[TaskRun], seed: u64) -> Self {
        let places = history::places(runs);
        let mut table = TrainingTable::new(COLUMNS);
        for ((task, _), sizes) in &places {
            for (from, to) in sizes.pairs() {
                let target = float(to.1.median_ms()).ln() - float(from.1.median_ms()).ln();
                // A row with a time of zero has no logarithm; it is not a sample.
                let _ = table.push(hash(task.as_bytes()), &row(sizes, from, to.0), target);
            }
        }
        let ratios = TrainedModel::learn(LearnerKind::Boosted, &table, seed).ok();
        let repeat = history::repeat(&places).unwrap_or_else(|| (1.0 + REPEAT).ln());
        let mut by_task: BTreeMap<String, Vec<(String, ModelHistory)>> = BTreeMap::new();
        for ((task, model), sizes) in places {
            by_task.entry(task).or_default().push((model, sizes));
        }
        Self { places: by_task, ratios, repeat }
    }

    /// Returns the model of ratios, if there were enough pairs to learn one.
    pub const fn ratios(&self) -> Option<&TrainedModel> {
        self.ratios.as_ref()
    }

    /// Predicts how long a task takes on a number of compute slices of a GPU model; `None` for a
    /// task that never ran on that model.
    ///
    /// If predictions aren't trusted ([`PredictorTrust::Alarmed`]), a measured time is the
    /// interval's upper end, a smaller slice is slower in proportion to its size, and a larger one
    /// gains nothing.
    pub fn time(
        &self,
        task: &str,
        model: &str,
        slices: u8,
        trust: PredictorTrust,
    ) -> Option<Prediction> {
        let places = self.places.get(task)?;
        let (_, sizes) = places.iter().find(|(known, _)| known == model)?;
        if let Some(place) = sizes.by_slices.get(&slices) {
            return Some(self.measured(place, trust));
        }
        let from = sizes.nearest(slices)?;
        let base = float(from.1.median_ms());
        let limits = limits(from.0, slices);
        let (ends, source) = match (trust, &self.ratios) {
            (PredictorTrust::Alarmed, _) => {
                let worst = (float(u64::from(from.0)) / float(u64::from(slices.max(1)))).max(1.0);
                ([limits.0, worst, limits.1.max(worst)], PredictionSource::Conservative)
            }
            (PredictorTrust::Trusted, Some(trained)) => {
                let ends = trained.predict(&row(sizes, from, slices)).map(f64::exp);
                (ends.map(|end| end.clamp(limits.0, limits.1)), PredictionSource::Learned)
            }
            (PredictorTrust::Trusted, None) => {
                let ratio = rule_of_thumb(sizes.whole, from, slices).clamp(limits.0, limits.1);
                ([limits.0, ratio, limits.1], PredictionSource::Scaled)
            }
        };
        let fingerprint = self.ratios.as_ref().map_or(0, |t| t.version.fingerprint);
        let model = if source == PredictionSource::Learned { fingerprint } else { 0 };
        Some(prediction(ends.map(|ratio| ratio * base), source, model))
    }

    fn measured(&self, place: &SizeHistory, trust: PredictorTrust) -> Prediction {
        let median = float(place.median_ms());
        let (low, high) = place.range();
        let low = float(low).min(median * (-self.repeat).exp());
        let high = float(high).max(median * self.repeat.exp());
        match trust {
            PredictorTrust::Trusted => {
                prediction([low, median, high], PredictionSource::Measured, 0)
            }
            PredictorTrust::Alarmed => {
                prediction([low, high, high], PredictionSource::Conservative, 0)
            }
        }
    }
}

fn prediction(ends: [f64; 3], source: PredictionSource, model: u64) -> Prediction {
    let [low, value, high] = ends.map(|ms| whole(ms).max(1));
    Prediction { quantity: PredictedQuantity::TimeMs, value, low, high, source, model }
}

/// Returns the least and the greatest possible ratio of the time on `to` slices to that on `from`.
fn limits(from: u8, to: u8) -> (f64, f64) {
    let linear = f64::from(from.max(1)) / f64::from(to.max(1));
    match to < from {
        true => (1.0, linear * SUPERLINEAR),
        false => (linear / SUPERLINEAR, 1.0),
    }
}

/// Source: the co-execution study's slow-downs on slices, as fitted for the simulator.
fn rule_of_thumb(whole_slices: u8, from: (u8, &SizeHistory), to: u8) -> f64 {
    let (sm, bandwidth) = match from.1.counters() {
        Some(counters) => (f64::from(counters.sm), f64::from(counters.bandwidth)),
        // Without counters, half of the GPU is assumed.
        None => (500.0, 200.0),
    };
    let needs = (1.35 * sm / 1_000.0).max(0.74 * (bandwidth / 200.0).powi(2).min(1.0));
    let slowed = |slices: u8| {
        let missing = f64::from(whole_slices.max(1)) / f64::from(slices.max(1)) - 1.0;
        1.0 + missing.max(0.0) * needs
    };
    slowed(to) / slowed(from.0)
}

fn row(sizes: &ModelHistory, from: (u8, &SizeHistory), to: u8) -> [f64; COLUMNS] {
    let part = |slices: u8| (f64::from(slices.max(1)) / f64::from(sizes.whole.max(1))).ln();
    let counted = from.1.counters();
    let counter = |of: fn(&RunCounters) -> u16| counted.map_or(-1.0, |c| f64::from(of(&c)));
    [
        part(from.0),
        part(to),
        part(to) - part(from.0),
        counter(|c| c.sm),
        counter(|c| c.bandwidth),
        counter(|c| c.tensor),
        counter(|c| c.memory),
        float(from.1.median_ms()).ln(),
    ]
}

#[cfg(test)]
mod tests;
