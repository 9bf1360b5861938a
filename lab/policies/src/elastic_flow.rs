//! `elastic-flow`: each job with a deadline is guaranteed the smallest slice with which it ends in time.
//!
//! Source: Gu et al., *ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning*, ASPLOS
//! 2023, §4 (minimum satisfactory share, admission control, and resource allocation), and the authors' public simulator.
//!
//! - Jobs are planned in the order of their deadlines. A job's *minimum satisfactory share* is the smallest size of slice with which
//!   it ends in time if it runs as late as possible. Jobs planned before it keep their shares.
//! - A job is admitted if all admitted jobs still fit. The paper refuses other jobs. Here they run as jobs without a
//!   deadline do, which the paper calls best-effort: on capacity that is left.
//! - What is left goes to jobs greedily: first to admitted jobs that would begin later, then to the others. Then it goes
//!   to larger slices, the one with the largest gain of time for its memory first.
//!
//! The paper's shares are numbers of GPUs of one model. Where it had to choose:
//!
//! - Shares are sizes of slices, and capacity is the memory slices of each GPU model. The places of slices on GPUs are left to
//!   a second step, in which a job that finds no place waits, or keeps what it has.
//! - The order of admission is that of arrival: where not all jobs fit, the one that came last is refused, and running
//!   jobs stay. It is decided again in each round.
//! - A job that can't be moved gets its share in one piece, and keeps it. It begins early only if all
//!   admitted jobs still fit.
//! - A running job changes to a larger slice only if that gains more time than the migration costs.
//! - Jobs of unknown run time are planned to run until their limit, or for a year, so they are best-effort jobs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tessera_model::mig::{Layout, MigState, ProfileId, Slot};
use tessera_model::{JobId, Millis};

use tessera_placement::Policy;
use tessera_placement::decision::{Decision, PlacedJob, Reshape, WaitReason};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::predictor::Knowledge;
use tessera_placement::request::{RequestNumbers, SliceRequest};
use tessera_placement::view::{ClusterView, QueuedJob};

use crate::timeline::ExpectedTimes;

const NAME: &str = "elastic-flow";

/// Waiting jobs that a round considers. Chosen: as many as deadlines were ever compared on.
const WAITING_MAX: usize = 200;

/// The policy `elastic-flow`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ElasticFlow;

impl Policy for ElasticFlow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let waiting: Vec<&QueuedJob> = queue.take(WAITING_MAX).collect();
        let mut round = Round::read(cluster, knowledge, now, &waiting);
        let targets = round.targets();
        let placed = round.place(&targets, starts_max);
        let mut decisions = round.reshapes();
        let left = waiting.iter().filter(|job| !placed.contains(&job.id));
        decisions.extend(left.map(|job| {
            let why = because(NAME, "no slice is left that delays no admitted job");
            Decision::Wait { job: job.id, reason: WaitReason::Resources, why }
        }));
        decisions
    }
}

/// A size of slice that a job could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    /// The GPU model, by its index.
    model: usize,
    profile: ProfileId,
    /// Memory slices.
    slices: u32,
    /// How long the rest of the job takes on it, in milliseconds.
    rest_ms: u64,
}

#[derive(Clone, Debug)]
struct ElasticJob {
    id: JobId,
    deadline: Option<Millis>,
    submitted: Millis,
    /// Its sizes, smallest first.
    shares: Vec<Share>,
    /// The time that a migration costs, in milliseconds; `None` if it can't be moved.
    migration_ms: Option<u64>,
    /// Where it runs.
    at: Option<(usize, Slot)>,
    /// Whether it keeps its place in this round.
    is_fixed: bool,
}

impl ElasticJob {
    /// Returns the share that it has now.
    fn current(&self, models: &[usize]) -> Option<Share> {
        let (gpu, slot) = self.at?;
        let is_current =
            |share: &&Share| share.model == models[gpu] && share.profile == slot.profile;
        self.shares.iter().find(is_current).copied()
    }

    /// Returns the share on which its rest uses the least memory over time.
    fn least_area(&self) -> Option<Share> {
        self.shares
            .iter()
            .min_by_key(|share| {
                (u128::from(share.rest_ms) * u128::from(share.slices), share.slices)
            })
            .copied()
    }
}

