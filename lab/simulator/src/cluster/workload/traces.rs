//! The contents of public traces and profiles: tasks of Alibaba's cluster, how long jobs last at
//! Helios, Philly and Acme, inference speeds of ParvaGPU. Sources and terms are in
//! `data/README.md`.

use std::collections::BTreeMap;
use tessera_model::number::index;

use serde::Deserialize;
use tessera_model::Bytes;

use super::file::by_fraction;
use super::generate::{even, of_mixture};
use super::papers::plain;
use crate::cluster::job::{JobClass, SimulatedJob, SliceTimes};
use crate::cluster::number::{float, whole};
use tessera_predict::random::SeededRng;

const ALIBABA: &str = include_str!("../../../data/alibaba-2023.csv");
const DURATIONS: &str = include_str!("../../../data/durations.csv");
const PARVAGPU: &str = tessera_predict::contention::public::PARVAGPU;
const DYNA_P_5000: &str = include_str!("../../../data/dyna-p-5000.csv");

/// The GPU that ParvaGPU measured.
const PARVAGPU_MODEL: &str = "a100-80gb";

/// Longest job that is drawn from a curve. Chosen: a day. Some jobs of the traces run for months.
const LONGEST_S: f64 = 86_400.0;

/// Memory that a whole GPU of Alibaba's stands for, in MiB: the trace has none. As `gpu_fraction` counts
/// in files.
const ALIBABA_MIB: f64 = 16_384.0;

fn rows<R: for<'d> Deserialize<'d>>(data: &str) -> Vec<R> {
    let mut reader = csv::Reader::from_reader(data.as_bytes());
    reader.deserialize().map(|row| row.expect("part of the build and tested")).collect()
}

#[derive(Deserialize)]
struct AlibabaTask {
    submit_s: f64,
    duration_s: f64,
    gpus: u32,
    gpu_fraction: f64,
    class: JobClass,
}

/// Returns how many tasks there are for [`alibaba`].
pub fn alibaba_jobs() -> u64 {
    let tasks = rows::<AlibabaTask>(ALIBABA).into_iter().filter(|task| task.gpus == 1);
    tasks.count() as u64
}

/// Returns tasks of Alibaba's 2023 trace that ran on one GPU or a part of one, at most this many,
/// with arrivals this many times as dense. Tasks of several GPUs are left out.
pub fn alibaba(jobs: u64, faster: u64) -> Vec<SimulatedJob> {
    let most = index(jobs);
    let tasks = rows::<AlibabaTask>(ALIBABA).into_iter().filter(|task| task.gpus == 1);
    let mut tasks: Vec<AlibabaTask> = tasks.collect();
    tasks.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
    // The trace begins with jobs that had run for months already: the densest part is its end.
    let skipped = tasks.len().saturating_sub(most);
    let first_s = tasks.get(skipped).map_or(0.0, |task| task.submit_s);
    let job = |task: &AlibabaTask| {
        let memory = Bytes::from_mib(whole(task.gpu_fraction * ALIBABA_MIB));
        SimulatedJob {
            submit_ms: whole((task.submit_s - first_s) * 1_000.0) / faster.max(1),
            class: task.class,
            times: BTreeMap::from([(
                "*".to_owned(),
                by_fraction(task.duration_s.min(LONGEST_S), task.gpu_fraction.clamp(0.01, 1.0)),
            )]),
            requested: memory,
            memory_at_start: memory,
            memory_at_end: memory,
            restore_ms: Some(10_000),
            gang: None,
            ..plain("alibaba", 0, &[])
        }
    };
    tasks.iter().skip(skipped).map(job).collect()
}

#[derive(Deserialize)]
struct DurationPoint {
    trace: String,
    duration_s: f64,
    cdf: f64,
    cluster: String,
}

