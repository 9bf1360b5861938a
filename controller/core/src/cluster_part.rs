//! The part of a large cluster that matters for the question when one job starts.
//!
//! An explanation runs the policy many times on slightly different clusters. With thousands of GPUs each run takes
//! as long as a round. Nearly all of these GPUs are full and stay full, so that no job can start there. They are left
//! out. What remains has the GPUs with free capacity, those whose jobs end first, and those whose jobs are assumed to
//! have ended. Jobs ahead in the queue reserve slots on GPUs whose jobs end first, so these reservations remain, too.

use std::collections::{BTreeSet, HashMap};

use tessera_model::mig::Profile;
use tessera_model::{JobId, Millis};
use tessera_placement::{ClusterView, GpuView, InstanceState, QueuedJob};

/// The most GPUs of a cluster that is always considered as a whole. Chosen: a round on so many takes a few
/// milliseconds.
const WHOLE_MAX: usize = 256;
/// The most GPUs of one model that take part because they have free capacity, or as examples. Chosen as
/// [`WHOLE_MAX`].
const OF_MODEL_MAX: usize = 256;
/// The number of running jobs whose GPUs take part because these jobs end first. Chosen: there are at most eight
/// reservations.
const SOONEST: usize = 64;

/// Which GPUs of a cluster take part.
#[derive(Debug)]
pub(crate) struct ClusterPart {
    /// `None` if all of them do.
    some: Option<SomeGpus>,
}

#[derive(Debug)]
struct SomeGpus {
    /// Those that take part whichever jobs end.
    always: BTreeSet<usize>,
    /// The GPU of each running job.
    homes: HashMap<JobId, usize>,
}

impl ClusterPart {
    /// `ends` has the running jobs, those that end first at the beginning. The question is about `job`.
    pub(crate) fn of(
        view: &ClusterView,
        ends: &[(Option<Millis>, JobId)],
        job: &QueuedJob,
    ) -> Self {
        // A power cap is about all GPUs.
        if view.gpus.len() <= WHOLE_MAX || view.power_cap.is_some() {
            return Self { some: None };
        }
        let mut homes = HashMap::with_capacity(ends.len());
        for (at, gpu) in view.gpus.iter().enumerate() {
            homes.extend(jobs_of(gpu).map(|job| (job, at)));
        }
        let allows = |gpu: &GpuView| {
            job.place.as_ref().is_none_or(|place| place.allows(&gpu.node, &gpu.model))
        };
        // The jobs ahead may use other GPUs than this job.
        let mut always = first_of_each_model(view, has_free_capacity);
        always.extend(first_of_each_model(view, |gpu| allows(gpu) && has_free_capacity(gpu)));
        let in_order = || ends.iter().filter_map(|(_, job)| homes.get(job).copied());
        always.extend(in_order().take(SOONEST));
        always.extend(in_order().filter(|at| allows(&view.gpus[*at])).take(SOONEST));
        Self { some: Some(SomeGpus { always, homes }) }
    }

    /// Returns a part that is always the whole cluster.
    #[cfg(test)]
    pub(crate) const fn whole() -> Self {
        Self { some: None }
    }

    /// Returns whether the whole cluster takes part.
    pub(crate) const fn is_all(&self) -> bool {
        self.some.is_none()
    }

    /// Returns how exact a number of ends has to be.
    pub(crate) fn precision(&self, ends: usize) -> usize {
        if self.is_all() { 1 } else { (ends / 16).max(1) }
    }

    /// Returns the part that matters if some jobs end; `None` for the whole cluster.
    pub(crate) fn select(&self, view: &ClusterView, gone: &BTreeSet<JobId>) -> Option<ClusterView> {
        let SomeGpus { always, homes } = self.some.as_ref()?;
        let mut selected = always.clone();
        selected.extend(gone.iter().filter_map(|job| homes.get(job)));
        let gpus: Vec<GpuView> = selected.into_iter().map(|at| view.gpus[at].clone()).collect();
        Some(ClusterView::new(gpus, view.power_cap))
    }

    /// Returns some GPUs of each model as if all jobs there had ended; `None` if the cluster is small.
    pub(crate) fn emptied(&self, view: &ClusterView) -> Option<ClusterView> {
        self.some.as_ref()?;
        let examples = first_of_each_model(view, |gpu| gpu.available);
        let gpus: Vec<GpuView> = examples.into_iter().map(|at| view.gpus[at].clone()).collect();
        let gone = gpus.iter().flat_map(jobs_of).collect();
        let part = ClusterView::new(gpus, view.power_cap);
        Some(without_jobs(&part, &gone))
    }
}

/// Returns the cluster as it would be without some jobs.
pub(crate) fn without_jobs(view: &ClusterView, gone: &BTreeSet<JobId>) -> ClusterView {
    let mut view = view.clone();
    for instance in view.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        let empty = match &mut instance.state {
            InstanceState::Taken { job } => gone.contains(job),
            InstanceState::Shared(tenancy) => {
                tenancy.sharers.retain(|(job, _)| !gone.contains(job));
                tenancy.sharers.is_empty()
            }
            _ => false,
        };
        if empty {
            instance.state = InstanceState::Idle;
        }
    }
    view
}

/// Returns the first GPUs of each model for which `is_meant` holds, at most [`OF_MODEL_MAX`] of each.
fn first_of_each_model(view: &ClusterView, is_meant: impl Fn(&GpuView) -> bool) -> BTreeSet<usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut first = BTreeSet::new();
    for (at, gpu) in view.gpus.iter().enumerate().filter(|(_, gpu)| is_meant(gpu)) {
        let count = counts.entry(&gpu.model).or_default();
        if *count < OF_MODEL_MAX {
            *count += 1;
            first.insert(at);
        }
    }
    first
}

fn jobs_of(gpu: &GpuView) -> impl Iterator<Item = JobId> {
    gpu.instances.iter().flat_map(|instance| match &instance.state {
        InstanceState::Taken { job } => vec![*job],
        InstanceState::Shared(tenancy) => tenancy.sharers.iter().map(|(job, _)| *job).collect(),
        _ => Vec::new(),
    })
}

/// Returns whether one more job might start on a GPU, whatever it requests.
fn has_free_capacity(gpu: &GpuView) -> bool {
    let may_be_joined = |state: &InstanceState| {
        matches!(state, InstanceState::Idle | InstanceState::Shared(_) | InstanceState::Cut(_))
    };
    if !gpu.available {
        return false;
    }
    if gpu.instances.iter().any(|instance| may_be_joined(&instance.state)) {
        return true;
    }
    let Some(mig) = gpu.mig.as_deref() else { return gpu.instances.is_empty() };
    let slices = |profile: &Profile| u32::from(profile.compute_slices);
    let of_slot = gpu
        .instances
        .iter()
        .filter_map(|instance| mig.geometry.profile(instance.slot?.profile).map(slices));
    of_slot.sum::<u32>() < mig.largest().map_or(0, slices)
}