struct Round<'c> {
    now: Millis,
    gpus: Vec<PlannedGpu<'c>>,
    /// The model of each GPU.
    model_of: Vec<usize>,
    models: usize,
    jobs: Vec<ElasticJob>,
    /// What each GPU is to have: its jobs, and the slots that they have.
    plans: Vec<GpuPlan>,
}

#[derive(Clone, Debug)]
struct GpuPlan {
    busy: MigState,
    jobs: BTreeMap<JobId, Slot>,
}

impl<'c> Round<'c> {
    fn read(
        cluster: &'c ClusterView,
        knowledge: Knowledge<'_>,
        now: Millis,
        waiting: &[&QueuedJob],
    ) -> Self {
        let gpus: Vec<PlannedGpu<'_>> = PlannedGpu::all(cluster)
            .into_iter()
            .filter(|gpu| gpu.mig.all().state(&gpu.busy()).is_some())
            .collect();
        let mut names: Vec<&str> = Vec::new();
        let mut model_of = Vec::new();
        for gpu in &gpus {
            let name = gpu.view.model.as_str();
            model_of.push(names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            }));
        }
        let plans = gpus.iter().map(|gpu| GpuPlan {
            busy: gpu.mig.all().state(&gpu.busy()).unwrap_or(MigState::EMPTY),
            jobs: gpu
                .placements
                .iter()
                .filter_map(|placed| Some((placed.job, placed.slot?)))
                .collect(),
        });
        let plans = plans.collect();
        let models = names.len();
        let mut round = Self { now, gpus, model_of, models, jobs: Vec::new(), plans };
        let times = ExpectedTimes { knowledge, now };
        for at in 0..round.gpus.len() {
            let placed = round.gpus[at].placements.clone();
            for job in placed {
                let Some(slot) = job.slot else { continue };
                let memory = knowledge.jobs.facts(job.job).memory.unwrap_or_default();
                round.add(&times, job.job, &SliceRequest::AtLeast(memory), Some((at, slot)));
                let is_alone = !job.shares();
                if let Some(last) = round.jobs.last_mut() {
                    last.is_fixed |= !is_alone;
                }
            }
        }
        let mut requests = RequestNumbers::new(cluster);
        for job in waiting {
            let request = requests.size(job).request;
            round.add(&times, job.id, &request, None);
        }
        round
    }

    fn add(
        &mut self,
        times: &ExpectedTimes<'_>,
        job: JobId,
        request: &SliceRequest,
        at: Option<(usize, Slot)>,
    ) {
        let facts = times.knowledge.jobs.facts(job);
        let mut shares: Vec<Share> = Vec::new();
        for (gpu, model) in self.gpus.iter().zip(&self.model_of) {
            if shares.iter().any(|share| share.model == *model) {
                continue;
            }
            let tight = request.tight(gpu.mig).into_iter().map(|profile| profile.memory).min();
            let Some(least) = tight else { continue };
            for profile in gpu.mig.plain().filter(|profile| profile.memory >= least) {
                let rest_ms = times.run(job, gpu.view, profile).get().max(1);
                let slices = u32::from(profile.memory_slices);
                // A profile that takes as much memory and is slower is never the better choice.
                shares.retain(|share| {
                    share.model != *model || share.slices != slices || share.rest_ms < rest_ms
                });
                let is_covered =
                    shares.iter().any(|share| share.model == *model && share.slices == slices);
                if !is_covered {
                    shares.push(Share { model: *model, profile: profile.id, slices, rest_ms });
                }
            }
        }
        // The profile that a job has stays an option.
        if let Some((gpu, slot)) = at {
            let model = self.model_of[gpu];
            let is_known = shares.iter().any(|s| s.model == model && s.profile == slot.profile);
            if let Some(profile) = self.gpus[gpu].profile(slot).filter(|_| !is_known) {
                let slices = u32::from(profile.memory_slices);
                let rest_ms = times.rest(job, self.gpus[gpu].view, profile).get();
                shares.push(Share { model, profile: profile.id, slices, rest_ms });
            }
        }
        shares.sort_by_key(|share| (share.slices, share.rest_ms, share.model));
        let is_fixed =
            at.is_some_and(|(gpu, _)| !self.gpus[gpu].open || facts.migration_price.is_none());
        self.jobs.push(ElasticJob {
            id: job,
            deadline: facts.deadline,
            submitted: facts.submitted.unwrap_or(self.now),
            shares,
            migration_ms: facts.migration_price.map(Millis::get),
            at,
            is_fixed,
        });
    }

    /// Returns the free memory slices over time, without those of jobs that keep their places.
    fn capacity(&self) -> Capacity {
        let mut all = vec![0; self.models];
        for (gpu, model) in self.gpus.iter().zip(&self.model_of) {
            let whole = gpu.mig.largest().map_or(0, |profile| u32::from(profile.memory_slices));
            all[*model] += if gpu.view.available { whole } else { 0 };
        }
        let mut capacity = Capacity::new(self.now.get(), &all);
        for job in self.jobs.iter().filter(|job| job.is_fixed) {
            if let Some(share) = job.current(&self.model_of) {
                let until = self.now.get().saturating_add(share.rest_ms);
                capacity.take(share.model, share.slices, (self.now.get(), until));
            }
        }
        capacity
    }

    /// Returns the share that each job is to have now; the index is that of the job.
    fn targets(&self) -> BTreeMap<usize, Share> {
        let base = self.capacity();
        let (admitted, refused) = self.admit(&base);
        let plan = self.plan(&base, &admitted).unwrap_or_default();
        let mut targets: BTreeMap<usize, Share> = BTreeMap::new();
        for (job, (share, times)) in &plan {
            if times.iter().any(|(from, _)| *from <= self.now.get()) {
                targets.insert(*job, *share);
            }
        }
        // What is left now.
        let mut left = base.free_now();
        for share in targets.values() {
            left[share.model] = left[share.model].saturating_sub(share.slices);
        }
        // What is free, without what early jobs take that can't be moved.
        let mut fixed = base;
        let mut begun: BTreeSet<usize> = BTreeSet::new();
        let later = admitted.iter().chain(&refused).copied();
        let later: Vec<usize> = later.filter(|job| !targets.contains_key(job)).collect();
        for job in later {
            let known = &self.jobs[job];
            let preferred = match plan.get(&job) {
                Some((share, _)) => Some(*share),
                None => known.least_area(),
            };
            let fits = |share: &Share| left[share.model] >= share.slices;
            let in_time = |share: &Share| {
                let end = self.now.get().saturating_add(share.rest_ms);
                known.deadline.is_none_or(|deadline| end <= deadline.get())
            };
            let is_admitted = plan.contains_key(&job);
            let share = preferred.filter(|share| fits(share) && (!is_admitted || in_time(share)));
            let share = share.or_else(|| {
                known
                    .shares
                    .iter()
                    .copied()
                    .find(|share| fits(share) && (!is_admitted || in_time(share)))
            });
            let Some(share) = share else { continue };
            if known.migration_ms.is_none() {
                let mut tried = fixed.clone();
                let until = self.now.get().saturating_add(share.rest_ms);
                tried.take(share.model, share.slices, (self.now.get(), until));
                let is_open = |other: &usize| *other != job && !begun.contains(other);
                let others: Vec<usize> = admitted.iter().copied().filter(is_open).collect();
                if self.plan(&tried, &others).is_none() {
                    continue;
                }
                fixed = tried;
                begun.insert(job);
            }
            left[share.model] -= share.slices;
            targets.insert(job, share);
        }
        self.grow(&mut targets, &mut left);
        targets
    }

    /// Admits jobs with deadlines, and returns all others after them, in the order of arrival.
    fn admit(&self, base: &Capacity) -> (Vec<usize>, Vec<usize>) {
        let movable = self.jobs.iter().enumerate().filter(|(_, job)| !job.is_fixed);
        // A job that would be late alone is refused at once.
        let is_possible =
            |at: &usize| self.jobs[*at].deadline.is_some() && self.try_plan(base, &[*at]).is_ok();
        let (mut admitted, mut refused): (Vec<usize>, Vec<usize>) =
            movable.map(|(at, _)| at).partition(is_possible);
        admitted.sort_by_key(|at| (self.jobs[*at].deadline, *at));
        while let Err(failed) = self.try_plan(base, &admitted) {
            // Of the jobs that are due by then, the last to arrive is refused; running ones stay.
            let last = admitted[..=failed]
                .iter()
                .copied()
                .max_by_key(|at| (self.jobs[*at].at.is_none(), self.jobs[*at].submitted, *at));
            let Some(last) = last else { break };
            admitted.retain(|at| *at != last);
            refused.push(last);
        }
        refused.sort_by_key(|at| (self.jobs[*at].at.is_none(), self.jobs[*at].submitted, *at));
        (admitted, refused)
    }

    fn plan(&self, base: &Capacity, admitted: &[usize]) -> Option<BTreeMap<usize, PlannedTimes>> {
        self.try_plan(base, admitted).ok()
    }

    /// Plans jobs in the order of their deadlines, each as late as possible with the smallest share; the error is
    /// the position of the first that finds no share.
    fn try_plan(
        &self,
        base: &Capacity,
        admitted: &[usize],
    ) -> Result<BTreeMap<usize, PlannedTimes>, usize> {
        let mut capacity = base.clone();
        let mut plan = BTreeMap::new();
        for (position, job) in admitted.iter().enumerate() {
            let known = &self.jobs[*job];
            let deadline = known.deadline.map_or(u64::MAX, Millis::get);
            let in_one_piece = known.migration_ms.is_none();
            let found = known.shares.iter().find_map(|share| {
                let times = capacity.latest(share, deadline, in_one_piece)?;
                Some((*share, times))
            });
            let Some((share, times)) = found else { return Err(position) };
            for time in &times {
                capacity.take(share.model, share.slices, *time);
            }
            plan.insert(*job, (share, times));
        }
        Ok(plan)
    }

    /// Gives what is left to jobs that can be moved, for larger slices of the same model.
    fn grow(&self, targets: &mut BTreeMap<usize, Share>, left: &mut [u32]) {
        loop {
            let best = targets
                .iter()
                .filter(|(job, _)| self.jobs[**job].migration_ms.is_some())
                .flat_map(|(job, share)| {
                    let known = &self.jobs[*job];
                    let current = known.current(&self.model_of);
                    let larger = known.shares.iter().filter(|to| to.model == share.model);
                    larger.filter_map(move |to| Some((gain(known, current, share, to)?, *job, *to)))
                })
                .filter(|(_, job, to)| to.slices - targets[job].slices <= left[to.model])
                .max_by_key(|(gain, job, to)| (*gain, Reverse((*job, to.slices))));
            let Some((_, job, to)) = best else { break };
            left[to.model] -= to.slices - targets[&job].slices;
            targets.insert(job, to);
        }
    }

    /// Finds places for the targets, and returns the waiting jobs that have one.
    fn place(&mut self, targets: &BTreeMap<usize, Share>, starts_max: usize) -> BTreeSet<JobId> {
        let mut placed = BTreeSet::new();
        // Jobs that run and have no share in this round return to the queue.
        for job in 0..self.jobs.len() {
            if !self.jobs[job].is_fixed && !targets.contains_key(&job) {
                self.remove(job);
            }
        }
        let change = |round: &Self, job: usize, share: &Share| {
            let current = round.jobs[job].current(&round.model_of);
            current.is_none_or(|current| {
                (current.model, current.profile) != (share.model, share.profile)
            })
        };
        let mut order: Vec<(usize, Share)> = targets
            .iter()
            .map(|(job, share)| (*job, *share))
            .filter(|(job, share)| change(self, *job, share))
            .collect();
        // Jobs that shrink make space, jobs that start need it, and jobs that grow take what is left.
        let kind = |round: &Self, job: usize, share: &Share| match round.jobs[job]
            .current(&round.model_of)
        {
            Some(current) if current.slices > share.slices => 0,
            None => 1,
            Some(_) => 2,
        };
        order.sort_by_key(|(job, share)| (kind(self, *job, share), Reverse(share.slices), *job));
        for (job, share) in order {
            let is_waiting = self.jobs[job].at.is_none();
            if is_waiting && placed.len() >= starts_max {
                continue;
            }
            let old = self.remove(job);
            let mut sizes = vec![share];
            if is_waiting {
                let smaller = self.jobs[job].shares.iter().rev();
                sizes.extend(smaller.filter(|s| s.slices < share.slices && s.model == share.model));
            }
            let found = sizes.into_iter().find_map(|share| self.find_slot(&share, old));
            if let Some((gpu, slot)) = found.or(old) {
                self.take(job, gpu, slot);
                if is_waiting {
                    placed.insert(self.jobs[job].id);
                }
            }
        }
        placed
    }

    /// Removes a job from the plan of its GPU, and returns where it was.
    fn remove(&mut self, job: usize) -> Option<(usize, Slot)> {
        let (gpu, slot) = self.jobs[job].at?;
        let plan = &mut self.plans[gpu];
        plan.jobs.remove(&self.jobs[job].id)?;
        plan.busy = self.gpus[gpu].mig.all().free(plan.busy, slot)?;
        Some((gpu, slot))
    }

    fn take(&mut self, job: usize, gpu: usize, slot: Slot) {
        let plan = &mut self.plans[gpu];
        if let Some(busy) = self.gpus[gpu].mig.all().allocate(plan.busy, slot) {
            plan.busy = busy;
            plan.jobs.insert(self.jobs[job].id, slot);
        }
    }

    /// Returns a place for a share: on the GPU where the job was, or where the fewest layouts are lost.
    fn find_slot(&self, share: &Share, old: Option<(usize, Slot)>) -> Option<(usize, Slot)> {
        let home = old.map(|(gpu, _)| gpu);
        let gpus = (0..self.gpus.len())
            .filter(|gpu| self.gpus[*gpu].open && self.model_of[*gpu] == share.model);
        let ways = gpus.flat_map(|gpu| {
            let space = self.gpus[gpu].mig.all();
            let busy = self.plans[gpu].busy;
            let ways = space.allocations(busy, share.profile).into_iter();
            ways.map(move |(slot, next)| {
                let lost = space.reachability(busy).saturating_sub(space.reachability(next));
                (Some(gpu) != home, lost, gpu, Reverse(slot.start), slot)
            })
        });
        ways.min().map(|(_, _, gpu, _, slot)| (gpu, slot))
    }

    /// Returns a reshape for each GPU whose jobs differ from those that it has.
    fn reshapes(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for (gpu, plan) in self.gpus.iter_mut().zip(&self.plans) {
            let before: BTreeMap<JobId, Slot> =
                gpu.placements.iter().filter_map(|p| Some((p.job, p.slot?))).collect();
            if !gpu.open || before == plan.jobs {
                continue;
            }
            // Jobs on fixed places keep the way in which they share.
            let kept = gpu.placements.iter().filter(|p| plan.jobs.get(&p.job).copied() == p.slot);
            let mut placements: Vec<PlacedJob> = kept.copied().collect();
            for (job, slot) in &plan.jobs {
                if placements.iter().all(|placed| placed.job != *job) {
                    placements.push(PlacedJob::alone(*job, *slot));
                }
            }
            let layout = with_idle(gpu, plan);
            let reshape: Reshape = gpu.take(layout, placements);
            let why = because(
                NAME,
                "each job has the smallest share that is in time, and more where it is left",
            );
            decisions.push(Decision::Reshape { reshape, why });
        }
        decisions
    }
}

