//! The reports of Python programs' companions: their lines, and the sums over processes.
//!
//! The lines come from the job's own processes, so they are not trusted: numbers are limited, and
//! so is the number of processes.

use std::collections::BTreeMap;

use tessera_model::needs::LaunchNeeds;
use tessera_model::readings::{MemoryReading, READINGS_MAX};
use tessera_model::{Bytes, Millis};

use crate::driver_watch::{WatchLine, WatchReadings};
use crate::out_of_memory::RefusedMemory;
use crate::telemetry::readings::thinned;

/// The longest line, including its end. The companion writes no longer lines, so lines are never
/// interleaved.
pub const LINE_BYTES_MAX: usize = 512;

/// Maximum number of known processes of one attempt: the ranks of a node, and their workers.
pub const PROCESSES_MAX: usize = 256;

/// More than any GPU has, in bytes: 1 PiB. A larger number is not a memory size.
pub const BYTES_MAX: u64 = 1 << 50;

/// One line of the companion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CompanionLine<'l> {
    /// The memory of a process, on all of its devices.
    Memory {
        /// Its process id.
        pid: u32,
        /// Iterations so far.
        iteration: u64,
        /// Memory in use by the program.
        allocated: Bytes,
        /// Memory in use by the program or reserved for it.
        reserved: Bytes,
        /// The peak use of the program.
        peak: Bytes,
        /// Memory that the allocator holds and can't return. Companions of older agents do not report it.
        split: Bytes,
    },
    /// The allocator refused a request.
    Refused {
        /// The process's id.
        pid: u32,
        /// Iterations so far.
        iteration: u64,
        /// How much was requested.
        requested: Bytes,
    },
    /// A framework allocates memory in advance, so its memory in use doesn't show its need.
    Preallocated {
        /// Name of the framework that did it.
        framework: &'l str,
    },
}

impl<'l> CompanionLine<'l> {
    /// Reads a line; `None` if it isn't one of the companion's.
    pub fn parse(line: &'l str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let kind = words.next()?;
        let pid = words.next()?.parse().ok()?;
        let _rank = words.next()?;
        if kind == "p" {
            return Some(Self::Preallocated { framework: words.next()? });
        }
        let iteration = words.next()?.parse().ok()?;
        let mut bytes = || {
            let number = words.next()?.parse::<u64>().ok()?;
            (number <= BYTES_MAX).then_some(Bytes::new(number))
        };
        match kind {
            "m" => {
                let (allocated, reserved, peak) = (bytes()?, bytes()?, bytes()?);
                let split = bytes().unwrap_or(Bytes::ZERO);
                Some(Self::Memory { pid, iteration, allocated, reserved, peak, split })
            }
            "o" => Some(Self::Refused { pid, iteration, requested: bytes()? }),
            _ => None,
        }
    }
}

/// The last report of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessMemory {
    iteration: u64,
    allocated: u64,
    reserved: u64,
    reserved_peak: u64,
    peak: u64,
    /// How far the peak exceeded what was still in use after it.
    passing: u64,
    split: u64,
}

impl ProcessMemory {
    /// Returns what the newest iteration needed at most.
    ///
    /// What is in use after an iteration is not that: the activations of training are freed by then. Frameworks report
    /// the peak of the whole program only. So an iteration that did not raise it is taken to need as much beyond what
    /// remains as the last one that did. Memory that the allocator can't return counts as well.
    fn needed(&self) -> u64 {
        let peak = self.allocated.saturating_add(self.passing).min(self.peak);
        peak.max(self.allocated.saturating_add(self.split))
    }
}

/// The memory of all processes of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompanionMemory {
    /// The largest number of iterations of a process.
    pub iteration: u64,
    /// Memory in use by the programs.
    pub allocated: Bytes,
    /// Memory in use by the programs or reserved for them.
    pub reserved: Bytes,
    /// The sum of each process's largest reserved memory.
    pub reserved_peak: Bytes,
}

/// The reports of the companions in an attempt's processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompanionReadings {
    processes: BTreeMap<u32, ProcessMemory>,
    given_up: u32,
    /// When the last refusal was read, with the process's iterations.
    refused: Option<(u32, u64, Millis)>,
    preallocated: Option<String>,
    partial: Vec<u8>,
    /// What the shim reported of the driver.
    watch: WatchReadings,
    /// Iterations and what they needed since they were last taken: at most twice as many as a report has.
    trail: Vec<(u64, Bytes)>,
    /// The newest iteration of a trail.
    newest: Option<u64>,
}

