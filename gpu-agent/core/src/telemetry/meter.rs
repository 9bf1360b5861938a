//! One GPU's meter: it records samples, and keeps the accounts of the attempts on it and its
//! figures over time.
//!
//! How activity is measured depends on the GPU; the best source is used:
//!
//! - MIG off: by the driver's load of each process (`nvmlDeviceGetProcessUtilization`).
//! - MIG on, or a driver that doesn't report loads: an attempt counts as busy while one of its
//!   processes holds a context. It counts with the share of the multiprocessors that its instance
//!   has. On Hopper and newer GPUs the driver counts how many of these are busy (GPM), and the
//!   attempt counts with those alone. Power above idle follows busy multiprocessors: the
//!   co-execution study's bandwidth adds nothing to a fit over its programs.
//!
//! An attempt that started and ended between two samples counts as busy for its whole time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::{AttemptUsage, GpuReport, MigReport};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, BootId, Bytes, GpuId, JobId, Millis};

use super::energy::{EnergyLedger, EnergyReading, EnergyShare, EnergyShares};
use super::job_map::{DcgmEntity, JobMap};
use super::tracks::{TrackSubject, TrackedFigure, Tracks};
use crate::nvml::sample::{GpuSample, ProcessSample};

/// The whole GPU, in the unit of shares.
pub const WHOLE: u64 = 1_000_000;
/// How long the end of an attempt waits for a GPU that can't be read.
const END_WAITS: Millis = Millis::from_secs(10);

/// An attempt that has a GPU, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTenancy {
    /// Its id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// The GPU that it belongs to.
    pub gpu: GpuId,
    /// Its instance; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// When its program was started, in milliseconds since 1970.
    pub began: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
}

/// What is known about an attempt on this GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptAccount {
    /// The job that it belongs to.
    pub job: JobId,
    slot: Option<Slot>,
    began: Millis,
    ended: Option<Millis>,
    /// The largest observed memory; `None` until it was observed.
    peak_memory: Option<Bytes>,
    /// The share of the GPU that its place has, in millionths.
    share: Option<u64>,
    /// Its activity at the last sample, in millionths of the GPU.
    active: Option<u64>,
    /// Since when it has done nothing, without a gap in the samples; `None` while it is active or not sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle_since: Option<Millis>,
    /// When it was last sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<Millis>,
    /// Whether it ended and is fully counted: it waits for the controller's acknowledgement.
    reported: bool,
}

/// The state that must outlive the agent's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterState {
    ledger: EnergyLedger,
    accounts: BTreeMap<AttemptId, AttemptAccount>,
}

/// The newest sample, with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct LatestSample {
    /// When, in milliseconds since 1970.
    pub at: Millis,
    /// The newest sample that was read.
    pub sample: GpuSample,
}

/// One GPU's meter.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    kept: MeterState,
    /// Its index on the node.
    pub index: Option<u32>,
    shares: BTreeMap<Slot, u64>,
    /// The driver's numbers of the instances, as of the last sample that could be read.
    numbers: Option<BTreeMap<Slot, u32>>,
    /// Its figures over time.
    pub tracks: Tracks,
    /// The newest sample; `None` while the GPU can't be read.
    pub latest: Option<LatestSample>,
}

impl Meter {
    /// Continues from the state of an earlier process.
    pub fn resume(kept: MeterState) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Returns the state that must outlive this process.
    pub const fn kept(&self) -> &MeterState {
        &self.kept
    }

