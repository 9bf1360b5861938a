//! Two jobs on one slice, where that is worth more than a slice for each.
//!
//! The search of a GPU seats pairs as it seats jobs: who may share is tried as one [`Unit`], in every
//! slot of every layout, in whichever way ([`Tier`]) is predicted to do most there, beside all ways
//! in which each has a slot of its own. Two share only if they are of one user, and the memory of both
//! fits:
//!
//! - **Under MPS**, with parts of the multiprocessors that add up to all of them (the co-execution
//!   study: that evens slow-downs out). Only where it is known what both keep busy: without that
//!   nothing predicts how they get on, and on the papers' workloads without demands guessed pairs cost
//!   more than they brought (mean time 1 to 4 % worse). Who serves answers is no slower beside another
//!   than alone on the smallest slice that holds it, which is what it asked for.
//! - **Kernel by kernel** (FIKIT): one holds the slice by its priority, the other fills its gaps. The
//!   one that fills is an offline job without a deadline. The one that holds may be anybody; who
//!   serves answers is slowed by [`super::Tessera::courtesy`] at most. An online job sits in its
//!   slice's queue from its start, so that nobody has to stop it for the sake of company; two online
//!   jobs never take turns.
//!
//! Nobody is made late that would be in time without company. Two share a slot only where both together
//! do so much more than one alone there ([`super::Tessera::together`], [`super::Tessera::filled`]); the
//! stop of whom that makes change its seat is paid for, and who sits so already keeps its seat. A pair
//! stays two: the study's gains fall with each one more.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};

use super::search::Search;
use super::table::{CUT_MS, Facts, Seated, float};
use crate::decision::Seat;
use crate::seating::NO_SEAT;

/// Parts that a host without one is offered, in percent.
const PARTS: [u8; 3] = [50, 70, 30];

/// Where the kernels of one who holds its slice stand, and those of one who fills its gaps: as in
/// the pairs that were measured.
const HOLDS: Priority = Priority::HIGHEST;
const FILLS: Priority = Priority::DEFAULT;

/// One's side of a shared slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// A part of its multiprocessors.
    Mps(SmPercent),
    /// A place in its queue.
    Turn(Priority),
}

impl Tier {
    fn of(seat: Seat) -> Option<Self> {
        seat.sm.map(Self::Mps).or(seat.turn.map(Self::Turn))
    }

