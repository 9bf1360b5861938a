//! Two jobs on one slice, where that scores higher than a slice for each.
//!
//! The search of a GPU places pairs as it places jobs: a pair that may share is tried as one [`super::pairs::SlotUnit`], in every
//! slot of every layout. It shares in the way ([`SharingMode`]) that is predicted to do most there. The search
//! also tries all ways in which each has its own slot. Two share only if they are of one user, and the memory of both
//! fits:
//!
//! - **Under MPS**, with parts of the multiprocessors that add up to all of them (the co-execution
//!   study: that evens out slow-downs). Both jobs' demands must be known, since otherwise their
//!   speeds can't be predicted. On the papers' workloads without demands, guessed pairs cost more
//!   than they gained (mean time 1 to 4 % worse). An online job with a co-runner is no slower than
//!   alone on the smallest slice that holds it, which is what it requested.
//! - **Kernel by kernel** (FIKIT): one job, the holder, has the higher kernel priority, and the
//!   other, the filler, runs in its gaps. The filler is an offline job without a deadline. The
//!   holder may be any job; an online holder is slowed by [`super::Tessera::courtesy`] at most. An
//!   online job is in its slice's queue from its start, so that it is never stopped for
//!   co-location. Two online jobs never share kernel by kernel.
//!
//! Co-location never makes a job miss a deadline that it would meet alone. Two jobs share a slot
//! only where their joint throughput exceeds that of one job alone there by a margin
//! ([`super::Tessera::together`], [`super::Tessera::filled`]). The cost of stopping a job to change
//! its placement is included, and a job that shares already keeps its placement. At most two jobs
//! share a slot: in the study, the gain falls with each further co-runner.

use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};

use super::rounding::float;
use super::scoring::{CUT_MS, CurrentPlace, ScoredJob};
use super::search::Search;
use crate::decision::PlacedJob;
use crate::predictor::SharedPart;

/// The queue priorities of a holder's and of a filler's kernels, as in the pairs that were
/// measured.
pub(super) const HOLDS: Priority = Priority::HIGHEST;
pub(super) const FILLS: Priority = Priority::DEFAULT;

/// One job's part of a shared slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharingMode {
    /// A percentage of the slice's multiprocessors.
    Mps(SmPercent),
    /// A priority in the slice's kernel queue.
    Kernel(Priority),
}

impl SharingMode {
    pub(super) fn of(placed: PlacedJob) -> Option<Self> {
        placed.sm.map(Self::Mps).or(placed.kernel_priority.map(Self::Kernel))
    }

    pub(super) const fn placed_job(self, job: JobId, slot: Slot) -> PlacedJob {
        let alone = PlacedJob::alone(job, slot);
        match self {
            Self::Mps(sm) => PlacedJob { sm: Some(sm), ..alone },
            Self::Kernel(priority) => PlacedJob { kernel_priority: Some(priority), ..alone },
        }
    }
}

impl Search<'_, '_> {
    /// Returns whether a job's own properties allow sharing under MPS.
    pub(super) fn shares_parts(&self, job: JobId) -> bool {
        self.scoring.knowledge.jobs.facts(job).demand.is_some()
    }

    /// Returns whether a job is known as a kernel-level sharer.
    pub(super) fn is_kernel_sharer(&self, job: JobId) -> bool {
        self.index.kinds().iter().any(|at| {
            let largest = self.scoring.mig(*at).and_then(|mig| mig.geometry.largest());
            largest.is_some_and(|largest| {
                let view = self.scoring.view(*at);
                self.scoring
                    .knowledge
                    .predictor
                    .predict_shared_run(job, SharedPart::kernel(FILLS, &[]), view, largest)
                    .is_some()
            })
        })
    }

    /// Returns whether a job may be a filler, whose kernels wait for another job's.
    pub(super) fn may_fill(&self, job: JobId) -> bool {
        let known = self.scoring.knowledge.jobs.facts(job);
        !known.online && known.deadline.is_none()
    }

    /// Returns the score of a job in its current placement.
    pub(super) fn score_of_placed(&mut self, at: usize, placed: PlacedJob) -> i64 {
        let Some(slot) = placed.slot else { return 0 };
        let is_co_runner =
            |other: &&PlacedJob| other.slot == placed.slot && other.job != placed.job;
        let other = self.placements(at).iter().find(is_co_runner).copied();
        let other = other.and_then(|other| Some((other.job, SharingMode::of(other)?)));
        match (SharingMode::of(placed), other) {
            (None, _) | (Some(SharingMode::Kernel(_)), None) => {
                let number = self.scoring.mig(at).and_then(|mig| mig.layout_index().number(slot));
                match number {
                    Some(number) => self.row(at, placed.job)[number].max(0),
                    None => self.rows.odd(&self.scoring, self.index.kinds(), at, placed),
                }
            }
            (Some(tier), other) => {
                let score = self.shared(at, slot, (placed.job, tier), other, CurrentPlace::There);
                score.map_or(0, |(_, score)| score)
            }
        }
    }

    /// Returns the score of a job that keeps its part of a slice after its co-runner has ended.
    pub(super) fn left_behind(&mut self, at: usize, placed: PlacedJob) -> Option<(Slot, i64)> {
        let (slot, sm) = (placed.slot?, placed.sm?);
        let stays = (placed.job, SharingMode::Mps(sm));
        let (_, score) = self.shared(at, slot, stays, None, CurrentPlace::There)?;
        Some((slot, score))
    }

