//! What is known of a task's kernels: identity, how long each runs, how long the device is idle
//! after it (FIKIT §3.2: `SK` and `SG`), and what each takes of the device (MMK §III-C).

use serde::{Deserialize, Serialize};

use crate::admission::Need;
use crate::drift::Drift;
use crate::ids::{KernelId, KernelIndex};
use crate::limits::KERNELS_MAX;
use crate::pairs::Pairs;
use crate::stats::Mean;
use crate::time::Nanos;

/// One kernel of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelProfile {
    /// Which.
    pub id: KernelId,
    /// How long it runs: `SK` is its mean.
    pub took: Mean,
    /// How long the device is idle after it: `SG` is its mean.
    pub gap: Mean,
    /// What it takes of the device while it runs, if known.
    pub need: Option<Need>,
    /// Whether what it takes now is still what was measured. A stored profile starts afresh.
    #[serde(skip)]
    pub drift: Drift,
}

/// Everything that is known of one task. It serialises, and profiles of the same task from
/// several machines merge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct TaskProfile {
    kernels: Vec<KernelProfile>,
    /// Gaps by the pair of kernels before them.
    pub pairs: Pairs,
    measured: bool,
}

/// A task that launches more different kernels than are kept. Those beyond are unknown: they
/// neither fill gaps nor have any that are filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task has more than {KERNELS_MAX} different kernels: this one stays unknown")]
pub struct TooManyKernels;

impl TaskProfile {
    /// Returns the kernel's index; one that is new gets the next.
    ///
    /// # Errors
    ///
    /// [`TooManyKernels`]: launch it as an unknown one.
    pub fn intern(&mut self, id: &KernelId) -> Result<KernelIndex, TooManyKernels> {
        if let Some(index) = self.index(id) {
            return Ok(index);
        }
        let number = u16::try_from(self.kernels.len()).map_err(|_| TooManyKernels)?;
        if number >= KERNELS_MAX {
            return Err(TooManyKernels);
        }
        self.kernels.push(KernelProfile {
            id: id.clone(),
            took: Mean::EMPTY,
            gap: Mean::EMPTY,
            need: None,
            drift: Drift::default(),
        });
        Ok(KernelIndex::new(number))
    }

    /// Returns the index of a kernel that was seen before.
    pub fn index(&self, id: &KernelId) -> Option<KernelIndex> {
        let at = self.kernels.iter().position(|kernel| kernel.id == *id)?;
        u16::try_from(at).ok().map(KernelIndex::new)
    }

    /// Returns one kernel.
    pub fn kernel(&self, index: KernelIndex) -> Option<&KernelProfile> {
        self.kernels.get(usize::from(index.get()))
    }

    /// Returns one kernel, to note what it did.
    pub fn kernel_mut(&mut self, index: KernelIndex) -> Option<&mut KernelProfile> {
        self.kernels.get_mut(usize::from(index.get()))
    }

    /// Returns all kernels, by index.
    pub fn kernels(&self) -> &[KernelProfile] {
        &self.kernels
    }

    /// Returns how long a kernel is expected to run: `SK`.
    pub fn took(&self, index: KernelIndex) -> Option<Nanos> {
        self.kernel(index)?.took.known()
    }

    /// Returns how long the device is expected to be idle after a kernel: `SG`.
    pub fn gap(&self, index: KernelIndex) -> Option<Nanos> {
        self.kernel(index)?.gap.known()
    }

    /// Returns in what part of its time alone a kernel of the task runs, in thousandths: of each
    /// kernel whose gap was measured, the time it takes against that time and the gap. `None` before
    /// the measuring stage is over.
    pub fn busy(&self) -> Option<u16> {
        let (mut ran, mut all) = (0_u128, 0_u128);
        for kernel in self.kernels.iter().filter(|_| self.measured) {
            let Some((took, gap)) = kernel.took.mean().zip(kernel.gap.mean()) else { continue };
            let often = u128::from(kernel.gap.samples());
            ran += u128::from(took.get()) * often;
            all += (u128::from(took.get()) + u128::from(gap.get())) * often;
        }
        (ran * 1_000).checked_div(all).and_then(|part| u16::try_from(part).ok())
    }

    /// Tells whether measuring is over (FIKIT's sharing stage).
    pub const fn is_measured(&self) -> bool {
        self.measured
    }

    /// Ends the measuring stage.
    pub const fn close_measuring(&mut self) {
        self.measured = true;
    }

    /// Has a kernel measured again: what it takes now counts, what was measured is forgotten.
    ///
    /// It stays usable: the samples that gave the drift away are its first new ones.
    pub fn remeasure(&mut self, index: KernelIndex) {
        if let Some(kernel) = self.kernels.get_mut(usize::from(index.get())) {
            kernel.took = kernel.drift.fresh();
            kernel.gap = Mean::EMPTY;
            kernel.drift = Drift::default();
            self.pairs.forget(index);
        }
    }

    /// Forgets what is known of a kernel; it keeps its index.
    pub fn forget(&mut self, index: KernelIndex) {
        if let Some(kernel) = self.kernel_mut(index) {
            kernel.took = Mean::EMPTY;
            kernel.gap = Mean::EMPTY;
            kernel.drift = Drift::default();
            self.pairs.forget(index);
        }
    }

    /// Adds what another machine measured of the same task.
    pub fn merge(&mut self, other: &Self) {
        let indices: Vec<Option<KernelIndex>> =
            other.kernels.iter().map(|theirs| self.intern(&theirs.id).ok()).collect();
        for (theirs, index) in other.kernels.iter().zip(&indices) {
            let Some(mine) = index.and_then(|index| self.kernel_mut(index)) else { continue };
            mine.took.merge(&theirs.took);
            mine.gap.merge(&theirs.gap);
            mine.need = Need::larger(mine.need, theirs.need);
        }
        let renamed = |index: KernelIndex| indices.get(usize::from(index.get())).copied().flatten();
        self.pairs.merge(&other.pairs, renamed);
        self.measured = self.measured || other.measured;
    }
}

/// A [`TaskProfile`] as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    kernels: Vec<KernelProfile>,
    pairs: Pairs,
    measured: bool,
}

/// A stored profile that no measuring can have made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the profile has {kernels} kernels, with one twice or more than {KERNELS_MAX}: it is damaged, measure again"
)]
pub struct BadProfile {
    kernels: usize,
}

impl From<TaskProfile> for Stored {
    fn from(profile: TaskProfile) -> Self {
        Self { kernels: profile.kernels, pairs: profile.pairs, measured: profile.measured }
    }
}

impl TryFrom<Stored> for TaskProfile {
    type Error = BadProfile;

    fn try_from(stored: Stored) -> Result<Self, BadProfile> {
        let kernels = stored.kernels.len();
        let ids: std::collections::BTreeSet<_> = stored.kernels.iter().map(|k| &k.id).collect();
        if ids.len() != kernels || kernels > usize::from(KERNELS_MAX) {
            return Err(BadProfile { kernels });
        }
        Ok(Self { kernels: stored.kernels, pairs: stored.pairs, measured: stored.measured })
    }
}
