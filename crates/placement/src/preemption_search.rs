//! Which jobs are sent back for a waiting job.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use tessera_model::spec::GpuRequest;
use tessera_model::{GpuId, JobId, Millis};

use crate::decision::{Decision, Explanation, JobPlacement};
use crate::fair::Quotas;
use crate::policy::{Exclusive, Policy, SchemeB, SliceManner, StaticLayout};
use crate::power::keep_below_cap;
use crate::predictor::Knowledge;
use crate::preemption::{Preemption, PreemptionPrice};
use crate::view::{ClusterView, GpuView, InstanceState, InstanceView, QueuedJob};

/// The most waiting jobs for which one round sends others back. Chosen to limit the duration of a round.
const JOBS_MAX: usize = 4;

/// The most GPUs whose jobs are weighed for one job, in the cluster's order. Chosen to limit the duration of a round.
const WEIGHED_MAX: usize = 1_000;

/// The most GPUs that are tried for one job, those with the cheapest jobs first. Chosen to limit the duration
/// of a round.
const GPUS_MAX: usize = 64;

/// The most instances of one GPU of which each combination is tried: as many as a GPU has slices. Those with the
/// cheapest jobs are. Chosen to limit the duration of a round.
const OPEN_MAX: usize = 7;

/// The most jobs that are named in an explanation; the others are counted.
const NAMED_MAX: usize = 4;

/// Lets waiting jobs of a higher class send running jobs back, where a round has no place for them. `queue` has the
/// waiting jobs in service order, and `decisions` has the decisions about them.
///
/// A job over several GPUs, or one that names a compute instance, sends nobody back.
pub fn add_preemptions(
    policy: &dyn Policy,
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    queue: &[&QueuedJob],
    decisions: &mut Vec<Decision>,
    now: Millis,
) {
    let may_preempt = |job: &&QueuedJob| {
        let is_single = job.gang.is_none() && !matches!(job.gpu, GpuRequest::Compute(_));
        job.online && is_single && knowledge.jobs.may_preempt(job.id)
    };
    let mut online = queue.iter().copied().filter(may_preempt).peekable();
    // Most rounds have none, and a round may have decisions about thousands of jobs.
    if online.peek().is_none() {
        return;
    }
    let settled = settled_jobs(decisions);
    let candidates: Vec<&QueuedJob> =
        online.filter(|job| !settled.contains(&job.id)).take(JOBS_MAX).collect();
    if candidates.is_empty() {
        return;
    }
    let view = after_decisions(cluster, knowledge, decisions);
    let mut search = PreemptionSearch {
        policy,
        tight: tight_policy(policy.slice_manner()),
        knowledge,
        now,
        quotas: Quotas::of(cluster, knowledge.jobs, queue.iter().copied()),
        prices: BTreeMap::new(),
        gone: BTreeSet::new(),
        view: &view,
    };
    for job in candidates {
        let Some((preemption, why)) = search.find(job) else { continue };
        search.gone.insert(preemption.place.gpu.clone());
        search.prices.extend(preemption.sent_back.iter().map(|job| (*job, None)));
        decisions.retain(|made| !matches!(made, Decision::Wait { job: of, .. } if *of == job.id));
        let decision = Decision::Preempt { preemption: Box::new(preemption), why };
        decisions.push(decision);
    }
}

/// Returns the policy that finds the smallest suitable place, in the way in which a policy gets its slices.
fn tight_policy(manner: SliceManner) -> &'static dyn Policy {
    match manner {
        SliceManner::MadeToMeasure => &SchemeB,
        SliceManner::AsTheyStand => &StaticLayout,
        SliceManner::WholeGpus => &Exclusive,
    }
}

/// Returns the jobs that a round gives a place, and those that wait for something else than a free place.
fn settled_jobs(decisions: &[Decision]) -> HashSet<JobId> {
    let mut settled = HashSet::new();
    for decision in decisions {
        match decision {
            Decision::Start { job, .. } => _ = settled.insert(*job),
            Decision::Wait { reason, .. } if reason.is_lack_of_slices() => {}
            Decision::Wait { job, .. } => _ = settled.insert(*job),
            Decision::Reshape { reshape, .. } => {
                settled.extend(reshape.placements.iter().map(|placed| placed.job));
            }
            Decision::Preempt { preemption, .. } => _ = settled.insert(preemption.job),
        }
    }
    settled
}

