//! Pairs among a GPU's jobs, as a search places them: which jobs could share a slot, in which way, and
//! their score there. [`super::colocation`] has the rules for them.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::JobId;
use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;

use super::colocation::{FILLS, HOLDS, SharingMode};
use super::scoring::CurrentPlace;
use super::search::Search;
use crate::decision::PlacedJob;
use crate::placement_search::NO_PLACEMENT;

/// The first job's percentages of the multiprocessors that are tried for a pair. They are equal
/// parts and the co-execution study's 70-30, with which a job that fills the GPU no longer starves
/// its co-runner (rule 3).
const PARTS: [u8; 3] = [50, 70, 30];

/// The jobs that get a slot: one job, or two that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SlotUnit {
    One(JobId),
    Two(JobId, JobId),
}

impl SlotUnit {
    pub(super) fn has(self, job: JobId) -> bool {
        match self {
            Self::One(only) => only == job,
            Self::Two(first, second) => first == job || second == job,
        }
    }

    /// Groups jobs that share a slot now; all others are alone.
    pub(super) fn gathered(jobs: &[JobId], placements: &[PlacedJob]) -> Vec<Self> {
        let slot = |job: JobId| placements.iter().find(|placed| placed.job == job)?.slot;
        let mut units: Vec<Self> = Vec::new();
        for (place, job) in jobs.iter().enumerate() {
            let is_co_runner = |other: &&JobId| slot(*job).is_some() && slot(**other) == slot(*job);
            if let Some(first) = jobs[..place].iter().find(is_co_runner) {
                let unit = units.iter_mut().find(|unit| **unit == Self::One(*first));
                if let Some(unit) = unit {
                    *unit = Self::Two(*first, *job);
                    continue;
                }
            }
            units.push(Self::One(*job));
        }
        units
    }

    /// Splits every pair.
    pub(super) fn apart(units: &[Self]) -> Vec<Self> {
        let split = |unit: &Self| match *unit {
            Self::One(job) => vec![Self::One(job)],
            Self::Two(job, other) => vec![Self::One(job), Self::One(other)],
        };
        units.iter().flat_map(split).collect()
    }
}

/// The score of two jobs in each slot of a GPU if they share it, and the way in which they share.
#[derive(Debug)]
pub(super) struct PairScores {
    pub(super) row: Rc<[i64]>,
    ways: Vec<Option<[SharingMode; 2]>>,
}

impl Search<'_, '_> {
    /// Returns the new ways in which two of a GPU's jobs, or one of them and another job, could
    /// share a slot, as units.
    pub(super) fn pairings(&self, units: &[SlotUnit]) -> Vec<Vec<SlotUnit>> {
        let companion = |unit: &SlotUnit| match *unit {
            SlotUnit::One(job) if self.is_sociable(job) => {
                Some((job, self.scoring.knowledge.jobs.facts(job).co_runner?.user))
            }
            SlotUnit::One(_) | SlotUnit::Two(..) => None,
        };
        let known: Vec<_> = units.iter().map(companion).collect();
        let mut ways = Vec::new();
        for (place, host) in known.iter().enumerate() {
            let Some((host, user)) = host else { continue };
            for (other, guest) in known.iter().enumerate().skip(place + 1) {
                let Some((guest, _)) = guest.as_ref().filter(|(_, whose)| whose == user) else {
                    continue;
                };
                let mut units = units.to_vec();
                units[place] = SlotUnit::Two(*host, *guest);
                units.remove(other);
                ways.push(units);
            }
        }
        ways
    }

    /// Returns whether a job's own properties allow it to share a slice in any way.
    pub(super) fn is_sociable(&self, job: JobId) -> bool {
        let known = self.scoring.knowledge.jobs.facts(job).co_runner.is_some();
        known && (self.shares_parts(job) || self.is_kernel_sharer(job))
    }

    /// Returns the GPUs on which a host is searched: those with the most jobs, and some on which a
    /// job is alone in a slice's queue.
    pub(super) fn shareable(&self) -> Vec<usize> {
        let searched = self.scoring.settings.searched;
        let mut order = self.index.most_shared(searched);
        let holders = self.index.holders(searched);
        let promised = self.promised.keys().copied().take(searched);
        for at in holders.into_iter().chain(promised) {
            if !order.contains(&at) {
                order.push(at);
            }
        }
        order
    }

    /// Returns the jobs on a GPU, including those that this round plans.
    pub(super) fn placements(&self, at: usize) -> &[PlacedJob] {
        let promised = self.promised.get(&at).map(|plan| &plan.placements);
        promised.unwrap_or(&self.index.gpu(at).placements)
    }

