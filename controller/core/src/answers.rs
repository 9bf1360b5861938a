//! Answers to questions about waiting jobs and about the models that predictions come from.

use tessera_model::sizing::{MemoryPrediction, SizeSource};
use tessera_model::{AttemptId, Bytes, JobId, Millis};
use tessera_placement::{Explanation, Prediction};
use tessera_predict::memory::MemoryEstimate;
use tessera_predict::peak::watch::BandPoint;
use tessera_predict::peak::{GrowthForecast, MemoryCurve};

/// What the placer knows about a waiting job, beyond what the store has.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingExplanation {
    /// How many jobs are ahead of it in the queue.
    pub jobs_ahead: u64,
    /// The reason, as a stable value of the API.
    pub reason: &'static str,
    /// The explanation, computed as if the job were the next one.
    pub why: Explanation,
    /// Its expected run time on the tightest slice that suits it.
    pub prediction: Option<Prediction>,
    /// Its memory estimate, if its request comes from earlier runs of its task.
    pub memory: Option<MemoryEstimate>,
    /// The source of its size, and the memory that it requests; `None` if it requests no amount.
    pub size: (SizeSource, Option<Bytes>),
    /// What would start it now.
    pub alternatives: Vec<Alternative>,
    /// When it is expected to start.
    pub expected_start: Option<ExpectedStart>,
    /// Whether its deadline is expected to be met, if it has one.
    pub deadline: Option<DeadlineForecast>,
}

/// Why jobs with consecutive numbers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitReasonRun {
    /// The first of them.
    pub first: JobId,
    /// The last of them.
    pub last: JobId,
    /// The reason, as a stable value of the API.
    pub reason: &'static str,
}

/// The models that predictions come from, and whether each is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelStatus {
    /// The fingerprint of the model of how slices compare, and whether it is trusted.
    pub slices: Option<(u64, bool)>,
    /// The fingerprint of the model of co-located jobs, and whether it is trusted.
    pub colocation: Option<(u64, bool)>,
    /// How many tasks get cautious memory estimates, since their runs exceeded the predictions.
    pub low_confidence_tasks: usize,
}

/// What is known about a job's memory, beyond what the store has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryOverview {
    /// The memory of its running attempt, if it is watched.
    pub live: Option<LiveMemory>,
    /// The sizes of slices on its GPU, the smallest first.
    pub sizes: Vec<Bytes>,
}

/// The memory of a running attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMemory {
    /// The attempt that is running.
    pub attempt: AttemptId,
    /// The action on predictions.
    pub mode: MemoryPrediction,
    /// Its memory up to now.
    pub curve: MemoryCurve,
    /// Whether a framework allocates memory in advance, so that no prediction is possible.
    pub preallocated: bool,
    /// Whether it is being moved to a larger slice.
    pub moving: bool,
    /// The prediction, if its memory is predicted to exceed its slice.
    pub forecast: Option<GrowthForecast>,
    /// The predicted band up to the crossing.
    pub band: Vec<BandPoint>,
}

/// Something that would start a job now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The condition, as text after "if".
    pub change: String,
    /// The result, as text after "it".
    pub effect: String,
}

/// Whether a job is expected to meet its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineForecast {
    /// The deadline, in milliseconds since 1970.
    pub deadline_unix: Millis,
    /// The probability, in millionths; `None` if nothing is known about the job's run time or
    /// start.
    pub probability: Option<u64>,
    /// The time from now until the expected end of the job.
    pub ends_in: Option<Millis>,
    /// What this is based on, as a sentence without a full stop.
    pub text: String,
}

/// When a job is expected to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedStart {
    /// The time from now until its expected start.
    pub after: Option<Millis>,
    /// What the expectation is based on.
    pub text: String,
}
