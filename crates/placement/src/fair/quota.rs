//! How many compute slices users and accounts may hold at once, whichever part places them. Gangs, the
//! rules and the search don't know what the others gave in this round.
//!
//! A placement counts with the compute slices of its instance, a shared instance with all of its own,
//! however many share it. A GPU that is not partitioned counts with [`WHOLE`], and a gang with those
//! of all of its members.

mod messages;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::spec::GpuRequest;
use tessera_model::{GpuId, JobId};

use crate::decision::Decision;
use crate::facts::{JobTable, SliceLimit};
use crate::numbers;
use crate::request::SliceRequest;
use crate::view::{ClusterView, GpuView, InstanceState, QueuedJob, Tenancy};

/// Compute slices that a GPU without MIG counts for: as many as the large partitioned ones have.
const WHOLE: u32 = 7;

/// What holders would take beyond their quotas.
#[derive(Debug, Default)]
pub(crate) struct Over {
    /// Whose decisions are taken out.
    pub(crate) jobs: BTreeSet<JobId>,
    /// The GPUs that they were about.
    pub(crate) gpus: BTreeSet<GpuId>,
}

/// What the holders of quotas have, as a round goes on.
#[derive(Clone)]
pub(crate) struct Quotas<'r> {
    cluster: &'r ClusterView,
    jobs: &'r dyn JobTable,
    /// One GPU of each kind: what a job takes at least is requested thousands of jobs.
    kinds: Vec<&'r GpuView>,
    held: BTreeMap<Arc<str>, u32>,
    /// Places that this round gave away: who gets one after another shares it.
    given: BTreeSet<(GpuId, Option<Slot>)>,
    /// Users of slices that are shared already.
    sharing: BTreeSet<Arc<str>>,
    /// Of those who have some.
    of_jobs: RefCell<BTreeMap<JobId, Rc<[SliceLimit]>>>,
    none: Rc<[SliceLimit]>,
    of_users: RefCell<BTreeMap<Arc<str>, Rc<[SliceLimit]>>>,
}

impl<'r> Quotas<'r> {
    /// Looks at who holds what; `None` where no quota holds for anybody of the queue, or who runs.
    pub(crate) fn of(
        cluster: &'r ClusterView,
        jobs: &'r dyn JobTable,
        mut queue: impl Iterator<Item = &'r QueuedJob>,
    ) -> Option<Self> {
        let mut quotas = Self {
            cluster,
            jobs,
            kinds: cluster.one_of_each_kind(),
            held: BTreeMap::new(),
            given: BTreeSet::new(),
            sharing: BTreeSet::new(),
            of_jobs: RefCell::default(),
            none: Rc::from([]),
            of_users: RefCell::default(),
        };
        let waits = queue.any(|job| !quotas.limits_for(job).is_empty());
        let runs = quotas.count_running();
        (waits || runs).then_some(quotas)
    }

    fn count_running(&mut self) -> bool {
        let instances = self.cluster.gpus.iter().flat_map(|gpu| &gpu.instances);
        self.sharing = instances
            .filter_map(|instance| match &instance.state {
                InstanceState::Shared(tenancy) => Some(Arc::clone(&tenancy.user)),
                _ => None,
            })
            .collect();
        let mut any = false;
        for (job, slices) in held(self.cluster) {
            for limit in &*self.limits(job) {
                any = true;
                *self.held.entry(Arc::clone(&limit.name)).or_default() += slices;
            }
        }
        any
    }

    fn limits(&self, job: JobId) -> Rc<[SliceLimit]> {
        if let Some(known) = self.of_jobs.borrow().get(&job) {
            return Rc::clone(known);
        }
        let account = self.jobs.account(job);
        if account.as_ref().is_none_or(|account| account.limits().next().is_none()) {
            return Rc::clone(&self.none);
        }
        let limits: Rc<[SliceLimit]> =
            account.iter().flat_map(|account| account.limits()).collect();
        self.of_jobs.borrow_mut().insert(job, Rc::clone(&limits));
        limits
    }

