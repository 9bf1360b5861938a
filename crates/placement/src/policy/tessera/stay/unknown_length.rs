//! Which sizes suit a job of unknown length for its whole run.
//!
//! Such a job may turn out the longest. On a small slice it would then run on alone in the end. So while few jobs
//! wait it prefers slices that are not small ([`least_part`]). This orders sizes and excludes none: a job takes a
//! small slice if no other is free, and never waits for a larger one.
//!
//! A job of which not even the memory is known prefers the smallest slice instead, since it may run out of memory
//! anywhere and then starts again.

use tessera_model::spec::GpuRequest;

use super::super::rounding::float_count;
use super::StayRound;
use super::sizes::{GpuKind, SizeOption, SizedJob};
use crate::view::QueuedJob;

/// How many jobs there are for each GPU from which on any size suits. Chosen on seeds 1 to 10, and compared with 3 and
/// 4 on seeds 401 to 420: with more, the mean of small jobs that need no large slices rises.
const CROWDED: f64 = 2.0;

/// How much a job that runs counts among them. Chosen on the same seeds: it is half done on average.
const RUNNING: f64 = 0.5;

/// The part of a GPU that a job prefers at least before. Chosen: halves of an A100 are its 3g and 4g.
const LEAST_PART: f64 = 0.4;

/// Returns the part of a GPU that a job prefers at least, with so many others on so many GPUs.
fn least_part((waiting, running): (f64, f64), gpus: f64) -> f64 {
    let jobs = waiting + RUNNING * (running + 1.0);
    if jobs < CROWDED * gpus { LEAST_PART } else { 0.0 }
}

impl<'c> StayRound<'c> {
    /// Orders the sizes of a job of unknown length by how far they are from what suits it, with `others` waiting. Equals
    /// keep their order by cost.
    pub(super) fn prefer_lasting(&self, job: &QueuedJob, sized: &mut SizedJob<'c>, others: f64) {
        if job.gpu == GpuRequest::Unknown {
            sized.options.sort_by_key(|option| ladder_step(&self.kinds, option));
            return;
        }
        // A quota is soon used up by large slices, and then the user's other jobs wait.
        let has_quota = self.quotas.as_ref().is_some_and(|quotas| quotas.left_for(job).is_some());
        if has_quota || self.horizon.sees_few() {
            return;
        }
        let gpus: f64 = self.kinds.iter().map(|kind| f64::from(kind.count)).sum();
        let running = self.horizon.running + float_count(self.started);
        let least = least_part((others, running), gpus);
        let lacking = |option: &SizeOption<'_>| {
            (least - self.kinds[option.kind].part(option.profile)).max(0.0)
        };
        sized.options.sort_by(|a, b| lacking(a).total_cmp(&lacking(b)));
    }
}

/// Returns how many smaller memory sizes a GPU of that kind has; most of all where MIG is off.
fn ladder_step(kinds: &[GpuKind<'_>], option: &SizeOption<'_>) -> usize {
    let (Some(profile), Some(mig)) = (option.profile, kinds[option.kind].mig()) else {
        return usize::MAX;
    };
    mig.plain().filter(|smaller| smaller.memory < profile.memory).count()
}

#[cfg(test)]
mod tests {
    use super::least_part;

    #[test]
    fn small_slices_suit_only_where_many_jobs_wait_or_run() {
        let jobs = [(0.0, 0.0), (15.0, 0.0), (15.5, 0.0), (0.0, 30.0), (0.0, 31.0)];

        let parts = jobs.map(|others| least_part(others, 8.0));

        assert_eq!(parts, [0.4, 0.4, 0.0, 0.4, 0.0]);
    }
}
