//! The end of attempts.

use crate::LaunchSpec;
use crate::arrivals::enqueue;
use crate::attempt_changes::AttemptChanges;
use crate::commands::JobStateChange;
use crate::memory_requests::learn_end_memory;
use crate::predictions::AttemptRunTimes;
use crate::round::RoundEffect;
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions::{EndedAttempt, record_without_exit};
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

/// How a live attempt ends, and what follows for its job.
pub(crate) struct AttemptEnd {
    /// The job's new state.
    pub(crate) to: JobState,
    pub(crate) verdict: RetryVerdict,
    /// Whether it ended for its migration.
    pub(crate) is_migrated: bool,
    pub(crate) reason: Outcome,
    pub(crate) record: ExitRecord,
    pub(crate) run_times: AttemptRunTimes,
    pub(crate) ran_out_of: Option<Bytes>,
    /// How much of the job is done, in millionths.
    pub(crate) done: u32,
}

impl AttemptChanges<'_> {
    /// Ends a live attempt, and queues or ends its job.
    pub(crate) fn end_attempt(&mut self, attempt: AttemptId, record: ExitRecord) {
        if let Some(member) = self.attempts.live.get(&attempt).and_then(|live| live.gang) {
            return self.record_member_end(member, attempt, record);
        }
        let Some(live) = self.attempts.remove(attempt) else { return };
        self.accounting.refund(&live, self.round_at);
        let is_migrated = self.migrations.record_end(live.job, attempt, &record);
        let verdict = match is_migrated {
            // However often: the end was requested.
            true => RetryVerdict::Requeue { charged: false },
            false => retry_verdict(live.launch_spec.as_ref(), record.outcome),
        };
        let event = JobEvent::Ended { outcome: record.outcome, verdict };
        let to = live.state.on(event).expect("a live attempt's job can always end");
        let run_times = self.predictions.learn_end(&live, &record);
        let ran_out_of = self.learn_end_memory(attempt, &live, &record);
        let done = self.predictions.record_checkpoint(&live, run_times);
        if to.is_final() {
            self.predictions.checkpoints.remove(&live.job);
        }
        if let (JobState::Queued, Some(launch_spec)) = (to, &live.launch_spec) {
            let job = SubmittedJob::new(live.job, &launch_spec.spec, None, live.number);
            self.enqueue(SubmittedJob { done, ..job }, live.submitted);
        }
        let reason = record.outcome;
        let end =
            AttemptEnd { to, verdict, is_migrated, reason, record, run_times, ran_out_of, done };
        self.record_end(attempt, live, end);
    }

    /// Ends an attempt whose program left no record.
    pub(crate) fn end_without_exit(&mut self, attempt: AttemptId, outcome: Outcome, detail: &str) {
        self.end_attempt(attempt, record_without_exit(outcome, detail.to_owned()));
    }

    /// Learns from the end of an attempt how much memory its task needs. Returns the memory of its
    /// slice if it ran out of that.
    pub(crate) fn learn_end_memory(
        &mut self,
        attempt: AttemptId,
        live: &LiveAttempt,
        record: &ExitRecord,
    ) -> Option<Bytes> {
        learn_end_memory(self.predictions, self.queue, self.inventory, attempt, live, record)
    }

    /// Adds a submitted job to the queue, unless it is there already.
    pub(crate) fn enqueue(&mut self, job: SubmittedJob, submitted: Millis) {
        enqueue(self.queue, self.attempts, self.predictions, self.inventory, job, submitted);
    }

    /// Adds an end to the round, and announces the job's new state.
    pub(crate) fn record_end(&mut self, attempt: AttemptId, live: LiveAttempt, end: AttemptEnd) {
        let AttemptEnd { to, verdict, is_migrated, reason, record, run_times, ran_out_of, done } =
            end;
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
            uncharged: is_uncharged && !is_migrated,
            reason,
            gang: live.gang.map(|member| member.gang),
            record,
            run_times,
            ran_out_of,
            run_prediction: live.run_prediction.and_then(|predicted| predicted.prediction),
            done,
        });
        let change = JobStateChange { job: live.job, attempt: None, state: to };
        self.effects.push(RoundEffect::Moved(change));
    }
}
