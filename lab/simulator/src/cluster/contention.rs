//! The co-execution study's model of how jobs that share a GPU slow each other, with two resources.
//!
//! Calibrated, not derived. Four constants fit the printed pairs of the study on an A30
//! (Villarrubia et al., arXiv 2604.22430, tables 2 and 5 and figure 12). The model reproduces
//! its rules (`tests/coexec`). A job is described by the busy parts of the SMs and of the memory
//! bandwidth when it is alone on the GPU. On an A100 its term of bandwidth is wrong, so simulations take it for A30s
//! only ([`super::sharing`]).
//!
//! - **MPS.** Each job loses [`CO_RUNNERS`] to its co-runners, growing with their number, and then
//!   to the worse of two contentions. Contention for bandwidth grows with the sensitivity of both
//!   jobs to it, and contention for SMs with the co-runners' use of them. Caps that add up to 100 %
//!   remove the second, and slow a job that needs more than its cap.
//! - **MIG.** Slices are isolated: a job is slowed by the missing SMs or bandwidth of its slice, in
//!   proportion to its sensitivity.
//! - **Time-slicing.** Jobs run in time slices, one after another.

use tessera_model::board_power::BoardPower;
use tessera_placement::Demand;

use super::number::{count, whole};

/// The slow-down by one more co-runner, before any contention. Fitted, with [`MULTIPROCESSORS`], to
/// pairs that hardly contend (study, figure 12: T_rel 0.68 for SRAD with LavaMD).
const CO_RUNNERS: f64 = 0.1;

/// How it grows with the number of co-runners: four small copies of a job lose the gain of a pair
/// (study: T_rel 0.6 for two, 0.8 for four). Fitted to that.
const CO_RUNNER_GROWTH: f64 = 2.7;

/// Slow-down of one memory-bound job by another. Fitted (study: T_rel 1.3 for Sort with Sort).
const BANDWIDTH: f64 = 1.5;

/// Part of the bandwidth from which a job counts as bound by it (study: its memory-bound jobs have 18 to
/// 25 % alone, table 2, "about 20 %" in the text).
const MEMORY_BOUND: f64 = 0.2;

/// The slow-down by a co-runner that fills half of the SMs. Fitted (study: GeMM's partners lose
/// more than 2x).
const MULTIPROCESSORS: f64 = 0.3;

/// The cost of a slice's missing SMs and bandwidth. Fitted (study: GeMM above 2x, M-M 1.5 to 2 on
/// MIG 2-2).
const MISSING_MULTIPROCESSORS: f64 = 1.35;
const MISSING_BANDWIDTH: f64 = 0.74;

/// The slow-down by one more co-runner of unknown demands.
///
/// Source: MISO's program (`coloc_penalty`).
const UNKNOWN: f64 = 0.15;

/// The time that each further job adds for a job in time slices. Chosen within the study's
/// "slightly below 2" for two.
const TIME_SLICED: f64 = 0.95;

/// One of the jobs that share an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentionSharer {
    /// Its demands when alone on the whole GPU.
    pub demand: Option<Demand>,
    /// Its cap of the instance's SMs, in percent; 100 without one.
    pub cap: u8,
}

/// Returns how much longer each job takes than alone on the same instance, in thousandths. The
/// instance has `slices` of the GPU's `whole_slices` compute slices.
pub fn under_mps(sharers: &[ContentionSharer], slices: u8, whole_slices: u8) -> Vec<u64> {
    let part_of_gpu = f64::from(slices.max(1)) / f64::from(whole_slices.max(1));
    let caps: u32 = sharers.iter().map(|s| u32::from(s.cap)).sum();
    let apart = caps <= 100;
    let slowed = |me: usize| {
        let others = || sharers.iter().enumerate().filter(move |(other, _)| *other != me);
        let co_runners = count(others().count());
        let known = sharers.iter().all(|s| s.demand.is_some());
        if !known {
            return with_unknown(others().count());
        }
        let mine = sharers[me];
        let bandwidth: f64 = others().map(|(_, o)| sensitivity(o, part_of_gpu)).sum();
        let filled: f64 = others().map(|(_, o)| odds(busy(o, part_of_gpu).min(cap(o)))).sum();
        let memory = BANDWIDTH * sensitivity(&mine, part_of_gpu) * bandwidth;
        let compute = if apart { 0.0 } else { MULTIPROCESSORS * filled };
        let starved = if apart { (busy(&mine, part_of_gpu) / cap(&mine)).max(1.0) } else { 1.0 };
        let lonely = co_runners < 0.5;
        let base = if lonely { 0.0 } else { CO_RUNNERS * co_runners.powf(CO_RUNNER_GROWTH) };
        thousandths(starved * (1.0 + base + memory.max(compute)))
    };
    (0..sharers.len()).map(slowed).collect()
}

/// Returns how much longer a job takes next to so many others, where the demands of one of them are unknown.
pub(super) fn with_unknown(co_runners: usize) -> u64 {
    thousandths(1.0 + UNKNOWN * count(co_runners))
}

