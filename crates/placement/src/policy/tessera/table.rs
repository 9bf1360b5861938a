//! What a job is worth where, at one moment.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::mig::{Profile, Slot};
use tessera_model::{JobId, Millis};

use super::Tessera;
use super::outlook::Outlook;
use super::waiting::{Left, Weight};
use crate::decision::Seat;
use crate::forecast::Forecast;
use crate::seating::{self, NO_SEAT};
use crate::view::{ClusterView, GpuView, MigView};

/// What cutting a GPU may keep a job waiting beside its own move, in milliseconds: seven instances
/// destroyed and seven created, one after the other (co-execution study, table 6), and a little.
pub(super) const CUT_MS: f64 = 2_000.0;

/// What the worth of jobs in a round is worked out from.
#[derive(Clone, Copy)]
pub(super) struct Table<'c> {
    pub(super) settings: &'c Tessera,
    pub(super) cluster: &'c ClusterView,
    pub(super) forecast: &'c dyn Forecast,
    pub(super) now: Millis,
    pub(super) outlook: Outlook,
}

/// What lies ahead of a job, and behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) left: Left,
    /// What a whole GPU would take for what it has done, in milliseconds.
    pub(super) done_ms: f64,
}

/// What is known of one job in this round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) weight: f64,
    done: Option<f64>,
    /// What is left of it on a whole GPU, in milliseconds.
    left_ms: Option<f64>,
    /// Whether it runs, or has run and kept what it did.
    begun: bool,
    /// What a move of it costs, if it can be moved.
    move_price: Option<Millis>,
}

impl Facts {
    /// Returns what is left of it, in parts of one.
    pub(super) fn left(&self) -> f64 {
        1.0 - self.done.unwrap_or(0.0)
    }
}

/// What jobs are worth, worked out once a round.
#[derive(Default)]
pub(super) struct Rows {
    facts: BTreeMap<JobId, Facts>,
    /// Where a job sits, by GPU; elsewhere, by model.
    at_home: BTreeMap<(JobId, usize), Rc<[i64]>>,
    elsewhere: BTreeMap<(JobId, usize), Rc<[i64]>>,
}