/// Returns the cluster after the decisions of this round. GPUs whose jobs are moved take no part.
fn after_decisions<'c>(
    cluster: &'c ClusterView,
    knowledge: Knowledge<'_>,
    decisions: &[Decision],
) -> Cow<'c, ClusterView> {
    let mut view = crate::decide_round::with_starts(cluster, knowledge.predictor, decisions);
    for decision in decisions {
        let Decision::Reshape { reshape, .. } = decision else { continue };
        let named = |instance: &InstanceView| {
            let jobs = jobs_on(instance);
            jobs.iter().any(|job| reshape.placements.iter().any(|placed| placed.job == *job))
        };
        for gpu in &mut view.to_mut().gpus {
            if gpu.id == reshape.gpu || gpu.instances.iter().any(named) {
                gpu.available = false;
            }
        }
    }
    view
}

fn jobs_on(instance: &InstanceView) -> Vec<JobId> {
    match &instance.state {
        InstanceState::Taken { job } => vec![*job],
        InstanceState::Shared(tenancy) => tenancy.sharers.iter().map(|(job, _)| *job).collect(),
        InstanceState::Idle
        | InstanceState::Cut(_)
        | InstanceState::Foreign
        | InstanceState::Stuck
        | InstanceState::Leaving
        | InstanceState::Quarantined => Vec::new(),
    }
}

/// An instance whose jobs may all be sent back.
#[derive(Clone, Debug)]
struct Unit {
    /// Its index on the GPU.
    instance: usize,
    /// The jobs that are sent back, with their gangs.
    jobs: BTreeSet<JobId>,
    cost: Cost,
}

/// What is lost by sending jobs back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// How many jobs lose their work: those that checkpoint are sent back first.
    unsaved: usize,
    loss: Millis,
    jobs: usize,
}

impl Cost {
    fn plus(self, other: Self) -> Self {
        Self {
            unsaved: self.unsaved + other.unsaved,
            loss: self.loss.plus(other.loss),
            jobs: self.jobs + other.jobs,
        }
    }
}

/// Jobs of one GPU that make space for a job.
#[derive(Clone, Debug)]
struct Found {
    cost: Cost,
    gpu: usize,
    jobs: BTreeSet<JobId>,
    place: JobPlacement,
}

struct PreemptionSearch<'r> {
    policy: &'r dyn Policy,
    tight: &'static dyn Policy,
    knowledge: Knowledge<'r>,
    now: Millis,
    quotas: Option<Quotas<'r>>,
    /// The prices of running jobs, as far as they were requested.
    prices: BTreeMap<JobId, Option<PreemptionPrice>>,
    /// GPUs on which this round already sends jobs back.
    gone: BTreeSet<GpuId>,
    view: &'r ClusterView,
}