/// Returns how much longer a job takes on such a part of the GPU than on all of it, in
/// thousandths, where no time was measured there.
pub fn under_mig(demand: Demand, slices: u8, whole_slices: u8) -> u64 {
    let missing = f64::from(whole_slices.max(1)) / f64::from(slices.max(1)) - 1.0;
    let all = ContentionSharer { demand: Some(demand), cap: 100 };
    let compute = MISSING_MULTIPROCESSORS * busy(&all, 1.0);
    let memory = MISSING_BANDWIDTH * sensitivity(&all, 1.0);
    thousandths(1.0 + missing * compute.max(memory))
}

/// Returns how much longer each of this many jobs takes when they run in time slices, in
/// thousandths.
pub fn time_slicing(jobs: usize) -> u64 {
    thousandths(1.0 + TIME_SLICED * count(jobs.saturating_sub(1)))
}

/// Returns how transfers of jobs on one GPU stretch each of them, in thousandths: the bus is
/// shared by all slices, whatever their size. Each entry is the part of a job's time that is
/// transfers, in thousandths.
///
/// Source: MIGM, Needleman-Wunsch (seven at once: each 2.24x slower).
pub fn over_pcie(transfers: &[u16]) -> Vec<u64> {
    let demand: u64 = transfers.iter().map(|part| u64::from(*part)).sum();
    let stretch = demand.max(1_000);
    let slowed = |part: &u16| {
        let part = u64::from(*part).min(1_000);
        1_000 - part + part * stretch / 1_000
    };
    transfers.iter().map(slowed).collect()
}

/// The board on which the study measured.
const STUDY_BOARD: &str = "a30-24gb";

/// Power that a thousandth of the multiprocessors adds, in milliwatts: least squares over the study's ten medium jobs
/// (table 2). The part of the bandwidth adds nothing to it: its coefficient is negative there.
const MULTIPROCESSOR_MILLIWATTS: f64 = 95.6;

/// Returns what a job adds to the idle power of a GPU, by the multiprocessors that it keeps busy. Boards other than the
/// study's A30 are assumed to use the same part of the watts between idle and their limit.
pub fn power_above_idle_milliwatts(demand: Demand, board: BoardPower) -> u64 {
    let study = BoardPower::find(STUDY_BOARD).unwrap_or(board);
    let on_study = whole(MULTIPROCESSOR_MILLIWATTS * f64::from(demand.sm));
    on_study * board.range_milliwatts() / study.range_milliwatts().max(1)
}

/// Returns the power of an A30 with one job.
///
/// The fit did not see the study's eight small jobs (table 5): its error there is 13.6 % on
/// average. The error of a fixed 17 W for each slice is 103 %.
pub fn power_alone_milliwatts(demand: Demand) -> u64 {
    let board = BoardPower::find(STUDY_BOARD).unwrap_or(BoardPower::UNLISTED);
    board.idle_milliwatts() + power_above_idle_milliwatts(demand, board)
}

/// Returns the power of a GPU whose jobs share it under MPS, over that of the same jobs one after
/// the other, in thousandths.
///
/// Source: study, figure 12: 1.07 typically, 1.15 where they contend for bandwidth; caps cost
/// another 10 to 15 %, of which 12 was chosen. They contend from 17 % of the bandwidth each on, so that
/// all of the study's memory-bound jobs do (GUPS has the least, 17.72 %).
pub fn power_under_mps(sharers: &[ContentionSharer]) -> u64 {
    let bound = sharers.iter().filter(|s| sensitivity(s, 1.0) > 0.7).count();
    let capped = sharers.iter().any(|s| s.cap < 100);
    match (sharers.len(), bound > 1, capped) {
        (0 | 1, _, _) => 1_000,
        (_, true, _) => 1_150,
        (_, false, true) => 1_070 * 1_120 / 1_000,
        (_, false, false) => 1_070,
    }
}

/// The same for jobs on separate slices. Source: study, figure 12: 1.15 typically.
pub const POWER_UNDER_MIG: u64 = 1_150;

fn busy(sharer: &ContentionSharer, part_of_gpu: f64) -> f64 {
    let sm = sharer.demand.map_or(0, |d| d.sm);
    (f64::from(sm) / 1_000.0 / part_of_gpu).min(0.95)
}

fn cap(sharer: &ContentionSharer) -> f64 {
    f64::from(sharer.cap.max(1)) / 100.0
}

fn sensitivity(sharer: &ContentionSharer, part_of_gpu: f64) -> f64 {
    let memory = sharer.demand.map_or(0, |d| d.memory);
    (f64::from(memory) / 1_000.0 / part_of_gpu / MEMORY_BOUND).powi(2).min(1.0)
}

fn odds(part: f64) -> f64 {
    part / (1.0 - part.min(0.95))
}

fn thousandths(value: f64) -> u64 {
    whole(value * 1_000.0)
}
