//! The life cycle of jobs and attempts: every state and every legal transition, in one function.
//!
//! A job is in exactly one state. While it is [`JobState::Placing`], [`JobState::Starting`],
//! [`JobState::Running`] or [`JobState::Stopping`] it has exactly one live attempt; in every
//! other state it has none.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;

/// Declares an enum of named values with its text form.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the value in the API and the database.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(BadId {
                        kind: stringify!($name),
                        text: text.to_owned(),
                        expected: concat!("one of", $(" ", $word),+),
                    }),
                }
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.word().to_owned()
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Where a job is between its submit and its end.
    JobState {
        /// Waits for a placement.
        Queued = "queued",
        /// Waits for its user to release it.
        Held = "held",
        /// Has a reserved placement; the GPU's layout is being changed for it.
        Placing = "placing",
        /// Its slice is ready and its launch was committed.
        Starting = "starting",
        /// Its program runs.
        Running = "running",
        /// It was cancelled while it had a live attempt; the attempt is being ended.
        Stopping = "stopping",
        /// Ended with exit status 0.
        Succeeded = "succeeded",
        /// Ended by its own fault, or used up its retries.
        Failed = "failed",
        /// Ended because its user cancelled it.
        Cancelled = "cancelled",
        /// Ended because it reached its time limit.
        TimedOut = "timed_out",
    }
}

words! {
    /// How an attempt ended.
    Outcome {
        /// The program exited with status 0.
        Succeeded = "succeeded",
        /// The program exited with another status or died of a signal.
        Failed = "failed",
        /// Killed because its user cancelled the job.
        Cancelled = "cancelled",
        /// Killed because its time was up.
        TimedOut = "timed_out",
        /// Ran out of memory; the job may try again with more.
        OutOfMemory = "out_of_memory",
        /// Killed to free space.
        Preempted = "preempted",
        /// Its node, GPU or shepherd was lost with it.
        Lost = "lost",
        /// Could not be started by the job's own fault: no such program, not executable.
        LaunchFailed = "launch_failed",
        /// Never ran, through no fault of the job: refused, revoked, or its layout failed.
        NotStarted = "not_started",
        /// Ended by the fault of another job on its slice, or of the slice's MPS daemon.
        Collateral = "collateral",
    }
}

words! {
    /// The policy for a job whose attempt was lost with its node.
    OnLost {
        /// Runs again elsewhere once the old attempt is certainly dead.
        Requeue = "requeue",
        /// Waits for its user's release.
        Hold = "hold",
        /// The job ends as failed.
        Fail = "fail",
    }
}

impl JobState {
    /// Returns whether the state is final: nothing leaves such a state, unless a user requeues the job.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// Returns whether a live attempt belongs to the job.
    pub const fn has_live_attempt(self) -> bool {
        matches!(self, Self::Placing | Self::Starting | Self::Running | Self::Stopping)
    }

    /// Returns the two-letter state of batch schedulers, as `squeue` shows it.
    pub const fn short(self) -> &'static str {
        match self {
            Self::Queued | Self::Held => "PD",
            Self::Placing | Self::Starting => "CF",
            Self::Running => "R",
            Self::Stopping => "CG",
            Self::Succeeded => "CD",
            Self::Failed => "F",
            Self::Cancelled => "CA",
            Self::TimedOut => "TO",
        }
    }
}

/// An event in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// Its user holds it.
    Hold,
    /// Its user releases it.
    Release,
    /// A placement was reserved, and the layout must still be changed for it.
    Reserve,
    /// The chosen slice already exists, or the reserved slice became ready.
    Launch,
    /// The agent reports that the program runs.
    Started,
    /// Its user cancels it.
    Cancel,
    /// Its user puts it back into the queue after its end.
    RunAgain,
    /// Its attempt ended.
    Ended {
        /// How the job ended.
        outcome: Outcome,
        /// The verdict of its retry rules ([`RetryRules::verdict`]).
        verdict: RetryVerdict,
    },
}

/// The verdict about a job after an attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryVerdict {
    /// The job has ended.
    Final,
    /// The job goes back to the queue; charged if the end was its own fault.
    Requeue {
        /// Whether one of its retries is used up.
        charged: bool,
    },
    /// The job goes back to the queue since it ran out of GPU memory. That uses up no retry, and is
    /// bounded by the sizes that the cluster has ([`OomPolicy`](crate::sizing::OomPolicy)).
    RequeueOutOfMemory,
    /// The job is held for its user.
    Hold,
}

/// A transition that the life cycle doesn't have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} can't take {event:?}")]
pub struct IllegalTransition {
    /// The job's state; it does not change.
    pub state: JobState,
    /// What happened in a state in which it can't happen.
    pub event: JobEvent,
}