/// A share and when a job has it: from and until, in milliseconds, the latest first.
type PlannedTimes = (Share, Vec<(u64, u64)>);

/// Returns the gain of time for each memory slice more, in milliseconds; `None` if there is none after the cost of a
/// migration.
fn gain(job: &ElasticJob, current: Option<Share>, from: &Share, to: &Share) -> Option<u64> {
    if to.slices <= from.slices || to.rest_ms >= from.rest_ms {
        return None;
    }
    let gained = from.rest_ms - to.rest_ms;
    // Back to the size that it has costs nothing, and a waiting job is started anyway.
    let is_migration = current.is_some_and(|current| to.slices > current.slices);
    let cost = if is_migration { job.migration_ms.unwrap_or(0) } else { 0 };
    let net = gained.checked_sub(cost).filter(|net| *net > 0)?;
    Some(net / u64::from(to.slices - from.slices))
}

/// Returns the planned slots of a GPU, with those idle instances that can stay.
fn with_idle(gpu: &PlannedGpu<'_>, plan: &GpuPlan) -> Layout {
    let space = gpu.mig.all();
    let mut layout: Layout = plan.jobs.values().copied().collect();
    let mut state = plan.busy;
    for slot in gpu.layout.clone() {
        if let Some(next) = space.allocate(state, slot) {
            state = next;
            layout.insert(slot);
        }
    }
    layout
}

