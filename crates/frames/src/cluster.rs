//! Every message between a controller and an agent.
//!
//! Rules for changes: variants and fields are only ever appended, and the protocol's version rises with
//! each change. No element type of a list may be empty, or a few bytes could stand for billions of
//! elements. Times on a clock are named after it; `boot` clocks (`CLOCK_BOOTTIME`) of different machines
//! are never compared.

mod attempt;
mod doctor;
mod gpu;
mod health;
mod kernel_profiles;
mod launch;
mod logs;
mod plan;
mod session;
mod sessions;
mod telemetry;

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, Millis, PlanId};

pub use attempt::{
    AttemptReport, AttemptStatus, ExitRecord, HOST_MEMORY_DETAIL, OomEvidence, REFUSED_DETAIL,
    StopCause,
};
pub use doctor::{FINDINGS_MAX, Finding, FindingLevel};
pub use gpu::{
    ComputeInstanceReport, GpuHealth, GpuReport, InstanceReport, InstanceTrouble, MigReport,
};
pub use health::{FAULT_ATTEMPTS_MAX, FAULTS_MAX, FaultAction, FaultCause, GpuFault, Quarantine};
pub use kernel_profiles::{
    KernelFigures, KernelTally, PIECE_BYTES_MAX, PIECES_BYTES_MAX, PieceAssembly, ProfilePiece,
    TALLIES_MAX, pieces,
};
pub use launch::{ArrayPosition, GangDevice, GangPosition, KernelQueueSpec, LaunchOrder};
pub use logs::{LOG_CHUNK_BYTES_MAX, LogReply, LogRequest, LogStream};
pub use plan::{PlanEnd, PlanOrder};
pub use session::{Hello, Welcome};
pub use sessions::{
    FromSession, SESSION_CHUNK_BYTES_MAX, SESSION_START_BYTES_MAX, SESSION_WINDOW_BYTES,
    SessionName, SessionProgram, SessionRequest, SessionSignal, SessionStart, StreamRequest,
    ToSession,
};
pub use telemetry::{
    ATTEMPT_FIGURES_MAX, AttemptFigures, AttemptMemory, AttemptNeeds, AttemptUsage, GpuFigures,
    SLICES_MAX, SliceFigures,
};

/// The version that this build speaks. A peer of another version is refused with both numbers.
pub const PROTOCOL_VERSION: u16 = 15;

/// From an agent to its controller, on the control stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToController {
    /// Always first.
    Hello(Hello),
    /// One GPU as it stands; sent for each after the welcome, and whenever one changes.
    Gpu(GpuReport),
    /// How an attempt stands; ends are repeated until [`ToAgent::EndAck`].
    Attempt(AttemptReport),
    /// Everything that stood at the welcome has been reported: attempts missing from the
    /// reports are unknown here.
    InventoryDone,
    /// Requests another lease.
    Renew {
        /// When it was sent, on the node's boot clock.
        sent: Millis,
        /// The generation that the node has.
        generation: u64,
    },
    /// The attempt can never start on this node any more, and nothing of it runs.
    Tombstoned {
        /// Its id.
        attempt: AttemptId,
    },
    /// A layout plan ended; a [`ToController::Gpu`] with the result was sent before it.
    PlanEnded {
        /// The plan's id.
        plan: PlanId,
        /// The GPU that it belongs to.
        gpu: GpuId,
        /// How it ended.
        end: PlanEnd,
    },
    /// An explicit switch of MIG mode ended.
    MigModeEnded {
        /// The GPU that it belongs to.
        gpu: GpuId,
        /// `None` on success; else what is in the way, for people.
        problem: Option<String>,
    },
    /// Answers [`ToAgent::Probe`]: this process is alive.
    Present {
        /// The probe's.
        token: u64,
    },
    /// What an attempt used; repeated until [`ToAgent::UsageAck`].
    Usage(AttemptUsage),
    /// What a GPU draws now.
    Figures(Box<GpuFigures>),
    /// The results of the checks that [`ToAgent::Examine`] requested.
    Examined {
        /// The question.
        token: u64,
        /// At most [`FINDINGS_MAX`].
        findings: Vec<Finding>,
    },
    /// A piece of what was learned of a task's kernels, as JSON; repeated until
    /// [`ToAgent::KernelReportAck`].
    KernelReport {
        /// Higher than that of every report of this node before.
        number: u64,
        /// A part of the profile of a task's kernels.
        piece: ProfilePiece,
    },
    /// Requests what is known about a task's kernels; answered by [`ToAgent::KernelProfile`].
    KernelWanted {
        /// The task's key.
        task: String,
    },
    /// What attempts did in their slices' queues so far; at most [`TALLIES_MAX`].
    KernelTallies(Vec<KernelTally>),
    /// The memory of running attempts since the last such report; a lost report is not repeated. At most
    /// [`ATTEMPT_FIGURES_MAX`].
    Memory(Vec<AttemptMemory>),
    /// What a running attempt needs at least, as its calls of the driver show it; whenever that changes, and before the
    /// attempt's end.
    Needs(AttemptNeeds),
}

