//! Every message between a controller and an agent.
//!
//! Rules for changes: variants and fields are only ever appended, the protocol's version rises
//! with each change, no element type of a list may be empty (a list of nothings could be
//! billions long in a few bytes). Times on a clock are named after it; `boot` clocks
//! (`CLOCK_BOOTTIME`) of different machines are never compared.

mod doctor;
mod health;
mod kernels;
mod telemetry;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::lease::LeaseTerms;
use tessera_model::life::{Exit, Outcome};
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{Geometry, Slot, Step};
use tessera_model::share::{CheckpointSignal, MpsShare};
use tessera_model::spec::{Class, OutputPaths, Priority, Program};
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, GpuId, JobId, Millis, NodeName, PlanId, SliceId,
};

pub use doctor::{FINDINGS_MAX, Finding, FindingLevel};
pub use health::{FAULT_ATTEMPTS_MAX, FAULTS_MAX, FaultAction, FaultCause, GpuFault, Quarantine};

pub use kernels::{
    Assembly, KernelFigures, KernelTally, PIECE_BYTES_MAX, PIECES_BYTES_MAX, Piece, TALLIES_MAX,
    pieces,
};
pub use telemetry::{
    ATTEMPT_FIGURES_MAX, AttemptFigures, GpuFigures, SLICES_MAX, SliceFigures, Usage,
};

/// The version that this build speaks. A peer of another version is refused with both numbers.
pub const PROTOCOL_VERSION: u16 = 5;

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"tessera-agent/1";

/// Most bytes of output in one [`LogReply::Chunk`]: small enough to leave room in a frame.
pub const LOG_CHUNK_BYTES_MAX: usize = 32 * 1024;

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
    /// Asks to go on for another lease.
    Renew {
        /// When it was sent, on the node's boot clock.
        sent: Millis,
        /// The generation that the node believes in.
        generation: u64,
    },
    /// The attempt can never start on this node any more, and nothing of it runs.
    Tombstoned {
        /// Which.
        attempt: AttemptId,
    },
    /// A layout plan came to its end; a [`ToController::Gpu`] with the result went before it.
    PlanEnded {
        /// Which plan.
        plan: PlanId,
        /// On which GPU.
        gpu: GpuId,
        /// How.
        end: PlanEnd,
    },
    /// An explicit switch of MIG mode came to its end.
    MigModeEnded {
        /// On which GPU.
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
    Usage(Usage),
    /// What a GPU draws now.
    Figures(Box<GpuFigures>),
    /// What the machine found when it looked at itself, as [`ToAgent::Examine`] asked.
    Examined {
        /// Which question.
        token: u64,
        /// At most [`FINDINGS_MAX`].
        findings: Vec<Finding>,
    },
    /// A piece of what was learned of a task's kernels, as JSON; repeated until
    /// [`ToAgent::KernelReportAck`].
    KernelReport {
        /// Higher than that of every report of this node before.
        number: u64,
        /// The piece.
        piece: Piece,
    },
    /// Asks what is known of a task's kernels; answered by [`ToAgent::KernelProfile`].
    KernelWanted {
        /// The task's key.
        task: String,
    },
    /// What attempts did in their slices' queues so far; at most [`TALLIES_MAX`].
    KernelTallies(Vec<KernelTally>),
}

/// Who is speaking. The node's id and name come from its certificate, never from here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the agent's build.
    pub protocol: u16,
    /// The agent's version, for people.
    pub software: String,
    /// This boot of the machine.
    pub boot: BootId,
    /// A number that this agent process drew at its start: tells two agents with one identity
    /// apart (rule A8).
    pub process: u64,
    /// The generation that the node holds (0 before its first welcome).
    pub generation: u64,
    /// The highest leader epoch that the node ever obeyed (rules F14, F15).
    pub highest_epoch: u64,
    /// The controller that the node belongs to, once it has been welcomed.
    pub controller: Option<ControllerId>,
    /// Processor cores of the machine.
    pub cores: u32,
    /// Memory of the machine.
    pub memory: Bytes,
    /// Whether the node has NVIDIA's MPS control program, so that slices can be shared.
    pub mps: bool,
    /// Whether its agent has the kernel plane's shim, so that jobs can share slices kernel by kernel.
    pub kernel: bool,
    /// Where other nodes reach this one: a name or an address.
    pub address: String,
}

