//! Short constructors for clusters and queues, and short texts for decisions.

use std::sync::{Arc, LazyLock};

use tessera_model::mig::{PlanStep, Slot, catalog};
use tessera_model::share::{KernelShare, MpsShare, SharingMode, SliceShare};
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::{
    AdminOverride, ClusterView, Decision, Explanation, Feasibility, GpuView, InstanceState,
    InstanceView, JobPlacement, MigView, QueuedJob, SharingRequest, by_name,
};

pub const IDLE: InstanceState = InstanceState::Idle;
pub const STUCK: InstanceState = InstanceState::Stuck;
pub const FOREIGN: InstanceState = InstanceState::Foreign;

pub const fn taken(number: u64) -> InstanceState {
    InstanceState::Taken { job: JobId::from_number(number) }
}

/// The rules of a model of the catalogue; built once, since tests share them by the thousand.
pub fn rules(key: &str) -> Arc<MigView> {
    static RULES: LazyLock<Vec<(&'static str, Arc<MigView>)>> = LazyLock::new(|| {
        let build = |(key, model): (&'static String, &'static catalog::GpuModel)| {
            (key.as_str(), Arc::new(MigView::new(model.geometry()).unwrap()))
        };
        catalog::models().iter().map(build).collect()
    });
    Arc::clone(&RULES.iter().find(|(known, _)| *known == key).unwrap().1)
}

/// An instance by the name of its profile, its first slice and its state.
pub type Standing<'a> = (&'a str, u8, InstanceState);

/// A GPU of the catalogue with MIG on, on its own node by default.
pub fn gpu(key: &str, standing: &[Standing<'_>]) -> GpuView {
    let mig = rules(key);
    let instances = standing
        .iter()
        .map(|(name, start, state)| {
            let profile = mig.geometry.by_name(&name.parse().unwrap()).unwrap();
            InstanceView {
                slot: Some(Slot { start: *start, profile: profile.id }),
                memory: profile.memory,
                state: state.clone(),
            }
        })
        .collect();
    GpuView {
        id: "GPU-0".parse().unwrap(),
        node: "a".parse().unwrap(),
        index: 0,
        model: key.to_owned(),
        memory: catalog::models()[key].memory.unwrap_or(Bytes::from_mib(40_960)),
        sms: None,
        mig: Some(mig),
        mps: true,
        kernel: true,
        available: true,
        changing: false,
        instances,
        operator: AdminOverride::default(),
        part: 0,
    }
}

pub fn a100(standing: &[Standing<'_>]) -> GpuView {
    gpu("a100-40gb", standing)
}

pub fn a30(standing: &[Standing<'_>]) -> GpuView {
    gpu("a30-24gb", standing)
}

/// A GPU with MIG off.
pub fn unpartitioned(mib: u64, state: InstanceState) -> GpuView {
    let memory = Bytes::from_mib(mib);
    let whole = InstanceView { slot: None, memory, state };
    GpuView { mig: None, memory, instances: vec![whole], ..a100(&[]) }
}

pub fn changing(gpu: GpuView) -> GpuView {
    GpuView { changing: true, ..gpu }
}

pub fn away(gpu: GpuView) -> GpuView {
    GpuView { available: false, ..gpu }
}

/// Puts GPUs into one node `a`, numbered from 0.
pub fn cluster(gpus: impl IntoIterator<Item = GpuView>) -> ClusterView {
    let number = |(index, gpu): (u32, GpuView)| GpuView {
        id: format!("GPU-{index}").parse().unwrap(),
        index,
        ..gpu
    };
    (0..).zip(gpus).map(number).collect::<Vec<_>>().into()
}

/// Jobs numbered from 1.
pub fn queue(requests: impl IntoIterator<Item = GpuRequest>) -> Vec<QueuedJob> {
    let job = |(number, gpu): (u64, GpuRequest)| QueuedJob {
        id: JobId::from_number(number),
        gpu,
        share: None,
        auto: None,
        online: false,
        user: "ada".into(),
        queue_rank: QueueRank::default(),
        submitted: Millis::new(number),
        gang: None,
        place: None,
    };
    (1..).zip(requests).map(job).collect()
}

pub fn gib(gib: u64) -> GpuRequest {
    GpuRequest::Memory(Bytes::from_mib(gib * 1024))
}

pub fn mib(mib: u64) -> GpuRequest {
    GpuRequest::Memory(Bytes::from_mib(mib))
}

/// Lets job `number` of a queue share a slice; kernel by kernel if it has no percentage.
pub fn sharing(queue: &mut [QueuedJob], number: usize, user: &str, sm: u8) {
    let job = &mut queue[number - 1];
    let GpuRequest::Memory(memory) = job.gpu else { panic!("a sharing job requests memory") };
    let share = match sm.try_into() {
        Ok(sm) => SliceShare::Mps(MpsShare { sm, memory }),
        Err(_) => SliceShare::Kernel(KernelShare { memory }),
    };
    job.share = Some(SharingRequest::new(user, share));
}

pub fn named(name: &str) -> GpuRequest {
    GpuRequest::Profile(name.parse().unwrap())
}

/// Returns whether the cluster could ever hold a job that doesn't share.
pub fn could_ever_fit(cluster: &ClusterView, request: &GpuRequest) -> Feasibility {
    tessera_placement::could_ever_fit(cluster, request, SharingMode::Exclusive)
}

pub fn decide(policy: &str, cluster: &ClusterView, queue: &[QueuedJob]) -> Vec<Decision> {
    decide_at_most(policy, cluster, queue, usize::MAX)
}

pub fn decide_at_most(
    policy: &str,
    cluster: &ClusterView,
    queue: &[QueuedJob],
    starts_max: usize,
) -> Vec<Decision> {
    by_name(policy).unwrap().decide(cluster, &mut queue.iter(), Millis::ZERO, starts_max)
}

/// Shows decisions in short: `1: 2g.10gb@4 on 0` or `2: resources`, with steps such as `-7g.40gb@0`.
pub fn short(cluster: &ClusterView, decisions: &[Decision]) -> Vec<String> {
    let one = |decision: &Decision| match decision {
        Decision::Start { job, place, .. } => format!("{job}: {}", short_place(cluster, place)),
        Decision::Wait { job, reason, .. } => format!("{job}: {}", reason.word()),
        Decision::Reshape { reshape, .. } => {
            format!("{}: {} seats", reshape.gpu, reshape.placements.len())
        }
        Decision::Preempt { preemption, .. } => {
            let back: Vec<String> =
                preemption.sent_back.iter().map(|job| job.to_string()).collect();
            let place = short_place(cluster, &preemption.place);
            format!("{}: {place} without {}", preemption.job, back.join(" "))
        }
    };
    decisions.iter().map(one).collect()
}

fn short_place(cluster: &ClusterView, place: &JobPlacement) -> String {
    let gpu = cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
    let name = |slot: Slot| {
        let geometry = &gpu.mig.as_ref().unwrap().geometry;
        format!("{}@{}", geometry.profile(slot.profile).unwrap().name, slot.start)
    };
    let steps = place.steps.iter().map(|step| match step {
        PlanStep::Destroy(slot) => format!("-{} ", name(*slot)),
        PlanStep::Create(slot) => format!("+{} ", name(*slot)),
        PlanStep::Cut(..) => panic!("no policy cuts instances"),
    });
    let steps: String = steps.collect();
    let on = place.slot.map_or_else(|| "whole".to_owned(), name);
    format!("{steps}{on} on {}", gpu.index)
}

pub fn why(decision: &Decision) -> &Explanation {
    match decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. }
        | Decision::Preempt { why, .. } => why,
    }
}
