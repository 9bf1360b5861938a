//! The profile of a task's kernels: their identities, run times and gaps (FIKIT §3.2: `SK` and `SG`),
//! and their resource needs (MMK §III-C).

use serde::{Deserialize, Serialize};

use crate::admission::ResourceNeed;
use crate::drift::Drift;
use crate::histograms::GapHistograms;
use crate::ids::{KernelId, KernelIndex};
use crate::limits::{KERNELS_MAX, SHAPES_MAX};
use crate::mean::Mean;
use crate::measure::MeasuringStage;
use crate::relatives::{self, TimeEstimate};
use crate::sketch::Sketch;
use crate::time::Nanos;

/// One kernel of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelProfile {
    /// The kernel's identity.
    pub id: KernelId,
    /// Its run times: `SK` is their mean.
    pub took: Mean,
    /// The gaps after it, in which the device is idle: `SG` is their mean.
    pub gap: Mean,
    /// The resources that it occupies while it runs, if known. It depends on the slice, and each
    /// session reports it, so it is not stored.
    #[serde(default, skip_serializing)]
    pub need: Option<ResourceNeed>,
    /// Detects a changed run time. It is not stored.
    #[serde(skip)]
    pub drift: Drift,
    /// The first sample of its function in a process, in which the driver may have loaded code. It is
    /// used until there is anything better, and not stored.
    #[serde(skip)]
    pub first: Option<Nanos>,
    /// The least time from a launch to its observed end: a bound, and not a measurement. It is used
    /// while there is no sample at all, since samples may be lost. It is not stored.
    #[serde(skip)]
    pub bound: Option<Nanos>,
    /// Its launches in the measuring stage, which are not stored.
    #[serde(skip)]
    pub(crate) launched: u32,
    /// How many launches of the stage were made before it was defined, or before its first one.
    #[serde(skip)]
    pub(crate) defined_at: u64,
    /// [`Self::launched`] at its last sampled gap.
    #[serde(skip)]
    pub(crate) gap_sampled_at: u32,
    /// The function that it and its relatives launch: the index of the first kernel of that name.
    #[serde(skip)]
    function: u16,
}

impl KernelProfile {
    /// Returns the index of the first kernel with the same name.
    pub const fn function(&self) -> KernelIndex {
        KernelIndex::new(self.function)
    }
}

/// The profile of one task. Profiles of the same task from several machines can be merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredProfile", into = "StoredProfile")]
pub struct TaskProfile {
    kernels: Vec<KernelProfile>,
    /// Gaps by the pair of kernels that they follow.
    pub pairs: GapHistograms,
    measured: bool,
    /// How long it has been measured so far. It is not stored.
    stage: MeasuringStage,
}

/// The task has more different kernels than its profile holds: [`SHAPES_MAX`], and [`KERNELS_MAX`] with their classes. Those
/// without a class are unknown: they do not fill gaps, and their gaps are not filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task has more than {SHAPES_MAX} different kernels: this one gets no profile")]
pub struct TooManyKernels;

impl TaskProfile {
    /// Returns the index of a kernel that a program is about to launch. A new kernel gets the next one, or that of its class
    /// if the profile holds no more shapes.
    ///
    /// # Errors
    ///
    /// [`TooManyKernels`]: launch it as an unknown kernel.
    pub fn admit(&mut self, id: &KernelId) -> Result<KernelIndex, TooManyKernels> {
        match self.resolve(id) {
            Some(index) => Ok(index),
            None => self.intern(id).or_else(|TooManyKernels| self.intern(&id.class())),
        }
    }

    /// Returns the index of a kernel, or that of its class if it has no index itself.
    pub fn resolve(&self, id: &KernelId) -> Option<KernelIndex> {
        self.index(id).or_else(|| {
            let is_full = self.kernels.len() >= usize::from(SHAPES_MAX);
            if is_full { self.index(&id.class()) } else { None }
        })
    }

