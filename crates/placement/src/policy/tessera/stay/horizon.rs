//! How long all known work takes, and whether more seems to arrive.
//!
//! While jobs keep arriving, a place that is taken for a whole run is not available to those that arrive
//! meanwhile. By Little's law these are about as many as run now, if their runs take as long. Jobs that were
//! submitted together are a batch, and do not indicate later ones.
//!
//! Once no more jobs arrive, a job that takes about as long as everything else has to begin in time.
//! Otherwise it runs on alone in the end.

/// For which part of the remaining time of all work no job must have arrived. Chosen with
/// [`super::super::Tessera::quiet`].
const QUIET: f64 = 0.2;

/// Jobs that were submitted within this time are one batch, in milliseconds. Chosen: a script submits that
/// fast, a person does not.
const BATCH_MS: f64 = 60_000.0;

/// For how long no job must have arrived after a batch until it counts as complete, as a multiple of the time in which it
/// arrived. Chosen: a process that has gone on for some time is expected to go on for as long again.
const COMPLETE: f64 = 1.0;

/// The least number of jobs that can be recognised as a batch. Chosen.
const EVIDENCE_MIN: usize = 5;

/// How many jobs are expected if too few are seen to conclude anything. Chosen on seeds 301 to 320: one GPU is
/// kept in small slices, but in a larger cluster the first jobs get large ones.
const USUAL_JOBS: f64 = 12.0;

/// How many are expected on each GPU by a job that states no memory. Chosen: it begins on a small slice, and moves up if
/// it runs out of memory.
const USUAL_JOBS_PER_GPU: f64 = 6.0;

/// How many more jobs arrive during a run of unknown length than during one that is like the others. Chosen
/// on seeds 1 to 5.
const LONG_RUN: f64 = 2.0;

/// The part of the horizon from which on a job begins before shorter ones. Chosen.
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
    /// The remaining time of the running jobs, in milliseconds of a whole GPU.
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
    /// The time in which all known work could be done on the slices that use least of the GPUs, in
    /// milliseconds; at least the time of the longest job.
    pub(super) ms: f64,
    /// How many jobs are expected to arrive during a run.
    pub(super) arrivals: f64,
    /// The same for a job about which nothing is known, which may run for long.
    arrivals_in_long_run: f64,
    /// Whether no more jobs seem to come.
    closed: bool,
    /// Whether all jobs that wait or run were submitted together.
    batch: bool,
    /// Whether that was long enough ago that no more of them seem to come ([`COMPLETE`]).
    complete: bool,
    /// Whether too few jobs were seen to conclude anything.
    few: bool,
    /// Whether only one job was seen.
    one: bool,
    /// How many jobs run.
    pub(super) running: f64,
}

impl StayHorizon {
    /// Derives the horizon from a survey, in which everything takes `ms` from `now` on. `running` is how many
    /// jobs run.
    pub(super) fn of(survey: &Survey, ms: f64, now: f64, running: f64) -> Self {
        let span = survey.newest - survey.oldest;
        let batch = span <= BATCH_MS;
        let complete = now - survey.newest >= COMPLETE * span;
        let closed = batch || now - survey.newest >= QUIET * ms;
        let later = survey.running.iter().filter(|at| **at > survey.oldest + BATCH_MS).count();
        let seen = super::float_count(survey.running.len().max(1));
        let arrivals = if closed { 0.0 } else { running * super::float_count(later) / seen };
        let few = survey.count < EVIDENCE_MIN && now - survey.newest < BATCH_MS;
        let unknown = if few { USUAL_JOBS } else { LONG_RUN * arrivals };
        let arrivals_in_long_run = unknown.max(LONG_RUN * arrivals);
        let one = survey.count < 2;
        Self { ms, arrivals, arrivals_in_long_run, closed, batch, complete, few, one, running }
    }

    /// Returns whether all jobs that wait or run were submitted together.
    pub(super) const fn is_one_batch(&self) -> bool {
        self.batch
    }

    /// Returns whether all jobs that wait or run were submitted together, and no more of them seem to come. A script submits
    /// one job after the other, and so does a lab whose jobs take seconds.
    pub(super) const fn is_complete_batch(&self) -> bool {
        self.batch && self.complete
    }

    /// Returns whether too few jobs were seen to conclude anything.
    pub(super) const fn sees_few(&self) -> bool {
        self.few
    }

    /// Returns the same if more than one was seen: a script may have begun to submit one job after the other.
    pub(super) const fn sees_some(&self) -> bool {
        self.few && !self.one
    }

    /// Returns how many jobs a job of unknown length expects to arrive during its run, on so many GPUs.
    pub(super) fn arrivals_for(&self, states_memory: bool, gpus: f64) -> f64 {
        if self.few && !states_memory {
            return self.arrivals_in_long_run.max(USUAL_JOBS_PER_GPU * gpus);
        }
        self.arrivals_in_long_run
    }

    /// Returns whether more jobs seem to come.
    pub(super) const fn is_open(&self) -> bool {
        !self.closed
    }

    /// Returns the same for jobs of unknown length. They are sized for their whole run while a batch is still arriving,
    /// whereas a plan of known jobs is made again with each one.
    pub(super) const fn is_open_for_unknown(&self) -> bool {
        !self.closed || self.batch && !self.complete
    }

    /// Returns whether a job of this length has to begin now in order to end with the others.
    pub(super) fn presses(&self, ms: f64) -> bool {
        self.closed && ms >= HASTE * self.ms
    }
}
