//! Jobs over several GPUs, one process each, the same for every policy: all of a gang's members get
//! their seats in one round, or none does.
//!
//! No paper that a policy here follows has such jobs. What follows is ours:
//!
//! - **Seats.** A member's seat is what the policy would give a job that asks the same, on a GPU of
//!   its own. The members of one node group sit on one node. Gangs get GPUs of one model where that
//!   is possible, on the nodes that have the fewest such seats to spare.
//! - **Turns.** A gang is *due* if no other job stands before it in the order of service; and once it
//!   has waited [`PATIENCE`], unless one of those before it has waited that much longer. Gangs that
//!   are due are seated before the policy is asked; the others after it, on what it left, if none of
//!   those before them waits.
//! - **Nobody starves.** For the first gang that is due and finds no seats, GPUs are kept: those on
//!   which it can start the soonest, as far as is known when the jobs in its way end: as is forecast,
//!   and at the latest by their time limits. Nothing else starts there but jobs that have ended by
//!   then, by the same measure.
//!
//! **The bound.** Let `L` be the longest that any job sits in one place. The choice of what is kept
//! is made anew each round, by the fewest jobs in the way of which nothing is known, then by the
//! soonest start, then by the order of nodes. Nothing new comes to what is kept that is expected to
//! outlast the wait, so that neither number grows for the GPUs that are kept; another choice is one
//! with smaller numbers, or earlier in the order. There are finitely many of those, and while the
//! choice stays, everybody in the way is gone after `L`: so the gang starts. Where no times are
//! known at all (and nothing is let in) it waits at most `n L`, with `n` jobs in its way. Before that
//! it waits for those that are older than itself by more than [`PATIENCE`], and for the gangs that
//! are due before it; and so do the others for it: only gangs that are at most that much younger go
//! before a job.

mod ends;
mod hall;
mod round;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::spec::GpuAsk;
use tessera_model::{GangShape, JobId, Millis};

use self::round::Round;
use crate::decision::Decision;
use crate::fair::{Quotas, Turn};
use crate::feasibility::holds;
use crate::forecast::Forecast;
use crate::policy::Policy;
use crate::view::{ClusterView, QueuedJob};
use crate::want::Want;

pub use hall::Manner;

/// How long a gang lets jobs before it go first, as far as places for it don't come free by
/// themselves: after that, GPUs are kept for it.
pub const PATIENCE: Millis = Millis::from_secs(300);
/// Most gangs that one round looks at: each looks at every GPU.
pub const LOOK_AT_MAX: usize = 32;

/// What a round is about.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'r> {
    pub(crate) policy: &'r dyn Policy,
    pub(crate) cluster: &'r ClusterView,
    pub(crate) forecast: &'r dyn Forecast,
    pub(crate) now: Millis,
    pub(crate) starts_max: usize,
}

/// Decides one round about gangs, and about all others by the policy.
///
/// The decisions of a gang's members stand together, and there is one for each or none. What is given
/// to gangs is counted in `quotas`; the policy keeps to them by itself.
pub(crate) fn decide<'q>(
    asked: Asked<'q>,
    queue: Vec<Turn<'q>>,
    quotas: Option<Quotas<'q>>,
) -> Vec<Decision> {
    let Asked { policy, forecast, now, starts_max, .. } = asked;
    let (gangs, others) = Gang::sort_out(queue);
    if gangs.is_empty() {
        let mut queue = others.into_iter();
        return policy.decide_with(asked.cluster, forecast, &mut queue, now, starts_max);
    }
    let mut round = Round::new(asked, quotas);
    let (due, later): (Vec<_>, Vec<_>) =
        gangs.into_iter().take(LOOK_AT_MAX).partition(|gang| gang.is_due(now));
    for gang in &due {
        round.serve(gang, true);
    }
    let open = round.hall.view();
    let view = round.closed_for_others(&open);
    let left = round.starts_left();
    let said = policy.decide_with(&view, forecast, &mut others.iter().copied(), now, left);
    round.follow(&said, &others);
    for gang in &later {
        match round.who_waits_before(gang, &others, &said) {
            Some(before) => round.stand_behind(gang, before),
            None => round.serve(gang, false),
        }
    }
    let filled = round.fill(&open, &others, &said);
    let started: BTreeSet<JobId> = filled.iter().filter_map(starts).collect();
    let told = |decision: &Decision| match decision {
        Decision::Wait { job, .. } => !started.contains(job),
        Decision::Start { .. } | Decision::Reshape { .. } => true,
    };
    let mut decisions = std::mem::take(&mut round.decisions);
    decisions.extend(said.into_iter().filter(told));
    decisions.extend(filled);
    decisions
}

/// Whether a cluster could ever seat a gang, by its geometry alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangFeasibility {
    /// It could.
    Yes,
    /// It couldn't.
    Never {
        /// The most GPUs of one node that could each hold a member.
        on_one_node: u32,
        /// How many nodes have at least as many as it wants on each.
        nodes: u32,
        /// A shape with as many members that the cluster could seat, on the fewest nodes.
        instead: Option<GangShape>,
    },
}

/// Tells whether any round could ever seat a gang: what runs now doesn't matter, and neither does
/// whether nodes are away.
pub fn gang_could_ever_fit(
    cluster: &ClusterView,
    ask: &GpuAsk,
    shape: GangShape,
) -> GangFeasibility {
    let want = Want::of(ask, None);
    let mut by_node: BTreeMap<_, u32> = BTreeMap::new();
    for gpu in cluster.gpus.iter().filter(|gpu| holds(gpu, &want)) {
        *by_node.entry(&gpu.node).or_default() += 1;
    }
    let with = |gpus: u32| {
        u32::try_from(by_node.values().filter(|count| **count >= gpus).count()).unwrap_or(u32::MAX)
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

/// A gang that waits, with all of its members.
#[derive(Debug)]
pub(crate) struct Gang<'q> {
    /// Its first member: all ask for the same.
    pub(crate) first: &'q QueuedJob,
    pub(crate) shape: GangShape,
    /// By rank.
    pub(crate) members: Vec<JobId>,
    /// How many jobs that are in no gang stand before it.
    behind: usize,
    /// When it came, as far as its turn is concerned ([`crate::fair`]).
    came: Millis,
    /// When the oldest of those before it came.
    oldest_before: Option<Millis>,
}

impl<'q> Gang<'q> {
    /// Parts a queue into gangs and all others. A gang of which the queue doesn't show every member
    /// is left out.
    pub(crate) fn sort_out(queue: Vec<Turn<'q>>) -> (Vec<Self>, Vec<&'q QueuedJob>) {
        let (mut gangs, mut others): (Vec<Gang<'q>>, Vec<&'q QueuedJob>) = Default::default();
        let mut places: BTreeMap<JobId, usize> = BTreeMap::new();
        let mut oldest_before = None;
        for Turn { job, came } in queue {
            let Some(member) = job.gang else {
                others.push(job);
                oldest_before = Some(oldest_before.map_or(came, |at: Millis| at.min(came)));
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
                    came,
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
        now.minus(self.came) >= PATIENCE && oldest.plus(PATIENCE) >= self.came
    }

    pub(crate) const fn size(&self) -> usize {
        self.members.len()
    }
}

fn starts(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Start { job, .. } => Some(*job),
        Decision::Wait { .. } | Decision::Reshape { .. } => None,
    }
}
