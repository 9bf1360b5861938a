//! The outcome of a run.

use tessera_kernel_queue::{Nanos, QueueCounters};
use tessera_predict::number::{self, count};

use super::device::{KernelSpan, KernelWaits};

/// Stretches of device time, in order.
pub type KernelSpans = Vec<KernelSpan>;

/// What one program did.
#[derive(Clone, Debug, Default)]
pub struct CompletedTasks {
    /// Time of each task that ended, from its arrival or from the end of the previous one.
    pub tasks: Vec<Nanos>,
    /// How long its kernels ran.
    pub busy: Nanos,
    /// How its kernels waited for the other's.
    pub behind: KernelWaits,
    /// What the queue counted.
    pub counters: QueueCounters,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct SharingOutcome {
    /// The programs: high priority, low priority.
    pub programs: [CompletedTasks; 2],
    /// When it ended.
    pub end: Nanos,
    /// What ran when, if that was recorded.
    pub spans: KernelSpans,
    /// How often the device switched between the programs' contexts.
    pub switches: u64,
    /// What the queue counted for the slice.
    pub counters: QueueCounters,
}

impl CompletedTasks {
    /// Returns the mean time of a task, in nanoseconds.
    pub fn mean(&self) -> f64 {
        mean(&self.tasks)
    }

    /// Returns the coefficient of variation of the tasks' times.
    pub fn variation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.tasks.iter().map(|task| (float(*task) - mean).powi(2));
        let tasks = count(self.tasks.len());
        (squares.sum::<f64>() / tasks.max(1.0)).sqrt() / mean
    }
}

fn mean(times: &[Nanos]) -> f64 {
    let sum = times.iter().fold(Nanos::ZERO, |sum, time| sum.plus(*time));
    float(sum) / count(times.len()).max(1.0)
}

/// Returns a time as a floating-point number of nanoseconds; exact below 104 days.
pub fn float(time: Nanos) -> f64 {
    number::float(time.get())
}
