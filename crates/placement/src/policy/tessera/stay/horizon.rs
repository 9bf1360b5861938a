//! How long all known work takes, and whether more seems to come.
//!
//! While jobs keep coming, a place that is taken for a whole run is missing for those who come meanwhile. By
//! Little's law they are about as many as run now, if their runs take as long. Jobs that were submitted
//! together are a batch, and no sign of later ones.
//!
//! Once nobody else comes, a job that takes about as long as everything else has to begin in time, or it runs
//! on alone in the end.

/// For what part of the time that everything still takes no job must have come. Chosen with
/// [`super::super::Tessera::quiet`].
const QUIET: f64 = 0.2;

/// Jobs that were submitted within this time are one batch, in milliseconds. Chosen: a script submits that
/// fast, and a person does not.
const BATCH_MS: f64 = 60_000.0;

/// From how many jobs on it shows whether they are a batch. Chosen.
const EVIDENCE_MIN: usize = 5;

/// How many jobs are expected on each GPU where too few are seen to conclude anything. Chosen: a few of those that a GPU
/// with seven slices can hold.
const USUAL_JOBS_PER_GPU: f64 = 6.0;

/// How many more jobs come during a run of unknown length than during one that is like the others. Chosen on
/// seeds 1 to 5.
const LONG_RUN: f64 = 2.0;

/// From which part of the horizon on a job is begun before shorter ones. Chosen.
const HASTE: f64 = 0.8;

/// What is seen of the jobs that wait and run.
#[derive(Debug)]
pub(super) struct Survey {
    oldest: f64,
    newest: f64,
    /// When each job that runs was submitted.
    running: Vec<f64>,
    /// How many jobs were seen.
    count: usize,
    /// What is left of the jobs that run, in milliseconds of a whole GPU.
    pub(super) running_work: f64,
    /// The longest time that any job still takes.
    pub(super) longest: f64,
}

impl Default for Survey {
    fn default() -> Self {
        let (oldest, newest) = (f64::INFINITY, f64::NEG_INFINITY);
        Self { oldest, newest, running: Vec::new(), count: 0, running_work: 0.0, longest: 0.0 }
    }
}

impl Survey {
    /// Notes when a job was submitted.
    pub(super) fn came(&mut self, at: f64) {
        self.oldest = self.oldest.min(at);
        self.newest = self.newest.max(at);
        self.count += 1;
    }

    /// Notes when a job was submitted that runs.
    pub(super) fn began(&mut self, at: f64) {
        self.came(at);
        self.running.push(at);
    }
}

/// What lies ahead of one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StayHorizon {
    /// The time in which all known work could be done where it costs least of GPUs, in milliseconds; no less
    /// than the longest job takes.
    pub(super) ms: f64,
    /// How many jobs are expected to come during a run.
    pub(super) arrivals: f64,
    /// The same for a job of which nothing is known, which may last for long.
    pub(super) arrivals_in_long_run: f64,
    /// Whether no more jobs seem to come.
    closed: bool,
    /// Whether too few jobs were seen to conclude anything.
    few: bool,
    /// How many jobs run.
    pub(super) running: f64,
}

impl StayHorizon {
    /// Concludes from a survey, in which everything takes `ms` from `now` on. `running` is how many jobs run on
    /// so many GPUs.
    pub(super) fn of(survey: &Survey, ms: f64, now: f64, (running, gpus): (f64, f64)) -> Self {
        let batch = survey.newest - survey.oldest <= BATCH_MS;
        let closed = batch || now - survey.newest >= QUIET * ms;
        let later = survey.running.iter().filter(|at| **at > survey.oldest + BATCH_MS).count();
        let seen = super::float_count(survey.running.len().max(1));
        let arrivals = if closed { 0.0 } else { running * super::float_count(later) / seen };
        let few = survey.count < EVIDENCE_MIN && now - survey.newest < BATCH_MS;
        let unknown = if few { USUAL_JOBS_PER_GPU * gpus } else { LONG_RUN * arrivals };
        let arrivals_in_long_run = unknown.max(LONG_RUN * arrivals);
        Self { ms, arrivals, arrivals_in_long_run, closed, few, running }
    }

    /// Returns whether more jobs seem to come.
    pub(super) const fn is_open(&self) -> bool {
        !self.closed
    }

    /// Returns whether too few jobs were seen to conclude anything.
    pub(super) const fn sees_few(&self) -> bool {
        self.few
    }

    /// Returns whether a job that takes so long has to begin now to be done with the others.
    pub(super) fn presses(&self, ms: f64) -> bool {
        self.closed && ms >= HASTE * self.ms
    }
}
