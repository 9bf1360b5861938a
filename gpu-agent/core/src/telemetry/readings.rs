//! The memory of running attempts, from which controllers predict: the iterations of a program's
//! companion, or otherwise one driver reading each second.

use std::collections::BTreeMap;

use tessera_frames::cluster::{ATTEMPT_FIGURES_MAX, AttemptMemory};
use tessera_model::readings::{MemoryReading, MemoryReadings, READINGS_MAX, ReadingUnit};
use tessera_model::{AttemptId, Bytes, Millis};

use super::meter::Meter;
use super::tracks::{TrackSubject, TrackedFigure};

/// The length of a driver's reading.
const SECOND: Millis = Millis::from_secs(1);

/// The companions' lines of an attempt since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompanionTrail {
    /// Memory in use by the programs or reserved for them, from the newest line.
    pub reserved: Bytes,
    /// Whether a framework allocates memory in advance.
    pub preallocated: bool,
    /// Iterations with the memory in use, the oldest first.
    pub readings: Vec<MemoryReading>,
}

/// The readings of attempts that were reported or are still to be reported.
#[derive(Clone, Debug, Default)]
pub struct ReadingReports {
    trails: BTreeMap<AttemptId, CompanionTrail>,
    /// The time up to which the driver's readings were reported.
    reported: BTreeMap<AttemptId, Millis>,
}

impl ReadingReports {
    /// Records the report of an attempt's companions.
    pub fn observe(&mut self, attempt: AttemptId, news: CompanionTrail) {
        let trail = self.trails.entry(attempt).or_default();
        trail.reserved = news.reserved;
        trail.preallocated |= news.preallocated;
        trail.readings.extend(news.readings);
    }

    /// Removes an attempt that has ended.
    pub fn forget(&mut self, attempt: AttemptId) {
        self.trails.remove(&attempt);
        self.reported.remove(&attempt);
    }

    /// Takes the unreported readings of the attempts on a GPU.
    pub fn take(&mut self, meter: &Meter) -> Vec<AttemptMemory> {
        let attempts: Vec<AttemptId> = meter.tenancies().map(|(attempt, ..)| attempt).collect();
        let taken = attempts.into_iter().take(ATTEMPT_FIGURES_MAX).filter_map(|attempt| {
            let memory = match self.trails.get_mut(&attempt) {
                Some(trail) => of_companion(trail, used_of(meter, attempt)),
                None => self.of_driver(meter, attempt),
            };
            memory.map(|memory| AttemptMemory { attempt, memory })
        });
        taken.collect()
    }

    fn of_driver(&mut self, meter: &Meter, attempt: AttemptId) -> Option<MemoryReadings> {
        let series = meter.tracks.of(TrackSubject::Attempt(attempt), TrackedFigure::Memory)?;
        let (newest, _) = series.newest()?;
        let began = meter.began_of(attempt)?;
        let from = self.reported.get(&attempt).copied().unwrap_or(began);
        let mut until = from;
        let mut readings = Vec::new();
        for span in series.since(from, SECOND) {
            // The newest second is incomplete, and a program starts with its first allocation.
            if span.start < from || span.start.plus(SECOND) > newest {
                continue;
            }
            until = span.start.plus(SECOND);
            if span.max > 0 {
                readings.push(MemoryReading {
                    at_unix: until,
                    position: until.minus(began).get() / SECOND.get(),
                    used: Bytes::new(span.max),
                });
            }
        }
        self.reported.insert(attempt, until);
        let unit = ReadingUnit::Seconds;
        (!readings.is_empty()).then(|| MemoryReadings {
            unit,
            left_out: Bytes::ZERO,
            preallocated: false,
            readings: thinned(readings),
        })
    }
}

/// Returns the driver's current report about an attempt.
fn used_of(meter: &Meter, attempt: AttemptId) -> Bytes {
    let series = meter.tracks.of(TrackSubject::Attempt(attempt), TrackedFigure::Memory);
    Bytes::new(series.and_then(|series| series.newest()).map_or(0, |(_, used)| used))
}

