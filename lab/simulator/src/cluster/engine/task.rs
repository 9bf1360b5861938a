//! The state of one job in a run.

use std::collections::BTreeMap;

use tessera_model::Bytes;
use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_placement::GpuView;

use super::{SimulationError, SimulationRun, number};
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::{SimulatedJob, WHOLE};
use crate::cluster::overheads::RunTimeKnowledge;

/// The state of one job.
#[derive(Clone, Debug)]
pub(super) struct SimulatedTask {
    /// Its remaining work, in parts of [`WHOLE`].
    pub(super) left: u64,
    pub(super) requested: Bytes,
    pub(super) spot: Option<TaskPlacement>,
    pub(super) stamp: u32,
    pub(super) first_start: Option<u64>,
    pub(super) ended: Option<u64>,
    /// Whether it ended at its time limit, before its work was finished.
    pub(super) timed_out: bool,
    pub(super) moves: u32,
    pub(super) preempted: u32,
    /// How often it was sent back to the queue for a job of a higher class.
    pub(super) sent_back: u32,
    /// Its time that was lost by that, in milliseconds: repeated work, and restarts.
    pub(super) sent_back_ms: u64,
    /// Whether its next start follows from that.
    pub(super) resumes: bool,
    pub(super) out_of_memory: u32,
    /// Whether its next start restores a checkpoint.
    pub(super) saved: bool,
    /// For how long it had placements that it has left, in milliseconds, by GPU model.
    pub(super) received: BTreeMap<&'static str, u64>,
}

/// Where a job is.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPlacement {
    pub(super) gpu: usize,
    pub(super) slot: Option<Slot>,
    pub(super) sm: Option<SmPercent>,
    pub(super) kernel_priority: Option<Priority>,
    pub(super) since: u64,
    /// When its program began there; `None` while its instance is being created.
    pub(super) began: Option<u64>,
    pub(super) phase: TaskPhase,
    /// The time up to which its progress is counted.
    pub(super) settled: u64,
    /// Time that the whole job would take at the present speed, in thousandths of a millisecond.
    pub(super) pace: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskPhase {
    /// Its instance is being created.
    Making,
    /// It starts or restores until then.
    Loading(u64),
    Works,
}

impl SimulatedTask {
    pub(super) fn new(job: &SimulatedJob, kinds: &[GpuKind<'_>]) -> Self {
        Self {
            left: WHOLE,
            requested: least_request(job, kinds),
            spot: None,
            stamp: 0,
            first_start: None,
            ended: None,
            timed_out: false,
            moves: 0,
            preempted: 0,
            sent_back: 0,
            sent_back_ms: 0,
            resumes: false,
            out_of_memory: 0,
            saved: false,
            received: BTreeMap::new(),
        }
    }
}

/// A model with one of its GPUs.
pub(super) type GpuKind<'f> = (&'static str, &'f GpuView);

pub(super) fn kinds(fleet: &GpuFleet) -> Vec<GpuKind<'_>> {
    let mut first: BTreeMap<&'static str, &GpuView> = BTreeMap::new();
    for (key, gpu) in fleet.keys.iter().zip(&fleet.view.gpus) {
        first.entry(key).or_insert(gpu);
    }
    first.into_iter().collect()
}

/// Returns a job's request. It is more than the memory of any instance on which it has no time,
/// since a policy that looks at memory only must not put it there.
fn least_request(job: &SimulatedJob, kinds: &[GpuKind<'_>]) -> Bytes {
    let mut requested = job.requested;
    for (key, gpu) in kinds.iter().filter(|(key, _)| job.times_on(key).is_some()) {
        let Some(mig) = gpu.mig.as_deref() else { continue };
        for profile in mig.plain().filter(|p| job.time(key, p.compute_slices).is_none()) {
            requested = requested.max(Bytes::new(profile.memory.get().saturating_add(1)));
        }
    }
    requested
}

impl SimulationRun<'_> {
    /// Returns whether some instance of some GPU holds the job to its end.
    pub(super) fn check(
        &self,
        kinds: &[GpuKind<'_>],
        index: usize,
        job: &SimulatedJob,
    ) -> Result<(), SimulationError> {
        let needs = job.memory_at_end.max(job.memory_at_start).max(self.tasks[index].requested);
        let no_place = |why: String| SimulationError::NoPlace {
            job: number(index),
            name: job.name.clone(),
            why,
        };
        if kinds.iter().all(|(model, _)| job.times_on(model).is_none()) {
            let known: Vec<&str> = job.times.keys().map(String::as_str).collect();
            let here: Vec<&str> = kinds.iter().map(|(model, _)| *model).collect();
            let why = format!(
                "it has times for {} only; name such a GPU in --cluster, or give it times for {} \
                 (or under \"*\", for any GPU)",
                known.join(", "),
                here.join(", ")
            );
            return Err(no_place(why));
        }
        let allowed = |gpu: &GpuView| {
            job.place.as_ref().is_none_or(|place| place.allows(&gpu.node, &gpu.model))
        };
        if let Some(place) =
            job.place.as_ref().filter(|_| !kinds.iter().any(|(_, gpu)| allowed(gpu)))
        {
            let why = format!("it may use {} only; name such a GPU in --cluster", place.text());
            return Err(no_place(why));
        }
        let fits = kinds.iter().filter(|(_, gpu)| allowed(gpu)).any(|(model, gpu)| {
            let mig = gpu.mig.as_deref();
            mig.is_some_and(|mig| {
                mig.plain()
                    .any(|p| p.memory >= needs && job.time(model, p.compute_slices).is_some())
            })
        });
        if !fits {
            return Err(no_place(too_small(kinds, needs)));
        }
        self.check_times(kinds, index, job)
    }

    /// Returns whether the policy puts the job only where it has times.
    fn check_times(
        &self,
        kinds: &[GpuKind<'_>],
        index: usize,
        job: &SimulatedJob,
    ) -> Result<(), SimulationError> {
        let known = self.setup.overheads.times == RunTimeKnowledge::Known;
        if self.setup.policy.needs_run_times() && known {
            return Ok(());
        }
        let requested = self.tasks[index].requested;
        let holds = |gpu: &GpuView| {
            let largest = gpu.mig.as_deref().and_then(|mig| mig.largest());
            largest.is_some_and(|largest| largest.memory >= requested)
        };
        let mut timeless = kinds.iter().filter(|(model, _)| job.times_on(model).is_none());
        match timeless.find(|(_, gpu)| holds(gpu)) {
            None => Ok(()),
            Some((model, _)) => Err(SimulationError::NoTimes {
                policy: self.setup.policy.name().to_owned(),
                job: number(index),
                name: job.name.clone(),
                model: (*model).to_owned(),
            }),
        }
    }
}

/// States what a job needs that no instance has, and what the largest has.
fn too_small(kinds: &[GpuKind<'_>], needs: Bytes) -> String {
    let largest = kinds
        .iter()
        .filter_map(|(model, gpu)| Some((gpu.mig.as_deref()?.largest()?.memory, *model)));
    let largest = largest.max().map_or_else(String::new, |(memory, model)| {
        format!("; the largest here has {memory} ({model}): name larger GPUs in --cluster")
    });
    format!("it needs an instance with {needs} on which it has a time{largest}")
}
