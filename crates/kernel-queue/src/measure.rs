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
/// also the number of launches within which a kernel must recur, or it counts as rare.
const LAUNCHES_MIN: u64 = 100;

/// Most launches of the measuring stage, whatever the spread of the times is.
pub const STAGE_LAUNCHES_MAX: u64 = 100_000;

/// Longest measuring stage. The time is counted from launch to launch, a pause as [`STAGE_PAUSE_MAX`].
pub const STAGE_TIME_MAX: Nanos = Nanos::from_millis(2_000);

/// Most that one pause of the program counts, so that a slow program is measured for some launches.
pub const STAGE_PAUSE_MAX: Nanos = Nanos::from_millis(100);

/// How often the kernels are looked through for one that needs more samples, in launches.
const CHECKED_EVERY: u64 = 20;

/// The least that another context on the device adds to a kernel's time. Time slices have about 2 ms,
/// and a slice that has begun before may be half over.
const PREEMPTED_MIN: Nanos = Nanos::from_millis(1);

/// Most launches that one sampled gap stands for.
const GAP_WEIGHT_MAX: u32 = 1_000;

/// How long a task is measured already, over all of its processes.
///
/// The stage ends by itself. It once ended only when each kernel's mean was certain. Real networks have kernels whose
/// times spread too far, and processes of one task took each other's samples. So they were measured
/// without a limit, at the cost of two events a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuringStage {
    launches: u64,
    lasted: Nanos,
    last: Option<Nanos>,
}

impl MeasuringStage {
    /// Counts a launch at `now`.
    pub(crate) fn count_launch(&mut self, now: Nanos) {
        self.launches += 1;
        let pause = self.last.replace(now).map_or(Nanos::ZERO, |last| now.minus(last));
        self.lasted = self.lasted.plus(pause.min(STAGE_PAUSE_MAX));
    }

    /// Returns the number of launches so far.
    pub(crate) const fn launches(&self) -> u64 {
        self.launches
    }

    /// Returns whether the stage is over, whatever is known of the kernels.
    pub(crate) fn is_over(&self) -> bool {
        self.launches >= STAGE_LAUNCHES_MAX || self.lasted >= STAGE_TIME_MAX
    }

    /// Returns whether to look through the kernels now.
    pub(crate) const fn is_check_due(&self) -> bool {
        self.launches >= LAUNCHES_MIN
            && (self.launches - LAUNCHES_MIN).is_multiple_of(CHECKED_EVERY)
    }

    /// Returns whether a kernel is rare: less than one in [`RARE`] launches, or launched at most once within
    /// [`LAUNCHES_MIN`] launches. Before its index is known, a kernel's launches are those of an unknown one.
    pub(crate) fn is_rare(&self, kernel: &KernelProfile) -> bool {
        let launched = u64::from(kernel.launched);
        (launched > 0 && launched * RARE < self.launches)
            || (launched <= 1 && self.launches >= kernel.defined_at + LAUNCHES_MIN)
    }
}

/// What else may be in a sample's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleSurroundings {
    /// Whether the session is a holder. The gaps of a filler are waits.
    pub is_holder: bool,
    /// Whether another session's kernel may have been on the device between the two events.
    pub is_disturbed: bool,
}

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
    /// By function: whether this process had a sample of it.
    seen: Box<[bool]>,
}

impl Default for SampleRecorder {
    fn default() -> Self {
        Self { seen: vec![false; usize::from(KERNELS_MAX)].into_boxed_slice() }
    }
}

/// The effect of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// The sample was added or dropped.
    Noted,
    /// The time of the kernel changed: it is measured again.
    Drifted(KernelIndex),
}

