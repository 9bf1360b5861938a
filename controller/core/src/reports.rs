//! What agents report, one frame at a time.

use crate::commands::JobStateChange;
use crate::duplicates::refuse_duplicate;
use crate::memory_requests::{learn_late_peak, measure_largest_slice};
use crate::migration::finish_migration;
use crate::round::{Round, RoundEffect};
use crate::rows::nodes::EndedPlan;
use crate::rows::transitions;
use crate::rows::transitions::record_without_exit;
use crate::state::ClusterState;
use crate::state::attempts::TimeLimitNotice;
use crate::state::inventory::GpuState;
use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, GpuReport, PlanEnd, ToAgent, ToController,
};
use tessera_model::life::{JobState, Outcome};
use tessera_model::{AttemptId, Bytes, GpuId, Millis, NodeId};

/// How long a GPU is paused after a plan failed on it; doubled with each further failure.
const PLAN_PAUSE: Millis = Millis::from_secs(5);

/// How long a GPU is paused after it refused an attempt; doubled with each further refusal.
const REFUSAL_PAUSE: Millis = Millis::from_secs(1);

impl ClusterState {
    pub(crate) fn handle_frame(
        &mut self,
        node: NodeId,
        frame: ToController,
        now: Millis,
        round: &mut Round,
    ) {
        match frame {
            ToController::Gpu(report) => self.record_gpu_report(node, report, round),
            ToController::Attempt(report) => self.record_attempt_report(node, report, now, round),
            ToController::InventoryDone => self.finish_inventory(node, round),
            ToController::Tombstoned { attempt } => self.handle_tombstone(node, attempt, round),
            ToController::PlanEnded { plan, gpu, end } => {
                if self
                    .inventory
                    .gpus
                    .get(&gpu)
                    .is_some_and(|g| g.node == node && g.open_plan == Some(plan))
                {
                    self.record_plan_end(&gpu, end, now, round);
                }
            }
            // The GPU's report, which arrived before, has what stands.
            ToController::MigModeEnded { .. } => {}
            ToController::Present { token } => {
                refuse_duplicate(&mut self.inventory, node, token, &mut round.effects);
            }
            ToController::Usage(usage) => {
                self.record_peak(usage.attempt, usage.peak_memory);
                round.jobs.usages.push((node, usage));
                let frame = Box::new(ToAgent::UsageAck { attempt: usage.attempt });
                round.effects.push(RoundEffect::Send { node, frame });
            }
            // Handled before rounds: a second hello breaks the protocol, renewals and answers to
            // questions don't wait here, and neither figures nor kernels decide anything.
            ToController::Hello(_)
            | ToController::Renew { .. }
            | ToController::Figures(_)
            | ToController::KernelReport { .. }
            | ToController::KernelWanted { .. }
            | ToController::KernelTallies(_)
            | ToController::Examined { .. } => {}
        }
    }

    /// Records the peak memory of an attempt; of a live one it is learned at its end.
    fn record_peak(&mut self, attempt: AttemptId, peak: Option<Bytes>) {
        let Some(peak) = peak.filter(|peak| *peak > Bytes::ZERO) else { return };
        match self.attempts.live.get_mut(&attempt) {
            Some(live) => live.peak = live.peak.max(Some(peak)),
            None => {
                let (predictions, queue) = (&mut self.predictions, &mut self.queue);
                learn_late_peak(predictions, queue, &self.inventory, attempt, peak);
            }
        }
    }

    fn record_gpu_report(&mut self, node: NodeId, report: GpuReport, round: &mut Round) {
        let mig = self.inventory.mig_view(&report);
        let known = self.inventory.gpus.get(&report.gpu);
        let changed = known.is_none_or(|gpu| gpu.report != report || gpu.node != node);
        let gpu = GpuState {
            node,
            layout_gen: known.map_or(0, |g| g.layout_gen).max(report.layout_gen),
            mig,
            fresh: true,
            open_plan: known.and_then(|g| g.open_plan),
            layout_in_progress: known.and_then(|g| g.layout_in_progress.clone()),
            paused_until: known.map_or(Millis::ZERO, |g| g.paused_until),
            failures: known.map_or(0, |g| g.failures),
            report,
        };
        if changed {
            round.nodes.gpu_reports.push((node, gpu.report.clone()));
            round.shape_changed = true;
        }
        let resized =
            self.inventory.gpus.get(&gpu.report.gpu).is_none_or(|known| {
                known.report.memory != gpu.report.memory || known.mig != gpu.mig
            });
        self.inventory.gpus.insert(gpu.report.gpu.clone(), gpu);
        if resized {
            measure_largest_slice(&mut self.inventory, &mut self.queue, &self.predictions);
        }
    }

