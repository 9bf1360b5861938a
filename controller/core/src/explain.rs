//! Explain queries about waiting jobs. They are answered outside of rounds, since an answer runs
//! the policy many times and takes longer than a round may.

use crate::answers::WaitingExplanation;
use crate::counterfactual::StartQuestion;
use crate::forecast::ClusterForecast;
use crate::gate::{Gate, explain_gate};
use crate::memory_requests::with_memory_estimate;
use crate::predicting::predict_waiting;
use crate::state::ClusterState;
use crate::state::queue::WaitingJob;
use crate::state::watches::MemoryWatches;
use std::collections::{BTreeMap, HashMap};
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{JobId, Millis};
use tessera_placement::{
    Decision, Explanation, QueueKey, QueuedJob, WaitReason, decide_round, fair, name_job_ahead,
};

use crate::state::inventory::NodeInventory;
use crate::state::layouts::LayoutRequests;
use crate::state::queue::{JobQueue, QueuePosition};

/// An explain query: a copy of the part of the cluster state that the answer needs.
#[derive(Debug)]
pub struct ExplainQuery {
    line: QueuePosition,
    cluster: ClusterState,
}

pub(crate) fn wait_of(decision: &Decision, job: JobId) -> Option<(WaitReason, Explanation)> {
    match decision {
        Decision::Wait { job: of, reason, why } if *of == job => Some((*reason, why.clone())),
        Decision::Wait { .. }
        | Decision::Start { .. }
        | Decision::Reshape { .. }
        | Decision::Preempt { .. } => None,
    }
}

/// Returns whether a decision places a job.
pub(crate) fn places_job(decision: &Decision, job: JobId) -> bool {
    match decision {
        Decision::Start { job: of, .. } => *of == job,
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().any(|placed| placed.job == job)
        }
        Decision::Preempt { preemption, .. } => preemption.job == job,
        Decision::Wait { .. } => false,
    }
}

fn why_of(decision: &Decision) -> Explanation {
    match decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. }
        | Decision::Preempt { why, .. } => why.clone(),
    }
}

pub(crate) fn explain_start_soon(why: Explanation) -> Explanation {
    let summary = format!(
        "a placement is free for it, and it starts in one of the next rounds ({})",
        why.summary
    );
    Explanation { summary, ..why }
}

pub(crate) fn jobs_ahead_text(jobs: u64) -> String {
    match jobs {
        1 => "1 job is ahead of it".to_owned(),
        jobs => format!("{jobs} jobs are ahead of it"),
    }
}

/// Explains the wait of a job that is not first in the queue and for which nothing is free.
fn explain_no_capacity(alone: Explanation, line: &QueuePosition, first: JobId) -> Explanation {
    let many = jobs_ahead_text(line.jobs_ahead);
    let summary = format!("{}; and {many}, of which job {first} is the first", alone.summary);
    let condition = alone
        .would_start_if
        .map_or_else(String::new, |condition| format!(", and then {condition}"));
    let would_start_if = Some(format!("job {first} starts or leaves the queue{condition}"));
    Explanation { summary, would_start_if, ..alone }
}

/// Explains the wait of a job that could start alone, but not after the jobs ahead of it.
pub(crate) fn explain_behind(
    policy: &str,
    line: &QueuePosition,
    first: Option<JobId>,
) -> Explanation {
    let many = jobs_ahead_text(line.jobs_ahead);
    let (who, until) = match first {
        Some(first) => (
            format!(", of which job {first} is the first"),
            format!("job {first} starts or leaves the queue, and capacity is left"),
        ),
        None => (String::new(), "the jobs ahead of it are placed, and capacity is left".to_owned()),
    };
    Explanation {
        policy: policy.to_owned(),
        summary: format!("alone it could start now, but {many}{who}"),
        would_start_if: Some(until),
        ..Explanation::default()
    }
}

impl ExplainQuery {
    /// Returns why the job waits, computed as if it were the next one.
    ///
    /// `now` is the time of the rounds. Returns `None` only for a job that did not wait when the
    /// query was made.
    pub fn answer(&self, now: Millis) -> Option<WaitingExplanation> {
        self.cluster.explain_position(&self.line, now)
    }
}

impl ClusterState {
    /// Copies the state that is needed to explain why a job waits; `None` if it doesn't wait.
    pub fn explain_query(&self, job: JobId) -> Option<ExplainQuery> {
        let line = self.queue_position(job)?;
        let cluster = self.excerpt(self.queue_excerpt(&line));
        Some(ExplainQuery { line, cluster })
    }

