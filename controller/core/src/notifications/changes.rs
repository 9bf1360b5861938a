//! The state changes of a round, in the order in which it commits them.

use tessera_model::life::{JobState, Outcome, ProgramExit};
use tessera_model::{AttemptId, JobId, Millis};

use crate::round::Round;
use crate::rows::transitions::{EndedAttempt, WaitingJobChange};

/// A job's new state and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedJob {
    /// The job whose state changed.
    pub job: JobId,
    /// The attempt that changed with it, if there is one.
    pub attempt: Option<AttemptId>,
    /// The job's state now.
    pub state: JobState,
    /// The cause of the new state.
    pub cause: ChangeCause,
}

/// The cause of a job's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeCause {
    /// It was submitted.
    Submitted,
    /// It has a placement, or its slice now exists.
    Placed,
    /// Its program runs.
    Started {
        /// When it started, in milliseconds since 1970.
        at: Millis,
    },
    /// Its attempt ended.
    Ended {
        /// How the attempt ended.
        outcome: Outcome,
        /// How its program ended, if it ran.
        exit: Option<ProgramExit>,
        /// The reason as text; may be empty.
        detail: String,
    },
    /// Its user changed it, or the cluster cancelled it.
    Commanded,
    /// Its dependency can never be met. Its state doesn't change.
    NeverStarts,
}

/// The reason of jobs whose dependency can never be met.
const NEVER: &str = "dependency_never_satisfied";

impl ChangedJob {
    /// Returns whether the job's state changed.
    pub fn is_transition(&self) -> bool {
        self.cause != ChangeCause::NeverStarts
    }

    const fn new(job: JobId, state: JobState, cause: ChangeCause) -> Self {
        Self { job, attempt: None, state, cause }
    }

    /// Returns the change of a job that was just submitted.
    pub const fn submitted(job: JobId, state: JobState) -> Self {
        Self::new(job, state, ChangeCause::Submitted)
    }

    fn ended(ended: &EndedAttempt) -> Self {
        let cause = ChangeCause::Ended {
            outcome: ended.record.outcome,
            exit: ended.record.exit,
            detail: ended.record.detail.clone(),
        };
        Self { attempt: Some(ended.attempt), ..Self::new(ended.job, ended.to, cause) }
    }
}

impl Round {
    /// Returns the state changes of a round. `moved` has the states of the commands' jobs after the commit; `None`
    /// where a job did not take its command.
    pub fn changed_jobs(&self, moved: &[Option<JobState>]) -> Vec<ChangedJob> {
        let jobs = &self.jobs;
        let with = |job, attempt, state, cause| ChangedJob {
            attempt: Some(attempt),
            ..ChangedJob::new(job, state, cause)
        };
        let ready = jobs
            .ready
            .iter()
            .map(|r| with(r.job, r.attempt, JobState::Starting, ChangeCause::Placed));
        let started = jobs.started.iter().map(|s| {
            let cause = ChangeCause::Started { at: s.started_unix };
            with(s.job, s.attempt, JobState::Running, cause)
        });
        let stopping = jobs
            .stopping
            .iter()
            .map(|s| with(s.job, s.attempt, JobState::Stopping, ChangeCause::Commanded));
        let ended = jobs.ended.iter().map(ChangedJob::ended);
        let placed = jobs.reservations.iter().map(|r| {
            let state = if r.slice.is_some() { JobState::Starting } else { JobState::Placing };
            with(r.job, r.attempt, state, ChangeCause::Placed)
        });
        let never = jobs
            .waits
            .iter()
            .filter(|wait| wait.reason == NEVER)
            .map(|wait| ChangedJob::new(wait.job, JobState::Queued, ChangeCause::NeverStarts));
        let mut changes: Vec<_> = ready.chain(started).chain(stopping).chain(ended).collect();
        changes.extend(self.commanded(moved));
        changes.extend(placed.chain(never));
        changes
    }

    fn commanded(&self, moved: &[Option<JobState>]) -> Vec<ChangedJob> {
        let taken = self.jobs.commands.iter().zip(moved);
        let change = |command: &crate::rows::transitions::WaitingJobCommand, state| {
            let change = ChangedJob::new(command.job, state, ChangeCause::Commanded);
            let gives_up = command.change == WaitingJobChange::GiveUp;
            let never =
                gives_up.then(|| ChangedJob::new(command.job, state, ChangeCause::NeverStarts));
            never.into_iter().chain([change])
        };
        taken
            .filter(|(command, _)| command.change.to().is_some())
            .filter_map(|(command, moved)| Some(change(command, (*moved)?)))
            .flatten()
            .collect()
    }
}
