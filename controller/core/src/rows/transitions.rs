//! State changes of jobs and attempts that a round decides.

use tessera_frames::cluster::ExitRecord;
use tessera_model::life::{JobState, Outcome};
use tessera_model::share::SmPercent;
use tessera_model::sizing::SizeSource;
use tessera_model::spec::JobUpdate;
use tessera_model::{AttemptId, Bytes, DecisionId, JobId, Millis, NodeId, SliceId};
use tessera_placement::{Explanation, JobPlacement, Prediction, SharingRequest};
use tessera_predict::memory::MemoryEstimate;

use crate::colocation::ColocationPrediction;
use crate::predictions::{AttemptPrediction, AttemptRunTimes};

/// A placement that is reserved for a job.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The job; it must be queued.
    pub job: JobId,
    /// The gang that is placed with it, if it is in one.
    pub gang: Option<JobId>,
    /// Its new attempt.
    pub attempt: AttemptId,
    /// The attempt's number.
    pub number: u32,
    /// The node on which the job will run.
    pub node: NodeId,
    /// The node's generation, for which the launch is valid.
    pub generation: u64,
    /// The placement.
    pub place: JobPlacement,
    /// The GPU's index on its node.
    pub gpu_index: u32,
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// The memory slices that the attempt holds.
    pub slots: Vec<u8>,
    /// Its share of the instance; `None` if it has the instance to itself.
    pub share: Option<SharingRequest>,
    /// Memory of the instance, which limits the sum over its sharing jobs.
    pub capacity: Bytes,
    /// The slice, if it exists; otherwise the layout has to be changed first.
    pub slice: Option<SliceId>,
    /// The decision that placed the job.
    pub decision: DecisionId,
    /// The explanation.
    pub why: Explanation,
    /// The prediction of its run time; `None` if it shares its slice.
    pub run_prediction: Option<AttemptPrediction>,
    /// The prediction of its speed with co-runners under MPS.
    pub colocation: Option<ColocationPrediction>,
    /// Its memory estimate, if its job's request comes from earlier runs of its task.
    pub memory: Option<MemoryEstimate>,
    /// The GPU memory that the attempt may use.
    pub gpu_memory: Bytes,
    /// The source of its job's size.
    pub size_source: SizeSource,
    /// The words of the reasons for which its job waited, as far as this leader knows them.
    pub waited_for: Vec<&'static str>,
}

/// An attempt whose slice exists now.
#[derive(Clone, Debug)]
pub struct ReadyAttempt {
    /// The job; it must be placing.
    pub job: JobId,
    /// The attempt whose slice exists now.
    pub attempt: AttemptId,
    /// The existing slice.
    pub slice: SliceId,
}

/// An attempt whose program runs.
#[derive(Clone, Copy, Debug)]
pub struct StartedAttempt {
    /// The job; it must be starting.
    pub job: JobId,
    /// The attempt whose program runs now.
    pub attempt: AttemptId,
    /// When it started, in milliseconds since 1970 on the node's clock.
    pub started_unix: Millis,
    /// How long its migration took since the request to checkpoint, if it was migrated.
    pub moved: Option<Millis>,
}

/// A live attempt that is being stopped.
#[derive(Clone, Copy, Debug)]
pub struct StoppingAttempt {
    /// The job that is stopping.
    pub job: JobId,
    /// The attempt that is stopped.
    pub attempt: AttemptId,
}

/// An attempt that ended.
#[derive(Clone, Debug)]
pub struct EndedAttempt {
    /// The job; its live attempt must be this one.
    pub job: JobId,
    /// The attempt that ended.
    pub attempt: AttemptId,
    /// The job's earlier state, as the leader knows it.
    pub from: JobState,
    /// The job's new state.
    pub to: JobState,
    /// Whether the end uses up one of the job's retries.
    pub charged: bool,
    /// Whether it counts as an end without the job's fault.
    pub uncharged: bool,
    /// Whether it shared its slice.
    pub shared: bool,
    /// Why the job runs again, if it does: usually the outcome of this attempt.
    pub reason: Outcome,
    /// The gang that ends with it, if it is in one.
    pub gang: Option<JobId>,
    /// How the attempt ended.
    pub record: ExitRecord,
    /// Its run times, as far as they are known.
    pub run_times: AttemptRunTimes,
    /// The memory of its slice, if that was too little for its task.
    pub ran_out_of: Option<Bytes>,
    /// The consequence for its job if it or its gang ran out of GPU memory.
    pub out_of_memory: Option<OutOfMemoryRow>,
    /// The prediction of its run time.
    pub run_prediction: Option<Prediction>,
    /// Its job's deadline, in milliseconds since 1970.
    pub deadline: Option<Millis>,
    /// How much of the job is finished, in millionths.
    pub done: u32,
}

