//! The body of a GPU's actor: asks the driver, lets the pure plan decide, tells the node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tessera_model::GpuId;
use tessera_model::mig::{Slot, Step};
use tessera_telemetry::{context, names};
use tessera_wire::frames::{
    GpuHealth, GpuReport, InstanceReport, InstanceTrouble, PlanEnd, PlanOrder,
};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::GpuEvent;
use super::file::GpuFile;
use crate::core::plan::{Action, Event, PlanRun, Standing, StepRefused};
use crate::node::Input;
use crate::nvml::client::{NvmlClient, NvmlFailed};
use crate::nvml::fault::Handling;
use crate::nvml::messages::{GpuFacts, InstanceFacts, Reply, Request};

/// Most pids of strangers in a report.
const FOREIGN_MAX: usize = 16;
/// How often a driver that doesn't answer is asked again within one plan.
const READS_MAX: u32 = 3;

/// One GPU and what it needs.
pub struct Gpu {
    /// Which.
    pub id: GpuId,
    /// The way to its driver.
    pub nvml: NvmlClient,
    /// The way to the node.
    pub node: mpsc::Sender<Input>,
    /// The data folder.
    pub data: PathBuf,
    /// Tries of a blocked step.
    pub tries_max: u32,
    file: GpuFile,
    facts: Option<GpuFacts>,
    stuck: BTreeMap<Slot, String>,
    health: GpuHealth,
}

impl Gpu {
    /// Takes a GPU on.
    pub fn new(
        id: GpuId,
        nvml: NvmlClient,
        node: mpsc::Sender<Input>,
        data: PathBuf,
        tries_max: u32,
        file: GpuFile,
    ) -> Self {
        let health = GpuHealth::Healthy;
        let (facts, stuck) = (None, BTreeMap::new());
        Self { id, nvml, node, data, tries_max, file, facts, stuck, health }
    }

    /// Reads the GPU and tells the node how it stands.
    ///
    /// # Errors
    ///
    /// The driver refused or didn't answer; the node has been told.
    pub async fn refresh(&mut self) -> Result<(), NvmlFailed> {
        let read = self.nvml.ask(Request::Read(self.id.clone())).await;
        let result = match read {
            Ok(Reply::Gpu(facts)) => {
                self.health = GpuHealth::Healthy;
                let stands = |slot: &Slot| facts.instances.iter().find(|i| i.slot == *slot);
                // Stuck no more: gone, or whole and unused.
                self.stuck.retain(|slot, _| {
                    stands(slot).is_some_and(|i| i.slice.is_none() || !i.users.is_empty())
                });
                self.facts = Some(*facts);
                Ok(())
            }
            Ok(Reply::Gpus(_) | Reply::Done | Reply::Failed(_)) => Err(NvmlFailed::NoAnswer),
            Err(failed) => Err(failed),
        };
        match &result {
            Ok(()) => {}
            Err(NvmlFailed::NoAnswer) => self.health = GpuHealth::Unresponsive,
            Err(NvmlFailed::Refused(fault)) => {
                self.health = GpuHealth::Faulty { reason: fault.to_string() };
            }
        }
        if let Some(report) = self.report() {
            self.tell(GpuEvent::Changed(Box::new(report))).await;
        }
        result
    }

    /// Carries out a plan, and tells the node how it ended.
    pub async fn apply(&mut self, order: PlanOrder) {
        let plan = order.plan;
        let span = tracing::info_span!(
            names::span::REPARTITION,
            { names::attribute::PLAN_ID } = %plan,
            { names::attribute::HW_ID } = %self.id,
        );
        if let Some(parent) = &order.traceparent {
            context::set_parent(&span, parent);
        }
        self.apply_within(order).instrument(span).await;
    }

    async fn apply_within(&mut self, order: PlanOrder) {
        let plan = order.plan;
        let end = match self.begin(&order) {
            Err(reason) => PlanEnd::Refused { reason },
            Ok(()) => self.carry_out(order).await,
        };
        tracing::info!(gpu = %self.id, %plan, ?end, "a layout plan ended");
        // Fails only if the GPU doesn't answer: its report says so.
        let _ = self.refresh().await;
        self.tell(GpuEvent::PlanEnded { gpu: self.id.clone(), plan, end }).await;
    }

    fn begin(&mut self, order: &PlanOrder) -> Result<(), String> {
        self.file.judge(order.layout_gen, order.plan)?;
        self.note(GpuFile { layout_gen: order.layout_gen, plan: Some(order.plan), intent: None })
    }

