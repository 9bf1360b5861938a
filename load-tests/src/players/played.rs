//! What ran when, by the device's trace.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tessera_frames::kernel::RECALL_KERNEL_NAME;

/// One kernel in the device's trace, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// When it was launched.
    pub queued: u64,
    /// When it ran, in parts if other kernels interrupted it.
    pub spans: Vec<(u64, u64)>,
}

/// What ran when, in one run of the high program.
#[derive(Clone, Debug)]
pub struct Played {
    /// When the first task that counts began and the last ended, in nanoseconds.
    pub window: (u64, u64),
    /// Times of the tasks that count, in nanoseconds.
    pub tasks: Vec<u64>,
    /// By how much the machine woke the high program late from its pauses in these tasks, in nanoseconds. It is a
    /// part of its time on the host, whatever the device does.
    pub overslept: u64,
    /// Its kernels.
    pub high: Vec<Ran>,
    /// The low program's that ran within the window; what lies outside is cut off.
    pub low: Vec<Ran>,
}

impl Played {
    /// Returns the time that so many of a hundred tasks don't exceed, in nanoseconds.
    pub fn task_at(&self, percent: usize) -> u64 {
        let mut tasks = self.tasks.clone();
        tasks.sort_unstable();
        let rank = (tasks.len() * percent).div_ceil(100).max(1);
        tasks.get(rank - 1).copied().unwrap_or(0)
    }

    /// Returns how long all tasks took, as a multiple of another run's.
    pub fn ratio_to(&self, alone: &Self) -> f64 {
        seconds(self.window.1 - self.window.0) / seconds(alone.window.1 - alone.window.0)
    }

    /// Returns the low program's time on the device as a part of what is idle in the same time
    /// when the high one is alone.
    pub fn low_of_gaps(&self, alone: &Self) -> f64 {
        let busy = seconds(total(&alone.high)) / seconds(alone.window.1 - alone.window.0);
        let idle = (1.0 - busy) * seconds(self.window.1 - self.window.0);
        if idle > 0.0 { seconds(total(&self.low)) / idle } else { 0.0 }
    }

    /// Returns the low program's time on the device in the high one's gaps as a part of an
    /// omniscient filler's: what the high one had to wait for is none.
    pub fn fills(&self, omniscient: u64) -> f64 {
        let used = total(&self.low).saturating_sub(self.waited().for_kernels);
        if omniscient > 0 { seconds(used) / seconds(omniscient) } else { 0.0 }
    }
}

/// What the high program's kernels waited for on the device, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// While a kernel of the low program ran.
    pub for_kernels: u64,
    /// While nothing ran: the device switched contexts.
    pub for_switches: u64,
}

impl Played {
    /// Returns what the high program's kernels waited for, from when each was launched and the one
    /// before it had ended, to its own end.
    pub fn waited(&self) -> Waited {
        let mut waited = Waited::default();
        let low = LowSpans::of(&self.low);
        for (ready, ran) in self.ready().zip(&self.high) {
            let mut ready = ready;
            for (from, until) in &ran.spans {
                let blocked = low.between(ready, *from);
                waited.for_kernels += blocked;
                waited.for_switches += from.saturating_sub(ready).saturating_sub(blocked);
                ready = *until;
            }
        }
        waited
    }

    /// Returns when each of the high program's kernels had or waited for the device.
    pub fn claimed(&self) -> Vec<(u64, u64)> {
        let ends = self.high.iter().filter_map(|ran| ran.spans.last()).map(|(_, until)| *until);
        self.ready().zip(ends).collect()
    }

    /// Returns when each of the high program's kernels was launched and the one before it had ended.
    fn ready(&self) -> impl Iterator<Item = u64> {
        let ends = self.high.iter().filter_map(|ran| ran.spans.last()).map(|(_, until)| *until);
        std::iter::once(0).chain(ends).zip(&self.high).map(|(free, ran)| free.max(ran.queued))
    }
}

/// When the low program's kernels ran, in the order of their begins. Runs have ten thousands of them.
struct LowSpans {
    spans: Vec<(u64, u64)>,
    /// The latest end of a span and all before it, which may overlap.
    latest_ends: Vec<u64>,
}

impl LowSpans {
    fn of(low: &[Ran]) -> Self {
        let mut spans: Vec<_> = low.iter().flat_map(|ran| ran.spans.iter().copied()).collect();
        spans.sort_unstable();
        let latest = |latest: &mut u64, (_, until): &(u64, u64)| {
            *latest = (*latest).max(*until);
            Some(*latest)
        };
        let latest_ends = spans.iter().scan(0, latest).collect();
        Self { spans, latest_ends }
    }

    /// Returns for how long the kernels ran between two times.
    fn between(&self, begin: u64, end: u64) -> u64 {
        let first = self.latest_ends.partition_point(|latest| *latest <= begin);
        let spans = self.spans[first..].iter().take_while(|(from, _)| *from < end);
        spans.map(|(from, until)| (*until).min(end).saturating_sub((*from).max(begin))).sum()
    }
}

/// Returns for how long kernels ran, in nanoseconds.
pub fn total(ran: &[Ran]) -> u64 {
    ran.iter().flat_map(|ran| &ran.spans).map(|(from, until)| until - from).sum()
}

/// Returns `CLOCK_MONOTONIC`, by which traces and shims measure time, in nanoseconds.
pub fn now() -> u64 {
    tessera_agent::sys::clock::monotonic_now().get()
}

/// Returns nanoseconds as seconds.
pub fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// Returns the kernels of all programs whose traces are in a folder, whenever they ran.
///
/// # Errors
///
/// The folder or a file in it can't be read.
pub fn traced_kernels(folder: &Path) -> Result<Vec<Ran>> {
    let files = fs::read_dir(folder).with_context(|| format!("no traces {}", folder.display()))?;
    let mut all = Vec::new();
    for file in files {
        all.extend(ran(&file?.path(), (0, u64::MAX))?);
    }
    Ok(all)
}

/// Reads from a trace which kernels ran within a window.
pub(super) fn ran(trace: &Path, (begin, end): (u64, u64)) -> Result<Vec<Ran>> {
    let text =
        fs::read_to_string(trace).with_context(|| format!("no trace {}", trace.display()))?;
    let mut all = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("{\"op\":\"kernel\"")) {
        // A killed player's last line may be a part of one.
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        // The shim's own kernel is no work of the program.
        if line["name"]
            .as_str()
            .is_some_and(|name| name.as_bytes() == RECALL_KERNEL_NAME.to_bytes())
        {
            continue;
        }
        let spans = line["spans"].as_array().into_iter().flatten();
        let spans = spans.map(|span| {
            let at = |index: usize| span[index].as_u64().unwrap_or(0).clamp(begin, end);
            (at(0), at(1))
        });
        let spans: Vec<_> = spans.filter(|(from, until)| from < until).collect();
        if !spans.is_empty() {
            all.push(Ran { queued: line["queued"].as_u64().unwrap_or(0), spans });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_of_a_hundred_may_be_longer_than_the_99th_percentile() {
        let played = |tasks: u64| Played {
            window: (0, 1),
            tasks: (1..=tasks).rev().collect(),
            overslept: 0,
            high: Vec::new(),
            low: Vec::new(),
        };
        let at = |tasks| [50, 99, 100].map(|percent| played(tasks).task_at(percent));
        assert_eq!(at(100), [50, 99, 100]);
        assert_eq!(at(120), [60, 119, 120]);
        assert_eq!((at(1), at(0)), ([1, 1, 1], [0, 0, 0]));
    }
}