impl EndedAttempt {
    /// Returns whether the job met its deadline, if it has one and ends now, at `now` in milliseconds since 1970. A
    /// cancelled job neither meets nor misses it. A gang counts once.
    pub fn met_deadline(&self, now: Millis) -> Option<bool> {
        let is_counted = self.to.is_final() && self.to != JobState::Cancelled;
        let deadline = self.deadline.filter(|_| is_counted)?;
        self.gang
            .is_none_or(|gang| gang == self.job)
            .then_some(self.to == JobState::Succeeded && now <= deadline)
    }
}

/// An out-of-memory event of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemoryRow {
    /// The minimum that the job requests from now on.
    pub at_least: Option<Bytes>,
}

/// A user's command to a waiting job.
#[derive(Clone, Debug)]
pub struct WaitingJobCommand {
    /// The waiting job that the command is for.
    pub job: JobId,
    /// What becomes of the job.
    pub change: WaitingJobChange,
}

/// What becomes of a job without an attempt by its user's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingJobChange {
    /// The job's state becomes `queued`, `held` or `cancelled`.
    To(JobState),
    /// The job gets this share of its slice, and continues to wait.
    Share(SmPercent),
    /// The job ends as cancelled, since its dependency can never be met.
    GiveUp,
    /// A job that has ended waits again.
    RunAgain,
    /// The job is updated, and continues to wait.
    Update(JobUpdate),
}

/// A job with a live attempt that gets another share.
#[derive(Clone, Copy, Debug)]
pub struct ResharedJob {
    /// The job whose share changes.
    pub job: JobId,
    /// The attempt whose share changes.
    pub attempt: AttemptId,
    /// Its share of the slice.
    pub sm: SmPercent,
}

/// A running job that is requested to checkpoint and to continue elsewhere.
#[derive(Clone, Debug)]
pub struct MigrationRow {
    /// The job; it must be running.
    pub job: JobId,
    /// The attempt that is stopped, so that the job continues elsewhere.
    pub attempt: AttemptId,
    /// The decision that moves the job.
    pub decision: DecisionId,
    /// Its next placement.
    pub place: JobPlacement,
    /// The explanation, with gain and cost.
    pub why: Explanation,
}

/// A waiting job's new reason.
#[derive(Clone, Debug)]
pub struct WaitReasonRow {
    /// The job that waits.
    pub job: JobId,
    /// The decision that found the reason.
    pub decision: DecisionId,
    /// The reason, as a stable value of the API.
    pub reason: &'static str,
    /// The explanation.
    pub why: Explanation,
}

impl WaitingJobChange {
    /// Returns the state that the job enters, if it changes its state.
    pub const fn to(&self) -> Option<JobState> {
        match self {
            Self::To(to) => Some(*to),
            Self::GiveUp => Some(JobState::Cancelled),
            Self::RunAgain => Some(JobState::Queued),
            Self::Share(_) | Self::Update(_) => None,
        }
    }

    /// Returns the new share of the multiprocessors, if it changes.
    pub const fn sm(&self) -> Option<SmPercent> {
        match self {
            Self::To(_) | Self::GiveUp | Self::RunAgain | Self::Update(_) => None,
            Self::Share(sm) => Some(*sm),
        }
    }

    /// Returns the update, if it is one.
    pub const fn update(&self) -> Option<&JobUpdate> {
        match self {
            Self::Update(update) => Some(update),
            Self::To(_) | Self::GiveUp | Self::RunAgain | Self::Share(_) => None,
        }
    }

    /// Returns the event's text for people.
    pub fn text(&self) -> String {
        match self {
            Self::To(JobState::Cancelled) => "cancelled by its user before it ran".to_owned(),
            Self::To(JobState::Held) => "held by its user".to_owned(),
            Self::To(_) => "released by its user".to_owned(),
            Self::GiveUp => "cancelled, since its dependency can never be satisfied".to_owned(),
            Self::RunAgain => "requeued by its user after its end".to_owned(),
            Self::Share(sm) => format!("its share becomes {sm}, by its user"),
            Self::Update(update) => update.text(),
        }
    }
}

/// Returns the record of an attempt that ended without its shepherd's report.
pub fn record_without_exit(outcome: Outcome, detail: String) -> ExitRecord {
    ExitRecord {
        outcome,
        exit: None,
        detail,
        started_unix: Millis::ZERO,
        ended_unix: Millis::ZERO,
        user_time: Millis::ZERO,
        system_time: Millis::ZERO,
        max_rss: Bytes::ZERO,
    }
}
