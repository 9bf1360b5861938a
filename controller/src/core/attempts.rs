//! The end of attempts, and what is sent about the living ones.

use std::sync::Arc;

use tessera_model::life::{JobEvent, JobState, Outcome, RetryRules, Verdict};
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::share::{MpsShare, Part, Share, SmPercent};
use tessera_model::{AttemptId, JobId, Millis};
use tessera_wire::frames::{ExitRecord, KernelTerms, LaunchOrder, PlanOrder, StopCause, ToAgent};

use super::foresight::Facts;
use super::gangs::Told;
use super::{Cluster, Effect, JobSheet, LimitWord, Live, RESEND_AFTER, Round};
use crate::ports::{CommandResult, JobMoved, Terms};
use crate::store::moves;
use crate::store::submit::FreshJob;
use crate::store::terms::Amended;

impl Cluster {
    /// Ends a live attempt and moves its job on.
    pub(super) fn end(&mut self, attempt: AttemptId, record: ExitRecord, round: &mut Round) {
        if let Some(member) = self.live.get(&attempt).and_then(|live| live.gang) {
            return self.member_over(member, attempt, record, round);
        }
        let Some(live) = self.live.remove(&attempt) else { return };
        self.attempts.remove(&live.job);
        self.refund(&live);
        let moves = self.moving.ended(live.job, attempt, &record);
        let verdict = match moves {
            // As often as it takes: it was asked to.
            true => Verdict::Requeue { charged: false },
            false => verdict(live.sheet.as_ref(), record.outcome),
        };
        let event = JobEvent::Ended { outcome: record.outcome, verdict };
        let to = live.state.on(event).expect("a live attempt's job can always end");
        let lasted = self.learn_end(&live, &record);
        let ran_out_of = self.learn_memory_of(attempt, &live, &record);
        let done = self.put_aside(&live, lasted);
        if to.is_final() {
            self.asides.remove(&live.job);
        }
        if to == JobState::Queued
            && let Some(sheet) = &live.sheet
        {
            let fresh = FreshJob::new(live.job, &sheet.spec, None, live.number);
            self.enqueue(FreshJob { done, ..fresh }, live.submitted);
        }
        let requeued = to == JobState::Queued;
        round.ended.push(moves::Ended {
            job: live.job,
            attempt,
            from: live.state,
            to,
            charged: requeued && verdict == (Verdict::Requeue { charged: true }),
            shared: live.share.is_some(),
            uncharged: !moves
                && matches!(verdict, Verdict::Requeue { charged: false } | Verdict::Hold),
            reason: record.outcome,
            gang: None,
            record,
            lasted,
            ran_out_of,
            foretold: live.foretold.and_then(|foretold| foretold.prediction),
            done,
        });
        round.effects.push(Effect::Moved(JobMoved { job: live.job, attempt: None, state: to }));
    }

    /// Gives reserved attempts what they run, once their reservation is committed.
    pub fn give_sheets(
        &mut self,
        sheets: std::collections::HashMap<JobId, JobSheet>,
        traces: &std::collections::HashMap<AttemptId, String>,
    ) {
        for (job, sheet) in sheets {
            let Some(attempt) = self.attempts.get(&job) else { continue };
            if let Some(live) = self.live.get_mut(attempt) {
                live.traceparent =
                    traces.get(attempt).cloned().or_else(|| sheet.traceparent.clone());
                live.sheet = Some(sheet);
            }
        }
    }

    /// Returns what is to be sent now: plans that were committed, launches and stops that were
    /// never sent or stay unanswered.
    pub fn dispatch(&mut self, now: Millis) -> Vec<Effect> {
        let mut effects = Vec::new();
        for plan in std::mem::take(&mut self.unsent_plans) {
            let traceparent = plan.attempt.and_then(|a| self.live.get(&a)?.traceparent.clone());
            let order = PlanOrder {
                epoch: self.epoch,
                plan: plan.plan,
                gpu: plan.gpu,
                layout_gen: plan.layout_gen,
                steps: plan.steps,
                traceparent,
            };
            let frame = Box::new(ToAgent::ApplyPlan(order));
            effects.push(Effect::Send { node: plan.node, frame });
        }
        let due: Vec<_> = self
            .live
            .iter()
            .filter(|(_, live)| live.sent.is_none_or(|sent| now >= sent.plus(RESEND_AFTER)))
            .filter(|(_, live)| {
                self.nodes
                    .get(&live.node)
                    .is_some_and(|node| node.session.as_ref().is_some_and(|s| s.ready))
            })
            .map(|(attempt, _)| *attempt)
            .collect();
        for attempt in due {
            let Some(frame) = self.frame_for(attempt) else { continue };
            if let Some(live) = self.live.get_mut(&attempt) {
                live.sent = Some(now);
                effects.push(Effect::Send { node: live.node, frame: Box::new(frame) });
            }
        }
        effects.extend(self.new_limits());
        effects
    }

    /// Returns the new time limits that nodes are still to be told. Nothing answers them: a word that
    /// is lost with its session is said again in the next one.
    fn new_limits(&mut self) -> Vec<Effect> {
        let (epoch, nodes) = (self.epoch, &self.nodes);
        let ready = |node: &tessera_model::NodeId| {
            let session = nodes.get(node).and_then(|node| node.session.as_ref());
            session.is_some_and(|session| session.ready)
        };
        let due = self.live.iter_mut().filter(|(_, live)| {
            live.limit == LimitWord::Due
                && live.state == JobState::Running
                && live.acknowledged
                && ready(&live.node)
        });
        let told = due.map(|(attempt, live)| {
            live.limit = LimitWord::Told;
            let frame = ToAgent::SetTimeLimit { epoch, attempt: *attempt, limit: live.facts.limit };
            Effect::Send { node: live.node, frame: Box::new(frame) }
        });
        told.collect()
    }