impl SampleRecorder {
    /// Adds a sample to the task's profile.
    ///
    /// Until a kernel's mean is certain, every sample is added to it. After that, samples only
    /// reveal drift. A sample that contains the time of another context is dropped: see [`is_suspicious`].
    pub fn add_sample(
        &mut self,
        profile: &mut TaskProfile,
        sample: KernelSample,
        around: SampleSurroundings,
    ) -> SampleOutcome {
        let measuring = !profile.is_measured();
        let Some(kernel) = profile.kernel_mut(sample.kernel) else { return SampleOutcome::Noted };
        let function = usize::from(kernel.function().get());
        let Some(seen) = self.seen.get_mut(function) else { return SampleOutcome::Noted };
        if !std::mem::replace(seen, true) {
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
        let verdict = expected.map(|expected| kernel.drift.observe(expected, sample.took));
        if verdict != Some(DriftVerdict::Drifted)
            && is_suspicious(&sample, expected.ok_or(kernel.first), around)
        {
            if expected.is_none() {
                // It is all that is known, and an upper bound.
                kernel.first =
                    Some(kernel.first.map_or(sample.took, |first| first.min(sample.took)));
            }
            return SampleOutcome::Noted;
        }
        kernel.took.add(sample.took);
        let is_alone = around.is_holder && !around.is_disturbed;
        if let Some(gap) = sample.gap.filter(|_| is_alone) {
            let stands_for = (kernel.launched - kernel.gap_sampled_at).clamp(1, GAP_WEIGHT_MAX);
            kernel.gap_sampled_at = kernel.launched;
            kernel.gap.add_times(gap, stands_for);
            profile.pairs.add(sample.before, sample.kernel, gap);
        }
        SampleOutcome::Noted
    }
}

/// Returns whether a sample is so much longer than expected that another context probably had the device in
/// between. If this happens often, it is the kernel's own time, as [`Drift`](crate::drift::Drift) decides.
///
/// `expected` is the kernel's mean, or the shortest sample so far. A sample that agrees with that one is trusted.
fn is_suspicious(
    sample: &KernelSample,
    expected: Result<Nanos, Option<Nanos>>,
    around: SampleSurroundings,
) -> bool {
    match expected {
        Err(shortest) => {
            let agrees =
                |shortest: Nanos| sample.took <= shortest.plus(Nanos::new(shortest.get() / 8));
            around.is_disturbed && sample.took >= PREEMPTED_MIN && !shortest.is_some_and(agrees)
        }
        Ok(expected) => {
            sample.took >= expected.plus(PREEMPTED_MIN)
                && (around.is_disturbed || sample.took > expected.times(2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Dims, KernelId};

    const ALONE: SampleSurroundings = SampleSurroundings { is_holder: true, is_disturbed: false };
    const DISTURBED: SampleSurroundings =
        SampleSurroundings { is_holder: true, is_disturbed: true };

    fn profile_of(names: &[&str]) -> (TaskProfile, Vec<KernelIndex>) {
        let mut profile = TaskProfile::default();
        let kernels = names.iter().map(|name| {
            let id = KernelId::new(*name, Dims([1; 3]), Dims([32, 1, 1])).unwrap();
            profile.intern(&id).unwrap()
        });
        let kernels = kernels.collect();
        (profile, kernels)
    }

    fn sample(kernel: KernelIndex, took: Nanos, gap: Option<Nanos>) -> KernelSample {
        KernelSample { kernel, before: None, took, gap }
    }

    /// Simulates launches of the usual kernel, and of the other one if `is_other` returns true.
    /// Returns the number of launches until measuring ended, and the counted samples of the other
    /// kernel.
    fn play(is_other: impl Fn(u64) -> bool) -> (u64, u32) {
        let (mut profile, kernels) = profile_of(&["usual", "other"]);
        let mut recorder = SampleRecorder::default();
        let took = Nanos::from_micros(100);
        for launch in 1..=10_000 {
            let kernel = kernels[usize::from(is_other(launch))];
            if profile.count_launch(kernel, Nanos::from_micros(launch)) {
                return (launch, profile.kernels()[1].took.samples());
            }
            recorder.add_sample(&mut profile, sample(kernel, took, Some(took)), ALONE);
        }
        panic!("measuring does not end");
    }

    #[test]
    fn a_start_up_kernel_that_never_recurs_does_not_delay_the_end_of_measuring() {
        assert_eq!(play(|launch| launch == 1).0, LAUNCHES_MIN + CHECKED_EVERY);
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
        assert_eq!(play(|launch| launch == 95).0, 95 + LAUNCHES_MIN + 5);
    }

    #[test]
    fn measuring_ends_after_a_bounded_number_of_launches_though_no_time_is_ever_sampled() {
        let (mut profile, kernels) = profile_of(&["fast"]);
        let end = (1..).find(|n| profile.count_launch(kernels[0], Nanos::from_micros(*n)));

        assert_eq!(end, Some(STAGE_LAUNCHES_MAX));
        assert!(!profile.count_launch(kernels[0], Nanos::from_millis(5_000)), "it ends once");
    }

    #[test]
    fn measuring_ends_after_a_bounded_time_in_which_pauses_hardly_count() {
        let ends_after = |pause: Nanos| {
            let (mut profile, kernels) = profile_of(&["slow"]);
            (1..).find(|n| profile.count_launch(kernels[0], pause.times(*n)))
        };

        assert_eq!(ends_after(Nanos::from_millis(10)), Some(201));
        assert_eq!(ends_after(Nanos::from_millis(60_000)), Some(21));
    }

    #[test]
    fn launches_of_all_processes_of_a_task_count_together() {
        let (mut profile, kernels) = profile_of(&["short"]);
        let took = Nanos::from_micros(100);
        let ended = (1..=30).find(|process| {
            // Each process launches ten kernels, and the first sample of each is dropped.
            let mut recorder = SampleRecorder::default();
            (1..=10_u64).any(|launch| {
                recorder.add_sample(&mut profile, sample(kernels[0], took, None), ALONE);
                profile.count_launch(kernels[0], Nanos::from_millis(process * 100 + launch))
            })
        });

        assert_eq!(ended, Some(10));
    }

    #[test]
    fn a_kernel_that_was_preempted_while_it_was_measured_teaches_nothing() {
        let (mut profile, kernels) = profile_of(&["k"]);
        let (mut recorder, took) = (SampleRecorder::default(), Nanos::from_micros(200));
        let slice = Nanos::from_micros(2_090);
        let mut add = |took, around| {
            recorder.add_sample(&mut profile, sample(kernels[0], took, None), around);
            let mean = profile.kernels()[0].took;
            (mean.samples(), mean.mean())
        };
        assert_eq!(add(took, ALONE), (0, None), "the first of a process");
        assert_eq!(add(took.plus(slice), DISTURBED), (0, None), "before any other");
        for n in 1..=20 {
            assert_eq!(add(took, ALONE), (n, Some(took)));
        }
        for (around, slices) in [(DISTURBED, 1), (ALONE, 3)] {
            assert_eq!(add(took.plus(slice.times(slices)), around), (20, Some(took)));
        }
    }

    #[test]
    fn a_kernel_that_became_slower_is_learned_though_a_filler_runs_beside_it() {
        let (mut profile, kernels) = profile_of(&["k"]);
        let mut recorder = SampleRecorder::default();
        for took in [1, 1, 1, 1].into_iter().chain([9; 40]) {
            let sample = sample(kernels[0], Nanos::from_millis(took), None);
            recorder.add_sample(&mut profile, sample, DISTURBED);
        }

        assert!(profile.took(kernels[0]).unwrap() > Nanos::from_millis(5));
    }

    #[test]
    fn a_sampled_gap_stands_for_the_launches_whose_gaps_were_not_sampled() {
        // 99 of 100 launches have no gap behind them, and few of these are sampled.
        let (mut profile, kernels) = profile_of(&["burst", "last"]);
        let mut recorder = SampleRecorder::default();
        let took = Nanos::from_micros(10);
        let mut now = Nanos::ZERO;
        for task in 0..20 {
            for n in 0..100 {
                now = now.plus(took);
                let (kernel, gap) = if n == 99 {
                    (kernels[1], Nanos::from_millis(1))
                } else {
                    (kernels[0], Nanos::ZERO)
                };
                profile.count_launch(kernel, now);
                if n == 99 || n == task {
                    recorder.add_sample(&mut profile, sample(kernel, took, Some(gap)), ALONE);
                }
            }
        }

        profile.close_measuring();
        // A task has 1 ms of kernels and 1 ms of gap.
        assert!((450..=550).contains(&profile.busy().unwrap()), "{:?}", profile.busy());
    }
}
