//! What users have had lately, as attempts begin and end.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::share::Part;
use tessera_model::{Bytes, GpuId, Millis};
use tessera_placement::fair::Decayed;

use super::super::{Cluster, Live};
use super::Accounts;

/// As good as for ever, in milliseconds: a thousand years.
const FOR_EVER: Millis = Millis::from_secs(1_000 * 365 * 86_400);
/// What all multiprocessors are, in percent.
const ALL_PERCENT: f64 = 100.0;
/// Compute slices that a GPU without MIG counts for, as for quotas.
const WHOLE: f64 = 7.0;

/// Usage by user.
#[derive(Clone, Debug, Default)]
pub struct Book {
    users: BTreeMap<Arc<str>, Decayed>,
}

impl Book {
    /// Begins with what was had before, and forgets what was known.
    pub(in crate::core) fn begin(
        &mut self,
        had: Vec<(String, Millis)>,
        accounts: &Accounts,
        now: Millis,
    ) {
        let held: Vec<(Arc<str>, f64)> =
            self.users.iter().map(|(user, had)| (Arc::clone(user), had.held())).collect();
        self.users.clear();
        for (user, used) in had {
            self.users.insert(user.into(), Decayed::new(used, 0.0, now));
        }
        for (user, slices) in held {
            self.take(&user, slices, accounts, now);
        }
    }

    /// Slices are taken, or, if the number is negative, given back.
    pub(in crate::core) fn take(
        &mut self,
        user: &Arc<str>,
        slices: f64,
        accounts: &Accounts,
        now: Millis,
    ) {
        let had = self.users.entry(Arc::clone(user)).or_default();
        had.take(slices, now, accounts.half_life.unwrap_or(FOR_EVER));
    }

    /// Everything is given back: who holds what is told anew.
    pub(in crate::core) fn let_go(&mut self, accounts: &Accounts, now: Millis) {
        for had in self.users.values_mut() {
            had.take(-had.held(), now, accounts.half_life.unwrap_or(FOR_EVER));
        }
    }

    /// Returns what a user has had, in time on one compute slice.
    pub(in crate::core) fn had(&self, user: &str, accounts: &Accounts, now: Millis) -> Millis {
        let half_life = accounts.half_life.unwrap_or(FOR_EVER);
        self.users.get(user).map_or(Millis::ZERO, |had| had.until(now, half_life))
    }

    /// Returns the users who hold something now, or had something lately.
    pub(super) fn users(&self) -> impl Iterator<Item = &Arc<str>> {
        self.users.keys()
    }
}

impl Cluster {
    /// Returns what an attempt counts for, in compute slices: a sharer by its part of them, and one that
    /// takes turns, which has no part of them, by its part of the memory.
    pub(in crate::core) fn worth(
        &self,
        gpu: &GpuId,
        slot: Option<Slot>,
        part: Option<Part>,
    ) -> f64 {
        let known = self.gpus.get(gpu);
        let profile = slot.and_then(|slot| {
            known.and_then(|gpu| gpu.mig.as_ref()?.geometry.profile(slot.profile))
        });
        let slices = profile.map_or(WHOLE, |profile| f64::from(profile.compute_slices));
        let memory = profile.map(|profile| profile.memory);
        let memory = memory.or(known.map(|gpu| gpu.report.memory)).unwrap_or(Bytes::ZERO);
        match part {
            None => slices,
            Some(Part::Compute(seat)) => f64::from(seat.slot.slices),
            Some(Part::Mps(share)) => slices * f64::from(share.sm.get()) / ALL_PERCENT,
            Some(Part::Kernel(share)) => slices * of(share.memory, memory),
        }
    }

    /// Counts an attempt from now on.
    pub(in crate::core) fn charge(&mut self, user: &Arc<str>, worth: f64, now: Millis) {
        self.book.take(user, worth, &self.accounts, now);
    }

    /// Counts an attempt no more.
    pub(in crate::core) fn refund(&mut self, live: &Live) {
        self.book.take(&live.user, -live.worth, &self.accounts, self.stepped);
    }
}

#[cfg(test)]
impl Cluster {
    /// Makes sure that what is counted for users is what their attempts hold.
    pub(in crate::core) fn check_book(&self) {
        for (user, had) in &self.book.users {
            let own = self.live.values().filter(|live| live.user == *user);
            let held: f64 = own.map(|live| live.worth).sum();
            assert!((held - had.held()).abs() < 1e-6, "{user} holds {held}, not {had:?}");
        }
        let known = |live: &&Live| self.book.users.contains_key(&live.user);
        assert_eq!(self.live.values().filter(known).count(), self.live.len());
    }
}

/// Returns a part of the memory, at most all of it.
fn of(part: Bytes, whole: Bytes) -> f64 {
    let mebibytes = |bytes: Bytes| f64::from(u32::try_from(bytes.get() >> 20).unwrap_or(u32::MAX));
    (mebibytes(part) / mebibytes(whole).max(1.0)).min(1.0)
}
