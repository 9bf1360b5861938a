//! What the shim's watch reports of the processes of an attempt: lines about the driver's memory, refusals and first
//! launches.
//!
//! As for the companion, the lines come from the job's own processes: numbers are limited, and so is the number of
//! processes.

use std::collections::BTreeMap;

use tessera_model::needs::LaunchNeeds;
use tessera_model::{Bytes, Millis};

use crate::companion::{BYTES_MAX, PROCESSES_MAX};

/// One line of the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchLine {
    /// What a process holds.
    Memory {
        /// Its process id.
        pid: u32,
        /// In bytes, now.
        held: u64,
        /// The peak so far, in bytes.
        peak: u64,
        /// Requests that the driver has granted so far.
        given: u64,
    },
    /// The driver refused a request.
    Refused {
        /// The process's id.
        pid: u32,
        /// How much was requested, in bytes.
        requested: u64,
        /// What it held, in bytes.
        held: u64,
        /// Requests that the driver had granted.
        given: u64,
    },
    /// A process launched its first kernel.
    FirstLaunch {
        /// Its process id.
        pid: u32,
        /// What it had allocated before, in bytes.
        held: u64,
        /// The warps of the kernel.
        warps: u64,
    },
}

impl WatchLine {
    /// Reads a line; `None` if it is not one of the watch's.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let kind = words.next()?;
        let pid = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let bytes = |number: u64| (number <= BYTES_MAX).then_some(number);
        match kind {
            "d" => Some(Self::Memory {
                pid,
                held: bytes(number()?)?,
                peak: bytes(number()?)?,
                given: number()?,
            }),
            "r" => Some(Self::Refused {
                pid,
                requested: bytes(number()?)?,
                held: bytes(number()?)?,
                given: number()?,
            }),
            "f" => {
                let held = bytes(number()?)?;
                let warps = number()?.saturating_mul(number()?);
                Some(Self::FirstLaunch { pid, held, warps })
            }
            _ => None,
        }
    }
}

/// A refusal by the driver that the process may have survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastRefusal {
    pid: u32,
    at: Millis,
    /// Requests that the process had been granted.
    given: u64,
    /// Iterations that the companion had reported.
    iteration: u64,
    /// What the process would have held.
    would_hold: u64,
}

/// The last report of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WatchedProcess {
    peak: u64,
    given: u64,
    /// What it held at its first launch, and that kernel's warps.
    first: Option<(u64, u64)>,
}

/// The reports of the watches in an attempt's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchReadings {
    processes: BTreeMap<u32, WatchedProcess>,
    refusals: u32,
    last: Option<LastRefusal>,
}

/// The driver's refusals at the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverRefusals {
    /// How many there were.
    pub count: u32,
    /// When the last one was read.
    pub at: Millis,
    /// Requests that were granted to its process after it, and iterations after it.
    pub survived: u64,
}

impl WatchReadings {
    /// Adds a line that was read at `now`. `iteration` is the newest of the companion's.
    pub fn take(&mut self, line: WatchLine, iteration: u64, now: Millis) {
        let (WatchLine::Memory { pid, .. }
        | WatchLine::Refused { pid, .. }
        | WatchLine::FirstLaunch { pid, .. }) = line;
        if !self.processes.contains_key(&pid) && self.processes.len() >= PROCESSES_MAX {
            return;
        }
        let process = self.processes.entry(pid).or_default();
        match line {
            WatchLine::Memory { held, peak, given, .. } => {
                process.peak = process.peak.max(peak).max(held);
                process.given = given;
            }
            WatchLine::Refused { requested, held, given, .. } => {
                process.peak = process.peak.max(held);
                process.given = given;
                self.refusals = self.refusals.saturating_add(1);
                let would_hold = held.saturating_add(requested);
                self.last = Some(LastRefusal { pid, at: now, given, iteration, would_hold });
            }
            WatchLine::FirstLaunch { held, warps, .. } => {
                process.peak = process.peak.max(held);
                process.first = process.first.or(Some((held, warps)));
                // It continues, so the refused request was a probe.
                let _ = self.last.take_if(|last| last.pid == pid);
            }
        }
    }

