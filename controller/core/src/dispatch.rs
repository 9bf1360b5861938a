//! The frames for live attempts: plans, launches, stops, time limits.

use crate::LaunchSpec;
use crate::accounts::Accounts;
use crate::gangs::{MemberFrame, frame_for_member, gang_position};
use crate::round::RoundEffect;
use crate::rows::nodes::LayoutPlanRow;
use crate::state::attempts::{AttemptTable, LiveAttempt, TimeLimitNotice};
use crate::state::guards::LeaderGuards;
use crate::state::inventory::NodeInventory;
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::Migrations;
use std::collections::HashMap;
use tessera_frames::cluster::{KernelQueueSpec, LaunchOrder, PlanOrder, StopCause, ToAgent};
use tessera_model::life::JobState;
use tessera_model::share::SliceShare;
use tessera_model::spec::{JobSpec, RunSpec};
use tessera_model::{AttemptId, JobId, Millis};

/// How long a command to an agent may stay unanswered before it is sent again.
const RESEND_AFTER: Millis = Millis::from_secs(2);

/// Gives reserved attempts their launch specifications after their reservation is committed.
pub(crate) fn set_launch_specs(
    attempts: &mut AttemptTable,
    launch_specs: HashMap<JobId, LaunchSpec>,
    traces: &HashMap<AttemptId, String>,
) {
    for (job, launch_spec) in launch_specs {
        let Some(attempt) = attempts.by_job.get(&job) else { continue };
        if let Some(live) = attempts.live.get_mut(attempt) {
            live.traceparent =
                traces.get(attempt).cloned().or_else(|| launch_spec.traceparent.clone());
            live.launch_spec = Some(launch_spec);
        }
    }
}

/// Returns the frames to send now: committed plans, and launches and stops that were never sent or
/// are unanswered.
pub(crate) fn dispatch(
    (guards, accounts): (&LeaderGuards, &Accounts),
    inventory: &NodeInventory,
    migrations: &Migrations,
    layouts: &mut LayoutRequests,
    attempts: &mut AttemptTable,
    now: Millis,
) -> Vec<RoundEffect> {
    let epoch = guards.epoch;
    let plans = std::mem::take(&mut layouts.unsent_plans);
    let mut effects: Vec<_> =
        plans.into_iter().map(|plan| plan_order(attempts, epoch, plan)).collect();
    let due: Vec<_> = attempts
        .live
        .iter()
        .filter(|(_, live)| live.sent.is_none_or(|sent| now >= sent.plus(RESEND_AFTER)))
        .filter(|(_, live)| inventory.is_ready(live.node))
        .map(|(attempt, _)| *attempt)
        .collect();
    for attempt in due {
        let known = FrameSource { guards, accounts, inventory, migrations, attempts };
        let Some(frame) = known.frame_for_attempt(attempt) else { continue };
        if let Some(live) = attempts.live.get_mut(&attempt) {
            live.sent = Some(now);
            effects.push(RoundEffect::Send { node: live.node, frame: Box::new(frame) });
        }
    }
    effects.extend(send_new_limits(attempts, inventory, epoch));
    effects
}

/// The state that determines which frames nodes are sent.
#[derive(Clone, Copy)]
struct FrameSource<'c> {
    guards: &'c LeaderGuards,
    accounts: &'c Accounts,
    inventory: &'c NodeInventory,
    migrations: &'c Migrations,
    attempts: &'c AttemptTable,
}