/// The free memory slices of each model over time.
#[derive(Clone, Debug)]
struct Capacity {
    /// When each interval begins, in milliseconds; the last one has no end.
    starts: Vec<u64>,
    /// By interval and model.
    free: Vec<Vec<u32>>,
}

impl Capacity {
    fn new(now: u64, slices: &[u32]) -> Self {
        Self { starts: vec![now], free: vec![slices.to_vec()] }
    }

    fn free_now(&self) -> Vec<u32> {
        self.free.first().cloned().unwrap_or_default()
    }

    fn end(&self, interval: usize) -> u64 {
        self.starts.get(interval + 1).copied().unwrap_or(u64::MAX)
    }

    /// Returns the interval that begins then, after a cut where none does.
    fn cut(&mut self, at: u64) -> usize {
        match self.starts.binary_search(&at) {
            Ok(interval) => interval,
            Err(next) if next == 0 || at == u64::MAX => next,
            Err(next) => {
                self.starts.insert(next, at);
                self.free.insert(next, self.free[next - 1].clone());
                next
            }
        }
    }

    fn take(&mut self, model: usize, slices: u32, (from, until): (u64, u64)) {
        let first = self.cut(from);
        let last = self.cut(until);
        for free in &mut self.free[first..last] {
            free[model] = free[model].saturating_sub(slices);
        }
    }

