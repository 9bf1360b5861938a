//! Live figures of GPUs, as their nodes report them every few seconds: now, and over the last hour.
//! They decide nothing, are in no database, and are lost with the process.

pub mod series;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tessera_control::idle::IdleReport;
use tessera_frames::cluster::{AttemptFigures, GpuFigures};
use tessera_model::{AttemptId, Bytes, GpuId, Millis, NodeName};

use self::series::{Point, Sample, Series};

/// Older figures are not shown: nodes report every five seconds by default.
const FRESH: Duration = Duration::from_secs(60);
/// Maximum number of GPUs: a bound against faulty agents, far above any cluster.
const GPUS_MAX: usize = 65_536;
/// Maximum number of GPUs whose figures are kept over time: 90 KB each.
const GPU_SERIES_MAX: usize = 2_048;
/// Maximum number of attempts whose figures are kept over time: at most 30 KB each. The one whose
/// last report is the oldest is removed first.
const ATTEMPTS_KEPT_MAX: usize = 4_096;
/// How long figures over time are kept after the last report.
const SERIES_KEPT_FOR: Duration = Duration::from_secs(3_600);

/// One GPU's newest figures.
#[derive(Clone, Debug)]
pub struct GpuSnapshot {
    /// The node that has the GPU.
    pub node: NodeName,
    /// The node's report.
    pub figures: Arc<GpuFigures>,
    received: Instant,
}

/// Figures over time, and when they were last added to.
#[derive(Clone, Debug)]
struct RecordedSeries {
    series: Series,
    received: Instant,
}

#[derive(Debug, Default)]
struct CacheContents {
    shown: BTreeMap<GpuId, GpuSnapshot>,
    gpus: BTreeMap<GpuId, RecordedSeries>,
    attempts: BTreeMap<AttemptId, RecordedSeries>,
}

/// The live figures of every GPU.
#[derive(Clone, Debug, Default)]
pub struct FigureCache(Arc<Mutex<CacheContents>>);

impl FigureCache {
    fn state(&self) -> MutexGuard<'_, CacheContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a node's report.
    #[expect(clippy::disallowed_methods, reason = "a report's age counts from its arrival")]
    pub fn show(&self, node: &NodeName, figures: GpuFigures) {
        let mut state = self.state();
        state.keep(&figures);
        let board = &mut state.shown;
        if board.len() >= GPUS_MAX && !board.contains_key(&figures.gpu) {
            board.retain(|_, shown| shown.received.elapsed() < FRESH);
            if board.len() >= GPUS_MAX {
                return;
            }
        }
        let (gpu, figures) = (figures.gpu.clone(), Arc::new(figures));
        board.insert(gpu, GpuSnapshot { node: node.clone(), figures, received: Instant::now() });
    }

    /// Returns the recent figures, by GPU.
    pub fn fresh(&self) -> BTreeMap<GpuId, GpuSnapshot> {
        let board = &mut self.state().shown;
        board.retain(|_, shown| shown.received.elapsed() < FRESH);
        board.clone()
    }

    /// Returns the recent figures of one running attempt.
    pub fn of_attempt(&self, attempt: AttemptId) -> Option<AttemptFigures> {
        let state = self.state();
        let fresh = state.shown.values().filter(|shown| shown.received.elapsed() < FRESH);
        fresh.flat_map(|shown| &shown.figures.attempts).find(|f| f.attempt == attempt).copied()
    }

    /// Returns how long attempts have done nothing, by fresh reports only; zero for those that do something.
    pub fn idle_of(&self, attempts: &[AttemptId]) -> Vec<IdleReport> {
        let watched: HashSet<_> = attempts.iter().collect();
        let state = self.state();
        let fresh = state.shown.values().filter(|shown| shown.received.elapsed() < FRESH);
        let reported = fresh.flat_map(|shown| {
            let at = shown.figures.at_unix;
            shown.figures.attempts.iter().map(move |figures| (at, figures))
        });
        reported
            .filter(|(_, figures)| watched.contains(&figures.attempt))
            .map(|(at, figures)| IdleReport {
                attempt: figures.attempt,
                idle: figures.idle_since.map_or(Millis::ZERO, |since| at.minus(since)),
            })
            .collect()
    }

    /// Returns a GPU's newest figures over time, as [`Series::newest`]; no points if nothing was
    /// reported within an hour.
    pub fn of_gpu(&self, gpu: &GpuId, since: Millis, most: u32) -> (Millis, Vec<Point>) {
        newest(self.state().gpus.get(gpu), since, most)
    }

    /// Returns an attempt's figures over its life, as [`Series::newest`]; no points if nothing was
    /// reported within an hour.
    pub fn attempt(&self, attempt: AttemptId, since: Millis, most: u32) -> (Millis, Vec<Point>) {
        newest(self.state().attempts.get(&attempt), since, most)
    }
}

