//! What one simulated GPU has in addition to its view: its cut that is under way, and its energy.

use tessera_model::board_power::BoardPower;
use tessera_model::number::clamped;
use tessera_placement::{Demand, Reshape};

use crate::cluster::contention;
use crate::cluster::job::SimulatedJob;

#[derive(Clone, Debug)]
pub(super) struct GpuState {
    pub(super) key: &'static str,
    /// Grows with each cut, so that events of older ones are ignored.
    pub(super) stamp: u32,
    /// The layout after the trial that is under way.
    pub(super) after_trial: Option<Reshape>,
    /// Until when it is being cut.
    pub(super) cut_until: u64,
    /// How long that trial takes once all jobs of the GPU run.
    pub(super) trial_ms: u64,
    board: BoardPower,
    /// The present power, and the time up to which its energy is counted.
    pub(super) milliwatts: u64,
    settled: u64,
    pub(super) microjoules: u128,
}

impl GpuState {
    pub(super) fn new(key: &'static str) -> Self {
        let board = BoardPower::find(key).unwrap_or(BoardPower::UNLISTED);
        Self {
            key,
            stamp: 0,
            after_trial: None,
            cut_until: 0,
            trial_ms: 0,
            board,
            milliwatts: board.idle_milliwatts(),
            settled: 0,
            microjoules: 0,
        }
    }

    /// Counts the energy until now, and changes the power from now on.
    pub(super) fn draw(&mut self, now: u64, busy_milliwatts: u64) {
        let elapsed = u128::from(now.saturating_sub(self.settled));
        self.microjoules += elapsed * u128::from(self.milliwatts);
        self.settled = now;
        self.milliwatts = self.board.idle_milliwatts() + busy_milliwatts;
    }

    /// Returns the energy of creating an instance, in addition to that of an idle GPU.
    ///
    /// Source: co-execution study, table 6 (A30, for 1, 2 and 4 slices).
    pub(super) const fn creation_microjoules(slices: u8) -> u128 {
        match slices {
            0 | 1 => 2_320_000,
            2 | 3 => 2_360_000,
            _ => 2_460_000,
        }
    }

    /// The same of destroying one.
    pub(super) const fn destruction_microjoules(slices: u8) -> u128 {
        match slices {
            0 | 1 => 1_750_000,
            2 | 3 => 1_770_000,
            _ => 2_080_000,
        }
    }

    /// Returns what a job on this many compute slices adds to the idle power, in milliwatts.
    ///
    /// It is a part of what the job is known to draw alone on the whole GPU. Otherwise it follows from the
    /// multiprocessors that the job keeps busy, at most those of its slice.
    pub(super) fn busy_milliwatts(&self, job: &SimulatedJob, slices: u8, whole_slices: u8) -> u64 {
        let (slices, all) = (u64::from(slices), u64::from(whole_slices.max(1)));
        match (job.power_milliwatts, job.demand) {
            (Some(whole), _) => whole.saturating_sub(self.board.idle_milliwatts()) * slices / all,
            (None, Some(demand)) => {
                let sm = demand.sm.min(clamped(1_000 * slices / all));
                contention::power_above_idle_milliwatts(Demand { sm, ..demand }, self.board)
            }
            (None, None) => self.board.slice_milliwatts(whole_slices) * slices,
        }
    }
}
