//! Reasons why runs fail.

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// A job can run nowhere.
    #[error("job {job} ({name}) can't run on this cluster: {why}")]
    NoPlace {
        /// Its number, from 1.
        job: u64,
        /// The job for which no GPU is large enough.
        name: String,
        /// What is missing.
        why: String,
    },
    /// A policy may put a job where its run time is not known.
    #[error(
        "{policy} uses only memory and could put job {job} ({name}) on {model}, for which it has \
         no times. Give it times_s for {model} (or under \"*\", for any GPU), or leave {model} out \
         of --cluster"
    )]
    NoTimes {
        /// The policy that needs the times.
        policy: String,
        /// The job's number, from 1.
        job: u64,
        /// The job whose times are missing.
        name: String,
        /// The GPU model.
        model: String,
    },
    /// Jobs wait, and no event will ever start them.
    #[error("under {policy}, jobs wait forever ({jobs} of them); the first is job {first}: {why}")]
    Stuck {
        /// The policy under which no job moves on.
        policy: String,
        /// The number.
        jobs: usize,
        /// The first of them.
        first: u64,
        /// The policy's last reason.
        why: String,
    },
    /// The policy never comes to an end.
    #[error("under {policy}, more than {events} events at {at_ms} ms: it moves jobs forever")]
    Endless {
        /// The policy under which the jobs did not end.
        policy: String,
        /// The number.
        events: u64,
        /// Simulated time in milliseconds.
        at_ms: u64,
    },
    /// The policy made an impossible decision.
    #[error("{policy} decided what can't be done: {what}")]
    Impossible {
        /// The policy that made the decision.
        policy: String,
        /// The decision that breaks a rule.
        what: String,
    },
}
