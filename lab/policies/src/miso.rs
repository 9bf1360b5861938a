//! `miso`: one job for each slice, and the layout that slows the jobs of a GPU least, after a
//! measurement under MPS. `oracle`: the same with known speeds and without measurements.
//!
//! Source: Li et al., *MISO: Exploiting Multi-Instance GPU Capability on Multi-Tenant GPU
//! Clusters*, SoCC 2022, §4 (trial under MPS, optimiser over partitions) and its public program.
//!
//! - Jobs come in the queue's order (FIFO). The head is placed on the GPU with the fewest jobs, of
//!   those with a layout that has a slice for each of its jobs and the new one. A job that is alone
//!   gets the whole GPU at once.
//! - Otherwise every job of the GPU is stopped, and all run together under MPS for [`TRIAL`]. Then
//!   the GPU gets the layout with one slice for each job and the least mean slow-down.
//! - When no job waits and a job has ended, its GPU gets the best layout for the remaining jobs,
//!   which are stopped and continued.
//!
//! Where it had to choose: the layouts on an A100 are those of MISO's list ([`PARTITIONS`]), which
//! leaves 4g+3g out; on other models all full layouts. The trial measures the predicted speeds:
//! this includes the paper's neural predictor, which turns MPS speeds into slice speeds. A GPU with
//! a job without a prediction doesn't change until that job ends. A GPU is always repartitioned as
//! a whole. All of its jobs are stopped for that, even those that would keep their slice, like in
//! MISO's program.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::mig::{Layout, ProfileId};
use tessera_model::{JobId, Millis};

use tessera_placement::Policy;
use tessera_placement::decision::{
    Decision, Explanation, PlacedJob, Reshape, StayingJobs, WaitReason,
};
use tessera_placement::placement_search::{
    self, Assignment, JobCoverage, NO_PLACEMENT, SearchBuffers,
};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::policy::session::Session;
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, InstanceState, MigView, QueuedJob};

use crate::cached::{CachedSession, CachingPolicy, RoundCache};

/// How long jobs run together before their GPU is partitioned. Source: MISO's program.
pub const TRIAL: Millis = Millis::from_secs(30);

/// MISO's 18 partitions of an A100, by compute slices, in its order.
pub const PARTITIONS: [&[u8]; 18] = [
    &[7],
    &[2, 1, 4],
    &[1, 1, 1, 4],
    &[3, 3],
    &[2, 1, 3],
    &[1, 1, 1, 3],
    &[3, 2, 2],
    &[3, 2, 1, 1],
    &[3, 1, 1, 2],
    &[3, 1, 1, 1, 1],
    &[2, 1, 2, 2],
    &[2, 1, 2, 1, 1],
    &[2, 1, 1, 1, 2],
    &[1, 1, 1, 2, 1, 1],
    &[1, 1, 1, 1, 1, 2],
    &[2, 1, 1, 1, 1, 1],
    &[1, 2, 1, 1, 1, 1],
    &[1, 1, 1, 1, 1, 1, 1],
];

/// The policies `miso` and `oracle`.
#[derive(Clone, Copy, Debug)]
pub struct Miso {
    measures: SpeedMeasurement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpeedMeasurement {
    UnderMps,
    Nothing,
}

impl Miso {
    /// `miso`, which measures.
    pub const MISO: Self = Self { measures: SpeedMeasurement::UnderMps };
    /// `oracle`, which knows.
    pub const ORACLE: Self = Self { measures: SpeedMeasurement::Nothing };
}

impl Policy for Miso {
    fn name(&self) -> &'static str {
        match self.measures {
            SpeedMeasurement::UnderMps => "miso",
            SpeedMeasurement::Nothing => "oracle",
        }
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        self.decide_from(&mut MisoCache::default(), cluster, knowledge, queue, (now, starts_max))
    }

    fn session(&self) -> Option<Box<dyn Session + '_>> {
        Some(Box::new(CachedSession::new(self)))
    }
}

/// Cached values.
#[derive(Debug, Default)]
pub(crate) struct MisoCache {
    /// Jobs for which a GPU in its present state has no layout, by the profiles on which they run.
    refused: BTreeMap<usize, BTreeSet<Vec<bool>>>,
    /// The layouts of this round's models with this many instances.
    layouts: BTreeMap<(usize, usize), Vec<Layout>>,
    scratch: SearchBuffers,
}