    /// Returns the kernel's own index. A new kernel gets the next one.
    ///
    /// # Errors
    ///
    /// [`TooManyKernels`]: the profile holds no more shapes.
    pub fn intern(&mut self, id: &KernelId) -> Result<KernelIndex, TooManyKernels> {
        if let Some(index) = self.index(id) {
            return Ok(index);
        }
        let number = u16::try_from(self.kernels.len()).map_err(|_| TooManyKernels)?;
        if number >= if id.is_class() { KERNELS_MAX } else { SHAPES_MAX } {
            return Err(TooManyKernels);
        }
        let same = |kernel: &KernelProfile| kernel.id.name() == id.name();
        let function = self.kernels.iter().find(|kernel| same(kernel));
        let function = function.map_or(number, |kernel| kernel.function);
        self.kernels.push(KernelProfile {
            id: id.clone(),
            took: Mean::EMPTY,
            gap: Mean::EMPTY,
            need: None,
            drift: Drift::default(),
            first: None,
            bound: None,
            launched: 0,
            defined_at: self.stage.launches(),
            gap_sampled_at: 0,
            function,
        });
        Ok(KernelIndex::new(number))
    }

    /// Returns the index of a kernel in the profile.
    pub fn index(&self, id: &KernelId) -> Option<KernelIndex> {
        let at = self.kernels.iter().position(|kernel| kernel.id == *id)?;
        u16::try_from(at).ok().map(KernelIndex::new)
    }

    /// Returns the kernel with this index.
    pub fn kernel(&self, index: KernelIndex) -> Option<&KernelProfile> {
        self.kernels.get(usize::from(index.get()))
    }

    /// Returns the kernel with this index, to add samples.
    pub fn kernel_mut(&mut self, index: KernelIndex) -> Option<&mut KernelProfile> {
        self.kernels.get_mut(usize::from(index.get()))
    }

    /// Returns all kernels in the order of their indexes.
    pub fn kernels(&self) -> &[KernelProfile] {
        &self.kernels
    }

    /// Returns a kernel's expected run time, `SK`.
    pub fn took(&self, index: KernelIndex) -> Option<Nanos> {
        self.kernel(index)?.took.known()
    }

    /// Predicts a kernel's run time: from its own samples if there are enough, otherwise from its
    /// relatives ([`relatives`]), its few samples, or its first one. Without any sample, bounds are used.
    ///
    /// `None` if nothing is known about it. Its first launch is then a measurement.
    pub fn estimate(&self, index: KernelIndex) -> Option<TimeEstimate> {
        let kernel = self.kernel(index)?;
        if let Some(mean) = kernel.took.known() {
            return Some(TimeEstimate { mean, high: mean.plus(kernel.took.deviation().times(2)) });
        }
        self.estimate_from_samples(kernel)
            .or_else(|| self.estimate_from_relatives(kernel, |k| k.bound))
    }

    fn estimate_from_samples(&self, kernel: &KernelProfile) -> Option<TimeEstimate> {
        let own = kernel.took.mean().map(doubtful);
        own.or_else(|| self.estimate_from_relatives(kernel, |k| k.took.mean().or(k.first)))
            .or_else(|| kernel.first.map(doubtful))
    }

    /// Records the time from a kernel's launch to its observed end. Returns whether the time is
    /// used, because there is no sample of the kernel or of a relative.
    pub fn note_bound(&mut self, index: KernelIndex, took: Nanos) -> bool {
        let Some(kernel) = self.kernel(index) else { return false };
        if kernel.took.samples() > 0 || self.estimate_from_samples(kernel).is_some() {
            return false;
        }
        let bound = kernel.bound.map_or(took, |bound| bound.min(took));
        if let Some(kernel) = self.kernel_mut(index) {
            kernel.bound = Some(bound);
        }
        true
    }

    /// Returns whether more launches of a kernel have to be measured.
    pub fn needs_samples(&self, index: KernelIndex) -> bool {
        self.kernel(index).is_some_and(|kernel| kernel.took.needs_samples())
    }

