//! What is to come: how long all that is known takes, and whether more seems to come.
//!
//! A job that by itself takes about as long as everything else has to have its large slice in time,
//! or it runs on alone in the end. That is known only once nobody else comes. While jobs keep
//! coming there is enough to do next to it, and what it takes from shorter ones is lost to them. So
//! the score of its placement grows ([`Tessera::drive`]) as far as it has been quiet. Quiet means
//! that no job has come for a good part of the time that everything still takes
//! ([`Tessera::quiet`]). Of jobs that serve answers it grows at once.

use tessera_model::{JobId, Millis};

use super::rounding::{float, float_sum, whole_ms};
use super::scoring::{Ahead, Scoring};
use super::search::Search;
use super::waiting::{JobWeight, RemainingWork, WaitingJobs};
use super::{PRIORITY, Tessera};
use crate::view::QueuedJob;
use tessera_model::spec::Priority;

/// GPUs whose jobs are looked at: of more, as many are, evenly spread. Chosen: what is left of some hundred
/// jobs stands for that of all, and thousands would take most of a round.
const SURVEYED_MAX: usize = 64;

/// How steeply the score of a placement grows with its job's part of what is to come. A job with half
/// of that is in time on half a GPU: only a job that needs nearly all of one scores much higher.
const STEEP: i32 = 4;

/// The same for jobs that serve answers: more may still come next to them, so that what they seem to
/// be a part of is too little.
const STEEP_ONLINE: i32 = 8;

/// What one round takes to lie ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Horizon {
    /// The time in which all work that is known could be done where it costs least of GPUs, in
    /// milliseconds.
    pub(super) horizon: f64,
    /// The same on whole GPUs.
    whole: f64,
    /// The same as that, but no less than what is left of the longest job that runs; zero if there is
    /// no horizon.
    end: f64,
    /// How far it has been quiet: from 0 to 1.
    quiet: f64,
}

impl Horizon {
    /// Looks at all jobs that wait, and at those that run.
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

    /// Returns the time in which all work that is known could be done on whole GPUs: one second at
    /// least.
    pub(super) fn time(&self) -> Millis {
        Millis::new(whole_ms(self.whole).max(1_000))
    }

    /// Returns by how much more a job's placement counts, from what is left of the job. Somebody waits
    /// for an `online` job's answers all the time: it isn't kept small for as long as others come.
    pub(super) fn drive(&self, settings: &Tessera, left_ms: Option<f64>, online: bool) -> f64 {
        let part = left_ms.filter(|_| self.end > 0.0).map_or(0.0, |left| left / self.end);
        let quiet = if online { 1.0 } else { self.quiet };
        let steep = if online { STEEP_ONLINE } else { STEEP };
        1.0 + settings.drive * quiet * part.min(1.0).powi(steep)
    }
}

/// Returns what states how urgent a job is by its shortness and priority.
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
    /// What is left of them.
    left: RemainingWork,
    /// What is left of the longest on a whole GPU, in milliseconds.
    longest_ms: u128,
    /// How old the youngest is at least, in milliseconds.
    youngest: f64,
}

impl Survey {
    fn of(search: &Search<'_, '_>, kinds: &[usize]) -> Self {
        let gpus = search.gpus();
        let step = gpus.div_ceil(SURVEYED_MAX).max(1);
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
        // The others are taken for like them.
        let all = gpus as u128;
        let scaled = |sum: u128| sum.saturating_mul(all) / surveyed.max(1);
        found.left = RemainingWork {
            whole_ms: scaled(found.left.whole_ms),
            work_ms: scaled(found.left.work_ms),
        };
        found
    }
}

/// Returns how long ago a job that runs was submitted at least, in milliseconds. Its present
/// attempt is as old, and what it has done took so long even on a whole GPU.
fn age(scoring: &Scoring<'_>, job: JobId, ahead: Option<Ahead>) -> f64 {
    let attempt = scoring
        .knowledge
        .jobs
        .facts(job)
        .since
        .map_or(0.0, |since| float(scoring.now.minus(since)));
    attempt.max(ahead.map_or(0.0, |ahead| ahead.done_ms))
}
