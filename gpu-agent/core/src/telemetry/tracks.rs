//! The series of one GPU: its own, those of its instances, attempts and processes; a bounded
//! number of each.

use std::collections::BTreeMap;

use tessera_model::mig::Slot;
use tessera_model::{AttemptId, Millis};

use super::series::Series;

/// Maximum number of series of one GPU: far more than seven instances and their attempts have. The
/// one with the oldest last sample is removed first.
const TRACKS_MAX: usize = 256;
/// How long a series without new samples is kept: as long as series reach back.
const SILENT: Millis = Millis::from_secs(3_600);
/// How many samples are between two searches for series without new samples.
const LOOK_EVERY: u32 = 1_000;

/// The subject of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrackSubject {
    /// The whole GPU.
    Gpu,
    /// One instance.
    Slot(Slot),
    /// One attempt.
    Attempt(AttemptId),
    /// One process.
    Process(u32),
}

/// The figure of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrackedFigure {
    /// Memory in use, in bytes.
    Memory,
    /// The busy share of the GPU, in thousandths.
    Activity,
    /// Power, in milliwatts.
    Power,
}

/// The series of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Tracks {
    series: BTreeMap<(TrackSubject, TrackedFigure), Series>,
    looked: u32,
}

impl Tracks {
    /// Adds a sample.
    pub fn push(&mut self, of: TrackSubject, figure: TrackedFigure, at: Millis, value: u64) {
        self.looked += 1;
        if self.looked >= LOOK_EVERY || self.series.len() >= TRACKS_MAX {
            self.forget(at);
        }
        self.series.entry((of, figure)).or_default().push(at, value);
    }

    fn forget(&mut self, now: Millis) {
        self.looked = 0;
        let newest = |series: &Series| series.newest().map_or(Millis::ZERO, |(at, _)| at);
        self.series.retain(|_, series| newest(series).plus(SILENT) > now);
        while self.series.len() >= TRACKS_MAX {
            let oldest = self.series.iter().min_by_key(|(_, series)| newest(series));
            let Some(oldest) = oldest.map(|(key, _)| *key) else { return };
            self.series.remove(&oldest);
        }
    }

    /// Returns every series.
    pub fn all(&self) -> impl Iterator<Item = (TrackSubject, TrackedFigure, &Series)> {
        self.series.iter().map(|((of, figure), series)| (*of, *figure, series))
    }

    /// Returns one series.
    pub fn of(&self, of: TrackSubject, figure: TrackedFigure) -> Option<&Series> {
        self.series.get(&(of, figure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_ended_processes_do_not_accumulate() {
        let mut tracks = Tracks::default();
        for pid in 0..10_000_u32 {
            let at = Millis::new(u64::from(pid));
            tracks.push(TrackSubject::Gpu, TrackedFigure::Power, at, 32_000);
            tracks.push(TrackSubject::Process(pid), TrackedFigure::Memory, at, 1);
        }

        assert!(tracks.series.len() <= TRACKS_MAX);
        assert!(tracks.of(TrackSubject::Gpu, TrackedFigure::Power).is_some());
        assert!(tracks.of(TrackSubject::Process(9_999), TrackedFigure::Memory).is_some());
        assert!(tracks.of(TrackSubject::Process(0), TrackedFigure::Memory).is_none());
    }
}
