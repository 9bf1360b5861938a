//! What ran when, by the device's trace.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// One kernel in the device's trace, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// When it was launched.
    pub queued: u64,
    /// From when until when it ran, in parts if others came in between.
    pub spans: Vec<(u64, u64)>,
}

/// What ran when, in one run of the high program.
#[derive(Clone, Debug)]
pub struct Played {
    /// When the high program's first task began and its last ended, in nanoseconds.
    pub window: (u64, u64),
    /// Times of its tasks in nanoseconds.
    pub tasks: Vec<u64>,
    /// Its kernels.
    pub high: Vec<Ran>,
    /// The low program's that ran within the window; what lies outside is cut off.
    pub low: Vec<Ran>,
}

impl Played {
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

    /// Returns the low program's time on the device in gaps as a part of an omniscient filler's:
    /// what the high one lost was no gap.
    pub fn fills(&self, alone: &Self, omniscient: u64) -> f64 {
        let lost = (self.window.1 - self.window.0).saturating_sub(alone.window.1 - alone.window.0);
        let used = total(&self.low).saturating_sub(lost);
        if omniscient > 0 { seconds(used) / seconds(omniscient) } else { 0.0 }
    }
}

/// Returns for how long kernels ran, in nanoseconds.
pub fn total(ran: &[Ran]) -> u64 {
    ran.iter().flat_map(|ran| &ran.spans).map(|(from, until)| until - from).sum()
}

/// Returns `CLOCK_MONOTONIC`, by which traces and shims tell time, in nanoseconds.
pub fn now() -> u64 {
    tessera_agent::sys::clock::monotonic_now().get()
}

/// Returns nanoseconds as seconds.
pub fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// Reads from a trace which kernels ran within a window.
pub(super) fn ran(trace: &Path, (begin, end): (u64, u64)) -> Result<Vec<Ran>> {
    let text =
        fs::read_to_string(trace).with_context(|| format!("no trace {}", trace.display()))?;
    let mut all = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("{\"op\":\"kernel\"")) {
        // A killed player's last line may be a part of one.
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
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
