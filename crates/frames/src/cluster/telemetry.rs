//! What GPUs draw, and whose it was.

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::readings::MemoryReadings;
use tessera_model::{AttemptId, Bytes, GpuId, JobId, Millis};

/// Maximum number of slices in one report: more than any GPU can be cut into.
pub const SLICES_MAX: usize = 16;
/// Maximum number of attempts in one report: those that have a GPU now; an instance is seldom
/// shared by more than a handful.
pub const ATTEMPT_FIGURES_MAX: usize = 128;

/// What an attempt used, now that it is over. Repeated until
/// [`ToAgent::UsageAck`](super::ToAgent::UsageAck); the same figures each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptUsage {
    /// Its id.
    pub attempt: AttemptId,
    /// Energy that it bore, in millijoules; `None` if no reading of the GPU covers it.
    pub energy_mj: Option<u64>,
    /// The most GPU memory that it was seen to have; `None` if it was never seen.
    pub peak_memory: Option<Bytes>,
}

/// One GPU's figures, sent every few seconds; a lost report is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFigures {
    /// The GPU's id.
    pub gpu: GpuId,
    /// When they were taken, milliseconds since 1970 on the node's wall clock.
    pub at_unix: Millis,
    /// Memory in use on the whole GPU, if the driver reports it.
    pub memory_used: Option<Bytes>,
    /// Power of the whole GPU in milliwatts, if the driver reports it.
    pub power_mw: Option<u64>,
    /// The busy share of the GPU, in thousandths.
    pub activity: Option<u16>,
    /// Energy since the node's account of the GPU began, in millijoules: what attempts bore …
    pub attempts_mj: u64,
    /// … what other processes used …
    pub other_mj: u64,
    /// … and the energy that belongs to no process. The three add up to what the GPU's counter gained.
    pub idle_mj: u64,
    /// Each instance's; at most [`SLICES_MAX`].
    pub slices: Vec<SliceFigures>,
    /// Each running attempt's; at most [`ATTEMPT_FIGURES_MAX`].
    pub attempts: Vec<AttemptFigures>,
}

/// One instance's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceFigures {
    /// The instance.
    pub slot: Slot,
    /// Memory in use, if the driver reports it.
    pub memory_used: Option<Bytes>,
    /// Its attempts' busy share of the whole GPU, in thousandths.
    pub activity: Option<u16>,
}

/// A running attempt's figures so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFigures {
    /// Its id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// GPU memory that it has now.
    pub memory_used: Option<Bytes>,
    /// Its busy share of the whole GPU, in thousandths.
    pub activity: Option<u16>,
    /// Energy that it bore so far, in millijoules.
    pub energy_mj: Option<u64>,
    /// The most GPU memory that it was seen to have so far.
    pub memory_peak: Option<Bytes>,
    /// Since when it has done nothing on the GPU, on the clock of `at_unix`; `None` if it is active or unknown.
    pub idle_since: Option<Millis>,
}

/// What a running attempt needs at least, as its calls of the driver show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptNeeds {
    /// Its id.
    pub attempt: AttemptId,
    /// What its processes had allocated before their first kernels; 0 before these.
    pub held: Bytes,
    /// Multiprocessors that the largest of these kernels needs for as few steps as the whole GPU allows; 0 if that is not
    /// known.
    pub multiprocessors: u16,
    /// What a process would have had with the last request that was refused and not survived; 0 if there is none.
    pub refused: Bytes,
}

/// The memory of a running attempt since the last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptMemory {
    /// Its id.
    pub attempt: AttemptId,
    /// The readings.
    pub memory: MemoryReadings,
}