    /// Sets the properties of the GPU.
    pub fn describe(&mut self, report: &GpuReport) {
        self.index = Some(report.index);
        let MigReport::On { geometry } = &report.mig else { return };
        // The profile that covers the whole GPU: multiprocessors that no instance can get don't
        // count.
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

    /// Opens an attempt's account; an open one doesn't change.
    pub fn begin(&mut self, tenancy: &GpuTenancy) {
        let account = AttemptAccount {
            job: tenancy.job,
            slot: tenancy.slot,
            began: tenancy.began,
            ended: None,
            peak_memory: None,
            share: None,
            active: None,
            idle_since: None,
            seen: None,
            reported: false,
        };
        let account = self.kept.accounts.entry(tenancy.attempt).or_insert(account);
        account.ended = account.ended.or(tenancy.ended);
        self.fill_in_shares();
    }

    /// Records an attempt's end: it is reported once a sample covers it.
    pub fn end(&mut self, attempt: AttemptId, at: Millis) {
        if let Some(account) = self.kept.accounts.get_mut(&attempt) {
            account.ended = account.ended.or(Some(at));
        }
    }

    /// Ends the accounts of attempts that `is_held` doesn't know: they ended while no agent was
    /// running.
    pub fn end_unless(&mut self, is_held: impl Fn(AttemptId) -> bool) {
        let Some((last, _)) = self.kept.ledger.span(Millis::ZERO) else { return };
        for (attempt, account) in &mut self.kept.accounts {
            if !is_held(*attempt) {
                account.ended = account.ended.or(Some(last));
            }
        }
    }

    /// Records the memory that the attempt's own processes reported, since samples miss short
    /// peaks.
    pub fn observe_memory(&mut self, attempt: AttemptId, peak: Bytes) {
        if let Some(account) = self.kept.accounts.get_mut(&attempt) {
            account.peak_memory = account.peak_memory.max(Some(peak));
        }
    }

    /// Forgets an attempt whose figures the controller has.
    pub fn acknowledged(&mut self, attempt: AttemptId) {
        if self.kept.accounts.get(&attempt).is_some_and(|account| account.reported) {
            self.kept.accounts.remove(&attempt);
            self.kept.ledger.settle(attempt);
        }
    }

    /// Records a sample; returns whether it completes an attempt's figures.
    pub fn take(&mut self, boot: BootId, at: Millis, sample: GpuSample) -> bool {
        let activity = self.activity(&sample, at);
        let reading =
            EnergyReading { boot, at, counter_mj: sample.energy_mj, power_mw: sample.power_mw };
        let shares = self.shares(at, &activity);
        self.kept.ledger.advance(reading, &shares);
        self.see(at, &sample, &activity);
        let numbers = sample.places.iter().map(|place| (place.slot, place.number));
        self.numbers = Some(numbers.collect());
        self.latest = Some(LatestSample { at, sample });
        self.mark_reported(|account| account.ended.is_some_and(|ended| ended <= at))
    }

    /// Records that the GPU can't be read: its figures have a gap. Ends don't wait forever.
    pub fn miss(&mut self, at: Millis) -> bool {
        self.latest = None;
        self.mark_reported(|account| account.ended.is_some_and(|ended| ended.plus(END_WAITS) <= at))
    }

    fn mark_reported(&mut self, is_over: impl Fn(&AttemptAccount) -> bool) -> bool {
        let mut any = false;
        for account in self.kept.accounts.values_mut() {
            if !account.reported && is_over(account) {
                account.reported = true;
                any = true;
            }
        }
        any
    }

    /// Finds the attempt that a process belongs to: by its environment, or, if that reports
    /// nothing, as the only one on its instance.
    fn owner(&self, process: &ProcessSample, sample: &GpuSample, at: Millis) -> Option<AttemptId> {
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

    fn present(&self, at: Millis) -> impl Iterator<Item = (AttemptId, &AttemptAccount)> {
        let here = move |account: &AttemptAccount| account.ended.is_none_or(|ended| ended > at);
        let all = self.kept.accounts.iter().map(|(attempt, account)| (*attempt, account));
        all.filter(move |(_, account)| here(account))
    }

    /// Computes the activity at a sample, in millionths of the GPU.
    fn activity(&self, sample: &GpuSample, at: Millis) -> ActivityWindow {
        let mut activity = ActivityWindow::default();
        let owned: Vec<_> =
            sample.processes.iter().map(|p| (p, self.owner(p, sample, at))).collect();
        for (attempt, _) in self.present(at) {
            activity.attempts.insert(attempt, 0);
        }
        if sample.loads_reported && !sample.mig {
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
        // The attempts that hold a context, by place.
        let mut busy = BTreeMap::<Option<Slot>, Vec<Option<AttemptId>>>::new();
        // A server holds a context only for its clients, which are listed themselves.
        for (process, owner) in owned.into_iter().filter(|(process, _)| !process.mps_server) {
            let there = busy.entry(slot_of(process, sample)).or_default();
            if !there.contains(&owner) {
                there.push(owner);
            }
        }
        for (slot, holders) in busy {
            let whole = slot.map_or(WHOLE, |slot| self.shares.get(&slot).copied().unwrap_or(0));
            let whole = whole * counted_of(sample, slot) / 1_000;
            let each = whole / holders.len().max(1) as u64;
            for holder in holders {
                match holder.and_then(|attempt| activity.attempts.get_mut(&attempt)) {
                    Some(active) => *active += each,
                    None => activity.other += each,
                }
            }
        }
        activity
    }

    /// Computes the use of each attempt since the last reading.
    fn shares(&self, to: Millis, activity: &ActivityWindow) -> EnergyShares {
        let Some((from, _)) = self.kept.ledger.span(to) else { return EnergyShares::default() };
        let length = to.minus(from).get().max(1);
        let mut on_place = BTreeMap::<Option<Slot>, u64>::new();
        let waiting = || self.kept.accounts.iter().filter(|(_, account)| !account.reported);
        for (_, account) in waiting() {
            *on_place.entry(account.slot).or_default() += account.overlap(from, to);
        }
        let mut shares = EnergyShares::default();
        let mut taken = 0_u128;
        for (attempt, account) in waiting() {
            let overlap = account.overlap(from, to);
            let share = account.share.unwrap_or(0);
            // Sharing attempts hold a place together and divide it.
            let all = on_place.get(&account.slot).copied().unwrap_or(0).max(length);
            let held =
                u128::from(share) * u128::from(overlap) * u128::from(length) / u128::from(all);
            let active = activity.attempts.get(attempt).copied();
            let active = active.or(account.active).unwrap_or(share);
            shares.attempts.push(EnergyShare {
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
    fn see(&mut self, at: Millis, sample: &GpuSample, activity: &ActivityWindow) {
        let mut memory = BTreeMap::<AttemptId, u64>::new();
        for process in &sample.processes {
            let Some(bytes) = process.memory.map(Bytes::get) else { continue };
            self.tracks.push(TrackSubject::Process(process.pid), TrackedFigure::Memory, at, bytes);
            if let Some(attempt) = self.owner(process, sample, at) {
                *memory.entry(attempt).or_default() += bytes;
            }
        }
        let mut busy = BTreeMap::<Slot, u64>::new();
        // The driver rounds a process's load down; that of the GPU is its only attempt's. What belongs to no
        // attempt may be a process of the same job, whose first attempt is on another GPU. So none counts as
        // idle meanwhile.
        let is_all_busy = activity.other > 0
            || activity.attempts.len() == 1
                && sample.busy_percent.is_some_and(|percent| percent > 0);
        for (attempt, active) in &activity.attempts {
            let Some(account) = self.kept.accounts.get_mut(attempt) else { continue };
            let bytes = memory.get(attempt).copied().unwrap_or(0);
            account.active = Some(*active);
            account.see_activity(at, *active > 0 || is_all_busy);
            account.peak_memory = account.peak_memory.max(Some(Bytes::new(bytes)));
            self.tracks.push(TrackSubject::Attempt(*attempt), TrackedFigure::Memory, at, bytes);
            self.tracks.push(
                TrackSubject::Attempt(*attempt),
                TrackedFigure::Activity,
                at,
                active / 1_000,
            );
            if let Some(slot) = account.slot {
                *busy.entry(slot).or_default() += active;
            }
        }
        for place in &sample.places {
            let of = TrackSubject::Slot(place.slot);
            if let Some(used) = place.memory_used {
                self.tracks.push(of, TrackedFigure::Memory, at, used.get());
            }
            let active = busy.get(&place.slot).copied().unwrap_or(0);
            self.tracks.push(of, TrackedFigure::Activity, at, active / 1_000);
        }
        let of = TrackSubject::Gpu;
        if let Some(used) = sample.memory_used {
            self.tracks.push(of, TrackedFigure::Memory, at, used.get());
        }
        if let Some(mw) = sample.power_mw {
            self.tracks.push(of, TrackedFigure::Power, at, mw);
        }
        let all = activity.attempts.values().sum::<u64>() + activity.other;
        let all = sample.busy_percent.map_or(all / 1_000, |percent| u64::from(percent) * 10);
        self.tracks.push(of, TrackedFigure::Activity, at, all.min(1_000));
    }

    /// Returns whether an attempt is on the GPU, so that it is to be sampled more often.
    pub fn is_busy(&self) -> bool {
        self.kept.accounts.values().any(|account| !account.reported)
    }

    /// Returns whether an attempt's end waits for a sample.
    pub fn is_ending(&self) -> bool {
        self.kept.accounts.values().any(|account| !account.reported && account.ended.is_some())
    }

    /// Returns the GPU's energy account.
    pub const fn ledger(&self) -> &EnergyLedger {
        &self.kept.ledger
    }

    /// Returns the attempts on the GPU, with their jobs and places.
    pub fn tenancies(&self) -> impl Iterator<Item = (AttemptId, JobId, Option<Slot>)> {
        let open = self.kept.accounts.iter().filter(|(_, account)| account.ended.is_none());
        open.map(|(attempt, account)| (*attempt, account.job, account.slot))
    }

    /// Adds the GPU's current jobs to a map; none while the GPU wasn't seen.
    pub fn map_jobs(&self, map: &mut JobMap) {
        let (Some(gpu), Some(numbers)) = (self.index, &self.numbers) else { return };
        map.known.insert(gpu);
        for (_, job, slot) in self.tenancies() {
            let instance = match slot.map(|slot| numbers.get(&slot)) {
                None => None,
                Some(Some(number)) => Some(*number),
                // The instance was just created, and is in the next sample.
                Some(None) => continue,
            };
            map.jobs.entry(DcgmEntity { gpu, instance }).or_default().insert(job);
        }
    }

    /// Returns when an attempt's program was started.
    pub fn began_of(&self, attempt: AttemptId) -> Option<Millis> {
        self.kept.accounts.get(&attempt).map(|account| account.began)
    }

    /// Returns an attempt's peak memory so far.
    pub fn peak_of(&self, attempt: AttemptId) -> Option<Bytes> {
        self.kept.accounts.get(&attempt)?.peak_memory
    }

    /// Returns since when an attempt has done nothing, if that was seen.
    pub fn idle_since(&self, attempt: AttemptId) -> Option<Millis> {
        self.kept.accounts.get(&attempt)?.idle_since
    }

    /// Returns the complete figures of attempts that have ended.
    pub fn ended_usages(&self) -> impl Iterator<Item = AttemptUsage> {
        let reported = self.kept.accounts.iter().filter(|(_, account)| account.reported);
        reported.map(|(attempt, account)| AttemptUsage {
            attempt: *attempt,
            energy_mj: self.kept.ledger.of(*attempt),
            peak_memory: account.peak_memory,
        })
    }
}

/// Longest time between two samples in which an attempt that is idle in both counts as idle. A program that uses its
/// GPU for a moment every few seconds must be seen. Longer gaps come from a driver or an agent that did not answer.
const IDLE_GAP_MAX: Millis = Millis::from_secs(15);

/// Returns how busy an instance is by the driver's counters, in thousandths; all of it where there are none.
fn counted_of(sample: &GpuSample, slot: Option<Slot>) -> u64 {
    let place = sample.places.iter().find(|place| Some(place.slot) == slot);
    place.and_then(|place| place.busy).map_or(1_000, u64::from)
}

impl AttemptAccount {
    /// Records whether the attempt does something.
    fn see_activity(&mut self, at: Millis, is_active: bool) {
        let is_continued =
            self.seen.is_some_and(|seen| at >= seen && at.minus(seen) <= IDLE_GAP_MAX);
        self.idle_since = match is_active {
            true => None,
            false => self.idle_since.filter(|_| is_continued).or(Some(at)),
        };
        self.seen = Some(at);
    }

    /// Returns how long the attempt existed between two times. Between two readings at the
    /// same time (the clock was changed) all present attempts count equally.
    fn overlap(&self, from: Millis, to: Millis) -> u64 {
        let end = self.ended.unwrap_or(to).min(to);
        let begin = self.began.max(from);
        if to <= from { u64::from(self.ended.is_none()) } else { end.minus(begin).get() }
    }
}

/// Activity, in millionths of the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ActivityWindow {
    /// The activity of every attempt; zero if it is idle.
    attempts: BTreeMap<AttemptId, u64>,
    other: u64,
}

impl ActivityWindow {
    /// Divides a server's activity among its clients, since the driver doesn't report for which of
    /// them it worked.
    fn share_out(&mut self, load: u64, served: &[AttemptId]) {
        let each = load / served.len().max(1) as u64;
        for attempt in served {
            *self.attempts.entry(*attempt).or_default() += each;
        }
    }
}

/// Returns the attempts that have a process on the GPU, each once.
fn served(owned: &[(&ProcessSample, Option<AttemptId>)]) -> Vec<AttemptId> {
    let mut served: Vec<_> = owned.iter().filter_map(|(_, owner)| *owner).collect();
    served.sort_unstable();
    served.dedup();
    served
}

/// Returns the instance that a process uses.
fn slot_of(process: &ProcessSample, sample: &GpuSample) -> Option<Slot> {
    let place = sample.places.iter().find(|place| Some(place.number) == process.place);
    place.map(|place| place.slot)
}

#[cfg(test)]
mod tests;
