//! Explanations of placements and of waiting.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{DeadlineView, MemoryPredictionView, PredictionView};

/// Why a job waits, or why it was placed where it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobExplanation {
    /// The job's number.
    pub job_id: u64,
    /// The state of the job, as `squeue` would name it in lower case.
    pub state: String,
    /// A stable identifier of the reason.
    pub reason: Option<String>,
    /// The reason in one sentence, with the numbers that decided.
    pub summary: String,
    /// For a waiting job: what would start it.
    pub would_start_if: Option<String>,
    /// Number of jobs ahead of it in the queue.
    pub jobs_ahead: Option<u64>,
    /// The policy that decided.
    pub policy: String,
    /// The recorded decision, if one was recorded.
    pub decision: Option<String>,
    /// When it was decided.
    #[serde(with = "time::serde::rfc3339::option")]
    pub decided_at: Option<OffsetDateTime>,
    /// The placements that were considered, best first.
    pub candidates: Vec<CandidateView>,
    /// Number of further placements that were considered.
    pub candidates_left_out: u32,
    /// The predicted run time on its placement; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// The predicted GPU memory, if the job requests no size; absent if its task never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<MemoryPredictionView>,
    /// Where its size comes from; absent before its first placement if it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeView>,
    /// For a waiting job: single changes of the cluster or of the job with which the policy would
    /// start it now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<AlternativeView>,
    /// Seconds until the predicted start; absent if none can be predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start_secs: Option<f64>,
    /// The predicted start, or why there is none, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<String>,
    /// For a waiting job with a deadline: whether it is expected to be met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineView>,
}

/// The size that a job requests, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SizeView {
    /// `out_of_memory` (the job ran out of less), `predicted` (it was predicted to), `declared` by its user,
    /// `first_launch`, `learned` from runs of its task, `estimated` by its user, or `unknown`. A stronger source comes
    /// first in this list. With `first_launch` the job had allocated this much before its first
    /// kernel.
    pub source: String,
    /// The requested GPU memory of a waiting job, or the GPU memory of its newest attempt. Absent if it
    /// requests no amount.
    pub memory_bytes: Option<u64>,
    /// The source as text, after "its size".
    pub text: String,
}

/// A change that would start a waiting job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlternativeView {
    /// The change, as text after "if".
    pub change: String,
    /// The effect, as text after "it".
    pub effect: String,
}

/// One placement that was considered for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateView {
    /// The node's name.
    pub node: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// Index of the GPU on its node.
    pub gpu_index: u32,
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// First memory slice.
    pub start_slice: Option<u8>,
    /// Memory of the slice.
    pub memory_bytes: u64,
    /// Whether the policy chose it.
    pub chosen: bool,
    /// `chosen`, or why it was rejected.
    pub verdict: String,
    /// Number of full layouts that stay reachable with it.
    pub reachability_after: Option<u32>,
}
