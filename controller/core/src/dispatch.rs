//! What is sent about live attempts: plans, launches, stops, time limits.

use crate::LaunchSpec;
use crate::gangs::MemberFrame;
use crate::round::RoundEffect;
use crate::state::ClusterState;
use crate::state::attempts::{LiveAttempt, TimeLimitNotice};
use tessera_frames::cluster::{KernelQueueSpec, LaunchOrder, PlanOrder, StopCause, ToAgent};
use tessera_model::life::JobState;
use tessera_model::share::SliceShare;
use tessera_model::{AttemptId, JobId, Millis};

/// How long a command to an agent may stay unanswered before it is sent again.
const RESEND_AFTER: Millis = Millis::from_secs(2);

impl ClusterState {
    /// Gives reserved attempts their launch specifications, once their reservation is committed.
    pub fn set_launch_specs(
        &mut self,
        sheets: std::collections::HashMap<JobId, LaunchSpec>,
        traces: &std::collections::HashMap<AttemptId, String>,
    ) {
        for (job, sheet) in sheets {
            let Some(attempt) = self.attempts.by_job.get(&job) else { continue };
            if let Some(live) = self.attempts.live.get_mut(attempt) {
                live.traceparent =
                    traces.get(attempt).cloned().or_else(|| sheet.traceparent.clone());
                live.sheet = Some(sheet);
            }
        }
    }

    /// Returns what is to be sent now: plans that were committed, launches and stops that were
    /// never sent or stay unanswered.
    pub fn dispatch(&mut self, now: Millis) -> Vec<RoundEffect> {
        let mut effects = Vec::new();
        for plan in std::mem::take(&mut self.layouts.unsent_plans) {
            let traceparent =
                plan.attempt.and_then(|a| self.attempts.live.get(&a)?.traceparent.clone());
            let order = PlanOrder {
                epoch: self.guards.epoch,
                plan: plan.plan,
                gpu: plan.gpu,
                layout_gen: plan.layout_gen,
                steps: plan.steps,
                traceparent,
            };
            let frame = Box::new(ToAgent::ApplyPlan(order));
            effects.push(RoundEffect::Send { node: plan.node, frame });
        }
        let due: Vec<_> = self
            .attempts
            .live
            .iter()
            .filter(|(_, live)| live.sent.is_none_or(|sent| now >= sent.plus(RESEND_AFTER)))
            .filter(|(_, live)| {
                self.inventory
                    .nodes
                    .get(&live.node)
                    .is_some_and(|node| node.session.as_ref().is_some_and(|s| s.ready))
            })
            .map(|(attempt, _)| *attempt)
            .collect();
        for attempt in due {
            let Some(frame) = self.frame_for(attempt) else { continue };
            if let Some(live) = self.attempts.live.get_mut(&attempt) {
                live.sent = Some(now);
                effects.push(RoundEffect::Send { node: live.node, frame: Box::new(frame) });
            }
        }
        effects.extend(self.new_limits());
        effects
    }

    /// Returns the new time limits that nodes have not been notified of. Nothing acknowledges
    /// them, so that each is sent again in the next session.
    fn new_limits(&mut self) -> Vec<RoundEffect> {
        let (epoch, nodes) = (self.guards.epoch, &self.inventory.nodes);
        let ready = |node: &tessera_model::NodeId| {
            let session = nodes.get(node).and_then(|node| node.session.as_ref());
            session.is_some_and(|session| session.ready)
        };
        let due = self.attempts.live.iter_mut().filter(|(_, live)| {
            live.limit == TimeLimitNotice::Due
                && live.state == JobState::Running
                && live.acknowledged
                && ready(&live.node)
        });
        let told = due.map(|(attempt, live)| {
            live.limit = TimeLimitNotice::Told;
            let frame = ToAgent::SetTimeLimit { epoch, attempt: *attempt, limit: live.facts.limit };
            RoundEffect::Send { node: live.node, frame: Box::new(frame) }
        });
        told.collect()
    }

    /// Returns the frame that the attempt's node needs now, if any.
    fn frame_for(&self, attempt: AttemptId) -> Option<ToAgent> {
        let live = self.attempts.live.get(&attempt)?;
        match self.frame_for_member(attempt, live) {
            Some(MemberFrame::Nothing) => return None,
            Some(MemberFrame::Frame(frame)) => return Some(frame),
            None => {}
        }
        match live.state {
            JobState::Starting if !live.acknowledged => {
                self.launch_order(attempt, live).map(|order| ToAgent::Launch(Box::new(order)))
            }
            JobState::Running if !live.acknowledged => Some(self.guards.stop_frame(attempt, false)),
            // Told by the state, as everything: the job's part is another one than the attempt's.
            JobState::Running if live.has_other_share() => {
                Some(ToAgent::Stop { epoch: self.guards.epoch, attempt, cause: StopCause::Reshare })
            }
            JobState::Running if self.migrations.is_asked_to_move(attempt) => {
                Some(ToAgent::Stop { epoch: self.guards.epoch, attempt, cause: StopCause::Move })
            }
            JobState::Stopping => Some(self.guards.stop_frame(attempt, live.acknowledged)),
            _ => None,
        }
    }

    fn launch_order(&self, attempt: AttemptId, live: &LiveAttempt) -> Option<LaunchOrder> {
        let sheet = live.sheet.as_ref()?;
        let spec = &sheet.spec;
        let gang = match live.gang {
            Some(member) => Some(self.gang_rank_place(member, live.number)?),
            None => None,
        };
        Some(LaunchOrder {
            epoch: self.guards.epoch,
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
            run: spec.run.clone(),
            restart_reason: sheet.restart_reason,
            traceparent: live.traceparent.clone(),
            share: match live.share.as_ref().map(|sharer| sharer.share) {
                Some(SliceShare::Mps(share)) => Some(share),
                Some(SliceShare::Kernel(_) | SliceShare::Compute(_)) | None => None,
            },
            kernel: match live.share.as_ref().map(|sharer| sharer.share) {
                Some(SliceShare::Kernel(share)) => Some(KernelQueueSpec {
                    memory: share.memory,
                    priority: spec.queue_rank.priority,
                    class: spec.class,
                    task_key: spec.task_key.clone(),
                }),
                Some(SliceShare::Mps(_) | SliceShare::Compute(_)) | None => None,
            },
        })
    }
}