    /// What the attempt's node has to be told, if anything.
    fn frame_for(&self, attempt: AttemptId) -> Option<ToAgent> {
        let live = self.live.get(&attempt)?;
        match self.frame_for_member(attempt, live) {
            Some(Told::Nothing) => return None,
            Some(Told::Frame(frame)) => return Some(frame),
            None => {}
        }
        match live.state {
            JobState::Starting if !live.acknowledged => {
                self.launch_order(attempt, live).map(|order| ToAgent::Launch(Box::new(order)))
            }
            JobState::Running if !live.acknowledged => Some(self.stop_frame(attempt, false)),
            // Told by the state, as everything: the job's part is another one than the attempt's.
            JobState::Running if live.has_other_share() => {
                Some(ToAgent::Stop { epoch: self.epoch, attempt, cause: StopCause::Reshare })
            }
            JobState::Running if self.moving.asks(attempt) => {
                Some(ToAgent::Stop { epoch: self.epoch, attempt, cause: StopCause::Move })
            }
            JobState::Stopping => Some(self.stop_frame(attempt, live.acknowledged)),
            _ => None,
        }
    }

    fn launch_order(&self, attempt: AttemptId, live: &Live) -> Option<LaunchOrder> {
        let sheet = live.sheet.as_ref()?;
        let spec = &sheet.spec;
        let gang = match live.gang {
            Some(member) => Some(self.gang_place(member, live.number)?),
            None => None,
        };
        Some(LaunchOrder {
            epoch: self.epoch,
            generation: live.generation,
            attempt,
            job: live.job,
            number: live.number,
            gpu: live.gpu.clone(),
            slot: live.slot,
            slice: live.slice.clone()?,
            array: sheet.array,
            gang,
            name: spec.name.clone(),
            user: spec.user.clone(),
            program: spec.program.clone(),
            work_dir: spec.work_dir.clone(),
            env: spec.env.clone(),
            output: spec.output.clone(),
            time_limit: spec.time_limit,
            grace: spec.grace,
            restart_reason: sheet.restart_reason,
            traceparent: live.traceparent.clone(),
            share: match live.share.as_ref().map(|sharer| sharer.share) {
                Some(Part::Mps(share)) => Some(share),
                Some(Part::Kernel(_) | Part::Compute(_)) | None => None,
            },
            checkpoint_signal: spec.checkpoint_signal,
            kernel: match live.share.as_ref().map(|sharer| sharer.share) {
                Some(Part::Kernel(share)) => Some(KernelTerms {
                    memory: share.memory,
                    priority: spec.priority,
                    class: spec.class,
                    task_key: spec.task_key.clone(),
                }),
                Some(Part::Mps(_) | Part::Compute(_)) | None => None,
            },
        })
    }
}

impl Live {
    /// Returns its compute instance, if its GPU instance is cut into several.
    pub(super) fn part(&self) -> Option<ComputeSlot> {
        self.share.as_ref()?.share.compute()
    }

    /// Gives the job another part of its slice: its attempt ends by its checkpoint signal and the
    /// next one has the new part. Refused, if the job doesn't say how it puts its work aside.
    pub(super) fn reshare(
        &mut self,
        attempt: AttemptId,
        sm: SmPercent,
        round: &mut Round,
    ) -> CommandResult {
        let refused = CommandResult::Refused { state: self.state.word().to_owned() };
        let Some(sheet) = self.sheet.as_mut() else { return refused };
        let Share::Mps(share) = sheet.spec.share else { return refused };
        if self.state == JobState::Stopping {
            return refused;
        }
        if share.sm == sm {
            return CommandResult::Done;
        }
        if sheet.spec.checkpoint_signal.is_none() {
            return CommandResult::NoCheckpoint;
        }
        Arc::make_mut(&mut sheet.spec).share = Share::Mps(MpsShare { sm, ..share });
        if self.state == JobState::Running {
            self.sent = None;
        }
        round.reshared.push(moves::Reshared { job: self.job, attempt, sm });
        CommandResult::Done
    }

    /// Gives the job other terms: its time limit holds at once, its rank when it waits again.
    pub(super) fn amend(
        &mut self,
        attempt: AttemptId,
        terms: Terms,
        round: &mut Round,
    ) -> CommandResult {
        let refused = CommandResult::Refused { state: self.state.word().to_owned() };
        let Some(sheet) = self.sheet.as_mut() else { return refused };
        if self.state == JobState::Stopping {
            return refused;
        }
        let before = sheet.spec.time_limit;
        terms.over(Arc::make_mut(&mut sheet.spec));
        let limit = sheet.spec.time_limit;
        if limit != before {
            self.limit = LimitWord::Due;
            self.facts = Arc::new(Facts { limit, ..(*self.facts).clone() });
        }
        round.amended.push(Amended { job: self.job, attempt, terms });
        CommandResult::Done
    }

    /// Whether its job has another share by now than it was started with.
    fn has_other_share(&self) -> bool {
        let job = self.sheet.as_ref().and_then(|sheet| sheet.spec.share.part()?.sm());
        let own = self.share.as_ref().and_then(|sharer| sharer.share.sm());
        job.zip(own).is_some_and(|(job, own)| job != own)
    }
}

pub(super) fn verdict(sheet: Option<&JobSheet>, outcome: Outcome) -> Verdict {
    // Without its sheet the attempt was never launched: its end can't be the job's fault.
    let Some(sheet) = sheet else { return Verdict::Requeue { charged: false } };
    let rules: RetryRules = sheet.spec.retry;
    rules.verdict(outcome, sheet.charged, sheet.uncharged)
}
