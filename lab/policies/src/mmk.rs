//! `mmk`: slices shared under MPS with percentages by predicted speeds; slices change only where no
//! online job runs.
//!
//! Source: *MMK: a hybrid scheduling framework for fine-grained Multi-Instance GPU sharing*,
//! §III-A (predictor: random forest with contention features), Algorithm 1 (hybrid partition
//! scheduler). Its kernel scheduler (Listing 1) is the kernel queue's (`tessera-kernel-queue`).
//!
//! - Jobs by memory, smallest first; each is placed on the first partition with enough memory, and
//!   that partition's percentages are computed again (`MPSConfig`, [`shares::config`]). New
//!   percentages are applied only to offline jobs, which are stopped and continued. Online jobs
//!   keep theirs.
//! - On a GPU where no online job runs, every combination of partitions is tried with the GPU's
//!   jobs, and the one with the largest predicted throughput is taken.
//!
//! Where it had to choose: several GPUs: the one with the fewest jobs first. An empty GPU starts
//! as one partition. Jobs that would lose their work are treated like online ones. A job joins only
//! where that raises the GPU's predicted throughput, since the algorithm otherwise limits the
//! number of co-runners only by memory. Percentages and partitions of running jobs change only for
//! a gain of [`HURDLE`], since the algorithm has no cost for checkpoints. Jobs are placed on a
//! combination's partitions in descending size, each where it adds most: the paper doesn't state
//! which job is placed where. It mixes users, as its paper does: for the simulator only.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::mig::{Layout, ProfileId, Slot};
use tessera_model::{JobId, Millis};

use crate::cached::{CachedSession, CachingPolicy, RoundCache};
use crate::shares::{self, ShareConfig};
use tessera_placement::Policy;
use tessera_placement::decision::{Decision, PlacedJob, WaitReason};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::policy::session::Session;
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

const NAME: &str = "mmk";

/// The least gain in throughput for a change of running jobs, in thousandths. Chosen: the paper
/// prints none, and without it jobs are stopped for very small gains.
pub const HURDLE: i64 = 100;

/// A round stops after this many jobs in a row without a placement: those behind them need more
/// memory. Chosen.
const REFUSED_MAX: usize = 8;

/// Maximum number of jobs of one GPU for which other partitions are tried. Chosen: more would take
/// too long.
const SEARCHED_MAX: usize = 10;

/// The joint throughput of jobs on a profile, as far as it was computed.
type KnownConfig = BTreeMap<(ProfileId, Vec<JobId>), Option<ShareConfig>>;

/// The policy `mmk`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mmk;

/// One GPU with the plans of this round.
struct WorkingGpu<'c> {
    /// Its index in the view.
    number: usize,
    planned: PlannedGpu<'c>,
    /// Its partitions; nothing until they are needed.
    parts: Vec<(Slot, ShareConfig)>,
    changed: Option<&'static str>,
}

impl Policy for Mmk {
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
        self.decide_from(&mut MmkCache::default(), cluster, knowledge, queue, (now, starts_max))
    }

    fn session(&self) -> Option<Box<dyn Session + '_>> {
        Some(Box::new(CachedSession::new(self)))
    }
}

/// Cached values until a GPU changes.
#[derive(Debug, Default)]
pub(crate) struct MmkCache {
    /// Jobs that would not raise the throughput of a GPU in its present state.
    refused: BTreeMap<usize, BTreeSet<JobId>>,
    /// GPUs whose jobs have no higher throughput on other partitions or with other percentages.
    calm: BTreeSet<usize>,
}

impl RoundCache for MmkCache {
    fn forget_gpu(&mut self, gpu: usize) {
        self.refused.remove(&gpu);
        self.calm.remove(&gpu);
    }

    fn forget_job(&mut self, job: JobId) {
        self.refused.values_mut().for_each(|known| {
            known.remove(&job);
        });
    }
}

impl CachingPolicy for Mmk {
    type Cache = MmkCache;

