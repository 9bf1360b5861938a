//! Predictions of run times, for the policies that weigh times and not only sizes.

use serde::{Deserialize, Serialize};
use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};

use crate::facts::{Account, JobFacts, JobTable};
use crate::placement_search::speed_of;
use crate::view::{GpuView, MigView, MpsClient};

/// The time that a whole job takes alone on a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// The expected time from start to end.
    pub time: Millis,
    /// One run in ten is expected to take longer; never less than `time`.
    pub latest: Millis,
    /// Whether it is based on runs on such slices, or on what is known about them. Otherwise it is
    /// a cautious guess: a larger slice is not slower.
    pub is_measured: bool,
}

impl RunTime {
    /// Returns a time that is based on runs on such slices, and is certain.
    pub const fn measured(time: Millis) -> Self {
        Self { time, latest: time, is_measured: true }
    }
}

/// A predicted speed with its interval, in thousandths of the speed that [`SpeedBasis`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeedRange {
    /// The 5 % quantile: one in twenty runs is expected to be slower.
    pub low: u32,
    /// The expected speed.
    pub expected: u32,
    /// The 95 % quantile: one in twenty runs is expected to be faster.
    pub high: u32,
}

impl SpeedRange {
    /// Returns a speed whose model gives no interval.
    pub const fn without_interval(speed: u32) -> Self {
        Self { low: speed, expected: speed, high: speed }
    }
}

/// The reference of predicted speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedBasis {
    /// A job's speed with the same percentage and no co-runners: only co-runners cause a loss. Predictions on
    /// this basis have no interval.
    SamePercentage,
    /// A job's speed alone on all of the instance: the loss by its own percentage counts too.
    WholeInstance,
}

/// The part of an instance that a sharing job has, and its co-runners with theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedPart<'a> {
    /// Under MPS: percentages of the multiprocessors.
    Mps {
        /// The job's own.
        sm: SmPercent,
        /// The other jobs'.
        co_runners: &'a [(JobId, SmPercent)],
    },
    /// Kernel-level sharing: priorities in the queue. A job without co-runners takes as long as alone.
    Kernel {
        /// The job's own.
        priority: Priority,
        /// The other jobs'.
        co_runners: &'a [(JobId, Priority)],
    },
}

impl<'a> SharedPart<'a> {
    /// Returns a priority in the queue, with co-runners and their priorities.
    pub const fn kernel(priority: Priority, co_runners: &'a [(JobId, Priority)]) -> Self {
        Self::Kernel { priority, co_runners }
    }
}

/// Predicts run times; `None` means that nothing is known.
///
/// The simulator predicts the truth, or the truth with an error; a controller predicts from earlier
/// runs. A policy must also work without predictions: [`Unknown`] predicts nothing.
///
/// Within a round the same question has the same answer, and GPUs of one model and geometry are alike:
/// [`crate::record`] stores one answer for all of them.
pub trait Predictor {
    /// Predicts a whole run, alone on an instance of the profile of such a GPU.
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime>;

    /// Predicts a whole run on such an instance next to co-runners; also `None` if the job can't share in this way.
    ///
    /// Source: MMK, §III-A.
    fn predict_shared_run(
        &self,
        _job: JobId,
        _shared: SharedPart<'_>,
        _gpu: &GpuView,
        _profile: &Profile,
    ) -> Option<Millis> {
        None
    }

    /// Predicts the speed of each of some jobs that share such an instance under MPS, relative to
    /// `basis`. No profile is a whole GPU with MIG off.
    ///
    /// Source: MMK, §III-A.
    fn predict_speeds(
        &self,
        _clients: &[MpsClient],
        _basis: SpeedBasis,
        _gpu: &GpuView,
        _profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        None
    }

    /// Predicts the remaining time of a waiting job, alone on such an instance, from runs of its
    /// task. It is also `None` if only a time limit is known. No profile is a whole GPU with MIG
    /// off.
    fn predict_rest_alone(
        &self,
        _job: JobId,
        _gpu: &GpuView,
        _profile: Option<&Profile>,
    ) -> Option<Millis> {
        None
    }
}

impl dyn Predictor + '_ {
    /// Returns the time of a whole job, alone on an instance of the profile.
    pub fn time_alone(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        self.predict_run(job, gpu, profile).map(|run| run.time)
    }

    /// Returns a job's speed on an instance, in millionths of its speed on the GPU's largest one.
    pub fn relative_speed(
        &self,
        job: JobId,
        gpu: &GpuView,
        mig: &MigView,
        profile: &Profile,
    ) -> Option<i64> {
        let here = self.time_alone(job, gpu, profile)?;
        speed_of(here, self.time_alone(job, gpu, mig.largest()?)?)
    }
}

/// Limits how long a round searches for better placements.
pub trait SearchBudget {
    /// Returns whether the round may go on improving placements after so many searches of a GPU.
    ///
    /// A controller answers by its clock, and the answer is recorded, so that the round is decided
    /// again in the same way.
    fn allows(&self, searches: usize) -> bool;

    /// Returns whether the plan of a batch may be improved further after so many candidates. Its shortest job takes
    /// `shortest`: the longer that is, the less a longer search costs.
    fn allows_plan(&self, candidates: usize, shortest: Millis) -> bool {
        let _ = shortest;
        self.allows(candidates)
    }
}

/// Leaves the limit to the policy's own count of searches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl SearchBudget for Unlimited {
    fn allows(&self, _: usize) -> bool {
        true
    }
}

/// A predictor without any knowledge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unknown;

impl JobTable for Unknown {
    fn facts(&self, _: JobId) -> JobFacts {
        JobFacts::default()
    }

    fn account(&self, _: JobId) -> Option<Account> {
        None
    }
}

impl Predictor for Unknown {
    fn predict_run(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
        None
    }
}

/// What a policy may know about jobs in one round.
#[derive(Clone, Copy)]
pub struct Knowledge<'r> {
    /// Facts about jobs.
    pub jobs: &'r dyn JobTable,
    /// Run times.
    pub predictor: &'r dyn Predictor,
    /// How long the round may search.
    pub budget: &'r dyn SearchBudget,
}

impl Knowledge<'static> {
    /// Nothing is known about any job.
    pub const NONE: Self = Self { jobs: &Unknown, predictor: &Unknown, budget: &Unlimited };
}

impl<'r> Knowledge<'r> {
    /// Takes facts and predictions from one source; the policy's own count limits the search.
    pub fn of<K: JobTable + Predictor>(source: &'r K) -> Self {
        Self { jobs: source, predictor: source, budget: &Unlimited }
    }

    /// Sets how long the round may search.
    #[must_use]
    pub const fn within(self, budget: &'r dyn SearchBudget) -> Self {
        Self { budget, ..self }
    }
}

impl std::fmt::Debug for Knowledge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knowledge").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for dyn Predictor + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Predictor")
    }
}
