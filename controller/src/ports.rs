//! How HTTP handlers reach what runs behind them, without knowing what it is.

pub mod operator;

use std::sync::Arc;

use tessera_model::share::SmPercent;
use tessera_model::spec::{JobSpec, Priority};
use tessera_model::{AttemptId, Bytes, JobId, Millis, NodeId};
use tessera_placement::{Explanation, Prediction};
use tessera_wire::frames::LogReply;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::core::company::Crowded;
use crate::core::counterfactual::{Alternative, ExpectedStart};
use crate::core::foresight::taught::Taught;

/// A submit that has passed every check.
#[derive(Debug)]
pub struct NewSubmission {
    /// What to run.
    pub spec: Arc<JobSpec>,
    /// How many tasks: 1 for a single job.
    pub tasks: u32,
    /// Index of the first task; `None` for a single job.
    pub array_first: Option<u32>,
    /// Whether it waits for a release.
    pub hold: bool,
    /// The client's key and the SHA-256 of its request, if it gave one.
    pub idempotency: Option<Idempotency>,
    /// W3C trace context of the request.
    pub traceparent: Option<String>,
}

/// What makes a repeated submit harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The client's key.
    pub key: String,
    /// SHA-256 of the request's body.
    pub body_hash: [u8; 32],
}

/// A submit that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Number of the first (or only) job.
    pub job: JobId,
    /// How many tasks.
    pub tasks: u32,
    /// Whether it was committed by an earlier request with the same key.
    pub replayed: bool,
}

/// Why a submit or a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The key was used before for another request.
    #[error("the idempotency key was used before for a different request")]
    KeyReused,
    /// The database doesn't answer, or another controller leads: try again later.
    #[error("{reason}")]
    Unavailable {
        /// What is missing, for people.
        reason: String,
    },
    /// More requests are waiting than can be held: try again later.
    #[error("too many requests are waiting")]
    Overloaded,
}

/// What a user tells a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobCommand {
    /// End.
    Cancel,
    /// Wait.
    Hold,
    /// Go on.
    Release,
    /// Take another part of its slice's multiprocessors.
    Reshare(SmPercent),
    /// Have another rank, or another time limit.
    Amend(Terms),
}

/// What of a job its user may change at any time; what is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its rank; one that runs has it when it waits again.
    pub priority: Option<Priority>,
    /// Longest run time of an attempt.
    pub limit: Option<Limit>,
}

/// A time limit that replaces another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// There is none any more.
    Unlimited,
    /// From the attempt's start.
    Of(Millis),
}

impl Limit {
    /// Returns the limit as specifications have it.
    pub const fn time(self) -> Option<Millis> {
        match self {
            Self::Unlimited => None,
            Self::Of(time) => Some(time),
        }
    }
}

impl Terms {
    /// Lays the terms over what a job's specification says.
    pub const fn over(self, spec: &mut JobSpec) {
        if let Some(priority) = self.priority {
            spec.priority = priority;
        }
        if let Some(limit) = self.limit {
            spec.time_limit = limit.time();
        }
    }

    /// Says what changes, for people.
    pub fn words(self) -> String {
        let priority =
            self.priority.map(|priority| format!("its priority becomes {}", priority.get()));
        let limit = self.limit.map(|limit| match limit {
            Limit::Unlimited => "it has no time limit any more".to_owned(),
            Limit::Of(time) => format!("its time limit becomes {} s", time.get() / 1_000),
        });
        let both: Vec<String> = [priority, limit].into_iter().flatten().collect();
        format!("{}, by its user", both.join(", "))
    }
}

/// What came of a command to one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// It was done, and is committed.
    Done,
    /// The job is in a state that doesn't take it.
    Refused {
        /// That state's word.
        state: String,
    },
    /// It runs, and does not say how it puts its work aside.
    NoCheckpoint,
    /// There is no such job.
    NotFound,
}

/// What the placer knows of a job that waits, beyond what the store keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingView {
    /// How many jobs stand before it.
    pub jobs_ahead: u64,
    /// The reason, as a stable word.
    pub reason: &'static str,
    /// Why; computed for this job as if it were its turn.
    pub why: Explanation,
    /// How long it is expected to take on the tightest slice that suits it.
    pub prediction: Option<Prediction>,
    /// What it is foretold to need of memory, if it names none itself.
    pub memory: Option<tessera_predict::memory::Floor>,
    /// What would start it now.
    pub alternatives: Vec<Alternative>,
    /// When it is expected to start.
    pub expected_start: Option<ExpectedStart>,
}

/// What an ask is measured against at submit.
#[derive(Clone, Debug, Default)]
pub struct ClusterShape {
    /// The cluster as the policy sees it; instances' states may be old, geometry is not.
    pub view: tessera_placement::ClusterView,
    /// Whether any agent has ever reported a GPU: before that nothing can be called impossible.
    pub known: bool,
    /// The largest slice of any node.
    pub largest: Option<Bytes>,
}

/// What predictions come from, and whether it is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// The fingerprint of the model of how slices compare, and whether it is asked.
    pub slices: Option<(u64, bool)>,
    /// The fingerprint of the model of how jobs do beside others, and whether it is asked.
    pub company: Option<(u64, bool)>,
    /// How many tasks get cautious memory, since their runs stopped to keep to what was foretold.
    pub doubted_tasks: usize,
}

/// What came of an operator's order.
pub type OperatorAnswer = Result<operator::OperatorDone, operator::OperatorRefused>;