    fn decide_from(
        &self,
        memory: &mut MmkCache,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        (_, starts_max): (Millis, usize),
    ) -> Vec<Decision> {
        let all = cluster.gpus.iter().enumerate();
        let open = all.filter_map(|(number, view)| Some((number, PlannedGpu::new(view)?)));
        let mut gpus: Vec<WorkingGpu<'_>> = open
            .filter(|(_, planned)| planned.open)
            .map(|(number, planned)| WorkingGpu {
                number,
                planned,
                parts: Vec::new(),
                changed: None,
            })
            .collect();
        let mut jobs: Vec<&QueuedJob> = queue.collect();
        jobs.sort_by_key(|job| knowledge.jobs.facts(job.id).co_runner.map(|own| own.memory));
        let (mut waits, mut started) = (Vec::new(), 0);
        for job in jobs {
            if started >= starts_max || waits.len() >= REFUSED_MAX || gpus.is_empty() {
                break;
            }
            let mut order: Vec<usize> = (0..gpus.len()).collect();
            order.sort_by_key(|at| gpus[*at].jobs());
            if order.into_iter().any(|at| gpus[at].takes(knowledge, job.id, memory)) {
                started += 1;
                waits.clear();
            } else {
                let why = because(
                    NAME,
                    "no slice has enough memory left and a higher throughput \
                                         with it",
                );
                let reason = WaitReason::Resources;
                waits.push(Decision::Wait { job: job.id, reason, why });
            }
        }
        for gpu in &mut gpus {
            if gpu.changed.is_some() || !memory.calm.contains(&gpu.number) {
                gpu.search(knowledge);
            }
            if gpu.changed.is_none() {
                memory.calm.insert(gpu.number);
            }
        }
        let changed = gpus.into_iter().filter_map(WorkingGpu::decision);
        changed.chain(waits).collect()
    }
}

impl WorkingGpu<'_> {
    /// Computes the throughput of its partitions, unless it is known.
    fn weigh(&mut self, knowledge: Knowledge<'_>) {
        if !self.parts.is_empty() {
            return;
        }
        let planned = &mut self.planned;
        if planned.placements.is_empty() {
            planned.layout = planned.whole().into_iter().collect();
        }
        let part = |slot: &Slot| {
            let placements: Vec<PlacedJob> = planned
                .placements
                .iter()
                .copied()
                .filter(|placed| placed.slot == Some(*slot))
                .collect();
            (
                *slot,
                ShareConfig {
                    throughput: throughput(planned, knowledge, *slot, &placements),
                    placements,
                },
            )
        };
        self.parts = planned.layout.iter().map(part).collect();
    }

    fn jobs(&self) -> usize {
        match self.parts.is_empty() {
            true => self.planned.placements.len(),
            false => self.parts.iter().map(|(_, part)| part.placements.len()).sum(),
        }
    }

    /// Does the same as [`Self::join`], for jobs that were not refused before.
    fn takes(&mut self, knowledge: Knowledge<'_>, job: JobId, memory: &mut MmkCache) -> bool {
        let as_it_was = self.changed.is_none();
        if as_it_was && memory.refused.get(&self.number).is_some_and(|known| known.contains(&job)) {
            return false;
        }
        self.weigh(knowledge);
        let joins = self.join(knowledge, job);
        if as_it_was && !joins {
            memory.refused.entry(self.number).or_default().insert(job);
        }
        joins
    }

    /// Places a job on the first partition with enough memory, if that raises the GPU's throughput.
    fn join(&mut self, knowledge: Knowledge<'_>, job: JobId) -> bool {
        for (slot, part) in &mut self.parts {
            let jobs: Vec<JobId> =
                part.placements.iter().map(|placed| placed.job).chain([job]).collect();
            let Some(config) = shares::config(&self.planned, knowledge, *slot, &jobs) else {
                continue;
            };
            if config.throughput > part.throughput {
                *part = config;
                self.changed = Some(
                    "it has enough memory left, and a higher throughput with the \
                                     job",
                );
                return true;
            }
        }
        false
    }

    /// Tries other percentages and, if no online job runs, other partitions for the jobs.
    fn search(&mut self, knowledge: Knowledge<'_>) {
        self.weigh(knowledge);
        let jobs: Vec<JobId> = self
            .parts
            .iter()
            .flat_map(|(_, part)| part.placements.iter().map(|placed| placed.job))
            .collect();
        // An unchanged GPU without idle capacity was searched before.
        if jobs.is_empty() || (self.changed.is_none() && !self.has_capacity()) {
            return;
        }
        let present: i64 = self.parts.iter().map(|(_, part)| part.throughput).sum();
        let mut best: Option<(i64, Vec<(Slot, ShareConfig)>)> = None;
        let mut take = |parts: Vec<(Slot, ShareConfig)>| {
            let sum = parts.iter().map(|(_, part)| part.throughput).sum();
            if best.as_ref().is_none_or(|(known, _)| sum > *known) {
                best = Some((sum, parts));
            }
        };
        let afresh = self.parts.iter().map(|(slot, part)| {
            let jobs: Vec<JobId> = part.placements.iter().map(|placed| placed.job).collect();
            Some((*slot, shares::config(&self.planned, knowledge, *slot, &jobs)?))
        });
        afresh.collect::<Option<Vec<_>>>().into_iter().for_each(&mut take);
        let still = jobs.iter().all(|job| !shares::fixed(knowledge, *job));
        if still && jobs.len() <= SEARCHED_MAX {
            let mut known = KnownConfig::new();
            for layout in combinations(&self.planned) {
                spread(&self.planned, knowledge, layout, &jobs, &mut known)
                    .into_iter()
                    .for_each(&mut take);
            }
        }
        let clears = |sum: i64| sum > present + present / 1_000 * HURDLE;
        if let Some((_, parts)) = best.filter(|(sum, _)| clears(*sum)) {
            self.parts = parts;
            self.changed = Some(
                "its jobs have a higher throughput on these slices, with these \
                                 percentages",
            );
        }
    }

    /// Returns whether multiprocessors are idle because a job has ended.
    fn has_capacity(&self) -> bool {
        let given = |part: &ShareConfig| -> u32 {
            part.placements
                .iter()
                .map(|placed| placed.sm.map_or(100, |sm| u32::from(sm.get())))
                .sum()
        };
        self.parts.iter().any(|(_, part)| given(part) < 100)
    }

    fn decision(mut self) -> Option<Decision> {
        let why = because(NAME, self.changed?);
        let layout: Layout = self.parts.iter().map(|(slot, _)| *slot).collect();
        let placements = self.parts.into_iter().flat_map(|(_, part)| part.placements).collect();
        Some(Decision::Reshape { reshape: self.planned.take(layout, placements), why })
    }
}

