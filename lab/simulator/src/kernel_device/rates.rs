//! How fast two jobs are that share a slice kernel by kernel, from the queue itself in virtual time.
//!
//! Of a job only how busy it is is known, so both get the shape of FIKIT's pair A: tasks
//! of 8 ms with 80 launches of 40 kernels. Kernels and the gaps between them are as long at the mean
//! as that pair's, so a job that is busier has fewer gaps. That shape is an assumption; the parts of time are the jobs'
//! own. Under the queue the device takes as long for a context switch as a GPU. Without that, fillers of FIKIT's pairs
//! would use three times as much of the idle time as was measured.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tessera_kernel_queue::QueueRules;

use super::experiment::{PairBench, SLICE};
use super::models::{ProgramModel, ProgramPair};
use super::outcome::float;
use super::world::SharingPolicy;

/// Parts of time are rounded to this many thousandths: 50 steps each, so that the queue is run
/// 2,500 times at most.
const STEP: u16 = 20;

/// Tasks of the first program in one run: 1.3 s of virtual time.
const TASKS: usize = 160;

/// Spread of gaps, in thousandths: inputs of one size (as in the recorded pairs).
const GAP_NOISE: u64 = 50;

const SEED: u64 = 7;

/// What decides which kernel is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceOrder {
    /// The queue, by priority.
    Priority,
    /// The driver, by time slices.
    Slices,
}

/// Pairs of programs by order and by how busy they are, each with how much longer it takes.
type Slowdowns = BTreeMap<(ServiceOrder, u16, u16), [u64; 2]>;

/// The results so far. They are shared by the whole process: a pair always has the same result, and
/// experiments run hundreds of clusters with the same pairs.
static FOUND: Mutex<Slowdowns> = Mutex::new(BTreeMap::new());

/// Returns how much longer than alone a job of better priority and one of worse take next to
/// each other, in thousandths. `busy` has the part of each one's time alone in which a kernel
/// of it runs.
pub fn slowdowns(order: ServiceOrder, busy: [u16; 2]) -> [u64; 2] {
    let [high, low] = busy.map(rounded);
    let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = found().get(&(order, high, low)) {
        return *known;
    }
    let measured = run(order, [high, low]);
    found().insert((order, high, low), measured);
    measured
}

/// Rounds to the nearest step; a job that is never busy counts as busy for one.
fn rounded(busy: u16) -> u16 {
    ((busy.min(1_000) + STEP / 2) / STEP * STEP).max(STEP)
}

fn run(order: ServiceOrder, [high, low]: [u16; 2]) -> [u64; 2] {
    let pair = ProgramPair { letter: '-', high: shape("high", high), low: shape("low", low) };
    let bench = PairBench::new(&pair, GAP_NOISE, TASKS, SEED);
    let rules = QueueRules::default();
    let (bench, policy) = match order {
        ServiceOrder::Priority => (bench.with_switch(rules.switch), SharingPolicy::Queue(rules)),
        // Its slice is fitted to a measurement, so that it has the switches in it.
        ServiceOrder::Slices => (bench, SharingPolicy::Slices(SLICE)),
    };
    let alone = bench.both(SharingPolicy::Alone);
    let together = bench.both(policy);
    let high = together.programs[0].mean() / alone.programs[0].mean();
    let rate = float(together.programs[1].busy) / float(together.end).max(1.0);
    let slowed = f64::from(low) / 1_000.0 / rate.max(0.001);
    [high, slowed].map(|slowed| tessera_predict::number::whole(slowed * 1_000.0).max(1_000))
}

fn shape(name: &'static str, busy: u16) -> ProgramModel {
    let busy_us = 8_000 * u64::from(busy) / 1_000;
    let gaps = u64::from(1_000 - busy) * 15 / 700;
    ProgramModel { name, alone_us: 8_000, busy_us, launches: 80, kernels: 40, gaps }
}
