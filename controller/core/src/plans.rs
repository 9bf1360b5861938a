//! Layout plans: the steps that make the instances for which attempts wait.

use crate::attempt_changes::AttemptChanges;
use crate::commands::JobStateChange;
use crate::round::{JobWrites, PlanWrites, RoundEffect};
use crate::rows::nodes::LayoutPlanRow;
use crate::rows::transitions::ReadyAttempt;
use crate::state::attempts::{AttemptTable, LiveAttempt};
use crate::state::inventory::{GpuState, NodeInventory};
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::Migrations;
use crate::state::overrides::OverrideTable;
use std::collections::BTreeMap;
use tessera_frames::cluster::{InstanceReport, MigReport};
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::{self, InstanceOccupant, Layout, PlanStep, Slot};
use tessera_model::{AttemptId, GpuId, JobId, Millis, PlanId};
use uuid::Uuid;

/// Returns the steps that make the slots from the present layout; idle instances in the way are
/// destroyed. Returns `None` if a busy one is in the way.
pub(crate) fn steps_to(
    geometry: &mig::Geometry,
    gpu: &GpuState,
    slots: &[Slot],
    held: impl Fn(Slot) -> bool,
) -> Option<Vec<PlanStep>> {
    let slots_mask = slots.iter().filter_map(|s| geometry.mask(*s).ok()).fold(0, |a, b| a | b);
    let standing: Vec<InstanceOccupant> = gpu
        .report
        .instances
        .iter()
        // Its creation completes a partly created instance.
        .filter(|i| i.slice.is_some() || !slots.contains(&i.slot))
        .map(|i| InstanceOccupant {
            slot: i.slot,
            busy: held(i.slot) || i.trouble.is_some() || i.slice.is_none(),
        })
        .collect();
    let in_the_way = |o: &InstanceOccupant| {
        !slots.contains(&o.slot) && geometry.mask(o.slot).is_ok_and(|mask| mask & slots_mask != 0)
    };
    let mut layout: Layout =
        standing.iter().filter(|o| o.busy || !in_the_way(o)).map(|o| o.slot).collect();
    layout.extend(slots);
    mig::plan(geometry, &standing, &layout).ok()
}

pub(crate) fn step_text(geometry: &mig::Geometry, step: PlanStep) -> String {
    let name = |slot: Slot| {
        geometry.profile(slot.profile).map_or_else(String::new, |p| p.name.to_string())
    };
    match step {
        PlanStep::Destroy(slot) => format!("destroy {}@{}", name(slot), slot.start),
        PlanStep::Create(slot) => format!("create {}@{}", name(slot), slot.start),
        PlanStep::Cut(slot, cut) => format!("cut {}@{} into {cut}", name(slot), slot.start),
    }
}

/// Returns a plan for a GPU with a number above all earlier plans; its purpose is not set.
pub(crate) fn next_plan(
    gpu: &GpuState,
    geometry: &mig::Geometry,
    steps: Vec<PlanStep>,
    plan: PlanId,
) -> LayoutPlanRow {
    LayoutPlanRow {
        plan,
        gpu: gpu.report.gpu.clone(),
        node: gpu.node,
        layout_gen: gpu.layout_gen + 1,
        steps_text: steps.iter().map(|step| step_text(geometry, *step)).collect(),
        steps,
        job: None,
        attempt: None,
        decision: None,
        requested: None,
    }
}

/// Makes a plan the open plan of its GPU. It is sent after the commit.
pub(crate) fn begin_plan(
    inventory: &mut NodeInventory,
    layouts: &mut LayoutRequests,
    plan: LayoutPlanRow,
    plans: &mut PlanWrites,
) {
    if let Some(gpu) = inventory.gpus.get_mut(&plan.gpu) {
        gpu.layout_gen = plan.layout_gen;
        gpu.open_plan = Some(plan.plan);
    }
    layouts.unsent_plans.push(plan.clone());
    plans.begun.push(plan);
}

/// Returns whether an instance must not be destroyed: a live attempt has it, or it is quarantined.
pub(crate) fn must_stay(
    attempts: &AttemptTable,
    overrides: &OverrideTable,
    (gpu, geometry): (&GpuId, &mig::Geometry),
    slot: Slot,
) -> bool {
    attempts.holds(gpu, slot) || overrides.is_quarantined(gpu, geometry, slot)
}

/// Returns the oldest job for which the GPU is being changed.
pub(crate) fn find_placing_job(
    attempts: &AttemptTable,
    migrations: &Migrations,
    gpu: &GpuId,
) -> Option<JobId> {
    let placing = attempts.on_gpu(gpu).filter(|live| live.state == JobState::Placing);
    placing.map(|live| live.job).min().or(migrations.first_job_on(gpu))
}

/// Sets attempts to starting if their slices exist now.
pub(crate) fn make_ready(
    attempts: &mut AttemptTable,
    inventory: &NodeInventory,
    jobs: &mut JobWrites,
    effects: &mut Vec<RoundEffect>,
) {
    let is_placing = |live: &LiveAttempt| live.state == JobState::Placing && live.end.is_none();
    for (attempt, live) in attempts.live.iter_mut().filter(|(_, live)| is_placing(live)) {
        let Some(slice) = inventory.standing_slice(live) else { continue };
        let (job, attempt) = (live.job, *attempt);
        live.state = JobState::Starting;
        live.slice = Some(slice.clone());
        live.sent = None;
        jobs.ready.push(ReadyAttempt { job, attempt, slice });
        let change = JobStateChange { job, attempt: Some(attempt), state: JobState::Starting };
        effects.push(RoundEffect::Moved(change));
    }
}

