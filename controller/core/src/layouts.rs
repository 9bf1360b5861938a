//! Layouts that administrators request: they are previewed, planned like any other, and finished
//! even if the controller or the agent restarts.

use crate::commands::operator::{
    LayoutCommand, OperatorOutcome, OperatorRefusal, OverrideKind, RefusalKind,
};
use crate::gpu_changes::GpuChanges;
use crate::layouts::preview::{PlannedLayout, requester_text};
use crate::overrides::set_override;
use crate::plans::{begin_plan, next_plan};
use crate::rows::nodes::{EndedPlan, LayoutPlanRow, RequestedLayout};
use crate::rows::overrides::{AdminOverrideRow, OverrideTarget};
use crate::state::inventory::{NodeInventory, layout_name};
use crate::state::layouts::{LayoutInProgress, cut_of, whole};
use crate::state::overrides::refused;
use tessera_frames::cluster::{MigReport, PlanEnd};
use tessera_model::mig::compute::StandingCut;
use tessera_model::mig::{Cuts, InstanceOccupant, Layout, PlanStep};
use tessera_model::{GpuId, Millis, NodeId, PlanId};
use uuid::Uuid;

mod availability;
mod preview;

/// How long a GPU is paused after a plan failed on it; doubled with each further failure.
const PLAN_PAUSE: Millis = Millis::from_secs(5);

/// Maximum number of requested layouts that wait at a time.
pub(crate) const LAYOUT_REQUESTS_MAX: usize = 256;

impl GpuChanges<'_> {
    /// Begins the plan that makes a requested layout. A layout that exists already is only pinned.
    pub(crate) fn begin_requested_layout(
        &mut self,
        command: &LayoutCommand,
        planned: &PlannedLayout,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Result<OperatorOutcome, OperatorRefusal> {
        let requested = RequestedLayout {
            by: command.by.clone(),
            reason: command.reason.clone(),
            layout: planned.layout.clone(),
            pin: command.pin,
        };
        if planned.steps.is_empty() {
            self.pin_layout(&command.gpu, &requested);
            return Ok(OperatorOutcome::Stands);
        }
        let gpu = self.inventory.find_gpu(&command.gpu)?;
        let MigReport::On { geometry } = &gpu.report.mig else {
            return Err(refused(RefusalKind::InTheWay, "MIG is off"));
        };
        let plan = PlanId::from_uuid(new_id());
        let row = LayoutPlanRow {
            requested: Some(requested.clone()),
            ..next_plan(gpu, geometry, planned.steps.clone(), plan)
        };
        let text = format!(
            "{} is to get the layout {}: {} ({})",
            self.inventory.gpu_name(gpu),
            planned.layout_name(gpu),
            row.steps_text.join(", "),
            requester_text(&requested),
        );
        let target = OverrideTarget::Gpu(command.gpu.clone());
        let event = self.inventory.operator_event("layout_planned", &target, &requested.by, text);
        self.override_writes.events.push(event);
        if let Some(gpu) = self.inventory.gpus.get_mut(&command.gpu) {
            gpu.layout_in_progress = Some(LayoutInProgress { requested, row: row.clone() });
        }
        begin_plan(self.inventory, self.layouts, row, self.plan_writes);
        Ok(OperatorOutcome::Planned { plan })
    }

    fn pin_layout(&mut self, gpu: &GpuId, requested: &RequestedLayout) {
        if requested.pin {
            let (kind, target) = (OverrideKind::Pinned, OverrideTarget::Gpu(gpu.clone()));
            let (by, reason) = (requested.by.clone(), requested.reason.clone());
            let row = AdminOverrideRow { kind, target, by, reason, since_unix: self.now_unix };
            set_override(self.overrides, self.inventory, row, self.override_writes);
        }
    }

    /// Ends a requested layout with the outcome of its plan.
    fn end_requested_layout(&mut self, gpu: &GpuId, state: &'static str, detail: Option<&str>) {
        let Some(open) =
            self.inventory.gpus.get_mut(gpu).and_then(|known| known.layout_in_progress.take())
        else {
            return;
        };
        let Ok(known) = self.inventory.find_gpu(gpu) else { return };
        let name = self.inventory.gpu_name(known);
        let text = match detail {
            None => format!("{name} has the layout {}", layout_name(known, &open.requested.layout)),
            Some(detail) => format!("the new layout of {name} failed: {detail}"),
        };
        let target = OverrideTarget::Gpu(gpu.clone());
        let kind = if state == "done" { "layout_done" } else { "layout_failed" };
        let event = self.inventory.operator_event(kind, &target, &open.requested.by, text);
        self.override_writes.events.push(event);
        if state == "done" {
            self.pin_layout(gpu, &open.requested);
        }
    }

    /// Records the end of a GPU's plan. Returns why it failed, if it was made for attempts.
    pub(crate) fn record_plan_end(
        &mut self,
        gpu: &GpuId,
        end: PlanEnd,
        now: Millis,
    ) -> Option<String> {
        let known = self.inventory.gpus.get_mut(gpu)?;
        let plan = known.open_plan.take()?;
        let (state, detail) = match end {
            PlanEnd::Done => ("done", None),
            PlanEnd::Failed { steps_done, reason } => {
                ("failed", Some(format!("after {steps_done} steps: {reason}")))
            }
            PlanEnd::Refused { reason } => ("refused", Some(reason)),
        };
        let of_operator = known.layout_in_progress.is_some();
        if state != "done" {
            known.pause_attempts(PLAN_PAUSE, now);
        }
        let detail = match detail {
            Some(reason) if of_operator => {
                Some(format!("{reason}; the layout is now {}", known.layout_text()))
            }
            detail => detail,
        };
        self.plan_writes.ended.push(EndedPlan { plan, state, detail: detail.clone() });
        if of_operator {
            self.end_requested_layout(gpu, state, detail.as_deref());
            return None;
        }
        detail
    }

    /// Resumes the plans of a node's GPUs once a new session has reported the instances.
    ///
    /// Whether a plan that was under way ended is not known, but the existing instances are. So the
    /// rest is planned again under a higher number, which voids the old plan. A requested layout
    /// belongs to no job: the same plan continues, under its own number.
    pub(crate) fn resume_plans(&mut self, node: NodeId) {
        let of_node = self.inventory.gpus.iter().filter(|(_, gpu)| gpu.node == node);
        let gpus: Vec<GpuId> = of_node.map(|(id, _)| id.clone()).collect();
        for id in gpus {
            if self.resume_layout(&id) {
                continue;
            }
            let Some(gpu) = self.inventory.gpus.get_mut(&id) else { continue };
            if let Some(plan) = gpu.open_plan.take() {
                let detail = Some("the connection broke before its end was reported".to_owned());
                self.plan_writes.ended.push(EndedPlan { plan, state: "failed", detail });
            }
        }
    }

    /// Resumes a requested layout once a new session has reported the instances. Either it is
    /// done, or the same plan is sent again and skips the steps that are done (rule F15).
    ///
    /// Returns whether a layout is under way.
    fn resume_layout(&mut self, gpu: &GpuId) -> bool {
        let Some(known) = self.inventory.gpus.get_mut(gpu) else { return false };
        let Some(open) = &known.layout_in_progress else { return false };
        let MigReport::On { geometry } = &known.report.mig else { return false };
        let met = known.report.instances.iter().filter(|i| open.is_met_by(i, geometry));
        let stands: Layout = met.map(|i| i.slot).collect();
        if stands != open.requested.layout || stands.len() != known.report.instances.len() {
            self.layouts.unsent_plans.push(open.row.clone());
            return true;
        }
        if let Some(plan) = known.open_plan.take() {
            self.plan_writes.ended.push(EndedPlan { plan, state: "done", detail: None });
        }
        self.end_requested_layout(gpu, "done", None);
        true
    }

    /// Cancels the layouts that are under way on a node's GPUs.
    pub(crate) fn give_up_layouts(&mut self, node: NodeId, why: &str) {
        let gpus: Vec<_> = self
            .inventory
            .gpus
            .iter()
            .filter(|(_, gpu)| gpu.node == node && gpu.layout_in_progress.is_some())
            .map(|(id, _)| id.clone())
            .collect();
        for id in gpus {
            let Some(plan) = self.inventory.gpus.get_mut(&id).and_then(|gpu| gpu.open_plan.take())
            else {
                continue;
            };
            let detail = Some(why.to_owned());
            self.plan_writes.ended.push(EndedPlan { plan, state: "failed", detail });
            self.end_requested_layout(&id, "failed", Some(why));
        }
    }
}

