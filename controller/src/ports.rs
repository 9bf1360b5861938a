//! How HTTP handlers reach what runs behind them, without knowing what it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_frames::cluster::{FromSession, LogReply, LogRequest, SessionRequest, ToSession};
use tessera_model::spec::JobSpec;
use tessera_model::{AttemptId, Bytes, GpuId, JobId, Millis, NodeId, NodeName};
use tessera_placement::TaskLoad;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use tessera_control::answers::{
    DeadlineForecast, MemoryOverview, ModelStatus, WaitReasonRun, WaitingExplanation,
};
use tessera_control::callers::CallerJob;
use tessera_control::colocation::ColocationModel;
use tessera_control::commands::{CommandResult, JobCommand, JobStateChange, operator};
use tessera_control::predictions::trained::RunTimeModel;

use crate::live::{LiveSettings, PlacementSettings};
use crate::oidc::Issuer;
use crate::requests::{AcceptedSubmission, NewSubmission, RequestError};

/// State changes of jobs that are announced together: an array of 10,000 tasks is one announcement.
pub type JobChanges = Arc<[JobStateChange]>;

/// What a submit is compared with, to refuse what can never run.
#[derive(Clone, Debug, Default)]
pub struct ClusterShape {
    /// The cluster as the policy sees it; instances' states may be old, geometry is not.
    pub view: tessera_placement::ClusterView,
    /// Whether any agent has ever reported a GPU: before that nothing can be called impossible.
    pub known: bool,
    /// The largest slice of any node.
    pub largest: Option<Bytes>,
}

/// The result of an operator's command.
pub type OperatorAnswer = Result<operator::OperatorOutcome, operator::OperatorRefusal>;

/// Queries and commands for the placer.
#[derive(Debug)]
pub enum ToPlacer {
    /// Carry out a command on each job.
    Command {
        /// What to do with each of the jobs.
        command: JobCommand,
        /// On which jobs.
        jobs: Vec<JobId>,
        /// One result a job, in order, after the commit.
        reply: oneshot::Sender<Result<Vec<CommandResult>, RequestError>>,
    },
    /// Explain why a job waits. `None`: it doesn't wait.
    Explain {
        /// The job that waits.
        job: JobId,
        /// The answer.
        reply: oneshot::Sender<Option<WaitingExplanation>>,
    },
    /// Describe the memory of a job's running attempt, and the sizes of slices around it.
    DescribeMemory {
        /// The job whose attempt runs.
        job: JobId,
        /// The GPU of its newest attempt.
        gpu: Option<GpuId>,
        /// The answer.
        reply: oneshot::Sender<MemoryOverview>,
    },
    /// Forecast the deadline of a job that was not accepted yet. `None`: it has none.
    ForecastDeadline {
        /// The job.
        spec: Arc<JobSpec>,
        /// The answer.
        reply: oneshot::Sender<Option<DeadlineForecast>>,
    },
    /// Use a new model of run times on slices.
    UseRunTimeModel {
        /// The model that was trained.
        model: Arc<RunTimeModel>,
        /// Which of its newest predictions were accurate, the oldest first: an earlier controller may
        /// have used it.
        accurate: Vec<bool>,
    },
    /// Use a new model of co-located jobs under MPS.
    UseColocationModel {
        /// The model that was trained.
        model: Arc<ColocationModel>,
        /// Which of its newest predictions were accurate, the oldest first.
        accurate: Vec<bool>,
    },
    /// Record what was measured about tasks' time on the device, by key.
    RecordTaskLoad {
        /// The tasks whose load changed.
        tasks: Vec<(String, TaskLoad)>,
    },
    /// Report the models, and whether they are trusted.
    DescribeModels {
        /// The answer.
        reply: oneshot::Sender<ModelStatus>,
    },
    /// Report what accounts used, hold, and may use.
    ReportUsage {
        /// The answer.
        reply: oneshot::Sender<tessera_api_types::UsageReport>,
    },
    /// Report the power cap, and the expected power of the GPUs.
    ReportPower {
        /// The answer.
        reply: oneshot::Sender<tessera_api_types::PowerReport>,
    },
    /// List why jobs wait. `None`: this controller does not know the queue now.
    ListWaitReasons {
        /// The answer, by number.
        reply: oneshot::Sender<Option<Vec<WaitReasonRun>>>,
    },
    /// Describe the nodes with their GPUs.
    DescribeNodes {
        /// The answer, by name.
        reply: oneshot::Sender<Vec<tessera_api_types::NodeDetails>>,
    },
    /// Read an attempt's output from its node.
    OpenLog {
        /// On which node.
        node: NodeId,
        /// Whose output.
        request: LogRequest,
        /// The pieces; `None` if the node is not connected.
        reply: oneshot::Sender<Option<mpsc::Receiver<LogReply>>>,
    },
    /// Join an interactive session on a node.
    OpenSession {
        /// On which node.
        node: NodeId,
        /// The session.
        request: SessionRequest,
        /// Both directions; `None` if the node is not connected.
        reply: oneshot::Sender<Option<SessionLink>>,
    },
    /// Find the job of a process that calls by way of its node.
    FindCaller {
        /// The node by way of which the process calls.
        node: NodeId,
        /// The attempt that the node names.
        attempt: AttemptId,
        /// The job; `None` if the attempt is not alive there.
        reply: oneshot::Sender<Option<CallerJob>>,
    },
    /// Carry out an operator's command.
    Operate {
        /// What the operator requests.
        command: operator::OperatorCommand,
        /// Its result, after the commit.
        reply: oneshot::Sender<Result<OperatorAnswer, RequestError>>,
    },
    /// Preview the plan for a layout; nothing is changed.
    PreviewLayout {
        /// On which GPU.
        gpu: GpuId,
        /// The layout.
        desired: tessera_model::mig::DesiredLayout,
        /// The answer.
        reply: oneshot::Sender<Result<operator::PlanPreview, operator::OperatorRefusal>>,
    },
    /// List what can still be placed or made on a GPU.
    ListAvailability {
        /// Of which GPU.
        gpu: GpuId,
        /// When jobs are expected to end, milliseconds since 1970.
        ends: BTreeMap<JobId, Millis>,
        /// The answer.
        reply: oneshot::Sender<Result<operator::GpuAvailability, operator::OperatorRefusal>>,
    },
    /// Decide under other settings from now on.
    UseSettings {
        /// The settings that were read again.
        settings: PlacementSettings,
        /// The accounts in these settings.
        accounts: tessera_control::accounts::Accounts,
    },
    /// Let a node run its checks.
    ExamineNode {
        /// Name of the node.
        node: NodeName,
        /// What it found; `None` if it is not connected, or disconnects before it answers.
        reply: oneshot::Sender<Option<Vec<tessera_api_types::DoctorFinding>>>,
    },
}

