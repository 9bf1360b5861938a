//! Jobs whose users let the controller decide whether they share a slice (`--share auto`).
//!
//! A policy places such a job as one that has its slice to itself. After that, a job that would
//! wait may join **one** other job of its user on a slice, in the way ([`SharingWay`]) with the
//! highest predicted throughput. None of the papers that the policies follow decides this for a
//! job; the rules are ours:
//!
//! - A job shares only if it finds no slice for itself. So sharing changes no decision while slices
//!   are free.
//! - Its partner is of the same user. The partner either starts in the same round and is `auto`
//!   too, or it runs alone on a slice that was started for sharing. A running job that has its
//!   slice to itself is never joined: its program was started without a queue and without MPS.
//! - The memory of both fits. Neither has a deadline. Both keep their time limits at the lower
//!   predicted speeds.
//! - How busy both keep the GPU was measured. Under MPS a trusted model predicts their speeds, and
//!   their run times are known.
//! - The benefit is certain: see [`weigh`] for the margins.
//! - Two jobs that may both be bound by bandwidth never share under MPS (rule 1 of the co-execution study).
//!
//! Where nothing is known of a job, it is treated like a job with `--share exclusive`.
//!
//! Source of rule 1, and of the slow-downs that it avoids: Villarrubia et al., arXiv 2604.22430.

mod hosts;
mod text;
mod weigh;

use tessera_model::share::{KernelShare, MpsShare, SliceShare, SmPercent};
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId};

use self::hosts::{Host, find_hosts};
use self::text::Side;
use self::weigh::{Pair, PairFigures, SharingRefusal, weigh_ways};
use crate::decision::{Decision, Explanation, JobPlacement};
use crate::predictor::Knowledge;
use crate::view::{ClusterView, QueuedJob};

/// The most jobs without a slice that one round considers for sharing. Chosen to limit the duration
/// of a round.
const SEEN_MAX: usize = 64;

/// A way in which two jobs can share a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingWay {
    /// Under MPS, with the percentages of the host and of the joining job.
    Mps([SmPercent; 2]),
    /// Kernel by kernel, each with its own priority.
    Kernel,
}

/// A way of sharing that was considered for a pair, with its predictions and whether the rules
/// allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConsideredWay {
    way: SharingWay,
    figures: Option<PairFigures>,
    /// The lower bound of the joint throughput, in thousandths of one job alone; or the rule that
    /// forbids the pair.
    verdict: Result<u32, SharingRefusal>,
}

/// A waiting job that may share a slice.
#[derive(Clone, Copy, Debug)]
struct Joiner<'q> {
    job: &'q QueuedJob,
    memory: Bytes,
}

/// Lets jobs join others where a round has no slice for them. `queue` has the waiting jobs in
/// service order, and `decisions` has the policy's decisions about them. At most `starts_max` jobs
/// start.
pub fn share_slices(
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    queue: &[&QueuedJob],
    decisions: &mut Vec<Decision>,
    starts_max: usize,
) {
    if queue.iter().all(|job| job.auto.is_none()) {
        return;
    }
    let mut hosts = find_hosts(cluster, queue, decisions);
    let joiners: Vec<Joiner<'_>> = waiting_jobs(queue, decisions).take(SEEN_MAX).collect();
    let started = decisions.iter().filter(|made| matches!(made, Decision::Start { .. })).count();
    let mut left = starts_max.saturating_sub(started);
    for joiner in joiners {
        let considered = consider(&hosts, joiner, knowledge);
        let best = best_of(&considered).filter(|_| left > 0);
        match best {
            Some((at, way)) => {
                left -= 1;
                let host = hosts.remove(at);
                join(decisions, &host, joiner, way);
            }
            None => text::explain_wait(decisions, &hosts, joiner, &considered),
        }
    }
    text::explain_alone(decisions, queue, &hosts);
}

/// Returns the `auto` jobs that wait only because no slice is free.
fn waiting_jobs<'q>(
    queue: &[&'q QueuedJob],
    decisions: &[Decision],
) -> impl Iterator<Item = Joiner<'q>> {
    let is_left = |job: JobId| {
        decisions.iter().all(|decision| match decision {
            Decision::Start { job: started, .. } => *started != job,
            Decision::Wait { job: waits, reason, .. } => *waits != job || reason.goes_by_itself(),
            Decision::Reshape { reshape, .. } => {
                reshape.placements.iter().all(|placed| placed.job != job)
            }
            Decision::Preempt { preemption, .. } => preemption.job != job,
        })
    };
    let left: Vec<Joiner<'q>> = queue
        .iter()
        .filter_map(|job| Some(Joiner { job, memory: memory_of(job)? }))
        .filter(|joiner| is_left(joiner.job.id))
        .collect();
    left.into_iter()
}

