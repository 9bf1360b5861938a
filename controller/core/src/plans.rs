//! Layout plans: the steps that make the instances for which attempts wait.

use crate::commands::JobStateChange;
use crate::round::{Round, RoundEffect};
use crate::rows::nodes::LayoutPlanRow;
use crate::rows::transitions::{ReadyAttempt, record_without_exit};
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;
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
    gpu: &crate::state::inventory::GpuState,
    slots: &[Slot],
    held: impl Fn(Slot) -> bool,
) -> Option<Vec<PlanStep>> {
    let wanted_mask = slots.iter().filter_map(|s| geometry.mask(*s).ok()).fold(0, |a, b| a | b);
    let standing: Vec<InstanceOccupant> = gpu
        .report
        .instances
        .iter()
        // Its creation completes an instance that is half made.
        .filter(|i| i.slice.is_some() || !slots.contains(&i.slot))
        .map(|i| InstanceOccupant {
            slot: i.slot,
            busy: held(i.slot) || i.trouble.is_some() || i.slice.is_none(),
        })
        .collect();
    let in_the_way = |o: &InstanceOccupant| {
        !slots.contains(&o.slot) && geometry.mask(o.slot).is_ok_and(|mask| mask & wanted_mask != 0)
    };
    let mut wanted: Layout =
        standing.iter().filter(|o| o.busy || !in_the_way(o)).map(|o| o.slot).collect();
    wanted.extend(slots);
    mig::plan(geometry, &standing, &wanted).ok()
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

impl ClusterState {
    /// Moves attempts to starting whose slices exist now.
    pub(crate) fn make_ready(&mut self, round: &mut Round) {
        let standing: Vec<_> = self
            .attempts
            .live
            .iter()
            .filter(|(_, live)| live.state == JobState::Placing && live.over.is_none())
            .filter_map(|(attempt, live)| Some((*attempt, self.inventory.standing_slice(live)?)))
            .collect();
        for (attempt, slice) in standing {
            let Some(live) = self.attempts.live.get_mut(&attempt) else { continue };
            live.state = JobState::Starting;
            live.slice = Some(slice.clone());
            live.sent = None;
            round.ready.push(ReadyAttempt { job: live.job, attempt, slice });
            round.effects.push(RoundEffect::Moved(JobStateChange {
                job: live.job,
                attempt: Some(attempt),
                state: JobState::Starting,
            }));
        }
    }

    /// Ends the attempts whose instances can't be made any more. Their GPU is gone or no longer
    /// partitioned, or a foreign instance is in the way.
    pub(crate) fn give_up_impossible(&mut self, round: &mut Round) {
        let hopeless: Vec<_> = self
            .attempts
            .live
            .iter()
            .filter(|(_, live)| live.state == JobState::Placing && live.over.is_none())
            .filter_map(|(attempt, live)| Some((*attempt, self.impossible(live)?)))
            .collect();
        for (attempt, reason) in hopeless {
            let detail = format!("its slice could not be made: {reason}");
            self.end_attempt(attempt, record_without_exit(Outcome::NotStarted, detail), round);
        }
    }

    /// Returns why an attempt's instance can't be made, once its node has reported every instance.
    fn impossible(&self, live: &LiveAttempt) -> Option<&'static str> {
        let node = self.inventory.nodes.get(&live.node)?;
        node.session.as_ref().filter(|session| session.ready)?;
        let gpu =
            self.inventory.gpus.get(&live.gpu).filter(|gpu| gpu.node == live.node && gpu.fresh);
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
            return Some("somebody else uses the instance");
        }
        if live.part().is_some() {
            return Some("its compute instance is gone");
        }
        let steps = steps_to(geometry, gpu, &[slot], |slot| self.must_stay(&live.gpu, slot));
        steps.is_none().then_some("an instance is in the way that can't be destroyed")
    }

    /// Makes one plan for each GPU on which attempts wait for missing instances.
    pub(crate) fn order_plans(
        &mut self,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        let mut wanted: BTreeMap<GpuId, Vec<(AttemptId, Slot)>> = BTreeMap::new();
        for (attempt, live) in &self.attempts.live {
            if let (JobState::Placing, Some(slot), None, None) =
                (live.state, live.slot, live.part(), &live.over)
            {
                wanted.entry(live.gpu.clone()).or_default().push((*attempt, slot));
            }
        }
        for (gpu, mut attempts) in wanted {
            // Attempt ids are ordered by time: the oldest names the plan.
            attempts.sort();
            if let Some(plan) = self.plan_for(&gpu, &attempts, now, new_id) {
                self.layouts.unsent_plans.push(plan.clone());
                round.orders.push(plan);
            }
        }
    }

    fn plan_for(
        &mut self,
        id: &GpuId,
        attempts: &[(AttemptId, Slot)],
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Option<LayoutPlanRow> {
        let gpu = self.inventory.gpus.get(id)?;
        let ready = self
            .inventory
            .nodes
            .get(&gpu.node)
            .is_some_and(|n| n.session.as_ref().is_some_and(|session| session.ready));
        if !ready || !gpu.fresh || gpu.open_plan.is_some() || now < gpu.paused_until {
            return None;
        }
        let MigReport::On { geometry } = &gpu.report.mig else { return None };
        let slots: Vec<_> = attempts.iter().map(|(_, slot)| *slot).collect();
        let steps = steps_to(geometry, gpu, &slots, |slot| self.must_stay(id, slot))?;
        if steps.is_empty() {
            return None;
        }
        let (attempt, _) = *attempts.first()?;
        let live = self.attempts.live.get(&attempt)?;
        let plan = LayoutPlanRow {
            plan: PlanId::from_uuid(new_id()),
            gpu: id.clone(),
            node: gpu.node,
            layout_gen: gpu.layout_gen + 1,
            steps_text: steps.iter().map(|step| step_text(geometry, *step)).collect(),
            steps,
            job: Some(live.job),
            attempt: Some(attempt),
            decision: Some(live.decision),
            asked: None,
        };
        let gpu = self.inventory.gpus.get_mut(id)?;
        gpu.layout_gen = plan.layout_gen;
        gpu.open_plan = Some(plan.plan);
        Some(plan)
    }

    /// Whether an instance must not be destroyed: a live attempt has it, or it is quarantined.
    pub(crate) fn must_stay(&self, gpu: &GpuId, slot: Slot) -> bool {
        let held =
            self.attempts.live.values().any(|live| live.gpu == *gpu && live.slot == Some(slot));
        held || self.is_quarantined(gpu, slot)
    }

    pub(crate) fn is_quarantined(&self, gpu: &GpuId, slot: Slot) -> bool {
        let Some(MigReport::On { geometry }) =
            self.inventory.gpus.get(gpu).map(|gpu| &gpu.report.mig)
        else {
            return false;
        };
        self.overrides.quarantined(gpu).any(|place| geometry.overlap(place, slot))
    }

    /// Returns the oldest job for which the GPU is being changed.
    pub(crate) fn placing_on(&self, gpu: &GpuId) -> Option<JobId> {
        let placing =
            self.attempts.live.values().filter(|l| l.gpu == *gpu && l.state == JobState::Placing);
        placing.map(|live| live.job).min().or(self.migrations.first_job_on(gpu))
    }
}