impl FrameSource<'_> {
    /// Returns the frame that the attempt's node needs now, if any.
    fn frame_for_attempt(&self, attempt: AttemptId) -> Option<ToAgent> {
        let live = self.attempts.live.get(&attempt)?;
        match frame_for_member(self.attempts, self.guards.epoch, attempt, live) {
            Some(MemberFrame::Nothing) => return None,
            Some(MemberFrame::Frame(frame)) => return Some(frame),
            None => {}
        }
        match live.state {
            JobState::Starting if !live.acknowledged => {
                self.launch_order(attempt, live).map(|order| ToAgent::Launch(Box::new(order)))
            }
            JobState::Running if !live.acknowledged => Some(self.guards.stop_frame(attempt, false)),
            // The frame follows from the state alone: the job's share differs from its attempt's.
            JobState::Running if live.has_other_share() => {
                Some(ToAgent::Stop { epoch: self.guards.epoch, attempt, cause: StopCause::Reshare })
            }
            JobState::Running if live.requeue => {
                Some(ToAgent::Stop { epoch: self.guards.epoch, attempt, cause: StopCause::Preempt })
            }
            JobState::Running if self.migrations.is_migrating(attempt) => {
                let cause = self.migrations.requests.get(&attempt)?.cause;
                Some(ToAgent::Stop { epoch: self.guards.epoch, attempt, cause })
            }
            JobState::Stopping => Some(self.guards.stop_frame(attempt, live.acknowledged)),
            _ => None,
        }
    }

    fn launch_order(&self, attempt: AttemptId, live: &LiveAttempt) -> Option<LaunchOrder> {
        let launch_spec = live.launch_spec.as_ref()?;
        let spec = &launch_spec.spec;
        let gang = match live.gang {
            Some(member) => {
                Some(gang_position(self.attempts, self.inventory, member, live.number)?)
            }
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
            array: launch_spec.array,
            gang,
            name: spec.name.clone(),
            user: spec.user.clone(),
            run: with_site(spec, self.accounts),
            restart_reason: launch_spec.restart_reason,
            oom_count: launch_spec.own.events,
            traceparent: live.traceparent.clone(),
            share: match live.share.as_ref().map(|sharer| sharer.share) {
                Some(SliceShare::Mps(share)) => Some(share),
                Some(SliceShare::Kernel(_) | SliceShare::Compute(_)) | None => None,
            },
            kernel: match live.share.as_ref().map(|sharer| sharer.share) {
                Some(SliceShare::Kernel(share)) => Some(KernelQueueSpec {
                    memory: share.memory,
                    sm: spec.share.kernel().and_then(|terms| terms.sm),
                    exclusive: spec.share.kernel().is_some_and(|terms| terms.exclusive),
                    priority: spec.queue_rank.priority,
                    class: spec.class,
                    task_key: spec.task_key.clone(),
                }),
                Some(SliceShare::Mps(_) | SliceShare::Compute(_)) | None => None,
            },
        })
    }
}

/// Returns how a job is run, with what batch systems state of its account and its partition. Only jobs of Slurm's
/// commands know a partition.
fn with_site(spec: &JobSpec, accounts: &Accounts) -> RunSpec {
    let mut run = spec.run.clone();
    const ACCOUNT: &str = "SLURM_JOB_ACCOUNT";
    if let Some(account) = accounts.account_of(&spec.user) {
        run.env.insert(ACCOUNT.to_owned(), account.to_owned());
    } else if run.env.contains_key("SLURM_JOB_PARTITION") && !run.env.contains_key(ACCOUNT) {
        // Its usage is reported under the user's own name, and scripts expect some account.
        run.env.insert(ACCOUNT.to_owned(), spec.user.clone());
    }
    let named = run.env.get_mut("SLURM_JOB_PARTITION").zip(spec.partition.as_ref());
    if let Some((variable, partition)) = named {
        variable.clone_from(partition);
    }
    run
}

/// Returns the new time limits that nodes have not been notified of. They are not acknowledged, so
/// each one is sent again in the next session.
fn send_new_limits(
    attempts: &mut AttemptTable,
    inventory: &NodeInventory,
    epoch: u64,
) -> Vec<RoundEffect> {
    let due = attempts.live.iter_mut().filter(|(_, live)| {
        live.limit == TimeLimitNotice::Due
            && live.state == JobState::Running
            && live.acknowledged
            && inventory.is_ready(live.node)
    });
    let effects = due.map(|(attempt, live)| {
        live.limit = TimeLimitNotice::Sent;
        let frame = ToAgent::SetTimeLimit { epoch, attempt: *attempt, limit: live.facts.limit };
        RoundEffect::Send { node: live.node, frame: Box::new(frame) }
    });
    effects.collect()
}

/// Returns the order that sends a committed plan.
fn plan_order(attempts: &AttemptTable, epoch: u64, plan: LayoutPlanRow) -> RoundEffect {
    let traceparent =
        plan.attempt.and_then(|attempt| attempts.live.get(&attempt)?.traceparent.clone());
    let order = PlanOrder {
        epoch,
        plan: plan.plan,
        gpu: plan.gpu,
        layout_gen: plan.layout_gen,
        steps: plan.steps,
        traceparent,
    };
    RoundEffect::Send { node: plan.node, frame: Box::new(ToAgent::ApplyPlan(order)) }
}