/// One GPU as its driver reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Its UUID.
    pub gpu: GpuId,
    /// Its index on the node.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Memory of the whole card.
    pub memory: Bytes,
    /// Streaming multiprocessors of the whole card, if known.
    pub sms: Option<u16>,
    /// How it can be partitioned.
    pub mig: MigReport,
    /// The instances that stand, in the order of their first memory slices.
    pub instances: Vec<InstanceReport>,
    /// The newest layout plan that this GPU obeyed; older ones are refused.
    pub layout_gen: u64,
    /// Whether work may go there.
    pub health: GpuHealth,
    /// What went wrong on it lately, oldest first; at most [`FAULTS_MAX`].
    #[serde(default)]
    pub faults: Vec<GpuFault>,
    /// Set while its node keeps new work away from it, although it answers.
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    /// Legal placements that the driver refused lately: not to be tried again for now.
    #[serde(default)]
    pub refused: Vec<Slot>,
}

/// Whether and how a GPU can be partitioned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MigReport {
    /// The board has no MIG.
    Unsupported,
    /// MIG mode is off: the whole GPU is one slice.
    Off,
    /// MIG mode is on.
    On {
        /// Profiles and placements, as the driver lists them.
        geometry: Geometry,
    },
}

/// One GPU instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceReport {
    /// Where it stands, and what it is.
    pub slot: Slot,
    /// The MIG device over the whole of it; `None` while it has no compute instance (half made),
    /// when it is cut further, or when its device can't be seen.
    pub slice: Option<SliceId>,
    /// Memory that a job can use.
    pub memory: Bytes,
    /// Streaming multiprocessors.
    pub sms: u16,
    /// What keeps it from being used or destroyed, beyond attempts of ours.
    pub trouble: Option<InstanceTrouble>,
    /// Its compute instances by start, if it is cut further; none if one covers the whole of it.
    #[serde(default)]
    pub parts: Vec<PartReport>,
}

impl InstanceReport {
    /// Returns the compute instances that it is cut into; none if one covers the whole of it.
    pub fn cut(&self) -> Cut {
        let mut cut = Cut::default();
        for part in &self.parts {
            cut.insert(part.slot);
        }
        cut
    }
}

/// One of several compute instances of a GPU instance, whose memory they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReport {
    /// Its compute slices.
    pub slot: ComputeSlot,
    /// The MIG device over it; `None` while it can't be seen.
    pub slice: Option<SliceId>,
    /// Streaming multiprocessors.
    pub sms: u16,
}

/// What is the matter with an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum InstanceTrouble {
    /// Processes that are not ours use it, or it was made by somebody else.
    Foreign {
        /// At most 16 of them; none if nobody uses it now, but it is not ours.
        pids: Vec<u32>,
    },
    /// It could not be destroyed or completed after bounded retries.
    Stuck {
        /// What the driver said, for people.
        reason: String,
    },
}

/// Whether work may go to a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GpuHealth {
    /// It answers.
    Healthy,
    /// Its driver did not answer in time; its running attempts go on.
    Unresponsive,
    /// It is lost or in error.
    Faulty {
        /// What the driver said, for people.
        reason: String,
    },
}

/// How one attempt stands on its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// Which.
    pub attempt: AttemptId,
    /// Of which job.
    pub job: JobId,
    /// How it stands.
    pub status: AttemptStatus,
}

/// How an attempt stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttemptStatus {
    /// Written to the node's journal; its program has not been started yet.
    Journalled,
    /// Its program runs.
    Running {
        /// Process id of the program.
        pid: u32,
        /// When it was started, milliseconds since 1970 on the node's wall clock.
        started_unix: Millis,
    },
    /// It is over; kept on the node's disk until acknowledged.
    Ended(ExitRecord),
}

/// How an attempt ended, as its shepherd wrote it down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// How it ended.
    pub outcome: Outcome,
    /// What the kernel said of the program, if it ever ran and its end was seen.
    pub exit: Option<Exit>,
    /// One sentence for people; empty where the outcome says all.
    pub detail: String,
    /// When the program was started, milliseconds since 1970; zero if never.
    pub started_unix: Millis,
    /// When it ended, milliseconds since 1970.
    pub ended_unix: Millis,
    /// Processor time in user mode.
    pub user_time: Millis,
    /// Processor time in the kernel.
    pub system_time: Millis,
    /// Largest resident set of any one process.
    pub max_rss: Bytes,
}

