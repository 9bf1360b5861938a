//! One GPU's meter: takes samples in, keeps the accounts of the attempts on it and its figures
//! over time.
//!
//! Who is active is told differently from card to card, and the best source is taken:
//!
//! - MIG off: by the driver's load of each process (`nvmlDeviceGetProcessUtilization`).
//! - MIG on, or a driver that doesn't tell: an attempt counts as busy while one of its processes
//!   holds a context, with the share of the multiprocessors that its instance has.
//!
//! An attempt that came and went between two samples counts as busy for as long as it was there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, BootId, Bytes, GpuId, JobId, Millis};
use tessera_wire::frames::{GpuReport, MigReport, Usage};

use super::energy::{Book, Reading, Share, Shares};
use super::job_map::{JobMap, Place};
use super::tracks::{Figure, Of, Tracks};
use crate::nvml::messages::{ProcessSample, Sample};

/// The whole card, in the unit of shares.
pub const WHOLE: u64 = 1_000_000;
/// How long the end of an attempt waits for a card that can't be read.
const END_WAITS: Millis = Millis::from_secs(10);

/// An attempt that has a GPU, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Which.
    pub attempt: AttemptId,
    /// Of which job.
    pub job: JobId,
    /// On which GPU.
    pub gpu: GpuId,
    /// In which instance; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// When its program was started, in milliseconds since 1970.
    pub began: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
}

/// What is known of an attempt on this GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Of which job.
    pub job: JobId,
    slot: Option<Slot>,
    began: Millis,
    ended: Option<Millis>,
    /// The largest amount of memory that it was seen to have; `None` until it was seen.
    peak_memory: Option<Bytes>,
    /// The share of the card that its place has, in millionths.
    share: Option<u64>,
    /// How active it was when last seen, in millionths of the card.
    active: Option<u64>,
    /// Whether it is over and fully counted: it waits for the controller's word.
    told: bool,
}

/// What must outlive the agent's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    book: Book,
    accounts: BTreeMap<AttemptId, Account>,
}

/// The newest sample, with when it was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Latest {
    /// When, in milliseconds since 1970.
    pub at: Millis,
    /// What was seen.
    pub sample: Sample,
}

/// One GPU's meter.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    kept: Kept,
    /// Its index on the node.
    pub index: Option<u32>,
    shares: BTreeMap<Slot, u64>,
    /// The driver's numbers of the instances, as of the last sample that could be read.
    numbers: Option<BTreeMap<Slot, u32>>,
    /// Its figures over time.
    pub tracks: Tracks,
    /// The newest sample; `None` while the card can't be read.
    pub latest: Option<Latest>,
}

impl Meter {
    /// Goes on from what an earlier process kept.
    pub fn resume(kept: Kept) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Returns what must outlive this process.
    pub const fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Learns what the card is.
    pub fn describe(&mut self, report: &GpuReport) {
        self.index = Some(report.index);
        let MigReport::On { geometry } = &report.mig else { return };
        // The profile that covers the whole card: multiprocessors that no instance can get
        // count for nobody.
        let whole = geometry.profiles.iter().map(|profile| u64::from(profile.sms)).max();
        let whole = whole.filter(|sms| *sms > 0).unwrap_or(u64::MAX);
        for instance in &report.instances {
            let profile = geometry.profile(instance.slot.profile);
            let sms = profile.map_or(0, |profile| u64::from(profile.sms));
            self.shares.insert(instance.slot, (sms * WHOLE / whole).min(WHOLE));
        }
        let standing = |slot: &Slot| report.instances.iter().any(|i| i.slot == *slot);
        self.shares.retain(|slot, _| standing(slot));
        self.fill_in_shares();
    }

    fn fill_in_shares(&mut self) {
        for account in self.kept.accounts.values_mut() {
            let known = account.slot.map_or(Some(WHOLE), |slot| self.shares.get(&slot).copied());
            account.share = account.share.or(known);
        }
    }