    /// Counts a launch of the measuring stage at `now`, and ends the stage if it is over. Returns whether it is over now.
    ///
    /// It is over when each kernel is measured, apart from rare ones. It is over as well after
    /// [`STAGE_LAUNCHES_MAX`](crate::measure::STAGE_LAUNCHES_MAX) launches, or
    /// [`STAGE_TIME_MAX`](crate::measure::STAGE_TIME_MAX), whatever is known then.
    pub fn count_launch(&mut self, index: KernelIndex, now: Nanos) -> bool {
        if self.measured {
            return false;
        }
        self.stage.count_launch(now);
        let number = self.stage.launches();
        if let Some(kernel) = self.kernel_mut(index) {
            kernel.launched = kernel.launched.saturating_add(1);
            if kernel.launched == 1 {
                kernel.defined_at = number;
            }
        }
        self.measured = self.stage.is_over() || (self.stage.is_check_due() && self.is_enough());
        self.measured
    }

    /// Returns whether no kernel needs more samples, apart from rare ones.
    fn is_enough(&self) -> bool {
        let is_enough =
            |kernel: &KernelProfile| !kernel.took.needs_samples() || self.stage.is_rare(kernel);
        self.kernels.iter().all(is_enough)
    }

    /// Records a gap of a holder that the queue observed.
    pub fn note_gap(&mut self, before: Option<KernelIndex>, index: KernelIndex, gap: Nanos) {
        if let Some(function) = self.kernel(index).map(KernelProfile::function) {
            self.pairs.add_of_function(function, gap);
        }
        self.pairs.add(before, index, gap);
    }

    /// Returns the gaps after a pair of kernels, or after the last kernel. If these are too few, those after all kernels of
    /// its function: a program with new shapes has few gaps of each kernel.
    pub fn gaps(&self, before: Option<KernelIndex>, index: KernelIndex) -> Option<&Sketch> {
        self.pairs
            .trusted(before, index)
            .or_else(|| self.pairs.trusted_of_function(self.kernel(index)?.function()))
    }

    /// Returns the time that a launch of a kernel is charged: its mean, or a conservative estimate
    /// until the mean is known.
    pub fn cost(&self, index: KernelIndex) -> Option<Nanos> {
        self.took(index).or_else(|| self.estimate(index).map(|time| time.high))
    }

    /// Predicts from the relatives whose times `time` returns.
    fn estimate_from_relatives(
        &self,
        kernel: &KernelProfile,
        time: impl Fn(&KernelProfile) -> Option<Nanos>,
    ) -> Option<TimeEstimate> {
        // The latest relatives are the most similar: programs move from one range of sizes to
        // another.
        let relatives = self.kernels.iter().rev().filter(|k| k.function == kernel.function);
        let known = relatives.filter_map(|k| Some((relatives::work(&k.id), time(k)?)));
        relatives::predict(relatives::work(&kernel.id), known)
    }

    /// Returns the expected gap after a kernel, `SG`.
    pub fn gap(&self, index: KernelIndex) -> Option<Nanos> {
        self.kernel(index)?.gap.known()
    }

    /// Returns the share of time in which the task runs a kernel when it is alone, in thousandths.
    ///
    /// It counts the kernels whose gaps were measured. `None` before the measuring stage is over.
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

    /// Returns how long the task's kernels and gaps are.
    ///
    /// At least half of the time of its kernels is in kernels that need a gap of the first length. The second one is
    /// that of its longest gap. `None` before the measuring stage is over, or without a measured gap.
    pub fn lengths(&self) -> Option<(Nanos, Nanos)> {
        let measured = (0..).zip(&self.kernels).filter(|_| self.measured);
        let mut needs: Vec<(Nanos, u128)> = measured
            .filter_map(|(index, kernel)| {
                let time = self.estimate(KernelIndex::new(index))?;
                let often = u128::from(kernel.gap.samples());
                (often > 0).then_some((time.high, u128::from(time.mean.get()) * often))
            })
            .collect();
        needs.sort_unstable_by(|one, other| other.cmp(one));
        let all: u128 = needs.iter().map(|(_, time)| time).sum();
        let mut longer = 0;
        let half = needs.into_iter().find(|(_, time)| {
            longer += time;
            2 * longer >= all
        });
        half.map(|(need, _)| need).zip(self.pairs.longest())
    }