impl JobState {
    /// Returns the state that `event` leads to.
    ///
    /// # Errors
    ///
    /// [`IllegalTransition`] if the event has no meaning in this state.
    pub const fn on(self, event: JobEvent) -> Result<Self, IllegalTransition> {
        use JobEvent as E;
        use JobState as S;
        let next = match (self, event) {
            (S::Queued | S::Held, E::Hold) => S::Held,
            (S::Held | S::Queued, E::Release) => S::Queued,
            (S::Queued, E::Reserve) => S::Placing,
            (S::Queued | S::Placing, E::Launch) => S::Starting,
            (S::Starting, E::Started) => S::Running,
            // A late start report changes nothing: the stop continues.
            (S::Stopping, E::Started) => S::Stopping,
            (S::Queued | S::Held, E::Cancel) => S::Cancelled,
            (S::Placing | S::Starting | S::Running | S::Stopping, E::Cancel) => S::Stopping,
            (S::Placing | S::Starting | S::Running, E::Ended { outcome, verdict }) => {
                after_end(outcome, verdict)
            }
            // The program may have ended by itself before the signal came; that end counts.
            // For any other end of the attempt, the user's cancellation counts.
            (S::Stopping, E::Ended { outcome, verdict: _ }) => match outcome {
                Outcome::Succeeded => S::Succeeded,
                Outcome::TimedOut => S::TimedOut,
                Outcome::Failed
                | Outcome::Cancelled
                | Outcome::OutOfMemory
                | Outcome::Preempted
                | Outcome::Lost
                | Outcome::LaunchFailed
                | Outcome::NotStarted
                | Outcome::Collateral => S::Cancelled,
            },
            (S::Succeeded | S::Failed | S::Cancelled | S::TimedOut, E::RunAgain) => S::Queued,
            (S::Queued | S::Held, E::Started | E::Ended { .. })
            | (
                S::Queued | S::Held | S::Placing | S::Starting | S::Running | S::Stopping,
                E::RunAgain,
            )
            | (S::Held, E::Reserve | E::Launch)
            | (S::Placing, E::Started | E::Reserve | E::Hold | E::Release)
            | (
                S::Starting | S::Running | S::Stopping,
                E::Reserve | E::Launch | E::Hold | E::Release,
            )
            | (S::Running, E::Started)
            | (S::Succeeded | S::Failed | S::Cancelled | S::TimedOut, _) => {
                return Err(IllegalTransition { state: self, event });
            }
        };
        Ok(next)
    }
}

const fn after_end(outcome: Outcome, verdict: RetryVerdict) -> JobState {
    match verdict {
        RetryVerdict::Requeue { .. } | RetryVerdict::RequeueOutOfMemory => JobState::Queued,
        RetryVerdict::Hold => JobState::Held,
        RetryVerdict::Final => match outcome {
            Outcome::Succeeded => JobState::Succeeded,
            Outcome::Cancelled => JobState::Cancelled,
            Outcome::TimedOut => JobState::TimedOut,
            Outcome::Failed
            | Outcome::OutOfMemory
            | Outcome::Preempted
            | Outcome::Lost
            | Outcome::LaunchFailed
            | Outcome::NotStarted
            | Outcome::Collateral => JobState::Failed,
        },
    }
}

/// How often a job may run again, and after what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryRules {
    /// How many of its own failures a job survives: non-zero exits, and more host memory than it may use.
    pub max_retries: u32,
    /// The policy when its node is lost.
    pub on_lost: OnLost,
}

/// How many times a job may end without its own fault before it is held for inspection. A job that
/// kills every node it runs on must not be repeated forever.
pub const UNCHARGED_ENDS_MAX: u32 = 16;

impl RetryRules {
    /// Decides about a job after an attempt's end, unless it ran out of GPU memory: that is decided
    /// by [`OomPolicy`](crate::sizing::OomPolicy).
    ///
    /// `charged` counts the retries that the job has used up, `uncharged` the ends so far that
    /// were not its fault.
    pub const fn verdict(&self, outcome: Outcome, charged: u32, uncharged: u32) -> RetryVerdict {
        match outcome {
            Outcome::Succeeded | Outcome::Cancelled | Outcome::TimedOut | Outcome::LaunchFailed => {
                RetryVerdict::Final
            }
            Outcome::Failed | Outcome::OutOfMemory => {
                if charged < self.max_retries {
                    RetryVerdict::Requeue { charged: true }
                } else {
                    RetryVerdict::Final
                }
            }
            Outcome::Lost => match self.on_lost {
                OnLost::Fail => RetryVerdict::Final,
                OnLost::Hold => RetryVerdict::Hold,
                OnLost::Requeue => innocent(uncharged),
            },
            Outcome::Preempted | Outcome::NotStarted | Outcome::Collateral => innocent(uncharged),
        }
    }
}

const fn innocent(uncharged: u32) -> RetryVerdict {
    if uncharged < UNCHARGED_ENDS_MAX {
        RetryVerdict::Requeue { charged: false }
    } else {
        RetryVerdict::Hold
    }
}

/// How a program ended, as the kernel reported it to the shepherd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramExit {
    /// It returned this status.
    Code(u8),
    /// It was killed by this signal.
    Signal(u8),
}

