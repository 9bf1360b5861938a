//! The measuring stage: adds the samples of one session to the task's means (FIKIT §3.2).

use serde::{Deserialize, Serialize};

use crate::drift::DriftVerdict;
use crate::ids::KernelIndex;
use crate::limits::KERNELS_MAX;
use crate::profile::{KernelProfile, TaskProfile};
use crate::time::Nanos;

/// A kernel rarer than 1 in this many launches does not delay the end of measuring. It hardly
/// affects gaps, and it is measured further during the sharing stage.
const RARE: u64 = 1_000;

/// Fewest launches before measuring may end, so that a task's start-up is not its profile. It is
/// also the number of launches within which a function must recur, or it counts as rare.
pub(crate) const LAUNCHES_MIN: u64 = 100;

/// The measurement of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSample {
    /// The kernel that was measured.
    pub kernel: KernelIndex,
    /// The kernel before it, in the same process.
    pub before: Option<KernelIndex>,
    /// Its run time.
    pub took: Nanos,
    /// The gap after it. The last kernel of a run has none.
    pub gap: Option<Nanos>,
}

/// Adds the samples of one process to its task's profile.
///
/// The driver loads code at a function's first launch in a process. So that sample does not count for the
/// mean. It is kept as [`KernelProfile::first`](crate::KernelProfile::first) until there is a
/// better one: otherwise kernels that each process launches once would always stay unknown.
#[derive(Clone, Debug)]
pub struct SampleRecorder {
    /// By function: which launch of this process was its first; 0 if there was none.
    seen: Box<[u64]>,
    launches: u64,
}

impl Default for SampleRecorder {
    fn default() -> Self {
        Self { seen: vec![0; usize::from(KERNELS_MAX)].into_boxed_slice(), launches: 0 }
    }
}

/// The effect of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// The sample was added or dropped.
    Noted,
    /// The measuring stage of the task is over.
    Measured,
    /// The time of the kernel changed: it is measured again.
    Drifted(KernelIndex),
}

impl SampleRecorder {
    /// Adds a sample to the task's profile.
    ///
    /// During the measuring stage every sample is added to the means. After that, samples only
    /// reveal drift, except for kernels that are new or being measured again. Gaps count only if
    /// `alone` is true, because the gaps of a filler are waits.
    pub fn add_sample(
        &mut self,
        profile: &mut TaskProfile,
        sample: KernelSample,
        alone: bool,
    ) -> SampleOutcome {
        let measuring = !profile.is_measured();
        let Some(kernel) = profile.kernel_mut(sample.kernel) else { return SampleOutcome::Noted };
        let function = usize::from(kernel.function().get());
        let Some(seen) = self.seen.get_mut(function) else { return SampleOutcome::Noted };
        self.launches += u64::from(alone);
        if *seen == 0 {
            *seen = self.launches.max(1);
            kernel.first.get_or_insert(sample.took);
            return SampleOutcome::Noted;
        }
        let expected = kernel.took.known();
        if let (false, true, Some(expected)) = (measuring, kernel.took.is_measured(), expected) {
            return match kernel.drift.observe(expected, sample.took) {
                DriftVerdict::Same => SampleOutcome::Noted,
                DriftVerdict::Drifted => {
                    profile.remeasure(sample.kernel);
                    SampleOutcome::Drifted(sample.kernel)
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
            return SampleOutcome::Measured;
        }
        SampleOutcome::Noted
    }

    /// Returns whether each kernel has enough samples, apart from rare kernels.
    fn is_enough(&self, profile: &TaskProfile) -> bool {
        self.launches >= LAUNCHES_MIN
            && profile
                .kernels()
                .iter()
                .all(|kernel| kernel.took.is_measured() || self.is_rare(kernel))
    }

    /// Returns whether a kernel is rare. A kernel without a counted sample was launched once, and
    /// that sample was dropped. It counts as rare only after it has had time to recur.
    fn is_rare(&self, kernel: &KernelProfile) -> bool {
        let samples = u64::from(kernel.took.samples());
        if samples > 0 {
            return samples * RARE < self.launches;
        }
        let seen = self.seen.get(usize::from(kernel.function().get())).copied().unwrap_or(0);
        seen == 0 || self.launches >= seen + LAUNCHES_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Dims, KernelId};

    /// Simulates launches of the usual kernel, and of the other one if `is_other` returns true.
    /// Returns the number of launches until measuring ended, and the counted samples of the other
    /// kernel.
    fn play(is_other: impl Fn(u64) -> bool) -> (u64, u32) {
        let mut profile = TaskProfile::default();
        let mut recorder = SampleRecorder::default();
        let [usual, other] = ["usual", "other"].map(|name| {
            let id = KernelId::new(name, Dims([1; 3]), Dims([32, 1, 1])).unwrap();
            profile.intern(&id).unwrap()
        });
        let took = Nanos::from_micros(100);
        for launch in 1..=10_000 {
            let kernel = if is_other(launch) { other } else { usual };
            let sample = KernelSample { kernel, before: None, took, gap: Some(took) };
            if recorder.add_sample(&mut profile, sample, true) == SampleOutcome::Measured {
                return (launch, profile.kernels()[1].took.samples());
            }
        }
        panic!("measuring does not end");
    }

    #[test]
    fn a_start_up_kernel_that_never_recurs_does_not_delay_the_end_of_measuring() {
        assert_eq!(play(|launch| launch == 1).0, LAUNCHES_MIN + 1);
        assert_eq!(play(|_| false).0, LAUNCHES_MIN);
    }

    #[test]
    fn a_kernel_that_was_launched_once_has_time_to_recur_before_it_counts_as_rare() {
        // Its first sample is dropped, so that it has none after 100 launches.
        let (ended, samples) = play(|launch| launch >= 95 && launch % 19 == 0);

        assert!(ended > 200, "{ended}");
        assert!(samples >= 10, "it is measured: {samples}");
    }

    #[test]
    fn a_kernel_that_is_launched_once_late_delays_the_end_by_a_hundred_launches() {
        assert_eq!(play(|launch| launch == 95).0, 95 + LAUNCHES_MIN);
    }
}
