//! Which sizes suit a job of unknown length for its whole run.
//!
//! Such a job may turn out to be the longest. On a small slice it would then run on alone in the end. So the fewer jobs
//! there are, the larger are the parts of a GPU that it prefers ([`least_part`]): half, then a quarter, then any. This
//! orders sizes and excludes none: a job takes a small slice if no other is free. Other jobs choose before it then, and one
//! that finds no place may reserve that slice.
//!
//! A job of which not even the memory is known keeps the order by cost: it may run out of memory on any slice, and
//! then starts again.
//!
//! An earlier attempt may have shown how many multiprocessors the first kernel needs (warp folding, MIGM §2.2): a
//! lower bound. Sizes with fewer come last, as long as every job could have as much.

use tessera_model::spec::GpuRequest;

use super::super::rounding::float_count;
use super::StayRound;
use super::sizes::{GpuKind, SizeOption, SizedJob};
use crate::view::{MigView, QueuedJob};

/// What a job prefers while more jobs seem to arrive: up to how many jobs for each GPU, and at least which part of a GPU.
/// Halves of an A100 are its 3g and 4g, and its quarter is 2g. Chosen on seeds 301 to 320, on which a 1g slice of a long
/// job determined most makespans. The jobs of `fragments` need no large slices, and take 4 % longer with them.
const PREFERRED: &[(f64, f64)] = &[(2.0, 0.4), (5.0, 0.2)];

/// The same if no more jobs seem to arrive: no later job needs the space then. Chosen on seeds 301 to 320, for batches
/// of 5 to 100 jobs.
const PREFERRED_IF_CLOSED: &[(f64, f64)] = &[(14.0, 0.4), (60.0, 0.2)];

/// The same if no more jobs seem to arrive, for a job that does not fit on the smallest slice. Two halves leave nothing of
/// an A100, while three slices of 2g leave a seventh. Chosen on seeds 301 to 320, for batches of 20 to 100 jobs.
const PREFERRED_BY_LARGER: f64 = 0.4;

/// The same for the next jobs of an idle cluster after the first one. They may be the first of a script that submits one job
/// after the other. Chosen on seeds 301 to 340. On the smallest slices, batches of 5 to 20 jobs that are submitted one by one
/// take up to twice as long.
const PREFERRED_BY_NEXT: f64 = 0.4;

/// On how many GPUs at least the first job prefers that, too. Chosen: others still find a GPU then. On two GPUs and seeds
/// 401 to 408, sparse streams have means that are shorter by 5 %, and single jobs end in 0.6 of the time.
const GPUS_FOR_FIRST: f64 = 2.0;

/// How much a job that runs counts among them. Chosen: it is half done on average.
const RUNNING: f64 = 0.5;

/// Returns the part of a GPU that a job prefers at least, with so many other jobs on so many GPUs. `is_open` is
/// whether more jobs seem to arrive.
fn least_part(jobs: f64, gpus: f64, is_open: bool) -> f64 {
    let preferred = if is_open { PREFERRED } else { PREFERRED_IF_CLOSED };
    preferred.iter().find(|(each, _)| jobs < each * gpus).map_or(0.0, |(_, part)| *part)
}

impl<'c> StayRound<'c> {
    /// Returns how many GPUs may take jobs.
    pub(super) fn available_gpus(&self) -> f64 {
        self.kinds.iter().map(|kind| f64::from(kind.count)).sum()
    }

    /// Puts the sizes first that suit a job of unknown length, with `others` waiting. Equals keep their order by cost.
    ///
    /// Multiprocessors are preferred and never required: too few only slow a job down.
    pub(super) fn prefer_lasting(&self, job: &QueuedJob, sized: &mut SizedJob<'c>, others: f64) {
        // A quota is soon used up by large slices, and then the user's other jobs wait.
        let has_quota = self.quotas.as_ref().is_some_and(|quotas| quotas.left_for(job).is_some());
        // Space is scarce once a job has a reservation. A job that needs most of a GPU gets one the sooner, the less the
        // others take. Large slices would fill the cluster.
        let is_scarce = !self.reservations.is_empty() || !self.wide.is_empty();
        let gpus = self.available_gpus();
        let leaves_space = self.horizon.sees_some() || gpus >= GPUS_FOR_FIRST;
        // A job of the class online begins at once, and so do later ones if there is space for them.
        let is_too_early = self.horizon.sees_few() && (job.online || !leaves_space);
        if has_quota || is_scarce || is_too_early {
            return;
        }
        let running = self.horizon.running + float_count(self.started);
        let jobs = others + RUNNING * (running + 1.0);
        let is_open = self.horizon.is_open_for_unknown();
        let least = match job.gpu {
            GpuRequest::Unknown => 0.0,
            _ if self.horizon.sees_few() => PREFERRED_BY_NEXT,
            _ if !is_open && self.needs_more_than_the_smallest(sized) => {
                least_part(jobs, gpus, is_open).max(PREFERRED_BY_LARGER)
            }
            _ => least_part(jobs, gpus, is_open),
        };
        let folded = self.knowledge.jobs.facts(job.id).multiprocessors;
        let with_enough = |kind: &GpuKind<'_>| {
            let part = folded.map_or(0.0, |multiprocessors| kind.part_with(multiprocessors));
            if jobs * part <= gpus { part } else { 0.0 }
        };
        let needed: Vec<f64> = self.kinds.iter().map(|kind| with_enough(kind).max(least)).collect();
        sized.prefers = (least > 0.0).then_some(least);
        sized.multiprocessors = folded.filter(|_| needed.iter().any(|part| *part > least));
        let lacking = |option: &SizeOption<'_>| {
            (needed[option.kind] - self.kinds[option.kind].part(option.profile)).max(0.0)
        };
        sized.options.sort_by(|a, b| lacking(a).total_cmp(&lacking(b)));
    }
    /// Returns whether a job does not fit on the smallest slice of any GPU.
    fn needs_more_than_the_smallest(&self, sized: &SizedJob<'c>) -> bool {
        let least = |parts: &mut dyn Iterator<Item = f64>| parts.fold(1.0, f64::min);
        let kinds = self.kinds.iter().filter(|kind| kind.count > 0);
        let mut every = kinds.flat_map(|kind| {
            let profiles = kind.mig().into_iter().flat_map(MigView::plain);
            profiles.map(|profile| kind.part(Some(profile)))
        });
        let mut own = sized.options.iter().map(|one| self.kinds[one.kind].part(one.profile));
        least(&mut own) > least(&mut every)
    }
}
