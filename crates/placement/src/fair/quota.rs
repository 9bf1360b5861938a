//! How many compute slices users and accounts may hold at once, whichever part places their jobs.
//! Gangs, the rules and the search don't know what the other parts placed in this round.
//!
//! A placement counts as the compute slices of its instance. A shared instance counts once with all
//! of its slices, however many jobs share it. A GPU that is not partitioned counts as [`WHOLE`],
//! and a gang as the sum of its members.

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

/// How many compute slices a GPU without MIG counts as: as many as large partitioned GPUs have.
const WHOLE: u32 = 7;

/// The decisions that would exceed quotas.
#[derive(Debug, Default)]
pub(crate) struct Over {
    /// The jobs whose decisions are removed.
    pub(crate) jobs: BTreeSet<JobId>,
    /// The GPUs of those decisions.
    pub(crate) gpus: BTreeSet<GpuId>,
}

/// The compute slices that holders of quotas have, updated during a round.
#[derive(Clone)]
pub(crate) struct Quotas<'r> {
    cluster: &'r ClusterView,
    jobs: &'r dyn JobTable,
    /// One GPU of each kind. The least number of slices that a job takes is needed for thousands of
    /// jobs.
    kinds: Vec<&'r GpuView>,
    held: BTreeMap<Arc<str>, u32>,
    /// Placements of this round. A job that gets one of them later shares it.
    given: BTreeSet<(GpuId, Option<Slot>)>,
    /// The users of slices that are shared already.
    sharing: BTreeSet<Arc<str>>,
    /// The slices of holders that have any.
    of_jobs: RefCell<BTreeMap<JobId, Rc<[SliceLimit]>>>,
    none: Rc<[SliceLimit]>,
    of_users: RefCell<BTreeMap<Arc<str>, Rc<[SliceLimit]>>>,
}

impl<'r> Quotas<'r> {
    /// Reads the compute slices that each holder has; `None` if no quota applies to any waiting or
    /// running job.
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
        let mut last: Option<&Arc<str>> = None;
        // Of jobs of one user that follow each other, only the first one's account is read.
        let waits = queue.any(|job| {
            let is_known = last.is_some_and(|last| Arc::ptr_eq(last, &job.user));
            last = Some(&job.user);
            !is_known && !quotas.limits_for(job).is_empty()
        });
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

    /// All jobs of one user have the same account.
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

    /// Returns whether so many jobs with this request would exceed a quota even on the smallest
    /// slices.
    pub(crate) fn bars(&self, job: &QueuedJob, members: u32) -> bool {
        let Some(left) = self.left_for(job) else { return false };
        if job.share.is_some() {
            return left == 0 && !self.sharing.contains(&job.user);
        }
        left == 0 || self.least(job).is_some_and(|least| least.saturating_mul(members) > left)
    }

    /// Returns the compute slices of the smallest slice that suits a job; zero for sharing jobs,
    /// which may join a slice that their user has already.
    fn least(&self, job: &QueuedJob) -> Option<u32> {
        if job.share.is_some() {
            return None;
        }
        least_slices(self.kinds.iter().copied(), &SliceRequest::of(&job.gpu, None))
    }

    /// Removes the decisions that would exceed a quota, in their order, and counts the others.
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

    /// Counts the slices of a decision.
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

    /// Returns the slices that a decision takes or returns.
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
            Decision::Wait { .. } | Decision::Preempt { .. } => {}
            Decision::Start { job, place, .. } => {
                let Some(gpu) = gpu_of(&place.gpu) else { return more };
                // A job that joins others takes no more slices.
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
                // Jobs that share an instance are of one user, and the instance counts once.
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

/// Returns the compute slices of the smallest slice in the cluster that suits a request; `None` if
/// there is none.
pub fn least(cluster: &ClusterView, gpu_request: &GpuRequest) -> Option<u32> {
    least_slices(cluster.one_of_each_kind().into_iter(), &SliceRequest::of(gpu_request, None))
}

/// Returns the jobs that a decision places.
fn named(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Start { job, .. } => vec![*job],
        Decision::Wait { .. } | Decision::Preempt { .. } => Vec::new(),
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
    }
}

/// Returns the compute slices of a placement.
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

/// Returns how many compute slices each job holds. An instance with several jobs counts once, for
/// one of them.
pub fn held(cluster: &ClusterView) -> impl Iterator<Item = (JobId, u32)> {
    cluster.gpus.iter().flat_map(|gpu| {
        gpu.instances.iter().filter_map(|instance| {
            let first = |tenancy: &Tenancy| tenancy.sharers.first().map(|(job, _)| *job);
            let holder = match &instance.state {
                InstanceState::Taken { job } => Some(*job),
                // All of its jobs are of one user.
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