impl fmt::Display for ProgramExit {
    /// Shows `code:signal`, as batch schedulers print exit codes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "{code}:0"),
            Self::Signal(signal) => write!(f, "0:{signal}"),
        }
    }
}

impl ProgramExit {
    /// Returns the status that a shell would report: the code, or 128 and the signal.
    pub const fn shell_status(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outcomes() -> impl Strategy<Value = Outcome> {
        prop::sample::select(Outcome::ALL)
    }

    fn verdicts() -> impl Strategy<Value = RetryVerdict> {
        prop_oneof![
            Just(RetryVerdict::Final),
            Just(RetryVerdict::Hold),
            any::<bool>().prop_map(|charged| RetryVerdict::Requeue { charged }),
            Just(RetryVerdict::RequeueOutOfMemory),
        ]
    }

    fn events() -> impl Strategy<Value = JobEvent> {
        prop_oneof![
            Just(JobEvent::Hold),
            Just(JobEvent::Release),
            Just(JobEvent::Reserve),
            Just(JobEvent::Launch),
            Just(JobEvent::Started),
            Just(JobEvent::Cancel),
            Just(JobEvent::RunAgain),
            (outcomes(), verdicts())
                .prop_map(|(outcome, verdict)| JobEvent::Ended { outcome, verdict }),
        ]
    }

    proptest! {
        #[test]
        fn final_is_final_unless_a_user_requeues_the_job(event in events()) {
            for state in JobState::ALL {
                let again = event == JobEvent::RunAgain;
                if state.is_final() {
                    prop_assert_eq!(state.on(event).ok(), again.then_some(JobState::Queued));
                } else {
                    prop_assert!(!again || state.on(event).is_err());
                }
            }
        }

        #[test]
        fn only_a_live_attempt_can_end(outcome in outcomes(), verdict in verdicts()) {
            for state in JobState::ALL {
                let moved = state.on(JobEvent::Ended { outcome, verdict });
                prop_assert_eq!(moved.is_ok(), state.has_live_attempt());
                if let Ok(next) = moved {
                    prop_assert!(!next.has_live_attempt(), "the only attempt is over");
                }
            }
        }

        #[test]
        fn a_cancelled_job_never_runs_again(outcome in outcomes(), verdict in verdicts()) {
            for state in JobState::ALL {
                let Ok(cancelled) = state.on(JobEvent::Cancel) else { continue };
                prop_assert!(matches!(cancelled, JobState::Cancelled | JobState::Stopping));
                if cancelled == JobState::Stopping {
                    let end = cancelled.on(JobEvent::Ended { outcome, verdict }).unwrap();
                    prop_assert!(end.is_final());
                }
            }
        }

        #[test]
        fn every_unfinished_job_can_still_be_cancelled(walk in prop::collection::vec(events(), 0..40)) {
            let state = walk.into_iter().fold(JobState::Queued, |state, event| {
                state.on(event).unwrap_or(state)
            });
            prop_assert_eq!(state.on(JobEvent::Cancel).is_ok(), !state.is_final());
        }

        #[test]
        fn retries_are_bounded(outcome in outcomes(), max_retries in 0_u32..5, on_lost in prop::sample::select(OnLost::ALL)) {
            let rules = RetryRules { max_retries, on_lost };
            let (mut charged, mut uncharged) = (0, 0);
            for _ in 0..=max_retries + UNCHARGED_ENDS_MAX {
                match rules.verdict(outcome, charged, uncharged) {
                    RetryVerdict::Requeue { charged: true } => charged += 1,
                    RetryVerdict::Requeue { charged: false } => uncharged += 1,
                    RetryVerdict::RequeueOutOfMemory => {
                        prop_assert!(false, "the rules know nothing of sizes");
                    }
                    RetryVerdict::Final | RetryVerdict::Hold => return Ok(()),
                }
            }
            prop_assert!(false, "a job that always ends {outcome} never stops");
        }
    }

    #[test]
    fn faults_that_are_not_the_jobs_own_cost_it_nothing() {
        let rules = RetryRules { max_retries: 0, on_lost: OnLost::Requeue };

        for outcome in [Outcome::Lost, Outcome::Preempted, Outcome::NotStarted] {
            assert_eq!(rules.verdict(outcome, 0, 0), RetryVerdict::Requeue { charged: false });
        }
    }

    #[test]
    fn words_read_back() {
        for state in JobState::ALL {
            assert_eq!(state.word().parse(), Ok(*state));
        }
        assert!("RUNNING".parse::<JobState>().unwrap_err().to_string().contains("one of queued"));
    }

    #[test]
    fn an_exit_shows_code_and_signal_apart() {
        assert_eq!(ProgramExit::Code(3).to_string(), "3:0");
        assert_eq!(ProgramExit::Signal(9).to_string(), "0:9");
        assert_eq!(ProgramExit::Signal(9).shell_status(), 137);
    }
}
