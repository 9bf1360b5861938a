//! Two jobs on one slice, for a job that finds none of its own.
//!
//! In one of two ways ([`Tier`]), whichever is predicted to do more, and only with another job of its
//! user whose memory leaves room:
//!
//! - **Under MPS**, with parts of the multiprocessors that add up to all of them (the co-execution
//!   study: that evens slow-downs out). Only offline jobs without a deadline, and only where it is
//!   known what both keep busy: without that nothing predicts how they get on, and on the papers'
//!   workloads without demands guessed pairs cost more than they brought (mean time 1 to 4 % worse).
//! - **Kernel by kernel** (FIKIT): one holds the slice by its priority, the other fills its gaps. The
//!   one that fills is an offline job without a deadline. The one that holds may be anybody; who
//!   serves answers is slowed by [`super::Tessera::courtesy`] at most, and nobody is made late that
//!   would be in time without company. An online job sits in its slice's queue from its start, so that
//!   nobody has to stop it for the sake of company; two online jobs never share a slice.
//!
//! A job sits down beside another only where the two do more than the one alone, with the stop of the
//! host paid for whose seat changes; a host that sits so already keeps its seat. A pair stays two: the
//! study's gains fall with each one more.

use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{Bytes, JobId, Millis};

use super::search::{Plan, Search};
use super::table::{CUT_MS, Facts, Seated, float, float_of};
use crate::decision::Seat;
use crate::view::QueuedJob;

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

/// A guest beside its host.
struct Pair {
    gain: i64,
    at: usize,
    host: Seat,
    guest: Seat,
}

impl Search<'_, '_> {
    /// Seats a job beside another where both together do most; `false` if that pays nowhere.
    pub(super) fn join(&mut self, job: &QueuedJob) -> bool {
        let Some(guest) = self.table.forecast.companion(job.id) else { return false };
        if !self.sociable(job.id) && !self.takes_turns(job.id) {
            return false;
        }
        let mut best: Option<Pair> = None;
        for at in self.shareable() {
            for host in self.hosts(at, &guest.user, guest.memory) {
                let found = self.beside(at, host, job.id);
                if let Some(pair) = found
                    && best.as_ref().is_none_or(|known| pair.gain > known.gain)
                {
                    best = Some(pair);
                }
            }
        }
        let Some(Pair { gain, at, host, guest }) = best else { return false };
        let before = self.promised.get(&at).map(|plan| plan.worth);
        let worth = before.unwrap_or_else(|| self.present(at)) + gain;
        let others = self.seats(at).iter().filter(|seat| seat.job != host.job).copied();
        let seats: Vec<Seat> = others.chain([host, guest]).collect();
        let layout = match self.promised.get(&at) {
            Some(plan) => plan.layout.clone(),
            None => self.desk.post(at).layout.clone(),
        };
        let plan = Plan { layout, seats, worth };
        if !self.allowed(at, &plan) {
            return false;
        }
        self.charge(at, &plan);
        self.desk.promise(at, plan.seats.len());
        self.promised.insert(at, plan);
        true
    }

    /// Returns the GPUs on which a host is looked for: those with the most jobs, and some on which
    /// one holds its slice alone.
    fn shareable(&self) -> Vec<usize> {
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
    fn seats(&self, at: usize) -> &[Seat] {
        let promised = self.promised.get(&at).map(|plan| &plan.seats);
        promised.unwrap_or(&self.desk.post(at).seats)
    }

    /// Tells whether a job may share multiprocessors as far as it is concerned.
    fn sociable(&self, job: JobId) -> bool {
        self.table.forecast.demand(job).is_some() && self.may_fill(job)
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

    /// Returns who sits alone, with room for a guest of the user with so much memory.
    fn hosts(&self, at: usize, user: &Arc<str>, memory: Bytes) -> Vec<Seat> {
        let seats = self.seats(at);
        let alone = |seat: &&Seat| seats.iter().filter(|s| s.slot == seat.slot).count() == 1;
        let fits = |seat: &&Seat| {
            let forecast = self.table.forecast;
            let has = forecast.companion(seat.job).filter(|host| *host.user == **user);
            let profile =
                seat.slot.and_then(|slot| self.table.mig(at)?.geometry.profile(slot.profile));
            let room = profile
                .zip(has)
                .and_then(|(profile, has)| profile.memory.get().checked_sub(has.memory.get()));
            room.is_some_and(|room| room >= memory.get())
        };
        seats.iter().filter(alone).filter(fits).copied().collect()
    }

    /// Returns the ways in which a host and a guest could share, as far as both allow it.
    fn ways(&self, host: Seat, guest: JobId) -> Vec<[Tier; 2]> {
        let share = |part: u8| {
            let sm = |part: u8| SmPercent::try_from(part).ok().map(Tier::Mps);
            Some([sm(part)?, sm(100_u8.checked_sub(part)?)?])
        };
        let before = [Tier::Turn(HOLDS), Tier::Turn(FILLS)];
        let behind = [Tier::Turn(FILLS), Tier::Turn(HOLDS)];
        let ways: Vec<[Tier; 2]> = match Tier::of(host) {
            Some(Tier::Mps(sm)) => share(sm.get()).into_iter().collect(),
            Some(Tier::Turn(HOLDS)) => vec![before],
            Some(Tier::Turn(_)) => vec![behind],
            None => PARTS.into_iter().filter_map(share).chain([before, behind]).collect(),
        };
        let allowed = |way: &[Tier; 2]| match way {
            [Tier::Turn(HOLDS), _] => self.may_fill(guest),
            [Tier::Turn(_), _] => self.may_fill(host.job),
            [Tier::Mps(_), _] => self.sociable(host.job) && self.sociable(guest),
        };
        ways.into_iter().filter(allowed).collect()
    }

    /// Weighs a guest beside a host in the best way.
    fn beside(&mut self, at: usize, host: Seat, job: JobId) -> Option<Pair> {
        let slot = host.slot?;
        let ways = self.ways(host, job);
        if ways.is_empty() {
            return None;
        }
        let alone = self.seated(at, host);
        let weight = |facts: Facts| facts.weight;
        let host_weight = weight(self.rows.facts(&self.table, self.desk.kinds(), host.job));
        let guest_weight = weight(self.rows.facts(&self.table, self.desk.kinds(), job));
        let mut best: Option<Pair> = None;
        for [mine, yours] in ways {
            let sits = mine.seat(host.job, slot);
            let stays = match self.desk.post(at).seats.iter().find(|seat| seat.job == host.job) {
                Some(known) if *known == sits => Seated::There,
                Some(_) => Seated::Beside,
                None => Seated::Elsewhere,
            };
            let kept = self.shared(at, slot, (host.job, mine), Some((job, yours)), stays);
            let Some(kept) = kept else { continue };
            let added =
                self.shared(at, slot, (job, yours), Some((host.job, mine)), Seated::Elsewhere);
            let Some(added) = added else { continue };
            let gain = kept + added - alone;
            // Beside what each weighs: a short guest alone is no reason to slow its host.
            let speeds = float_of(kept) / host_weight + float_of(added) / guest_weight;
            let enough = match mine {
                Tier::Mps(_) => self.table.settings.together,
                Tier::Turn(_) => self.table.settings.filled,
            };
            let pays = speeds >= float_of(alone) / host_weight * enough;
            if gain > 0 && pays && best.as_ref().is_none_or(|known| gain > known.gain) {
                best = Some(Pair { gain, at, host: sits, guest: yours.seat(job, slot) });
            }
        }
        best
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
                self.shared(at, slot, (seat.job, tier), other, Seated::There).unwrap_or(0)
            }
        }
    }

