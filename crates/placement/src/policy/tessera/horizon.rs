//! The horizon: how long all known work takes, and whether more jobs seem to arrive.
//!
//! A job that takes about as long as all other work needs its large slice in time; otherwise it
//! still runs after all others have ended. That is known only once no more jobs arrive. While jobs
//! keep arriving, other jobs fill the cluster next to it, and a large slice for it would delay
//! shorter ones. So the score of its placement grows ([`Tessera::drive`]) with how quiet the queue
//! has been. Quiet means that no job has arrived for a good part of the time that all remaining
//! work takes ([`Tessera::quiet`]). The score of online jobs grows at once.

use tessera_model::{JobId, Millis};

use super::rounding::{float, float_sum, whole_ms};
use super::scoring::{Ahead, Scoring};
use super::search::Search;
use super::waiting::{JobWeight, RemainingWork, WaitingJobs};
use super::{PRIORITY, Tessera};
use crate::view::QueuedJob;
use tessera_model::spec::Priority;

/// How many GPUs' jobs are read; in larger clusters so many GPUs, evenly spread, are sampled.
/// Chosen: the remaining times of some hundred jobs represent all, and reading thousands would take
/// most of a round.
pub(super) const SURVEYED_MAX: usize = 64;

/// The exponent with which the score of a placement grows with its job's part of the horizon. A job
/// with half of the horizon ends in time on half a GPU, so only a job that needs nearly a whole one
/// scores much higher.
const STEEP: i32 = 4;

/// The same for online jobs. It is steeper, so that it counts for fewer of them: more jobs may arrive while
/// they run, and the horizon is then an underestimate.
const STEEP_ONLINE: i32 = 8;

/// Returns the distance between the GPUs that are read, of so many.
pub(super) fn survey_step(gpus: usize) -> usize {
    gpus.div_ceil(SURVEYED_MAX).max(1)
}

/// The work ahead, as one round estimates it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Horizon {
    /// The time in which all known work could be done on the slices that use least of the GPUs, in
    /// milliseconds.
    pub(super) horizon: f64,
    /// The same on whole GPUs.
    whole: f64,
    /// The time on whole GPUs, but at least the remaining time of the longest running job; zero if
    /// there is no horizon.
    end: f64,
    /// How quiet the queue has been: from 0 to 1.
    quiet: f64,
}

impl Horizon {
    /// Computes the horizon from all waiting jobs and from the running ones.
    pub(super) fn of(waiting: &mut WaitingJobs, search: &Search<'_, '_>) -> Self {
        let (scoring, kinds) = (&search.scoring, search.kinds());
        let queued = waiting.weigh(&mut weighing(scoring, &kinds));
        let survey = Survey::of(search, &kinds);
        let all = queued.plus(survey.left);
        let gpus = search.gpus().max(1) as u128;
        let (horizon, whole) = (float_sum(all.work_ms / gpus), float_sum(all.whole_ms / gpus));
        let end = whole.max(float_sum(survey.longest_ms));
        let newest = waiting.newest().map(|at| float(scoring.now.minus(at)));
        let silence = newest.into_iter().fold(survey.youngest, f64::min);
        let quiet = (silence / (scoring.settings.quiet * end).max(1.0)).min(1.0);
        Self { horizon, whole, end, quiet }
    }

    /// Returns the time in which all known work could be done on whole GPUs, at least one second.
    pub(super) fn time(&self) -> Millis {
        Millis::new(whole_ms(self.whole).max(1_000))
    }

    /// Returns the factor by which a job's placement counts more, from its remaining time. For an
    /// `online` job it applies at once, since clients wait for its answers even while other jobs
    /// arrive.
    pub(super) fn drive(&self, settings: &Tessera, left_ms: Option<f64>, online: bool) -> f64 {
        let part = left_ms.filter(|_| self.end > 0.0).map_or(0.0, |left| left / self.end);
        let quiet = if online { 1.0 } else { self.quiet };
        let steep = if online { STEEP_ONLINE } else { STEEP };
        1.0 + settings.drive * quiet * part.min(1.0).powi(steep)
    }
}

/// Returns the clock that computes urgencies from shortness and priority.
pub(super) fn weighing<'t>(
    scoring: &'t Scoring<'_>,
    kinds: &'t [usize],
) -> impl FnMut(&QueuedJob) -> JobWeight + 't {
    |job| {
        let above = f64::from(Priority::DEFAULT.get()) - job.queue_rank.level();
        let known = scoring.eagerness(kinds, job.id);
        JobWeight { weight: known.weight * PRIORITY.powf(above), ..known }
    }
}

/// The jobs that run.
struct Survey {
    /// The sum of their remaining times.
    left: RemainingWork,
    /// The remaining time of the longest one on a whole GPU, in milliseconds.
    longest_ms: u128,
    /// A lower bound of the age of the youngest one, in milliseconds.
    youngest: f64,
}

impl Survey {
    fn of(search: &Search<'_, '_>, kinds: &[usize]) -> Self {
        let gpus = search.gpus();
        let step = survey_step(gpus);
        let mut found =
            Self { left: RemainingWork::default(), longest_ms: 0, youngest: f64::INFINITY };
        let mut surveyed = 0_u128;
        for at in (0..gpus).step_by(step) {
            surveyed += 1;
            for placed in &search.index.gpu(at).placements {
                let ahead = search.scoring.ahead(kinds, placed.job);
                let left = ahead.map(|ahead| ahead.left).unwrap_or_default();
                found.left = found.left.plus(left);
                found.longest_ms = found.longest_ms.max(left.whole_ms);
                found.youngest = found.youngest.min(age(&search.scoring, placed.job, ahead));
            }
        }
        // The sampled GPUs represent the others.
        let all = gpus as u128;
        let scaled = |sum: u128| sum.saturating_mul(all) / surveyed.max(1);
        found.left = RemainingWork {
            whole_ms: scaled(found.left.whole_ms),
            work_ms: scaled(found.left.work_ms),
        };
        found
    }
}

/// Returns a lower bound of the time since a running job was submitted, in milliseconds. It is the
/// age of the current attempt, or the time that the finished part takes on a whole GPU.
fn age(scoring: &Scoring<'_>, job: JobId, ahead: Option<Ahead>) -> f64 {
    let attempt = scoring
        .knowledge
        .jobs
        .facts(job)
        .since
        .map_or(0.0, |since| float(scoring.now.minus(since)));
    attempt.max(ahead.map_or(0.0, |ahead| ahead.done_ms))
}