    /// Opens an attempt's account; one that is open stays as it is.
    pub fn begin(&mut self, tenant: &Tenant) {
        let account = Account {
            job: tenant.job,
            slot: tenant.slot,
            began: tenant.began,
            ended: None,
            peak_memory: None,
            share: None,
            active: None,
            told: false,
        };
        let account = self.kept.accounts.entry(tenant.attempt).or_insert(account);
        account.ended = account.ended.or(tenant.ended);
        self.fill_in_shares();
    }

    /// Takes an attempt's end in: it is told once a sample covers it.
    pub fn end(&mut self, attempt: AttemptId, at: Millis) {
        if let Some(account) = self.kept.accounts.get_mut(&attempt) {
            account.ended = account.ended.or(Some(at));
        }
    }

    /// Ends the accounts of attempts that `is_held` doesn't know: they ended while no agent was
    /// there.
    pub fn end_unless(&mut self, is_held: impl Fn(AttemptId) -> bool) {
        let Some((last, _)) = self.kept.book.span(Millis::ZERO) else { return };
        for (attempt, account) in &mut self.kept.accounts {
            if !is_held(*attempt) {
                account.ended = account.ended.or(Some(last));
            }
        }
    }

    /// Forgets an attempt whose figures the controller has.
    pub fn acknowledged(&mut self, attempt: AttemptId) {
        if self.kept.accounts.get(&attempt).is_some_and(|account| account.told) {
            self.kept.accounts.remove(&attempt);
            self.kept.book.settle(attempt);
        }
    }

    /// Takes a sample in; returns whether an attempt's figures are complete by it.
    pub fn take(&mut self, boot: BootId, at: Millis, sample: Sample) -> bool {
        let activity = self.activity(&sample, at);
        let reading = Reading { boot, at, counter_mj: sample.energy_mj, power_mw: sample.power_mw };
        let shares = self.shares(at, &activity);
        self.kept.book.advance(reading, &shares);
        self.see(at, &sample, &activity);
        let numbers = sample.places.iter().map(|place| (place.slot, place.number));
        self.numbers = Some(numbers.collect());
        self.latest = Some(Latest { at, sample });
        self.tell(|account| account.ended.is_some_and(|ended| ended <= at))
    }

    /// Takes in that the card can't be read: its figures have a gap. Ends don't wait for ever.
    pub fn miss(&mut self, at: Millis) -> bool {
        self.latest = None;
        self.tell(|account| account.ended.is_some_and(|ended| ended.plus(END_WAITS) <= at))
    }

    fn tell(&mut self, is_over: impl Fn(&Account) -> bool) -> bool {
        let mut any = false;
        for account in self.kept.accounts.values_mut() {
            if !account.told && is_over(account) {
                account.told = true;
                any = true;
            }
        }
        any
    }

    /// Finds the attempt that a process belongs to: by its environment, or, if that says
    /// nothing, as the only one on its instance.
    fn owner(&self, process: &ProcessSample, sample: &Sample, at: Millis) -> Option<AttemptId> {
        if process.mps_server {
            return None;
        }
        if let Some(attempt) = process.attempt {
            return self.kept.accounts.contains_key(&attempt).then_some(attempt);
        }
        let slot = slot_of(process, sample);
        let mut there = self.present(at).filter(|(_, account)| account.slot == slot);
        let only = there.next().map(|(attempt, _)| attempt);
        only.filter(|_| there.next().is_none())
    }

    fn present(&self, at: Millis) -> impl Iterator<Item = (AttemptId, &Account)> {
        let here = move |account: &Account| account.ended.is_none_or(|ended| ended > at);
        let all = self.kept.accounts.iter().map(|(attempt, account)| (*attempt, account));
        all.filter(move |(_, account)| here(account))
    }