/// Returns jobs of MISO's measured models that last as the GPU jobs of a trace do (`helios`,
/// `philly`, `acme`), its clusters in equal parts, with exponential gaps.
pub fn durations(trace: &str, seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let is_selected = |point: &DurationPoint| {
        // Acme's figure draws other clusters for comparison.
        point.trace == trace && (trace != "acme" || ["Seren", "Kalos"].contains(&&*point.cluster))
    };
    for point in rows::<DurationPoint>(DURATIONS).into_iter().filter(is_selected) {
        curves.entry(point.cluster).or_default().push((point.cdf, point.duration_s));
    }
    let curves: Vec<Vec<(f64, f64)>> = curves.into_values().collect();
    let mut rng = SeededRng::named(seed, trace);
    let mut now_ms = 0;
    let next = |_| {
        now_ms += whole(-even(&mut rng).ln() * float(gap_ms));
        let curve = curves.get(rng.index_below(curves.len()));
        let part = even(&mut rng);
        let length_s = curve.map_or(60.0, |curve| at(curve, part)).clamp(1.0, LONGEST_S);
        SimulatedJob { submit_ms: now_ms, ..of_mixture(&mut rng, length_s) }
    };
    (0..jobs).map(next).collect()
}

/// Reads a curve of (part, duration) in rising order, evenly by logarithm between its points.
fn at(curve: &[(f64, f64)], part: f64) -> f64 {
    let above = curve.partition_point(|(known, _)| *known < part);
    let (Some(high), Some(low)) = (curve.get(above), curve.get(above.saturating_sub(1))) else {
        return curve.last().map_or(60.0, |(_, duration)| *duration);
    };
    let between = if high.0 > low.0 { (part - low.0) / (high.0 - low.0) } else { 0.0 };
    let (from, to) = (low.1.max(1.0), high.1.max(1.0));
    from * (to / from).powf(between)
}

#[derive(Deserialize)]
struct SpeedRow {
    model: String,
    mig_slices: u8,
    batch: u32,
    mps_procs: u32,
    throughput_req_s: f64,
}

/// Shortest and longest inference job of ParvaGPU's models on a whole GPU, in seconds. Chosen: it measured
/// speeds, and no jobs.
const SERVED_S: (f64, f64) = (30.0, 1_800.0);

/// Returns inference jobs with ParvaGPU's measured speeds: a model, a batch, and enough requests
/// that it lasts half a minute to half an hour on a whole A100-80GB. Gaps are exponential.
pub fn parvagpu(seed: u64, jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let mut kinds: BTreeMap<(String, u32), BTreeMap<u8, f64>> = BTreeMap::new();
    for row in rows::<SpeedRow>(PARVAGPU) {
        if row.mps_procs == 1 && row.throughput_req_s > 0.0 {
            let speeds = kinds.entry((row.model, row.batch)).or_default();
            speeds.insert(row.mig_slices, row.throughput_req_s);
        }
    }
    let kinds: Vec<_> = kinds.into_iter().filter(|(_, speeds)| speeds.contains_key(&7)).collect();
    let mut rng = SeededRng::named(seed, "parvagpu");
    let mut now_ms = 0;
    let next = |_| {
        now_ms += whole(-even(&mut rng).ln() * float(gap_ms));
        let ((model, batch), speeds) = &kinds[rng.index_below(kinds.len())];
        let (short, long) = SERVED_S;
        let requests = speeds[&7] * short * (long / short).powf(even(&mut rng));
        let times: SliceTimes = speeds
            .iter()
            .map(|(slices, speed)| (*slices, whole(requests / speed * 1_000.0).max(1)))
            .collect();
        let memory = Bytes::from_mib(held_by(times.keys().next().copied().unwrap_or(7)));
        SimulatedJob {
            submit_ms: now_ms,
            class: JobClass::Online,
            times: BTreeMap::from([(PARVAGPU_MODEL.to_owned(), times)]),
            requested: memory,
            memory_at_start: memory,
            memory_at_end: memory,
            start_up_ms: 10_000,
            restore_ms: Some(10_000),
            gang: None,
            ..plain(&format!("{model}.{batch}"), 0, &[])
        }
    };
    (0..jobs).map(next).collect()
}