    /// Jobs of one user have one account.
    fn limits_for(&self, job: &QueuedJob) -> Rc<[SliceLimit]> {
        if let Some(known) = self.of_users.borrow().get(&job.user) {
            return Rc::clone(known);
        }
        let limits = self.limits(job.id);
        self.of_users.borrow_mut().insert(Arc::clone(&job.user), Rc::clone(&limits));
        limits
    }

    fn left(&self, limit: &SliceLimit, held: &BTreeMap<Arc<str>, u32>) -> u32 {
        let has = held.get(&limit.name).copied().unwrap_or(0);
        limit.slices.saturating_sub(has)
    }

    /// Returns how many compute slices a job's user and account may still take; `None` without quotas.
    pub(crate) fn left_for(&self, job: &QueuedJob) -> Option<u32> {
        self.limits_for(job).iter().map(|limit| self.left(limit, &self.held)).min()
    }

    /// Whether the least that so many jobs with this request could get together is more than may
    /// still be taken.
    pub(crate) fn bars(&self, job: &QueuedJob, members: u32) -> bool {
        let Some(left) = self.left_for(job) else { return false };
        if job.share.is_some() {
            return left == 0 && !self.sharing.contains(&job.user);
        }
        left == 0 || self.least(job).is_some_and(|least| least.saturating_mul(members) > left)
    }

    /// Returns the compute slices of the smallest slice that suits a job; nothing for sharers, who may
    /// find one that their user has already.
    fn least(&self, job: &QueuedJob) -> Option<u32> {
        if job.share.is_some() {
            return None;
        }
        least_slices(self.kinds.iter().copied(), &SliceRequest::of(&job.gpu, None))
    }

    /// Takes out the decisions by which somebody would get more than may be, in their order, and
    /// counts the others.
    pub(crate) fn sift(&mut self, decided: &mut Vec<Decision>) -> Over {
        let mut over = Over::default();
        decided.retain(|decision| {
            let more = self.more(decision);
            let beyond: BTreeSet<Arc<str>> = more
                .values()
                .filter(|(limit, more)| {
                    *more > 0 && *more > i64::from(self.left(limit, &self.held))
                })
                .map(|(limit, _)| Arc::clone(&limit.name))
                .collect();
            if beyond.is_empty() {
                self.add(decision, more);
                return true;
            }
            let of_those =
                |job: &JobId| self.limits(*job).iter().any(|limit| beyond.contains(&limit.name));
            over.jobs.extend(named(decision).into_iter().filter(of_those));
            over.gpus.extend(decision.gpu().cloned());
            false
        });
        over
    }

    /// Counts what is decided.
    pub(crate) fn count(&mut self, decision: &Decision) {
        let more = self.more(decision);
        self.add(decision, more);
    }

    fn add(&mut self, decision: &Decision, more: BTreeMap<Arc<str>, (SliceLimit, i64)>) {
        if let Decision::Start { place, .. } = decision {
            self.given.insert((place.gpu.clone(), place.slot));
        }
        for (name, (_, more)) in more {
            let entry = self.held.entry(name).or_default();
            *entry = numbers::slices_after(*entry, more);
        }
    }

