//! One input at a time.

use tessera_model::life::{JobEvent, JobState, Outcome};
use tessera_model::{AttemptId, GpuId, JobId, Millis, NodeId};
use tessera_wire::frames::{
    AttemptReport, AttemptStatus, GpuReport, PlanEnd, StopCause, ToAgent, ToController,
};

use super::{
    Cluster, DOUBLINGS_MAX, Effect, Gpu, Input, LimitWord, MOVED_KEPT_FOR, PLAN_PAUSE,
    REFUSAL_PAUSE, Round,
};
use crate::ports::{CommandResult, JobCommand, JobMoved};
use crate::store::moves::{self, Change, record_without_exit};
use crate::store::nodes::PlanClosed;

impl Cluster {
    pub(super) fn take(&mut self, input: Input, now: Millis, round: &mut Round) {
        match input {
            Input::Fresh(jobs) => {
                for job in jobs {
                    if !self.was_moved(job.job, round) {
                        let submitted = now.minus(job.waited);
                        self.enqueue(job, submitted);
                    }
                }
            }
            Input::Requeued(jobs) => {
                for job in jobs {
                    let submitted = now.minus(job.waited);
                    self.enqueue(job, submitted);
                }
            }
            Input::Command { token, command, jobs } => {
                let results = jobs
                    .into_iter()
                    .map(|job| (job, self.command(job, command, now, round)))
                    .collect();
                round.results.push((token, results));
            }
            Input::Hello { peer, session, hello } => self.hello(peer, session, *hello, now, round),
            Input::Frame { node, session, frame } => {
                if self.hears(node, session) {
                    self.frame(node, *frame, now, round);
                }
            }
            Input::Closed { node, session } => {
                self.close_session(node, session);
                self.gone(node, session, now, round);
            }
            Input::SetMigMode { gpu, on } => self.set_mig_mode(gpu, on, round),
            Input::Operate { token, order, now_unix } => {
                self.now_unix = now_unix;
                self.operate(token, order, now, round);
            }
            Input::Tick => self.moved.retain(|_, since| now < since.plus(MOVED_KEPT_FOR)),
        }
    }

    /// Carries out a user's word on one job; `None` if only the store knows the job.
    fn command(
        &mut self,
        job: JobId,
        command: JobCommand,
        now: Millis,
        round: &mut Round,
    ) -> Option<CommandResult> {
        if let Some(attempt) = self.attempts.get(&job).copied() {
            // A reload may have read and placed it before its announcement comes.
            self.moved.insert(job, now);
            return Some(self.command_live(attempt, command, round));
        }
        let change = match command {
            JobCommand::Cancel => Change::To(JobState::Cancelled),
            JobCommand::Hold => Change::To(JobState::Held),
            JobCommand::Release => Change::To(JobState::Queued),
            JobCommand::Reshare(sm) => Change::Share(sm),
            JobCommand::Amend(terms) => Change::Terms(terms),
        };
        if command == JobCommand::Cancel {
            self.asides.remove(&job);
        }
        if command != JobCommand::Release {
            // With another share it comes back, once that is committed.
            self.dequeue(job);
        }
        round.commands.push(moves::Command { job, change });
        None
    }

    fn command_live(
        &mut self,
        attempt: AttemptId,
        command: JobCommand,
        round: &mut Round,
    ) -> CommandResult {
        let Some(live) = self.live.get_mut(&attempt) else { return CommandResult::NotFound };
        if let JobCommand::Reshare(sm) = command {
            return live.reshare(attempt, sm, round);
        }
        if let JobCommand::Amend(terms) = command {
            return live.amend(attempt, terms, round);
        }
        if command != JobCommand::Cancel {
            return CommandResult::Refused { state: live.state.word().to_owned() };
        }
        for attempt in self.companions(attempt) {
            self.cancel(attempt, round);
        }
        CommandResult::Done
    }

    fn cancel(&mut self, attempt: AttemptId, round: &mut Round) {
        let Some(live) = self.live.get_mut(&attempt) else { return };
        let was = live.state;
        if was == JobState::Stopping {
            return;
        }
        live.state = JobState::Stopping;
        live.sent = None;
        round.stopping.push(moves::Stopping { job: live.job, attempt });
        round.effects.push(Effect::Moved(JobMoved {
            job: live.job,
            attempt: Some(attempt),
            state: JobState::Stopping,
        }));
        if was == JobState::Placing {
            // No launch was ever sent: there is nothing to wait for.
            let record =
                record_without_exit(Outcome::Cancelled, "cancelled before it started".to_owned());
            self.end(attempt, record, round);
        }
    }