/// Returns how much longer each of two processes of a model takes on a whole A100-80GB than one alone,
/// by model and batch.
pub(super) fn measured_pairs() -> BTreeMap<(String, u32), f64> {
    let mut speeds: BTreeMap<(String, u32, u32), f64> = BTreeMap::new();
    for row in rows::<SpeedRow>(PARVAGPU) {
        if row.mig_slices == 7 && row.throughput_req_s > 0.0 {
            speeds.insert((row.model, row.batch, row.mps_procs), row.throughput_req_s);
        }
    }
    let pair = |((model, batch, procs), alone): (&(String, u32, u32), &f64)| {
        // The table has the throughput of each process.
        let both = speeds.get(&(model.clone(), *batch, 2)).filter(|_| *procs == 1)?;
        Some(((model.clone(), *batch), alone / both))
    };
    speeds.iter().filter_map(pair).collect()
}

/// Returns memory that an A100-80GB's slice of this size holds and no smaller one, in MiB. It is chosen between
/// those, since ParvaGPU's table has where a model ran and not its memory.
const fn held_by(slices: u8) -> u64 {
    match slices {
        1 => 8_000,
        2 => 18_000,
        3 | 4 => 36_000,
        _ => 60_000,
    }
}

#[derive(Deserialize)]
struct ProxyRow {
    submit_unit: f64,
    model: String,
    batch: u32,
    mem_gb: f64,
    t1_s: Option<f64>,
    t2_s: Option<f64>,
    t3_s: Option<f64>,
    t7_s: Option<f64>,
}

/// Returns Dyna-P's 5,000 jobs for A100-40GB: a proxy, with Alibaba's durations capped at two
/// hours. Gaps are drawn once and stretched, so that rates differ and nothing else.
pub fn dyna_p(jobs: u64, gap_ms: u64) -> Vec<SimulatedJob> {
    let job = |row: ProxyRow| {
        let times = [(1, row.t1_s), (2, row.t2_s), (3, row.t3_s), (7, row.t7_s)];
        let times = times.iter().filter_map(|(s, t)| Some((*s, whole((*t)? * 1_000.0))));
        let times: Vec<_> = times.collect();
        let needs = whole(row.mem_gb * 1_000.0);
        SimulatedJob {
            submit_ms: whole(row.submit_unit * float(gap_ms)),
            class: JobClass::Online,
            restore_ms: Some(1_000),
            gang: None,
            ..plain(&format!("{}.{}", row.model, row.batch), needs, &times)
        }
    };
    let most = index(jobs);
    rows::<ProxyRow>(DYNA_P_5000).into_iter().take(most).map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metrics::quantile;

    #[test]
    fn jobs_last_as_in_their_traces() {
        for (trace, least_s, most_s) in
            [("helios", 60, 900), ("philly", 300, 2_400), ("acme", 30, 600)]
        {
            let jobs = durations(trace, 1, 2_000, 1_000);
            let mut lengths: Vec<u64> =
                jobs.iter().map(|job| job.fastest(&["a100-40gb"]).unwrap() / 1_000).collect();
            lengths.sort_unstable();
            let median = quantile(&lengths, 500);
            assert!((least_s..=most_s).contains(&median), "{trace}: {median} s");
        }
    }

    #[test]
    fn every_trace_gives_jobs_in_order() {
        assert_eq!(alibaba(700, 1).len(), 700);
        assert_eq!(dyna_p(5_000, 4_000).len(), 5_000);
        let served = parvagpu(1, 100, 5_000);
        assert!(served.windows(2).all(|pair| pair[0].submit_ms <= pair[1].submit_ms));
        assert!(served.iter().all(|job| job.time(PARVAGPU_MODEL, 7).is_some()));
    }
}
