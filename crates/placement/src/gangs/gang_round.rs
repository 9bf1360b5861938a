//! One round with gangs, around the policy's round.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::{GangShape, GpuId, JobId, Millis};

use super::capacity_search::{CapacitySearch, MemberPlacement, ReservedGpus};
use super::end_times::EndTimes;
use super::messages::GangAhead;
use super::{Gang, GangInput, messages, starts};
use crate::decision::{Decision, Explanation, JobPlacement, WaitReason};
use crate::fair::{Quotas, slices};
use crate::policy::Policy;
use crate::predictor::Knowledge;
use crate::request::{NumberedRequest, SliceRequest};
use crate::view::{ClosureKind, ClusterView, GpuClosure, GpuView, QueuedJob};

/// The state of a round.
pub(super) struct GangRound<'r> {
    policy: &'r dyn Policy,
    cluster: &'r ClusterView,
    knowledge: Knowledge<'r>,
    now: Millis,
    starts_max: usize,
    quotas: Option<Quotas<'r>>,
    pub(super) capacity: CapacitySearch<'r>,
    pub(super) decisions: Vec<Decision>,
    started: usize,
    /// The reservation, and the gang that it is for.
    kept: Option<(JobId, ReservedGpus)>,
    /// The numbers of the requests of earlier waiting gangs: a gang with the same request waits as well.
    waiting: BTreeMap<(usize, GangShape), Wait<'r>>,
}

/// Why gangs with the same request wait.
struct Wait<'r> {
    /// The first of these gangs.
    first: JobId,
    reason: WaitReason,
    /// The administrative overrides, if they are the reason.
    closed: Option<&'r GpuClosure>,
    /// A GPU of each node with free placements, and the number of members that fit there; unknown
    /// after GPUs were reserved for the first gang.
    partly: Option<Vec<(usize, usize)>>,
}

impl<'r> GangRound<'r> {
    pub(super) fn new(input: GangInput<'r>, quotas: Option<Quotas<'r>>) -> Self {
        let GangInput { policy, cluster, knowledge, now, starts_max } = input;
        Self {
            policy,
            cluster,
            knowledge,
            now,
            starts_max,
            quotas,
            capacity: CapacitySearch::new(policy.slice_manner(), cluster),
            decisions: Vec::new(),
            started: 0,
            kept: None,
            waiting: BTreeMap::new(),
        }
    }