    /// Returns whether the measuring stage is over (FIKIT's sharing stage).
    pub const fn is_measured(&self) -> bool {
        self.measured
    }

    /// Ends the measuring stage.
    pub const fn close_measuring(&mut self) {
        self.measured = true;
    }

    /// Starts a new measurement of a kernel and discards its old samples.
    ///
    /// The kernel stays usable: the samples that revealed the drift are its first new ones.
    pub fn remeasure(&mut self, index: KernelIndex) {
        if let Some(kernel) = self.kernels.get_mut(usize::from(index.get())) {
            kernel.took = kernel.drift.fresh();
            kernel.gap = Mean::EMPTY;
            kernel.drift = Drift::default();
            (kernel.first, kernel.bound) = (None, None);
            self.pairs.forget(index);
        }
    }

    /// Discards the samples of a kernel. It keeps its index.
    pub fn forget(&mut self, index: KernelIndex) {
        if let Some(kernel) = self.kernel_mut(index) {
            kernel.took = Mean::EMPTY;
            kernel.gap = Mean::EMPTY;
            kernel.drift = Drift::default();
            self.pairs.forget(index);
        }
    }

    /// Adds another machine's profile of the same task.
    pub fn merge(&mut self, other: &Self) {
        let indices: Vec<Option<KernelIndex>> =
            other.kernels.iter().map(|theirs| self.intern(&theirs.id).ok()).collect();
        for (theirs, index) in other.kernels.iter().zip(&indices) {
            let Some(mine) = index.and_then(|index| self.kernel_mut(index)) else { continue };
            mine.took.merge(&theirs.took);
            mine.gap.merge(&theirs.gap);
            mine.need = ResourceNeed::larger(mine.need, theirs.need);
        }
        let renamed = |index: KernelIndex| indices.get(usize::from(index.get())).copied().flatten();
        self.pairs.merge(&other.pairs, renamed);
        self.measured = self.measured || other.measured;
    }
}

/// Returns the estimate from one or two samples.
fn doubtful(mean: Nanos) -> TimeEstimate {
    TimeEstimate { mean, high: mean.plus(Nanos::new(mean.get() / 2)) }
}

/// The stored form of a [`TaskProfile`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredProfile {
    kernels: Vec<KernelProfile>,
    pairs: GapHistograms,
    measured: bool,
}

/// The stored profile is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the profile is damaged: its {kernels} kernels contain a duplicate or exceed {KERNELS_MAX}; measure again"
)]
pub struct BadProfile {
    kernels: usize,
}

impl From<TaskProfile> for StoredProfile {
    fn from(profile: TaskProfile) -> Self {
        Self { kernels: profile.kernels, pairs: profile.pairs, measured: profile.measured }
    }
}

impl TryFrom<StoredProfile> for TaskProfile {
    type Error = BadProfile;

