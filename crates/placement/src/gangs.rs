//! Gangs: jobs over several GPUs with one member on each, the same for every policy. All members of a gang
//! start in one round, or none does.
//!
//! None of the papers that the policies follow has such jobs. The following rules are ours:
//!
//! - **Placement.** A member gets what the policy would give a job with the same request, on a separate GPU.
//!   The members of one node group run on one node. Gangs get GPUs of one model where that is possible, on
//!   the nodes with the fewest suitable slices left over.
//! - **Order.** A gang is *due* if no other job is ahead of it in the order of service. It is also due if it
//!   has waited [`PATIENCE`] and no job ahead of it is older by more than that. Due gangs are
//!   placed before the policy decides. The others are placed after it, on the remaining slices, if
//!   no job ahead of them waits.
//! - **No starvation.** For the first due gang without placements, GPUs are reserved. They are
//!   those on which it can start the soonest, by the predicted ends of the jobs in its way, and
//!   their time limits. Only jobs that end by then start there.
//!
//! **The bound.** Let `L` be the longest time that any job stays in one placement. The reservation
//! is chosen again in each round: by the fewest jobs in the way whose end is unknown, then by the
//! soonest start, then by the order of nodes. No job that is expected to outlast the wait starts on
//! reserved GPUs, so neither number grows for them. Another choice has smaller numbers or is
//! earlier in the order, and there are finitely many such choices. While the choice doesn't change,
//! every job in the way has ended after `L`, and the gang starts. Where no times are known it waits
//! at most `n L`, with `n` jobs in its way. Before that it waits for the jobs that are older than
//! itself by more than [`PATIENCE`], and for the due gangs ahead of it. A job is overtaken only by
//! gangs that are younger by at most [`PATIENCE`].

mod capacity_search;
mod end_times;
mod gang_round;
mod messages;

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::spec::GpuRequest;
use tessera_model::{GangShape, JobId, Millis};

use self::gang_round::GangRound;
use crate::decision::Decision;
use crate::fair::{OrderedJob, Quotas};
use crate::feasibility::holds;
use crate::numbers;
use crate::policy::Policy;
use crate::predictor::Knowledge;
use crate::request::SliceRequest;
use crate::view::{ClusterView, QueuedJob};

/// How long a gang waits for the jobs ahead of it before GPUs are reserved for it.
pub const PATIENCE: Millis = Millis::from_secs(300);
/// The most gangs that one round considers: each one requires a scan of all GPUs.
pub const LOOK_AT_MAX: usize = 32;

/// The input of a round.
#[derive(Clone, Copy)]
pub(crate) struct GangInput<'r> {
    pub(crate) policy: &'r dyn Policy,
    pub(crate) cluster: &'r ClusterView,
    pub(crate) knowledge: Knowledge<'r>,
    pub(crate) now: Millis,
    pub(crate) starts_max: usize,
}

/// Decides one round: gangs by the rules above, and all other jobs by the policy.
///
/// The decisions of a gang's members are adjacent, and there is one for each member or none. The
/// placements of gangs are counted in `quotas`; the policy keeps its own quotas.
pub(crate) fn decide<'q>(
    input: GangInput<'q>,
    queue: Vec<OrderedJob<'q>>,
    quotas: Option<Quotas<'q>>,
) -> Vec<Decision> {
    let GangInput { policy, knowledge, now, starts_max, .. } = input;
    let (gangs, others) = Gang::sort_out(queue);
    if gangs.is_empty() {
        let mut queue = others.into_iter();
        return policy.decide_with(input.cluster, knowledge, &mut queue, now, starts_max);
    }
    let mut round = GangRound::new(input, quotas);
    let (due, later): (Vec<_>, Vec<_>) =
        gangs.into_iter().take(LOOK_AT_MAX).partition(|gang| gang.is_due(now));
    for gang in &due {
        round.serve(gang, true);
    }
    let open = round.capacity.view();
    let view = round.closed_for_others(&open);
    let left = round.starts_left();
    let decided = policy.decide_with(&view, knowledge, &mut others.iter().copied(), now, left);
    round.follow(&decided, &others);
    for gang in &later {
        match round.waiting_job_ahead(gang, &others, &decided) {
            Some(before) => round.stand_behind(gang, before),
            None => round.serve(gang, false),
        }
    }
    let filled = round.fill(&open, &others, &decided);
    let started: BTreeSet<JobId> = filled.iter().filter_map(starts).collect();
    let is_reported = |decision: &Decision| match decision {
        Decision::Wait { job, .. } => !started.contains(job),
        Decision::Start { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => true,
    };
    let mut decisions = std::mem::take(&mut round.decisions);
    decisions.extend(decided.into_iter().filter(is_reported));
    decisions.extend(filled);
    decisions
}

/// Whether a cluster could ever place a gang, by its geometry alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangFeasibility {
    /// It could.
    Yes,
    /// It couldn't.
    Never {
        /// The most GPUs of one node that could each hold a member.
        on_one_node: u32,
        /// How many nodes have at least as many GPUs as it requests on each.
        nodes: u32,
        /// A shape with as many members that the cluster could place, on the fewest nodes.
        instead: Option<GangShape>,
    },
}

