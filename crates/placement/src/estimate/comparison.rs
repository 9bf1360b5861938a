//! How GPU models compare, learned from tasks that ran on both.
//!
//! A task that ran on one model only is predicted on another one by the ratio that other tasks had
//! between the two kinds of slices. The ratio of a task is that of its expected times. With the median over tasks, one
//! task that is unlike the others changes little.
//!
//! Source: scaling a profile of one GPU type by those of related jobs is the idea of Sia (SOSP 2023, §3). The paper
//! fits throughput models of training jobs. Ratios of whole run times need no knowledge about the program.

use std::collections::{BTreeMap, VecDeque};

use tessera_model::Millis;
use tessera_model::number::clamped;

use super::SliceKind;
use crate::numbers::saturating_u32;

/// The fewest tasks whose ratios are used. Chosen: with five, one unusual task is neither the median nor both ends.
const TASKS_LEAST: usize = 5;
/// How many tasks count for a pair of kinds, the newest ones.
const TASKS_MOST: usize = 64;
/// With fewer tasks than this, the ends of an interval are extended by a quarter. The outermost of five ratios leave
/// out a third of the others, and those of twenty a tenth.
const TASKS_ENOUGH: usize = 20;
/// How many kinds of slices are compared. More than a cluster's GPU models have profiles.
const KINDS_MAX: usize = 256;
/// The unit of ratios.
const THOUSAND: u64 = 1_000;
/// The largest ratio that counts. A task whose times differ by more did other work.
const RATIO_MOST: u64 = 100 * THOUSAND;

/// The ratio of times on two kinds of slices, in thousandths, with the part of tasks that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeRatio {
    /// One in ten tasks has a smaller one.
    pub(super) low: u64,
    /// The median.
    pub(super) median: u64,
    /// One in ten tasks has a larger one.
    pub(super) high: u64,
    /// How many tasks it is based on.
    pub(super) tasks: u32,
}

/// The ratios of all pairs of kinds on which the same tasks ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelComparison {
    /// The number of each kind: pairs are found by numbers.
    kinds: BTreeMap<SliceKind, u16>,
    pairs: BTreeMap<(u16, u16), Ratios>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ratios {
    /// The newest ratio of each task, in thousandths, the task that changed last at the end.
    of_tasks: VecDeque<(u64, u64)>,
    known: Option<TimeRatio>,
}

impl ModelComparison {
    /// Notes a task's expected times on two kinds of slices of different models. `task` identifies it.
    pub(super) fn note(
        &mut self,
        task: u64,
        (from, there): (&SliceKind, Millis),
        (to, here): (&SliceKind, Millis),
    ) {
        let (Some(from), Some(to)) = (self.number(from), self.number(to)) else { return };
        self.pairs.entry((from, to)).or_default().note(task, ratio(there, here));
        self.pairs.entry((to, from)).or_default().note(task, ratio(here, there));
    }

    /// Returns how times on one kind compare to those on another, if enough tasks ran on both.
    pub(super) fn ratio(&self, from: &SliceKind, to: &SliceKind) -> Option<TimeRatio> {
        let pair = (*self.kinds.get(from)?, *self.kinds.get(to)?);
        self.pairs.get(&pair)?.known
    }

    /// Returns the number of a kind; `None` if there are too many.
    fn number(&mut self, kind: &SliceKind) -> Option<u16> {
        if let Some(number) = self.kinds.get(kind) {
            return Some(*number);
        }
        let number = u16::try_from(self.kinds.len()).ok();
        let number = number.filter(|_| self.kinds.len() < KINDS_MAX)?;
        self.kinds.insert(kind.clone(), number);
        Some(number)
    }
}

impl Ratios {
    fn note(&mut self, task: u64, ratio: u64) {
        self.of_tasks.retain(|(known, _)| *known != task);
        if self.of_tasks.len() >= TASKS_MOST {
            self.of_tasks.pop_front();
        }
        self.of_tasks.push_back((task, ratio));
        self.known = self.summary();
    }

    fn summary(&self) -> Option<TimeRatio> {
        let mut sorted: Vec<u64> = self.of_tasks.iter().map(|(_, ratio)| *ratio).collect();
        if sorted.len() < TASKS_LEAST {
            return None;
        }
        sorted.sort_unstable();
        let last = sorted.len() - 1;
        let at = |tenths: usize| sorted.get((last * tenths + 5) / 10).copied();
        let (low, median, high) = (at(1)?, at(5)?, at(9)?);
        let (low, high) = match sorted.len() < TASKS_ENOUGH {
            true => (low * 4 / 5, high * 5 / 4),
            false => (low, high),
        };
        Some(TimeRatio { low: low.max(1), median, high, tasks: saturating_u32(sorted.len()) })
    }
}

/// Returns the ratio of a time to another one, in thousandths.
fn ratio(before: Millis, after: Millis) -> u64 {
    let ratio = u128::from(after.get()) * u128::from(THOUSAND) / u128::from(before.get().max(1));
    clamped::<u64>(ratio).clamp(1, RATIO_MOST)
}
