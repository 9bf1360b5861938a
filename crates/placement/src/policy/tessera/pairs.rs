//! Pairs among a GPU's jobs, as a search seats them: who could share a slot, in which way, and
//! what both are worth there. What holds for them stands in [`super::company`].

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::JobId;
use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;

use super::company::{FILLS, HOLDS, Tier};
use super::search::Search;
use super::table::Seated;
use crate::decision::Seat;
use crate::seating::NO_SEAT;

/// Parts of the multiprocessors that two are offered, in percent: those of the first. Equal ones, and the
/// co-execution study's 70-30, with which one that fills the GPU no longer starves its partner (rule 3).
const PARTS: [u8; 3] = [50, 70, 30];

/// Who gets a slot: one job, or two that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    One(JobId),
    Two(JobId, JobId),
}

impl Unit {
    pub(super) fn has(self, job: JobId) -> bool {
        match self {
            Self::One(only) => only == job,
            Self::Two(first, second) => first == job || second == job,
        }
    }

    /// Gathers jobs into those that share a slot as they sit, and the others.
    pub(super) fn gathered(jobs: &[JobId], seats: &[Seat]) -> Vec<Self> {
        let slot = |job: JobId| seats.iter().find(|seat| seat.job == job)?.slot;
        let mut units: Vec<Self> = Vec::new();
        for (place, job) in jobs.iter().enumerate() {
            let beside = |other: &&JobId| slot(*job).is_some() && slot(**other) == slot(*job);
            if let Some(first) = jobs[..place].iter().find(beside) {
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

/// What two are worth in each slot of a GPU if they share it, and in which way.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) row: Rc<[i64]>,
    ways: Vec<Option<[Tier; 2]>>,
}

impl Search<'_, '_> {
    /// Returns the ways in which two of a GPU's jobs, or one of them and one more, could newly share
    /// a slot, as units.
    pub(super) fn companies(&self, units: &[Unit]) -> Vec<Vec<Unit>> {
        let companion = |unit: &Unit| match *unit {
            Unit::One(job) if self.is_sociable(job) => {
                Some((job, self.table.forecast.companion(job)?.user))
            }
            Unit::One(_) | Unit::Two(..) => None,
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
                units[place] = Unit::Two(*host, *guest);
                units.remove(other);
                ways.push(units);
            }
        }
        ways
    }

    /// Tells whether a job may share a slice at all, as far as it is concerned.
    pub(super) fn is_sociable(&self, job: JobId) -> bool {
        let known = self.table.forecast.companion(job).is_some();
        known && (self.shares_parts(job) || self.takes_turns(job))
    }

    /// Returns the GPUs on which a host is looked for: those with the most jobs, and some on which
    /// one holds its slice alone.
    pub(super) fn shareable(&self) -> Vec<usize> {
        let searched = self.table.settings.searched;
        let mut order = self.desk.most_shared(searched);
        let holders = self.desk.holders(searched);
        let promised = self.promised.keys().copied().take(searched);
        for at in holders.into_iter().chain(promised) {
            if !order.contains(&at) {
                order.push(at);
            }
        }
        order
    }

    /// Returns who sits on a GPU, or was promised to.
    pub(super) fn seats(&self, at: usize) -> &[Seat] {
        let promised = self.promised.get(&at).map(|plan| &plan.seats);
        promised.unwrap_or(&self.desk.post(at).seats)
    }

    /// Returns the ways in which two could share, as far as both allow it; `now` is how they sit, if
    /// they do so already.
    fn ways(&self, job: JobId, other: JobId, now: Option<[Tier; 2]>) -> Vec<[Tier; 2]> {
        let share = |part: u8| {
            let sm = |part: u8| SmPercent::try_from(part).ok().map(Tier::Mps);
            Some([sm(part)?, sm(100_u8.checked_sub(part)?)?])
        };
        let turns =
            [[Tier::Turn(HOLDS), Tier::Turn(FILLS)], [Tier::Turn(FILLS), Tier::Turn(HOLDS)]];
        let known = PARTS.into_iter().filter_map(share).chain(turns);
        let mut ways: Vec<[Tier; 2]> = now.into_iter().collect();
        ways.extend(known.filter(|way| Some(*way) != now));
        let allowed = |way: &[Tier; 2]| match way {
            [Tier::Turn(HOLDS), _] => self.may_fill(other),
            [Tier::Turn(_), _] => self.may_fill(job),
            [Tier::Mps(_), _] => self.shares_parts(job) && self.shares_parts(other),
        };
        ways.retain(|way| Some(*way) == now || allowed(way));
        ways
    }

    /// Works out what two are worth in each slot of a GPU if they share it.
    pub(super) fn pair(&mut self, at: usize, job: JobId, other: JobId) -> Option<Rc<Pair>> {
        let key = (job, other, at);
        if let Some(pair) = self.pairs.get(&key) {
            return pair.clone();
        }
        let pair = self.paired(at, job, other).map(Rc::new);
        self.pairs.insert(key, pair.clone());
        pair
    }

    fn paired(&mut self, at: usize, job: JobId, other: JobId) -> Option<Pair> {
        let mig = self.table.mig(at)?;
        let atlas = mig.atlas();
        let forecast = self.table.forecast;
        let needed =
            forecast.companion(job)?.memory.get() + forecast.companion(other)?.memory.get();
        let posted = |job: JobId| self.desk.post(at).seats.iter().find(|s| s.job == job).copied();
        let known = [posted(job), posted(other)];
        let together = |[a, b]: [Option<Seat>; 2]| {
            let (a, b) = (a?, b?);
            (a.slot == b.slot).then_some([Tier::of(a)?, Tier::of(b)?])
        };
        let now = together(known);
        let ways = self.ways(job, other, now);
        let mut best_on = |slot: Slot, home: bool| {
            let profile = mig.geometry.profile(slot.profile);
            if profile.is_none_or(|profile| profile.memory.get() < needed) {
                return None;
            }
            let mut best: Option<(i64, [Tier; 2])> = None;
            for way in &ways {
                let worth = self.worth_together(at, slot, [job, other], *way, known, home);
                if let Some(worth) = worth
                    && best.is_none_or(|(most, _)| worth > most)
                {
                    best = Some((worth, *way));
                }
            }
            best
        };
        let homes = known.map(|seat| seat.and_then(|seat| seat.slot));
        let mut by_profile = BTreeMap::new();
        let (mut row, mut chosen) = (Vec::new(), Vec::new());
        for number in 0..atlas.slots().len() {
            let slot = atlas.slots()[number];
            let found = match homes.contains(&Some(slot)) {
                true => best_on(slot, true),
                false => *by_profile.entry(slot.profile).or_insert_with(|| best_on(slot, false)),
            };
            row.push(found.map_or(NO_SEAT, |(worth, _)| worth));
            chosen.push(found.map(|(_, way)| way));
        }
        row.iter().any(|worth| *worth != NO_SEAT).then(|| Pair { row: row.into(), ways: chosen })
    }

    /// Returns what two are worth who share a slot in one way; nothing if they may not, or if too
    /// little would be done so.
    fn worth_together(
        &mut self,
        at: usize,
        slot: Slot,
        [job, other]: [JobId; 2],
        [mine, yours]: [Tier; 2],
        known: [Option<Seat>; 2],
        home: bool,
    ) -> Option<i64> {
        let seated = |seat: Seat, known: Option<Seat>| match known {
            Some(known) if home && known == seat => Seated::There,
            Some(_) => Seated::Beside,
            None => Seated::Elsewhere,
        };
        let first = seated(mine.seat(job, slot), known[0]);
        let second = seated(yours.seat(other, slot), known[1]);
        let (ours, kept) = self.shared(at, slot, (job, mine), Some((other, yours)), first)?;
        let (theirs, added) = self.shared(at, slot, (other, yours), Some((job, mine)), second)?;
        let enough = match mine {
            Tier::Mps(_) => self.table.settings.together,
            Tier::Turn(_) => self.table.settings.filled,
        };
        let sit_so = first == Seated::There && second == Seated::There;
        (sit_so || ours + theirs >= enough).then_some(kept + added)
    }

    /// Returns the seats of two in a slot; nothing if they may not share it.
    pub(super) fn pair_seats(
        &mut self,
        at: usize,
        job: JobId,
        other: JobId,
        slot: Slot,
    ) -> Option<[Seat; 2]> {
        let number = self.table.mig(at)?.atlas().number(slot)?;
        let [mine, yours] = self.pair(at, job, other)?.ways.get(number).copied().flatten()?;
        Some([mine.seat(job, slot), yours.seat(other, slot)])
    }
}
