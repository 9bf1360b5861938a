//! A policy that moves jobs by lot, with and without sense: whatever it says, nobody may be moved
//! who can't be, and nobody may be lost.

use tessera_model::mig::{Layout, Slot};
use tessera_model::{JobId, Millis};
use tessera_placement::policy::SchemeB;
use tessera_placement::{
    ClusterView, Decision, Explanation, GpuView, InstanceState, Knowledge, PlacedJob, Policy,
    QueuedJob, Reshape, StayingJobs,
};

use super::dice::Dice;

/// Places as `scheme-b` does, and reshapes a GPU now and then.
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
        let mut dice = Dice::new(now.get());
        let reshapes = match dice.chance(70) {
            true => {
                (0..=dice.below(2)).filter_map(|_| reshape(cluster, &queue, &mut dice)).collect()
            }
            false => Vec::new(),
        };
        let named = |job: JobId| {
            reshapes.iter().any(|(reshape, _): &(Reshape, _)| {
                reshape.placements.iter().any(|seat| seat.job == job)
            })
        };
        let mut rest = queue.iter().copied().filter(|job| !named(job.id));
        let mut said = SchemeB.decide(cluster, &mut rest, now, starts_max);
        said.extend(reshapes.into_iter().map(|(reshape, why)| Decision::Reshape { reshape, why }));
        said
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        // Facts are there for every running job.
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

/// Seats the jobs of a GPU anew: most stay where they are, the others go by lot, and some of other
/// GPUs or of the queue come.
fn reshape(
    cluster: &ClusterView,
    queue: &[&QueuedJob],
    dice: &mut Dice,
) -> Option<(Reshape, Explanation)> {
    let cut: Vec<&GpuView> = cluster.gpus.iter().filter(|gpu| gpu.mig.is_some()).collect();
    let gpu = dice.pick(&cut)?;
    let (stay, go): (Vec<_>, Vec<_>) = residents(gpu).into_iter().partition(|_| dice.chance(50));
    let mut jobs: Vec<JobId> = go.into_iter().map(|(job, _)| job).collect();
    for other in cluster.gpus.iter().filter(|other| other.id != gpu.id) {
        let come = residents(other).into_iter().filter(|(_, slot)| slot.is_some());
        jobs.extend(come.filter(|_| dice.chance(10)).map(|(job, _)| job));
    }
    let alone = queue.iter().filter(|job| job.share.is_none());
    jobs.extend(alone.take(2).filter(|_| dice.chance(20)).map(|job| job.id));
    // Twice the same job, now and then: that must be noticed.
    if !dice.chance(5) {
        jobs.sort_unstable();
        jobs.dedup();
    }
    let fits = |layout: &&Layout| {
        stay.iter().all(|(_, slot)| slot.is_some_and(|slot| layout.contains(&slot)))
            && layout.len() >= stay.len() + jobs.len()
    };
    let layouts: Vec<&Layout> = gpu.mig.as_ref()?.full().iter().filter(fits).collect();
    let layout = dice.pick(&layouts)?.clone();
    let seat = |job, slot| PlacedJob::alone(job, slot);
    let mut seats: Vec<PlacedJob> =
        stay.into_iter().filter_map(|(job, slot)| Some(seat(job, slot?))).collect();
    let mut slots: Vec<Slot> =
        layout.iter().copied().filter(|slot| seats.iter().all(|s| s.slot != Some(*slot))).collect();
    for job in jobs {
        seats.push(seat(job, slots.swap_remove(dice.index(slots.len()))));
    }
    let (gpu, trial, stayers) = (gpu.id.clone(), None, StayingJobs::RunOn);
    let reshape = Reshape { gpu, layout, placements: seats, trial, stayers };
    Some((reshape, Explanation { summary: "by lot".to_owned(), ..Explanation::default() }))
}
