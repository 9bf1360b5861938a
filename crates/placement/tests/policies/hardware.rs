//! A model of the cluster that carries decisions out like agents, and refuses what a driver
//! refuses.
//!
//! It also finds all possible placements of a job by exhaustive search: an oracle that shares no
//! code with the policies.

use tessera_model::mig::{Geometry, Layout, PlanStep, Slot};
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId};
use tessera_placement::{
    ClusterView, GpuView, InstanceState, InstanceView, JobPlacement, SharingRequest, Tenancy,
};

pub struct Hardware {
    pub cluster: ClusterView,
}

/// How a placement can be obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Idle,
    Create,
    Rearrange,
}

impl Hardware {
    pub fn new(cluster: &ClusterView) -> Self {
        Self { cluster: cluster.clone() }
    }

    pub fn gpu(&self, place: &JobPlacement) -> &GpuView {
        self.cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap()
    }

    /// Carries out one start; panics where a driver or an agent would refuse.
    pub fn start(&mut self, job: JobId, place: &JobPlacement) {
        let gpu = self.cluster.gpus.iter_mut().find(|gpu| gpu.id == place.gpu).unwrap();
        assert!(gpu.available, "{job} starts on an unavailable GPU");
        assert!(place.steps.is_empty() || !gpu.changing, "{job} changes a changing GPU");
        for step in &place.steps {
            take_step(gpu, *step);
        }
        let mut there = gpu.instances.iter_mut().filter(|i| i.slot == place.slot);
        let instance = there.next().expect("the slot is present after the steps");
        assert_eq!(instance.state, InstanceState::Idle, "{job} starts on a busy instance");
        instance.state = InstanceState::Taken { job };
        assert!(there.next().is_none(), "two instances in one slot");
    }

    /// As [`Self::start`], for a job that may share: its slice is idle, or the jobs on it are of
    /// its user and leave enough space.
    pub fn start_sharer(&mut self, job: JobId, sharer: &SharingRequest, place: &JobPlacement) {
        let gpu = self.cluster.gpus.iter_mut().find(|gpu| gpu.id == place.gpu).unwrap();
        assert!(gpu.shares(sharer.share), "{job} shares on a node that can't");
        let shared = gpu.instances.iter_mut().find(|i| i.slot == place.slot);
        if let Some(InstanceView { state: InstanceState::Shared(tenancy), memory, .. }) = shared {
            assert!(place.steps.is_empty(), "{job} changes the slice that it joins");
            assert_eq!(tenancy.user, sharer.user, "{job} joins a stranger");
            tenancy.sharers.push((job, sharer.share));
            let kernel = tenancy.sharers.iter().filter(|(_, s)| s.is_kernel()).count();
            assert!(kernel == 0 || kernel == tenancy.sharers.len(), "{job} joins another kind");
            let sm: u32 = tenancy.sharers.iter().map(|(_, s)| s.sm_percent()).sum();
            let bytes: u64 = tenancy.sharers.iter().map(|(_, s)| s.memory().get()).sum();
            assert!(sm <= 100 && bytes <= memory.get(), "{job} does not fit: {tenancy:?}");
            return;
        }
        self.start(job, place);
        let gpu = self.cluster.gpus.iter_mut().find(|gpu| gpu.id == place.gpu).unwrap();
        for instance in gpu.instances.iter_mut().filter(|i| i.slot == place.slot) {
            instance.state = InstanceState::Shared(Tenancy::begun(job, sharer));
        }
    }

    /// Returns every placement of the tightest size that each available GPU could give to a job.
    pub fn places(&self, request: &GpuRequest) -> Vec<(Bytes, How)> {
        self.cluster
            .gpus
            .iter()
            .filter(|g| g.available)
            .flat_map(|g| places_on(g, request))
            .collect()
    }
}

fn take_step(gpu: &mut GpuView, step: PlanStep) {
    let geometry = &gpu.mig.as_ref().unwrap().geometry;
    match step {
        PlanStep::Destroy(slot) => {
            let at = gpu.instances.iter().position(|i| i.slot == Some(slot));
            let gone = gpu.instances.remove(at.expect("the destroyed instance exists"));
            assert_eq!(gone.state, InstanceState::Idle, "a busy instance is destroyed");
        }
        PlanStep::Cut(..) => panic!("no policy cuts instances"),
        PlanStep::Create(slot) => {
            let profile = geometry.profile(slot.profile).unwrap();
            gpu.instances.push(InstanceView {
                slot: Some(slot),
                memory: profile.memory,
                state: InstanceState::Idle,
            });
            let layout = standing(gpu, |_| true);
            assert_eq!(layout.len(), gpu.instances.len(), "two instances in one slot");
            gpu.mig.as_ref().unwrap().geometry.check(&layout).unwrap();
        }
    }
}

fn places_on(gpu: &GpuView, request: &GpuRequest) -> Vec<(Bytes, How)> {
    let Some(mig) = &gpu.mig else {
        let enough = match request {
            GpuRequest::Unknown | GpuRequest::Whole | GpuRequest::Unpartitioned => true,
            GpuRequest::Memory(bytes) => gpu.memory >= *bytes,
            GpuRequest::Profile(_) | GpuRequest::Compute(_) => false,
        };
        let idle = gpu.instances.iter().all(|i| i.state == InstanceState::Idle);
        return if enough && idle { vec![(gpu.memory, How::Idle)] } else { Vec::new() };
    };
    let all = standing(gpu, |_| true);
    let busy = standing(gpu, InstanceState::busy);
    let with =
        |layout: &Layout, slot: Slot| layout.iter().copied().chain([slot]).collect::<Layout>();
    let fits = |layout: &Layout, slot: Slot| {
        !layout.contains(&slot) && mig.geometry.check(&with(layout, slot)).is_ok()
    };
    tight_slots(&mig.geometry, request)
        .into_iter()
        .filter_map(|(slot, memory)| {
            if all.contains(&slot) && !busy.contains(&slot) {
                Some((memory, How::Idle))
            } else if gpu.changing {
                None
            } else if fits(&all, slot) {
                Some((memory, How::Create))
            } else {
                fits(&busy, slot).then_some((memory, How::Rearrange))
            }
        })
        .collect()
}

/// Every slot of the profiles with the smallest sufficient memory.
pub fn tight_slots(geometry: &Geometry, request: &GpuRequest) -> Vec<(Slot, Bytes)> {
    let plain = geometry.plain();
    let suits = |p: &&tessera_model::mig::Profile| match request {
        GpuRequest::Unknown => plain.contains(&p.id),
        GpuRequest::Memory(bytes) => plain.contains(&p.id) && p.memory >= *bytes,
        GpuRequest::Profile(name) => p.name == *name,
        GpuRequest::Compute(_) | GpuRequest::Unpartitioned => false,
        GpuRequest::Whole => geometry.largest().is_some_and(|largest| largest.id == p.id),
    };
    let smallest = geometry.profiles.iter().filter(suits).map(|p| p.memory).min();
    geometry
        .profiles
        .iter()
        .filter(suits)
        .filter(|p| Some(p.memory) == smallest)
        .flat_map(|p| {
            p.starts.iter().map(|start| (Slot { start: *start, profile: p.id }, p.memory))
        })
        .collect()
}

/// Returns the slots of the instances whose state passes.
pub fn standing(gpu: &GpuView, keep: impl Fn(&InstanceState) -> bool) -> Layout {
    gpu.instances.iter().filter(|i| keep(&i.state)).filter_map(|i| i.slot).collect()
}