    /// Works out who was active at a sample, in millionths of the card.
    fn activity(&self, sample: &Sample, at: Millis) -> Activity {
        let mut activity = Activity::default();
        let owned: Vec<_> =
            sample.processes.iter().map(|p| (p, self.owner(p, sample, at))).collect();
        for (attempt, _) in self.present(at) {
            activity.attempts.insert(attempt, 0);
        }
        if sample.loads_told && !sample.mig {
            let served = served(&owned);
            for (process, owner) in owned {
                let load = u64::from(process.load_percent) * (WHOLE / 100);
                if process.mps_server && !served.is_empty() {
                    activity.share_out(load, &served);
                    continue;
                }
                match owner.and_then(|attempt| activity.attempts.get_mut(&attempt)) {
                    Some(active) => *active += load,
                    None => activity.other += load,
                }
            }
            return activity;
        }
        // Who holds a context, place by place.
        let mut busy = BTreeMap::<Option<Slot>, Vec<Option<AttemptId>>>::new();
        // A server holds a context for its clients only: these are listed themselves.
        for (process, owner) in owned.into_iter().filter(|(process, _)| !process.mps_server) {
            let there = busy.entry(slot_of(process, sample)).or_default();
            if !there.contains(&owner) {
                there.push(owner);
            }
        }
        for (slot, holders) in busy {
            let whole = slot.map_or(WHOLE, |slot| self.shares.get(&slot).copied().unwrap_or(0));
            let each = whole / u64::try_from(holders.len().max(1)).unwrap_or(1);
            for holder in holders {
                match holder.and_then(|attempt| activity.attempts.get_mut(&attempt)) {
                    Some(active) => *active += each,
                    None => activity.other += each,
                }
            }
        }
        activity
    }

    /// Works out what everybody had since the last reading.
    fn shares(&self, to: Millis, activity: &Activity) -> Shares {
        let Some((from, _)) = self.kept.book.span(to) else { return Shares::default() };
        let length = to.minus(from).get().max(1);
        let mut on_place = BTreeMap::<Option<Slot>, u64>::new();
        let waiting = || self.kept.accounts.iter().filter(|(_, account)| !account.told);
        for (_, account) in waiting() {
            *on_place.entry(account.slot).or_default() += account.overlap(from, to);
        }
        let mut shares = Shares::default();
        let mut taken = 0_u128;
        for (attempt, account) in waiting() {
            let overlap = account.overlap(from, to);
            let share = account.share.unwrap_or(0);
            // Sharers of a place hold it together, not each of them.
            let all = on_place.get(&account.slot).copied().unwrap_or(0).max(length);
            let held =
                u128::from(share) * u128::from(overlap) * u128::from(length) / u128::from(all);
            let active = activity.attempts.get(attempt).copied();
            let active = active.or(account.active).unwrap_or(share);
            shares.attempts.push(Share {
                attempt: *attempt,
                held,
                active: u128::from(active) * u128::from(overlap),
            });
            taken += held;
        }
        shares.free = (u128::from(WHOLE) * u128::from(length)).saturating_sub(taken);
        shares.other = u128::from(activity.other) * u128::from(length);
        shares
    }

    /// Puts a sample's figures into accounts and series.
    fn see(&mut self, at: Millis, sample: &Sample, activity: &Activity) {
        let mut memory = BTreeMap::<AttemptId, u64>::new();
        for process in &sample.processes {
            let Some(bytes) = process.memory.map(Bytes::get) else { continue };
            self.tracks.push(Of::Process(process.pid), Figure::Memory, at, bytes);
            if let Some(attempt) = self.owner(process, sample, at) {
                *memory.entry(attempt).or_default() += bytes;
            }
        }
        let mut busy = BTreeMap::<Slot, u64>::new();
        for (attempt, active) in &activity.attempts {
            let Some(account) = self.kept.accounts.get_mut(attempt) else { continue };
            let bytes = memory.get(attempt).copied().unwrap_or(0);
            account.active = Some(*active);
            account.peak_memory = account.peak_memory.max(Some(Bytes::new(bytes)));
            self.tracks.push(Of::Attempt(*attempt), Figure::Memory, at, bytes);
            self.tracks.push(Of::Attempt(*attempt), Figure::Activity, at, active / 1_000);
            if let Some(slot) = account.slot {
                *busy.entry(slot).or_default() += active;
            }
        }
        for place in &sample.places {
            let of = Of::Slot(place.slot);
            if let Some(used) = place.memory_used {
                self.tracks.push(of, Figure::Memory, at, used.get());
            }
            let active = busy.get(&place.slot).copied().unwrap_or(0);
            self.tracks.push(of, Figure::Activity, at, active / 1_000);
        }
        let of = Of::Gpu;
        if let Some(used) = sample.memory_used {
            self.tracks.push(of, Figure::Memory, at, used.get());
        }
        if let Some(mw) = sample.power_mw {
            self.tracks.push(of, Figure::Power, at, mw);
        }
        let all = activity.attempts.values().sum::<u64>() + activity.other;
        let all = sample.busy_percent.map_or(all / 1_000, |percent| u64::from(percent) * 10);
        self.tracks.push(of, Figure::Activity, at, all.min(1_000));
    }