/// Returns the joint throughput of a slice's jobs in their present placements.
fn throughput(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    slot: Slot,
    placements: &[PlacedJob],
) -> i64 {
    let part = |placed: &PlacedJob| {
        (placed.job, placed.sm.unwrap_or(tessera_model::share::SmPercent::WHOLE))
    };
    let speeds = placements.iter().enumerate().filter_map(|(at, placed)| {
        let others = placements.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<_> = others.map(|(_, placed)| part(placed)).collect();
        shares::speed(planned, knowledge, slot, part(placed), &others)
    });
    speeds.sum()
}

/// Returns every combination of partitions, each multiset once; the current layout stands for its
/// own multiset.
fn combinations<'c>(planned: &PlannedGpu<'c>) -> Vec<&'c Layout> {
    let sizes = |layout: &Layout| {
        let mut sizes: Vec<_> = layout.iter().map(|slot| slot.profile).collect();
        sizes.sort_unstable();
        sizes
    };
    let mut seen = BTreeSet::new();
    let (same, other): (Vec<_>, Vec<_>) =
        planned.mig.full().iter().partition(|layout| **layout == planned.layout);
    same.into_iter().chain(other).filter(|layout| seen.insert(sizes(layout))).collect()
}

/// Places jobs on partitions, the largest first, each where it adds most.
fn spread(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    layout: &Layout,
    jobs: &[JobId],
    known: &mut KnownConfig,
) -> Option<Vec<(Slot, ShareConfig)>> {
    let empty = || ShareConfig { placements: Vec::new(), throughput: 0 };
    let mut parts: Vec<(Slot, ShareConfig)> = layout.iter().map(|slot| (*slot, empty())).collect();
    let mut order = jobs.to_vec();
    let memory = |job: &JobId| knowledge.jobs.facts(*job).co_runner.map(|own| own.memory);
    order.sort_by_key(|job| std::cmp::Reverse(memory(job)));
    for job in order {
        let mut best: Option<(i64, usize, ShareConfig)> = None;
        for (at, (slot, part)) in parts.iter().enumerate() {
            let jobs: Vec<JobId> =
                part.placements.iter().map(|placed| placed.job).chain([job]).collect();
            let key = (slot.profile, jobs);
            if !known.contains_key(&key) {
                let config = shares::config(planned, knowledge, *slot, &key.1);
                known.insert(key.clone(), config);
            }
            let Some(config) = known.get(&key).and_then(Clone::clone) else { continue };
            let gain = config.throughput - part.throughput;
            if best.as_ref().is_none_or(|(known, ..)| gain > *known) {
                best = Some((gain, at, config));
            }
        }
        let (_, at, mut config) = best?;
        // Slices of one profile are equivalent at any position.
        let slot = Some(parts[at].0);
        config.placements.iter_mut().for_each(|placed| placed.slot = slot);
        parts[at].1 = config;
    }
    Some(parts)
}
