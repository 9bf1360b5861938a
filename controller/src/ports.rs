//! How HTTP handlers reach what runs behind them, without knowing what it is.

use std::sync::Arc;

use tessera_frames::cluster::LogReply;
use tessera_model::spec::JobSpec;
use tessera_model::{Bytes, JobId, NodeId};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use tessera_control::colocation::ColocationModel;
pub use tessera_control::commands::{
    CommandResult, JobCommand, JobStateChange, ModelStatus, WaitingExplanation, operator,
};
use tessera_control::predictions::trained::RunTimeModel;

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

/// What came of an operator's order.
pub type OperatorAnswer = Result<operator::OperatorOutcome, operator::OperatorRefusal>;

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
        reply: oneshot::Sender<Option<WaitingExplanation>>,
    },
    /// Believe a new model of how slices compare.
    Teach {
        /// The model.
        taught: Arc<RunTimeModel>,
        /// Which of its newest predictions came true, the oldest first: a controller before this one
        /// may have asked it.
        came: Vec<bool>,
    },
    /// Believe a new model of how jobs do beside others under MPS.
    TeachCompany {
        /// The model.
        model: Arc<ColocationModel>,
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
        reply: oneshot::Sender<ModelStatus>,
    },
    /// Tell what accounts have had, hold, and may.
    Usage {
        /// The answer.
        reply: oneshot::Sender<tessera_api_types::UsageReport>,
    },
    /// Describe the nodes with their GPUs.
    Nodes {
        /// The answer, by name.
        reply: oneshot::Sender<Vec<tessera_api_types::NodeDetails>>,
    },
    /// Read an attempt's output from its node.
    OpenLog {
        /// On which node.
        node: NodeId,
        /// Whose output.
        request: tessera_frames::cluster::LogRequest,
        /// The pieces; `None` if the node is not connected.
        reply: oneshot::Sender<Option<mpsc::Receiver<LogReply>>>,
    },
    /// Carry out an operator's order.
    Operate {
        /// What.
        order: operator::OperatorCommand,
        /// What came of it, after the commit.
        reply: oneshot::Sender<Result<OperatorAnswer, PortError>>,
    },
    /// Tell what a layout would take; nothing is changed.
    DraftLayout {
        /// On which GPU.
        gpu: tessera_model::GpuId,
        /// Which layout.
        wanted: tessera_model::mig::DesiredLayout,
        /// The answer.
        reply: oneshot::Sender<Result<operator::PlanPreview, operator::OperatorRefusal>>,
    },
    /// Tell what can still be made of a GPU.
    Outlook {
        /// Of which GPU.
        gpu: tessera_model::GpuId,
        /// When jobs are expected to end, milliseconds since 1970.
        ends: std::collections::BTreeMap<JobId, tessera_model::Millis>,
        /// The answer.
        reply: oneshot::Sender<Result<operator::GpuAvailability, operator::OperatorRefusal>>,
    },
    /// Let a machine look at itself.
    Doctor {
        /// Which.
        node: tessera_model::NodeName,
        /// What it found; `None` if it is not connected, or goes away meanwhile.
        reply: oneshot::Sender<Option<Vec<tessera_api_types::DoctorFinding>>>,
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
    pub moved: broadcast::Sender<JobStateChange>,
    /// Whether this controller leads, and what is in the way if it doesn't serve.
    pub readiness: watch::Receiver<Readiness>,
    /// What GPUs draw now.
    pub figures: crate::figures::FigureCache,
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
    pub accounts: tessera_control::accounts::Accounts,
    /// The token that requests must carry, if one is required.
    pub token: Option<String>,
}
