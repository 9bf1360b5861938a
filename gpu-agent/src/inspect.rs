//! Prints once what the driver reports about its GPUs: inventory, placements, instances, one sample
//! of the figures, and what this account may do here. Only reads; changes nothing.

use serde::{Deserialize, Serialize};
use tessera_model::GpuId;

use crate::doctor::Doctor;
use crate::nvml::client::{NvmlClient, NvmlFailed, WorkerProgram};
use crate::nvml::messages::{NvmlReply, NvmlRequest};
use tessera_agent_core::doctor::{findings, summary};
use tessera_agent_core::nvml::facts::GpuFacts;
use tessera_agent_core::nvml::sample::GpuSample;

/// What is printed, as JSON; also kept as the record of a real GPU (`load-tests/gpu`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    /// The agent's version.
    pub software: String,
    /// What this account may do with the GPUs here, in one sentence.
    pub may: String,
    /// What the doctor finds of the driver and the GPUs.
    pub findings: Vec<InspectedFinding>,
    /// What was found on each GPU.
    pub gpus: Vec<InspectedGpu>,
    /// Why the GPUs can't be listed, if they can't.
    pub problem: Option<String>,
}

/// One finding of the doctor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InspectedFinding {
    /// What was checked.
    pub check: String,
    /// `ok`, `warn` or `blocks`.
    pub level: String,
    /// The GPU's index, if it is about one.
    pub gpu: Option<u32>,
    /// What was found.
    pub text: String,
    /// What fixes it.
    pub remedy: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InspectedGpu {
    /// Its UUID.
    pub gpu: GpuId,
    /// Its state, with profiles and placements if MIG mode is on.
    pub facts: Option<GpuFacts>,
    /// Its power, and the processes that use it.
    pub sample: Option<GpuSample>,
    /// Why something of that is missing.
    pub problems: Vec<String>,
}

/// The checks that are about the driver, not about the rest of the machine.
const OF_THE_DRIVER: [&str; 6] =
    ["driver", "gpus", "mig_mode", "mig_permission", "persistence", "display"];

/// Looks once.
pub async fn look(doctor: &Doctor) -> Inspection {
    let facts = doctor.look().await;
    let of_the_driver = |check: &str| OF_THE_DRIVER.contains(&check);
    let found = findings(&facts).into_iter().filter(|f| of_the_driver(&f.check)).map(|f| {
        InspectedFinding {
            check: f.check,
            level: f.level.as_str().to_owned(),
            gpu: f.gpu,
            text: f.text,
            remedy: f.remedy,
        }
    });
    let program = WorkerProgram {
        program: doctor.program.clone(),
        library: doctor.library.clone().into_os_string(),
        launcher: None,
    };
    let nvml = NvmlClient::start(program);
    let (mut gpus, mut problem) = (Vec::new(), None);
    match nvml.request(NvmlRequest::List).await {
        Ok(NvmlReply::Gpus(ids)) => {
            for id in ids {
                gpus.push(inspect(&nvml, id).await);
            }
        }
        Ok(_) => problem = Some(NvmlFailed::NoAnswer.to_string()),
        Err(failed) => problem = Some(failed.to_string()),
    }
    Inspection {
        software: env!("CARGO_PKG_VERSION").to_owned(),
        may: summary(&facts),
        findings: found.collect(),
        gpus,
        problem,
    }
}

async fn inspect(nvml: &NvmlClient, gpu: GpuId) -> InspectedGpu {
    let mut problems = Vec::new();
    let facts = match nvml.request(NvmlRequest::Read(gpu.clone())).await {
        Ok(NvmlReply::Gpu(facts)) => Some(*facts),
        Ok(_) => None,
        Err(failed) => {
            problems.push(format!("can't be read: {failed}"));
            None
        }
    };
    let sample = match nvml.request(NvmlRequest::Sample(gpu.clone())).await {
        Ok(NvmlReply::Sample(sample)) => Some(*sample),
        Ok(_) => None,
        Err(failed) => {
            problems.push(format!("can't be sampled: {failed}"));
            None
        }
    };
    InspectedGpu { gpu, facts, sample, problems }
}

/// Queries the driver and prints the results; `false` if the GPUs can't even be listed.
pub async fn print(doctor: Doctor) -> bool {
    let seen = look(&doctor).await;
    match serde_json::to_string_pretty(&seen) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("tessera-agent: {error}"),
    }
    seen.problem.is_none()
}