/// Returns whether any round could ever place a gang: current jobs and unavailable nodes don't
/// matter.
pub fn gang_could_ever_fit(
    cluster: &ClusterView,
    gpu_request: &GpuRequest,
    shape: GangShape,
) -> GangFeasibility {
    let request = SliceRequest::of(gpu_request, None);
    let mut by_node: BTreeMap<_, u32> = BTreeMap::new();
    for gpu in cluster.gpus.iter().filter(|gpu| holds(gpu, &request)) {
        *by_node.entry(&gpu.node).or_default() += 1;
    }
    let with = |gpus: u32| {
        numbers::saturating_u32(by_node.values().filter(|count| **count >= gpus).count())
    };
    if with(shape.per_node()) >= shape.nodes() {
        return GangFeasibility::Yes;
    }
    let members = shape.members();
    let mut other = (1..=members)
        .filter(|nodes| members.is_multiple_of(*nodes))
        .filter_map(|nodes| GangShape::new(nodes, members / nodes).ok());
    GangFeasibility::Never {
        on_one_node: by_node.values().copied().max().unwrap_or(0),
        nodes: with(shape.per_node()),
        instead: other.find(|other| with(other.per_node()) >= other.nodes()),
    }
}

/// A waiting gang, with all of its members.
#[derive(Debug)]
pub(crate) struct Gang<'q> {
    /// Its first member; all members request the same.
    pub(crate) first: &'q QueuedJob,
    pub(crate) shape: GangShape,
    /// Its members, by rank.
    pub(crate) members: Vec<JobId>,
    /// How many jobs outside of gangs are ahead of it.
    behind: usize,
    /// The time by which it is ordered ([`crate::fair`]).
    ranked_at: Millis,
    /// The same for the oldest job ahead of it.
    oldest_before: Option<Millis>,
}

impl<'q> Gang<'q> {
    /// Divides a queue into gangs and all other jobs. A gang with members that are missing from the
    /// queue is left out.
    pub(crate) fn sort_out(queue: Vec<OrderedJob<'q>>) -> (Vec<Self>, Vec<&'q QueuedJob>) {
        let (mut gangs, mut others): (Vec<Gang<'q>>, Vec<&'q QueuedJob>) = Default::default();
        let mut places: BTreeMap<JobId, usize> = BTreeMap::new();
        let mut oldest_before = None;
        for OrderedJob { job, ranked_at } in queue {
            let Some(member) = job.gang else {
                others.push(job);
                oldest_before =
                    Some(oldest_before.map_or(ranked_at, |at: Millis| at.min(ranked_at)));
                continue;
            };
            let place = *places.entry(member.gang).or_insert_with(|| {
                let behind = others.len();
                let members = Vec::new();
                gangs.push(Gang {
                    first: job,
                    shape: member.shape,
                    members,
                    behind,
                    ranked_at,
                    oldest_before,
                });
                gangs.len() - 1
            });
            gangs[place].members.push(job.id);
        }
        gangs.iter_mut().for_each(|gang| gang.members.sort_unstable());
        gangs.retain(|gang| u32::try_from(gang.members.len()) == Ok(gang.shape.members()));
        (gangs, others)
    }

    fn is_due(&self, now: Millis) -> bool {
        let Some(oldest) = self.oldest_before else { return true };
        now.minus(self.ranked_at) >= PATIENCE && oldest.plus(PATIENCE) >= self.ranked_at
    }

    pub(crate) const fn size(&self) -> usize {
        self.members.len()
    }
}

fn starts(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Start { job, .. } => Some(*job),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    }
}
