//! Runs, grouped by task, GPU model and size.

use std::collections::{BTreeMap, VecDeque};
use tessera_model::number::index;

use serde::{Deserialize, Serialize};

use crate::number::{count, float, whole};

/// How many runs of one task on one size are considered.
const RUNS_MAX: usize = 20;

/// The measured use of a run, in thousandths of its slice.
///
/// Source: DCGM's profiling fields, as Dyna-P takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounters {
    /// Streaming multiprocessors (GRACT).
    pub sm: u16,
    /// Memory bandwidth (DRAMA).
    pub bandwidth: u16,
    /// Tensor cores (TENSOR).
    pub tensor: u16,
    /// Memory at its peak.
    pub memory: u16,
}

/// One run that ended by itself, alone on its slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRun {
    /// The task's key.
    pub task: String,
    /// The GPU's model.
    pub model: String,
    /// Compute slices of a whole GPU of the model.
    pub whole_slices: u8,
    /// Compute slices that it ran on.
    pub slices: u8,
    /// From launch to end.
    pub ms: u64,
    /// Its use of the slice, if it was measured.
    pub counters: Option<RunCounters>,
}

/// Runs of one task on one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SizeHistory {
    runs_ms: VecDeque<u64>,
    counters: Option<RunCounters>,
}

/// Runs of one task on one GPU model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ModelHistory {
    pub(super) whole: u8,
    pub(super) by_slices: BTreeMap<u8, SizeHistory>,
}

impl SizeHistory {
    fn sorted(&self) -> Vec<u64> {
        let mut sorted: Vec<u64> = self.runs_ms.iter().copied().collect();
        sorted.sort_unstable();
        sorted
    }

    pub(super) fn median_ms(&self) -> u64 {
        let sorted = self.sorted();
        sorted.get(sorted.len() / 2).copied().unwrap_or(1).max(1)
    }

    /// Returns the shortest and the longest run.
    pub(super) fn range(&self) -> (u64, u64) {
        let sorted = self.sorted();
        (sorted.first().copied().unwrap_or(1), sorted.last().copied().unwrap_or(1))
    }

    pub(super) const fn counters(&self) -> Option<RunCounters> {
        self.counters
    }
}

impl ModelHistory {
    /// Returns every ordered pair of sizes on which it ran.
    pub(super) fn pairs(&self) -> impl Iterator<Item = ((u8, &SizeHistory), (u8, &SizeHistory))> {
        let all = || self.by_slices.iter().map(|(slices, place)| (*slices, place));
        all().flat_map(move |from| all().map(move |to| (from, to))).filter(|(a, b)| a.0 != b.0)
    }

    /// Returns the size with runs that is nearest by its logarithm, among equals the larger.
    pub(super) fn nearest(&self, slices: u8) -> Option<(u8, &SizeHistory)> {
        let target = f64::from(slices.max(1)).ln();
        let distance = |known: u8| (f64::from(known.max(1)).ln() - target).abs();
        let all = self.by_slices.iter().rev().map(|(slices, place)| (*slices, place));
        all.min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)))
    }
}

/// Groups runs; the newest of each group are kept.
pub(super) fn places(runs: &[TaskRun]) -> BTreeMap<(String, String), ModelHistory> {
    let mut places: BTreeMap<(String, String), ModelHistory> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.slices > 0 && run.ms > 0) {
        let sizes = places.entry((run.task.clone(), run.model.clone())).or_default();
        sizes.whole = run.whole_slices;
        let place = sizes.by_slices.entry(run.slices).or_default();
        place.runs_ms.push_back(run.ms);
        if place.runs_ms.len() > RUNS_MAX {
            place.runs_ms.pop_front();
        }
        place.counters = run.counters.or(place.counters);
    }
    places
}

/// Returns what nine of ten repeated runs stay within of their median, as a logarithm; `None` with
/// fewer than ten of them.
pub(super) fn repeat(places: &BTreeMap<(String, String), ModelHistory>) -> Option<f64> {
    let repeated = places.values().flat_map(|sizes| sizes.by_slices.values());
    let mut off: Vec<f64> = repeated
        .filter(|place| place.runs_ms.len() > 1)
        .flat_map(|place| {
            let median = float(place.median_ms()).ln();
            place.runs_ms.iter().map(move |ms| (float(*ms).ln() - median).abs())
        })
        .collect();
    if off.len() < 10 {
        return None;
    }
    off.sort_by(f64::total_cmp);
    let rank = index(whole(count(off.len()) * 0.9));
    off.get(rank.min(off.len() - 1)).map(|off| off.max(0.02))
}