impl<'c> Table<'c> {
    pub(super) fn view(&self, at: usize) -> &'c GpuView {
        &self.cluster.gpus[at]
    }

    pub(super) fn mig(&self, at: usize) -> Option<&'c MigView> {
        self.view(at).mig.as_deref()
    }

    /// Returns what orders jobs that wait, before it ages: the shortest first, of equals those that
    /// keep the least of a GPU from others. (The mean of the two, as they multiply: by its part of
    /// a GPU alone, the order is as good for the mean and worse for the slowest twentieth.)
    pub(super) fn eagerness(&self, kinds: &[usize], job: JobId) -> Weight {
        let left = self.ahead(kinds, job).map(|ahead| ahead.left);
        let cost = left.map(|left| (ms(left.whole_ms) * ms(left.work_ms)).sqrt());
        let weight = short(cost).powf(self.settings.eagerness);
        Weight { weight, left: left.unwrap_or_default() }
    }

    /// Returns what is left of a job and what is done of it; nothing if nothing says so.
    pub(super) fn ahead(&self, kinds: &[usize], job: JobId) -> Option<Ahead> {
        let (all, done) = self.on_whole(kinds, job)?;
        let work = self.work_ms(kinds, job).unwrap_or(all);
        let left = |all: f64| u128::from(rounded(all * (1.0 - done)));
        let left = Left { whole_ms: left(all), work_ms: left(work) };
        Some(Ahead { left, done_ms: all * done })
    }

    /// Returns what is left of a job on a whole GPU, in milliseconds.
    fn left_ms(&self, kinds: &[usize], job: JobId) -> Option<f64> {
        let (all, done) = self.on_whole(kinds, job)?;
        Some(all * (1.0 - done))
    }

    /// Returns what all of a job takes on a whole GPU, in milliseconds, and what part is done.
    fn on_whole(&self, kinds: &[usize], job: JobId) -> Option<(f64, f64)> {
        let all = kinds.iter().find_map(|at| {
            let largest = self.mig(*at)?.largest()?;
            self.forecast.time(job, self.view(*at), largest)
        })?;
        Some((float(all), self.done(job)?))
    }

    /// Returns what part of a job is done.
    fn done(&self, job: JobId) -> Option<f64> {
        Some(f64::from(self.forecast.done(job)?) / 1_000_000.0)
    }

    /// Returns what all of a job takes on the instance where that is least, as the time that a whole
    /// GPU has for as much of itself, in milliseconds.
    fn work_ms(&self, kinds: &[usize], job: JobId) -> Option<f64> {
        kinds.iter().find_map(|at| {
            let mig = self.mig(*at)?;
            let largest = mig.largest()?;
            let cost = |id| {
                let profile = mig.geometry.profile(id)?;
                let time = self.forecast.time(job, self.view(*at), profile)?;
                let part = |own: u8, all: u8| f64::from(own) / f64::from(all.max(1));
                let compute = part(profile.compute_slices, largest.compute_slices);
                let memory = part(profile.memory_slices, largest.memory_slices);
                Some(float(time) * compute.max(memory))
            };
            mig.atlas().profiles().iter().filter_map(|id| cost(*id)).reduce(f64::min)
        })
    }

    /// Tells whether a job has more left, on a whole GPU, than a move of it costs.
    pub(super) fn outlasts_move(&self, kinds: &[usize], job: JobId) -> bool {
        let price = self.forecast.move_price(job).map(float);
        price.zip(self.left_ms(kinds, job)).is_some_and(|(price, left)| price < left)
    }

    pub(super) fn whole_time(&self, at: usize, job: JobId) -> Option<Millis> {
        self.forecast.time(job, self.view(at), self.mig(at)?.largest()?)
    }

    fn facts(&self, kinds: &[usize], job: JobId) -> Facts {
        let known = self.on_whole(kinds, job);
        let left_ms = known.map(|(all, done)| all * (1.0 - done));
        let done = known.map(|(_, done)| done).or_else(|| self.done(job));
        let weight = short(left_ms).powf(self.settings.shortness);
        let driven = self.outlook.drive(self.settings, left_ms, self.forecast.online(job));
        Facts {
            weight: weight * driven,
            done,
            left_ms,
            // Who runs has to be launched again wherever it goes, with work done or without.
            begun: done.is_some_and(|done| done > 0.0) || self.forecast.since(job).is_some(),
            move_price: self.forecast.move_price(job),
        }
    }

    /// Returns what a job is worth on an instance, less what moving there costs; `None` if it
    /// can't be there, or would be late there and nowhere else.
    ///
    /// `whole_time` is what the job takes on such a GPU's largest instance.
    fn worth(
        &self,
        at: usize,
        job: JobId,
        facts: &Facts,
        whole_time: Option<Millis>,
        seat: Seated,
        on: &Profile,
    ) -> Option<i64> {
        let here = self.forecast.time(job, self.view(at), on)?;
        self.worth_of(at, job, facts, (here, whole_time), seat, on)
    }

    /// Returns the same for a job that takes so long `here`, alone or beside others.
    pub(super) fn worth_of(
        &self,
        at: usize,
        job: JobId,
        facts: &Facts,
        (here, whole_time): (Millis, Option<Millis>),
        seat: Seated,
        on: &Profile,
    ) -> Option<i64> {
        let speed = seating::speed_of(here, whole_time?)?;
        let done = facts.done?;
        let left = float(here) * (1.0 - done);
        let price = match (seat == Seated::There, facts.begun) {
            (true, _) | (false, false) => 0.0,
            (false, true) => float(facts.move_price?),
        };
        let kept = left / (left + price).max(1.0);
        if seat != Seated::There {
            let late = |left: f64| {
                let ends = float(self.now) + left;
                self.forecast.deadline(job).is_some_and(|deadline| ends > float(deadline))
            };
            let cut = if facts.begun { CUT_MS } else { 0.0 };
            if late(left + price + cut) && !late(left.min(facts.left_ms?)) {
                return None;
            }
        }
        // Of two slices on which it is about as fast the smaller one draws less.
        let all = self.mig(at)?.largest()?.compute_slices;
        let part = f64::from(on.compute_slices) / f64::from(all.max(1));
        let spared = 1.0 - self.settings.thrift * part;
        // Speeds are millionths; weights of long jobs are small, so that a finer unit is kept.
        Some(whole(float_of(speed) * facts.weight * kept * spared))
    }
}

/// Where a job sits already, seen from the instance in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seated {
    /// On that very instance.
    There,
    /// On another one of the same GPU.
    Beside,
    /// On no instance of the GPU.
    Elsewhere,
}

impl Rows {
    /// Returns what a job is worth in each slot of a GPU; `home` is its own slot there, if it sits
    /// there.
    pub(super) fn row(
        &mut self,
        table: &Table<'_>,
        kinds: &[usize],
        at: usize,
        kind: usize,
        job: JobId,
        home: Option<Option<Slot>>,
    ) -> Rc<[i64]> {
        let (known, key) = match home {
            Some(_) => (&mut self.at_home, (job, at)),
            None => (&mut self.elsewhere, (job, kind)),
        };
        if let Some(row) = known.get(&key) {
            return Rc::clone(row);
        }
        let facts = *self.facts.entry(job).or_insert_with(|| table.facts(kinds, job));
        let row: Rc<[i64]> = made(table, at, job, &facts, home).into();
        known.insert(key, Rc::clone(&row));
        row
    }

