//! The moves of jobs and attempts: batches of compare-and-set statements.
//!
//! Every function runs inside the caller's guarded transaction ([`super::leader::guard`]) and
//! moves exactly the rows that it was given, or fails with [`super::StoreError::Moved`].

mod attempts;
mod jobs;
mod reserve;

use tessera_model::life::{JobState, Outcome};
use tessera_model::share::SmPercent;
use tessera_model::{AttemptId, Bytes, DecisionId, JobId, Millis, NodeId, SliceId};
use tessera_placement::{Explanation, Place, Prediction, Sharer};
use tessera_predict::memory::Floor;
use tessera_wire::frames::ExitRecord;
use time::OffsetDateTime;

pub use self::attempts::{end, launch, record_moving, record_without_exit, start, stop};
pub use self::jobs::{command, record_waits, reshare};
pub use self::reserve::reserve;
use crate::core::company;
use crate::core::foresight::{Foretold, Lasted};
use crate::ports::Terms;

/// A job gets a place.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The job; it must be queued.
    pub job: JobId,
    /// The gang that gets its places with it, if it is in one.
    pub gang: Option<JobId>,
    /// Its new attempt.
    pub attempt: AttemptId,
    /// The attempt's number.
    pub number: u32,
    /// On which node.
    pub node: NodeId,
    /// The node's generation, for which the launch will be good.
    pub generation: u64,
    /// Where.
    pub place: Place,
    /// The GPU's index on its node.
    pub gpu_index: u32,
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// The memory slices that the attempt holds.
    pub slots: Vec<u8>,
    /// Its part of the instance; `None` if it has the instance to itself.
    pub share: Option<Sharer>,
    /// Memory of the instance: what its sharers can have together.
    pub capacity: Bytes,
    /// The slice, if it stands ready; else the layout has to be changed first.
    pub slice: Option<SliceId>,
    /// The decision.
    pub decision: DecisionId,
    /// Its reasons.
    pub why: Explanation,
    /// What is foretold of it; `None` for a sharer.
    pub foretold: Option<Foretold>,
    /// What is foretold of it beside others under MPS.
    pub beside: Option<company::Foretold>,
    /// What is foretold of its memory, if its job names none and something is foretold of it.
    pub memory: Option<Floor>,
}

/// An attempt's place became ready.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The job; it must be placing.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The slice that stands.
    pub slice: SliceId,
}

/// An attempt's program runs.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// The job; it must be starting.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// When, milliseconds since 1970 on the node's clock.
    pub started_unix: Millis,
    /// How long its job took from being asked to put its work aside, if that is why it starts.
    pub moved: Option<Millis>,
}

/// A job with a live attempt is to end.
#[derive(Clone, Copy, Debug)]
pub struct Stopping {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
}

/// An attempt is over.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The job; its live attempt must be this one.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The job's state in the leader's picture.
    pub from: JobState,
    /// Where the job goes.
    pub to: JobState,
    /// Whether the end uses up one of the job's retries.
    pub charged: bool,
    /// Whether it counts among the ends that were not the job's fault.
    pub uncharged: bool,
    /// Whether it shared its slice.
    pub shared: bool,
    /// Why the job runs again, if it does: mostly how this attempt ended.
    pub reason: Outcome,
    /// The gang that ends with it, if it is in one.
    pub gang: Option<JobId>,
    /// How the attempt ended.
    pub record: ExitRecord,
    /// How long it ran, if that says anything.
    pub lasted: Lasted,
    /// The memory of its slice, if the attempt ran out of that.
    pub ran_out_of: Option<Bytes>,
    /// What had been foretold of it.
    pub foretold: Option<Prediction>,
    /// How much of the job is done, in millionths.
    pub done: u32,
}

/// A waiting job's user moved it.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The job.
    pub job: JobId,
    /// What changes.
    pub change: Change,
}

/// What a user changes of a waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It goes to `queued`, `held` or `cancelled`.
    To(JobState),
    /// It is to have this part of its slice, and waits on as it does.
    Share(SmPercent),
    /// It is to have other terms, and waits on.
    Terms(Terms),
}

/// A job with a live attempt is to have another share.
#[derive(Clone, Copy, Debug)]
pub struct Reshared {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// Its part of the slice.
    pub sm: SmPercent,
}

/// A running job is asked to put its work aside and go on elsewhere.
#[derive(Clone, Debug)]
pub struct Moving {
    /// The job; it must be running.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The decision.
    pub decision: DecisionId,
    /// Where it is to go on.
    pub place: Place,
    /// Why, with the price.
    pub why: Explanation,
}

/// A waiting job's reason changed.
#[derive(Clone, Debug)]
pub struct WaitRow {
    /// The job.
    pub job: JobId,
    /// The decision's id.
    pub decision: DecisionId,
    /// The reason's word.
    pub reason: &'static str,
    /// Why.
    pub why: Explanation,
}

fn number(job: JobId) -> i64 {
    i64::try_from(job.number()).unwrap_or(i64::MAX)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn moment(unix: Millis) -> Option<OffsetDateTime> {
    if unix == Millis::ZERO {
        return None;
    }
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000).ok()
}