impl ExitRecord {
    /// Tells whether it was for want of GPU memory that the program ended: then it ended itself. For
    /// want of the host's the kernel kills.
    pub fn ran_out_of_gpu_memory(&self) -> bool {
        self.outcome == Outcome::OutOfMemory && self.exit.is_some_and(|e| e != Exit::Signal(9))
    }
}

/// How a layout plan ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlanEnd {
    /// Every step was done and read back.
    Done,
    /// It stopped; the GPU's report says what stands now.
    Failed {
        /// How many steps were done before.
        steps_done: u32,
        /// What the driver or the agent said, for people.
        reason: String,
    },
    /// Nothing was touched: a newer plan was obeyed before, or the epoch is old.
    Refused {
        /// Why, for people.
        reason: String,
    },
}

/// From a controller to an agent, on the control stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Answers the hello: the node belongs to the cluster.
    Welcome(Welcome),
    /// Answers the hello, or ends a session: the agent must not go on as it is.
    Refused {
        /// Why, for people.
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
        /// Which.
        attempt: AttemptId,
        /// How its end is to be recorded: cancelled or preempted.
        cause: StopCause,
    },
    /// Make sure that the attempt never starts here, killing it if it did; answered by
    /// [`ToController::Tombstoned`] (rule F8).
    Revoke {
        /// The leader's epoch.
        epoch: u64,
        /// Which.
        attempt: AttemptId,
    },
    /// The attempt's end is committed: the node may forget it.
    EndAck {
        /// Which.
        attempt: AttemptId,
    },
    /// Change a GPU's layout.
    ApplyPlan(PlanOrder),
    /// Switch a GPU's MIG mode: only ever sent on an administrator's explicit word.
    SetMigMode {
        /// The leader's epoch.
        epoch: u64,
        /// Which GPU.
        gpu: GpuId,
        /// On or off.
        on: bool,
    },
    /// An operator's word that a GPU is to be taken for sound again: the node forgets its
    /// faults, its quarantine and what is stuck, takes over an instance that it did not make if
    /// `slot` names one, and looks anew. A [`ToController::Gpu`] follows if anything is different then.
    Clear {
        /// The leader's epoch.
        epoch: u64,
        /// Which GPU.
        gpu: GpuId,
        /// One instance only; everything if left out.
        slot: Option<Slot>,
    },
    /// Asks whether this process is still there: another one says that it is the node (rule A8).
    Probe {
        /// Echoed in the answer.
        token: u64,
    },
    /// What an attempt used is committed: the node may forget it.
    UsageAck {
        /// Which.
        attempt: AttemptId,
    },
    /// Asks the machine to look at itself; changes nothing, so that any leader may ask.
    Examine {
        /// Leads the answer back.
        token: u64,
    },
    /// A piece of what is known of a task's kernels, as JSON; empty, if nothing is.
    KernelProfile(Piece),
    /// What was learned is kept: the node may forget the report.
    KernelReportAck {
        /// Which.
        number: u64,
    },
    /// A running attempt has another time limit from now on, counted from its start. Idempotent; told
    /// again in each session, since nothing answers it.
    SetTimeLimit {
        /// The leader's epoch.
        epoch: u64,
        /// Which.
        attempt: AttemptId,
        /// Longest run time; `None` for no limit.
        limit: Option<Millis>,
    },
}

/// The terms of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`] of the controller's build.
    pub protocol: u16,
    /// Which controller.
    pub controller: ControllerId,
    /// The node's name, as its certificate says.
    pub node: NodeName,
    /// The leader's epoch: commands of a lower one are refused from now on (rule F15).
    pub epoch: u64,
    /// The node's generation: if it differs from the one in the hello, every attempt of the old
    /// one is killed before anything else (rule F11).
    pub generation: u64,
    /// How long a renewal lasts.
    pub lease: LeaseTerms,
}

/// Why an attempt is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// Its user said so.
    Cancel,
    /// Its place is wanted for something else.
    Preempt,
    /// It is to run again with another share: it gets its checkpoint signal first.
    Reshare,
    /// It is to go on elsewhere: it gets its checkpoint signal first.
    Move,
}

