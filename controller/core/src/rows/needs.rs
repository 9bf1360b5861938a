//! What jobs need at least, as the first kernels of their attempts showed it.

use tessera_model::{AttemptId, Bytes, JobId};

/// What an attempt showed of its job's need. Larger values that are known stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedRow {
    /// The job whose need is known now.
    pub job: JobId,
    /// The attempt whose first kernel showed it.
    pub attempt: AttemptId,
    /// What it had allocated before its first kernel, if anything.
    pub held: Option<Bytes>,
    /// Multiprocessors that its first kernel needs for as few steps as the whole GPU allows, if that is known.
    pub multiprocessors: Option<u16>,
}