    /// Returns the placement of a job that has a slice to itself. A job that runs there keeps its
    /// part, unless all of the slice scores higher even with the cost of a stop. An online job
    /// enters the slice's queue at once.
    pub(super) fn place(&mut self, at: usize, job: JobId, slot: Slot) -> PlacedJob {
        let alone = PlacedJob::alone(job, slot);
        let known = self.index.gpu(at).placements.iter().find(|placed| placed.job == job).copied();
        if let Some(known) = known.filter(|placed| placed.slot == Some(slot)) {
            let number = self.scoring.mig(at).and_then(|mig| mig.layout_index().number(slot));
            let score = number.map(|number| self.row(at, job)[number]);
            let part = self.left_behind(at, known).map(|(_, score)| score);
            if known.sm.is_none() || part == score {
                return known;
            }
        }
        let knowledge = self.scoring.knowledge;
        let profile = self.scoring.mig(at).and_then(|mig| mig.geometry.profile(slot.profile));
        let queued = profile.filter(|_| knowledge.jobs.facts(job).online).and_then(|profile| {
            let part = SharedPart::kernel(HOLDS, &[]);
            knowledge.predictor.predict_shared_run(job, part, self.scoring.view(at), profile)
        });
        PlacedJob { kernel_priority: queued.map(|_| HOLDS), ..alone }
    }

    /// Returns a job's speed with a co-runner, as a fraction of its speed alone on the slice, and
    /// its score; `None` if the placement is not allowed.
    pub(super) fn shared(
        &mut self,
        at: usize,
        slot: Slot,
        (job, tier): (JobId, SharingMode),
        other: Option<(JobId, SharingMode)>,
        current: CurrentPlace,
    ) -> Option<(f64, i64)> {
        let facts = self.rows.facts(&self.scoring, self.index.kinds(), job);
        let profile = self.scoring.mig(at)?.geometry.profile(slot.profile)?;
        let (predictor, view) = (self.scoring.knowledge.predictor, self.scoring.view(at));
        let (alone, here) = match tier {
            SharingMode::Mps(sm) => {
                let part = |(other, tier)| match tier {
                    SharingMode::Mps(sm) => Some((other, sm)),
                    SharingMode::Kernel(_) => None,
                };
                let others: Vec<_> = other.into_iter().filter_map(part).collect();
                let part = SharedPart::Mps { sm, co_runners: &others };
                let here = predictor.predict_shared_run(job, part, view, profile)?;
                (predictor.time_alone(job, view, profile)?, here)
            }
            SharingMode::Kernel(priority) => {
                let place = |(other, tier)| match tier {
                    SharingMode::Kernel(priority) => Some((other, priority)),
                    SharingMode::Mps(_) => None,
                };
                let others: Vec<_> = other.into_iter().filter_map(place).collect();
                let time = |others| {
                    predictor.predict_shared_run(
                        job,
                        SharedPart::kernel(priority, others),
                        view,
                        profile,
                    )
                };
                let here = time(&others)?;
                (time(&[])?, here)
            }
        };
        if other.is_some() && !self.is_served(at, (job, tier), (alone, here), &facts, current) {
            return None;
        }
        let weighed = self.scoring.shared_time(here, profile);
        let score = self.scoring.score_of(at, &facts, weighed, current, profile)?;
        Some((float(alone) / float(here).max(1.0), score))
    }

    /// Returns whether an online job stays fast enough under co-location, and whether a job with a
    /// deadline meets it.
    fn is_served(
        &self,
        at: usize,
        (job, tier): (JobId, SharingMode),
        (alone, here): (Millis, Millis),
        facts: &ScoredJob,
        current: CurrentPlace,
    ) -> bool {
        let known = self.scoring.knowledge.jobs.facts(job);
        if known.online {
            let enough = match tier {
                SharingMode::Kernel(_) => Some(float(alone) * self.scoring.settings.courtesy),
                SharingMode::Mps(_) => self.smallest_time(at, job).map(float),
            };
            if enough.is_none_or(|enough| float(here) > enough) {
                return false;
            }
        }
        let Some(deadline) = known.deadline else { return true };
        let begins = float(self.scoring.now) + self.begins_in_ms(job, current);
        let late = |time: Millis| begins + float(time) * facts.left() > float(deadline);
        late(alone) || !late(here)
    }

    /// Returns how long a job takes on the smallest instance that holds it.
    fn smallest_time(&self, at: usize, job: JobId) -> Option<Millis> {
        let mig = self.scoring.mig(at)?;
        let time = |id| {
            let profile = mig.geometry.profile(id)?;
            let size = (profile.memory, profile.compute_slices);
            Some((
                size,
                self.scoring.knowledge.predictor.time_alone(job, self.scoring.view(at), profile)?,
            ))
        };
        let fits = mig.layout_index().profiles().iter().filter_map(|id| time(*id));
        fits.min().map(|(_, time)| time)
    }

    /// Returns how long a job may be delayed before it works, in milliseconds: its GPU may have to
    /// be partitioned, and its state restored.
    fn begins_in_ms(&self, job: JobId, current: CurrentPlace) -> f64 {
        let known = self.scoring.knowledge.jobs.facts(job);
        let price = known.migration_price.map_or(0.0, float);
        match (current, known.since) {
            (CurrentPlace::There, Some(since)) => {
                (float(since) + price + CUT_MS - float(self.scoring.now)).max(0.0)
            }
            (CurrentPlace::There | CurrentPlace::OnSameGpu | CurrentPlace::Elsewhere, _) => {
                price + CUT_MS
            }
        }
    }
}