/// Returns the plan that makes this layout already: a repeated request changes nothing.
pub(crate) fn find_same_plan(
    inventory: &NodeInventory,
    command: &LayoutCommand,
) -> Result<Option<PlanId>, OperatorRefusal> {
    let gpu = inventory.find_gpu(&command.gpu)?;
    let (Some(open), MigReport::On { geometry }) = (&gpu.layout_in_progress, &gpu.report.mig)
    else {
        return Ok(None);
    };
    let layout = &open.requested.layout;
    let there: Vec<_> =
        layout.iter().map(|slot| InstanceOccupant { slot: *slot, busy: true }).collect();
    if command.desired.arrange(geometry, &there, |_| 0).as_ref() != Ok(layout) {
        return Ok(None);
    }
    let mut cuts: Cuts =
        gpu.report.instances.iter().map(|i| (i.slot, cut_of(i, geometry))).collect();
    for step in &open.row.steps {
        match step {
            PlanStep::Cut(slot, cut) => cuts.insert(*slot, *cut),
            PlanStep::Create(slot) => cuts.insert(*slot, whole(geometry, *slot)),
            PlanStep::Destroy(slot) => cuts.remove(slot),
        };
    }
    // An instance in use keeps its division into compute instances, so only the same one is
    // possible.
    let kept = cuts.iter().map(|(slot, cut)| (*slot, StandingCut { cut: *cut, busy: *cut }));
    let same = command.desired.cuts(geometry, layout, &kept.collect()).is_ok();
    Ok(same.then_some(open.row.plan))
}
