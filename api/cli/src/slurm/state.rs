//! Slurm's states of jobs. Clients compare these words whole.

use tessera_api_types::{JobRecord, RunRecord, StepRecord};

/// A state as Slurm names it, in Slurm's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlurmState {
    /// It waits.
    Pending,
    /// It runs.
    Running,
    /// It ended with code 0.
    Completed,
    /// Its user cancelled it.
    Cancelled,
    /// It ended in another way.
    Failed,
    /// It exceeded its time limit.
    Timeout,
    /// It was lost with its node.
    NodeFail,
    /// It was ended for another job.
    Preempted,
    /// It ran out of memory.
    OutOfMemory,
    /// Its slice is being created.
    Configuring,
    /// Its end was requested.
    Completing,
}

impl SlurmState {
    /// Every state that a job may be in.
    pub const ALL: [Self; 11] = [
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Cancelled,
        Self::Failed,
        Self::Timeout,
        Self::NodeFail,
        Self::Preempted,
        Self::OutOfMemory,
        Self::Configuring,
        Self::Completing,
    ];

    /// Returns the state of a job.
    pub fn of(job: &JobRecord) -> Self {
        match job.state.as_str() {
            "placing" => Self::Configuring,
            // The node may have started the program already, which may look at its own job.
            "starting" | "running" => Self::Running,
            "stopping" => Self::Completing,
            "succeeded" => Self::Completed,
            "cancelled" => Self::Cancelled,
            "timed_out" => Self::Timeout,
            "failed" => Self::of_end(job.outcome.as_deref().unwrap_or_default()),
            _ => Self::Pending,
        }
    }

    /// Returns the state of a run by how it ended.
    pub fn of_end(outcome: &str) -> Self {
        match outcome {
            "succeeded" => Self::Completed,
            "cancelled" => Self::Cancelled,
            "timed_out" => Self::Timeout,
            "out_of_memory" => Self::OutOfMemory,
            "lost" => Self::NodeFail,
            "preempted" => Self::Preempted,
            "placing" | "starting" | "running" | "stopping" => Self::Running,
            _ => Self::Failed,
        }
    }

    /// Returns the state of a step of a run. As in Slurm, one that a signal ended counts as cancelled.
    pub fn of_step(step: &StepRecord, run: Option<&RunRecord>) -> Self {
        match (step.exit_code.as_deref(), step.ended_at) {
            (Some("0:0"), _) => Self::Completed,
            (Some(code), _) if code.ends_with(":0") => Self::Failed,
            (Some(_), _) => Self::Cancelled,
            (None, None) => Self::Running,
            // It ended with its run.
            (None, Some(_)) => match run.map(|run| Self::of_end(&run.state)) {
                Some(lost @ (Self::NodeFail | Self::OutOfMemory | Self::Preempted)) => lost,
                _ => Self::Cancelled,
            },
        }
    }

    /// Returns the state in accounting, which knows only whether a job has an allocation.
    pub const fn accounted(self) -> Self {
        match self {
            Self::Configuring | Self::Completing => Self::Running,
            other => other,
        }
    }

    /// Returns the long word.
    pub const fn long(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Failed => "FAILED",
            Self::Timeout => "TIMEOUT",
            Self::NodeFail => "NODE_FAIL",
            Self::Preempted => "PREEMPTED",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::Configuring => "CONFIGURING",
            Self::Completing => "COMPLETING",
        }
    }

    /// Returns the letters.
    pub const fn short(self) -> &'static str {
        match self {
            Self::Pending => "PD",
            Self::Running => "R",
            Self::Completed => "CD",
            Self::Cancelled => "CA",
            Self::Failed => "F",
            Self::Timeout => "TO",
            Self::NodeFail => "NF",
            Self::Preempted => "PR",
            Self::OutOfMemory => "OOM",
            Self::Configuring => "CF",
            Self::Completing => "CG",
        }
    }

    /// Returns whether the job has ended.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Configuring | Self::Completing)
    }

    /// Returns whether the job has an allocation now.
    pub const fn is_allocated(self) -> bool {
        matches!(self, Self::Running | Self::Configuring | Self::Completing)
    }
}

