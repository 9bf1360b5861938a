//! Jobs whose users let the controller decide whether they share a slice (`--share auto`).
//!
//! A policy places such a job as one that has its slice to itself. After that, a job that would wait may join
//! **one** other job of its user on a slice, in the way ([`SharingWay`]) that promises most. No paper that a policy
//! here follows decides this for a job; the rules are ours:
//!
//! - A job shares only if it finds no slice of its own. So no decision differs where slices are free.
//! - Its partner is of the same user, and its way of sharing is still open or open to others. It starts in this very
//!   round and is `auto` too, or it is alone on a slice that it shares already. A running job that has its slice to
//!   itself is never joined: its program was started without a queue and without MPS.
//! - The memory of both fits. Neither has a deadline. Time limits hold by the lower predicted speeds.
//! - How busy both are was measured. Under MPS a trusted model predicts their speeds, and their run times are known.
//! - The benefit is certain: see [`weigh`] for the margins.
//! - Two jobs that may both be bound by bandwidth never share under MPS (rule 1 of the co-execution study).
//!
//! Where nothing is known of a job, every one of these decisions is that of a job with `--share exclusive`.
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

/// Jobs that may share and find no slice, of which a round looks at most at so many. Chosen by the time of a round.
const SEEN_MAX: usize = 64;

/// A way in which two jobs can share a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingWay {
    /// Under MPS, with the percentages of the host and of the joiner.
    Mps([SmPercent; 2]),
    /// Kernel by kernel, each with its own priority.
    Kernel,
}

/// A way that was considered for a pair: what is predicted, and whether the rules allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConsideredWay {
    way: SharingWay,
    figures: Option<PairFigures>,
    /// The lower bound of what both do together, in thousandths of one job alone; or the rule that forbids it.
    verdict: Result<u32, SharingRefusal>,
}

/// A waiting job that may share a slice.
#[derive(Clone, Copy, Debug)]
struct Joiner<'q> {
    job: &'q QueuedJob,
    memory: Bytes,
}

/// Lets jobs join others where a round has no slice for them. `queue` has the waiting jobs in service order, and
/// `decisions` what a policy decided about them; at most `starts_max` jobs start.
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

/// Returns the `auto` jobs that got no place, as far as a slice is all that they lack.
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

/// Weighs each host that a job could join, by its place in the list.
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

/// Returns the way that the rules allow and by which both do most for certain; of equals the first.
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

/// Returns the parts of the host and of the joiner.
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
            Decision::Start { .. } | Decision::Wait { .. } | Decision::Reshape { .. } => {}
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
        summary: format!("it gets no slice of its own now{shares}"),
        candidates: vec![host.candidate()],
        ..Explanation::default()
    };
    let job = joiner.job.id;
    decisions.retain(|made| !matches!(made, Decision::Wait { job: waits, .. } if *waits == job));
    // Behind the start of its host, which makes the slice.
    decisions.push(Decision::Start { job, place, why });
}
