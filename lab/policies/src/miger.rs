//! `miger`: online jobs stay on the slice that serves them; offline jobs have the other slices, or
//! share one with an online job under MPS.
//!
//! Source: Zhang, Li and Li, *MIGER: Integrating Multi-Instance GPU and Multi-Process Service for
//! Deep Learning Clusters*, ICPP 2024 (hierarchical scheduling: which GPU; which partitions; which
//! co-runners; which parts). The following is the version with which MMK's evaluation compares, and
//! which its public program implements:
//!
//! - For the cluster: the GPU with the fewest jobs that can take one more.
//! - An online job gets the smallest slice that serves it well, where the other jobs lose least,
//!   and never moves.
//! - Each offline job has its own slice, or is the only co-runner of an online job. Then it
//!   has the largest percentage under MPS that leaves the online job its speed. Of all layouts and
//!   placements, the GPU gets those in which offline jobs have the highest throughput. Offline jobs
//!   are stopped and moved for that when a job arrives, and when no job waits and slices are idle.
//!
//! Where it had to choose: quality of service isn't printed for our jobs. An online job is served
//! well if it meets its deadline, or, without one, has [`SERVED`] of its speed on a whole GPU. With
//! a co-runner it keeps four fifths of its speed on its slice (the authors measured 1.11 to 1.25
//! times the time at equal parts). Jobs are served in the queue's order. Offline jobs that would
//! lose their work stay like online ones, and get no co-runners if they have a slice alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tessera_model::mig::{Layout, ProfileId, Slot};
use tessera_model::share::SmPercent;
use tessera_model::{JobId, Millis};

use crate::cached::{CachedSession, CachingPolicy, RoundCache};
use crate::shares;
use tessera_placement::Policy;
use tessera_placement::decision::{Decision, Explanation, PlacedJob, Reshape, WaitReason};
use tessera_placement::placement_search::{
    self, JOBS_MAX, JobCoverage, NO_PLACEMENT, SearchBuffers,
};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::policy::session::Session;
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

const NAME: &str = "miger";

/// Speed over that on the whole GPU with which an online job without a deadline is served well, in
/// millionths. Chosen: the paper prints none for these jobs.
pub const SERVED: i64 = 500_000;

/// Speed that an online job keeps next to another, in thousandths of that alone on its slice. Chosen: 1.25
/// times its time, the upper of the authors' medians at equal parts.
const KEPT: i64 = 800;

/// A layout with the placements of all jobs, and its rank among others.
type RankedLayout<R> = (R, Layout, Vec<PlacedJob>);

/// A job's speed in a slot, and its part of it if it has co-runners.
type GuestPlacement = Option<(i64, Option<SmPercent>)>;

/// The policy `miger`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miger {
    /// As [`SERVED`].
    pub served: i64,
}

impl Default for Miger {
    fn default() -> Self {
        Self { served: SERVED }
    }
}

impl Policy for Miger {
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
        self.decide_from(&mut MigerCache::default(), cluster, knowledge, queue, (now, starts_max))
    }

    fn session(&self) -> Option<Box<dyn Session + '_>> {
        Some(Box::new(CachedSession::new(self)))
    }
}

/// Cached values until a GPU changes.
#[derive(Debug, Default)]
pub(crate) struct MigerCache {
    /// Jobs that a GPU in its present state can't place. For online jobs that doesn't change, since
    /// deadlines only come closer.
    refused: BTreeMap<usize, BTreeSet<LayoutKind>>,
    /// GPUs whose jobs would not have a higher throughput on other slices.
    calm: BTreeSet<usize>,
    scratch: SearchBuffers,
}

impl RoundCache for MigerCache {
    fn forget_gpu(&mut self, gpu: usize) {
        self.refused.remove(&gpu);
        self.calm.remove(&gpu);
    }

    fn forget_job(&mut self, job: JobId) {
        self.refused.values_mut().for_each(|known| {
            known.remove(&LayoutKind::Job(job));
        });
    }
}