/// Questions and commands for the placer.
#[derive(Debug)]
pub enum ToPlacer {
    /// Carry out a command on each job.
    Command {
        /// What.
        command: JobCommand,
        /// On which jobs.
        jobs: Vec<JobId>,
        /// One result a job, in order, after the commit.
        reply: oneshot::Sender<Result<Vec<CommandResult>, PortError>>,
    },
    /// Tell why a job waits. `None`: it doesn't wait.
    Explain {
        /// Which job.
        job: JobId,
        /// The answer.
        reply: oneshot::Sender<Option<WaitingView>>,
    },
    /// Believe a new model of how slices compare.
    Teach {
        /// The model.
        taught: Arc<Taught>,
        /// Which of its newest predictions came true, the oldest first: a controller before this one
        /// may have asked it.
        came: Vec<bool>,
    },
    /// Believe a new model of how jobs do beside others under MPS.
    TeachCompany {
        /// The model.
        model: Arc<Crowded>,
        /// Which of its newest predictions came true, the oldest first.
        came: Vec<bool>,
    },
    /// Know how busy tasks are, by key, in thousandths of their time alone.
    Busy {
        /// The news.
        tasks: Vec<(String, u16)>,
    },
    /// Tell what is learned, and whether it is believed.
    Learned {
        /// The answer.
        reply: oneshot::Sender<Learned>,
    },
    /// Tell what accounts have had, hold, and may.
    Usage {
        /// The answer.
        reply: oneshot::Sender<tessera_api::types::usage::UsageReport>,
    },
    /// Describe the nodes with their GPUs.
    Nodes {
        /// The answer, by name.
        reply: oneshot::Sender<Vec<tessera_api::types::Node>>,
    },
    /// Read an attempt's output from its node.
    OpenLog {
        /// On which node.
        node: NodeId,
        /// Whose output.
        request: tessera_wire::frames::LogRequest,
        /// The pieces; `None` if the node is not connected.
        reply: oneshot::Sender<Option<mpsc::Receiver<LogReply>>>,
    },
    /// Carry out an operator's order.
    Operate {
        /// What.
        order: operator::OperatorOrder,
        /// What came of it, after the commit.
        reply: oneshot::Sender<Result<OperatorAnswer, PortError>>,
    },
    /// Tell what a layout would take; nothing is changed.
    DraftLayout {
        /// On which GPU.
        gpu: tessera_model::GpuId,
        /// Which layout.
        wanted: tessera_model::mig::Wanted,
        /// The answer.
        reply: oneshot::Sender<Result<operator::LayoutDraft, operator::OperatorRefused>>,
    },
    /// Tell what can still be made of a GPU.
    Outlook {
        /// Of which GPU.
        gpu: tessera_model::GpuId,
        /// When jobs are expected to end, milliseconds since 1970.
        ends: std::collections::BTreeMap<JobId, tessera_model::Millis>,
        /// The answer.
        reply: oneshot::Sender<Result<operator::GpuOutlook, operator::OperatorRefused>>,
    },
    /// Let a machine look at itself.
    Doctor {
        /// Which.
        node: tessera_model::NodeName,
        /// What it found; `None` if it is not connected, or goes away meanwhile.
        reply: oneshot::Sender<Option<Vec<tessera_api::types::Finding>>>,
    },
    /// Switch a GPU's MIG mode on an administrator's explicit word.
    SetMigMode {
        /// Which GPU.
        gpu: tessera_model::GpuId,
        /// On or off.
        on: bool,
        /// What is in the way, for people.
        reply: oneshot::Sender<Result<(), String>>,
    },
}

/// Everything that HTTP handlers hold.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Reads of the store.
    pub reads: crate::store::Reads,
    /// Submits, to be committed together.
    pub submits: mpsc::Sender<SubmitCall>,
    /// The placer.
    pub placer: mpsc::Sender<ToPlacer>,
    /// What asks are measured against.
    pub shape: watch::Receiver<Arc<ClusterShape>>,
    /// Jobs that moved; a lagging receiver has to look itself.
    pub moved: broadcast::Sender<JobMoved>,
    /// Whether this controller leads, and what is in the way if it doesn't serve.
    pub readiness: watch::Receiver<Readiness>,
    /// What GPUs draw now.
    pub figures: crate::figures::Board,
    /// What `/v1/info` says.
    pub about: Arc<About>,
}

/// A submit on its way to the store.
#[derive(Debug)]
pub struct SubmitCall {
    /// What.
    pub submission: NewSubmission,
    /// The answer, after the commit.
    pub reply: oneshot::Sender<Result<Accepted, PortError>>,
}

/// A job changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobMoved {
    /// Which job.
    pub job: JobId,
    /// Its live attempt, if it has one.
    pub attempt: Option<AttemptId>,
    /// Where it stands now.
    pub state: tessera_model::life::JobState,
}

/// Whether requests can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready {
        /// The leader's epoch.
        epoch: u64,
    },
    /// Not yet, or not now.
    NotReady {
        /// Why, for people.
        reason: String,
    },
}

/// What this controller is.
#[derive(Clone, Debug)]
pub struct About {
    /// Its version.
    pub version: &'static str,
    /// Its id.
    pub controller: tessera_model::ControllerId,
    /// The placement policy's name.
    pub policy: &'static str,
    /// What users may hold at once.
    pub accounts: crate::core::accounts::Accounts,
    /// The token that requests must carry, if one is required.
    pub token: Option<String>,
}
