//! Simulated jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::place::PlaceFilter;
use tessera_model::{Bytes, GangShape};
use tessera_placement::Demand;

/// The class of a job.
///
/// Source: MMK's two classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobClass {
    /// Bound by latency, such as inference.
    Online,
    /// Bound by throughput, such as training.
    #[default]
    // Alibaba's trace has a third class, which counts as offline.
    #[serde(alias = "burstable")]
    Offline,
}

/// How long a job takes alone, in milliseconds, by the compute slices of its instance; missing
/// where it doesn't run.
pub type SliceTimes = BTreeMap<u8, u64>;

/// One job of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedJob {
    /// Its name, which need not be unique.
    pub name: String,
    /// The user in the reckoning of fair share.
    pub user: String,
    /// The account in that reckoning; `None` for a user without one, who counts as an account.
    pub account: Option<String>,
    /// The shares of the account, relative to those of others; the same for all of its jobs.
    pub shares: u32,
    /// When it is submitted, in milliseconds from the start.
    pub submit_ms: u64,
    /// Online or offline, as MIGER distinguishes them.
    pub class: JobClass,
    /// 0 (highest) to 9.
    pub priority: u8,
    /// Its deadline, in milliseconds from the start.
    pub deadline_ms: Option<u64>,
    /// How long it may run in one placement, in milliseconds: then it ends, whatever is left of it.
    pub limit_ms: Option<u64>,
    /// The only nodes and models of GPUs on which it may run; `None` for all.
    pub place: Option<Arc<PlaceFilter>>,
    /// Time alone, start-up left out, by GPU model (catalogue key); under `*` for every model
    /// that isn't named.
    pub times: BTreeMap<String, SliceTimes>,
    /// The memory that it requests.
    pub requested: Bytes,
    /// The memory that it uses at its start.
    pub memory_at_start: Bytes,
    /// The memory that it uses at its end; it grows linearly in between.
    pub memory_at_end: Bytes,
    /// Its demands on a whole GPU.
    pub demand: Option<Demand>,
    /// Part of its time alone on a whole GPU in which one of its kernels runs, in thousandths.
    pub busy: Option<u16>,
    /// Part of its time on a whole GPU that is transfers over PCIe, in thousandths.
    pub transfer: u16,
    /// The power of a whole GPU while it runs, in milliwatts.
    pub power_milliwatts: Option<u64>,
    /// Time from its start until it works.
    pub start_up_ms: u64,
    /// Time that a restored checkpoint takes; `None` if it can't be stopped and continued.
    pub restore_ms: Option<u64>,
    /// The number of equal steps in which it works, if it checkpoints only whole ones: a stop loses
    /// the current step. `None`: nothing is lost.
    pub iterations: Option<u64>,
    /// Its place in its gang, if it is one process of several: the other members are next to it in
    /// the workload, by rank.
    pub gang: Option<GangMembership>,
}

/// One process's place in its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangMembership {
    /// How many processes there are, and where.
    pub shape: GangShape,
    /// Its number among them, from 0.
    pub rank: u32,
}

impl SimulatedJob {
    /// Returns the account in the reckoning of fair share: its own, or its user.
    pub fn account(&self) -> &str {
        self.account.as_deref().unwrap_or(&self.user)
    }

    /// Returns its times on a GPU model.
    pub fn times_on(&self, model: &str) -> Option<&SliceTimes> {
        self.times.get(model).or_else(|| self.times.get("*"))
    }

    /// Returns its time alone on an instance with this many compute slices. A size between two
    /// measured ones gets the time of the slower one, which is the next smaller.
    pub fn time(&self, model: &str, slices: u8) -> Option<u64> {
        self.times_on(model)?.range(..=slices).next_back().map(|(_, ms)| *ms)
    }

    /// Returns the least time that it can take on any of the models.
    pub fn fastest(&self, models: &[&str]) -> Option<u64> {
        let times = models.iter().filter_map(|model| self.times_on(model));
        times.flat_map(BTreeMap::values).copied().min()
    }