    fn try_from(stored: StoredProfile) -> Result<Self, BadProfile> {
        let kernels = stored.kernels.len();
        let ids: std::collections::BTreeSet<_> = stored.kernels.iter().map(|k| &k.id).collect();
        if ids.len() != kernels || kernels > usize::from(KERNELS_MAX) {
            return Err(BadProfile { kernels });
        }
        let mut functions = std::collections::BTreeMap::new();
        let mut read = stored.kernels;
        for (index, kernel) in (0..).zip(&mut read) {
            kernel.function = *functions.entry(kernel.id.name().to_owned()).or_insert(index);
        }
        Ok(Self {
            kernels: read,
            pairs: stored.pairs,
            measured: stored.measured,
            stage: MeasuringStage::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Dims;

    fn shape(name: &str, blocks: u32) -> KernelId {
        KernelId::new(name, Dims([blocks, 1, 1]), Dims([128, 1, 1])).unwrap()
    }

    /// A profile of a function with all shapes that it holds. Each takes a microsecond for each block.
    fn full() -> TaskProfile {
        let mut profile = TaskProfile::default();
        for blocks in 1..=u32::from(SHAPES_MAX) {
            let index = profile.admit(&shape("step", blocks)).unwrap();
            let kernel = profile.kernel_mut(index).unwrap();
            (0..5).for_each(|_| kernel.took.add(Nanos::from_micros(blocks.into())));
        }
        profile
    }

    #[test]
    fn shapes_beyond_all_places_share_a_class_that_is_predicted_by_its_relatives() {
        let mut profile = full();

        let index = profile.admit(&shape("step", 5_000)).unwrap();

        assert_eq!(index, KernelIndex::new(SHAPES_MAX));
        assert_eq!(profile.admit(&shape("step", 8_192)), Ok(index));
        assert_eq!(profile.admit(&shape("step", 4_097)), Ok(index));
        assert_eq!(profile.resolve(&shape("step", 6_000)), Some(index));
        assert_eq!(profile.resolve(&shape("step", 20_000)), None, "of another class");
        assert_eq!(profile.admit(&shape("step", 77)), Ok(KernelIndex::new(76)), "it has its own");
        assert_eq!(profile.kernel(index).unwrap().function(), KernelIndex::new(0));
        let predicted = profile.estimate(index).unwrap().mean;
        assert!((7_000..9_500).contains(&(predicted.get() / 1_000)), "{predicted}");

        // From then on by its own samples.
        (0..5).for_each(|_| {
            profile.kernel_mut(index).unwrap().took.add(Nanos::from_micros(5_000));
        });
        assert_eq!(profile.cost(index), Some(Nanos::from_micros(5_000)));
    }

    #[test]
    fn no_number_of_shapes_and_functions_exceeds_the_places_of_a_profile() {
        let mut profile = full();
        let admitted =
            (0..3_000).filter(|name| profile.admit(&shape(&format!("f{name}"), 3)).is_ok());

        assert_eq!(admitted.count(), usize::from(KERNELS_MAX - SHAPES_MAX));
        assert_eq!(profile.kernels().len(), usize::from(KERNELS_MAX));
        assert_eq!(profile.admit(&shape("f1", 4)), Ok(KernelIndex::new(SHAPES_MAX + 1)));
        assert_eq!(profile.admit(&shape("f2999", 4)), Err(TooManyKernels));
        let stored = serde_json::to_string(&profile).unwrap();
        let read: TaskProfile = serde_json::from_str(&stored).unwrap();
        assert_eq!(read.resolve(&shape("f1", 4)), Some(KernelIndex::new(SHAPES_MAX + 1)));
    }

    #[test]
    fn a_merge_adds_no_shape_to_the_samples_of_its_class() {
        let mut profile = full();
        let class = profile.admit(&shape("step", 5_000)).unwrap();
        let mut other = TaskProfile::default();
        for blocks in [6_000, 8_192] {
            let index = other.admit(&shape("step", blocks)).unwrap();
            other.kernel_mut(index).unwrap().took.add(Nanos::from_micros(1));
        }

        profile.merge(&other);

        // One machine has the class, and the other one this shape.
        assert_eq!(profile.kernel(class).unwrap().took.samples(), 1);
        assert_eq!(profile.kernels().len(), usize::from(SHAPES_MAX) + 1);
    }

    #[test]
    fn the_class_of_a_kernel_has_at_least_its_blocks_and_less_than_twice_as_many() {
        let grids = [[1, 1, 1], [3, 1, 1], [5, 7, 9], [1 << 31, 2, 1], [40_000, 60_000, 3]];
        for grid in grids.map(Dims) {
            let id = KernelId::new("k", grid, Dims([64, 2, 1])).unwrap();
            let class = id.class();
            assert!(class.is_class() && class.class() == class);
            assert_eq!((class.name(), class.block), (id.name(), id.block));
            let (blocks, rounded) = (grid.count(), class.grid.count());
            assert!(blocks <= rounded && rounded < 2 * blocks, "{grid:?}: {:?}", class.grid);
        }
        let largest = KernelId::new("k", Dims([u32::MAX; 3]), Dims([1; 3])).unwrap();
        assert_eq!(largest.class().grid.count(), 1 << 63);
    }
}
