//! Better placements for running jobs while no job waits: on GPUs that became idle, and on their
//! own GPU.

use std::cmp::Reverse;

use tessera_model::JobId;

use super::pairs::SlotUnit;
use super::search::{Plan, Search};

/// The most moves to idle GPUs in one round. Chosen: each one is a search, and the next round
/// continues.
const SPREAD_MAX: usize = 8;

impl Search<'_, '_> {
    /// Moves jobs to idle GPUs while other GPUs have several jobs.
    pub(super) fn spread(&mut self) {
        for _ in 0..SPREAD_MAX {
            let best = self.index.empty_of_each_kind().into_iter().filter_map(|target| {
                let (gain, job, source) = self.best_move(target)?;
                Some((gain, Reverse(target), job, source))
            });
            let Some((_, Reverse(target), job, source)) = best.max() else { return };
            let Some(rest) = self.plan(source, None, Some(job), None) else { return };
            let Some(there) = self.plan(target, Some(job), None, None) else { return };
            self.charge(source, &rest);
            self.charge(target, &there);
            self.commit(source, rest, format!("job {job} moves to an idle GPU"));
            self.commit(target, there, format!("job {job} gets this GPU alone"));
        }
    }

    fn best_move(&mut self, target: usize) -> Option<(i64, JobId, usize)> {
        let mut best: Option<(i64, JobId, usize)> = None;
        let searched = self.scoring.settings.searched;
        let mut sources = self.index.most_shared(searched);
        // Even a job that is alone on its GPU may be faster on another model.
        for source in self.index.of_other_kinds(target, searched) {
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        for source in sources {
            let before = self.present(source);
            for job in self.index.gpu(source).jobs() {
                let Some(there) = self.plan(target, Some(job), None, None) else { continue };
                let Some(rest) = self.plan(source, None, Some(job), None) else { continue };
                let gain = there.score + rest.score - before;
                if self.clears(gain, before) && best.is_none_or(|(known, ..)| gain > known) {
                    best = Some((gain, job, source));
                }
            }
        }
        best
    }

    /// Repartitions GPUs where that raises the score: those with idle slices, and, within the
    /// effort, those with the most jobs. The latter jobs may now score higher on each other's
    /// slices.
    pub(super) fn tidy(&mut self) {
        let searched = self.scoring.settings.searched;
        let idle = self.index.most_idle(searched);
        let mut shared = self.index.most_shared(searched.min(self.effort));
        shared.retain(|at| !idle.contains(at));
        let free = idle.len();
        for (place, at) in idle.into_iter().chain(shared).enumerate() {
            if place >= free && self.spend(1).is_none() {
                break;
            }
            let before = self.present(at);
            let Some(plan) = self.gathered(at) else { continue };
            if self.clears(plan.score - before, before) {
                self.charge(at, &plan);
                self.commit(at, plan, "the new slices fit its jobs better".to_owned());
            }
        }
    }

    /// Searches the best placements of a GPU's jobs with two of them in one slot, and repeats that
    /// while it raises the score.
    fn gathered(&mut self, at: usize) -> Option<Plan> {
        let mut best = self.plan(at, None, None, None)?;
        let mut units = SlotUnit::gathered(&best.jobs(), &best.placements);
        loop {
            let mut better = None;
            for way in self.pairings(&units) {
                if let Some(plan) = self.plan_units(at, &way, None, Some(best.score)) {
                    best = plan;
                    better = Some(way);
                }
            }
            match better {
                Some(way) => units = way,
                None => return Some(best),
            }
        }
    }

    /// Takes searches from the round's budget for improving placements; `None` if the count or the
    /// time is used up.
    pub(super) fn spend(&mut self, searches: usize) -> Option<()> {
        let left = self.effort.checked_sub(searches)?;
        let spent = self.scoring.settings.effort.saturating_sub(self.effort);
        if !self.scoring.knowledge.budget.allows(spent) {
            self.effort = 0;
            return None;
        }
        self.effort = left;
        Some(())
    }
}