    const fn seat(self, job: JobId, slot: Slot) -> Seat {
        let alone = Seat::alone(job, slot);
        match self {
            Self::Mps(sm) => Seat { sm: Some(sm), ..alone },
            Self::Turn(priority) => Seat { turn: Some(priority), ..alone },
        }
    }
}

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

    /// Tells whether a job may share multiprocessors as far as it is concerned.
    fn shares_parts(&self, job: JobId) -> bool {
        self.table.forecast.demand(job).is_some()
    }

    /// Tells whether anything is known of how a job takes turns.
    fn takes_turns(&self, job: JobId) -> bool {
        self.desk.kinds().iter().any(|at| {
            let largest = self.table.mig(*at).and_then(|mig| mig.geometry.largest());
            largest.is_some_and(|largest| {
                let view = self.table.view(*at);
                self.table.forecast.time_in_turns(job, FILLS, &[], view, largest).is_some()
            })
        })
    }

    /// Tells whether a job may be held up by another one.
    fn may_fill(&self, job: JobId) -> bool {
        let forecast = self.table.forecast;
        !forecast.online(job) && forecast.deadline(job).is_none()
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

    /// Returns the seats of two in a slot.
    pub(super) fn pair_seats(
        &mut self,
        at: usize,
        job: JobId,
        other: JobId,
        slot: Slot,
    ) -> Vec<Seat> {
        let number = self.table.mig(at).and_then(|mig| mig.atlas().number(slot));
        let way = self.pair(at, job, other).zip(number);
        let way = way.and_then(|(pair, number)| pair.ways.get(number).copied().flatten());
        way.map_or_else(Vec::new, |[mine, yours]| {
            vec![mine.seat(job, slot), yours.seat(other, slot)]
        })
    }

    /// Returns what a job is worth where it sits.
    pub(super) fn seated(&mut self, at: usize, seat: Seat) -> i64 {
        let Some(slot) = seat.slot else { return 0 };
        let beside = |other: &&Seat| other.slot == seat.slot && other.job != seat.job;
        let other = self.seats(at).iter().find(beside).copied();
        let other = other.and_then(|other| Some((other.job, Tier::of(other)?)));
        match (Tier::of(seat), other) {
            (None, _) | (Some(Tier::Turn(_)), None) => {
                let number = self.table.mig(at).and_then(|mig| mig.atlas().number(slot));
                match number {
                    Some(number) => self.row(at, seat.job)[number].max(0),
                    None => self.rows.odd(&self.table, self.desk.kinds(), at, seat),
                }
            }
            (Some(tier), other) => {
                let worth = self.shared(at, slot, (seat.job, tier), other, Seated::There);
                worth.map_or(0, |(_, worth)| worth)
            }
        }
    }

    /// Returns what a job is worth that keeps its part of a slice which nobody else has any more.
    pub(super) fn left_behind(&mut self, at: usize, seat: Seat) -> Option<(Slot, i64)> {
        let (slot, sm) = (seat.slot?, seat.sm?);
        let stays = (seat.job, Tier::Mps(sm));
        let (_, worth) = self.shared(at, slot, stays, None, Seated::There)?;
        Some((slot, worth))
    }

    /// Returns the seat of a job that has a slice to itself: where it sits already it keeps what it
    /// has, unless all of the slice is worth a stop to it; who serves answers gets its place in the
    /// slice's queue at once.
    pub(super) fn place(&mut self, at: usize, job: JobId, slot: Slot) -> Seat {
        let alone = Seat::alone(job, slot);
        let known = self.desk.post(at).seats.iter().find(|seat| seat.job == job).copied();
        if let Some(known) = known.filter(|seat| seat.slot == Some(slot)) {
            let number = self.table.mig(at).and_then(|mig| mig.atlas().number(slot));
            let worth = number.map(|number| self.row(at, job)[number]);
            let part = self.left_behind(at, known).map(|(_, worth)| worth);
            if known.sm.is_none() || part == worth {
                return known;
            }
        }
        let forecast = self.table.forecast;
        let profile = self.table.mig(at).and_then(|mig| mig.geometry.profile(slot.profile));
        let queued = profile.filter(|_| forecast.online(job)).and_then(|profile| {
            forecast.time_in_turns(job, HOLDS, &[], self.table.view(at), profile)
        });
        Seat { turn: queued.map(|_| HOLDS), ..alone }
    }

    /// Returns how fast a job is beside another, in parts of what it is alone on the slice, and what
    /// it is worth there; `None` if it must not be there.
    fn shared(
        &mut self,
        at: usize,
        slot: Slot,
        (job, tier): (JobId, Tier),
        other: Option<(JobId, Tier)>,
        seated: Seated,
    ) -> Option<(f64, i64)> {
        let facts = self.rows.facts(&self.table, self.desk.kinds(), job);
        let profile = self.table.mig(at)?.geometry.profile(slot.profile)?;
        let (forecast, view) = (self.table.forecast, self.table.view(at));
        let (alone, here) = match tier {
            Tier::Mps(sm) => {
                let part = |(other, tier)| match tier {
                    Tier::Mps(sm) => Some((other, sm)),
                    Tier::Turn(_) => None,
                };
                let others: Vec<_> = other.into_iter().filter_map(part).collect();
                let here = forecast.time_beside(job, sm, &others, view, profile)?;
                (forecast.time(job, view, profile)?, here)
            }
            Tier::Turn(priority) => {
                let place = |(other, tier)| match tier {
                    Tier::Turn(priority) => Some((other, priority)),
                    Tier::Mps(_) => None,
                };
                let others: Vec<_> = other.into_iter().filter_map(place).collect();
                let here = forecast.time_in_turns(job, priority, &others, view, profile)?;
                (forecast.time_in_turns(job, priority, &[], view, profile)?, here)
            }
        };
        if other.is_some() && !self.is_served(at, (job, tier), (alone, here), &facts, seated) {
            return None;
        }
        let whole_time = self.table.whole_time(at, job);
        let worth = self.table.worth_of(at, job, &facts, (here, whole_time), seated, profile)?;
        Some((float(alone) / float(here).max(1.0), worth))
    }

    /// Tells whether a job is served in company as it has to be: if somebody waits for its answers, or
    /// for its end.
    fn is_served(
        &self,
        at: usize,
        (job, tier): (JobId, Tier),
        (alone, here): (Millis, Millis),
        facts: &Facts,
        seated: Seated,
    ) -> bool {
        let forecast = self.table.forecast;
        if forecast.online(job) {
            let enough = match tier {
                Tier::Turn(_) => Some(float(alone) * self.table.settings.courtesy),
                Tier::Mps(_) => self.smallest_time(at, job).map(float),
            };
            if enough.is_none_or(|enough| float(here) > enough) {
                return false;
            }
        }
        let Some(deadline) = forecast.deadline(job) else { return true };
        let begins = float(self.table.now) + self.begins_in_ms(job, seated);
        let late = |time: Millis| begins + float(time) * facts.left() > float(deadline);
        late(alone) || !late(here)
    }

    /// Returns how long a job takes on the smallest instance that holds it.
    fn smallest_time(&self, at: usize, job: JobId) -> Option<Millis> {
        let mig = self.table.mig(at)?;
        let time = |id| {
            let profile = mig.geometry.profile(id)?;
            let size = (profile.memory, profile.compute_slices);
            Some((size, self.table.forecast.time(job, self.table.view(at), profile)?))
        };
        let fits = mig.atlas().profiles().iter().filter_map(|id| time(*id));
        fits.min().map(|(_, time)| time)
    }

    /// Returns for how long a job may not work yet, in milliseconds: its GPU may have to be cut, and it
    /// to be restored.
    fn begins_in_ms(&self, job: JobId, seated: Seated) -> f64 {
        let forecast = self.table.forecast;
        let price = forecast.move_price(job).map_or(0.0, float);
        match (seated, forecast.since(job)) {
            (Seated::There, Some(since)) => {
                (float(since) + price + CUT_MS - float(self.table.now)).max(0.0)
            }
            (Seated::There | Seated::Beside | Seated::Elsewhere, _) => price + CUT_MS,
        }
    }
}
