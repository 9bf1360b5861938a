//! Why a launch is refused.

use tessera_model::life::Outcome;
use tessera_model::{GpuId, SliceId};

use super::ATTEMPTS_MAX;

/// A launch that the node refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchRefusal {
    /// It is for another generation of the node (F7).
    #[error("the node has generation {own}, the launch is for {requested}")]
    OtherGeneration {
        /// The node's generation.
        own: u64,
        /// The generation of the launch.
        requested: u64,
    },
    /// The node's lease has expired.
    #[error("the node holds no lease")]
    NoLease,
    /// The node can't remember more attempts.
    #[error("the node holds {ATTEMPTS_MAX} attempts already")]
    TooManyAttempts,
    /// Its placement can't be used.
    #[error(transparent)]
    Placement(#[from] PlacementRefusal),
}

impl LaunchRefusal {
    /// Returns how the attempt ends.
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Placement(PlacementRefusal::Account { by_job: true, .. }) => {
                Outcome::LaunchFailed
            }
            _ => Outcome::NotStarted,
        }
    }
}

/// A placement that can't be used, or that changed in the meantime (G11).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefusal {
    /// The node can't run jobs of this account.
    #[error("{reason}")]
    Account {
        /// Whether that is the job's own fault, so that there is no retry.
        by_job: bool,
        /// Why the account can't be used, as the system states it.
        reason: String,
    },
    /// The GPU isn't in this node.
    #[error("the node has no GPU {0}")]
    NoGpu(GpuId),
    /// The GPU's driver is silent.
    #[error("the GPU's driver doesn't answer")]
    Unresponsive,
    /// The GPU is faulty.
    #[error("the GPU is faulty: {reason}")]
    Faulty {
        /// The driver's reason.
        reason: String,
    },
    /// The GPU is quarantined.
    #[error("the GPU is quarantined: {reason}")]
    Quarantined {
        /// The reason of the quarantine.
        reason: String,
    },
    /// A whole GPU is required, but it has MIG mode on.
    #[error("the GPU is partitioned")]
    Partitioned,
    /// A whole GPU is required, but the slice is a part of one.
    #[error("{0} is not the whole GPU")]
    NotWhole(SliceId),
    /// A plan that is under way destroys or divides the instance.
    #[error("the instance is being destroyed or divided again")]
    Leaving,
    /// The instance could not be changed.
    #[error("the instance is quarantined: {reason}")]
    Stuck {
        /// The process that holds it.
        reason: String,
    },
    /// The instance doesn't exist.
    #[error("the instance is gone")]
    Gone,
    /// Another instance is in its place.
    #[error("the instance is now {0}")]
    Replaced(SliceId),
    /// The instance has no compute instance.
    #[error("the instance is only partly created")]
    HalfMade,
    /// The instance has other compute instances.
    #[error("the instance is now divided into {parts}")]
    Cut {
        /// Their ids, separated by commas.
        parts: String,
    },
    /// Another program uses the port of the gang.
    #[error("port {port}, which the gang needs for its rendezvous: {cause}")]
    PortTaken {
        /// The port that another process has.
        port: u16,
        /// The system's error.
        cause: String,
    },
}
