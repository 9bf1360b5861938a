//! Changing a GPU's layout: on the controller's plans, after a new boot, and after a crash.

use std::error::Error as _;

use tessera_frames::cluster::{MigReport, PlanEnd, PlanOrder};
use tessera_model::mig::{PlanStep, Slot};
use tessera_telemetry::{context, names};
use tracing::Instrument as _;

use super::file::{GpuFile, SupersededPlan};
use super::managed::{ManagedGpu, REFUSED_FOR};
use crate::disk::DiskError;
use crate::messages::gpu::GpuEvent;
use crate::nvml::client::NvmlFailed;
use crate::nvml::messages::{NvmlReply, NvmlRequest};
use crate::sys::clock;
use tessera_agent_core::nvml::error::ErrorHandling;
use tessera_agent_core::ownership;
use tessera_agent_core::plan::{PlanAction, PlanEvent, PlanRun, StepInstance, StepRefused};

/// How often a driver that doesn't answer is queried again within one plan.
const READS_MAX: u32 = 3;
/// Number of tries of a step that nobody waits for: it is tried again with the next reading.
const OWN_TRIES: u32 = 3;

impl ManagedGpu {
    /// Carries out a plan, and reports to the node how it ended.
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
            Err(superseded) => PlanEnd::Refused { reason: superseded.to_string() },
            Ok(()) => self.carry_out(order.steps, self.tools.tries_max).await,
        };
        tracing::info!(gpu = %self.id, %plan, ?end, "a layout plan ended");
        if end != PlanEnd::Done {
            // What a failed step left is repaired; its report shows the actual state.
            self.look().await;
        }
        // An older plan must be refused from now on, whichever process dies next. A step's intent put that on
        // disk already; a plan that found its goal reached already wrote none.
        if (self.saved.layout_gen, self.saved.plan) != (self.file.layout_gen, self.file.plan) {
            self.forget_intent();
        }
        self.send(GpuEvent::PlanEnded { gpu: self.id.clone(), plan, end }).await;
        // Nothing waits until the intent is removed: the next agent would read the result from the
        // driver.
        if self.file.intent.is_some() {
            self.forget_intent();
        }
    }

    fn begin(&mut self, order: &PlanOrder) -> Result<(), SupersededPlan> {
        self.file.judge(order.layout_gen, order.plan)?;
        // On disk with the first step's intent, or with the end: nothing is done before.
        self.file.layout_gen = order.layout_gen;
        self.file.plan = Some(order.plan);
        Ok(())
    }

    /// Writes the intent to disk before it is executed, together with the result of the step
    /// before.
    fn note(&mut self, file: GpuFile) -> Result<(), IntentNotWritten> {
        self.keeper.save(&file)?;
        self.saved = file.clone();
        self.file = file;
        Ok(())
    }

    async fn carry_out(&mut self, steps: Vec<PlanStep>, tries_max: u32) -> PlanEnd {
        let mut run = PlanRun::new(steps, tries_max);
        let mut action = run.on(PlanEvent::Waited);
        let mut reported = 0;
        loop {
            self.handle_errors().await;
            if run.done() > reported {
                // People see the progress of a long plan; the last step is reported with the end.
                reported = run.done();
                if !matches!(action, PlanAction::End { .. }) {
                    self.send_report().await;
                }
            }
            if let Some(reason) = self.file.health.broken() {
                self.forget_intent();
                return failed_after(run.done(), reason);
            }
            let event = match action {
                PlanAction::Look(slot) => match self.look_at(slot).await {
                    Ok(()) => PlanEvent::Read(self.standing(slot)),
                    Err(failed) => return failed_after(run.done(), failed.to_string()),
                },
                PlanAction::Make(step) => {
                    let intent = GpuFile { intent: Some(step), ..self.file.clone() };
                    if let Err(error) = self.note(intent) {
                        return failed_after(run.done(), error.to_string());
                    }
                    PlanEvent::Made(self.make(step).await)
                }
                PlanAction::Wait(pause) => {
                    self.pause(pause.duration()).await;
                    PlanEvent::Waited
                }
                PlanAction::End { end, stuck } => {
                    if end != PlanEnd::Done {
                        // The instance that the step left, even an incomplete one, is ours.
                        let _ = self.refresh().await;
                    }
                    if let Some((slot, reason)) = stuck {
                        self.mark_stuck(slot, reason).await;
                    }
                    self.send_report().await;
                    return end;
                }
            };
            action = run.on(event);
        }
    }

    /// Waits, and handles errors that the driver reports in the meantime.
    async fn pause(&mut self, pause: std::time::Duration) {
        let end = tokio::time::Instant::now() + pause;
        while let Ok(Some(noticed)) = tokio::time::timeout_at(end, self.notices.recv()).await {
            self.on_notice(noticed).await;
            if self.file.health.broken().is_some() {
                return;
            }
        }
        tokio::time::sleep_until(end).await;
    }

    /// The intent is only for people and for the next agent, which reads the actual state from the
    /// driver.
    pub(super) fn forget_intent(&mut self) {
        let _ = self.note(GpuFile { intent: None, ..self.file.clone() });
    }

    /// Reads one slot, or the whole GPU if it isn't known or that fails.
    async fn look_at(&mut self, slot: Slot) -> Result<(), NvmlFailed> {
        if self.is_known() {
            let reply = self.tools.nvml.request(NvmlRequest::Look(self.id.clone(), slot)).await;
            if let Ok(NvmlReply::One(found)) = reply {
                self.absorb_one(slot, found.map(|found| *found));
                return Ok(());
            }
        }
        let mut last = NvmlFailed::NoAnswer;
        for _ in 0..READS_MAX {
            match self.refresh().await {
                Ok(()) => return Ok(()),
                Err(failed) => last = failed,
            }
        }
        Err(last)
    }

    async fn make(&mut self, step: PlanStep) -> Result<Option<StepInstance>, StepRefused> {
        let (request, span) = match step {
            PlanStep::Create(slot) => (
                NvmlRequest::Create(self.id.clone(), slot),
                tracing::info_span!(
                    names::span::INSTANCE_CREATE,
                    { names::attribute::MIG_START } = slot.start
                ),
            ),
            PlanStep::Cut(slot, cut) => (
                NvmlRequest::Cut(self.id.clone(), slot, cut),
                tracing::info_span!(
                    names::span::INSTANCE_CUT,
                    { names::attribute::MIG_START } = slot.start
                ),
            ),
            PlanStep::Destroy(slot) => (
                NvmlRequest::Destroy(self.id.clone(), slot),
                tracing::info_span!(
                    names::span::INSTANCE_DESTROY,
                    { names::attribute::MIG_START } = slot.start
                ),
            ),
        };
        match self.tools.nvml.request(request).instrument(span).await {
            Ok(NvmlReply::One(found)) => {
                self.absorb_one(step.slot(), found.map(|found| *found));
                Ok(self.standing(step.slot()))
            }
            Err(NvmlFailed::Refused(fault)) => {
                tracing::warn!(gpu = %self.id, ?step, %fault, "the driver refused a step");
                if fault.handling() == ErrorHandling::Faulty {
                    self.hold_against(&fault, step.slot());
                }
                if let (PlanStep::Create(slot) | PlanStep::Cut(slot, _), ErrorHandling::Replan) =
                    (step, fault.handling())
                {
                    self.refused.insert(slot, clock::boot_now().plus(REFUSED_FOR));
                }
                Err(StepRefused { handling: fault.handling(), reason: fault.to_string() })
            }
            // Done, but the result can't be read yet.
            Ok(_) if self.look_at(step.slot()).await.is_ok() => Ok(self.standing(step.slot())),
            Ok(_) | Err(NvmlFailed::NoAnswer) => Err(StepRefused {
                handling: ErrorHandling::Retry,
                reason: NvmlFailed::NoAnswer.to_string(),
            }),
        }
    }

    /// Creates again what a new boot removed.
    pub(super) async fn restore(&mut self) {
        let Some(lost) = self.file.ownership.owed().cloned() else { return };
        tracing::info!(gpu = %self.id, ?lost, "the machine was restarted: its layout is restored");
        let off = |gpu: &Self| gpu.facts.as_ref().is_some_and(|facts| facts.mig == MigReport::Off);
        if lost.mode && off(self) {
            let reply = NvmlRequest::SetMigMode(self.id.clone(), true);
            if let Err(failed) = self.tools.nvml.request(reply).await {
                tracing::warn!(gpu = %self.id, %failed, "MIG mode can't be switched on again");
            }
            if self.refresh().await.is_err() {
                return;
            }
        }
        let Some(facts) = &self.facts else { return };
        if let MigReport::On { geometry } = &facts.mig {
            for step in ownership::restore(geometry, &facts.instances, &lost) {
                // A refusal of one must not prevent the others.
                let end = self.carry_out(vec![step], OWN_TRIES).await;
                self.forget_intent();
                if end != PlanEnd::Done {
                    tracing::warn!(gpu = %self.id, ?step, ?end, "an instance can't be restored");
                }
            }
        }
        self.file.ownership.settle();
        self.save();
    }

    /// Finishes the compute instances of an instance that an earlier agent was changing when it
    /// died.
    pub(super) async fn finish(&mut self, intent: Option<PlanStep>) {
        let Some(facts) = &self.facts else { return };
        let Some(step) = self.file.ownership.unfinished(facts, intent) else { return };
        let start = step.slot().start;
        tracing::info!(gpu = %self.id, start, "an instance that was half cut is finished");
        let end = self.carry_out(vec![step], OWN_TRIES).await;
        self.forget_intent();
        if end != PlanEnd::Done {
            tracing::warn!(gpu = %self.id, ?step, ?end, "an instance can't be finished");
        }
    }

    /// Removes incomplete instances that a crash or a failure left.
    pub(super) async fn tidy(&mut self) {
        let Some(facts) = &self.facts else { return };
        let now = clock::boot_now();
        let due = |slot: &Slot| self.stuck.get(slot).is_none_or(|stuck| stuck.probe_at <= now);
        let left: Vec<_> = self.file.ownership.half_made(facts).into_iter().filter(due).collect();
        for slot in left {
            tracing::info!(gpu = %self.id, start = slot.start, "an incomplete instance is removed");
            self.carry_out(vec![PlanStep::Destroy(slot)], OWN_TRIES).await;
            self.forget_intent();
        }
    }

    /// Switches MIG mode; only ever at an administrator's request.
    pub async fn set_mig_mode(&mut self, on: bool) {
        // An older reading may be out of date.
        let _ = self.refresh().await;
        let used = self.facts.as_ref().is_some_and(|facts| facts.used);
        let problem = if used {
            Some("processes use this GPU".to_owned())
        } else {
            let reply = self.tools.nvml.request(NvmlRequest::SetMigMode(self.id.clone(), on)).await;
            reply.err().map(|failed| failed.to_string())
        };
        let _ = self.refresh().await;
        self.send(GpuEvent::MigModeEnded { gpu: self.id.clone(), problem }).await;
    }
}

/// The intent of a step is not on disk: the step must not be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}: {cause}", cause = .0.source().map(ToString::to_string).unwrap_or_default())]
struct IntentNotWritten(#[from] DiskError);

fn failed_after(steps_done: u32, reason: String) -> PlanEnd {
    PlanEnd::Failed { steps_done, reason }
}
