//! Messages from the node to the sampling of its GPUs.

use tessera_agent_core::telemetry::meter::GpuTenancy;
use tessera_agent_core::telemetry::readings::CompanionTrail;
use tessera_frames::cluster::GpuReport;
use tessera_model::{AttemptId, Bytes};

/// Events that may wait: two for each attempt that a node can hold at once.
pub const TELEMETRY_EVENTS_MAX: usize = 8_192;

/// What the sampling receives from the node.
#[derive(Clone, Debug)]
pub enum TelemetryEvent {
    /// A GPU appeared or changed.
    Gpu(Box<GpuReport>),
    /// An attempt has a GPU, or had it.
    Tenancy(GpuTenancy),
    /// These are all attempts that the node holds after a start of the agent.
    Inventory(Vec<GpuTenancy>),
    /// The companions of an attempt's processes saw this much memory reserved.
    Memory {
        /// The attempt's id.
        attempt: AttemptId,
        /// The peak so far.
        peak: Bytes,
    },
    /// What the companions of an attempt's processes reported since the last time.
    Trail {
        /// The attempt's id.
        attempt: AttemptId,
        /// Their iterations.
        trail: CompanionTrail,
    },
    /// The controller has an attempt's figures.
    Acknowledged(AttemptId),
}
