//! The least memory that a task needs.
//!
//! MIGM §2.2 names the ways to know it, in this order: declared; learned from earlier runs;
//! estimated; unknown, which starts on the smallest slice and grows.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tessera_model::Bytes;

use crate::outcome::{Prediction, Quantity, Source};

/// Runs of a task that are looked back at: enough for its spread, few enough to forget a version
/// of the program that needed more.
pub const RUNS_MAX: usize = 20;

/// Tasks that are known at once; the one that ran longest ago is forgotten.
pub const TASKS_MAX: usize = 100_000;

/// What is added to the highest peak, in thousandths: allocators round, and inputs vary.
const ROOM: u64 = 50;

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shown {
    /// It ended; this was its peak.
    Peak(Bytes),
    /// It ran out of memory on a slice with so much.
    OutOf(Bytes),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Task {
    runs: VecDeque<Shown>,
    /// The number of the last run over all tasks.
    last: u64,
}

/// What is known of tasks by their key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floors {
    tasks: BTreeMap<String, Task>,
    runs: u64,
}

impl Floors {
    /// Takes a run of a task.
    pub fn take(&mut self, task: &str, shown: Shown) {
        if self.tasks.len() >= TASKS_MAX && !self.tasks.contains_key(task) {
            let oldest = self.tasks.iter().min_by_key(|(_, task)| task.last);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.tasks.remove(&key);
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

    /// Returns what a task needs: its value is the floor to ask for, the highest peak, and more than
    /// anything that it ran out of; its interval goes from the lowest peak to a twentieth above the
    /// floor. `None` for a task that never ran.
    ///
    /// The twentieth is not asked for: programs that take whatever memory there is would be given a
    /// larger slice each time.
    pub fn floor(&self, task: &str) -> Option<Prediction> {
        let runs = &self.tasks.get(task)?.runs;
        let (mut high, mut low) = (0_u64, u64::MAX);
        for run in runs {
            let needs = match run {
                Shown::Peak(peak) => {
                    low = low.min(peak.get());
                    peak.get()
                }
                Shown::OutOf(slice) => slice.get().saturating_add(1),
            };
            high = high.max(needs);
        }
        Some(Prediction {
            quantity: Quantity::MemoryBytes,
            value: high,
            low: low.min(high),
            high: high.saturating_add(high / 1_000 * ROOM),
            source: Source::Measured,
            model: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(number: u64) -> Bytes {
        Bytes::from_mib(number * 1_024)
    }

    #[test]
    fn a_floor_is_the_highest_peak_and_lies_above_what_was_not_enough() {
        let mut floors = Floors::default();
        assert!(floors.floor("train").is_none());
        floors.take("train", Shown::Peak(gib(3)));
        floors.take("train", Shown::Peak(gib(4)));
        let floor = floors.floor("train").unwrap();
        assert_eq!((floor.low, floor.value), (gib(3).get(), gib(4).get()));
        assert!(floor.high > gib(4).get() && floor.high < gib(5).get());
        floors.take("train", Shown::OutOf(gib(10)));
        assert!(floors.floor("train").unwrap().value > gib(10).get());
    }

    #[test]
    fn what_a_program_needed_long_ago_is_forgotten() {
        let mut floors = Floors::default();
        floors.take("train", Shown::Peak(gib(30)));
        for _ in 0..RUNS_MAX {
            floors.take("train", Shown::Peak(gib(2)));
        }
        assert_eq!(floors.floor("train").unwrap().value, gib(2).get());
    }
}
