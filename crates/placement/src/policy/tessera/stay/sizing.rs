//! The sizes that one job may have in a round: by its cost, its quota, its deadline, and what is known of it.

use super::super::rounding::{float, float_count};
use super::sizes::{self, SizeOption, SizedJob};
use super::{NAME, StayRound};
use crate::view::QueuedJob;

/// How much the jobs that wait count for the size of a job of which nothing is known. It may turn out the
/// longest, which would run on alone on a small slice. Chosen on seeds 1 to 10, for batches of 5 to 20.
const UNKNOWN_OTHERS: f64 = 0.5;

/// What part of the time to its deadline a job may take on a place that is chosen by its cost: the rest is
/// for a late start of others. Chosen.
const SAFE: f64 = 0.5;

/// Compute slices that a GPU without MIG counts for, as quotas have it.
const WHOLE_GPU: u32 = 7;

impl<'c> StayRound<'c> {
    /// Returns the sizes that a job may have, in the order of preference, and when it has to be done. Explains why
    /// there is none, if its account's quota leaves none.
    pub(super) fn suitable_sizes(
        &mut self,
        job: &QueuedJob,
        others: usize,
    ) -> Option<(SizedJob<'c>, Option<f64>)> {
        let mut sized = self.sized(job, others);
        if let Some(quotas) = &self.quotas
            && let Some(left) = quotas.left_for(job)
        {
            let slices = |option: &SizeOption<'_>| {
                option.profile.map_or(WHOLE_GPU, |profile| u32::from(profile.compute_slices))
            };
            sized.options.retain(|option| slices(option) <= left);
            if sized.options.is_empty() {
                self.decisions.push(quotas.wait(NAME, job, 1, None));
                return None;
            }
        }
        if !sized.known && !self.is_aged(job) {
            self.keep_large(&mut sized);
        }
        self.hasten(&mut sized);
        let deadline = self.deadline_of(job, &sized);
        if let Some(deadline) = deadline {
            self.keep_deadline(&mut sized, deadline);
        }
        Some((sized, deadline))
    }

    /// Takes out the sizes that are small for a whole run, if any others are left that may be free one day.
    fn keep_large(&mut self, sized: &mut SizedJob<'c>) {
        let least = self.busy.least_part();
        let is_large = |option: &SizeOption<'c>| {
            self.kinds[option.kind].part(option.profile) >= least && self.may_be_free(option)
        };
        let large: Vec<bool> = sized.options.iter().map(is_large).collect();
        if large.contains(&true) {
            let mut large = large.into_iter();
            sized.options.retain(|_| large.next().unwrap_or(true));
        }
    }

    /// Whether some GPU may have a slice of a size once its jobs have ended: its layout may be pinned, and instances
    /// that are not the cluster's may stand there.
    fn may_be_free(&mut self, option: &SizeOption<'c>) -> bool {
        let key = (option.kind, option.profile.map(|profile| profile.id));
        if let Some(known) = self.possible.get(&key) {
            return *known;
        }
        let possible = (0..self.state.gpus.len()).any(|gpu| {
            self.kind_of[gpu] == option.kind
                && self.state.gpus[gpu].view.available
                && !self.slots(gpu, option.profile).is_empty()
        });
        self.possible.insert(key, possible);
        possible
    }

    /// Returns the sizes of a job among so many others, and those that are expected to come while it runs. They
    /// are about as many as run now (Little's law, with runs of equal length).
    pub(super) fn sized(&self, job: &QueuedJob, others: usize) -> SizedJob<'c> {
        let others = float_count(others);
        let sized = sizes::sized(
            &self.kinds,
            self.knowledge,
            job,
            others + self.horizon.arrivals,
            self.thrift,
        );
        if sized.known {
            return sized;
        }
        let coming = if self.horizon.expects_more() { self.busy.others() } else { 0.0 };
        let others = UNKNOWN_OTHERS * others * self.scarcity() + coming;
        sizes::sized(&self.kinds, self.knowledge, job, others, self.thrift)
    }

    /// Returns when a job has to be done, if it can still be and its times are known.
    pub(super) fn deadline_of(&self, job: &QueuedJob, sized: &SizedJob<'c>) -> Option<f64> {
        let deadline = float(self.knowledge.jobs.facts(job.id).deadline.filter(|_| sized.known)?);
        (float(self.now) + sized.least_ms <= deadline).then_some(deadline)
    }

    /// Prefers the places on which a job ends well before its deadline: within half of the time that is left. Of
    /// these the cheapest, of the others the fastest.
    fn keep_deadline(&self, sized: &mut SizedJob<'c>, deadline: f64) {
        let left = deadline - float(self.now);
        let late = |option: &SizeOption<'_>| {
            if option.ms <= left * SAFE { 0.0 } else { option.ms }
        };
        sized.options.sort_by(|a, b| late(a).total_cmp(&late(b)));
    }

    /// Prefers the places on which a job ends before everything else does, if no more jobs seem to come: it
    /// would run on alone.
    fn hasten(&self, sized: &mut SizedJob<'c>) {
        if !sized.known || self.horizon.is_open() {
            return;
        }
        let in_time = |option: &SizeOption<'_>| option.ms <= self.horizon.ms;
        let late = |option: &SizeOption<'_>| if in_time(option) { 0.0 } else { option.ms };
        sized.options.sort_by(|a, b| late(a).total_cmp(&late(b)));
    }
}