/// From a controller to an agent, on the control stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Answers the hello: the node belongs to the cluster.
    Welcome(Welcome),
    /// Answers the hello, or ends a session: the agent must not go on as it is.
    Refused {
        /// The reason, as text for people.
        reason: String,
        /// Whether trying again later makes sense.
        retry: bool,
    },
    /// Another lease is granted.
    RenewOk {
        /// [`ToController::Renew`]'s `sent`, echoed: the node's deadline counts from it.
        sent: Millis,
        /// The generation that it is granted to.
        generation: u64,
    },
    /// Start an attempt. Repeated until it is reported; a journalled one is only reported.
    Launch(Box<LaunchOrder>),
    /// End an attempt: `SIGTERM`, grace, `SIGKILL`. Idempotent.
    Stop {
        /// The leader's epoch.
        epoch: u64,
        /// Its id.
        attempt: AttemptId,
        /// How its end is to be recorded: cancelled or preempted.
        cause: StopCause,
    },
    /// Make sure that the attempt never starts here, killing it if it did; answered by
    /// [`ToController::Tombstoned`] (rule F8).
    Revoke {
        /// The leader's epoch.
        epoch: u64,
        /// Its id.
        attempt: AttemptId,
    },
    /// The attempt's end is committed: the node may forget it.
    EndAck {
        /// Its id.
        attempt: AttemptId,
    },
    /// Change a GPU's layout.
    ApplyPlan(PlanOrder),
    /// Switch a GPU's MIG mode: only ever sent at an administrator's explicit request.
    SetMigMode {
        /// The leader's epoch.
        epoch: u64,
        /// The GPU's id.
        gpu: GpuId,
        /// On or off.
        on: bool,
    },
    /// Treat a GPU as healthy again, at an operator's request. The node forgets its faults, its
    /// quarantine and its stuck instances, and examines it again. If `slot` names a foreign instance,
    /// the node takes it over. A [`ToController::Gpu`] follows if anything is different then.
    Clear {
        /// The leader's epoch.
        epoch: u64,
        /// The GPU's id.
        gpu: GpuId,
        /// One instance only; everything if left out.
        slot: Option<Slot>,
    },
    /// Requests a sign of life of this process: another process claims to be the node (rule A8).
    Probe {
        /// Echoed in the answer.
        token: u64,
    },
    /// What an attempt used is committed: the node may forget it.
    UsageAck {
        /// Its id.
        attempt: AttemptId,
    },
    /// Requests the checks of the machine. They change nothing, so any leader may request them.
    Examine {
        /// Echoed in the answer.
        token: u64,
    },
    /// A piece of what is known about a task's kernels, as JSON; empty, if nothing is.
    KernelProfile(ProfilePiece),
    /// What was learned is kept: the node may forget the report.
    KernelReportAck {
        /// Its id.
        number: u64,
    },
    /// A running attempt has another time limit from now on, counted from its start. Idempotent; sent
    /// again in each session, since nothing answers it.
    SetTimeLimit {
        /// The leader's epoch.
        epoch: u64,
        /// Its id.
        attempt: AttemptId,
        /// Longest run time; `None` for no limit.
        limit: Option<Millis>,
    },
}