/// Slurm's names of states that no job has here.
const ABSENT: &[&str] = &[
    "SUSPENDED",
    "S",
    "BOOT_FAIL",
    "BF",
    "DEADLINE",
    "DL",
    "RESIZING",
    "RS",
    "RESV_DEL_HOLD",
    "RD",
    "REQUEUED",
    "RQ",
    "REQUEUE_FED",
    "RF",
    "REQUEUE_HOLD",
    "RH",
    "REVOKED",
    "RV",
    "SIGNALING",
    "SI",
    "SPECIAL_EXIT",
    "SE",
    "STAGE_OUT",
    "SO",
    "STOPPED",
    "ST",
];

/// Which states are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateFilter {
    /// All of them.
    All,
    /// Some of them.
    Only(Vec<SlurmState>),
}

/// A word that is not a state; the list is what `squeue` prints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Invalid job state specified: {word}\nValid job states include: \
     PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,\
     DEADLINE,OUT_OF_MEMORY,COMPLETING,CONFIGURING,RESIZING,RESV_DEL_HOLD,REQUEUED,REQUEUE_FED,\
     REQUEUE_HOLD,REVOKED,SIGNALING,SPECIAL_EXIT,STAGE_OUT,STOPPED"
)]
pub struct UnknownSlurmState {
    word: String,
}

impl StateFilter {
    /// Reads a list of states.
    ///
    /// # Errors
    ///
    /// [`UnknownSlurmState`] for a word that Slurm does not have.
    pub fn parse(words: &[String]) -> Result<Self, UnknownSlurmState> {
        let mut states = Vec::new();
        for word in words {
            let upper = word.to_ascii_uppercase();
            if upper == "ALL" {
                return Ok(Self::All);
            }
            let named = |state: &SlurmState| state.long() == upper || state.short() == upper;
            match SlurmState::ALL.into_iter().find(named) {
                Some(state) => states.push(state),
                None if ABSENT.contains(&upper.as_str()) => {}
                None => return Err(UnknownSlurmState { word: word.clone() }),
            }
        }
        Ok(Self::Only(states))
    }

    /// Returns whether a state is listed.
    pub fn has(&self, state: SlurmState) -> bool {
        match self {
            Self::All => true,
            Self::Only(states) => states.contains(&state),
        }
    }
}

/// Returns why a job waits or how it ended, in Slurm's wording.
pub fn reason(job: &JobRecord) -> String {
    let state = SlurmState::of(job);
    if job.state == "held" {
        return "JobHeldUser".to_owned();
    }
    if state != SlurmState::Pending {
        return match state {
            SlurmState::Failed => "NonZeroExitCode".to_owned(),
            SlurmState::Timeout => "TimeLimit".to_owned(),
            SlurmState::OutOfMemory => "OutOfMemory".to_owned(),
            SlurmState::NodeFail => "NodeDown".to_owned(),
            _ => "None".to_owned(),
        };
    }
    match job.reason.as_deref() {
        None => "None".to_owned(),
        Some("resources" | "mig_fragmentation" | "awaiting_repartition") => "Resources".to_owned(),
        Some("priority") => "Priority".to_owned(),
        Some("power_cap") => "PowerNotAvail".to_owned(),
        Some("quota") => "QOSMaxGRESPerUser".to_owned(),
        Some("node_unavailable" | "gpu_blocked" | "node_drained" | "gpu_quarantined") => {
            "ReqNodeNotAvail".to_owned()
        }
        Some("array_task_limit") => "JobArrayTaskLimit".to_owned(),
        Some("bad_constraints") => "BadConstraints".to_owned(),
        Some(other) => in_camel_case(other),
    }
}

/// Writes a reason as Slurm does: `begin_time` becomes `BeginTime`.
fn in_camel_case(reason: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    reason.split('_').filter_map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_words_name_states_and_unknown_ones_are_refused_with_the_list() {
        let parse = |text: &str| {
            let words: Vec<String> = text.split(',').map(str::to_owned).collect();
            StateFilter::parse(&words)
        };

        let filter = parse("pending,R,suspended").unwrap();
        assert!(filter.has(SlurmState::Pending) && filter.has(SlurmState::Running));
        assert!(!filter.has(SlurmState::Completed));
        assert_eq!(parse("CD,all"), Ok(StateFilter::All));
        let refused = parse("FOO").unwrap_err().to_string();
        assert!(refused.starts_with("Invalid job state specified: FOO\n"), "{refused}");
    }
}