impl AttemptChanges<'_> {
    /// Ends the attempts whose instances can't be created any more. Their GPU is gone or no longer
    /// partitioned, or a foreign instance is in the way.
    pub(crate) fn give_up_impossible(&mut self, overrides: &OverrideTable) {
        let why =
            |live: &LiveAttempt| explain_impossible(self.attempts, self.inventory, overrides, live);
        let impossible: Vec<_> = self
            .attempts
            .live
            .iter()
            .filter(|(_, live)| live.state == JobState::Placing && live.end.is_none())
            .filter_map(|(attempt, live)| Some((*attempt, why(live)?)))
            .collect();
        for (attempt, reason) in impossible {
            let detail = format!("its slice could not be created: {reason}");
            self.end_without_exit(attempt, Outcome::NotStarted, &detail);
        }
    }
}

/// Returns why an attempt's instance can't be created, once its node has reported every instance.
fn explain_impossible(
    attempts: &AttemptTable,
    inventory: &NodeInventory,
    overrides: &OverrideTable,
    live: &LiveAttempt,
) -> Option<&'static str> {
    if !inventory.is_ready(live.node) {
        return None;
    }
    let gpu = inventory.gpus.get(&live.gpu).filter(|gpu| gpu.node == live.node && gpu.fresh);
    let Some(gpu) = gpu else { return Some("the GPU is gone") };
    let MigReport::On { geometry } = &gpu.report.mig else {
        return Some("the GPU is not partitioned any more");
    };
    let slot = live.slot?;
    if gpu.open_plan.is_some() {
        return None;
    }
    let troubled = |i: &InstanceReport| i.slot == slot && i.trouble.is_some();
    if gpu.report.instances.iter().any(troubled) {
        return Some("another program uses the instance");
    }
    if live.part().is_some() {
        return Some("its compute instance is gone");
    }
    let stays = |slot| must_stay(attempts, overrides, (&live.gpu, geometry), slot);
    let steps = steps_to(geometry, gpu, &[slot], stays);
    steps.is_none().then_some("an instance that can't be destroyed is in the way")
}

/// Makes one plan for each GPU on which attempts wait for missing instances.
pub(crate) fn order_plans(
    inventory: &mut NodeInventory,
    layouts: &mut LayoutRequests,
    attempts: &AttemptTable,
    overrides: &OverrideTable,
    now: Millis,
    new_id: &mut dyn FnMut() -> Uuid,
    plans: &mut PlanWrites,
) {
    let mut missing: BTreeMap<GpuId, Vec<(AttemptId, Slot)>> = BTreeMap::new();
    for (attempt, live) in &attempts.live {
        if let (JobState::Placing, Some(slot), None, None) =
            (live.state, live.slot, live.part(), &live.end)
        {
            missing.entry(live.gpu.clone()).or_default().push((*attempt, slot));
        }
    }
    for (gpu, mut waiting) in missing {
        // Attempt ids are ordered by time: the oldest names the plan.
        waiting.sort();
        if is_plannable(inventory, &gpu, now)
            && let Some(plan) = plan_for(inventory, attempts, overrides, &gpu, &waiting, new_id)
        {
            begin_plan(inventory, layouts, plan, plans);
        }
    }
}

/// Returns whether a plan can be made for a GPU now.
fn is_plannable(inventory: &NodeInventory, id: &GpuId, now: Millis) -> bool {
    inventory.gpus.get(id).is_some_and(|gpu| {
        let is_ready = inventory.is_ready(gpu.node) && gpu.fresh;
        is_ready && gpu.open_plan.is_none() && now >= gpu.paused_until
    })
}

/// Returns the plan that makes the instances for which attempts wait on a GPU, if there is one.
fn plan_for(
    inventory: &NodeInventory,
    attempts: &AttemptTable,
    overrides: &OverrideTable,
    id: &GpuId,
    waiting: &[(AttemptId, Slot)],
    new_id: &mut dyn FnMut() -> Uuid,
) -> Option<LayoutPlanRow> {
    let gpu = inventory.gpus.get(id)?;
    let MigReport::On { geometry } = &gpu.report.mig else { return None };
    let slots: Vec<_> = waiting.iter().map(|(_, slot)| *slot).collect();
    let stays = |slot| must_stay(attempts, overrides, (id, geometry), slot);
    let steps = steps_to(geometry, gpu, &slots, stays)?;
    if steps.is_empty() {
        return None;
    }
    let (attempt, _) = *waiting.first()?;
    let live = attempts.live.get(&attempt)?;
    Some(LayoutPlanRow {
        job: Some(live.job),
        attempt: Some(attempt),
        decision: Some(live.decision),
        ..next_plan(gpu, geometry, steps, PlanId::from_uuid(new_id()))
    })
}
