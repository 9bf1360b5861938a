//! Two jobs on one slice, for a job that finds none of its own.
//!
//! Under MPS, with parts of the multiprocessors that add up to all of them (the co-execution
//! study: that evens slow-downs out), by predicted speeds beside each other. A job sits down beside
//! another of its user only where the two do more than the one alone, with the stop of the host
//! paid for whose part changes; a host that has a part already keeps it. Only jobs of which is known
//! what they keep busy share: without that nothing predicts how they get on, and on the papers'
//! workloads without demands guessed pairs cost more than they brought (mean time 1 to 4 % worse).
//! Who serves answers or has a deadline is left alone, and a pair stays two: the study's gains fall
//! with each one more.

use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_model::{Bytes, JobId};

use super::search::{Plan, Search};
use super::table::{Facts, Seated, float_of};
use crate::decision::Seat;
use crate::view::QueuedJob;

/// Parts that a host without one is offered, in percent.
const PARTS: [u8; 3] = [50, 70, 30];

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
        if !self.sociable(job.id) {
            return false;
        }
        let mut best: Option<Pair> = None;
        for at in self.desk.most_shared(self.table.settings.searched) {
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

    /// Returns who sits on a GPU, or was promised to.
    fn seats(&self, at: usize) -> &[Seat] {
        let promised = self.promised.get(&at).map(|plan| &plan.seats);
        promised.unwrap_or(&self.desk.post(at).seats)
    }

    /// Tells whether a job may have company as far as it is concerned.
    fn sociable(&self, job: JobId) -> bool {
        let forecast = self.table.forecast;
        let known = forecast.demand(job).is_some();
        known && !forecast.online(job) && forecast.deadline(job).is_none()
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
            room.is_some_and(|room| room >= memory.get()) && self.sociable(seat.job)
        };
        seats.iter().filter(alone).filter(fits).copied().collect()
    }

    /// Weighs a guest beside a host with the best parts.
    fn beside(&mut self, at: usize, host: Seat, job: JobId) -> Option<Pair> {
        let slot = host.slot?;
        let alone = self.seated(at, host);
        let weight = |facts: Facts| facts.weight;
        let host_weight = weight(self.rows.facts(&self.table, self.desk.kinds(), host.job));
        let guest_weight = weight(self.rows.facts(&self.table, self.desk.kinds(), job));
        let parts = host.sm.map_or_else(|| PARTS.to_vec(), |sm| vec![sm.get()]);
        let mut best: Option<Pair> = None;
        for part in parts {
            let mine = SmPercent::try_from(part).ok()?;
            let Ok(yours) = SmPercent::try_from(100 - part) else { continue };
            let stays = match self.desk.post(at).seats.iter().find(|seat| seat.job == host.job) {
                Some(known) if *known == (Seat { sm: Some(mine), ..host }) => Seated::There,
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
            let pays = speeds >= float_of(alone) / host_weight * self.table.settings.together;
            if gain > 0 && pays && best.as_ref().is_none_or(|known| gain > known.gain) {
                let host = Seat { sm: Some(mine), ..host };
                let guest = Seat { job, slot: Some(slot), sm: Some(yours) };
                best = Some(Pair { gain, at, host, guest });
            }
        }
        best
    }

    /// Returns what a job is worth where it sits.
    pub(super) fn seated(&mut self, at: usize, seat: Seat) -> i64 {
        let Some(slot) = seat.slot else { return 0 };
        let Some(sm) = seat.sm else {
            let number = self.table.mig(at).and_then(|mig| mig.atlas().number(slot));
            return match number {
                Some(number) => self.row(at, seat.job)[number].max(0),
                None => self.rows.odd(&self.table, self.desk.kinds(), at, seat),
            };
        };
        let beside = |other: &&Seat| other.slot == seat.slot && other.job != seat.job;
        let other = self.seats(at).iter().find(beside);
        let other = other.and_then(|other| Some((other.job, other.sm?)));
        self.shared(at, slot, (seat.job, sm), other, Seated::There).unwrap_or(0)
    }

    fn shared(
        &mut self,
        at: usize,
        slot: Slot,
        job: (JobId, SmPercent),
        other: Option<(JobId, SmPercent)>,
        seated: Seated,
    ) -> Option<i64> {
        let facts = self.rows.facts(&self.table, self.desk.kinds(), job.0);
        let profile = self.table.mig(at)?.geometry.profile(slot.profile)?;
        let others: Vec<(JobId, SmPercent)> = other.into_iter().collect();
        let (forecast, view) = (self.table.forecast, self.table.view(at));
        let here = forecast.time_beside(job.0, job.1, &others, view, profile)?;
        let whole_time = self.table.whole_time(at, job.0);
        self.table.worth_of(at, job.0, &facts, (here, whole_time), seated, profile)
    }
}