    const fn ends(&self) -> EndTimes<'r> {
        let Knowledge { jobs, predictor, .. } = self.knowledge;
        EndTimes { jobs, predictor, now: self.now }
    }

    pub(super) const fn starts_left(&self) -> usize {
        self.starts_max.saturating_sub(self.started)
    }

    /// Places a whole gang, or explains what it waits for. GPUs are reserved for the first due gang
    /// without placements.
    pub(super) fn serve(&mut self, gang: &Gang<'_>, due: bool) {
        if self.held_by_quota(gang) {
            return;
        }
        let size = self.capacity.size(gang.first);
        let key = (size.number, gang.shape);
        if let Some(wait) = self.waiting.remove(&key) {
            let wait = self.wait_as_well(gang, &size, wait);
            self.waiting.insert(key, wait);
            return;
        }
        if gang.size() > self.starts_left() {
            return;
        }
        if let Some(placements) = self.capacity.find_placements(&size, gang.shape) {
            return match self.beyond_quota(gang, &placements) {
                Some(takes) => self.hold(gang, Some(takes)),
                None => self.start(gang, &placements),
            };
        }
        let wait = self.wait(gang, &size, due);
        self.waiting.insert(key, wait);
    }

    /// Explains what a gang waits for, and reserves GPUs for it if it is the first due one.
    fn wait(&mut self, gang: &Gang<'_>, size: &NumberedRequest, due: bool) -> Wait<'r> {
        let (reason, closed) = self.reason(size, gang);
        let partly = self.capacity.partly(size, gang.shape);
        let before = self.kept.as_ref().map(|(gang, _)| GangAhead::Reserving(*gang));
        let kept = match due && reason == WaitReason::Resources && before.is_none() {
            true => self.capacity.keep(size, gang.shape, self.ends()),
            false => None,
        };
        let (policy, cluster) = (self.policy.name(), self.cluster);
        let kept_for_it = kept.as_ref();
        let text = messages::WaitingGang {
            policy,
            cluster,
            gang,
            partly: &partly,
            kept: kept_for_it,
            before,
            reason,
            closed,
        };
        let why = text.explain();
        self.report_wait(gang, reason, &why);
        let first = gang.members[0];
        let partly = kept.is_none().then_some(partly);
        if let Some(kept) = kept {
            kept.gpus.iter().for_each(|gpu| self.capacity.close(*gpu));
            self.kept = Some((first, kept));
        }
        Wait { first, reason, closed, partly }
    }

    /// Explains the wait of a gang that requests the same as an earlier waiting gang.
    fn wait_as_well(
        &mut self,
        gang: &Gang<'_>,
        size: &NumberedRequest,
        wait: Wait<'r>,
    ) -> Wait<'r> {
        let Wait { first, reason, closed, partly } = wait;
        let partly = partly.unwrap_or_else(|| self.capacity.partly(size, gang.shape));
        let kept = self.kept.as_ref().map(|(gang, _)| GangAhead::Reserving(*gang));
        let before = kept.or(Some(GangAhead::Same(first)));
        let (policy, cluster) = (self.policy.name(), self.cluster);
        let text = messages::WaitingGang {
            policy,
            cluster,
            gang,
            partly: &partly,
            kept: None,
            before,
            reason,
            closed,
        };
        let why = text.explain();
        self.report_wait(gang, reason, &why);
        Wait { first, reason, closed, partly: Some(partly) }
    }

    /// Explains the wait of a gang for its quota, if the quota is too small. Such a gang holds up
    /// no other job, and no GPUs are reserved for it.
    fn held_by_quota(&mut self, gang: &Gang<'_>) -> bool {
        let members = gang.shape.members();
        let bars = self.quotas.as_ref().is_some_and(|quotas| quotas.bars(gang.first, members));
        if bars {
            self.hold(gang, None);
        }
        bars
    }

    /// Returns the sum of the placements' compute slices, if it exceeds a quota.
    fn beyond_quota(&self, gang: &Gang<'_>, placements: &[MemberPlacement]) -> Option<u32> {
        let left = self.quotas.as_ref()?.left_for(gang.first)?;
        let slices =
            |placed: &MemberPlacement| slices(&self.cluster.gpus[placed.gpu], placed.offer.slot);
        let takes = placements.iter().map(slices).sum();
        (takes > left).then_some(takes)
    }

    fn hold(&mut self, gang: &Gang<'_>, takes: Option<u32>) {
        let Some(quotas) = &self.quotas else { return };
        let (policy, members) = (self.policy.name(), gang.shape.members());
        let Decision::Wait { reason, why, .. } = quotas.wait(policy, gang.first, members, takes)
        else {
            return;
        };
        self.report_wait(gang, reason, &why);
    }

    fn report_wait(&mut self, gang: &Gang<'_>, reason: WaitReason, why: &Explanation) {
        let one = |job: &JobId| Decision::Wait { job: *job, reason, why: why.clone() };
        self.decisions.extend(gang.members.iter().map(one));
    }

    fn count(&mut self, decision: &Decision) {
        if let Some(quotas) = &mut self.quotas {
            quotas.count(decision);
        }
    }

    fn start(&mut self, gang: &Gang<'_>, placements: &[MemberPlacement]) {
        let why = messages::start(self.policy.name(), self.cluster, gang, placements);
        for ((job, placed), why) in gang.members.iter().zip(placements).zip(why) {
            let (slot, steps) = (placed.offer.slot, placed.offer.steps.clone());
            self.capacity.take(*job, None, placed.gpu, slot, &steps);
            let gpu = self.cluster.gpus[placed.gpu].id.clone();
            let place = JobPlacement { gpu, slot, steps, part: None, share: None };
            let start = Decision::Start { job: *job, place, why };
            self.count(&start);
            self.decisions.push(start);
        }
        self.started += gang.size();
    }

    /// Explains why no placements were found, and returns the administrative overrides if they are
    /// the reason.
    fn reason(
        &self,
        size: &NumberedRequest,
        gang: &Gang<'_>,
    ) -> (WaitReason, Option<&'r GpuClosure>) {
        let fits = |gpus: &dyn Fn(&GpuView) -> bool| {
            let mut nodes = BTreeMap::new();
            for gpu in self.cluster.gpus.iter().filter(|gpu| size.suits(gpu) && gpus(gpu)) {
                *nodes.entry(&gpu.node).or_insert(0_u32) += 1;
            }
            let enough = nodes.values().filter(|gpus| **gpus >= gang.shape.per_node()).count();
            u32::try_from(enough).is_ok_and(|nodes| nodes >= gang.shape.nodes())
        };
        if fits(&|gpu| gpu.available) {
            return (WaitReason::Resources, None);
        }
        if !self.cluster.gpus.iter().any(|gpu| size.allows(gpu)) {
            return (WaitReason::NodeUnavailable, None);
        }
        if !fits(&|_| true) {
            return (WaitReason::BadConstraints, None);
        }
        if !fits(&|gpu| gpu.available || gpu.operator.closed.is_some()) {
            return (WaitReason::NodeUnavailable, None);
        }
        let allowed = self.cluster.gpus.iter().filter(|gpu| size.allows(gpu));
        let closed: Vec<&GpuClosure> =
            allowed.filter_map(|gpu| gpu.operator.closed.as_ref()).collect();
        let drained = closed.iter().find(|closed| closed.how == ClosureKind::Drained);
        match drained {
            Some(closed) => (WaitReason::NodeDrained, Some(closed)),
            None => (WaitReason::GpuQuarantined, closed.first().copied()),
        }
    }

    /// Returns the cluster as the policy sees it: reserved GPUs are closed.
    pub(super) fn closed_for_others(&self, open: &ClusterView) -> ClusterView {
        let mut view = open.clone();
        let Some((gang, kept)) = &self.kept else { return view };
        for gpu in &kept.gpus {
            let gpu = &mut view.gpus[*gpu];
            gpu.available = false;
            let text =
                format!("GPU {} of node {} is reserved for gang {gang}", gpu.index, gpu.node);
            let until = match kept.wait {
                Some(_) => {
                    format!(
                        "gang {gang} starts, or the job has a time limit (--time) that ends before that"
                    )
                }
                None => format!("gang {gang} starts"),
            };
            gpu.operator.closed.get_or_insert(GpuClosure {
                how: ClosureKind::Kept,
                words: text,
                until,
            });
        }
        view
    }

    /// Returns the first job ahead of a gang that waits for capacity that becomes free by itself.
    pub(super) fn waiting_job_ahead(
        &self,
        gang: &Gang<'_>,
        others: &[&QueuedJob],
        decided: &[Decision],
    ) -> Option<JobId> {
        let mut settled: BTreeSet<JobId> = decided.iter().flat_map(placed_jobs).collect();
        settled.extend(decided.iter().filter_map(|decision| match decision {
            Decision::Wait { job, reason, .. } if !reason.goes_by_itself() => Some(*job),
            Decision::Wait { .. }
            | Decision::Start { .. }
            | Decision::Reshape { .. }
            | Decision::Preempt { .. } => None,
        }));
        let mut before = others.iter().take(gang.behind).map(|job| job.id);
        before.find(|job| !settled.contains(job))
    }

    /// Explains the wait of a gang behind another one.
    pub(super) fn stand_behind(&mut self, gang: &Gang<'_>, before: JobId) {
        let why = messages::behind(self.policy.name(), gang, before);
        self.report_wait(gang, WaitReason::Priority, &why);
    }

    /// Applies the policy's decisions to the cluster.
    pub(super) fn follow(&mut self, decided: &[Decision], others: &[&QueuedJob]) {
        for decision in decided {
            self.count(decision);
            match decision {
                Decision::Start { job, place, .. } => {
                    let Some(gpu) = self.place_of(&place.gpu) else { continue };
                    let queued = others.iter().find(|other| other.id == *job);
                    let share = queued.and_then(|queued| queued.share.as_ref());
                    self.capacity.take(*job, share, gpu, place.slot, &place.steps);
                    self.started += 1;
                }
                Decision::Reshape { reshape, .. } => {
                    if let Some(gpu) = self.place_of(&reshape.gpu) {
                        self.capacity.close(gpu);
                    }
                }
                Decision::Wait { .. } | Decision::Preempt { .. } => {}
            }
        }
    }

    fn place_of(&self, gpu: &GpuId) -> Option<usize> {
        self.cluster.gpus.iter().position(|seen| seen.id == *gpu)
    }

    /// Starts jobs on reserved GPUs if they end before the gang could start, by prediction or by
    /// their time limit.
    pub(super) fn fill(
        &mut self,
        open: &ClusterView,
        others: &[&QueuedJob],
        decided: &[Decision],
    ) -> Vec<Decision> {
        let Some((_, ReservedGpus { gpus, wait: Some(wait), .. })) = &self.kept else {
            return Vec::new();
        };
        let mut view = open.clone();
        for (gpu, seen) in view.gpus.iter_mut().enumerate() {
            seen.available &= gpus.contains(&gpu);
        }
        let placed: BTreeSet<JobId> = decided.iter().flat_map(placed_jobs).collect();
        let fits = |job: &&&QueuedJob| {
            !placed.contains(&job.id)
                && gpus.iter().any(|gpu| self.in_time(job, &view.gpus[*gpu], *wait))
        };
        let short: Vec<&QueuedJob> = others.iter().filter(fits).copied().collect();
        if short.is_empty() {
            return Vec::new();
        }
        let (mut queue, left) = (short.into_iter(), self.starts_left());
        let found = self.policy.decide_with(&view, self.knowledge, &mut queue, self.now, left);
        let mut spoiled: BTreeSet<GpuId> = BTreeSet::new();
        let done_in_time = |decision: &Decision| {
            let Decision::Start { job, place, .. } = decision else { return false };
            let Some(gpu) = view.gpus.iter().find(|gpu| gpu.id == place.gpu) else { return false };
            let profile = place.slot.and_then(|s| gpu.mig.as_ref()?.geometry.profile(s.profile));
            let left = self.ends().of_starting(*job, gpu, profile);
            // Later decisions for its GPU rely on its layout steps.
            let keeps = left.is_some_and(|left| left <= *wait) && !spoiled.contains(&place.gpu);
            if !keeps {
                spoiled.insert(place.gpu.clone());
            }
            keeps
        };
        let in_time = found.into_iter().filter(done_in_time).filter(|d| starts(d).is_some());
        let mut filled: Vec<Decision> = in_time.collect();
        if let Some(quotas) = &mut self.quotas {
            quotas.sift(&mut filled);
        }
        filled
    }

    /// Returns whether a job on the tightest slice of a GPU ends in time.
    fn in_time(&self, job: &QueuedJob, gpu: &GpuView, wait: Millis) -> bool {
        let ends_in = |profile| self.ends().of_starting(job.id, gpu, profile);
        let in_time = |profile| ends_in(profile).is_some_and(|left| left <= wait);
        match gpu.mig.as_deref() {
            Some(mig) => {
                let tight = SliceRequest::of(&job.gpu, job.share.as_ref()).tight(mig);
                tight.into_iter().any(|profile| in_time(Some(profile)))
            }
            None => in_time(None),
        }
    }
}

/// Returns the jobs that a decision places.
fn placed_jobs(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Start { job, .. } => vec![*job],
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
        Decision::Wait { .. } | Decision::Preempt { .. } => Vec::new(),
    }
}
