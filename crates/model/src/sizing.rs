//! Decides the size of a job after it ran out of GPU memory.
//!
//! The sizes of a job form a ladder. Each step exceeds the size that was too small by a fifth and by one GiB.
//! So no size is tried twice, and the hardware bounds the number of steps.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::life::{RetryVerdict, words};
use crate::spec::GpuRequest;
use crate::units::Bytes;

words! {
    /// The policy for a job that ran out of GPU memory.
    OomPolicy {
        /// It runs again with more memory, as long as the cluster has a larger slice.
        Larger = "larger",
        /// It runs again with the same memory, a few times: its program needs less by itself.
        Same = "same",
        /// The job ends as failed.
        Fail = "fail",
    }
}

words! {
    /// The action for a running job whose GPU memory is predicted to exceed its slice.
    MemoryPrediction {
        /// Nothing: its memory is not observed for this.
        Off = "off",
        /// The prediction is reported.
        Advise = "advise",
        /// It is reported, and the job is moved to a larger slice in time.
        Act = "act",
    }
}

words! {
    /// The outcome of a prediction that a job exceeds its slice, or of its absence.
    GrowthOutcome {
        /// The job needed more than the slice, as predicted.
        True = "true",
        /// The job did not need more than the slice.
        False = "false",
        /// The job ran out of memory without a prediction.
        Missed = "missed",
        /// A move of the job was requested, and it ran out of memory before that.
        Late = "late",
    }
}

words! {
    /// The source of a job's size, the strongest first.
    SizeSource {
        /// The job ran out of GPU memory itself.
        OutOfMemory = "out_of_memory",
        /// The job was predicted to run out of GPU memory, and was moved before.
        Predicted = "predicted",
        /// Its user named it.
        Declared = "declared",
        /// An attempt of it had allocated so much before its first kernel.
        FirstLaunch = "first_launch",
        /// Runs of its task showed it.
        Learned = "learned",
        /// Its user's estimate, such as of a model's size.
        Estimated = "estimated",
        /// Nothing is known: it starts on any slice, and gets a larger one if needed.
        Unknown = "unknown",
    }
}

impl SizeSource {
    /// Returns the source as text, after "its size".
    pub const fn text(self) -> &'static str {
        match self {
            Self::OutOfMemory => "is larger than what it ran out of",
            Self::Predicted => "is larger than what it was predicted to run out of",
            Self::Declared => "is at least what its user requested",
            Self::FirstLaunch => "is what it had allocated before its first kernel",
            Self::Learned => "was learned from runs of its task",
            Self::Estimated => "is its user's estimate",
            Self::Unknown => {
                "is not known: it starts on any slice, and gets a larger one if needed"
            }
        }
    }
}

/// The exit status by which a program reports that GPU memory ran out: 100 and `ENOMEM` (12).
///
/// Shells, Python, curl, rsync and the conventions of `sysexits.h` don't use it. A program that
/// catches its framework's error can report it without recognisable text.
pub const OOM_EXIT_CODE: u8 = 112;

/// The smallest step of the ladder.
pub const STEP_MIN: Bytes = Bytes::from_mib(1_024);

/// The step of the ladder as a part of the size that was too small: a fifth.
///
/// Source: Kubernetes' vertical autoscaler raises by a fifth after an out-of-memory kill.
pub const STEP_PART: u64 = 5;

/// How often a job runs out of memory under [`OomPolicy::Same`] before it fails: a program that halves its
/// batch each time goes from 256 to 1.
pub const SAME_MAX: u32 = 8;

/// How often a job runs out of memory under [`OomPolicy::Larger`]. A fifth more each time leads from one
/// GiB to more than any GPU has, so that only faulty reports reach it.
pub const LARGER_MAX: u32 = 64;

/// Returns the smallest size that is tried after `too_small`.
pub fn next_size(too_small: Bytes) -> Bytes {
    let bytes = too_small.get();
    Bytes::new(bytes.saturating_add(STEP_MIN.get().max(bytes.div_ceil(STEP_PART))))
}

/// The decision about a job that ran out of GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterOutOfMemory {
    /// The verdict about the job.
    pub verdict: RetryVerdict,
    /// The minimum that the job requests from now on; `None` if its size doesn't change.
    pub at_least: Option<Bytes>,
    /// The reason, for users.
    pub reason: OutOfMemoryReason,
}

/// Why a job runs again or fails after it ran out of GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfMemoryReason {
    /// It gets at least this amount of memory.
    GetsMore(Bytes),
    /// It runs again unchanged, and its program reduces the need.
    RunsAgain,
    /// No slice has so much more memory; the largest has this.
    TopOfLadder {
        /// The largest slice.
        largest: Bytes,
        /// The memory that the next attempt would need.
        next: Bytes,
    },
    /// It ran out of memory so often that it does not run again.
    TooOften(u32),
    /// Its policy is to fail.
    Policy,
}

impl OomPolicy {
    /// Returns the default policy: an estimated or unknown size grows, and a job that names a slice
    /// keeps it.
    pub const fn default_for(request: &GpuRequest) -> Self {
        match request {
            GpuRequest::Unknown | GpuRequest::Memory(_) => Self::Larger,
            GpuRequest::Profile(_)
            | GpuRequest::Whole
            | GpuRequest::Unpartitioned
            | GpuRequest::Compute(_) => Self::Fail,
        }
    }