    /// Returns a waiting job's position in the policy's service order.
    pub(crate) fn queue_position(&self, job: JobId) -> Option<QueuePosition> {
        Some(self.position_of(&self.queue.queued(job)?.job))
    }

    /// Returns the position that a job has in the policy's service order, or would have.
    pub(crate) fn position_of(&self, own: &QueuedJob) -> QueuePosition {
        let (job, key) = (own.id, own.key());
        let gang = own.gang.map(|member| member.gang);
        let apart = |other: &QueuedJob| match gang {
            Some(gang) => other.gang.is_none_or(|member| member.gang != gang),
            None => other.id != job,
        };
        if !self.is_fair_share_on() {
            let before = self.queue.waiting.range(..key).map(|(_, waiting)| &waiting.job);
            let before: Vec<JobId> = before.filter(|other| apart(other)).map(|a| a.id).collect();
            return QueuePosition::of(job, &before);
        }
        let mut candidates = self.list_candidates(crate::placing::LOOK_AT_MAX, &BTreeMap::new());
        if candidates.iter().all(|other| other.id != job) {
            candidates.push(own);
        }
        let forecast = ClusterForecast::new(self, self.clock.round_at);
        let order = fair::order_queue(
            self.planner.policy.shares_fairly(),
            &mut candidates.into_iter(),
            &forecast,
        );
        let before = order.into_iter().take_while(|other| apart(other)).map(|other| other.id);
        QueuePosition::of(job, &before.collect::<Vec<_>>())
    }

    /// Returns why a job waits; `None` if it doesn't wait.
    pub fn explain_waiting(&self, job: JobId, now: Millis) -> Option<WaitingExplanation> {
        self.explain_query(job)?.answer(now)
    }

    /// Returns the part of the queue that an answer needs: the first jobs ahead, and the job's
    /// gang.
    pub(crate) fn queue_excerpt(&self, line: &QueuePosition) -> BTreeMap<QueueKey, WaitingJob> {
        let mut seen = line.ahead.clone();
        seen.push(line.job);
        seen.extend(self.queue.gang_of(line.job).into_iter().flat_map(|member| member.all()));
        let one = |id: JobId| {
            let waiting = self.queue.queued(id)?;
            Some((waiting.job.key(), waiting.clone()))
        };
        seen.into_iter().filter_map(one).collect()
    }

    /// Copies the state with a part of the queue, and without what only rounds need.
    pub(crate) fn excerpt(&self, queue: BTreeMap<QueueKey, WaitingJob>) -> Self {
        let ranks: HashMap<JobId, QueueRank> =
            queue.keys().map(|(rank, job)| (*job, *rank)).collect();
        let mut queue = JobQueue {
            dependencies: self.queue.dependencies.excerpt(ranks.keys().copied()),
            waiting: queue,
            ranks,
            ..JobQueue::default()
        };
        queue.find_runs();
        Self {
            guards: self.guards,
            inventory: NodeInventory {
                nodes: self.inventory.nodes.clone(),
                gpus: self.inventory.gpus.clone(),
                mig_views: self.inventory.mig_views.clone(),
                duplicates: BTreeMap::new(),
                largest_slice: self.inventory.largest_slice,
                known_sizes: self.inventory.known_sizes,
            },
            queue,
            attempts: self.attempts.excerpt(),
            layouts: LayoutRequests {
                unsent_plans: Vec::new(),
                pending: self.layouts.pending.clone(),
                mig_modes: Vec::new(),
            },
            migrations: self.migrations.clone(),
            accounting: self.accounting.clone(),
            predictions: self.predictions.excerpt(),
            watches: MemoryWatches::default(),
            overrides: self.overrides.clone(),
            planner: self.planner.excerpt(),
            clock: self.clock,
        }
    }

    /// Returns why a job waits, from the copied state.
    pub(crate) fn explain_position(
        &self,
        line: &QueuePosition,
        now: Millis,
    ) -> Option<WaitingExplanation> {
        let mut explained = self.explain_wait(line, now)?;
        let lacks = WaitReason::LACKS_SLICES.iter().any(|reason| reason.word() == explained.reason);
        explained.why.summary.push_str(&self.preemption_note(line.job, lacks, now));
        Some(explained)
    }

