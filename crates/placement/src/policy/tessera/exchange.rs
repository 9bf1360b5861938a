//! Jobs that change places between GPUs, where the scores of both GPUs together rise.
//!
//! A GPU's own search keeps its jobs together, and [`super::freeing`] moves some for the sake of one that
//! waits. After both, pairs of GPUs are considered: one job moves to the other GPU, or two jobs
//! swap places, and all jobs of both GPUs are placed again. The pairs whose moved jobs can gain
//! most are tried first. An exchange has to clear the same hurdle as any change under running jobs,
//! with both moves counted. No job is moved if the move costs more than its remaining time.
//!
//! Each trial costs two searches of one GPU, which count towards the round's
//! [`super::Tessera::effort`].

use std::rc::Rc;

use tessera_model::JobId;

use super::search::{Plan, Search};
use crate::decision::PlacedJob;
use crate::placement_search::NO_PLACEMENT;

/// Exchanges that one round makes at most. Chosen: each stops up to two jobs, and the next round sees
/// the result.
const EXCHANGES_MAX: usize = 4;

/// Searches of one trial: one of each of the two GPUs.
const SEARCHES: usize = 2;

/// Two GPUs, and the job that moves from each to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ExchangeOffer {
    /// How much score the moved jobs would gain if they got the best placement there.
    hoped: i64,
    from: (usize, JobId),
    to: (usize, Option<JobId>),
}

/// A searched offer, and by how much it raises the scores of both GPUs.
struct Exchange {
    gain: i64,
    offer: ExchangeOffer,
    plans: [(usize, Plan); 2],
}

/// A GPU with the jobs that may leave it.
struct ExchangeSide {
    at: usize,
    kind: usize,
    movers: Vec<MovableJob>,
}

/// A job that may leave its GPU, with an upper bound of its gain by GPU model.
struct MovableJob {
    job: JobId,
    hopes: Vec<Option<i64>>,
}

impl Search<'_, '_> {
    /// Exchanges jobs between GPUs while that raises the score and searches are left.
    pub(super) fn exchange(&mut self) {
        for _ in 0..EXCHANGES_MAX {
            let Some(Exchange { offer, plans, .. }) = self.best_exchange() else { return };
            let text = match offer.to.1 {
                Some(other) => format!(
                    "jobs {} and {other} swap places, which serves both GPUs better",
                    offer.from.1
                ),
                None => format!("job {} moves, which frees more than it takes", offer.from.1),
            };
            for (at, plan) in plans {
                self.charge(at, &plan);
                self.commit(at, plan, text.clone());
            }
        }
    }

    fn best_exchange(&mut self) -> Option<Exchange> {
        let mut best: Option<Exchange> = None;
        for offer in self.offers() {
            if self.spend(SEARCHES).is_none() {
                break;
            }
            let Some(found) = self.tried(offer) else { continue };
            if best.as_ref().is_none_or(|known| found.gain > known.gain) {
                best = Some(found);
            }
        }
        best
    }

    /// Returns the possible exchanges, those with the largest possible gain first. Their number is
    /// limited to half of the searches that are left.
    fn offers(&mut self) -> Vec<ExchangeOffer> {
        // Only half of the searches, so that some are left for another pair of GPUs.
        let most = self.effort.div_ceil(2) / SEARCHES;
        if most == 0 {
            return Vec::new();
        }
        let searched = self.scoring.settings.searched;
        let mut gpus = self.index.most_idle(searched);
        for at in self.index.fewest(usize::MAX, searched) {
            if !gpus.contains(&at) && !self.index.gpu(at).placements.is_empty() {
                gpus.push(at);
            }
        }
        let sides: Vec<ExchangeSide> = gpus.into_iter().map(|at| self.side(at)).collect();
        let mut offers = Vec::new();
        for (place, a) in sides.iter().enumerate() {
            for (other, b) in sides.iter().enumerate().filter(|(other, _)| *other != place) {
                for ours in &a.movers {
                    let Some(hoped) = ours.hopes[b.kind] else { continue };
                    let from = (a.at, ours.job);
                    if hoped > 0 {
                        offers.push(ExchangeOffer { hoped, from, to: (b.at, None) });
                    }
                    for theirs in b.movers.iter().filter(|_| place < other) {
                        let Some(back) = theirs.hopes[a.kind] else { continue };
                        if hoped + back > 0 {
                            let to = (b.at, Some(theirs.job));
                            offers.push(ExchangeOffer { hoped: hoped + back, from, to });
                        }
                    }
                }
            }
        }
        if most < offers.len() {
            offers.select_nth_unstable_by(most, |x, y| y.cmp(x));
            offers.truncate(most);
        }
        offers.sort_unstable_by(|x, y| y.cmp(x));
        offers
    }

    /// Returns a GPU with the jobs that may leave it.
    fn side(&mut self, at: usize) -> ExchangeSide {
        let (kind, placements) = (self.index.gpu(at).kind, self.index.gpu(at).placements.clone());
        let mut movers = Vec::new();
        // Jobs that share a slice are left out: a search gives each job its own slice.
        if !placements.iter().any(PlacedJob::shares) {
            for placed in placements {
                if self.scoring.outlasts_move(self.index.kinds(), placed.job)
                    && self.quota_left(placed.job).is_none()
                {
                    movers.push(MovableJob { job: placed.job, hopes: self.hopes(at, placed) });
                }
            }
        }
        ExchangeSide { at, kind, movers }
    }

    /// Returns by how much the best placement on another GPU of each model would raise a job's
    /// score, less the cost of the move; nothing where it has no placement.
    fn hopes(&mut self, at: usize, placed: PlacedJob) -> Vec<Option<i64>> {
        let here = self.score_of_placed(at, placed);
        let kinds = self.index.kinds();
        let hopes = kinds.iter().enumerate().map(|(kind, first)| {
            let row = self.rows.row(&self.scoring, kinds, *first, kind, placed.job, None);
            let best = row.iter().copied().max().filter(|score| *score > 0)?;
            Some(best - here)
        });
        hopes.collect()
    }

    fn tried(&mut self, offer: ExchangeOffer) -> Option<Exchange> {
        let ((a, job), (b, other)) = (offer.from, offer.to);
        let before = self.present(a) + self.present(b);
        let mut ours = self.index.gpu(a).jobs();
        ours.retain(|known| *known != job);
        ours.extend(other);
        let mut theirs = self.index.gpu(b).jobs();
        theirs.retain(|known| Some(*known) != other);
        theirs.push(job);
        let enough = before + (before / 1_000 * self.scoring.settings.hurdle).max(0);
        let minimum = Some(enough - self.most(a, &ours));
        let there = self.plan_for(b, &theirs, Some(job), minimum)?;
        let here = self.plan_for(a, &ours, other, Some(enough - there.score))?;
        let gain = here.score + there.score - before;
        Some(Exchange { gain, offer, plans: [(a, here), (b, there)] })
    }

    /// Returns an upper bound of the scores of these jobs' placements on a GPU.
    fn most(&mut self, at: usize, jobs: &[JobId]) -> i64 {
        let rows: Vec<Rc<[i64]>> = jobs.iter().map(|job| self.row(at, *job)).collect();
        let rows: Vec<&[i64]> = rows.iter().map(|row| &**row).collect();
        self.scoring.mig(at).map_or(NO_PLACEMENT, |mig| mig.layout_index().most(&rows))
    }
}