    /// Returns how many of the completed parts survive a stop, in parts of [`WHOLE`].
    pub fn kept(&self, done: u64) -> u64 {
        let step = self.iterations.map_or(1, |steps| WHOLE / steps.clamp(1, WHOLE));
        done - done % step
    }

    /// Returns the maximum time that a stop makes it repeat, in milliseconds: one step at its
    /// slowest speed.
    pub fn step_ms(&self) -> u64 {
        let Some(steps) = self.iterations else { return 0 };
        let slowest = self.times.values().flat_map(BTreeMap::values).copied().max();
        slowest.unwrap_or(0).div_ceil(steps.max(1))
    }

    /// Returns how far it gets before it outgrows `memory`, in parts of [`WHOLE`]; `None` if it
    /// never does.
    pub fn outgrows(&self, memory: Bytes) -> Option<u64> {
        let (start, end) = (self.memory_at_start.get(), self.memory_at_end.get());
        if end.max(start) <= memory.get() {
            return None;
        }
        if start > memory.get() || end <= start {
            return Some(0);
        }
        let part = u128::from(memory.get() - start) * u128::from(WHOLE) / u128::from(end - start);
        u64::try_from(part).ok()
    }
}

/// A whole job, in the parts in which progress is counted: fine enough that a millisecond of a job
/// of a year is about thirty of them.
pub const WHOLE: u64 = 1_000_000_000_000;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A job of ten seconds on a whole GPU and of fifty on a seventh.
    pub(crate) fn job() -> SimulatedJob {
        SimulatedJob {
            name: "job".to_owned(),
            user: "ada".to_owned(),
            account: None,
            shares: 1,
            submit_ms: 0,
            class: JobClass::Offline,
            priority: 5,
            deadline_ms: None,
            limit_ms: None,
            place: None,
            times: BTreeMap::from([(
                "*".to_owned(),
                BTreeMap::from([(1, 50_000), (2, 30_000), (4, 16_000), (7, 10_000)]),
            )]),
            requested: Bytes::from_mib(4_000),
            memory_at_start: Bytes::from_mib(4_000),
            memory_at_end: Bytes::from_mib(4_000),
            demand: None,
            busy: None,
            transfer: 0,
            power_milliwatts: None,
            start_up_ms: 0,
            restore_ms: Some(1_000),
            iterations: None,
            gang: None,
        }
    }

    #[test]
    fn a_size_that_was_not_measured_counts_as_the_next_smaller() {
        assert_eq!(job().time("a100-40gb", 3), Some(30_000));
        assert_eq!(job().time("a100-40gb", 7), Some(10_000));
        let large = SimulatedJob {
            times: BTreeMap::from([("*".into(), BTreeMap::from([(4, 9)]))]),
            ..job()
        };
        assert_eq!(large.time("a100-40gb", 3), None);
    }

    #[test]
    fn only_whole_iterations_outlast_a_stop() {
        assert_eq!(job().kept(123_456), 123_456);
        assert_eq!(job().step_ms(), 0);
        let stepped = SimulatedJob { iterations: Some(4), ..job() };
        assert_eq!(stepped.kept(WHOLE / 4 - 1), 0);
        assert_eq!(stepped.kept(WHOLE / 2 + 7), WHOLE / 2);
        assert_eq!(stepped.kept(WHOLE), WHOLE);
        assert_eq!(stepped.step_ms(), 12_500);
    }

    #[test]
    fn memory_that_grows_evenly_is_outgrown_in_proportion() {
        let growing = SimulatedJob { memory_at_end: Bytes::from_mib(8_000), ..job() };
        assert_eq!(growing.outgrows(Bytes::from_mib(5_000)), Some(WHOLE / 4));
        assert_eq!(growing.outgrows(Bytes::from_mib(8_000)), None);
        assert_eq!(growing.outgrows(Bytes::from_mib(3_000)), Some(0));
    }
}