    fn record_attempt_report(
        &mut self,
        node: NodeId,
        report: AttemptReport,
        now: Millis,
        round: &mut Round,
    ) {
        let attempt = report.attempt;
        if let Some(session) = self.inventory.session_mut(node).filter(|session| !session.ready) {
            session.reported.insert(attempt);
        }
        let Some(live) = self.attempts.live.get_mut(&attempt).filter(|live| live.node == node)
        else {
            let frame = Box::new(self.guards.answer_unknown_attempt(&report));
            round.effects.push(RoundEffect::Send { node, frame });
            return;
        };
        live.acknowledged = true;
        if live.end.is_some() {
            return;
        }
        match report.status {
            AttemptStatus::Journalled => {}
            AttemptStatus::Running { started_unix, .. } => {
                self.record_start(attempt, started_unix, now, round);
            }
            AttemptStatus::Ended(record) => {
                // A launch that was revoked for its user is no fault of the GPU.
                if record.outcome == Outcome::NotStarted
                    && live.state != JobState::Stopping
                    && let Some(gpu) = self.inventory.gpus.get_mut(&live.gpu)
                {
                    gpu.pause_attempts(REFUSAL_PAUSE, now);
                }
                self.end_attempt(attempt, record, round);
                // A member's record is kept by its node until its whole gang has ended.
                if !self.attempts.live.contains_key(&attempt) {
                    let frame = Box::new(ToAgent::EndAck { attempt });
                    round.effects.push(RoundEffect::Send { node, frame });
                }
            }
        }
    }

    /// Moves an attempt to running whose program began.
    fn record_start(
        &mut self,
        attempt: AttemptId,
        started_unix: Millis,
        now: Millis,
        round: &mut Round,
    ) {
        let Some(live) = self.attempts.live.get_mut(&attempt) else { return };
        if live.state != JobState::Starting {
            return;
        }
        live.state = JobState::Running;
        live.began = Some(now);
        if let Some(gpu) = self.inventory.gpus.get_mut(&live.gpu) {
            gpu.failures = 0;
        }
        let (migrations, predictions) = (&mut self.migrations, &mut self.predictions);
        let moved = finish_migration(migrations, predictions, live.job, &live.facts.task, now);
        let row = transitions::StartedAttempt { job: live.job, attempt, started_unix, moved };
        round.jobs.started.push(row);
        let change =
            JobStateChange { job: live.job, attempt: Some(attempt), state: JobState::Running };
        round.effects.push(RoundEffect::Moved(change));
    }

    fn finish_inventory(&mut self, node: NodeId, round: &mut Round) {
        let Some(session) = self.inventory.session_mut(node) else { return };
        session.ready = true;
        let reported = std::mem::take(&mut session.reported);
        round.shape_changed = true;
        let missing = |live: &crate::state::attempts::LiveAttempt, attempt: &AttemptId| {
            live.node == node && !reported.contains(attempt)
        };
        for (attempt, live) in &mut self.attempts.live {
            if live.node == node && live.limit == TimeLimitNotice::Sent {
                live.limit = TimeLimitNotice::Due;
            }
            if missing(live, attempt) {
                // A launch that never arrived is sent anew; of anything else the node must
                // first promise that nothing runs (rule F8).
                live.acknowledged = false;
                live.sent = None;
            }
        }
        // Whether a plan that was under way came to its end is not known: what stands is, so
        // the rest is planned anew under a higher number, which voids the old plan.
        // An operator's layout is nobody's place: the same plan goes on, under its own number.
        let gpus: Vec<GpuId> = self
            .inventory
            .gpus
            .iter()
            .filter(|(_, g)| g.node == node)
            .map(|(id, _)| id.clone())
            .collect();
        for id in gpus {
            if self.resume_layout(&id, round) {
                continue;
            }
            let Some(gpu) = self.inventory.gpus.get_mut(&id) else { continue };
            if let Some(plan) = gpu.open_plan.take() {
                round.plans.ended.push(EndedPlan {
                    plan,
                    state: "failed",
                    detail: Some("the connection broke before its end was reported".to_owned()),
                });
            }
        }
    }

    fn handle_tombstone(&mut self, node: NodeId, attempt: AttemptId, round: &mut Round) {
        let Some(live) = self.attempts.live.get(&attempt).filter(|live| live.node == node) else {
            return;
        };
        let (outcome, detail) = match live.state {
            JobState::Stopping => (Outcome::Cancelled, "cancelled before it started"),
            JobState::Running => (Outcome::Lost, "its node has no record of it any more"),
            _ => (Outcome::NotStarted, "its launch was revoked"),
        };
        self.end_attempt(attempt, record_without_exit(outcome, detail.to_owned()), round);
    }

    fn record_plan_end(&mut self, gpu: &GpuId, end: PlanEnd, now: Millis, round: &mut Round) {
        let Some(known) = self.inventory.gpus.get_mut(gpu) else { return };
        let Some(plan) = known.open_plan.take() else { return };
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
        round.plans.ended.push(EndedPlan { plan, state, detail: detail.clone() });
        if of_operator {
            self.end_requested_layout(gpu, state, detail.as_deref(), round);
        } else if let Some(reason) = detail {
            self.end_unmade_attempts(gpu, &reason, round);
        }
    }

    /// Ends the attempts whose instances a failed plan did not make.
    fn end_unmade_attempts(&mut self, gpu: &GpuId, reason: &str, round: &mut Round) {
        let unmade: Vec<_> = self
            .attempts
            .live
            .iter()
            .filter(|(_, live)| live.gpu == *gpu && live.state == JobState::Placing)
            .filter(|(_, live)| self.inventory.standing_slice(live).is_none())
            .map(|(attempt, _)| *attempt)
            .collect();
        for attempt in unmade {
            let detail = format!("its slice could not be made: {reason}");
            self.end_attempt(attempt, record_without_exit(Outcome::NotStarted, detail), round);
        }
    }
}
