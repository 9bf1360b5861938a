//! Orders and GPUs for tests.

use std::collections::BTreeMap;

use tessera_frames::cluster::{GpuHealth, GpuReport, InstanceReport, LaunchOrder, MigReport};
use tessera_model::mig::{Slot, catalog};
use tessera_model::spec::{JobProgram, OutputPaths, RunSpec};
use tessera_model::{AttemptId, Bytes, JobId, Millis};

use crate::ledger::AttemptFacts;

/// A slot of the GPU of [`gpu`].
pub const SLOT: Slot = Slot { start: 0, profile: tessera_model::mig::ProfileId(19) };

/// A launch of generation 1 on the GPU of [`gpu`].
pub fn order(attempt: u128, job: u64) -> LaunchOrder {
    LaunchOrder {
        epoch: 1,
        generation: 1,
        attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(attempt)),
        job: JobId::from_number(job),
        number: 1,
        gpu: gpu().gpu,
        slot: Some(SLOT),
        slice: "MIG-1".parse().unwrap(),
        array: None,
        name: "job".into(),
        user: "ada".into(),
        run: RunSpec {
            program: JobProgram::Command(vec!["/bin/true".into()]),
            work_dir: None,
            env: BTreeMap::new(),
            output: OutputPaths::default(),
            time_limit: None,
            grace: Millis::from_secs(1),
            checkpoint_signal: None,
            host_memory: None,
            cpus: None,
            batch: Default::default(),
            input: None,
            container: None,
        },
        restart_reason: None,
        traceparent: None,
        share: None,
        kernel: None,
        gang: None,
        oom_count: 0,
    }
}

/// The facts of an order.
pub fn facts(order: &LaunchOrder) -> AttemptFacts {
    AttemptFacts {
        attempt: order.attempt,
        job: order.job,
        generation: order.generation,
        gpu: order.gpu.clone(),
        slot: order.slot,
        traceparent: None,
    }
}

/// A GPU with one instance.
pub fn gpu() -> GpuReport {
    let model = &catalog::models()["a100-40gb"];
    GpuReport {
        gpu: "GPU-1".parse().unwrap(),
        index: 0,
        model: "A100".into(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        mig: MigReport::On { geometry: model.geometry() },
        instances: vec![InstanceReport {
            slot: SLOT,
            slice: Some("MIG-1".parse().unwrap()),
            memory: Bytes::from_mib(4_864),
            sms: 14,
            trouble: None,
            parts: Vec::new(),
        }],
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    }
}