    /// Returns the ways in which two jobs could share, as far as both allow it; `now` is how they
    /// share already, if they do.
    fn ways(
        &self,
        job: JobId,
        other: JobId,
        now: Option<[SharingMode; 2]>,
    ) -> Vec<[SharingMode; 2]> {
        let share = |part: u8| {
            let sm = |part: u8| SmPercent::try_from(part).ok().map(SharingMode::Mps);
            Some([sm(part)?, sm(100_u8.checked_sub(part)?)?])
        };
        let kernel_sharers = [
            [SharingMode::Kernel(HOLDS), SharingMode::Kernel(FILLS)],
            [SharingMode::Kernel(FILLS), SharingMode::Kernel(HOLDS)],
        ];
        let known = PARTS.into_iter().filter_map(share).chain(kernel_sharers);
        let mut ways: Vec<[SharingMode; 2]> = now.into_iter().collect();
        ways.extend(known.filter(|way| Some(*way) != now));
        let allowed = |way: &[SharingMode; 2]| match way {
            [SharingMode::Kernel(HOLDS), _] => self.may_fill(other),
            [SharingMode::Kernel(_), _] => self.may_fill(job),
            [SharingMode::Mps(_), _] => self.shares_parts(job) && self.shares_parts(other),
        };
        ways.retain(|way| Some(*way) == now || allowed(way));
        ways
    }

    /// Computes the score of two jobs in each slot of a GPU if they share it.
    pub(super) fn pair(&mut self, at: usize, job: JobId, other: JobId) -> Option<Rc<PairScores>> {
        let key = (job, other, at);
        if let Some(pair) = self.pairs.get(&key) {
            return pair.clone();
        }
        let pair = self.paired(at, job, other).map(Rc::new);
        self.pairs.insert(key, pair.clone());
        pair
    }

    fn paired(&mut self, at: usize, job: JobId, other: JobId) -> Option<PairScores> {
        let mig = self.scoring.mig(at)?;
        let layout_index = mig.layout_index();
        let jobs = self.scoring.knowledge.jobs;
        let memory = |job: JobId| jobs.facts(job).co_runner.map(|own| own.memory.get());
        let needed = memory(job)? + memory(other)?;
        let posted =
            |job: JobId| self.index.gpu(at).placements.iter().find(|s| s.job == job).copied();
        let known = [posted(job), posted(other)];
        let together = |[a, b]: [Option<PlacedJob>; 2]| {
            let (a, b) = (a?, b?);
            (a.slot == b.slot).then_some([SharingMode::of(a)?, SharingMode::of(b)?])
        };
        let now = together(known);
        let ways = self.ways(job, other, now);
        let mut best_on = |slot: Slot, home: bool| {
            let profile = mig.geometry.profile(slot.profile);
            if profile.is_none_or(|profile| profile.memory.get() < needed) {
                return None;
            }
            let mut best: Option<(i64, [SharingMode; 2])> = None;
            for way in &ways {
                let score = self.score_together(at, slot, [job, other], *way, known, home);
                if let Some(score) = score
                    && best.is_none_or(|(most, _)| score > most)
                {
                    best = Some((score, *way));
                }
            }
            best
        };
        let homes = known.map(|placed| placed.and_then(|placed| placed.slot));
        let mut by_profile = BTreeMap::new();
        let (mut row, mut chosen) = (Vec::new(), Vec::new());
        for number in 0..layout_index.slots().len() {
            let slot = layout_index.slots()[number];
            let found = match homes.contains(&Some(slot)) {
                true => best_on(slot, true),
                false => *by_profile.entry(slot.profile).or_insert_with(|| best_on(slot, false)),
            };
            row.push(found.map_or(NO_PLACEMENT, |(score, _)| score));
            chosen.push(found.map(|(_, way)| way));
        }
        row.iter()
            .any(|score| *score != NO_PLACEMENT)
            .then(|| PairScores { row: row.into(), ways: chosen })
    }

    /// Returns the score of two jobs that share a slot in one way; nothing if they may not, or if
    /// their joint throughput would be too low.
    fn score_together(
        &mut self,
        at: usize,
        slot: Slot,
        [job, other]: [JobId; 2],
        [mine, yours]: [SharingMode; 2],
        known: [Option<PlacedJob>; 2],
        home: bool,
    ) -> Option<i64> {
        let current = |placed: PlacedJob, known: Option<PlacedJob>| match known {
            Some(known) if home && known == placed => CurrentPlace::There,
            Some(_) => CurrentPlace::OnSameGpu,
            None => CurrentPlace::Elsewhere,
        };
        let first = current(mine.placed_job(job, slot), known[0]);
        let second = current(yours.placed_job(other, slot), known[1]);
        let (ours, kept) = self.shared(at, slot, (job, mine), Some((other, yours)), first)?;
        let (theirs, added) = self.shared(at, slot, (other, yours), Some((job, mine)), second)?;
        let enough = match mine {
            SharingMode::Mps(_) => self.scoring.settings.together,
            SharingMode::Kernel(_) => self.scoring.settings.filled,
        };
        let sit_so = first == CurrentPlace::There && second == CurrentPlace::There;
        (sit_so || ours + theirs >= enough).then_some(kept + added)
    }

    /// Returns the placements of two jobs in a slot; nothing if they may not share it.
    pub(super) fn pair_placements(
        &mut self,
        at: usize,
        job: JobId,
        other: JobId,
        slot: Slot,
    ) -> Option<[PlacedJob; 2]> {
        let number = self.scoring.mig(at)?.layout_index().number(slot)?;
        let [mine, yours] = self.pair(at, job, other)?.ways.get(number).copied().flatten()?;
        Some([mine.placed_job(job, slot), yours.placed_job(other, slot)])
    }
}