    /// Returns what is taken or given back by a decision.
    fn more(&self, decision: &Decision) -> BTreeMap<Arc<str>, (SliceLimit, i64)> {
        let mut more: BTreeMap<Arc<str>, (SliceLimit, i64)> = BTreeMap::new();
        let mut count = |job: JobId, slices: u32, sign: i64| {
            for limit in &*self.limits(job) {
                let name = Arc::clone(&limit.name);
                more.entry(name).or_insert_with(|| (limit.clone(), 0)).1 +=
                    sign * i64::from(slices);
            }
        };
        let gpu_of = |id: &GpuId| self.cluster.gpus.iter().find(|gpu| gpu.id == *id);
        match decision {
            Decision::Wait { .. } => {}
            Decision::Start { job, place, .. } => {
                let Some(gpu) = gpu_of(&place.gpu) else { return more };
                // Who joins others takes nothing more.
                let joins = gpu.instances.iter().any(|instance| {
                    instance.slot == place.slot
                        && match &instance.state {
                            InstanceState::Shared(tenancy) => !tenancy.sharers.is_empty(),
                            InstanceState::Cut(compute) => compute.tenancy.is_some(),
                            _ => false,
                        }
                });
                if !joins && !self.given.contains(&(place.gpu.clone(), place.slot)) {
                    count(*job, slices(gpu, place.slot), 1);
                }
            }
            Decision::Reshape { reshape, .. } => {
                let Some(gpu) = gpu_of(&reshape.gpu) else { return more };
                for instance in &gpu.instances {
                    let holder = match &instance.state {
                        InstanceState::Taken { job } => Some(*job),
                        InstanceState::Shared(tenancy) => {
                            tenancy.sharers.first().map(|(job, _)| *job)
                        }
                        _ => None,
                    };
                    if let Some(job) = holder {
                        count(job, slices(gpu, instance.slot), -1);
                    }
                }
                let mut given: BTreeSet<Option<Slot>> = BTreeSet::new();
                // Those who share an instance are of one user, and it counts once.
                for placed in &reshape.placements {
                    if given.insert(placed.slot) {
                        count(placed.job, slices(gpu, placed.slot), 1);
                    }
                }
            }
        }
        more
    }
}

/// Returns the compute slices of the smallest slice of some GPUs that suits a request.
fn least_slices<'g>(
    gpus: impl Iterator<Item = &'g GpuView>,
    request: &SliceRequest,
) -> Option<u32> {
    let of_gpu = |gpu: &GpuView| match (gpu.mig.as_deref(), request) {
        (Some(mig), SliceRequest::Part(name)) => {
            let whole = gpu.cuttable(name)?;
            mig.geometry.profile(whole.id).map(|profile| u32::from(profile.compute_slices))
        }
        (Some(mig), _) => {
            let suits = request.tight(mig).into_iter();
            suits.map(|profile| u32::from(profile.compute_slices)).min()
        }
        (None, _) => request.suits_unpartitioned(gpu.memory).then_some(WHOLE),
    };
    gpus.filter_map(of_gpu).min()
}

/// Returns the fewest compute slices that any slice of a cluster has that suits a request; `None` if none
/// does.
pub fn least(cluster: &ClusterView, gpu_request: &GpuRequest) -> Option<u32> {
    least_slices(cluster.one_of_each_kind().into_iter(), &SliceRequest::of(gpu_request, None))
}

/// Returns the jobs that a decision gives places.
fn named(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Start { job, .. } => vec![*job],
        Decision::Wait { .. } => Vec::new(),
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
    }
}

/// Returns the compute slices of a place.
pub(crate) fn slices(gpu: &GpuView, slot: Option<Slot>) -> u32 {
    match (slot, gpu.mig.as_deref()) {
        (Some(slot), Some(mig)) => {
            let profile = mig.geometry.profile(slot.profile);
            profile.map_or(0, |profile| u32::from(profile.compute_slices))
        }
        (None, Some(mig)) => {
            let largest = mig.largest();
            largest.map_or(WHOLE, |largest| u32::from(largest.compute_slices))
        }
        (_, None) => WHOLE,
    }
}

/// Returns who holds how many compute slices: each instance that is taken counts once, for one of the
/// jobs that have it.
pub fn held(cluster: &ClusterView) -> impl Iterator<Item = (JobId, u32)> {
    cluster.gpus.iter().flat_map(|gpu| {
        gpu.instances.iter().filter_map(|instance| {
            let first = |tenancy: &Tenancy| tenancy.sharers.first().map(|(job, _)| *job);
            let holder = match &instance.state {
                InstanceState::Taken { job } => Some(*job),
                // All of them are one user's.
                InstanceState::Shared(tenancy) => first(tenancy),
                InstanceState::Cut(compute) => compute.tenancy.as_ref().and_then(first),
                InstanceState::Idle
                | InstanceState::Foreign
                | InstanceState::Stuck
                | InstanceState::Leaving
                | InstanceState::Quarantined => None,
            };
            Some((holder?, slices(gpu, instance.slot)))
        })
    })
}
