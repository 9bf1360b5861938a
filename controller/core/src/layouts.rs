//! Layouts that administrators request: previewed, planned like any other, and finished despite
//! restarts of either side.

use crate::commands::operator::{
    LayoutCommand, OperatorOutcome, OperatorRefusal, OverrideKind, RefusalKind,
};
use crate::layouts::preview::requester_text;
use crate::plans::step_text;
use crate::round::Round;
use crate::rows::nodes::{ClosedPlan, LayoutPlanRow, RequestedLayout};
use crate::rows::overrides::{AdminOverrideRow, OverrideTarget};
use crate::state::ClusterState;
use crate::state::inventory::names;
use crate::state::layouts::{LayoutInProgress, cut_of, whole};
use crate::state::overrides::refused;
use tessera_frames::cluster::MigReport;
use tessera_model::mig::compute::StandingCut;
use tessera_model::mig::{Cuts, InstanceOccupant, Layout, PlanStep};
use tessera_model::{GpuId, Millis, NodeId, PlanId};
use uuid::Uuid;

mod availability;
mod preview;
/// How long a requested layout waits for a change that is under way on its GPU. A plan takes less,
/// and clients wait longer.
pub(crate) const WISH_WAITS: Millis = Millis::from_secs(15);

/// Most requested layouts that wait at a time.
const WISHES_MAX: usize = 256;

impl ClusterState {
    /// Plans the requested layouts whose GPUs are free, and answers those that are impossible.
    pub(crate) fn plan_requested_layouts(
        &mut self,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        for pending in std::mem::take(&mut self.layouts.pending) {
            let answer = self.plan_requested_layout(&pending.wish, new_id, round);
            let changing = matches!(&answer, Err(refused) if refused.kind == RefusalKind::Changing);
            if changing && now < pending.until && self.layouts.pending.len() < WISHES_MAX {
                self.layouts.pending.push(pending);
                continue;
            }
            round.operated.push((pending.token, answer));
        }
    }

    fn plan_requested_layout(
        &mut self,
        wish: &LayoutCommand,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) -> Result<OperatorOutcome, OperatorRefusal> {
        if let Some(plan) = self.find_same_plan(wish)? {
            return Ok(OperatorOutcome::Ordered { plan });
        }
        let draft = self.plan_layout(&wish.gpu, &wish.wanted)?;
        let asked = RequestedLayout {
            by: wish.by.clone(),
            reason: wish.reason.clone(),
            wanted: draft.layout.clone(),
            pin: wish.pin,
        };
        if draft.steps.is_empty() {
            self.pin_layout(&wish.gpu, &asked, round);
            return Ok(OperatorOutcome::Stands);
        }
        let gpu = self.inventory.find_gpu(&wish.gpu)?;
        let MigReport::On { geometry } = &gpu.report.mig else {
            return Err(refused(RefusalKind::InTheWay, "MIG is off"));
        };
        let steps_text: Vec<_> =
            draft.steps.iter().map(|step| step_text(geometry, *step)).collect();
        let row = LayoutPlanRow {
            plan: PlanId::from_uuid(new_id()),
            gpu: wish.gpu.clone(),
            node: gpu.node,
            layout_gen: gpu.layout_gen + 1,
            steps: draft.steps.clone(),
            steps_text,
            job: None,
            attempt: None,
            decision: None,
            asked: Some(asked.clone()),
        };
        let text = format!(
            "{} is to get the layout {}: {} ({})",
            self.inventory.gpu_name(gpu),
            draft.names(gpu),
            row.steps_text.join(", "),
            requester_text(&asked),
        );
        let target = OverrideTarget::Gpu(wish.gpu.clone());
        round.events.push(self.inventory.event("layout_ordered", &target, &asked.by, text));
        if let Some(gpu) = self.inventory.gpus.get_mut(&wish.gpu) {
            gpu.layout_gen = row.layout_gen;
            gpu.open_plan = Some(row.plan);
            gpu.wish = Some(LayoutInProgress { asked, row: row.clone() });
        }
        let plan = row.plan;
        self.layouts.unsent_plans.push(row.clone());
        round.orders.push(row);
        Ok(OperatorOutcome::Ordered { plan })
    }

    /// Returns the plan that makes this layout already: a repeated request changes nothing.
    fn find_same_plan(&self, wish: &LayoutCommand) -> Result<Option<PlanId>, OperatorRefusal> {
        let gpu = self.inventory.find_gpu(&wish.gpu)?;
        let (Some(open), MigReport::On { geometry }) = (&gpu.wish, &gpu.report.mig) else {
            return Ok(None);
        };
        let layout = &open.asked.wanted;
        let there: Vec<_> =
            layout.iter().map(|slot| InstanceOccupant { slot: *slot, busy: true }).collect();
        if wish.wanted.arrange(geometry, &there, |_| 0).as_ref() != Ok(layout) {
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
        let same = wish.wanted.cuts(geometry, layout, &kept.collect()).is_ok();
        Ok(same.then_some(open.row.plan))
    }

    fn pin_layout(&mut self, gpu: &GpuId, asked: &RequestedLayout, round: &mut Round) {
        if asked.pin {
            let (kind, target) = (OverrideKind::Pinned, OverrideTarget::Gpu(gpu.clone()));
            let (by, reason) = (asked.by.clone(), asked.reason.clone());
            self.set_override(
                AdminOverrideRow { kind, target, by, reason, said_unix: self.clock.unix },
                round,
            );
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
        let Some(wish) = self.inventory.gpus.get_mut(gpu).and_then(|known| known.wish.take())
        else {
            return;
        };
        let Ok(known) = self.inventory.find_gpu(gpu) else { return };
        let name = self.inventory.gpu_name(known);
        let text = match detail {
            None => format!("{name} has the layout {}", names(known, &wish.asked.wanted)),
            Some(detail) => format!("the new layout of {name} failed: {detail}"),
        };
        let target = OverrideTarget::Gpu(gpu.clone());
        let kind = if state == "done" { "layout_done" } else { "layout_failed" };
        round.events.push(self.inventory.event(kind, &target, &wish.asked.by, text));
        if state == "done" {
            self.pin_layout(gpu, &wish.asked, round);
        }
    }

    /// Resumes a requested layout once a new session has reported the instances. Either it is
    /// done, or the same plan is sent again and skips the steps that are done (rule F15).
    ///
    /// Returns whether a layout is under way.
    pub(crate) fn resume_layout(&mut self, gpu: &GpuId, round: &mut Round) -> bool {
        let Some(known) = self.inventory.gpus.get_mut(gpu) else { return false };
        let Some(wish) = &known.wish else { return false };
        let MigReport::On { geometry } = &known.report.mig else { return false };
        let met = known.report.instances.iter().filter(|i| wish.is_met_by(i, geometry));
        let stands: Layout = met.map(|i| i.slot).collect();
        if stands != wish.asked.wanted || stands.len() != known.report.instances.len() {
            self.layouts.unsent_plans.push(wish.row.clone());
            return true;
        }
        if let Some(plan) = known.open_plan.take() {
            round.closed.push(ClosedPlan { plan, state: "done", detail: None });
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
            .filter(|(_, gpu)| gpu.node == node && gpu.wish.is_some())
            .map(|(id, _)| id.clone())
            .collect();
        for id in gpus {
            let Some(plan) = self.inventory.gpus.get_mut(&id).and_then(|gpu| gpu.open_plan.take())
            else {
                continue;
            };
            let detail = Some(why.to_owned());
            round.closed.push(ClosedPlan { plan, state: "failed", detail });
            self.end_requested_layout(&id, "failed", Some(why), round);
        }
    }
}
