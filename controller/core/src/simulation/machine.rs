//! A node: its disk, its GPUs, the processes that its shepherds watch, and its agent, which
//! follows the same rules as the real one and may be dead.

use std::collections::{BTreeMap, BTreeSet};

use tessera_frames::cluster::{
    ComputeInstanceReport, ExitRecord, GpuReport, Hello, InstanceReport, MigReport,
    PROTOCOL_VERSION, ToController,
};
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::mig::compute::{self, ComputeSlot, IllegalCut};
use tessera_model::mig::{IllegalLayout, PlanStep, Slot};
use tessera_model::share::SliceShare;
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, GpuId, JobId, Millis, NodeIdentity, PlanId,
};
use uuid::Uuid;

use super::agent::Agent;
use crate::rows::transitions::record_without_exit;

/// Why a step of a plan failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepFailure {
    #[error("a process uses the instance")]
    InUse,
    #[error("the GPU is gone")]
    NoGpu,
    #[error("MIG is off")]
    MigOff,
    #[error("the driver refused")]
    Driver,
    #[error(transparent)]
    Layout(#[from] IllegalLayout),
    #[error(transparent)]
    Cut(#[from] IllegalCut),
}

/// The journal's entry of an attempt.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) job: JobId,
    pub(super) generation: u64,
    pub(super) gpu: GpuId,
    pub(super) slot: Option<Slot>,
    /// The user and the share, if it is on a shared slice.
    pub(super) share: Option<(String, SliceShare)>,
    /// Whether its program has a checkpoint signal.
    pub(super) checkpoints: bool,
}

/// State on disk, which survives restarts of the agent and of the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) generation: u64,
    pub(super) highest_epoch: u64,
    pub(super) controller: Option<ControllerId>,
    pub(super) accepted: BTreeMap<AttemptId, Facts>,
    pub(super) begun: BTreeSet<AttemptId>,
    pub(super) exits: BTreeMap<AttemptId, ExitRecord>,
    pub(super) tombstones: BTreeSet<AttemptId>,
    pub(super) plans: BTreeMap<GpuId, (u64, Option<PlanId>)>,
    /// The lease page: generation, and the deadline on the node's clock.
    pub(super) lease: (u64, Millis),
}

/// Why a process is being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    Cancelled,
    Preempted,
    Revoked,
    OldGeneration,
}

/// A running program.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) facts: Facts,
    pub(super) dying: Option<Death>,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) identity: NodeIdentity,
    pub(super) boot: BootId,
    pub(super) disk: Disk,
    pub(super) gpus: Vec<GpuReport>,
    pub(super) processes: BTreeMap<AttemptId, Process>,
    pub(super) agent: Option<Agent>,
    /// How much faster its clock is than the controller's, in thousandths; negative: slower.
    pub(super) rate: i64,
    pub(super) next_slice: u128,
}

impl Machine {
    /// Reads its clock.
    pub(super) fn clock(&self, now: Millis) -> Millis {
        let now = i64::try_from(now.get()).unwrap();
        // Clocks of different machines are never compared: each starts at a different time.
        let begun = 1_000_000 * (2 + self.rate.abs());
        Millis::new(u64::try_from(begun + now + now * self.rate / 1_000).unwrap())
    }