    fn set_mig_mode(&mut self, gpu: GpuId, on: bool, round: &mut Round) {
        if let Some(known) = self.gpus.get(&gpu) {
            let frame = ToAgent::SetMigMode { epoch: self.epoch, gpu, on };
            round.effects.push(Effect::Send { node: known.node, frame: Box::new(frame) });
        }
    }

    fn frame(&mut self, node: NodeId, frame: ToController, now: Millis, round: &mut Round) {
        match frame {
            ToController::Gpu(report) => self.gpu_report(node, report, round),
            ToController::Attempt(report) => self.attempt_report(node, report, now, round),
            ToController::InventoryDone => self.inventory_done(node, round),
            ToController::Tombstoned { attempt } => self.tombstoned(node, attempt, round),
            ToController::PlanEnded { plan, gpu, end } => {
                if self.gpus.get(&gpu).is_some_and(|g| g.node == node && g.open_plan == Some(plan))
                {
                    self.plan_ended(&gpu, end, now, round);
                }
            }
            // The GPU's report, which came before, says what stands; the answer to the
            // administrator is his own look at it.
            ToController::MigModeEnded { .. } => {}
            ToController::Present { token } => self.present(node, token, round),
            ToController::Usage(usage) => {
                self.learn_peak(usage.attempt, usage.peak_memory);
                round.usages.push((node, usage));
                let frame = Box::new(ToAgent::UsageAck { attempt: usage.attempt });
                round.effects.push(Effect::Send { node, frame });
            }
            // Handled at the door: a second hello breaks the protocol, renewals and answers to
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

    fn gpu_report(&mut self, node: NodeId, report: GpuReport, round: &mut Round) {
        let mig = self.mig_view(&report);
        let known = self.gpus.get(&report.gpu);
        let changed = known.is_none_or(|gpu| gpu.report != report || gpu.node != node);
        let gpu = Gpu {
            node,
            layout_gen: known.map_or(0, |g| g.layout_gen).max(report.layout_gen),
            mig,
            fresh: true,
            open_plan: known.and_then(|g| g.open_plan),
            wish: known.and_then(|g| g.wish.clone()),
            paused_until: known.map_or(Millis::ZERO, |g| g.paused_until),
            failures: known.map_or(0, |g| g.failures),
            report,
        };
        if changed {
            round.reports.push((node, gpu.report.clone()));
            round.shape_changed = true;
        }
        let resized = self
            .gpus
            .get(&gpu.report.gpu)
            .is_none_or(|known| known.report.memory != gpu.report.memory || known.mig != gpu.mig);
        self.gpus.insert(gpu.report.gpu.clone(), gpu);
        if resized {
            self.measure_largest();
        }
    }

    fn attempt_report(
        &mut self,
        node: NodeId,
        report: AttemptReport,
        now: Millis,
        round: &mut Round,
    ) {
        let attempt = report.attempt;
        if let Some(session) = self.session(node).filter(|session| !session.ready) {
            session.reported.insert(attempt);
        }
        let Some(live) = self.live.get_mut(&attempt).filter(|live| live.node == node) else {
            round.effects.push(self.answer_stranger(node, &report));
            return;
        };
        live.acknowledged = true;
        if live.over.is_some() {
            return;
        }
        match report.status {
            AttemptStatus::Journalled => {}
            AttemptStatus::Running { started_unix, .. } => {
                if live.state == JobState::Starting && live.state.on(JobEvent::Started).is_ok() {
                    live.state = JobState::Running;
                    live.began = Some(now);
                    let (job, facts) = (live.job, live.facts.clone());
                    if let Some(gpu) = self.gpus.get_mut(&live.gpu) {
                        gpu.failures = 0;
                    }
                    let moved = self.moved(job, &facts.task, now);
                    round.started.push(moves::Started { job, attempt, started_unix, moved });
                    round.effects.push(Effect::Moved(JobMoved {
                        job,
                        attempt: Some(attempt),
                        state: JobState::Running,
                    }));
                }
            }
            AttemptStatus::Ended(record) => {
                // A launch that was revoked for its user says nothing of the GPU.
                if record.outcome == Outcome::NotStarted
                    && live.state != JobState::Stopping
                    && let Some(gpu) = self.gpus.get_mut(&live.gpu)
                {
                    gpu.pause(REFUSAL_PAUSE, now);
                }
                self.end(attempt, record, round);
                // A member's record is kept by its node until its whole gang has ended.
                if !self.live.contains_key(&attempt) {
                    let frame = Box::new(ToAgent::EndAck { attempt });
                    round.effects.push(Effect::Send { node, frame });
                }
            }
        }
    }

    /// Answers a report of an attempt that is not live (here): its result counts for nothing,
    /// and if it still runs it must not (rule F10).
    fn answer_stranger(&self, node: NodeId, report: &AttemptReport) -> Effect {
        let attempt = report.attempt;
        let frame = match report.status {
            AttemptStatus::Ended(_) => ToAgent::EndAck { attempt },
            AttemptStatus::Journalled | AttemptStatus::Running { .. } => {
                ToAgent::Revoke { epoch: self.epoch, attempt }
            }
        };
        Effect::Send { node, frame: Box::new(frame) }
    }

    fn inventory_done(&mut self, node: NodeId, round: &mut Round) {
        let Some(session) = self.session(node) else { return };
        session.ready = true;
        let reported = std::mem::take(&mut session.reported);
        round.shape_changed = true;
        let missing = |live: &super::Live, attempt: &AttemptId| {
            live.node == node && !reported.contains(attempt)
        };
        for (attempt, live) in &mut self.live {
            if live.node == node && live.limit == LimitWord::Told {
                live.limit = LimitWord::Due;
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
        let gpus: Vec<GpuId> =
            self.gpus.iter().filter(|(_, g)| g.node == node).map(|(id, _)| id.clone()).collect();
        for id in gpus {
            if self.resume_wish(&id, round) {
                continue;
            }
            let Some(gpu) = self.gpus.get_mut(&id) else { continue };
            if let Some(plan) = gpu.open_plan.take() {
                round.closed.push(PlanClosed {
                    plan,
                    state: "failed",
                    detail: Some("the connection broke before its end was heard".to_owned()),
                });
            }
        }
    }

    fn tombstoned(&mut self, node: NodeId, attempt: AttemptId, round: &mut Round) {
        let Some(live) = self.live.get(&attempt).filter(|live| live.node == node) else { return };
        let (outcome, detail) = match live.state {
            JobState::Stopping => (Outcome::Cancelled, "cancelled before it started"),
            JobState::Running => (Outcome::Lost, "its node knew nothing of it any more"),
            _ => (Outcome::NotStarted, "its launch was given up"),
        };
        self.end(attempt, record_without_exit(outcome, detail.to_owned()), round);
    }

    fn plan_ended(&mut self, gpu: &GpuId, end: PlanEnd, now: Millis, round: &mut Round) {
        let Some(known) = self.gpus.get_mut(gpu) else { return };
        let Some(plan) = known.open_plan.take() else { return };
        let (state, detail) = match end {
            PlanEnd::Done => ("done", None),
            PlanEnd::Failed { steps_done, reason } => {
                ("failed", Some(format!("after {steps_done} steps: {reason}")))
            }
            PlanEnd::Refused { reason } => ("refused", Some(reason)),
        };
        let of_operator = known.wish.is_some();
        if state != "done" {
            known.pause(PLAN_PAUSE, now);
        }
        let detail = match detail {
            Some(reason) if of_operator => {
                Some(format!("{reason}; now stands {}", known.layout_in_words()))
            }
            detail => detail,
        };
        round.closed.push(PlanClosed { plan, state, detail: detail.clone() });
        if of_operator {
            self.wish_ended(gpu, state, detail.as_deref(), round);
        } else if let Some(reason) = detail {
            self.give_up_unmade(gpu, &reason, round);
        }
    }

    /// Sends the attempts back whose instances a failed plan did not make.
    fn give_up_unmade(&mut self, gpu: &GpuId, reason: &str, round: &mut Round) {
        let unmade: Vec<_> = self
            .live
            .iter()
            .filter(|(_, live)| live.gpu == *gpu && live.state == JobState::Placing)
            .filter(|(_, live)| self.standing_slice(live).is_none())
            .map(|(attempt, _)| *attempt)
            .collect();
        for attempt in unmade {
            let detail = format!("its slice could not be made: {reason}");
            self.end(attempt, record_without_exit(Outcome::NotStarted, detail), round);
        }
    }

    /// Returns the frame that makes an attempt end: an orderly stop where the node has it, else
    /// the promise that it never starts.
    pub(super) fn stop_frame(&self, attempt: AttemptId, acknowledged: bool) -> ToAgent {
        if acknowledged {
            ToAgent::Stop { epoch: self.epoch, attempt, cause: StopCause::Cancel }
        } else {
            ToAgent::Revoke { epoch: self.epoch, attempt }
        }
    }
}

impl Gpu {
    /// Leaves the GPU alone for a while, longer each time.
    fn pause(&mut self, pause: Millis, now: Millis) {
        let doubled = pause.get() << self.failures.min(DOUBLINGS_MAX);
        self.paused_until = now.plus(Millis::new(doubled));
        self.failures = self.failures.saturating_add(1);
    }
}