fn newest(kept: Option<&RecordedSeries>, since: Millis, most: u32) -> (Millis, Vec<Point>) {
    let fresh = kept.filter(|kept| kept.received.elapsed() < SERIES_KEPT_FOR);
    fresh.map_or_else(|| Series::of_gpu().newest(since, most), |k| k.series.newest(since, most))
}

impl CacheContents {
    /// Adds figures to those over time.
    fn keep(&mut self, figures: &GpuFigures) {
        let energy = figures.attempts_mj + figures.other_mj + figures.idle_mj;
        let sample = Sample {
            at: figures.at_unix,
            memory: figures.memory_used.map(Bytes::get),
            activity: figures.activity.map(u64::from),
            power_mw: figures.power_mw,
            energy_mj: Some(energy),
        };
        add(&mut self.gpus, &figures.gpu, sample, Series::of_gpu, GPU_SERIES_MAX);
        for attempt in &figures.attempts {
            let sample = Sample {
                at: figures.at_unix,
                memory: attempt.memory_used.map(Bytes::get),
                activity: attempt.activity.map(u64::from),
                power_mw: None,
                energy_mj: attempt.energy_mj,
            };
            let (all, most) = (&mut self.attempts, ATTEMPTS_KEPT_MAX);
            add(all, &attempt.attempt, sample, Series::of_attempt, most);
        }
    }
}

/// Adds a sample to one of many series, of which at most `most` are kept.
#[expect(
    clippy::disallowed_methods,
    reason = "a series' age counts from the arrival of its last sample"
)]
fn add<K: Ord + Clone>(
    all: &mut BTreeMap<K, RecordedSeries>,
    key: &K,
    sample: Sample,
    new: fn() -> Series,
    most: usize,
) {
    if !all.contains_key(key) && all.len() >= most {
        all.retain(|_, kept| kept.received.elapsed() < SERIES_KEPT_FOR);
        if all.len() >= most
            && let Some(silent) = all.iter().min_by_key(|(_, kept)| kept.received)
        {
            let silent = silent.0.clone();
            all.remove(&silent);
        }
    }
    let received = Instant::now();
    let kept = all.entry(key.clone()).or_insert_with(|| RecordedSeries { series: new(), received });
    kept.received = received;
    kept.series.push(sample);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(gpu: &str, power_mw: u64) -> GpuFigures {
        GpuFigures {
            gpu: gpu.parse().unwrap(),
            at_unix: Millis::new(1),
            memory_used: None,
            power_mw: Some(power_mw),
            activity: None,
            attempts_mj: 0,
            other_mj: 0,
            idle_mj: 0,
            slices: Vec::new(),
            attempts: Vec::new(),
        }
    }

    #[test]
    fn the_newest_report_of_a_gpu_replaces_earlier_ones() {
        let board = FigureCache::default();
        let node = "n1".parse().unwrap();

        board.show(&node, figures("GPU-1", 32_000));
        board.show(&node, figures("GPU-1", 50_000));
        board.show(&node, figures("GPU-2", 40_000));

        let fresh = board.fresh();
        assert_eq!(fresh.len(), 2);
        assert_eq!(fresh[&"GPU-1".parse().unwrap()].figures.power_mw, Some(50_000));
    }

    #[test]
    fn figures_are_kept_over_time_for_gpus_and_attempts_within_limits() {
        let board = FigureCache::default();
        let node = "n1".parse().unwrap();
        let attempt = |number| AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        for round in 0..10_u64 {
            let mut report = figures("GPU-1", 32_000 + round);
            report.at_unix = Millis::from_secs(1_000 + 5 * round);
            report.attempts = vec![AttemptFigures {
                memory_peak: None,
                idle_since: None,
                attempt: attempt(7),
                job: tessera_model::JobId::from_number(1),
                memory_used: Some(Bytes::new(round)),
                activity: Some(500),
                energy_mj: Some(1_000 * round),
            }];
            board.show(&node, report);
        }

        let hour = Millis::from_secs(3_600);
        let (_, points) = board.of_gpu(&"GPU-1".parse().unwrap(), hour, 100);
        assert_eq!(points.iter().filter_map(|p| p.power_mw.max()).max(), Some(32_009));
        let (_, life) = board.attempt(attempt(7), hour, 100);
        assert_eq!(life.len(), 10);
        assert_eq!(life[9].energy_mj, Some(9_000));
        assert!(board.attempt(attempt(8), hour, 100).1.is_empty());
        let mut many = BTreeMap::new();
        for number in 0..10 {
            add(&mut many, &attempt(number), Sample::default(), Series::of_attempt, 4);
        }
        assert_eq!(many.len(), 4);
        assert!(many.contains_key(&attempt(9)) && !many.contains_key(&attempt(0)));
    }
}
