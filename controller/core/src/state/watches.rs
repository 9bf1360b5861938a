//! The memory and idle times of running attempts from their nodes' reports, and jobs that were moved by a
//! prediction.

use std::collections::BTreeMap;

use tessera_model::sizing::MemoryPrediction;
use tessera_model::{AttemptId, Bytes, JobId, Millis};
use tessera_predict::peak::MemoryWatch;

use crate::state::attempts::LiveAttempt;

/// The watches of running attempts. A new leader starts them again from the next reports.
#[derive(Debug, Default)]
pub(crate) struct MemoryWatches {
    /// The default action on predictions; `None` means that they are only reported.
    pub(crate) default: Option<MemoryPrediction>,
    pub(crate) live: BTreeMap<AttemptId, WatchedAttempt>,
    /// When idle jobs were warned, by the first attempt of each.
    pub(crate) idle: BTreeMap<AttemptId, Millis>,
    /// Moved jobs whose outcome is still open.
    pub(crate) moved: BTreeMap<JobId, MovedJob>,
}

/// A running attempt with its memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchedAttempt {
    pub(crate) watch: MemoryWatch,
    /// Whether a growth beyond its slice was reported.
    pub(crate) reported: bool,
    /// Whether it is being moved for that.
    pub(crate) moving: bool,
}

/// A job that was moved by a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedJob {
    /// The attempt that was moved.
    pub(crate) attempt: AttemptId,
    /// The memory that it had.
    pub(crate) capacity: Bytes,
}

impl MemoryWatches {
    /// Forgets everything but the settings, since the state is read again from the store.
    pub(crate) fn forget(&mut self) {
        *self = Self { default: self.default, ..Self::default() };
    }

    /// Returns the action on predictions about a job.
    pub(crate) fn mode_of(&self, live: &LiveAttempt) -> MemoryPrediction {
        let named = live.launch_spec.as_ref().and_then(|known| known.spec.memory_prediction);
        named.or(self.default).unwrap_or(MemoryPrediction::Advise)
    }
}