    /// Returns the latest times before a deadline in which a share is free for as long as it is needed.
    fn latest(&self, share: &Share, deadline: u64, in_one_piece: bool) -> Option<Vec<(u64, u64)>> {
        let mut times: Vec<(u64, u64)> = Vec::new();
        let mut left = share.rest_ms;
        for interval in (0..self.starts.len()).rev() {
            let (from, until) = (self.starts[interval], self.end(interval).min(deadline));
            if from >= until {
                continue;
            }
            if self.free[interval][share.model] < share.slices {
                if in_one_piece {
                    times.clear();
                    left = share.rest_ms;
                }
                continue;
            }
            let taken = left.min(until - from);
            times.push((until - taken, until));
            left -= taken;
            if left == 0 {
                return Some(times);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(slices: u32, rest_ms: u64) -> Share {
        Share { model: 0, profile: ProfileId(0), slices, rest_ms }
    }

    #[test]
    fn a_share_is_planned_as_late_as_possible_around_what_is_taken() {
        let mut capacity = Capacity::new(0, &[4]);
        capacity.take(0, 3, (50, 80));
        assert_eq!(capacity.latest(&share(2, 30), 100, false), Some(vec![(80, 100), (40, 50)]));
        assert_eq!(capacity.latest(&share(2, 30), 100, true), Some(vec![(20, 50)]));
        assert_eq!(capacity.latest(&share(1, 30), 100, true), Some(vec![(80, 100), (70, 80)]));
        assert_eq!(capacity.latest(&share(2, 60), 100, true), None);
        assert_eq!(capacity.latest(&share(5, 1), 100, false), None);
    }

    #[test]
    fn what_is_taken_is_not_taken_twice() {
        let mut capacity = Capacity::new(10, &[4]);
        capacity.take(0, 4, (10, 20));
        assert_eq!(capacity.free_now(), [0]);
        assert_eq!(capacity.latest(&share(1, 10), 20, false), None);
        assert_eq!(capacity.latest(&share(1, 10), 30, false), Some(vec![(20, 30)]));
    }
}
