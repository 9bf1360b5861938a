//! A policy that migrates jobs at random, also in impossible ways. Whatever it decides, jobs that
//! can't be migrated must stay, and no job may be lost.

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};
use tessera_placement::policy::SchemeB;
use tessera_placement::{
    ClusterView, Decision, Explanation, GpuView, InstanceState, Knowledge, PlacedJob, Policy,
    QueuedJob, Reshape, StayingJobs,
};

use super::random::RandomNumbers;

/// Places like `scheme-b`, and sometimes reshapes a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restless;

impl Policy for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn moves(&self) -> bool {
        true
    }

    fn decide(
        &self,
        cluster: &ClusterView,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let queue: Vec<&QueuedJob> = queue.collect();
        let mut random = RandomNumbers::new(now.get());
        let reshapes = match random.happens(70) {
            true => (0..=random.below(2))
                .filter_map(|_| reshape(cluster, &queue, &mut random))
                .collect(),
            false => Vec::new(),
        };
        let named = |job: JobId| {
            reshapes.iter().any(|(reshape, _): &(Reshape, _)| {
                reshape.placements.iter().any(|place| place.job == job)
            })
        };
        let mut rest = queue.iter().copied().filter(|job| !named(job.id));
        let mut decisions = SchemeB.decide(cluster, &mut rest, now, starts_max);
        decisions
            .extend(reshapes.into_iter().map(|(reshape, why)| Decision::Reshape { reshape, why }));
        decisions
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        // Every running job must have facts.
        for gpu in &cluster.gpus {
            for (job, _) in residents(gpu) {
                let done = knowledge.jobs.facts(job).done.unwrap_or(0);
                assert!(done <= 1_000_000, "{job:?} is done {done} times");
            }
        }
        self.decide(cluster, queue, now, starts_max)
    }
}

fn residents(gpu: &GpuView) -> Vec<(JobId, Option<Slot>)> {
    let taken = gpu.instances.iter().filter_map(|instance| match instance.state {
        InstanceState::Taken { job } => Some((job, instance.slot)),
        _ => None,
    });
    taken.collect()
}

/// Places the jobs of a GPU again: most keep their slots, the others get random slots, and some
/// jobs from other GPUs or the queue are added.
fn reshape(
    cluster: &ClusterView,
    queue: &[&QueuedJob],
    random: &mut RandomNumbers,
) -> Option<(Reshape, Explanation)> {
    let cut: Vec<&GpuView> = cluster.gpus.iter().filter(|gpu| gpu.mig.is_some()).collect();
    let gpu = random.pick(&cut)?;
    let (stay, go): (Vec<_>, Vec<_>) = residents(gpu).into_iter().partition(|_| random.happens(50));
    let mut jobs: Vec<JobId> = go.into_iter().map(|(job, _)| job).collect();
    for other in cluster.gpus.iter().filter(|other| other.id != gpu.id) {
        let come = residents(other).into_iter().filter(|(_, slot)| slot.is_some());
        jobs.extend(come.filter(|_| random.happens(10)).map(|(job, _)| job));
    }
    let alone = queue.iter().filter(|job| job.share.is_none());
    jobs.extend(alone.take(2).filter(|_| random.happens(20)).map(|job| job.id));
    // Sometimes a job is named twice, which must be detected.
    if !random.happens(5) {
        jobs.sort_unstable();
        jobs.dedup();
    }
    let fits = |layout: &&Layout| {
        stay.iter().all(|(_, slot)| slot.is_some_and(|slot| layout.contains(&slot)))
            && layout.len() >= stay.len() + jobs.len()
    };
    let layouts: Vec<&Layout> = gpu.mig.as_ref()?.full().iter().filter(fits).collect();
    let layout = random.pick(&layouts)?.clone();
    let place = |job, slot| PlacedJob::alone(job, slot);
    let mut places: Vec<PlacedJob> =
        stay.into_iter().filter_map(|(job, slot)| Some(place(job, slot?))).collect();
    let mut slots: Vec<Slot> = layout
        .iter()
        .copied()
        .filter(|slot| places.iter().all(|s| s.slot != Some(*slot)))
        .collect();
    for job in jobs {
        places.push(place(job, slots.swap_remove(random.index(slots.len()))));
    }
    let (gpu, trial, stayers) = (gpu.id.clone(), None, StayingJobs::RunOn);
    let reshape = Reshape { gpu, layout, placements: places, trial, stayers };
    Some((reshape, Explanation { summary: "by lot".to_owned(), ..Explanation::default() }))
}
