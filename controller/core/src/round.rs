//! The result of one round: rows for one transaction, answers, and effects after its commit.
//!
//! The rows are grouped by subject, so that a decision takes only the group that it writes.

use crate::commands::operator::{OperatorOutcome, OperatorRefusal};
use crate::commands::{CommandResult, JobStateChange};
use crate::rollback::DatabaseRollback;
use crate::rows::{growth, idle, needs, nodes, overrides, preemptions, transitions, updates};
use std::sync::Arc;
use tessera_frames::cluster::{AttemptUsage, GpuReport, ToAgent};
use tessera_model::dependency::DependencyQuestion;
use tessera_model::{JobId, NodeId};
use tessera_placement::record::RoundRecord;

/// Maximum number of attempts that one round starts. It bounds the transaction, and with it the
/// wait of the next inputs.
pub const STARTS_MAX: usize = 256;

/// The results of one command: its token, and each job's result if the cluster state has it.
pub type CommandResults = (u64, Vec<(JobId, Option<CommandResult>)>);

/// Everything that one transaction commits, and the effects of the commit.
#[derive(Debug, Default)]
pub struct Round {
    /// Rows of nodes and GPUs.
    pub nodes: NodeWrites,
    /// Rows of layout plans.
    pub plans: PlanWrites,
    /// Rows of jobs and attempts.
    pub jobs: JobWrites,
    /// Rows of administrative overrides.
    pub overrides: OverrideWrites,
    /// The policy's inputs and decisions, if it was run and anything is committed.
    pub record: Option<Arc<RoundRecord>>,
    /// Queries about jobs that others depend on; the commit answers them after its changes.
    pub questions: Vec<DependencyQuestion>,
    /// Answers to commands.
    pub answers: CommandAnswers,
    /// What to do after the commit.
    pub effects: Vec<RoundEffect>,
    /// Set if an agent has numbers that the store never assigned: the database was rolled back
    /// (rule F14).
    pub rollback: Option<DatabaseRollback>,
}

/// Rows of nodes and GPUs.
#[derive(Debug, Default)]
pub struct NodeWrites {
    /// Nodes that register.
    pub registrations: Vec<nodes::NodeRegistration>,
    /// Rising generations: node, new generation, and whether the node is lost.
    pub generations: Vec<(NodeId, u64, bool)>,
    /// GPUs that changed.
    pub gpu_reports: Vec<(NodeId, GpuReport)>,
    /// Whether nodes or GPUs appeared, disappeared or changed. It is not a row.
    pub shape_changed: bool,
}

/// Rows of layout plans.
#[derive(Debug, Default)]
pub struct PlanWrites {
    /// Plans that ended, with their outcome.
    pub ended: Vec<nodes::EndedPlan>,
    /// Plans that are sent after the commit.
    pub begun: Vec<nodes::LayoutPlanRow>,
}

/// Rows of jobs and attempts.
#[derive(Debug, Default)]
pub struct JobWrites {
    /// Attempts whose slices exist.
    pub ready: Vec<transitions::ReadyAttempt>,
    /// Attempts whose programs run.
    pub started: Vec<transitions::StartedAttempt>,
    /// Jobs with live attempts that are stopping.
    pub stopping: Vec<transitions::StoppingAttempt>,
    /// Jobs with live attempts that will get other shares.
    pub reshared: Vec<transitions::ResharedJob>,
    /// Updates of jobs with live attempts.
    pub updated: Vec<updates::UpdatedJob>,
    /// Attempts that ended.
    pub ended: Vec<transitions::EndedAttempt>,
    /// The resource usage of attempts, as reported by their nodes.
    pub usages: Vec<(NodeId, AttemptUsage)>,
    /// Commands of users to waiting jobs.
    pub commands: Vec<transitions::WaitingJobCommand>,
    /// Jobs that are placed.
    pub reservations: Vec<transitions::Reservation>,
    /// Running jobs that are requested to checkpoint and to continue elsewhere.
    pub migrations: Vec<transitions::MigrationRow>,
    /// Predictions of running attempts' memory, and their outcomes.
    pub growths: Vec<growth::GrowthRow>,
    /// Decisions about jobs whose GPUs do nothing.
    pub idle: Vec<idle::IdleRow>,
    /// Jobs that are sent back to the queue for others, and that run again.
    pub preemptions: Vec<preemptions::PreemptionRow>,
    /// What jobs need at least, as first kernels showed it.
    pub needs: Vec<needs::NeedRow>,
    /// Waiting jobs whose reasons changed.
    pub waits: Vec<transitions::WaitReasonRow>,
}