impl CompanionReadings {
    /// Adds bytes of the pipe that were read at `now`. Lines that are too long, or neither the
    /// companion's nor the watch's, are left out.
    pub fn take(&mut self, bytes: &[u8], now: Millis) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.partial.len() <= LINE_BYTES_MAX {
                    self.partial.push(*byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.partial);
            let text = std::str::from_utf8(&line).ok().filter(|_| line.len() < LINE_BYTES_MAX);
            let Some(text) = text else { continue };
            if let Some(parsed) = CompanionLine::parse(text) {
                self.take_line(parsed, now);
            } else if let Some(parsed) = WatchLine::parse(text) {
                self.watch.take(parsed, self.iteration(), now);
            }
        }
    }

    fn take_line(&mut self, line: CompanionLine<'_>, now: Millis) {
        match line {
            CompanionLine::Memory { pid, iteration, allocated, reserved, peak, split } => {
                let is_known = self.processes.contains_key(&pid);
                if !is_known && self.processes.len() >= PROCESSES_MAX {
                    return;
                }
                let process = self.processes.entry(pid).or_default();
                process.iteration = iteration;
                (process.allocated, process.reserved) = (allocated.get(), reserved.get());
                process.reserved_peak = process.reserved_peak.max(reserved.get());
                process.split = split.get();
                if peak.get() > process.peak {
                    process.peak = peak.get();
                    process.passing = peak.get().saturating_sub(allocated.get());
                }
                self.follow(iteration);
            }
            CompanionLine::Refused { pid, iteration, .. } => {
                self.given_up = self.given_up.saturating_add(1);
                self.refused = Some((pid, iteration, now));
            }
            CompanionLine::Preallocated { framework } => {
                self.preallocated = Some(framework.chars().take(32).collect());
            }
        }
    }

    /// Adds an iteration to the trail. The process with the most iterations counts; the memory is
    /// the sum over all processes.
    fn follow(&mut self, iteration: u64) {
        if self.newest.is_some_and(|newest| iteration <= newest) {
            return;
        }
        let used = self.processes.values().map(ProcessMemory::needed).fold(0, u64::saturating_add);
        // Before its first allocation a program has not begun.
        if used == 0 {
            return;
        }
        self.newest = Some(iteration);
        if self.trail.len() == 2 * READINGS_MAX {
            let larger = self.trail.chunks(2).filter_map(|pair| pair.iter().max_by_key(|r| r.1));
            self.trail = larger.copied().collect();
        }
        self.trail.push((iteration, Bytes::new(used)));
    }

    /// Takes the iterations since the last time, as they are reported at `at_unix`.
    pub fn take_trail(&mut self, at_unix: Millis) -> Vec<MemoryReading> {
        let trail = std::mem::take(&mut self.trail);
        let reading = |(position, used)| MemoryReading { at_unix, position, used };
        thinned(trail.into_iter().map(reading).collect())
    }

    /// Returns whether an observer reported memory: only then is the absence of a refusal one.
    pub fn has_memory(&self) -> bool {
        !self.processes.is_empty() || self.watch.is_watched()
    }

    /// Returns the largest memory that any observer saw; `None` without one.
    pub fn peak(&self) -> Option<Bytes> {
        let reserved = self.memory().map_or(Bytes::ZERO, |memory| memory.reserved_peak);
        self.has_memory().then(|| reserved.max(self.watch.peak()))
    }

    /// Returns the minimum that the attempt needs, by its calls of the driver. Memory that a
    /// framework reserves in advance is not a need.
    pub fn needs(&self) -> LaunchNeeds {
        match self.preallocated {
            Some(_) => LaunchNeeds::default(),
            None => self.watch.needs(self.iteration()),
        }
    }

    fn iteration(&self) -> u64 {
        self.processes.values().map(|process| process.iteration).max().unwrap_or(0)
    }

    /// Returns the framework that allocates memory in advance, if one does.
    pub fn preallocated(&self) -> Option<&str> {
        self.preallocated.as_deref()
    }

    /// Returns the memory of all processes; `None` before the first report.
    pub fn memory(&self) -> Option<CompanionMemory> {
        if self.processes.is_empty() {
            return None;
        }
        let sum = |figure: fn(&ProcessMemory) -> u64| {
            Bytes::new(self.processes.values().map(figure).fold(0, u64::saturating_add))
        };
        Some(CompanionMemory {
            iteration: self.iteration(),
            allocated: sum(|p| p.allocated),
            reserved: sum(|p| p.reserved),
            reserved_peak: sum(|p| p.reserved_peak),
        })
    }

    /// Returns the refusals, for an attempt that ended at `end`; `None` if nothing observed it.
    ///
    /// A framework's allocator knows more than the driver: it frees its cache and tries again. If
    /// it was not refused, the driver's refusals count: they come from libraries that allocate by
    /// themselves.
    pub fn refused(&self, end: Millis) -> Option<RefusedMemory> {
        let Some((pid, iteration, at)) = self.refused else {
            let by_driver = self.watch.refusals(self.iteration()).map(|refusals| RefusedMemory {
                given_up: refusals.count,
                before_end: Millis::new(end.get().saturating_sub(refusals.at.get())),
                iterations_after: refusals.survived,
            });
            return by_driver.or_else(|| self.has_memory().then(RefusedMemory::default));
        };
        let now = self.processes.get(&pid).map_or(iteration, |process| process.iteration);
        Some(RefusedMemory {
            given_up: self.given_up,
            before_end: Millis::new(end.get().saturating_sub(at.get())),
            iterations_after: now.saturating_sub(iteration),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_of_ranks_adds_up_and_the_peak_is_kept() {
        let mut readings = CompanionReadings::default();
        readings.take(b"m 10 0 5 100 200 150\nm 11 1 6 10 20 15\n", Millis::ZERO);
        readings.take(b"m 10 0 7 50 120 150\n", Millis::ZERO);

        let memory = readings.memory().unwrap();
        assert_eq!((memory.iteration, memory.allocated), (7, Bytes::new(60)));
        assert_eq!((memory.reserved, memory.reserved_peak), (Bytes::new(140), Bytes::new(220)));
    }

    #[test]
    fn a_trail_has_each_iteration_once_with_the_memory_of_all_processes() {
        let mut readings = CompanionReadings::default();
        readings.take(b"m 10 0 0 0 0 0\nm 10 0 1 100 200 150\nm 11 1 1 10 20 15\n", Millis::ZERO);
        readings.take(b"m 10 0 2 120 200 150\nm 11 1 2 30 20 15\n", Millis::ZERO);

        let trail = readings.take_trail(Millis::from_secs(9));
        let steps: Vec<_> = trail.iter().map(|r| (r.position, r.used.get())).collect();
        assert_eq!(steps, [(1, 150), (2, 165)]);
        assert_eq!(trail[0].at_unix, Millis::from_secs(9));
        assert!(readings.take_trail(Millis::from_secs(10)).is_empty());
        let many: Vec<u8> =
            (3..2_000).flat_map(|at| format!("m 10 0 {at} {at} 1 1\n").into_bytes()).collect();
        readings.take(&many, Millis::ZERO);
        let trail = readings.take_trail(Millis::ZERO);
        assert!(trail.len() <= READINGS_MAX && trail.last().unwrap().position == 1_999);
    }

    #[test]
    fn an_iteration_needs_what_its_activations_took_and_not_what_remains_after_it() {
        let mut readings = CompanionReadings::default();
        let mut used = |line: &str| {
            readings.take(format!("m 1 0 {line}\n").as_bytes(), Millis::ZERO);
            readings.take_trail(Millis::ZERO).last().map(|reading| reading.used.get())
        };

        // Training with longer and longer inputs: the same remains, and more passes.
        assert_eq!(used("1 500 900 700 0"), Some(700));
        assert_eq!(used("2 500 900 800 0"), Some(800));
        // An iteration below the peak is taken to need as much beyond what remains.
        assert_eq!(used("3 450 900 800 0"), Some(750));
        // Free parts of segments that are in use can't be returned.
        assert_eq!(used("4 500 2000 800 450"), Some(950));
        // A companion of an older agent.
        assert_eq!(used("5 600 900 900"), Some(950 - 450 + 400));
    }

    #[test]
    fn a_line_that_arrives_in_two_pieces_is_read_as_one() {
        let mut readings = CompanionReadings::default();
        readings.take(b"m 10 0 5 1", Millis::ZERO);
        assert!(readings.memory().is_none());
        readings.take(b"00 200 150\n", Millis::ZERO);

        assert_eq!(readings.memory().unwrap().allocated, Bytes::new(100));
    }

    #[test]
    fn a_refusal_counts_as_survived_by_the_iterations_after_it() {
        let mut readings = CompanionReadings::default();
        assert_eq!(readings.refused(Millis::ZERO), None, "nobody observed");
        readings.take(b"m 10 0 5 100 200 150\n", Millis::from_secs(1));
        assert_eq!(readings.refused(Millis::from_secs(2)), Some(RefusedMemory::default()));
        readings.take(b"o 10 0 5 4096 100 8\n", Millis::from_secs(3));
        let refused = readings.refused(Millis::from_secs(4)).unwrap();
        assert_eq!((refused.given_up, refused.iterations_after), (1, 0));
        assert_eq!(refused.before_end, Millis::from_secs(1));
        readings.take(b"m 10 0 9 100 200 150\n", Millis::from_secs(5));

        assert_eq!(readings.refused(Millis::from_secs(6)).unwrap().iterations_after, 4);
    }

    #[test]
    fn memory_that_is_allocated_in_advance_is_reported() {
        let mut readings = CompanionReadings::default();
        readings.take(b"p 10 0 jax 0.75\n", Millis::ZERO);

        assert_eq!(readings.preallocated(), Some("jax"));
        assert!(!readings.has_memory());
    }

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 0..8)) {
            let mut readings = CompanionReadings::default();
            for piece in &pieces {
                readings.take(piece, Millis::ZERO);
            }
            readings.take(b"\nm 1 0 1 1 1 1\n", Millis::ZERO);

            prop_assert!(readings.memory().is_some());
        }
    }
}
