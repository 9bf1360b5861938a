//! The results of a run.

use std::collections::BTreeMap;

use serde::Serialize;
use tessera_model::mig::catalog;

use super::bounds::WorkloadBounds;
use super::number::{count, float, rounded, seconds};

/// What is counted during a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunRecord {
    pub(crate) reconfigurations: u64,
    pub(crate) cutting_ms: u64,
    pub(crate) cutting_microjoules: u128,
    pub(crate) moves: u64,
    pub(crate) moving_ms: u64,
    pub(crate) preemptions: u64,
    pub(crate) out_of_memory: u64,
    pub(crate) lost_parts: u128,
    pub(crate) samples: Vec<ClusterSample>,
    pub(crate) segments: Vec<JobSegment>,
    pub(crate) slices: Vec<InstanceSegment>,
    /// Existing instances by GPU, first memory slice and size, each with the time since when it
    /// exists.
    pub(crate) standing: BTreeMap<(usize, u8, u8), u64>,
}

/// The cluster at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterSample {
    /// Simulated time in milliseconds.
    pub at_ms: u64,
    /// Compute slices that jobs have, of all.
    pub used_per_mille: u64,
    /// Compute slices that no job has on GPUs that are in use, of all: fragmented or idle.
    pub stranded_per_mille: u64,
    /// Jobs that wait.
    pub waiting: u64,
    /// Jobs that have a placement.
    pub running: u64,
    /// The power of all GPUs; absent if it was not measured.
    pub milliwatts: Option<u64>,
}

/// One job on one instance for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct JobSegment {
    /// Its number.
    pub job: u64,
    /// The GPU, counted from 0.
    pub gpu: usize,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub slices: u8,
    /// From when.
    pub from_ms: u64,
    /// To when.
    pub to_ms: u64,
}

/// One instance that existed for a while, whichever job had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceSegment {
    /// The GPU, counted from 0.
    pub gpu: usize,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub slices: u8,
    /// From when.
    pub from_ms: u64,
    /// To when.
    pub to_ms: u64,
}

/// The result of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobOutcome {
    /// Its number, from 1.
    pub job: u64,
    /// The job in its workload.
    pub name: String,
    /// Whether it is of the class `online`.
    pub online: bool,
    /// When it was submitted.
    pub submit_ms: u64,
    /// When it first had its instance.
    pub start_ms: u64,
    /// When it ended.
    pub end_ms: u64,
    /// How often it was stopped and continued elsewhere.
    pub moves: u32,
    /// How often it was sent back to the queue.
    pub preemptions: u32,
    /// How often it ran out of memory.
    pub out_of_memory: u32,
    /// Whether it ended at its time limit, before its work was finished.
    pub timed_out: bool,
    /// Whether it met its deadline; absent without a deadline.
    pub in_time: Option<bool>,
}

impl JobOutcome {
    /// Returns its completion time, including its wait.
    pub const fn jct_ms(&self) -> u64 {
        self.end_ms - self.submit_ms
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The policy that decided.
    pub policy: String,
    /// Each job, by number.
    pub jobs: Vec<JobOutcome>,
    /// From the start until the last job is done, in milliseconds.
    pub makespan_ms: u64,
    /// Energy of all GPUs until then, in millijoules.
    pub millijoules: u64,
    /// Cuts of GPUs.
    pub reconfigurations: u64,
    /// Time that GPUs were being cut, added up.
    pub cutting_ms: u64,
    /// Energy of that, in millijoules; part of [`Self::millijoules`].
    pub cutting_millijoules: u64,
    /// Jobs that were stopped and continued, each time counted.
    pub moves: u64,
    /// Time that jobs spent restoring, added up.
    pub moving_ms: u64,
    /// Jobs that were sent back to the queue, each time counted.
    pub preemptions: u64,
    /// Time that offline jobs lost to online ones, in milliseconds: repeated work, and restarts; `None` if unknown.
    pub sent_back_ms: Option<u64>,
    /// Jobs that ran out of memory, each time counted.
    pub out_of_memory: u64,
    /// Time alone on the whole GPU of all jobs, over makespan and GPUs.
    pub system_throughput: f64,
    /// The cluster over time, if requested.
    pub samples: Vec<ClusterSample>,
    /// Which job was where, if requested.
    pub segments: Vec<JobSegment>,
    /// Which instances existed, if requested.
    pub slices: Vec<InstanceSegment>,
}

/// The figures of a run, as they are printed; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Summary {
    /// The policy that decided.
    pub policy: String,
    /// How many jobs the workload has.
    pub jobs: usize,
    /// Mean time from submit to end.
    pub jct_mean_s: f64,
    /// The median time from submit to end.
    pub jct_p50_s: f64,
    /// The 95th percentile of the time from submit to end.
    pub jct_p95_s: f64,
    /// The longest time from submit to end.
    pub jct_max_s: f64,
    /// Mean time from submit to the first start.
    pub wait_mean_s: f64,
    /// Half of the jobs wait no longer.
    pub wait_p50_s: f64,
    /// 99 of 100 wait no longer.
    pub wait_p99_s: f64,
    /// The longest wait.
    pub wait_max_s: f64,
    /// From the start until the last job is done.
    pub makespan_s: f64,
    /// Time alone on a whole GPU of all jobs, over makespan and GPUs.
    pub system_throughput: f64,
    /// Energy of all GPUs, in joules.
    pub energy_j: f64,
    /// Cuts of GPUs.
    pub reconfigurations: u64,
    /// Energy of these, in joules; part of `energy_j`.
    pub reconfiguration_j: f64,
    /// Jobs that were stopped and continued elsewhere.
    pub moves: u64,
    /// Jobs sent back to the queue.
    pub preemptions: u64,
    /// 95 of 100 online jobs wait no longer.
    pub online_wait_p95_s: f64,
    /// Mean time from submit to end of the offline jobs.
    pub offline_jct_mean_s: f64,
    /// Time that offline jobs lost to online ones: repeated work, and restarts; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_loss_s: Option<f64>,
    /// Jobs that ran out of memory.
    pub out_of_memory: u64,
    /// How many jobs ended at their time limits, before their work was finished.
    pub timed_out: usize,
    /// How many jobs missed their deadlines: they ended later, or at their time limits.
    pub deadlines_missed: usize,
    /// Jobs with a deadline.
    pub deadlines: usize,
    /// No MIG-only schedule ends earlier.
    pub bound_makespan_s: f64,
    /// Makespan over that bound.
    pub makespan_over_bound: f64,
    /// No MIG-only schedule has a smaller mean.
    pub bound_jct_mean_s: f64,
    /// Mean over that bound.
    pub jct_over_bound: f64,
}