    fn explain_wait(&self, line: &QueuePosition, now: Millis) -> Option<WaitingExplanation> {
        let waiting = self.queue.queued(line.job)?;
        let requested = match &waiting.job.gpu {
            GpuRequest::Memory(bytes) => Some(*bytes),
            GpuRequest::Unknown
            | GpuRequest::Profile(_)
            | GpuRequest::Whole
            | GpuRequest::Unpartitioned
            | GpuRequest::Compute(_) => None,
        };
        let brief = |reason: WaitReason, why: Explanation| WaitingExplanation {
            jobs_ahead: line.jobs_ahead,
            reason: reason.word(),
            why,
            prediction: None,
            memory: waiting.memory.and_then(|request| request.learned()),
            size: (waiting.size_source(), requested),
            alternatives: Vec::new(),
            expected_start: None,
            deadline: None,
        };
        if now < self.guards.hold_until {
            return Some(brief(WaitReason::PlacementHeld, self.explain_hold(now)));
        }
        let mut gate = Gate::new(&self.attempts, &self.queue.dependencies, &self.clock, now);
        if let Some(reason) = gate.bars(waiting) {
            return Some(brief(reason, explain_gate(self.planner.policy.name(), waiting, reason)));
        }
        let prediction = predict_waiting(&self.predictions, &self.inventory, waiting);
        if let Some(why) = self.explain_kept_placement(line.job, now) {
            let known = brief(WaitReason::AwaitingRepartition, why);
            return Some(WaitingExplanation { prediction, ..known });
        }
        let question = StartQuestion::new(self, line, &waiting.job, now);
        let (reason, why) = self.find_reason(line, &waiting.job, &question, now);
        let why = with_memory_estimate(&self.queue, line.job, why);
        let start = question.find_start();
        Some(WaitingExplanation {
            prediction,
            alternatives: question.find_alternatives(),
            expected_start: Some(self.expected_start(&start)),
            deadline: self.forecast_deadline(waiting, &start, now),
            ..brief(reason, why)
        })
    }

    /// Runs the policy like a round, with the job behind those ahead of it. If the policy makes no
    /// decision about the job, it is run for the job alone.
    fn find_reason(
        &self,
        line: &QueuePosition,
        job: &QueuedJob,
        question: &StartQuestion<'_>,
        now: Millis,
    ) -> (WaitReason, Explanation) {
        let view = &question.view;
        let own = self.queue.with_gang(job);
        let decide = |queue: &mut dyn Iterator<Item = &QueuedJob>| {
            question.forecast.begin_round();
            let knowledge = question.forecast.knowledge();
            decide_round(self.planner.policy.as_ref(), view, knowledge, queue, now, usize::MAX)
        };
        let inline = decide(&mut self.queue.ahead(line).chain(&own));
        if let Some((reason, mut why)) = inline.iter().find_map(|d| wait_of(d, job.id)) {
            let same = |ahead: &&QueuedJob| ahead.gpu == job.gpu && ahead.share == job.share;
            let waits = |ahead: &&QueuedJob| inline.iter().any(|d| wait_of(d, ahead.id).is_some());
            if let Some(first) = self.queue.ahead(line).filter(same).find(waits) {
                name_job_ahead(&mut why, first.id);
            }
            why.summary.push_str(&self.blocking_sharers(job, reason, view, now));
            return (reason, why);
        }
        let preempts = |decision: &&Decision| matches!(decision, Decision::Preempt { preemption, .. } if preemption.job == job.id);
        if let Some(decision) = inline.iter().find(preempts) {
            return (WaitReason::AwaitingRepartition, why_of(decision));
        }
        let starts = |decision: &Decision| places_job(decision, job.id);
        if let Some(why) = inline.iter().find(|d| starts(d)).map(why_of) {
            return (WaitReason::Priority, explain_start_soon(why));
        }
        let alone = decide(&mut own.iter());
        let waits_for_capacity = |decision: &Decision, job: JobId| {
            wait_of(decision, job).is_some_and(|(reason, _)| reason.goes_by_itself())
        };
        let mut ahead = line.ahead.iter().copied();
        let first = ahead.find(|job| inline.iter().any(|d| waits_for_capacity(d, *job)));
        match (alone.iter().find_map(|d| wait_of(d, job.id)), first) {
            (Some((reason, mut why)), Some(first)) if reason.goes_by_itself() => {
                why.summary.push_str(&self.blocking_sharers(job, reason, view, now));
                (WaitReason::Priority, explain_no_capacity(why, line, first))
            }
            (Some((reason, mut why)), _) => {
                why.summary.push_str(&self.blocking_sharers(job, reason, view, now));
                (reason, why)
            }
            (None, first) => {
                (WaitReason::Priority, explain_behind(self.planner.policy.name(), line, first))
            }
        }
    }
}

#[cfg(test)]
mod tests;