    /// Returns the agent's first frame.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL_VERSION,
            software: "1".to_owned(),
            boot: self.boot,
            process: 0,
            generation: self.disk.generation,
            highest_epoch: self.disk.highest_epoch,
            // The disks of simulated nodes never lose data.
            receipt: vec![1],
            controller: self.disk.controller,
            cores: 8,
            memory: Bytes::from_mib(65_536),
            mps: true,
            kernel: true,
            address: format!("10.0.0.{}", self.identity.id.as_uuid().as_u128()),
            isolation_gaps: std::collections::BTreeSet::new(),
        }
    }

    /// Starts an agent, which reads its predecessor's state.
    pub(super) fn start_agent(&mut self) {
        // For a refused launch, only the tombstone is on disk.
        self.disk.exits.retain(|attempt, _| self.disk.accepted.contains_key(attempt));
        let lost: Vec<_> = self
            .disk
            .accepted
            .keys()
            .filter(|a| !self.processes.contains_key(a) && !self.disk.exits.contains_key(a))
            .copied()
            .collect();
        for attempt in lost {
            let outcome = match self.disk.begun.contains(&attempt) {
                true => Outcome::Lost,
                false => Outcome::NotStarted,
            };
            self.keep_exit(attempt, outcome);
        }
        self.agent = Some(Agent::default());
    }

    /// A reboot ends all processes and removes all instances.
    pub(super) fn reboot(&mut self, boot: BootId) {
        self.agent = None;
        self.processes.clear();
        self.boot = boot;
        self.disk.lease = (0, Millis::ZERO);
        for gpu_report in &mut self.gpus {
            gpu_report.instances.clear();
        }
    }

    /// Returns whether the lease of the current generation is valid.
    pub(super) fn leased(&self, now: Millis) -> bool {
        self.clock(now) < self.disk.lease.1 && self.disk.lease.0 == self.disk.generation
    }

    /// Shepherds end attempts that the lease page no longer covers (rule F5).
    pub(super) fn fence(&mut self, now: Millis) -> Vec<ToController> {
        let clock = self.clock(now);
        let fenced: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, p)| clock >= self.disk.lease.1 || p.facts.generation != self.disk.lease.0)
            .map(|(attempt, _)| *attempt)
            .collect();
        fenced.into_iter().flat_map(|attempt| self.exit(attempt, Outcome::Lost)).collect()
    }

    /// A program ends; its shepherd writes a record, and the agent reports it.
    pub(super) fn exit(&mut self, attempt: AttemptId, outcome: Outcome) -> Vec<ToController> {
        let Some(process) = self.processes.remove(&attempt) else { return Vec::new() };
        self.keep_exit(attempt, outcome);
        let mut frames = vec![self.attempt_report(attempt)];
        if process.dying == Some(Death::Revoked) && self.agent.is_some() {
            self.disk.tombstones.insert(attempt);
            frames.push(ToController::Tombstoned { attempt });
        }
        self.if_live(frames)
    }

    pub(super) fn keep_exit(&mut self, attempt: AttemptId, outcome: Outcome) {
        let mut record = record_without_exit(outcome, String::new());
        if self.disk.begun.contains(&attempt) {
            // Times that differ from run to run.
            let ran = 20_000 + attempt.as_uuid().as_u128() % 37 * 1_000;
            record.started_unix = Millis::from_secs(1_000);
            record.ended_unix = record.started_unix.plus(Millis::new(u64::try_from(ran).unwrap()));
            // Some run out of the host's memory, so their exit status is unknown.
            let of_gpu =
                outcome == Outcome::OutOfMemory && !attempt.as_uuid().as_u128().is_multiple_of(4);
            record.exit = of_gpu.then_some(ProgramExit::Code(1));
        }
        self.disk.exits.insert(attempt, record);
    }

    /// Frames that are sent at once if the session is live; else they are part of the next
    /// inventory.
    pub(super) fn if_live(&self, frames: Vec<ToController>) -> Vec<ToController> {
        let live = self.agent.as_ref().is_some_and(Agent::is_live);
        if live { frames } else { Vec::new() }
    }

    pub(super) fn gpu_mut(&mut self, gpu: &GpuId) -> Option<&mut GpuReport> {
        self.gpus.iter_mut().find(|gpu_report| gpu_report.gpu == *gpu)
    }

    /// Carries out one step of a plan; instances in use are never touched (promise P7).
    pub(super) fn make(&mut self, gpu: &GpuId, step: PlanStep) -> Result<(), StepFailure> {
        let used = |slot: Slot| {
            self.processes.values().any(|p| p.facts.gpu == *gpu && p.facts.slot == Some(slot))
        };
        if let PlanStep::Destroy(slot) | PlanStep::Cut(slot, _) = step
            && used(slot)
        {
            return Err(StepFailure::InUse);
        }
        self.next_slice += 1;
        let slice = format!("MIG-{}", Uuid::from_u128(self.next_slice));
        let gpu_report = self.gpu_mut(gpu).ok_or(StepFailure::NoGpu)?;
        let MigReport::On { geometry } = &gpu_report.mig else { return Err(StepFailure::MigOff) };
        match step {
            PlanStep::Destroy(slot) => gpu_report.instances.retain(|i| i.slot != slot),
            PlanStep::Create(slot) if gpu_report.instances.iter().any(|i| i.slot == slot) => {
                let half =
                    gpu_report.instances.iter_mut().find(|i| i.slot == slot && i.slice.is_none());
                if let Some(half) = half {
                    half.slice = Some(slice.parse().unwrap());
                }
            }
            PlanStep::Cut(slot, cut) => {
                let mut slots: Vec<_> = gpu_report.instances.iter().map(|i| i.slot).collect();
                slots.retain(|standing| *standing != slot);
                slots.push(slot);
                geometry.check(&slots)?;
                let profile = geometry.profile(slot.profile).unwrap();
                compute::check_cut(profile.compute_slices, &cut)?;
                let whole = cut.contains(ComputeSlot { start: 0, slices: profile.compute_slices });
                let part = |part: ComputeSlot| ComputeInstanceReport {
                    slot: part,
                    slice: Some(format!("{slice}-{}", part.start).parse().unwrap()),
                    sms: 1,
                };
                let made = InstanceReport {
                    slot,
                    slice: whole.then(|| slice.parse().unwrap()),
                    memory: profile.memory,
                    sms: profile.sms,
                    trouble: None,
                    parts: if whole { Vec::new() } else { cut.iter().map(part).collect() },
                };
                gpu_report.instances.retain(|i| i.slot != slot);
                gpu_report.instances.push(made);
                gpu_report.instances.sort_by_key(|i| i.slot);
            }
            PlanStep::Create(slot) => {
                let mut slots: Vec<_> = gpu_report.instances.iter().map(|i| i.slot).collect();
                slots.push(slot);
                geometry.check(&slots)?;
                let profile = geometry.profile(slot.profile).unwrap();
                gpu_report.instances.push(InstanceReport {
                    slot,
                    slice: Some(slice.parse().unwrap()),
                    memory: profile.memory,
                    sms: profile.sms,
                    trouble: None,
                    parts: Vec::new(),
                });
                gpu_report.instances.sort_by_key(|i| i.slot);
            }
        }
        Ok(())
    }
}