/// Both directions of an interactive session.
#[derive(Debug)]
pub struct SessionLink {
    /// To the session. Dropping it leaves the session, which waits for its client then.
    pub to: mpsc::Sender<ToSession>,
    /// From the session. Its end without a last frame means that the node's connection broke.
    pub from: mpsc::Receiver<FromSession>,
}

/// Everything that HTTP handlers hold.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Reads of the store.
    pub reads: crate::store::Reads,
    /// Submits, to be committed together.
    pub submits: mpsc::Sender<SubmitCall>,
    /// Where questions and commands for the placer go.
    pub placer: mpsc::Sender<ToPlacer>,
    /// What submits are compared with.
    pub shape: watch::Receiver<Arc<ClusterShape>>,
    /// State changes of jobs; a lagging receiver reads the store instead.
    pub job_changes: broadcast::Sender<JobChanges>,
    /// Whether this controller leads, and why it doesn't serve if it doesn't.
    pub readiness: watch::Receiver<Readiness>,
    /// Reports of steps.
    pub steps: crate::step_reports::StepReports,
    /// Personal tokens that are valid.
    pub tokens: crate::tokens::ValidTokens,
    /// The issuer of other tokens that are valid, if one is configured.
    pub issuer: Option<Issuer>,
    /// Accounts of this machine.
    pub directory: Arc<crate::directory::Directory>,
    /// What callers did.
    pub audit: crate::audit::AuditLog,
    /// Nodes' certificates.
    pub certificates: crate::node_certificates::NodeCertificates,
    /// What a reload of the settings changes.
    pub live: watch::Receiver<Arc<LiveSettings>>,
    /// The newest measurements of GPUs.
    pub figures: crate::figures::FigureCache,
    /// What `/v1/info` returns.
    pub about: Arc<About>,
}

impl Ports {
    /// Returns the settings that a reload changes, as they are now.
    pub(crate) fn live(&self) -> Arc<LiveSettings> {
        Arc::clone(&self.live.borrow())
    }
}

/// A submit on its way to the store.
#[derive(Debug)]
pub struct SubmitCall {
    /// The parsed submission.
    pub submission: NewSubmission,
    /// The answer, after the commit.
    pub reply: oneshot::Sender<Result<AcceptedSubmission, RequestError>>,
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
    /// Version of this controller.
    pub version: &'static str,
    /// Its id.
    pub controller: tessera_model::ControllerId,
    /// The placement policy's name.
    pub policy: &'static str,
    /// Whether mail about jobs leaves the cluster.
    pub sends_mail: bool,
}
