//! The end of attempts.

use crate::LaunchSpec;
use crate::commands::JobStateChange;
use crate::round::{Round, RoundEffect};
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions;
use crate::state::ClusterState;
use tessera_frames::cluster::ExitRecord;
use tessera_model::AttemptId;
use tessera_model::life::{JobEvent, JobState, Outcome, RetryRules, RetryVerdict};

pub(crate) fn verdict(sheet: Option<&LaunchSpec>, outcome: Outcome) -> RetryVerdict {
    // Without its sheet the attempt was never launched: its end can't be the job's fault.
    let Some(sheet) = sheet else { return RetryVerdict::Requeue { charged: false } };
    let rules: RetryRules = sheet.spec.retry;
    rules.verdict(outcome, sheet.charged, sheet.uncharged)
}

impl ClusterState {
    /// Ends a live attempt, and queues or ends its job.
    pub(crate) fn end_attempt(
        &mut self,
        attempt: AttemptId,
        record: ExitRecord,
        round: &mut Round,
    ) {
        if let Some(member) = self.attempts.live.get(&attempt).and_then(|live| live.gang) {
            return self.record_member_end(member, attempt, record, round);
        }
        let Some(live) = self.attempts.live.remove(&attempt) else { return };
        self.attempts.by_job.remove(&live.job);
        self.accounting.refund(&live, self.clock.round_at);
        let moves = self.migrations.ended(live.job, attempt, &record);
        let verdict = match moves {
            // As often as it takes: it was asked to.
            true => RetryVerdict::Requeue { charged: false },
            false => verdict(live.sheet.as_ref(), record.outcome),
        };
        let event = JobEvent::Ended { outcome: record.outcome, verdict };
        let to = live.state.on(event).expect("a live attempt's job can always end");
        let lasted = self.predictions.learn_end(&live, &record);
        let ran_out_of = self.learn_end_memory(attempt, &live, &record);
        let done = self.predictions.record_checkpoint(&live, lasted);
        if to.is_final() {
            self.predictions.checkpoints.remove(&live.job);
        }
        if to == JobState::Queued
            && let Some(sheet) = &live.sheet
        {
            let fresh = SubmittedJob::new(live.job, &sheet.spec, None, live.number);
            self.enqueue(SubmittedJob { done, ..fresh }, live.submitted);
        }
        let requeued = to == JobState::Queued;
        round.ended.push(transitions::EndedAttempt {
            job: live.job,
            attempt,
            from: live.state,
            to,
            charged: requeued && verdict == (RetryVerdict::Requeue { charged: true }),
            shared: live.share.is_some(),
            uncharged: !moves
                && matches!(verdict, RetryVerdict::Requeue { charged: false } | RetryVerdict::Hold),
            reason: record.outcome,
            gang: None,
            record,
            lasted,
            ran_out_of,
            foretold: live.foretold.and_then(|foretold| foretold.prediction),
            done,
        });
        round.effects.push(RoundEffect::Moved(JobStateChange {
            job: live.job,
            attempt: None,
            state: to,
        }));
    }
}