impl PreemptionSearch<'_> {
    fn find(&mut self, job: &QueuedJob) -> Option<(Preemption, Explanation)> {
        if self.quotas.as_ref().is_some_and(|quotas| quotas.bars(job, 1)) {
            return None;
        }
        // A job that could start on a free place waits by the policy's own rules.
        if self.start(self.view, job).is_some() {
            return None;
        }
        let mut gpus = self.candidates(job);
        gpus.sort_by(|(a, units_a), (b, units_b)| {
            let first = |units: &[Unit]| units.first().map(|unit| unit.cost);
            first(units_a).cmp(&first(units_b)).then(a.cmp(b))
        });
        let considered = gpus.len();
        let mut best: Option<Found> = None;
        for (gpu, units) in gpus.into_iter().take(GPUS_MAX) {
            let least = units.first().map(|unit| unit.cost).unwrap_or_default();
            if best.as_ref().is_some_and(|found| found.cost <= least) {
                break;
            }
            let limit = best.as_ref().map(|found| found.cost);
            best = self.find_on(gpu, &units, job, limit).or(best);
        }
        let found = best.filter(|found| self.is_allowed(found, job))?;
        let why = self.explain(&found, considered);
        let Found { jobs, place, cost, .. } = found;
        let sent_back = jobs.into_iter().collect();
        Some((Preemption { job: job.id, place, sent_back, loss: cost.loss }, why))
    }

    /// Returns the GPUs on which jobs may be sent back, each with its instances, the cheapest first.
    fn candidates(&mut self, job: &QueuedJob) -> Vec<(usize, Vec<Unit>)> {
        let view = self.view;
        let mut gpus = Vec::new();
        for (at, gpu) in view.gpus.iter().enumerate() {
            if !gpu.available || gpu.changing || !gpu.is_allowed(job) || self.gone.contains(&gpu.id)
            {
                continue;
            }
            let mut units: Vec<Unit> = Vec::new();
            for (instance, standing) in gpu.instances.iter().enumerate() {
                units.extend(self.unit(instance, &jobs_on(standing)));
            }
            units.sort_by_key(|unit| (unit.cost, unit.instance));
            if !units.is_empty() {
                gpus.push((at, units));
            }
            if gpus.len() == WEIGHED_MAX {
                break;
            }
        }
        gpus
    }

    /// Returns an instance's jobs with their gangs, if all of them may be sent back.
    fn unit(&mut self, instance: usize, on_it: &[JobId]) -> Option<Unit> {
        let mut jobs = BTreeSet::new();
        for job in on_it {
            match self.price(*job)?.gang {
                Some(gang) => jobs.extend(gang.all()),
                None => {
                    jobs.insert(*job);
                }
            }
        }
        let cost = self.cost(&jobs)?;
        (!jobs.is_empty()).then_some(Unit { instance, jobs, cost })
    }

    fn price(&mut self, job: JobId) -> Option<PreemptionPrice> {
        let jobs = self.knowledge.jobs;
        *self.prices.entry(job).or_insert_with(|| jobs.preemption_price(job))
    }

    /// Returns what is lost if these jobs are sent back; `None` if one must not be.
    fn cost(&mut self, jobs: &BTreeSet<JobId>) -> Option<Cost> {
        let mut sum = Cost::default();
        for job in jobs {
            let price = self.price(*job)?;
            sum = sum.plus(Cost {
                unsaved: price.lost_since.is_some().into(),
                loss: price.loss(self.now),
                jobs: 1,
            });
        }
        Some(sum)
    }

    /// Finds the jobs of one GPU that have to leave for the job: those on which least is lost. They must be cheaper
    /// than `limit`.
    fn find_on(
        &mut self,
        gpu: usize,
        units: &[Unit],
        job: &QueuedJob,
        limit: Option<Cost>,
    ) -> Option<Found> {
        self.fits(gpu, &units.iter().collect::<Vec<_>>(), job)?;
        // A unit without which all others are not enough leaves in any case.
        let is_needed = |at: usize| {
            let others: Vec<&Unit> = units
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, unit)| unit)
                .collect();
            others.is_empty() || self.fits(gpu, &others, job).is_none()
        };
        let needed: Vec<bool> = (0..units.len()).map(is_needed).collect();
        let open: Vec<usize> = (0..units.len()).filter(|at| !needed[*at]).take(OPEN_MAX).collect();
        let mut choices: Vec<(Cost, BTreeSet<usize>)> = Vec::new();
        for mask in 0_u32..1 << open.len() {
            let chosen = open.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
            let chosen: BTreeSet<usize> = chosen
                .map(|(_, at)| *at)
                .chain((0..units.len()).filter(|at| needed[*at]))
                .collect();
            let jobs: BTreeSet<JobId> =
                chosen.iter().flat_map(|at| &units[*at].jobs).copied().collect();
            choices.push((self.cost(&jobs)?, chosen));
        }
        choices.sort();
        let dearest = |cost: &Cost| limit.is_some_and(|limit| *cost >= limit);
        for (cost, chosen) in choices.into_iter().take_while(|(cost, _)| !dearest(cost)) {
            let leaving: Vec<&Unit> = chosen.iter().map(|at| &units[*at]).collect();
            if leaving.is_empty() {
                continue;
            }
            if let Some(place) = self.fits(gpu, &leaving, job) {
                let jobs = leaving.into_iter().flat_map(|unit| unit.jobs.iter().copied()).collect();
                return Some(Found { cost, gpu, jobs, place });
            }
        }
        None
    }

    /// Returns where the job would start on a GPU without the jobs of some of its instances.
    fn fits(&self, gpu: usize, units: &[&Unit], job: &QueuedJob) -> Option<JobPlacement> {
        let mut open: GpuView = self.view.gpus[gpu].clone();
        for unit in units {
            open.instances[unit.instance].state = InstanceState::Idle;
        }
        let still_shared: Vec<_> = open
            .instances
            .iter()
            .filter(|instance| matches!(instance.state, InstanceState::Shared(_)))
            .map(|instance| instance.slot)
            .collect();
        let place = self.start(&vec![open].into(), job)?;
        // A place next to others was free before, or depends on those who stay.
        (!still_shared.contains(&place.slot)).then_some(place)
    }

    /// Returns where the job would start on a cluster without other waiting jobs.
    fn start(&self, cluster: &ClusterView, job: &QueuedJob) -> Option<JobPlacement> {
        let allowed;
        let cluster = match job.place.as_deref() {
            Some(place) => {
                allowed = cluster.within(place);
                &allowed
            }
            None => cluster,
        };
        let queue = [job];
        let mut queue = queue.iter().copied();
        let decided = self.tight.decide_with(cluster, self.knowledge, &mut queue, self.now, 1);
        decided.into_iter().find_map(|decision| match decision {
            Decision::Start { place, .. } => Some(place),
            Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
        })
    }

    /// Returns whether the job keeps its quota and the cluster's power cap there.
    fn is_allowed(&self, found: &Found, job: &QueuedJob) -> bool {
        if self.quotas.is_none() && self.view.power_cap.is_none() {
            return true;
        }
        let mut open = self.view.clone();
        for instance in open.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
            if jobs_on(instance).iter().any(|job| found.jobs.contains(job)) {
                instance.state = InstanceState::Idle;
            }
        }
        let (place, why) = (found.place.clone(), Explanation::default());
        let start = Decision::Start { job: job.id, place, why };
        let waiting = std::iter::once(job);
        if let Some(mut quotas) = Quotas::of(&open, self.knowledge.jobs, waiting)
            && !quotas.sift(&mut vec![start.clone()]).jobs.is_empty()
        {
            return false;
        }
        let kept = keep_below_cap(&open, &[job], vec![start]);
        kept.iter().any(|decision| matches!(decision, Decision::Start { .. }))
    }

    fn explain(&self, found: &Found, considered: usize) -> Explanation {
        let gpu = &self.view.gpus[found.gpu];
        let unsaved = found.cost.unsaved;
        let work = match unsaved {
            0 => "they keep their work by checkpoints".to_owned(),
            _ if unsaved == found.jobs.len() => "they begin again from their start".to_owned(),
            _ => format!("{unsaved} of them begin again from their start"),
        };
        let others = match considered {
            1 => String::new(),
            gpus => format!(", the least on {gpus} GPUs"),
        };
        let summary = format!(
            "no place is free for this online job. Offline jobs on GPU {} of node {} are sent back to the \
             queue for it ({}): {work}, and lose about {} s{others}",
            gpu.index,
            gpu.node,
            named_jobs(&found.jobs),
            found.cost.loss.get().div_ceil(1_000),
        );
        Explanation {
            policy: self.policy.name().to_owned(),
            summary,
            would_start_if: Some("they have ended".to_owned()),
            ..Explanation::default()
        }
    }
}

/// Names jobs, such as `jobs 3, 4 and 5`.
fn named_jobs(jobs: &BTreeSet<JobId>) -> String {
    let texts: Vec<String> = jobs.iter().take(NAMED_MAX).map(JobId::to_string).collect();
    let more = jobs.len().saturating_sub(NAMED_MAX);
    match (texts.as_slice(), more) {
        ([], _) => "no jobs".to_owned(),
        ([one], 0) => format!("job {one}"),
        ([most @ .., last], 0) => format!("jobs {} and {last}", most.join(", ")),
        (all, more) => format!("jobs {} and {more} more", all.join(", ")),
    }
}
