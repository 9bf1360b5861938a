//! Jobs that name a compute instance (`1c.3g.20gb`), the same for every policy.
//!
//! No paper cuts GPU instances further. What follows is ours:
//!
//! - Only an operator's layout cuts a GPU instance, and only a job that names a compute instance
//!   runs on one: it shares its memory with whoever is beside it, and nothing but the programs'
//!   own modesty divides that. Of the memory, as much is counted for a job as it has of the
//!   compute slices.
//! - All compute instances of a GPU instance belong to one user at a time: a fault of the GPU
//!   instance may hit all of them.
//! - Jobs fill a GPU instance up before they take the next one, so that whole ones stay free.
//! - A job that waits holds up those behind it that want the same, and those of other users that
//!   would keep its GPU instances from coming free: nobody starves.
//!
//! Such jobs compete with no others, so that they are seated before the policy is asked.

use std::cmp::Reverse;
use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::mig::compute::{ComputeName, ComputeSlot};
use tessera_model::share::{ComputeShare, Part};
use tessera_model::spec::GpuAsk;
use tessera_model::{Bytes, JobId};

use crate::decision::{Decision, Place, WaitReason};
use crate::explain::parts as words;
use crate::fair::{Quotas, Turn};
use crate::view::{Closure, ClusterView, GpuView, InstanceState, QueuedJob, Seats, Tenancy};

/// What became of the head of a queue.
#[derive(Debug, Default)]
pub struct Seated<'q> {
    /// What was decided about jobs that name compute instances.
    pub decisions: Vec<Decision>,
    /// How many of them start.
    pub started: usize,
    /// All other jobs, for the policy, in their order.
    pub others: Vec<&'q QueuedJob>,
}

/// A GPU instance that is cut, with what this round decided laid over it.
#[derive(Clone, Debug)]
pub(crate) struct Bench<'c> {
    pub(crate) gpu: &'c GpuView,
    pub(crate) slot: Slot,
    seats: Seats,
    /// Who has it, after this round's starts.
    pub(crate) user: Option<Arc<str>>,
    /// Who sits where, after this round's starts.
    pub(crate) taken: Vec<(JobId, ComputeSlot)>,
}

impl Bench<'_> {
    /// Returns the compute instances of a size that are free.
    fn free(&self, slices: u8) -> impl Iterator<Item = ComputeSlot> {
        let free = |slot: &ComputeSlot| self.taken.iter().all(|(_, taken)| !taken.overlaps(*slot));
        self.seats.cut.iter().filter(move |slot| slot.slices == slices).filter(free)
    }

    /// Tells whether it has compute instances of a size.
    pub(crate) fn has(&self, slices: u8) -> bool {
        self.seats.cut.iter().any(|slot| slot.slices == slices)
    }

    fn lets(&self, user: &Arc<str>) -> bool {
        self.user.as_ref().is_none_or(|there| there == user)
    }
}

/// A job that waits, and so holds others up.
struct Head<'q> {
    name: &'q ComputeName,
    user: &'q Arc<str>,
}

/// What became of a queue, with what it was seated on.
#[derive(Debug, Default)]
pub(crate) struct Table<'c, 'q> {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) started: usize,
    pub(crate) others: Vec<Turn<'q>>,
    pub(crate) benches: Vec<Bench<'c>>,
}

/// Seats the jobs of a queue that name compute instances.
pub fn seat<'q>(
    cluster: &ClusterView,
    queue: &mut dyn Iterator<Item = &'q QueuedJob>,
    starts_max: usize,
) -> Seated<'q> {
    let turns = queue.map(|job| Turn { job, came: job.submitted }).collect();
    let Table { decisions, started, others, .. } = seat_in_turn(cluster, turns, None, starts_max);
    Seated { decisions, started, others: others.into_iter().map(|turn| turn.job).collect() }
}

/// Does as [`seat`], in this order, and within quotas.
pub(crate) fn seat_in_turn<'c, 'q>(
    cluster: &'c ClusterView,
    queue: Vec<Turn<'q>>,
    mut quotas: Option<&mut Quotas<'_>>,
    starts_max: usize,
) -> Table<'c, 'q> {
    let mut seated = Table::default();
    let mut benches = None;
    let mut heads: Vec<Head<'q>> = Vec::new();
    for turn in queue {
        let job = turn.job;
        let GpuAsk::Compute(name) = &job.gpu else {
            seated.others.push(turn);
            continue;
        };
        let held_up = heads.iter().any(|head| {
            head.name == name || (head.name.profile == name.profile && *head.user != job.user)
        });
        if held_up || seated.started >= starts_max {
            continue;
        }
        let benches = benches.get_or_insert_with(|| benches_of(cluster));
        let found = best(benches, name, &job.user);
        // Beside others of its user it takes nothing more; and whom a quota holds holds up nobody.
        let alone = found.is_none_or(|(index, _)| benches[index].user.is_none());
        if let Some(quotas) = quotas.as_deref().filter(|quotas| alone && quotas.bars(job, 1)) {
            seated.decisions.push(quotas.wait(words::POLICY, job, 1, None));
            continue;
        }
        match found {
            Some((index, part)) => {
                let why = words::start(job, name, benches, index, part);
                let bench = &mut benches[index];
                bench.user = Some(Arc::clone(&job.user));
                bench.taken.push((job.id, part));
                let gpu = bench.gpu.id.clone();
                let place =
                    Place { gpu, slot: Some(bench.slot), steps: Vec::new(), part: Some(part) };
                let start = Decision::Start { job: job.id, place, why };
                if let Some(quotas) = &mut quotas {
                    quotas.count(&start);
                }
                seated.decisions.push(start);
                seated.started += 1;
            }
            None => {
                let reason = reason(cluster, benches, name);
                let why = words::wait(job, name, cluster, benches, reason);
                seated.decisions.push(Decision::Wait { job: job.id, reason, why });
                heads.push(Head { name, user: &job.user });
            }
        }
    }
    seated.benches = benches.unwrap_or_default();
    seated
}