/// Rows of administrative overrides.
#[derive(Debug, Default)]
pub struct OverrideWrites {
    /// Overrides that are set or cleared.
    pub changes: Vec<overrides::OverrideChange>,
    /// Entries of the operator log.
    pub events: Vec<overrides::OperatorEvent>,
}

/// Answers to commands, each with the token of its call.
#[derive(Debug, Default)]
pub struct CommandAnswers {
    /// Results of users' commands; `None` if only the store knows.
    pub users: Vec<CommandResults>,
    /// Answers to administrators' commands.
    pub operators: Vec<(u64, Result<OperatorOutcome, OperatorRefusal>)>,
}

/// An effect that is carried out after a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundEffect {
    /// Send a frame to a node. It is lost if the node is not connected; later rounds repeat it.
    Send {
        /// The node that gets it.
        node: NodeId,
        /// What is sent.
        frame: Box<ToAgent>,
    },
    /// Answer a connection that is not a session (yet), and close it.
    Refuse {
        /// The number of the connection.
        session: u64,
        /// The reason, as text for people.
        reason: String,
        /// Whether the agent should try again.
        retry: bool,
    },
    /// A connection becomes a node's session.
    Bind {
        /// The node that has connected.
        node: NodeId,
        /// The number of the connection.
        session: u64,
    },
    /// A job's state changed.
    Moved(JobStateChange),
}

impl Round {
    /// Returns whether the cluster's capacity, against which submits are checked, changed.
    pub const fn shape_changed(&self) -> bool {
        self.nodes.shape_changed || !self.overrides.changes.is_empty()
    }

    /// Returns whether attempts started and ended, and nothing else happened.
    pub(crate) fn only_moves_attempts(&self) -> bool {
        let others = &self.jobs;
        self.nodes.is_empty()
            && self.plans.is_empty()
            && self.overrides.is_empty()
            && self.questions.is_empty()
            && others.stopping.is_empty()
            && others.reshared.is_empty()
            && others.updated.is_empty()
            && others.commands.is_empty()
            && others.reservations.is_empty()
            && others.migrations.is_empty()
            && others.idle.is_empty()
            && others.preemptions.is_empty()
            && others.needs.is_empty()
            && others.waits.is_empty()
    }

    /// Returns whether there is nothing to commit. A record alone does not count: if nothing else
    /// is written, only time has passed.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.plans.is_empty()
            && self.jobs.is_empty()
            && self.overrides.is_empty()
            && self.questions.is_empty()
    }
}

impl NodeWrites {
    const fn is_empty(&self) -> bool {
        self.registrations.is_empty() && self.generations.is_empty() && self.gpu_reports.is_empty()
    }
}

impl PlanWrites {
    const fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.begun.is_empty()
    }
}

impl JobWrites {
    const fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.started.is_empty()
            && self.stopping.is_empty()
            && self.reshared.is_empty()
            && self.updated.is_empty()
            && self.ended.is_empty()
            && self.usages.is_empty()
            && self.commands.is_empty()
            && self.reservations.is_empty()
            && self.migrations.is_empty()
            && self.growths.is_empty()
            && self.idle.is_empty()
            && self.preemptions.is_empty()
            && self.needs.is_empty()
            && self.waits.is_empty()
    }
}

impl OverrideWrites {
    const fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.events.is_empty()
    }
}