    /// Returns the seat of a job that has a slice to itself: where it sits already it keeps what it
    /// has; who serves answers gets its place in the slice's queue at once.
    pub(super) fn place(&self, at: usize, job: JobId, slot: Slot) -> Seat {
        let alone = Seat::alone(job, slot);
        let known = self.desk.post(at).seats.iter().find(|seat| seat.job == job);
        if let Some(known) = known.filter(|seat| seat.slot == Some(slot) && seat.sm.is_none()) {
            return *known;
        }
        let forecast = self.table.forecast;
        let profile = self.table.mig(at).and_then(|mig| mig.geometry.profile(slot.profile));
        let queued = profile.filter(|_| forecast.online(job)).and_then(|profile| {
            forecast.time_in_turns(job, HOLDS, &[], self.table.view(at), profile)
        });
        Seat { turn: queued.map(|_| HOLDS), ..alone }
    }

    /// Returns what a job is worth beside another; `None` if it must not be there.
    fn shared(
        &mut self,
        at: usize,
        slot: Slot,
        (job, tier): (JobId, Tier),
        other: Option<(JobId, Tier)>,
        seated: Seated,
    ) -> Option<i64> {
        let facts = self.rows.facts(&self.table, self.desk.kinds(), job);
        let profile = self.table.mig(at)?.geometry.profile(slot.profile)?;
        let (forecast, view) = (self.table.forecast, self.table.view(at));
        let here = match tier {
            Tier::Mps(sm) => {
                let part = |(other, tier)| match tier {
                    Tier::Mps(sm) => Some((other, sm)),
                    Tier::Turn(_) => None,
                };
                let others: Vec<_> = other.into_iter().filter_map(part).collect();
                forecast.time_beside(job, sm, &others, view, profile)?
            }
            Tier::Turn(priority) => {
                let place = |(other, tier)| match tier {
                    Tier::Turn(priority) => Some((other, priority)),
                    Tier::Mps(_) => None,
                };
                let others: Vec<_> = other.into_iter().filter_map(place).collect();
                let here = forecast.time_in_turns(job, priority, &others, view, profile)?;
                let alone = forecast.time_in_turns(job, priority, &[], view, profile)?;
                self.is_served(job, (alone, here), &facts, seated).then_some(here)?
            }
        };
        let whole_time = self.table.whole_time(at, job);
        self.table.worth_of(at, job, &facts, (here, whole_time), seated, profile)
    }

    /// Tells whether a job is served in company as it has to be: if somebody waits for its answers, or
    /// for its end.
    fn is_served(
        &self,
        job: JobId,
        (alone, here): (Millis, Millis),
        facts: &Facts,
        seated: Seated,
    ) -> bool {
        let forecast = self.table.forecast;
        let slowed = float(here) > float(alone) * self.table.settings.courtesy;
        if forecast.online(job) && slowed {
            return false;
        }
        let Some(deadline) = forecast.deadline(job) else { return true };
        let begins = float(self.table.now) + self.begins_in_ms(job, seated);
        let late = |time: Millis| begins + float(time) * facts.left() > float(deadline);
        late(alone) || !late(here)
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
