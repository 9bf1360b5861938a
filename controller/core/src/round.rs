//! What one round decides: rows for one transaction, and effects after its commit.

use crate::commands::operator::{OperatorOutcome, OperatorRefusal};
use crate::commands::{CommandResult, JobStateChange};
use crate::rollback::DatabaseRollback;
use crate::rows::{nodes, overrides as said, transitions, updates};
use std::sync::Arc;
use tessera_frames::cluster::{AttemptUsage, GpuReport, ToAgent};
use tessera_model::{JobId, NodeId};
use tessera_placement::record::RoundRecord;

/// Most attempts that one round starts: bounds the transaction, and with it how long the next
/// inputs wait.
pub const STARTS_MAX: usize = 256;

/// The results of one command: its token, and each job's result where the cluster state has it.
pub type CommandResults = (u64, Vec<(JobId, Option<CommandResult>)>);

/// Everything that one transaction commits.
#[derive(Debug, Default)]
pub struct Round {
    /// Nodes that register.
    pub attaches: Vec<nodes::NodeRegistration>,
    /// Generations that rise: node, new generation, whether it is lost.
    pub raises: Vec<(NodeId, u64, bool)>,
    /// GPUs that changed.
    pub reports: Vec<(NodeId, GpuReport)>,
    /// Plans that ended, with their outcome.
    pub closed: Vec<nodes::ClosedPlan>,
    /// Attempts whose slices stand.
    pub ready: Vec<transitions::ReadyAttempt>,
    /// Attempts whose programs run.
    pub started: Vec<transitions::StartedAttempt>,
    /// Jobs with live attempts that are stopping.
    pub stopping: Vec<transitions::StoppingAttempt>,
    /// Jobs with live attempts that are to have other shares.
    pub reshared: Vec<transitions::ResharedJob>,
    /// Updates of jobs with live attempts.
    pub amended: Vec<updates::UpdatedJob>,
    /// Attempts that are over.
    pub ended: Vec<transitions::EndedAttempt>,
    /// What attempts used, by the nodes that they ran on.
    pub usages: Vec<(NodeId, AttemptUsage)>,
    /// Commands of users to waiting jobs.
    pub commands: Vec<transitions::WaitingJobCommand>,
    /// Jobs that are placed.
    pub reservations: Vec<transitions::Reservation>,
    /// Running jobs that are asked to checkpoint and go on elsewhere.
    pub moving: Vec<transitions::MigrationRow>,
    /// Waiting jobs whose reasons changed.
    pub waits: Vec<transitions::WaitReasonRow>,
    /// Plans that are sent after the commit.
    pub orders: Vec<nodes::LayoutPlanRow>,
    /// The policy's inputs and decisions, if it was asked and anything is committed.
    pub record: Option<Arc<RoundRecord>>,
    /// What to do after the commit.
    pub effects: Vec<RoundEffect>,
    /// Results of commands, by token; `None` where only the store knows.
    pub results: Vec<CommandResults>,
    /// Administrative overrides that are set or cleared.
    pub words: Vec<said::OverrideChange>,
    /// Entries of the operator log.
    pub events: Vec<said::OperatorEvent>,
    /// Answers to administrators' commands, by token.
    pub operated: Vec<(u64, Result<OperatorOutcome, OperatorRefusal>)>,
    /// Whether the shape that submits are measured against changed.
    pub shape_changed: bool,
    /// Set if an agent holds what the store never gave out: the database was rolled back (rule
    /// F14).
    pub rewound: Option<DatabaseRollback>,
}

/// What is carried out after a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundEffect {
    /// Send a frame to a node. It is lost if the node is not connected; later rounds repeat it.
    Send {
        /// The node.
        node: NodeId,
        /// The frame.
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
        /// The node.
        node: NodeId,
        /// The number of the connection.
        session: u64,
    },
    /// A job's state changed.
    Moved(JobStateChange),
}

impl Round {
    /// Returns whether there is nothing to commit. A record alone does not count: if nothing else
    /// is written, only time has passed.
    pub fn is_empty(&self) -> bool {
        self.attaches.is_empty()
            && self.raises.is_empty()
            && self.reports.is_empty()
            && self.closed.is_empty()
            && self.ready.is_empty()
            && self.started.is_empty()
            && self.stopping.is_empty()
            && self.reshared.is_empty()
            && self.amended.is_empty()
            && self.ended.is_empty()
            && self.usages.is_empty()
            && self.commands.is_empty()
            && self.reservations.is_empty()
            && self.moving.is_empty()
            && self.waits.is_empty()
            && self.orders.is_empty()
            && self.words.is_empty()
            && self.events.is_empty()
    }
}
