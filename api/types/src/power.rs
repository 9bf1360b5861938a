//! The power of the cluster's GPUs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The power cap, and what the GPUs are expected to draw. Expected power is an upper bound by the limits of the
/// boards, not a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PowerReport {
    /// The most power that all GPUs may draw together, in watts; absent without a cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_watts: Option<u64>,
    /// What idle GPUs and the slices in use draw at most, in watts.
    pub expected_watts: u64,
    /// What all GPUs draw while idle, in watts.
    pub idle_watts: u64,
    /// What all GPUs draw at most with every slice in use, in watts.
    pub full_watts: u64,
    /// Models whose power limit is not known: the highest known one is assumed for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_models: Vec<String>,
}
