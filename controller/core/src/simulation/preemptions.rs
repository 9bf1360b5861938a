//! The rows of pre-emptions, with the class rules as the store's invariants.

use tessera_model::Millis;
use tessera_model::life::{JobState, OnLost};
use tessera_model::spec::Class;

use super::leader::PREEMPTION;
use super::store::{Refused, Store, check};
use crate::rows::preemptions::{
    OpenPreemption, PreemptionOutcome, PreemptionRow, RequestedPreemption, SentBackJob,
};

impl Store {
    /// Keeps a request to a job to leave, if the class rules allow it.
    pub(super) fn preempt(&mut self, request: &RequestedPreemption) -> Result<(), Refused> {
        let RequestedPreemption { job, attempt, by, saves, ref place, .. } = *request;
        let row = self.jobs.get(&job).filter(|row| row.attempt == Some(attempt));
        let row = row.ok_or_else(|| format!("{job:?} has another attempt"))?;
        check(row.state == JobState::Running, || format!("{job:?} doesn't run"))?;
        assert_eq!(row.spec.class, Class::Offline, "{job:?} is of the highest class");
        assert_eq!(row.spec.retry.on_lost, OnLost::Requeue, "{job:?} must not be requeued");
        let is_saved = row.spec.run.checkpoint_signal.is_some() && row.gang.is_none();
        assert_eq!(saves, is_saved, "{job:?} is lost or saved by mistake");
        assert_eq!(self.jobs[&by].spec.class, Class::Online, "{by:?} is of the lowest class");
        let times = self.sent_back.get(&job).map_or(0, |sent_back| sent_back.times);
        assert!(times < PREEMPTION.most_per_job, "{job:?} was sent back {times} times");
        let place = place.clone();
        let open = OpenPreemption { attempt, by, saves, place, ago: Millis::ZERO };
        check(self.preemptions.insert(attempt, open).is_none(), || {
            format!("{attempt} leaves twice")
        })
    }

    /// Keeps the end of a pre-emption. It costs the job nothing.
    pub(super) fn close_preemption(&mut self, row: &PreemptionRow) -> Result<(), Refused> {
        match row {
            // Its own attempt may have ended in this round.
            PreemptionRow::Requested(request) => {
                let state = self.jobs[&request.by].state;
                check(state == JobState::Queued, || format!("{:?} is {state}", request.by))
            }
            PreemptionRow::Ended { attempt, outcome, .. } => {
                let open = self.preemptions.remove(attempt);
                let open = open.ok_or_else(|| format!("{attempt} was not requested to leave"))?;
                let job = self.attempts[attempt].row.job;
                if *outcome == PreemptionOutcome::SentBack {
                    assert_eq!(self.jobs[&job].state, JobState::Queued, "{job:?} was sent back");
                    let times = self.sent_back.get(&job).map_or(0, |sent_back| sent_back.times) + 1;
                    let waits_since = Some(Millis::ZERO);
                    let entry = SentBackJob { job, times, by: open.by, waits_since };
                    self.sent_back.insert(job, entry);
                }
                Ok(())
            }
            PreemptionRow::Resumed { attempt, .. } => {
                let job = self.attempts[attempt].row.job;
                let entry =
                    self.sent_back.get_mut(&job).filter(|entry| entry.waits_since.is_some());
                entry.ok_or_else(|| format!("{job:?} was not sent back"))?.waits_since = None;
                Ok(())
            }
        }
    }
}
