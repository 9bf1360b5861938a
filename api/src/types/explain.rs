//! Why a job is where it is, or waits.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{MemoryPredictionView, PredictionView};

/// Why a job waits, or went where it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explain {
    /// The job.
    pub job_id: u64,
    /// Its state.
    pub state: String,
    /// The stable word for the reason.
    pub reason: Option<String>,
    /// One sentence with the numbers that decided.
    pub summary: String,
    /// What would start it, for a job that waits.
    pub would_start_if: Option<String>,
    /// How many jobs stand before it in the queue.
    pub jobs_ahead: Option<u64>,
    /// The policy that decided.
    pub policy: String,
    /// The recorded decision, if one was recorded.
    pub decision: Option<String>,
    /// When it was decided.
    #[serde(with = "time::serde::rfc3339::option")]
    pub decided_at: Option<OffsetDateTime>,
    /// What was considered, best first.
    pub candidates: Vec<CandidateView>,
    /// How many more were considered.
    pub candidates_left_out: u32,
    /// How long it is expected to take where it would go, or runs; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// What GPU memory it is expected to need, if it names none itself; absent where its task never
    /// ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<MemoryPredictionView>,
    /// What would start it now, found by asking the policy about clusters that are a little
    /// different; for a job that waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<AlternativeView>,
    /// In how many seconds it is expected to start; absent where nothing says when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start_secs: Option<f64>,
    /// When it is expected to start, or why nobody knows, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<String>,
}

/// Something that would start a job that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlternativeView {
    /// What would have to be different, after "if".
    pub change: String,
    /// What would follow, after "it".
    pub effect: String,
}

/// One place that was considered for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateView {
    /// The node.
    pub node: String,
    /// The GPU.
    pub gpu: String,
    /// Index of the GPU on its node.
    pub gpu_index: u32,
    /// Profile, or `whole GPU`.
    pub profile: String,
    /// First memory slice.
    pub start_slice: Option<u8>,
    /// Memory of the slice.
    pub memory_bytes: u64,
    /// Whether it was taken.
    pub chosen: bool,
    /// `chosen`, or what ruled it out.
    pub verdict: String,
    /// How many full layouts stay reachable after taking it.
    pub reachability_after: Option<u32>,
}
