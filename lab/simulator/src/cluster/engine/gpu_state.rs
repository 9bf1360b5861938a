//! What one simulated GPU has in addition to its view: its cut that is under way, and its energy.

use tessera_placement::Reshape;

/// Power of an idle GPU, in milliwatts.
///
/// Source: co-execution study, table 6 (A30); the device model's figure.
const IDLE_MILLIWATTS: u64 = 32_000;

/// Power that a busy compute slice adds, in milliwatts: the device model's figure. ResNet50 alone on an
/// A30 draws 100.77 W on four slices, 69 W above idle.
///
/// Source: co-execution study, table 2.
const SLICE_MILLIWATTS: u64 = 17_000;

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
    /// The present power, and the time up to which its energy is counted.
    pub(super) milliwatts: u64,
    settled: u64,
    pub(super) microjoules: u128,
}

impl GpuState {
    pub(super) const fn new(key: &'static str) -> Self {
        Self {
            key,
            stamp: 0,
            after_trial: None,
            cut_until: 0,
            trial_ms: 0,
            milliwatts: IDLE_MILLIWATTS,
            settled: 0,
            microjoules: 0,
        }
    }

    /// Counts the energy until now, and changes the power from now on.
    pub(super) fn draw(&mut self, now: u64, busy_milliwatts: u64) {
        let elapsed = u128::from(now.saturating_sub(self.settled));
        self.microjoules += elapsed * u128::from(self.milliwatts);
        self.settled = now;
        self.milliwatts = IDLE_MILLIWATTS + busy_milliwatts;
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
    pub(super) fn busy_milliwatts(job: Option<u64>, slices: u8, whole_slices: u8) -> u64 {
        let slice = job.map_or(SLICE_MILLIWATTS, |whole| {
            whole.saturating_sub(IDLE_MILLIWATTS) / u64::from(whole_slices.max(1))
        });
        slice * u64::from(slices)
    }
}