    /// Puts the intent on disk before it is acted on.
    fn note(&mut self, file: GpuFile) -> Result<(), String> {
        file.save(&self.data, &self.id).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", cause.unwrap_or_default())
        })?;
        self.file = file;
        Ok(())
    }

    async fn carry_out(&mut self, order: PlanOrder) -> PlanEnd {
        let mut run = PlanRun::new(order.steps, self.tries_max);
        let mut action = Action::Read;
        loop {
            let event = match action {
                Action::Read => match self.read_again().await {
                    Ok(standing) => Event::Read(standing),
                    Err(failed) => return failed_after(run.done(), failed.to_string()),
                },
                Action::Make(step) => {
                    let intent = GpuFile { intent: Some(step), ..self.file.clone() };
                    if let Err(reason) = self.note(intent) {
                        return failed_after(run.done(), reason);
                    }
                    Event::Made(self.make(step).await)
                }
                Action::Wait(pause) => {
                    tokio::time::sleep(pause.duration()).await;
                    Event::Waited
                }
                Action::End { end, stuck } => {
                    self.stuck.extend(stuck);
                    // The intent is only told to people: the plan's end doesn't depend on it.
                    let _ = self.note(GpuFile { intent: None, ..self.file.clone() });
                    return end;
                }
            };
            action = run.on(event);
        }
    }

    async fn read_again(&mut self) -> Result<Vec<Standing>, NvmlFailed> {
        let mut last = NvmlFailed::NoAnswer;
        for _ in 0..READS_MAX {
            match self.refresh().await {
                Ok(()) => {
                    let facts = self.facts.iter().flat_map(|facts| &facts.instances);
                    return Ok(facts.map(standing).collect());
                }
                Err(failed) => last = failed,
            }
        }
        Err(last)
    }

    async fn make(&self, step: Step) -> Result<(), StepRefused> {
        let (request, span) = match step {
            Step::Create(slot) => (
                Request::Create(self.id.clone(), slot),
                tracing::info_span!(
                    names::span::INSTANCE_CREATE,
                    { names::attribute::MIG_START } = slot.start
                ),
            ),
            Step::Destroy(slot) => (
                Request::Destroy(self.id.clone(), slot),
                tracing::info_span!(
                    names::span::INSTANCE_DESTROY,
                    { names::attribute::MIG_START } = slot.start
                ),
            ),
        };
        match self.nvml.ask(request).instrument(span).await {
            Ok(_) => Ok(()),
            Err(NvmlFailed::Refused(fault)) => {
                tracing::warn!(gpu = %self.id, ?step, %fault, "the driver refused a step");
                Err(StepRefused { handling: fault.handling(), reason: fault.to_string() })
            }
            Err(NvmlFailed::NoAnswer) => Err(StepRefused {
                handling: Handling::Retry,
                reason: NvmlFailed::NoAnswer.to_string(),
            }),
        }
    }

    /// Forgets what was held against the GPU, or against one instance of it, and looks anew.
    pub async fn clear(&mut self, slot: Option<Slot>) {
        tracing::info!(gpu = %self.id, ?slot, "cleared on an operator's word");
        match slot {
            Some(slot) => drop(self.stuck.remove(&slot)),
            None => self.stuck.clear(),
        }
        // Its report says what is wrong.
        let _ = self.refresh().await;
    }

    /// Switches MIG mode; only ever on an administrator's word.
    pub async fn set_mig_mode(&mut self, on: bool) {
        let used = self
            .facts
            .iter()
            .flat_map(|facts| &facts.instances)
            .any(|instance| !instance.users.is_empty());
        let problem = if used {
            Some("processes use this GPU's instances".to_owned())
        } else {
            let asked = self.nvml.ask(Request::SetMigMode(self.id.clone(), on)).await;
            asked.err().map(|failed| failed.to_string())
        };
        let _ = self.refresh().await;
        self.tell(GpuEvent::MigModeEnded { gpu: self.id.clone(), problem }).await;
    }

    fn report(&self) -> Option<GpuReport> {
        let facts = self.facts.as_ref()?;
        let instance = |facts: &InstanceFacts| InstanceReport {
            slot: facts.slot,
            slice: facts.slice.clone(),
            memory: facts.memory,
            sms: facts.sms,
            trouble: self.trouble(facts),
        };
        Some(GpuReport {
            gpu: self.id.clone(),
            index: facts.index,
            model: facts.model.clone(),
            memory: facts.memory,
            sms: None,
            mig: facts.mig.clone(),
            instances: facts.instances.iter().map(instance).collect(),
            layout_gen: self.file.layout_gen,
            health: self.health.clone(),
            faults: Vec::new(),
            quarantine: None,
        })
    }

    fn trouble(&self, facts: &InstanceFacts) -> Option<InstanceTrouble> {
        if let Some(reason) = self.stuck.get(&facts.slot) {
            return Some(InstanceTrouble::Stuck { reason: reason.clone() });
        }
        let foreign = facts.users.iter().filter(|user| !user.ours).map(|user| user.pid);
        let pids: Vec<u32> = foreign.take(FOREIGN_MAX).collect();
        (!pids.is_empty()).then_some(InstanceTrouble::Foreign { pids })
    }

    async fn tell(&self, event: GpuEvent) {
        // Fails only when the agent is going down.
        let _ = self.node.send(Input::Gpu(event)).await;
    }
}

fn standing(facts: &InstanceFacts) -> Standing {
    Standing { slot: facts.slot, whole: facts.slice.is_some(), used: !facts.users.is_empty() }
}

fn failed_after(done: usize, reason: String) -> PlanEnd {
    PlanEnd::Failed { steps_done: u32::try_from(done).unwrap_or(u32::MAX), reason }
}

/// How often a GPU is read for changes that others made (G9).
pub const READ_EVERY: Duration = Duration::from_secs(10);
