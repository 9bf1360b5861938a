//! Running jobs that are sent back to the queue in favour of jobs of a higher class.

use tessera_model::{AttemptId, DecisionId, JobId, Millis};
use tessera_placement::{Explanation, JobPlacement};

/// A change of the record of a pre-emption.
#[derive(Clone, Debug)]
pub enum PreemptionRow {
    /// An attempt is requested to end.
    Requested(Box<RequestedPreemption>),
    /// The attempt ended.
    Ended {
        /// The attempt that was requested to end.
        attempt: AttemptId,
        /// How the pre-emption ended.
        outcome: PreemptionOutcome,
        /// The time before its end that no account is charged for.
        uncharged: Millis,
    },
    /// A job that was sent back runs again.
    Resumed {
        /// Its new attempt.
        attempt: AttemptId,
        /// The time since its reservation, which no account is charged for.
        uncharged: Millis,
    },
}

/// A request to an attempt to end.
#[derive(Clone, Debug)]
pub struct RequestedPreemption {
    /// The job that is sent back.
    pub job: JobId,
    /// The attempt that is requested to end.
    pub attempt: AttemptId,
    /// The job that gets the place.
    pub by: JobId,
    /// Whether its work is kept in a checkpoint.
    pub saves: bool,
    /// The place that is kept for the other job.
    pub place: JobPlacement,
    /// The decision about the job that is sent back.
    pub decision: DecisionId,
    /// The explanation for its user.
    pub why: Explanation,
}

/// How a pre-emption ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptionOutcome {
    /// The job went back to the queue.
    SentBack,
    /// The job ended in another way before.
    Ended,
}

impl PreemptionOutcome {
    /// Every value.
    pub const ALL: [Self; 2] = [Self::SentBack, Self::Ended];

    /// Returns the word for the store and for metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SentBack => "sent_back",
            Self::Ended => "ended",
        }
    }
}

/// A stored pre-emption whose attempt has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPreemption {
    /// The attempt that was requested to end.
    pub attempt: AttemptId,
    /// The job that gets the place.
    pub by: JobId,
    /// Whether the attempt's work is kept in a checkpoint.
    pub saves: bool,
    /// The place that is kept for the other job.
    pub place: JobPlacement,
    /// How long ago it was requested.
    pub ago: Millis,
}

/// An unfinished job that was sent back before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentBackJob {
    /// The job, which waits or runs again.
    pub job: JobId,
    /// How often it was sent back.
    pub times: u32,
    /// The job that got its place last.
    pub by: JobId,
    /// How long ago that was, if it does not run again yet.
    pub waits_since: Option<Millis>,
}