impl Summary {
    /// Computes the figures.
    pub fn new(outcome: &RunOutcome, bounds: &WorkloadBounds) -> Self {
        let mut jct: Vec<u64> = outcome.jobs.iter().map(JobOutcome::jct_ms).collect();
        jct.sort_unstable();
        let mut waits: Vec<u64> = outcome.jobs.iter().map(|j| j.start_ms - j.submit_ms).collect();
        waits.sort_unstable();
        let of_class = |online: bool| outcome.jobs.iter().filter(move |job| job.online == online);
        let mut online_waits: Vec<u64> =
            of_class(true).map(|job| job.start_ms - job.submit_ms).collect();
        online_waits.sort_unstable();
        let offline: Vec<u64> = of_class(false).map(JobOutcome::jct_ms).collect();
        let number = count(outcome.jobs.len().max(1));
        let mean = float(jct.iter().sum()) / number / 1_000.0;
        let makespan = seconds(outcome.makespan_ms);
        let in_time = || outcome.jobs.iter().filter_map(|j| j.in_time);
        Self {
            policy: outcome.policy.clone(),
            jobs: outcome.jobs.len(),
            jct_mean_s: rounded(mean),
            jct_p50_s: seconds(quantile(&jct, 500)),
            jct_p95_s: seconds(quantile(&jct, 950)),
            jct_max_s: seconds(jct.last().copied().unwrap_or(0)),
            wait_mean_s: rounded(float(waits.iter().sum()) / number / 1_000.0),
            wait_p50_s: seconds(quantile(&waits, 500)),
            wait_p99_s: seconds(quantile(&waits, 990)),
            wait_max_s: seconds(waits.last().copied().unwrap_or(0)),
            makespan_s: makespan,
            system_throughput: rounded(outcome.system_throughput),
            energy_j: seconds(outcome.millijoules),
            reconfigurations: outcome.reconfigurations,
            reconfiguration_j: seconds(outcome.cutting_millijoules),
            moves: outcome.moves,
            preemptions: outcome.preemptions,
            online_wait_p95_s: seconds(quantile(&online_waits, 950)),
            offline_jct_mean_s: rounded(mean_s(&offline)),
            preemption_loss_s: outcome.sent_back_ms.map(seconds),
            out_of_memory: outcome.out_of_memory,
            timed_out: outcome.jobs.iter().filter(|job| job.timed_out).count(),
            deadlines_missed: in_time().filter(|kept| !kept).count(),
            deadlines: in_time().count(),
            bound_makespan_s: rounded(bounds.makespan_s),
            makespan_over_bound: rounded(makespan / bounds.makespan_s.max(0.001)),
            bound_jct_mean_s: rounded(bounds.jct_mean_s),
            jct_over_bound: rounded(mean / bounds.jct_mean_s.max(0.001)),
        }
    }
}

/// Returns the mean of times in milliseconds, in seconds; zero without any.
fn mean_s(times: &[u64]) -> f64 {
    float(times.iter().sum()) / count(times.len().max(1)) / 1_000.0
}

/// Returns the smallest value that this many thousandths of the sorted values don't exceed.
pub fn quantile(sorted: &[u64], per_mille: usize) -> u64 {
    let at = (sorted.len() * per_mille).div_ceil(1_000).saturating_sub(1);
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Returns the compute slices of a whole GPU of the model.
pub fn whole_slices(key: &str) -> u8 {
    let model = catalog::models().get(key);
    model.and_then(|m| m.geometry().largest().map(|p| p.compute_slices)).unwrap_or(1)
}
