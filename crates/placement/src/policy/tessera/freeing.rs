//! Slices for a job that finds none: the jobs in its way move to other GPUs.
//!
//! A GPU's own search keeps all of its jobs there. So a job that needs a whole GPU waits until one
//! is empty, while slices are idle on all of them. Here a GPU's jobs are moved elsewhere one after
//! the other, in the order of their scores, the lowest first. Each one moves to where it adds most.
//! As soon as the waiting job has a placement, all placements of these GPUs together must have a
//! higher score than before, with the cost of the moves subtracted. It must be higher by as much as
//! for any other change under running jobs. Of all GPUs tried, the best one is taken. No job is
//! moved if the move costs more than its remaining time, since the job then ends sooner by itself.
//!
//! No GPU takes part twice in a round: each plan starts from the GPU's current placements.

use tessera_model::JobId;

use super::search::{Plan, Search};
use crate::view::QueuedJob;

/// The most jobs that are moved away from one GPU. Chosen: each costs a stop, and more than half of
/// a full GPU never paid.
const LEAVE_MAX: usize = 4;

/// For how many jobs without a placement one round tries to free space. Chosen: those behind them
/// weigh less.
const FREED_FOR_MAX: usize = 4;

/// The plans of the GPUs, first that of the GPU that jobs leave, and by how much their scores rise.
struct FreeingPlan {
    gain: i64,
    plans: Vec<(usize, Plan)>,
}

impl Search<'_, '_> {
    /// Places a job where other jobs can be moved away for it; `false` if that raises no score.
    pub(super) fn free_slices_for(&mut self, job: &QueuedJob) -> bool {
        // Accounts with quotas only get what a search of one GPU gives them.
        if self.freed_for == FREED_FOR_MAX || self.quota_left(job.id).is_some() {
            return false;
        }
        self.freed_for += 1;
        let mut best: Option<FreeingPlan> = None;
        for at in self.index.fewest(usize::MAX, self.scoring.settings.searched) {
            if self.shifted.contains(&at) {
                continue;
            }
            let found = self.cleared(at, job.id);
            best = match (best, found) {
                (Some(known), Some(found)) if found.gain <= known.gain => Some(known),
                (known, found) => found.or(known),
            };
        }
        let Some(FreeingPlan { plans, .. }) = best else { return false };
        for (at, plan) in plans {
            self.charge(at, &plan);
            self.index.promise(at, plan.placements.len());
            self.shifted.insert(at);
            self.promised.insert(at, plan);
        }
        true
    }

    /// Moves jobs away from a GPU until the waiting job has a placement there.
    fn cleared(&mut self, at: usize, job: JobId) -> Option<FreeingPlan> {
        let mut stay = self.leaving_last(at);
        let mut before = self.current_score(at);
        let mut after = 0;
        let mut plans: Vec<(usize, Plan)> = Vec::new();
        for _ in 0..LEAVE_MAX {
            let next = stay.pop()?;
            if !self.scoring.outlasts_move(self.index.kinds(), next) {
                return None;
            }
            let (to, plan) = self.elsewhere(at, next, &plans)?;
            match plans.iter_mut().find(|(known, _)| *known == to) {
                Some((_, known)) => {
                    after += plan.score - known.score;
                    *known = plan;
                }
                None => {
                    before += self.current_score(to);
                    after += plan.score;
                    plans.push((to, plan));
                }
            }
            self.spend(1)?;
            let mut jobs = stay.clone();
            jobs.push(job);
            let Some(plan) = self.plan_for(at, &jobs, Some(job), None) else { continue };
            let gain = after + plan.score - before;
            plans.insert(0, (at, plan));
            return (gain > 0 && self.clears(gain, before)).then_some(FreeingPlan { gain, plans });
        }
        None
    }

    /// Returns the jobs of a GPU, last the one with the lowest score.
    fn leaving_last(&mut self, at: usize) -> Vec<JobId> {
        let mut jobs: Vec<(i64, JobId)> = Vec::new();
        for job in self.jobs(at) {
            jobs.push((self.row(at, job).iter().copied().max().unwrap_or(0), job));
        }
        jobs.sort_unstable_by(|a, b| b.cmp(a));
        jobs.into_iter().map(|(_, job)| job).collect()
    }

    /// Finds the GPU where a displaced job adds most, given `plans`.
    fn elsewhere(
        &mut self,
        from: usize,
        job: JobId,
        plans: &[(usize, Plan)],
    ) -> Option<(usize, Plan)> {
        let settings = self.scoring.settings;
        let mut order = self.index.most_idle(settings.searched);
        for at in self.index.fewest(settings.jobs_per_gpu_max, settings.searched) {
            if !order.contains(&at) {
                order.push(at);
            }
        }
        let mut best: Option<(i64, usize, Plan)> = None;
        for at in order.into_iter().filter(|at| *at != from) {
            if self.shifted.contains(&at) || self.quota_left(job).is_some() {
                continue;
            }
            self.spend(1)?;
            let planned = plans.iter().find(|(known, _)| *known == at).map(|(_, plan)| plan);
            let was = planned.map_or_else(|| self.current_score(at), |plan| plan.score);
            let mut jobs = planned.map_or_else(|| self.jobs(at), Plan::jobs);
            jobs.push(job);
            let minimum = best.as_ref().map(|(gain, ..)| was + gain);
            let Some(plan) = self.plan_for(at, &jobs, Some(job), minimum) else { continue };
            best = Some((plan.score - was, at, plan));
        }
        best.map(|(_, at, plan)| (at, plan))
    }
}
