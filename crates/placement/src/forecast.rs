//! What is predicted of jobs, for the policies that weigh times and not only sizes.

use tessera_model::mig::Profile;
use tessera_model::{JobId, Millis};

use crate::view::GpuView;

/// How much of a whole GPU a job keeps busy when it runs alone on it, in thousandths.
///
/// Source: co-execution study, calibration table (average SM and memory utilisation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand {
    /// Streaming multiprocessors.
    pub sm: u16,
    /// Memory bandwidth.
    pub memory: u16,
}

/// Answers what is known or predicted of a job; `None` where nothing is.
///
/// The simulator answers with the truth or with the truth and an error; a live controller answers
/// with what it learned. A policy must do without: [`Unknown`] knows nothing.
pub trait Forecast {
    /// How long the whole job takes, alone on an instance of the profile of such a GPU.
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis>;

    /// How much of the job is done, in millionths.
    fn done(&self, job: JobId) -> Option<u32>;

    /// When its present attempt began.
    fn since(&self, job: JobId) -> Option<Millis>;

    /// What it costs to stop the job and go on elsewhere; `None` where that loses its work.
    fn move_price(&self, job: JobId) -> Option<Millis>;

    /// When it has to be done.
    fn deadline(&self, job: JobId) -> Option<Millis>;

    /// Whether somebody waits for its answers (MMK's *online* class).
    fn online(&self, job: JobId) -> bool;

    /// What it keeps busy.
    fn demand(&self, job: JobId) -> Option<Demand>;
}

/// Knows nothing of any job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unknown;

impl Forecast for Unknown {
    fn time(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<Millis> {
        None
    }

    fn done(&self, _: JobId) -> Option<u32> {
        None
    }

    fn since(&self, _: JobId) -> Option<Millis> {
        None
    }

    fn move_price(&self, _: JobId) -> Option<Millis> {
        None
    }

    fn deadline(&self, _: JobId) -> Option<Millis> {
        None
    }

    fn online(&self, _: JobId) -> bool {
        false
    }

    fn demand(&self, _: JobId) -> Option<Demand> {
        None
    }
}