    /// Returns whether any process is watched.
    pub fn is_watched(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Returns the sum of the processes' peaks.
    pub fn peak(&self) -> Bytes {
        Bytes::new(self.processes.values().map(|process| process.peak).fold(0, u64::saturating_add))
    }

    /// Returns the driver's refusals; `None` if there were none. `iteration` is the newest of the companion's.
    pub fn refusals(&self, iteration: u64) -> Option<DriverRefusals> {
        let last = self.last?;
        let given = self.processes.get(&last.pid).map_or(last.given, |process| process.given);
        let survived = given.saturating_sub(last.given) + iteration.saturating_sub(last.iteration);
        Some(DriverRefusals { count: self.refusals, at: last.at, survived })
    }

    /// Returns the minimum that the attempt needs. `iteration` is the newest of the companion's.
    pub fn needs(&self, iteration: u64) -> LaunchNeeds {
        let first = || self.processes.values().filter_map(|process| process.first);
        let refused = self.refusals(iteration).filter(|refusals| refusals.survived == 0);
        let refused = refused.and(self.last).map_or(0, |last| last.would_hold.min(BYTES_MAX));
        LaunchNeeds {
            held: Bytes::new(first().map(|(held, _)| held).fold(0, u64::saturating_add)),
            warps: first().map(|(_, warps)| warps).max().unwrap_or(0),
            refused: Bytes::new(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn readings(lines: &[&str]) -> WatchReadings {
        let mut readings = WatchReadings::default();
        for (at, line) in (1..).zip(lines) {
            readings.take(WatchLine::parse(line).expect(line), 0, Millis::from_secs(at));
        }
        readings
    }

    #[test]
    fn what_was_held_at_the_first_launch_is_needed_and_the_largest_kernel_counts() {
        let watched = readings(&[
            "d 7 100 150 2",
            "f 7 100 960 8",
            "d 7 900 900 5",
            "f 8 50 10 4",
            "f 8 60 1 1",
        ]);

        let needs = watched.needs(0);
        assert_eq!((needs.held.get(), needs.warps, needs.refused), (150, 7_680, Bytes::ZERO));
        assert_eq!(watched.peak().get(), 960);
    }

    #[test]
    fn a_refusal_is_survived_by_a_request_that_is_given_after_it() {
        let refused = readings(&["d 7 100 100 2", "r 7 4000 100 2"]);
        assert_eq!(refused.needs(0).refused.get(), 4_100);
        assert_eq!(refused.refusals(0).unwrap().survived, 0);
        assert_eq!(refused.refusals(3).unwrap().survived, 3, "the companion saw iterations");

        let retried = readings(&["d 7 100 100 2", "r 7 4000 100 2", "d 7 4000 4000 3"]);
        assert_eq!(retried.needs(0).refused, Bytes::ZERO, "it freed its cache and tried again");
        let probed = readings(&["r 7 4000 0 0", "f 7 0 1 1"]);
        assert_eq!(probed.refusals(0), None, "it launched a kernel");
        let other = readings(&["d 7 100 100 2", "r 7 4000 100 2", "d 8 4000 4000 3"]);
        assert_eq!(other.needs(0).refused.get(), 4_100, "another process was given something");
    }

    #[test]
    fn lines_of_others_are_left_out() {
        for line in
            ["", "m 1 0 1 1 1 1", "d 7 1 2", "d x 1 2 3", "r 7 9999999999999999 1 1", "f 7 1 2"]
        {
            assert_eq!(WatchLine::parse(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_number_overflows(lines in prop::collection::vec(("[drf]", any::<[u64; 4]>()), 0..40)) {
            let mut readings = WatchReadings::default();
            for (kind, [a, b, c, d]) in lines {
                let line = format!("{kind} {} {} {} {}", a % 5, b, c, d);
                if let Some(line) = WatchLine::parse(&line) {
                    readings.take(line, d, Millis::ZERO);
                }
            }
            let _ = (readings.peak(), readings.needs(7), readings.refusals(7));
        }
    }
}