fn of_companion(trail: &mut CompanionTrail, used: Bytes) -> Option<MemoryReadings> {
    let readings = std::mem::take(&mut trail.readings);
    if readings.is_empty() && !trail.preallocated {
        return None;
    }
    Some(MemoryReadings {
        unit: ReadingUnit::Iterations,
        // The CUDA context, and memory that libraries allocate outside of the framework's
        // allocator.
        left_out: Bytes::new(used.get().saturating_sub(trail.reserved.get())),
        preallocated: trail.preallocated,
        readings: thinned(readings),
    })
}

/// Removes readings evenly until they fit into a report; of two neighbours the larger one is kept.
pub fn thinned(mut readings: Vec<MemoryReading>) -> Vec<MemoryReading> {
    while readings.len() > READINGS_MAX {
        let pairs = readings.chunks(2);
        let larger = pairs.filter_map(|pair| pair.iter().copied().max_by_key(|r| r.used));
        readings = larger.collect();
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::sample::{GpuSample, ProcessSample};
    use crate::telemetry::meter::GpuTenancy;
    use tessera_model::{BootId, JobId};

    fn attempt() -> AttemptId {
        AttemptId::from_uuid(uuid::Uuid::from_u128(7))
    }

    /// A meter with an attempt that used one more MiB each tenth of a second, for a few seconds.
    fn meter(seconds: u64) -> Meter {
        let mut meter = Meter::default();
        meter.begin(&GpuTenancy {
            attempt: attempt(),
            job: JobId::from_number(1),
            gpu: "GPU-1".parse().unwrap(),
            slot: None,
            began: Millis::from_secs(100),
            ended: None,
        });
        sample(&mut meter, 0, seconds);
        meter
    }

    fn sample(meter: &mut Meter, from: u64, to: u64) {
        for tick in from * 10..=to * 10 {
            let process = ProcessSample {
                pid: 1,
                place: None,
                attempt: Some(attempt()),
                memory: Some(Bytes::from_mib(tick)),
                load_percent: 0,
                mps_server: false,
            };
            let seen = GpuSample { processes: vec![process], ..GpuSample::default() };
            let boot = BootId::from_uuid(uuid::Uuid::nil());
            meter.take(boot, Millis::new(100_000 + tick * 100), seen);
        }
    }

    #[test]
    fn the_driver_gives_one_reading_each_second_and_each_is_reported_once() {
        let (mut reports, mut meter) = (ReadingReports::default(), meter(3));

        let first = reports.take(&meter);
        sample(&mut meter, 3, 5);
        let second = reports.take(&meter);

        let positions = |reports: &[AttemptMemory]| -> Vec<(u64, u64)> {
            let readings = reports.iter().flat_map(|report| &report.memory.readings);
            readings.map(|reading| (reading.position, reading.used.mib())).collect()
        };
        assert_eq!(positions(&first), [(1, 9), (2, 19), (3, 29)]);
        assert_eq!(positions(&second), [(4, 39), (5, 49)]);
        assert!(reports.take(&meter).is_empty(), "nothing is new");
    }

    #[test]
    fn the_companion_has_precedence_and_the_driver_shows_the_memory_it_leaves_out() {
        let (mut reports, meter) = (ReadingReports::default(), meter(3));
        let reading = |position| MemoryReading {
            at_unix: Millis::from_secs(103),
            position,
            used: Bytes::from_mib(5 + position),
        };
        reports.observe(
            attempt(),
            CompanionTrail {
                reserved: Bytes::from_mib(20),
                preallocated: false,
                readings: (1..=200).map(reading).collect(),
            },
        );

        let taken = reports.take(&meter);

        let memory = &taken[0].memory;
        assert_eq!((memory.unit, memory.left_out), (ReadingUnit::Iterations, Bytes::from_mib(10)));
        assert_eq!(memory.readings.len(), 50, "thinned");
        assert_eq!(memory.readings.last().unwrap().position, 200);
        assert!(reports.take(&meter).is_empty());
        reports.forget(attempt());
        assert_eq!(reports.take(&meter)[0].memory.unit, ReadingUnit::Seconds);
    }
}