    /// Tells whether an attempt is on the card, so that it is worth a closer look.
    pub fn is_busy(&self) -> bool {
        self.kept.accounts.values().any(|account| !account.told)
    }

    /// Tells whether an attempt's end waits for a sample.
    pub fn is_ending(&self) -> bool {
        self.kept.accounts.values().any(|account| !account.told && account.ended.is_some())
    }

    /// Returns the GPU's energy account.
    pub const fn book(&self) -> &Book {
        &self.kept.book
    }

    /// Returns the attempts that are on the card, with their jobs and places.
    pub fn tenants(&self) -> impl Iterator<Item = (AttemptId, JobId, Option<Slot>)> {
        let open = self.kept.accounts.iter().filter(|(_, account)| account.ended.is_none());
        open.map(|(attempt, account)| (*attempt, account.job, account.slot))
    }

    /// Adds the jobs that are on the card now to a map; nothing while the card wasn't seen.
    pub fn map_jobs(&self, map: &mut JobMap) {
        let (Some(gpu), Some(numbers)) = (self.index, &self.numbers) else { return };
        map.known.insert(gpu);
        for (_, job, slot) in self.tenants() {
            let instance = match slot.map(|slot| numbers.get(&slot)) {
                None => None,
                Some(Some(number)) => Some(*number),
                // Made a moment ago: the next sample knows it.
                Some(None) => continue,
            };
            map.jobs.entry(Place { gpu, instance }).or_default().insert(job);
        }
    }

    /// Returns the complete figures of attempts that are over.
    pub fn told(&self) -> impl Iterator<Item = Usage> {
        let told = self.kept.accounts.iter().filter(|(_, account)| account.told);
        told.map(|(attempt, account)| Usage {
            attempt: *attempt,
            energy_mj: self.kept.book.of(*attempt),
            peak_memory: account.peak_memory,
        })
    }
}

impl Account {
    /// Returns for how long the attempt was there between two moments. Between two readings at
    /// one moment (the clock was set back) everybody who is there counts alike.
    fn overlap(&self, from: Millis, to: Millis) -> u64 {
        let end = self.ended.unwrap_or(to).min(to);
        let begin = self.began.max(from);
        if to <= from { u64::from(self.ended.is_none()) } else { end.minus(begin).get() }
    }
}

/// Who is active, in millionths of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Activity {
    /// Every attempt that is there; zero if it is at rest.
    attempts: BTreeMap<AttemptId, u64>,
    other: u64,
}

impl Activity {
    /// Shares out what a server did for its clients: nobody tells for whom of them.
    fn share_out(&mut self, load: u64, served: &[AttemptId]) {
        let each = load / u64::try_from(served.len().max(1)).unwrap_or(1);
        for attempt in served {
            *self.attempts.entry(*attempt).or_default() += each;
        }
    }
}

/// Returns the attempts that have a process on the card, each once.
fn served(owned: &[(&ProcessSample, Option<AttemptId>)]) -> Vec<AttemptId> {
    let mut served: Vec<_> = owned.iter().filter_map(|(_, owner)| *owner).collect();
    served.sort_unstable();
    served.dedup();
    served
}

/// Returns the instance that a process uses.
fn slot_of(process: &ProcessSample, sample: &Sample) -> Option<Slot> {
    let place = sample.places.iter().find(|place| Some(place.number) == process.place);
    place.map(|place| place.slot)
}

#[cfg(test)]
mod tests;