/// Returns the cluster with what was given away on it, for whoever counts what is held.
pub(crate) fn laid_over(cluster: &ClusterView, benches: &[Bench<'_>]) -> ClusterView {
    let mut view = cluster.clone();
    for bench in benches {
        let Some(user) = &bench.user else { continue };
        let of = |gpu: &&mut GpuView| gpu.id == bench.gpu.id;
        let instances =
            view.gpus.iter_mut().find(of).into_iter().flat_map(|gpu| &mut gpu.instances);
        let sits = |(job, slot): &(JobId, ComputeSlot)| {
            (*job, Part::Compute(ComputeShare { slot: *slot, memory: Bytes::ZERO }))
        };
        for instance in instances.filter(|instance| instance.slot == Some(bench.slot)) {
            if let InstanceState::Cut(seats) = &mut instance.state {
                let sharers = bench.taken.iter().map(sits).collect();
                seats.tenancy = Some(Tenancy::of(Arc::clone(user), sharers));
            }
        }
    }
    view
}

/// Lists the GPU instances that are cut, in the cluster's order.
fn benches_of(cluster: &ClusterView) -> Vec<Bench<'_>> {
    let of = |gpu| {
        move |instance: &crate::view::InstanceView| {
            let InstanceState::Cut(seats) = &instance.state else { return None };
            Some(Bench {
                gpu,
                slot: instance.slot?,
                seats: seats.clone(),
                user: seats.tenancy.as_ref().map(|tenancy| Arc::clone(&tenancy.user)),
                taken: seats.taken().collect(),
            })
        }
    };
    cluster.gpus.iter().flat_map(|gpu| gpu.instances.iter().filter_map(of(gpu))).collect()
}

/// Tells whether compute instances of a GPU instance go by a name.
pub(crate) fn is_of(bench: &Bench<'_>, name: &ComputeName) -> bool {
    bench.gpu.cuttable(name).is_some_and(|profile| profile.id == bench.slot.profile)
}

/// Finds the seat that a job takes: beside the most jobs, of equals the first.
fn best(
    benches: &[Bench<'_>],
    name: &ComputeName,
    user: &Arc<str>,
) -> Option<(usize, ComputeSlot)> {
    let open = benches
        .iter()
        .enumerate()
        .filter(|(_, bench)| bench.gpu.available && is_of(bench, name) && bench.lets(user));
    let seats = open.filter_map(|(index, bench)| {
        Some((Reverse(bench.taken.len()), index, bench.free(name.slices).next()?))
    });
    seats.min().map(|(_, index, part)| (index, part))
}

fn reason(cluster: &ClusterView, benches: &[Bench<'_>], name: &ComputeName) -> WaitReason {
    if cluster.gpus.is_empty() {
        return WaitReason::NodeUnavailable;
    }
    let holders: Vec<_> = cluster.gpus.iter().filter(|gpu| gpu.cuttable(name).is_some()).collect();
    if holders.is_empty() {
        return WaitReason::BadConstraints;
    }
    let cut = || benches.iter().filter(|bench| is_of(bench, name) && bench.has(name.slices));
    if cut().any(|bench| bench.gpu.available) {
        return WaitReason::Resources;
    }
    // Where nothing is cut so, an operator has to do it, if a node is there.
    let gpus: Vec<&GpuView> = match cut().next() {
        None if holders.iter().any(|gpu| gpu.available) => return WaitReason::MigFragmentation,
        None => holders,
        Some(_) => cut().map(|bench| bench.gpu).collect(),
    };
    let closed: Option<Vec<Closure>> =
        gpus.iter().map(|gpu| gpu.operator.closed.as_ref().map(|closed| closed.how)).collect();
    match closed {
        None => WaitReason::NodeUnavailable,
        Some(closed) if closed.contains(&Closure::Kept) => WaitReason::Resources,
        Some(closed) if closed.contains(&Closure::Drained) => WaitReason::NodeDrained,
        Some(_) => WaitReason::GpuQuarantined,
    }
}
