//! The end of attempts.

use crate::LaunchSpec;
use crate::arrivals::enqueue;
use crate::attempt_changes::AttemptChanges;
use crate::commands::JobStateChange;
use crate::memory_requests::learn_end_memory;
use crate::out_of_memory::{add_reason, after_out_of_memory, own_after};
use crate::predictions::AttemptRunTimes;
use crate::round::RoundEffect;
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions::{EndedAttempt, OutOfMemoryRow, record_without_exit};
use crate::state::attempts::LiveAttempt;
use tessera_frames::cluster::ExitRecord;
use tessera_model::life::{JobEvent, JobState, Outcome, RetryRules, RetryVerdict};
use tessera_model::{AttemptId, Bytes, Millis};

pub(crate) fn retry_verdict(launch_spec: Option<&LaunchSpec>, outcome: Outcome) -> RetryVerdict {
    // Without a launch specification the attempt was never launched: its end can't be the job's fault.
    let Some(launch_spec) = launch_spec else { return RetryVerdict::Requeue { charged: false } };
    let rules: RetryRules = launch_spec.spec.retry;
    rules.verdict(outcome, launch_spec.charged, launch_spec.uncharged)
}

/// The end of a live attempt, with the new state of its job.
pub(crate) struct AttemptEnd {
    /// The job's new state.
    pub(crate) to: JobState,
    pub(crate) verdict: RetryVerdict,
    /// Whether it ended for a migration or a requeue.
    pub(crate) is_requested: bool,
    pub(crate) reason: Outcome,
    pub(crate) record: ExitRecord,
    pub(crate) run_times: AttemptRunTimes,
    pub(crate) ran_out_of: Option<Bytes>,
    pub(crate) out_of_memory: Option<OutOfMemoryRow>,
    /// How much of the job is done, in millionths.
    pub(crate) done: u32,
}

impl AttemptChanges<'_> {
    /// Ends a live attempt, and queues or ends its job.
    pub(crate) fn end_attempt(&mut self, attempt: AttemptId, mut record: ExitRecord) {
        if let Some(member) = self.attempts.live.get(&attempt).and_then(|live| live.gang) {
            return self.record_member_end(member, attempt, record);
        }
        let Some(live) = self.attempts.remove(attempt) else { return };
        self.accounting.refund(&live, self.round_at);
        let requested = self.migrations.requests.get(&attempt).map(|request| request.since);
        let is_migrated = self.migrations.record_end(live.job, attempt, &record);
        if let Some(since) = requested.filter(|_| is_migrated) {
            self.predictions.learn_checkpoint(&live.facts, self.round_at.minus(since));
        }
        let ran_out = record.out_of_gpu_memory().and(live.launch_spec.as_ref());
        let ran_out = ran_out.map(|launch_spec| {
            let sizes = (live.gpu_memory, live.refused);
            after_out_of_memory(self.inventory, launch_spec, sizes, self.unix)
        });
        // A program that failed before it was stopped still runs again; one that succeeded doesn't.
        let is_requeued = live.requeue && record.outcome != Outcome::Succeeded;
        let is_requested = is_migrated || (is_requeued && live.state != JobState::Stopping);
        let verdict = match (is_requested, &ran_out) {
            // The number of attempts doesn't matter, since the end was requested.
            (true, _) => RetryVerdict::Requeue { charged: false },
            (false, Some(after)) => after.verdict,
            (false, None) => retry_verdict(live.launch_spec.as_ref(), record.outcome),
        };
        let event = JobEvent::Ended { outcome: record.outcome, verdict };
        let to = live.state.on(event).expect("a live attempt's job can always end");
        self.end_preemption(attempt, &live, &mut record, to);
        let run_times = self.predictions.learn_end(&live, &record);
        let ran_out_of = self.learn_end_memory(attempt, &live, &record);
        let done = self.predictions.record_checkpoint(&live, run_times);
        let out_of_memory = ran_out.map(|after| OutOfMemoryRow { at_least: after.at_least });
        if to.is_final() {
            self.predictions.checkpoints.remove(&live.job);
        }
        if let (JobState::Queued, Some(launch_spec)) = (to, &live.launch_spec) {
            let job = SubmittedJob::new(live.job, &launch_spec.spec, None, live.number);
            let own = own_after(launch_spec.own, out_of_memory);
            let array = launch_spec.array.map(|place| place.array);
            let job = SubmittedJob { done, own, array, ..job }.after(Some(record.outcome));
            self.enqueue(job, live.submitted);
        }
        if let Some(after) = &ran_out {
            add_reason(&mut record.detail, after);
        }
        let reason = record.outcome;
        let end = AttemptEnd {
            to,
            verdict,
            is_requested,
            reason,
            record,
            run_times,
            ran_out_of,
            out_of_memory,
            done,
        };
        self.record_end(attempt, live, end);
    }

    /// Ends an attempt whose program left no record.
    pub(crate) fn end_without_exit(&mut self, attempt: AttemptId, outcome: Outcome, detail: &str) {
        self.end_attempt(attempt, record_without_exit(outcome, detail.to_owned()));
    }

    /// Learns from the end of an attempt how much memory its task needs. Returns the memory of its
    /// slice if that was too little.
    pub(crate) fn learn_end_memory(
        &mut self,
        attempt: AttemptId,
        live: &LiveAttempt,
        record: &ExitRecord,
    ) -> Option<Bytes> {
        let watched = self.watches.live.get(&attempt);
        let is_preallocated = watched.is_some_and(|known| known.watch.is_preallocated());
        let of = (attempt, live, is_preallocated);
        learn_end_memory(self.predictions, self.queue, self.inventory, of, record)
    }

    /// Adds a submitted job to the queue, unless it is there already.
    pub(crate) fn enqueue(&mut self, job: SubmittedJob, submitted: Millis) {
        enqueue(self.queue, self.attempts, self.predictions, self.inventory, job, submitted);
    }

    /// Adds an end to the round, and announces the job's new state.
    pub(crate) fn record_end(&mut self, attempt: AttemptId, live: LiveAttempt, end: AttemptEnd) {
        let AttemptEnd { to, verdict, is_requested, reason, record, run_times, .. } = end;
        let AttemptEnd { ran_out_of, out_of_memory, done, .. } = end;
        self.end_watch(attempt, &live, &record, to);
        let is_charged = verdict == (RetryVerdict::Requeue { charged: true });
        let is_uncharged =
            matches!(verdict, RetryVerdict::Requeue { charged: false } | RetryVerdict::Hold);
        self.jobs.ended.push(EndedAttempt {
            job: live.job,
            attempt,
            from: live.state,
            to,
            charged: to == JobState::Queued && is_charged,
            shared: live.gang.is_none() && live.share.is_some(),
            uncharged: is_uncharged && !is_requested,
            reason,
            gang: live.gang.map(|member| member.gang),
            record,
            run_times,
            ran_out_of,
            out_of_memory,
            deadline: live.facts.deadline,
            run_prediction: live.run_prediction.and_then(|predicted| predicted.prediction),
            done,
        });
        let change = JobStateChange { job: live.job, attempt: None, state: to };
        self.effects.push(RoundEffect::Moved(change));
    }
}