    /// Decides about a job that ran out of `had`.
    ///
    /// `earlier` counts its earlier events of this kind, `at_least` is what it had to have after those,
    /// and `largest` is the largest slice of the cluster.
    pub fn after_out_of_memory(
        self,
        had: Bytes,
        earlier: u32,
        at_least: Option<Bytes>,
        largest: Bytes,
    ) -> AfterOutOfMemory {
        let over = |reason| AfterOutOfMemory { verdict: RetryVerdict::Final, at_least, reason };
        let again = |at_least, reason| AfterOutOfMemory {
            verdict: RetryVerdict::RequeueOutOfMemory,
            at_least,
            reason,
        };
        match self {
            Self::Fail => over(OutOfMemoryReason::Policy),
            Self::Same if earlier < SAME_MAX => again(at_least, OutOfMemoryReason::RunsAgain),
            Self::Larger if earlier < LARGER_MAX => {
                let next = next_size(had).max(at_least.unwrap_or(Bytes::ZERO));
                match next <= largest {
                    true => again(Some(next), OutOfMemoryReason::GetsMore(next)),
                    false => over(OutOfMemoryReason::TopOfLadder { largest, next }),
                }
            }
            Self::Same | Self::Larger => over(OutOfMemoryReason::TooOften(earlier + 1)),
        }
    }
}

impl OutOfMemoryReason {
    /// Returns the reason as the end of a sentence about the attempt.
    pub fn text(self) -> String {
        match self {
            Self::GetsMore(bytes) => format!("it runs again with at least {bytes}"),
            Self::RunsAgain => "it runs again with the same memory (--oom-policy same)".to_owned(),
            Self::TopOfLadder { largest, next } => format!(
                "it would need at least {next}, and the largest slice of this cluster has {largest}: \
                 reduce its need, such as its batch, or add a larger GPU"
            ),
            Self::TooOften(times) => {
                format!("it ran out of memory {times} times, so that it does not run again")
            }
            Self::Policy => "it does not run again with more memory: its policy is fail, which is \
                             the default for a named slice (see --oom-policy)"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gib(number: u64) -> Bytes {
        Bytes::from_mib(number * 1_024)
    }

    #[test]
    fn a_step_is_a_fifth_and_a_gibibyte_at_least() {
        assert_eq!(next_size(gib(2)), gib(3), "a fifth of it would be less");
        assert_eq!(next_size(gib(10)), gib(12));
        assert_eq!(next_size(Bytes::new(u64::MAX)), Bytes::new(u64::MAX));
    }

    #[test]
    fn a_slice_that_is_hardly_larger_is_no_step() {
        let had = Bytes::from_mib(9_856);
        let after = OomPolicy::Larger.after_out_of_memory(had, 0, None, Bytes::from_mib(9_984));

        assert_eq!(after.verdict, RetryVerdict::Final);
        assert!(after.reason.text().contains("the largest slice of this cluster has 9.75 GiB"));
    }

    #[test]
    fn the_sizes_of_earlier_attempts_are_remembered() {
        let after = OomPolicy::Larger.after_out_of_memory(gib(4), 1, Some(gib(12)), gib(40));

        assert_eq!(after.at_least, Some(gib(12)), "it ran on a smaller share since");
    }

    #[test]
    fn a_job_that_names_a_slice_keeps_it() {
        let named = GpuRequest::Profile("1g.5gb".parse().unwrap());

        assert_eq!(OomPolicy::default_for(&named), OomPolicy::Fail);
        assert_eq!(OomPolicy::default_for(&GpuRequest::Unknown), OomPolicy::Larger);
        assert_eq!(OomPolicy::default_for(&GpuRequest::Memory(gib(1))), OomPolicy::Larger);
        let after = OomPolicy::Fail.after_out_of_memory(gib(4), 0, None, gib(40));
        assert_eq!((after.verdict, after.at_least), (RetryVerdict::Final, None));
    }

    proptest! {
        #[test]
        fn the_ladder_has_an_end_and_no_step_twice(
            first in 1_u64..200_000,
            largest in 1_u64..300_000,
            policy in prop::sample::select(OomPolicy::ALL),
        ) {
            let largest = Bytes::from_mib(largest);
            let (mut had, mut at_least, mut events) = (Bytes::from_mib(first), None, 0);
            loop {
                let after = policy.after_out_of_memory(had, events, at_least, largest);
                prop_assert_eq!(after.verdict == RetryVerdict::Final, after.reason.text().contains("not run again") || matches!(after.reason, OutOfMemoryReason::TopOfLadder { .. }));
                if after.verdict == RetryVerdict::Final {
                    break;
                }
                events += 1;
                prop_assert!(events <= LARGER_MAX, "it goes on forever");
                if policy == OomPolicy::Larger {
                    let next = after.at_least.unwrap();
                    prop_assert!(next.get() - had.get() >= STEP_MIN.get());
                    prop_assert!((next.get() - had.get()) * STEP_PART >= had.get());
                    prop_assert!(next <= largest);
                    had = next;
                }
                at_least = after.at_least;
            }
        }
    }
}
