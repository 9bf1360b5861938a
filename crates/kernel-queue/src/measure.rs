//! The measuring stage: samples of one session become means (FIKIT §3.2).

use serde::{Deserialize, Serialize};

use crate::drift::Verdict;
use crate::ids::KernelIndex;
use crate::limits::KERNELS_MAX;
use crate::profile::TaskProfile;
use crate::time::Nanos;

/// A kernel that is rarer than this among all launches can't hold up the end of measuring: at
/// 1 in 1,000 it weighs nothing in a gap, and it is measured further while it is shared.
const RARE: u64 = 1_000;

/// Fewest launches before measuring may end, so that no task counts as measured by its start.
const LAUNCHES_MIN: u64 = 100;

/// What one kernel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Which.
    pub kernel: KernelIndex,
    /// The kernel before it, in the same process.
    pub before: Option<KernelIndex>,
    /// How long it ran.
    pub took: Nanos,
    /// How long the device was idle after it; the last of a run has no gap.
    pub gap: Option<Nanos>,
}

/// What one process' samples come to. The first sample of each kernel in a process is dropped:
/// the driver loads code then.
#[derive(Clone, Debug)]
pub struct Recorder {
    met: Box<[bool]>,
    launches: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { met: vec![false; usize::from(KERNELS_MAX)].into_boxed_slice(), launches: 0 }
    }
}

/// What a sample led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing changes.
    Noted,
    /// The task is measured from now on.
    Measured,
    /// The kernel is not what it was: it has to be measured again.
    Drifted(KernelIndex),
}

impl Recorder {
    /// Notes a sample in the task's profile.
    ///
    /// While the task is measured, every sample goes into the means. After that samples only
    /// watch for drift, but for kernels that are new or being measured again. What a session does
    /// that has to ask says nothing about gaps, so `alone` it must have been for those.
    pub fn note(&mut self, profile: &mut TaskProfile, sample: Sample, alone: bool) -> Recorded {
        let Some(met) = self.met.get_mut(usize::from(sample.kernel.get())) else {
            return Recorded::Noted;
        };
        self.launches += u64::from(alone);
        if !std::mem::replace(met, true) {
            return Recorded::Noted;
        }
        let measuring = !profile.is_measured();
        let Some(kernel) = profile.kernel_mut(sample.kernel) else { return Recorded::Noted };
        let expected = kernel.took.known();
        if let (false, true, Some(expected)) = (measuring, kernel.took.is_measured(), expected) {
            return match kernel.drift.look(expected, sample.took) {
                Verdict::Same => Recorded::Noted,
                Verdict::Drifted => {
                    profile.remeasure(sample.kernel);
                    Recorded::Drifted(sample.kernel)
                }
            };
        }
        kernel.took.add(sample.took);
        if let Some(gap) = sample.gap.filter(|_| alone) {
            kernel.gap.add(gap);
            profile.pairs.add(sample.before, sample.kernel, gap);
        }
        if measuring && alone && self.is_enough(profile) {
            profile.close_measuring();
            return Recorded::Measured;
        }
        Recorded::Noted
    }

    /// Tells whether each kernel's mean is tight or rests on 1,000 samples, rare ones aside.
    fn is_enough(&self, profile: &TaskProfile) -> bool {
        self.launches >= LAUNCHES_MIN
            && profile.kernels().iter().all(|kernel| {
                kernel.took.is_measured() || u64::from(kernel.took.samples()) * RARE < self.launches
            })
    }
}