/// Returns the memory of a job that may share; `None` for one that may not.
fn memory_of(job: &QueuedJob) -> Option<Bytes> {
    match &job.gpu {
        GpuRequest::Memory(memory) if job.auto.is_some() && job.gang.is_none() => Some(*memory),
        GpuRequest::Memory(_)
        | GpuRequest::Unknown
        | GpuRequest::Profile(_)
        | GpuRequest::Whole
        | GpuRequest::Unpartitioned
        | GpuRequest::Compute(_) => None,
    }
}

/// Weighs each host that a job could join, by its index in the list.
fn consider(
    hosts: &[Host<'_>],
    joiner: Joiner<'_>,
    knowledge: Knowledge<'_>,
) -> Vec<(usize, ConsideredWay)> {
    let Some(sharer) = joiner.job.auto else { return Vec::new() };
    let allowed = |host: &Host<'_>| {
        let place = joiner.job.place.as_ref();
        host.user == joiner.job.user
            && place.is_none_or(|place| place.allows(&host.gpu.node, &host.gpu.model))
    };
    let mut considered = Vec::new();
    for (at, host) in hosts.iter().enumerate().filter(|(_, host)| allowed(host)) {
        let pair = Pair { host, job: joiner.job.id, memory: joiner.memory, sharer };
        considered.extend(weigh_ways(&pair, knowledge).into_iter().map(|way| (at, way)));
    }
    considered
}

/// Of the ways that the rules allow, returns the one with the highest lower bound of the joint
/// throughput, the first among equals.
fn best_of(considered: &[(usize, ConsideredWay)]) -> Option<(usize, ConsideredWay)> {
    let mut best: Option<(u32, (usize, ConsideredWay))> = None;
    for (at, way) in considered {
        if let Ok(least) = way.verdict
            && best.is_none_or(|(most, _)| least > most)
        {
            best = Some((least, (*at, *way)));
        }
    }
    best.map(|(_, found)| found)
}

/// Returns the shares of the host and of the joining job.
const fn parts(way: SharingWay, host: Bytes, joiner: Bytes) -> [SliceShare; 2] {
    match way {
        SharingWay::Mps([first, second]) => [
            SliceShare::Mps(MpsShare { sm: first, memory: host }),
            SliceShare::Mps(MpsShare { sm: second, memory: joiner }),
        ],
        SharingWay::Kernel => [
            SliceShare::Kernel(KernelShare { memory: host }),
            SliceShare::Kernel(KernelShare { memory: joiner }),
        ],
    }
}

/// Starts a job next to its host, which gets a part of its slice if it starts in the same round.
fn join(
    decisions: &mut Vec<Decision>,
    host: &Host<'_>,
    joiner: Joiner<'_>,
    considered: ConsideredWay,
) {
    let [hosts_part, joiners_part] = parts(considered.way, host.needs, joiner.memory);
    let mut policy = String::new();
    for decision in decisions.iter_mut() {
        match decision {
            Decision::Start { job, place, why } if *job == host.job => {
                place.share = Some(hosts_part);
                policy.clone_from(&why.policy);
                why.summary.push_str(&text::shares(joiner.job.id, &considered, Side::Host));
            }
            Decision::Wait { job, why, .. } if *job == joiner.job.id => {
                policy.clone_from(&why.policy);
            }
            Decision::Start { .. }
            | Decision::Wait { .. }
            | Decision::Reshape { .. }
            | Decision::Preempt { .. } => {}
        }
    }
    let place = JobPlacement {
        gpu: host.gpu.id.clone(),
        slot: host.slot,
        steps: Vec::new(),
        part: None,
        share: Some(joiners_part),
    };
    let shares = text::shares(host.job, &considered, Side::Joiner);
    let why = Explanation {
        policy,
        summary: format!("it gets no slice for itself now{shares}"),
        candidates: vec![host.candidate()],
        ..Explanation::default()
    };
    let job = joiner.job.id;
    decisions.retain(|made| !matches!(made, Decision::Wait { job: waits, .. } if *waits == job));
    // The decision comes after the start of its host, which creates the slice.
    decisions.push(Decision::Start { job, place, why });
}