/// Everything that a node needs to run one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// The leader's epoch (rule F15).
    pub epoch: u64,
    /// The generation of the node that the placement was made for (rule F7).
    pub generation: u64,
    /// Which attempt (rule F13).
    pub attempt: AttemptId,
    /// Of which job.
    pub job: JobId,
    /// The attempt's number, for people: 1 for the first.
    pub number: u32,
    /// The GPU.
    pub gpu: GpuId,
    /// The instance; `None` for a whole GPU with MIG off.
    pub slot: Option<Slot>,
    /// The slice, by the UUID that it must still have (G11).
    pub slice: SliceId,
    /// The array and this task's place in it.
    pub array: Option<ArrayPlace>,
    /// What people call the job.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// What to run.
    pub program: Program,
    /// Where; the attempt's own folder, if not given.
    pub work_dir: Option<String>,
    /// The user's variables.
    pub env: BTreeMap<String, String>,
    /// Where output goes.
    pub output: OutputPaths,
    /// Longest run time.
    pub time_limit: Option<Millis>,
    /// From `SIGTERM` to `SIGKILL`.
    pub grace: Millis,
    /// Why the job runs again, for the program to know; `None` for a first run.
    pub restart_reason: Option<Outcome>,
    /// W3C trace context that the launch continues.
    pub traceparent: Option<String>,
    /// Its part of the slice; `None` if it has the slice to itself.
    pub share: Option<MpsShare>,
    /// On what signal it saves its state and ends.
    pub checkpoint_signal: Option<CheckpointSignal>,
    /// Its place in its slice's kernel queue; `None` if it has none.
    pub kernel: Option<KernelTerms>,
    /// Its place among the processes of a job over several GPUs; `None` if it is alone.
    pub gang: Option<GangPlace>,
}

/// One process's place in its gang, as `torchrun` would tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPlace {
    /// The gang's number.
    pub gang: JobId,
    /// Its number among all, from 0.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// Its number among those on its node, from 0.
    pub local_rank: u32,
    /// How many there are on its node, as on every other.
    pub local_size: u32,
    /// Its node's number among those of the gang, from 0.
    pub node_rank: u32,
    /// The nodes' names, by their numbers.
    pub nodes: Vec<NodeName>,
    /// Where rank 0 is reached.
    pub master: String,
    /// A port on rank 0's node at which they may meet.
    pub port: u16,
}

/// What an attempt of the kernel tier is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTerms {
    /// Its memory.
    pub memory: Bytes,
    /// Its queue: 0 (highest) to 9.
    pub priority: Priority,
    /// Latency or throughput.
    pub class: Class,
    /// What its user calls the task whose profile it uses; by default its program and parameters.
    pub task_key: Option<String>,
}

/// One task's place in its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPlace {
    /// The array's number.
    pub array: JobId,
    /// This task's index.
    pub index: u32,
    /// How many tasks there are.
    pub count: u32,
    /// Smallest index.
    pub min: u32,
    /// Largest index.
    pub max: u32,
}

/// A change of one GPU's layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOrder {
    /// The leader's epoch.
    pub epoch: u64,
    /// Which plan: the answer names it.
    pub plan: PlanId,
    /// On which GPU.
    pub gpu: GpuId,
    /// Higher than that of every plan before it on this GPU; older ones are refused.
    pub layout_gen: u64,
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// W3C trace context that the steps continue.
    pub traceparent: Option<String>,
}

/// First frame on a stream that a controller opens to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogRequest {
    /// Whose output.
    pub attempt: AttemptId,
    /// Which of the two.
    pub stream: LogStream,
    /// First byte that is wanted.
    pub offset: u64,
    /// Whether to go on as the output grows, until the attempt's end.
    pub follow: bool,
}

/// Which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Answers to a [`LogRequest`], until the stream ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LogReply {
    /// A piece of the output.
    Chunk {
        /// Where it begins.
        offset: u64,
        /// At most [`LOG_CHUNK_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// There is no more, and (when following) there never will be.
    End {
        /// Length of the whole output.
        length: u64,
    },
    /// The node has no such output.
    Unknown {
        /// Why, for people.
        reason: String,
    },
}
