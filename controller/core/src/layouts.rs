//! Layouts that administrators request: previewed, planned like any other, and finished despite
//! restarts of either side.

use crate::commands::operator::{
    LayoutCommand, OperatorOutcome, OperatorRefusal, OverrideKind, RefusalKind,
};
use crate::layouts::preview::requester_text;
use crate::overrides::set_override;
use crate::plans::{begin_plan, next_plan};
use crate::round::Round;
use crate::rows::nodes::{EndedPlan, LayoutPlanRow, RequestedLayout};
use crate::rows::overrides::{AdminOverrideRow, OverrideTarget};
use crate::state::ClusterState;
use crate::state::inventory::{NodeInventory, layout_name};
use crate::state::layouts::{LayoutInProgress, cut_of, whole};
use crate::state::overrides::refused;
use tessera_frames::cluster::MigReport;
use tessera_model::mig::compute::StandingCut;
use tessera_model::mig::{Cuts, InstanceOccupant, Layout, PlanStep};
use tessera_model::{GpuId, Millis, NodeId, PlanId};
use uuid::Uuid;

mod availability;
mod preview;

/// Most requested layouts that wait at a time.
const LAYOUT_REQUESTS_MAX: usize = 256;

impl ClusterState {
    /// Plans the requested layouts whose GPUs are free, and answers those that are impossible.
    pub(crate) fn plan_requested_layouts(
        &mut self,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        for pending in std::mem::take(&mut self.layouts.pending) {
            let answer = self.plan_requested_layout(&pending.command, new_id, round);
            let changing = matches!(&answer, Err(refused) if refused.kind == RefusalKind::Changing);
            if changing && now < pending.until && self.layouts.pending.len() < LAYOUT_REQUESTS_MAX {
                self.layouts.pending.push(pending);
                continue;
            }
            round.answers.operators.push((pending.token, answer));
        }
    }

    fn plan_requested_layout(
        &mut self,
        command: &LayoutCommand,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) -> Result<OperatorOutcome, OperatorRefusal> {
        if let Some(plan) = find_same_plan(&self.inventory, command)? {
            return Ok(OperatorOutcome::Ordered { plan });
        }
        let planned = self.plan_layout(&command.gpu, &command.desired)?;
        let requested = RequestedLayout {
            by: command.by.clone(),
            reason: command.reason.clone(),
            layout: planned.layout.clone(),
            pin: command.pin,
        };
        if planned.steps.is_empty() {
            self.pin_layout(&command.gpu, &requested, round);
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
        let event = self.inventory.operator_event("layout_ordered", &target, &requested.by, text);
        round.overrides.events.push(event);
        if let Some(gpu) = self.inventory.gpus.get_mut(&command.gpu) {
            gpu.layout_in_progress = Some(LayoutInProgress { requested, row: row.clone() });
        }
        begin_plan(&mut self.inventory, &mut self.layouts, row, &mut round.plans);
        Ok(OperatorOutcome::Ordered { plan })
    }

    fn pin_layout(&mut self, gpu: &GpuId, requested: &RequestedLayout, round: &mut Round) {
        if requested.pin {
            let (kind, target) = (OverrideKind::Pinned, OverrideTarget::Gpu(gpu.clone()));
            let (by, reason) = (requested.by.clone(), requested.reason.clone());
            let row = AdminOverrideRow { kind, target, by, reason, since_unix: self.clock.unix };
            set_override(&mut self.overrides, &self.inventory, row, round);
        }
    }

    /// Ends a requested layout with the outcome of its plan.
    pub(crate) fn end_requested_layout(
        &mut self,
        gpu: &GpuId,
        state: &'static str,
        detail: Option<&str>,
        round: &mut Round,
    ) {
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
        round.overrides.events.push(self.inventory.operator_event(
            kind,
            &target,
            &open.requested.by,
            text,
        ));
        if state == "done" {
            self.pin_layout(gpu, &open.requested, round);
        }
    }

    /// Resumes a requested layout once a new session has reported the instances. Either it is
    /// done, or the same plan is sent again and skips the steps that are done (rule F15).
    ///
    /// Returns whether a layout is under way.
    pub(crate) fn resume_layout(&mut self, gpu: &GpuId, round: &mut Round) -> bool {
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
            round.plans.ended.push(EndedPlan { plan, state: "done", detail: None });
        }
        self.end_requested_layout(gpu, "done", None, round);
        true
    }

    /// Gives up the layouts that are under way on a node's GPUs.
    pub(crate) fn give_up_layouts(&mut self, node: NodeId, why: &str, round: &mut Round) {
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
            round.plans.ended.push(EndedPlan { plan, state: "failed", detail });
            self.end_requested_layout(&id, "failed", Some(why), round);
        }
    }
}

/// Returns the plan that makes this layout already: a repeated request changes nothing.
fn find_same_plan(
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
    // What is in use keeps its cut: then only the same one is possible.
    let kept = cuts.iter().map(|(slot, cut)| (*slot, StandingCut { cut: *cut, busy: *cut }));
    let same = command.desired.cuts(geometry, layout, &kept.collect()).is_ok();
    Ok(same.then_some(open.row.plan))
}