    pub(super) fn facts(&mut self, table: &Table<'_>, kinds: &[usize], job: JobId) -> Facts {
        *self.facts.entry(job).or_insert_with(|| table.facts(kinds, job))
    }

    /// Returns what a job is worth where it sits, on an instance that is in no full layout of plain
    /// profiles.
    pub(super) fn odd(&mut self, table: &Table<'_>, kinds: &[usize], at: usize, seat: Seat) -> i64 {
        let facts = *self.facts.entry(seat.job).or_insert_with(|| table.facts(kinds, seat.job));
        let worth = || {
            let profile = table.mig(at)?.geometry.profile(seat.slot?.profile)?;
            table.worth(
                at,
                seat.job,
                &facts,
                table.whole_time(at, seat.job),
                Seated::There,
                profile,
            )
        };
        worth().unwrap_or(0)
    }
}

fn made(
    table: &Table<'_>,
    at: usize,
    job: JobId,
    facts: &Facts,
    home: Option<Option<Slot>>,
) -> Vec<i64> {
    let Some(mig) = table.mig(at) else { return Vec::new() };
    let seated = if home.is_some() { Seated::Beside } else { Seated::Elsewhere };
    let whole_time = table.whole_time(at, job);
    let of = |id, seated| {
        let profile = mig.geometry.profile(id);
        let worth =
            profile.and_then(|profile| table.worth(at, job, facts, whole_time, seated, profile));
        worth.unwrap_or(NO_SEAT)
    };
    let atlas = mig.atlas();
    let by_profile: Vec<i64> = atlas.profiles().iter().map(|id| of(*id, seated)).collect();
    let mut row = atlas.row(&by_profile);
    if let Some(slot) = home.flatten()
        && let Some(number) = atlas.number(slot)
    {
        row[number] = of(slot.profile, Seated::There);
    }
    row
}

/// Returns how many such jobs an hour of a whole GPU finishes.
fn short(left_ms: Option<f64>) -> f64 {
    3_600_000.0 / left_ms.unwrap_or(3_600_000.0).max(1_000.0)
}

pub(super) fn float(time: Millis) -> f64 {
    let ms = time.get();
    let high = u32::try_from(ms >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(ms & 0xFFFF_FFFF).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// Returns milliseconds that were added up.
pub(super) fn ms(sum: u128) -> f64 {
    float(Millis::new(u64::try_from(sum).unwrap_or(u64::MAX)))
}

pub(super) fn float_of(worth: i64) -> f64 {
    let sign = if worth < 0 { -1.0 } else { 1.0 };
    sign * float(Millis::new(worth.unsigned_abs()))
}

/// Rounds a time down to whole milliseconds.
pub(super) fn rounded(ms: f64) -> u64 {
    down(ms.clamp(0.0, 4_000_000_000_000.0)).unsigned_abs()
}

/// Rounds a worth down to a whole number: at least one, so that any progress is worth something.
fn whole(worth: f64) -> i64 {
    down(worth.clamp(1.0, 4_000_000_000_000.0))
}

/// Rounds a number down that is below 2^23 millions.
fn down(value: f64) -> i64 {
    let high = small(value / 1_000_000.0);
    let low = small(value - f64::from(high) * 1_000_000.0);
    i64::from(high) * 1_000_000 + i64::from(low)
}

/// Returns the whole part of a number below 2^23.
pub(super) fn integer(value: f64) -> i64 {
    i64::from(small(value))
}

/// Returns the whole part of a number below 2^23, from the digits of its fraction: the rounding
/// instruction is missing in the oldest processors that are built for, and its replacement is a call.
fn small(value: f64) -> u32 {
    /// Bits of a number's fraction, and what its exponent counts from.
    const FRACTION: u32 = 52;
    const BIAS: u64 = 1_023;
    const MOST: u32 = (1 << 23) - 1;
    if value >= 1.0 {
        let bits = value.to_bits();
        let digits = (bits & ((1 << FRACTION) - 1)) | (1 << FRACTION);
        let beyond = (BIAS + u64::from(FRACTION)).saturating_sub(bits >> FRACTION);
        u32::try_from(digits >> beyond.min(63)).unwrap_or(MOST).min(MOST)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_rounded_down(millionths in 0_u64..8_388_608_000_000) {
            let value = float(Millis::new(millionths)) / 1_000_000.0;

            prop_assert_eq!(f64::from(small(value)), value.floor());
        }
    }

    #[test]
    fn whole_numbers_stay_what_they_are_and_what_lies_below_is_rounded_down() {
        for number in [1_u32, 2, 3, 1_000, 4_194_304, 8_388_607] {
            assert_eq!(small(f64::from(number)), number);
            assert_eq!(small(f64::from(number).next_down()), number - 1);
        }
        assert_eq!((small(0.999), small(-7.0), small(f64::NAN)), (0, 0, 0));
    }
}