/// Jobs that a GPU refuses in the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LayoutKind {
    /// Offline jobs next to offline jobs, by the profiles on which they run.
    Runs(Vec<bool>),
    Job(JobId),
}

impl CachingPolicy for Miger {
    type Cache = MigerCache;

    fn decide_from(
        &self,
        memory: &mut MigerCache,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        (now, starts_max): (Millis, usize),
    ) -> Vec<Decision> {
        let all = cluster.gpus.iter().enumerate();
        let mut planned_gpus: Vec<(usize, PlannedGpu<'_>)> =
            all.filter_map(|(gpu, view)| Some((gpu, PlannedGpu::new(view)?))).collect();
        let mut decisions = Vec::new();
        while decisions.len() < starts_max {
            let Some(job) = queue.next() else {
                let tidied = planned_gpus.iter_mut().filter_map(|(gpu, planned)| {
                    let calm = memory.calm.contains(gpu);
                    let tidied =
                        if calm { None } else { tidy(planned, knowledge, &mut memory.scratch) };
                    // A GPU that is being changed is considered after the change.
                    if tidied.is_none() && planned.open {
                        memory.calm.insert(*gpu);
                    }
                    tidied
                });
                decisions.extend(tidied.map(|reshape| {
                    let why = because(
                        NAME,
                        "its offline jobs have a higher throughput on these \
                                             slices",
                    );
                    Decision::Reshape { reshape, why }
                }));
                break;
            };
            match self.arrive(&mut planned_gpus, knowledge, job.id, now, memory) {
                Some(reshape) => {
                    let why = because(NAME, "the GPU with the fewest jobs that can take it");
                    decisions.push(Decision::Reshape { reshape, why });
                }
                None => {
                    decisions.push(wait(job.id));
                    break;
                }
            }
        }
        decisions
    }
}

impl Miger {
    fn arrive(
        self,
        planned_gpus: &mut [(usize, PlannedGpu<'_>)],
        knowledge: Knowledge<'_>,
        job: JobId,
        now: Millis,
        memory: &mut MigerCache,
    ) -> Option<Reshape> {
        let mut order: Vec<usize> =
            (0..planned_gpus.len()).filter(|at| planned_gpus[*at].1.open).collect();
        order.sort_by_key(|at| planned_gpus[*at].1.placements.len());
        let comes_online = shares::fixed(knowledge, job);
        let mut runs: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        order.into_iter().find_map(|at| {
            let (gpu, planned) = &mut planned_gpus[at];
            let present = online(planned, knowledge);
            let kind = if comes_online || !present.is_empty() {
                LayoutKind::Job(job)
            } else {
                let of =
                    || row(planned, knowledge, job).iter().map(|w| *w != NO_PLACEMENT).collect();
                LayoutKind::Runs(runs.entry(planned.view.model.as_str()).or_insert_with(of).clone())
            };
            if memory.refused.get(gpu).is_some_and(|known| known.contains(&kind)) {
                return None;
            }
            let found = match knowledge.jobs.facts(job).online {
                true => self.place_online(planned, knowledge, job, now, &mut memory.scratch),
                false => {
                    let mut offline = offline(planned, knowledge);
                    offline.push(job);
                    place_offline(planned, knowledge, &present, &offline, &mut memory.scratch)
                        .map(|(_, layout, placements)| (layout, placements))
                }
            };
            match found {
                Some((layout, placements)) => Some(planned.take(layout, placements)),
                None => {
                    memory.refused.entry(*gpu).or_default().insert(kind);
                    None
                }
            }
        })
    }

    /// Finds the smallest slice that serves an online job, where the offline jobs have the highest
    /// throughput.
    fn place_online(
        self,
        planned: &PlannedGpu<'_>,
        knowledge: Knowledge<'_>,
        job: JobId,
        now: Millis,
        scratch: &mut SearchBuffers,
    ) -> Option<(Layout, Vec<PlacedJob>)> {
        let present = online(planned, knowledge);
        let offline = offline(planned, knowledge);
        let taken: Layout = present.iter().filter_map(|placed| placed.slot).collect();
        let mut best: Option<RankedLayout<(Reverse<u8>, i64)>> = None;
        let mut tried = Layout::new();
        for layout in planned.mig.full().iter().filter(|layout| taken.is_subset(layout)) {
            for slot in layout.iter().filter(|slot| !taken.contains(slot)) {
                if !tried.insert(*slot) || !self.serves(planned, knowledge, job, *slot, now) {
                    continue;
                }
                let Some(sm) = shares::online(planned, knowledge, *slot, job) else { continue };
                let mut placements = present.clone();
                placements.push(PlacedJob { sm: Some(sm), ..PlacedJob::alone(job, *slot) });
                let Some((score, layout, placements)) =
                    place_offline(planned, knowledge, &placements, &offline, scratch)
                else {
                    continue;
                };
                let slices = planned.profile(*slot).map_or(u8::MAX, |p| p.compute_slices);
                let rank = (Reverse(slices), score);
                if best.as_ref().is_none_or(|(known, ..)| rank > *known) {
                    best = Some((rank, layout, placements));
                }
            }
        }
        best.map(|(_, layout, placements)| (layout, placements))
    }

    fn serves(
        self,
        planned: &PlannedGpu<'_>,
        knowledge: Knowledge<'_>,
        job: JobId,
        slot: Slot,
        now: Millis,
    ) -> bool {
        let Some(profile) = planned.profile(slot) else { return false };
        let Some(time) = knowledge.predictor.time_alone(job, planned.view, profile) else {
            return false;
        };
        let whole = planned.whole().is_some_and(|whole| whole == slot);
        let in_time = |deadline: Millis| now.get().saturating_add(time.get()) <= deadline.get();
        let well = match knowledge.jobs.facts(job).deadline {
            Some(deadline) => in_time(deadline),
            None => planned
                .speed(knowledge.predictor, job, slot)
                .is_some_and(|speed| speed >= self.served),
        };
        // The whole GPU is the best possible slice.
        well || whole
    }
}

fn wait(job: JobId) -> Decision {
    let why = Explanation {
        would_start_if: Some("a job ends".to_owned()),
        ..because(NAME, "no GPU has a slice for it, or an online job to run next to")
    };
    Decision::Wait { job, reason: WaitReason::Resources, why }
}

fn online(planned: &PlannedGpu<'_>, knowledge: Knowledge<'_>) -> Vec<PlacedJob> {
    planned
        .placements
        .iter()
        .copied()
        .filter(|placed| shares::fixed(knowledge, placed.job))
        .collect()
}

fn offline(planned: &PlannedGpu<'_>, knowledge: Knowledge<'_>) -> Vec<JobId> {
    planned.jobs().into_iter().filter(|job| !shares::fixed(knowledge, *job)).collect()
}

/// Places all offline jobs around the online ones, with the highest joint throughput.
fn place_offline(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    online: &[PlacedJob],
    offline: &[JobId],
    scratch: &mut SearchBuffers,
) -> Option<RankedLayout<i64>> {
    if offline.len() > JOBS_MAX {
        return None;
    }
    if online.is_empty() {
        return place_alone(planned, knowledge, offline, scratch);
    }
    // The jobs on a slice: an online job has at most one co-runner.
    let mut taken: BTreeMap<Slot, Vec<PlacedJob>> = BTreeMap::new();
    for placed in online {
        taken.entry(placed.slot?).or_default().push(*placed);
    }
    let mut known: BTreeMap<(usize, Slot), GuestPlacement> = BTreeMap::new();
    let mut best: Option<RankedLayout<(i64, Reverse<usize>)>> = None;
    for layout in planned.mig.full() {
        if !taken.keys().all(|slot| layout.contains(slot)) {
            continue;
        }
        let mut way = |job: usize, slot: Slot| {
            *known.entry((job, slot)).or_insert_with(|| match taken.get(&slot) {
                None => Some((planned.speed(knowledge.predictor, offline[job], slot)?, None)),
                Some(there) if there.len() > 1 => None,
                Some(there) => share_with_one(planned, knowledge, offline[job], there[0], slot),
            })
        };
        let mut score = |job: usize, slot: Slot| way(job, slot).map(|(speed, _)| speed);
        let Some(found) =
            placement_search::best(layout, offline.len(), JobCoverage::AllJobs, &mut score)
        else {
            continue;
        };
        let steps = planned.layout.symmetric_difference(layout).count();
        let rank = (found.score, Reverse(steps));
        if best.as_ref().is_none_or(|(known, ..)| rank > *known) {
            let guests = found.placements.iter().map(|(job, slot)| PlacedJob {
                job: offline[*job],
                slot: Some(*slot),
                sm: way(*job, *slot).and_then(|(_, sm)| sm),
                kernel_priority: None,
            });
            let placements = online.iter().copied().chain(guests).collect();
            best = Some((rank, layout.clone(), placements));
        }
    }
    best.map(|((score, _), layout, placements)| (score, layout, placements))
}

/// The same without online jobs: each job has its own slice.
fn place_alone(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    offline: &[JobId],
    scratch: &mut SearchBuffers,
) -> Option<RankedLayout<i64>> {
    let layout_index = planned.mig.layout_index();
    let rows: Vec<Vec<i64>> = offline.iter().map(|job| row(planned, knowledge, *job)).collect();
    let rows: Vec<&[i64]> = rows.iter().map(Vec::as_slice).collect();
    let found = layout_index.best(&rows, layout_index.mask(&planned.layout), None, scratch)?;
    let layout = planned.mig.full().get(found.layout)?.clone();
    let placements = found.placements.into_iter();
    let placements = placements.map(|(job, slot)| PlacedJob::alone(offline[job], slot));
    Some((found.score, layout, placements.collect()))
}

/// Returns a job's speed in each slot.
fn row(planned: &PlannedGpu<'_>, knowledge: Knowledge<'_>, job: JobId) -> Vec<i64> {
    let layout_index = planned.mig.layout_index();
    let score = |id: &ProfileId| {
        let profile = planned.mig.geometry.profile(*id)?;
        knowledge.predictor.relative_speed(job, planned.view, planned.mig, profile)
    };
    let by_profile = layout_index.profiles().iter().map(|id| score(id).unwrap_or(NO_PLACEMENT));
    layout_index.row(&by_profile.collect::<Vec<_>>())
}

/// Returns the speed and the part of an offline job next to an online one that keeps its speed.
fn share_with_one(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    guest: JobId,
    host: PlacedJob,
    slot: Slot,
) -> GuestPlacement {
    let part = host.sm?;
    let left = SmPercent::try_from(100 - part.get()).ok()?;
    if !shares::fits(planned, knowledge, slot, &[host.job, guest]) {
        return None;
    }
    let alone = shares::speed(planned, knowledge, slot, (host.job, part), &[])?;
    let kept = shares::speed(planned, knowledge, slot, (host.job, part), &[(guest, left)])?;
    let gained = shares::speed(planned, knowledge, slot, (guest, left), &[(host.job, part)])?;
    (kept * 1_000 >= alone * KEPT).then_some((gained, Some(left)))
}

/// Moves offline jobs to placements with a higher throughput, if slices are idle.
fn tidy(
    planned: &mut PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    scratch: &mut SearchBuffers,
) -> Option<Reshape> {
    let busy = planned.busy();
    let offline = offline(planned, knowledge);
    if !planned.open || offline.is_empty() || busy.len() == planned.layout.len() {
        return None;
    }
    let (_, layout, placements) =
        place_offline(planned, knowledge, &online(planned, knowledge), &offline, scratch)?;
    let moved = placements.iter().any(|placed| !planned.placements.contains(placed));
    moved.then(|| planned.take(layout, placements))
}
