//! Overdue jobs: a GPU is reserved for the oldest of them.
//!
//! **Priorities.** In a backlog of that length all jobs are overdue, and priorities would mean nothing. So a job goes before
//! better ones only while older jobs that were overdue when they started hold less than a quarter of the cluster
//! ([`OverdueHolders`]). Until then its priority counts, and among its equals it comes first.
//!
//! **The bound.** A job that has waited [`super::Tessera::patience`] is overdue. For the oldest
//! overdue job a GPU is reserved: nothing starts on it or moves to it. Of the GPUs that could hold
//! the job, it is the one with the oldest last arrival. Let `L` be the longest time that any job
//! stays in one placement. Suppose that the job becomes the oldest overdue one at `t`, when the
//! last arrival on its GPU was at `a ≤ t`. No more jobs arrive there, so its last arrival doesn't
//! change. The choice changes to another GPU only if that GPU's last arrival is even older. So at any time
//! all jobs on the chosen GPU arrived at `a` or before, and have left by `a + L`. From `t + L` on the chosen
//! GPU is empty, and the job starts there. With `k` jobs that are overdue before it, each of which takes at
//! most `L`, it waits `patience + (k + 1) L` if nothing holds the quarter. Otherwise older jobs hold it, and these are among
//! the `k`, too: each adds at most another `L`. So **no job waits longer than `patience + 2 (k + 1) L`**. That holds whatever
//! jobs arrive later and however wrong predictions are: none is used. `L` includes the time of partitioning. GPUs that are
//! unavailable, closed by operators or used by foreign instances are never reserved. The bound holds as long
//! as a GPU that can hold the job remains. It applies to accounts without a quota: a job under a quota may
//! wait for other jobs of its account.
//!
//! Where usage is kept, it is the oldest overdue job of the account that has used least for its shares. The usage of an
//! account that waits only falls next to that of the others, so each account's turn comes. `k` then also counts the
//! overdue jobs that accounts with less usage start until then. By age alone, shares would mean nothing in a cluster in
//! which all jobs wait for that long.
//!
//! Larger clusters also reserve GPUs for the next oldest jobs, up to one GPU in [`GPUS_PER_PLACE`].

use tessera_model::{JobId, Millis};

use super::Tessera;
use super::fairness::{AccountQueues, SLICES_OF_GPU};
use super::search::Search;
use super::waiting::WaitingJobs;
use crate::decision::{Decision, WaitReason};
use crate::facts::JobTable;
use crate::policy::planned_gpu::because;
use crate::view::QueuedJob;

/// How many GPUs the cluster has for each GPU that may be reserved at once. Chosen, three in a
/// hundred: more reserved GPUs would be idle, and with fewer, large clusters would serve their
/// overdue jobs one at a time.
const GPUS_PER_PLACE: usize = 32;

/// The least part of a GPU that a job takes.
pub(super) const SLICE: f64 = 1.0 / SLICES_OF_GPU;

/// The part of the cluster from which on jobs that were overdue when they started let no other one go before jobs of a
/// better priority. Chosen.
const OUT_OF_TURN: f64 = 0.25;

/// What jobs hold that were overdue when they started.
#[derive(Debug)]
pub(super) struct OverdueHolders {
    /// What they may hold, in GPUs.
    limit: f64,
    /// When each was submitted, and the part of a GPU that it holds.
    held: Vec<(Millis, f64)>,
}

impl OverdueHolders {
    /// Reads the running jobs of a cluster of so many GPUs, each with the part of a GPU that it holds.
    pub(super) fn of(
        gpus: f64,
        running: impl Iterator<Item = (JobId, f64)>,
        jobs: &dyn JobTable,
        patience: Millis,
    ) -> Self {
        let overdue = |(job, part): (JobId, f64)| {
            let facts = jobs.facts(job);
            let submitted = facts.submitted?;
            (facts.since?.minus(submitted) >= patience).then_some((submitted, part))
        };
        Self { limit: OUT_OF_TURN * gpus, held: running.filter_map(overdue).collect() }
    }

    /// Returns whether an overdue job may go before jobs of a better priority, and counts its part if so.
    pub(super) fn admit(&mut self, job: &QueuedJob, part: f64) -> bool {
        let older = self.held.iter().filter(|(submitted, _)| *submitted <= job.submitted);
        let is_admitted = older.map(|(_, part)| part).sum::<f64>() < self.limit;
        if is_admitted {
            self.held.push((job.submitted, part));
        }
        is_admitted
    }
}

/// Starts the oldest overdue jobs, or reserves GPUs for them. Returns the started jobs and the
/// decisions about the others.
pub(super) fn serve(
    search: &mut Search<'_, '_>,
    (waiting, accounts): (&WaitingJobs, &mut AccountQueues),
    settings: &Tessera,
    now: Millis,
    starts_max: usize,
) -> (Vec<JobId>, Vec<Decision>) {
    let (mut started, mut waits) = (Vec::new(), Vec::new());
    let places = 1 + search.gpus() / GPUS_PER_PLACE;
    let mut kept = Vec::new();
    let jobs = search.scoring.knowledge.jobs;
    let is_overdue = |job: &QueuedJob| now.minus(job.submitted) >= settings.patience;
    let oldest = waiting.oldest().next().filter(|job| is_overdue(job));
    let Some(oldest) = oldest else { return (started, waits) };
    let overdue: Vec<QueuedJob> = match jobs.account(oldest.id) {
        Some(_) => accounts.oldest(waiting, jobs, now.minus(settings.patience), places),
        None => waiting.oldest().take(places).filter(|job| is_overdue(job)).cloned().collect(),
    };
    let best = waiting.queue().values().next().map_or(oldest.queue_rank, |job| job.queue_rank);
    let mut holders = search.overdue_holders(settings.patience);
    for job in &overdue {
        if started.len() >= starts_max {
            break;
        }
        if job.queue_rank > best && !holders.admit(job, SLICE) {
            continue;
        }
        // For an account at its quota, the reserved GPU would stay idle.
        if search.quota_left(job.id) == Some(0) {
            continue;
        }
        let Some(gpu) = search.calmest(job.id, &kept) else { continue };
        if search.place_job(job, Some(gpu)) {
            started.push(job.id);
            continue;
        }
        kept.push(gpu);
        search.keep(gpu);
        waits.push(wait(search, job, gpu, now));
    }
    (started, waits)
}

fn wait(search: &Search<'_, '_>, job: &QueuedJob, gpu: usize, now: Millis) -> Decision {
    let jobs: Vec<String> = search.jobs(gpu).iter().map(|job| job.to_string()).collect();
    let view = search.view(gpu);
    let text = format!(
        "it has waited {} s, so GPU {} of node {} is reserved for it and nothing else starts there",
        now.minus(job.submitted).get() / 1_000,
        view.index,
        view.node
    );
    let mut why = because(super::NAME, text);
    why.would_start_if = Some(match jobs.as_slice() {
        [] => "the GPU has been partitioned".to_owned(),
        [job] => format!("job {job} ends"),
        [first @ .., last] => format!("jobs {} and {last} end", first.join(", ")),
    });
    Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
}