impl RoundCache for MisoCache {
    fn forget_gpu(&mut self, gpu: usize) {
        self.refused.remove(&gpu);
    }
}

impl MisoCache {
    fn layouts(&mut self, mig: &MigView, instances: usize) -> &[Layout] {
        // Rules are compared by their address; they live as long as the round.
        let rules = std::ptr::from_ref(mig).addr();
        self.layouts.entry((rules, instances)).or_insert_with(|| layouts(mig, instances))
    }
}

impl CachingPolicy for Miso {
    type Cache = MisoCache;

    fn decide_from(
        &self,
        memory: &mut MisoCache,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        (_, starts_max): (Millis, usize),
    ) -> Vec<Decision> {
        memory.layouts.clear();
        let all = cluster.gpus.iter().enumerate();
        let mut planned_gpus: Vec<(usize, PlannedGpu<'_>)> =
            all.filter_map(|(gpu, view)| Some((gpu, PlannedGpu::new(view)?))).collect();
        let mut decisions = Vec::new();
        while decisions.len() < starts_max {
            let Some(job) = queue.next() else {
                let tidied = planned_gpus
                    .iter_mut()
                    .filter_map(|(_, planned)| tidy(planned, knowledge, memory));
                decisions.extend(tidied.map(|reshape| self.decision(reshape)));
                break;
            };
            let Some(reshape) = self.arrive(&mut planned_gpus, knowledge, job.id, memory) else {
                let reason = WaitReason::Resources;
                decisions.push(Decision::Wait { job: job.id, reason, why: self.wait() });
                break;
            };
            decisions.push(self.decision(reshape));
        }
        decisions
    }
}

impl Miso {
    /// Finds a GPU for a waiting job.
    fn arrive(
        &self,
        planned_gpus: &mut [(usize, PlannedGpu<'_>)],
        knowledge: Knowledge<'_>,
        job: JobId,
        memory: &mut MisoCache,
    ) -> Option<Reshape> {
        let mut order: Vec<usize> =
            (0..planned_gpus.len()).filter(|i| planned_gpus[*i].1.open).collect();
        order.sort_by_key(|i| planned_gpus[*i].1.placements.len());
        // Whether a layout exists depends on which profiles a job can run, and not on its speed.
        let mut runs: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for index in order {
            let (gpu, planned) = &mut planned_gpus[index];
            let runs = runs.entry(planned.view.model.as_str()).or_insert_with(|| {
                row(planned, knowledge, job).iter().map(|w| *w != NO_PLACEMENT).collect()
            });
            if memory.refused.get(gpu).is_some_and(|known| known.contains(runs)) {
                continue;
            }
            let mut jobs = planned.jobs();
            jobs.push(job);
            let Some(assignment) = optimum(planned, knowledge, &jobs, memory) else {
                memory.refused.entry(*gpu).or_default().insert(runs.clone());
                continue;
            };
            let mut reshape = reshape_to(planned, &jobs, assignment);
            if jobs.len() > 1 && self.measures == SpeedMeasurement::UnderMps {
                reshape.trial = Some(TRIAL);
            }
            return Some(reshape);
        }
        None
    }

    fn decision(&self, reshape: Reshape) -> Decision {
        let jobs = reshape.placements.len();
        let after = if reshape.trial.is_some() { ", after a trial under MPS" } else { "" };
        let text =
            format!("of the layouts with {jobs} slices this one slows its jobs least{after}");
        Decision::Reshape { reshape, why: because(self.name(), text) }
    }

    fn wait(&self) -> Explanation {
        let text = "no GPU that may be cut has a layout with a slice for each of its jobs and this";
        Explanation {
            would_start_if: Some("a job ends, or a GPU's trial does".to_owned()),
            ..because(self.name(), text)
        }
    }
}

/// Repartitions a GPU with an idle slice.
fn tidy(
    planned: &mut PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    memory: &mut MisoCache,
) -> Option<Reshape> {
    let idle = planned.view.instances.iter().any(|i| i.state == InstanceState::Idle);
    if !planned.open || !idle || planned.placements.is_empty() {
        return None;
    }
    let jobs = planned.jobs();
    let assignment = optimum(planned, knowledge, &jobs, memory)?;
    Some(reshape_to(planned, &jobs, assignment))
}

/// Returns a job's score in each slot: the least slow-down is the greatest score.
fn row(planned: &PlannedGpu<'_>, knowledge: Knowledge<'_>, job: JobId) -> Vec<i64> {
    let layout_index = planned.mig.layout_index();
    let score = |id: &ProfileId| {
        let profile = planned.mig.geometry.profile(*id)?;
        let speed = knowledge.predictor.relative_speed(job, planned.view, planned.mig, profile)?;
        Some(-(1_000_000_000 / speed.max(1)))
    };
    let by_profile = layout_index.profiles().iter().map(|id| score(id).unwrap_or(NO_PLACEMENT));
    layout_index.row(&by_profile.collect::<Vec<_>>())
}

/// Returns the layout with a slice for each job and the least mean slow-down.
fn optimum(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    jobs: &[JobId],
    memory: &mut MisoCache,
) -> Option<Assignment> {
    if jobs.len() > placement_search::JOBS_MAX || memory.layouts(planned.mig, jobs.len()).is_empty()
    {
        return None;
    }
    let layout_index = planned.mig.layout_index();
    let rows: Vec<Vec<i64>> = jobs.iter().map(|job| row(planned, knowledge, *job)).collect();
    let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let mut scratch = std::mem::take(&mut memory.scratch);
    let mut found: Option<(i64, &Layout, Vec<usize>)> = None;
    for layout in memory.layouts(planned.mig, jobs.len()) {
        let order: Vec<usize> =
            layout.iter().filter_map(|slot| layout_index.number(*slot)).collect();
        let Some(score) = scratch.score(&order, &rows, JobCoverage::AllJobs) else { continue };
        if found.as_ref().is_none_or(|(best, ..)| score > *best) {
            found = Some((score, layout, order));
        }
    }
    let assignment = found.map(|(score, layout, order)| {
        let placements =
            layout_index.placements_of(&order, &rows, JobCoverage::AllJobs, &mut scratch);
        Assignment { layout: layout.clone(), placements, score }
    });
    memory.scratch = scratch;
    assignment
}

/// The layouts that MISO chooses from, with this many instances, each multiset once.
fn layouts(mig: &MigView, instances: usize) -> Vec<Layout> {
    let whole = mig.largest().map_or(0, |p| p.compute_slices);
    if whole == 7 {
        let listed = PARTITIONS.iter().filter(|sizes| sizes.len() == instances);
        return listed.filter_map(|sizes| arrange(mig, sizes)).collect();
    }
    let mut seen = BTreeSet::new();
    let full = mig.full().iter().filter(|layout| layout.len() == instances);
    full.filter(|layout| seen.insert(sizes(mig, layout))).cloned().collect()
}

fn sizes(mig: &MigView, layout: &Layout) -> Vec<u8> {
    let profiles = layout.iter().filter_map(|slot| mig.geometry.profile(slot.profile));
    let mut sizes: Vec<u8> = profiles.map(|p| p.compute_slices).collect();
    sizes.sort_unstable();
    sizes
}

/// Finds starts for instances of these sizes: the part of a full layout that has them.
fn arrange(mig: &MigView, sizes: &[u8]) -> Option<Layout> {
    mig.full().iter().find_map(|layout| {
        let mut left: Vec<u8> = sizes.to_vec();
        let mut taken = Layout::new();
        for slot in layout {
            let size = mig.geometry.profile(slot.profile)?.compute_slices;
            if let Some(at) = left.iter().position(|s| *s == size) {
                left.swap_remove(at);
                taken.insert(*slot);
            }
        }
        left.is_empty().then_some(taken)
    })
}

fn reshape_to(planned: &mut PlannedGpu<'_>, jobs: &[JobId], assignment: Assignment) -> Reshape {
    let placements = assignment.placements.iter();
    let placements = placements.map(|(job, slot)| PlacedJob::alone(jobs[*job], *slot));
    let placements = placements.collect();
    Reshape { stayers: StayingJobs::Restart, ..planned.take(assignment.layout, placements) }
}
