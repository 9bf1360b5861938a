//! The recorded outcome of a history, in the form of a simulation's outcome.

use std::collections::BTreeMap;

use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::metrics::{ClusterSample, JobOutcome, JobSegment, RunOutcome};
use time::OffsetDateTime;

use super::super::period::HistoryPeriod;
use super::{KnownJob, PastGpu, between, started};
use tessera_api_types::PastJob;

/// Builds the recorded outcome.
pub(super) fn recorded(
    known: &[KnownJob],
    gpus: &[PastGpu],
    fleet: &GpuFleet,
    period: &HistoryPeriod,
) -> RunOutcome {
    let since = |at: OffsetDateTime| between(period.since, at);
    let end_of = |past: &PastJob| since(past.ended_at.unwrap_or(period.until));
    let jobs: Vec<JobOutcome> = (1..)
        .zip(known)
        .map(|(number, KnownJob { past, job })| {
            let runs = started(past);
            let end_ms = end_of(past).max(job.submit_ms);
            let began = runs.first().and_then(|run| run.started_at).map(since);
            let of = |state: &str| past.attempts.iter().filter(|a| a.state == state).count();
            let times = |state: &str| u32::try_from(of(state)).expect("a job has few attempts");
            JobOutcome {
                job: number,
                name: past.name.clone(),
                online: past.class == "online",
                submit_ms: job.submit_ms,
                start_ms: began.unwrap_or(end_ms).clamp(job.submit_ms, end_ms),
                end_ms,
                moves: if past.movable { times("preempted") } else { 0 },
                preemptions: if past.movable { times("lost") } else { times("preempted") },
                out_of_memory: times("out_of_memory"),
                timed_out: past.state == "timed_out",
                in_time: met_deadline(past, period),
            }
        })
        .collect();
    let makespan_ms = jobs.iter().map(|job| job.end_ms).max().unwrap_or(0);
    let segments = segments(known, gpus, fleet, period);
    let solo: u64 = known.iter().filter_map(|k| k.job.fastest(&fleet.models())).sum();
    let capacity_ms = makespan_ms.max(1).saturating_mul(gpus.len().max(1) as u64);
    let attempts = || known.iter().flat_map(|known| &known.past.attempts);
    RunOutcome {
        policy: RECORDED.to_owned(),
        samples: samples(&segments, &jobs, fleet, makespan_ms),
        makespan_ms,
        millijoules: attempts().filter_map(|a| a.gpu_energy_millijoules).sum(),
        reconfigurations: 0,
        cutting_ms: 0,
        cutting_millijoules: 0,
        moves: jobs.iter().map(|job| u64::from(job.moves)).sum(),
        moving_ms: 0,
        preemptions: jobs.iter().map(|job| u64::from(job.preemptions)).sum(),
        // A history has no times of checkpoints.
        sent_back_ms: None,
        out_of_memory: jobs.iter().map(|job| u64::from(job.out_of_memory)).sum(),
        system_throughput: ratio(solo, capacity_ms),
        segments,
        slices: Vec::new(),
        jobs,
    }
}

/// Returns whether a job met its deadline, by the controller's rule: it succeeded by then. `None` without a deadline,
/// for a cancelled job, and for one that may still end in time.
fn met_deadline(past: &PastJob, period: &HistoryPeriod) -> Option<bool> {
    let deadline = past.deadline?;
    match past.ended_at {
        Some(_) if past.state == "cancelled" => None,
        Some(ended) => Some(past.state == "succeeded" && ended <= deadline),
        None => (deadline < period.until).then_some(false),
    }
}

/// The name of the row of the recorded outcome.
const RECORDED: &str = "recorded";

/// Divides whole numbers, to a millionth.
fn ratio(part: u64, whole: u64) -> f64 {
    let millionths = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    u32::try_from(millionths).map_or(f64::MAX, |millionths| f64::from(millionths) / 1e6)
}

fn segments(
    known: &[KnownJob],
    gpus: &[PastGpu],
    fleet: &GpuFleet,
    period: &HistoryPeriod,
) -> Vec<JobSegment> {
    let mut all = Vec::new();
    for (number, KnownJob { past, .. }) in (1..).zip(known) {
        for attempt in &past.attempts {
            let place = gpus.iter().position(|gpu| gpu.id == attempt.gpu);
            let (Some(gpu), Some(began)) = (place, attempt.started_at) else { continue };
            let geometry = fleet.view.gpus[gpu].mig.as_ref().map(|mig| &mig.geometry);
            let profile = geometry.and_then(|g| g.by_name(&attempt.profile.parse().ok()?));
            let whole = || geometry.and_then(|g| Some(g.largest()?.memory_slices));
            all.push(JobSegment {
                job: number,
                gpu,
                start: attempt.start_slice.unwrap_or(0),
                slices: profile.map(|p| p.memory_slices).or_else(whole).unwrap_or(1),
                from_ms: between(period.since, began),
                to_ms: between(period.since, attempt.ended_at.unwrap_or(period.until)),
            });
        }
    }
    all.sort_by_key(|segment| (segment.from_ms, segment.job));
    all
}

/// Samples at each change how many memory slices were in use, and how many jobs waited.
fn samples(
    segments: &[JobSegment],
    jobs: &[JobOutcome],
    fleet: &GpuFleet,
    end: u64,
) -> Vec<ClusterSample> {
    let whole = |gpu: usize| {
        let mig = fleet.view.gpus.get(gpu).and_then(|gpu| gpu.mig.as_ref());
        mig.and_then(|mig| mig.geometry.largest()).map_or(1, |p| u64::from(p.memory_slices))
    };
    let all: u64 = (0..fleet.view.gpus.len()).map(whole).sum::<u64>().max(1);
    let mut times: Vec<u64> = segments.iter().flat_map(|s| [s.from_ms, s.to_ms]).collect();
    times.push(end);
    times.sort_unstable();
    times.dedup();
    let stride = times.len().div_ceil(SAMPLES_MAX).max(1);
    let sample = |at_ms: u64| {
        let mut used: BTreeMap<usize, u64> = BTreeMap::new();
        let mut running = 0;
        for segment in segments.iter().take_while(|s| s.from_ms <= at_ms) {
            if at_ms < segment.to_ms {
                *used.entry(segment.gpu).or_default() += u64::from(segment.slices);
                running += 1;
            }
        }
        let taken: u64 = used.iter().map(|(gpu, slices)| (*slices).min(whole(*gpu))).sum();
        let open_slices: u64 = used.keys().map(|gpu| whole(*gpu)).sum();
        let waits = |job: &&JobOutcome| job.submit_ms <= at_ms && at_ms < job.start_ms;
        ClusterSample {
            at_ms,
            used_per_mille: taken * 1_000 / all,
            stranded_per_mille: open_slices.saturating_sub(taken) * 1_000 / all,
            waiting: jobs.iter().filter(waits).count() as u64,
            running,
            milliwatts: None,
        }
    };
    times.into_iter().step_by(stride).map(sample).collect()
}

/// Maximum number of samples: more can't be distinguished in a plot.
const SAMPLES_MAX: usize = 1_200;
