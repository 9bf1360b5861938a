//! The protocol between a preloaded shim and the kernel queue of its slice.
//!
//! Each process has one QUIC connection for its slice, to the agent on the same machine. The shim opens
//! one bidirectional stream. Frames are as everywhere, each at most
//! [`FRAME_BYTES_MAX`](crate::codec::FRAME_BYTES_MAX). The shim starts ([`ShimHello`]), and the queue
//! answers with [`ToShim::Welcome`] or [`ToShim::Bye`]. Unknown kinds of frames are skipped
//! ([`crate::codec::decode_known`]); a shim sends no records that are newer than the
//! protocol in its welcome.
//!
//! All times are `CLOCK_MONOTONIC` of the machine that both run on.
//!
//! # Roles of a session
//!
//! - [`Role::Free`](tessera_kernel_queue::Role): only samples are reported.
//! - `Hold` and `Measure`: the gate's launches rise by one before each launch. Each launch is reported
//!   with the resulting count. Launches in other roles are not counted.
//! - `Fill`: a launch without a grant is requested, and its thread waits. After each
//!   [`ShimWelcome::wait_max`] it is requested again. Without a living queue it goes and is reported as
//!   [`ShimRecord::Launch`].
//! - In every role except `Measure`, one launch in [`ShimWelcome::sample_every`] is sampled. Every launch
//!   of a kernel that is being measured is sampled as well ([`ToShim::Known`]).

use serde::{Deserialize, Serialize};
use tessera_kernel_queue::{
    GapOpening, Grant, KernelId, KernelIndex, KernelSample, Nanos, QueueRefusal, ResourceNeed, Role,
};

use crate::codec::{FRAME_BYTES_MAX, FrameKinds};

/// The protocol version of this build.
pub const PROTOCOL_VERSION: u16 = 5;

/// The first protocol version with [`ShimRecord::Need`] and [`ShimRecord::Streams`].
pub const PROTOCOL_WITH_NEEDS: u16 = 2;

/// The first protocol version with [`ToQueue::SessionThread`].
pub const PROTOCOL_WITH_SESSION_THREAD: u16 = 3;

/// The first protocol version with [`ToShim::Recall`] and [`ShimRecord::Recalled`].
pub const PROTOCOL_WITH_RECALL: u16 = 4;

/// The first protocol version with [`ToShim::GrantAhead`], and with launches of holders on the gate page.
pub const PROTOCOL_WITH_GRANTS_AHEAD: u16 = 5;

/// The oldest protocol version that this build supports.
pub const PROTOCOL_VERSION_MIN: u16 = 1;

/// Maximum number of records in one frame: those of 5 ms at 200,000 launches a second.
pub const RECORDS_MAX: usize = 1_024;

/// The name in the kernel of the shim's thread that serves the session: at most 15 bytes.
pub const SESSION_THREAD_NAME: &str = "tessera-queue";

/// The name of the empty kernel with which a shim brings the device back to its context ([`ToShim::Recall`]).
pub const RECALL_KERNEL_NAME: &std::ffi::CStr = c"tessera_recall";

/// Longest device name in a hello, in bytes: NVIDIA's UUIDs have 40 characters, MIG's 44.
pub const DEVICE_BYTES_MAX: usize = 64;

/// Environment variables of a process in the kernel tier.
pub mod variables {
    /// `ADDRESS:PORT` of the agent's endpoint.
    pub const ENDPOINT: &str = "TESSERA_KERNEL_ENDPOINT";
    /// The attempt's token, 64 hexadecimal digits.
    pub const TOKEN: &str = "TESSERA_KERNEL_TOKEN";
    /// SHA-256 of the endpoint's certificate, hexadecimal.
    pub const CERTIFICATE: &str = "TESSERA_KERNEL_CERT";
    /// Path of the slice's gate page; may be missing.
    pub const GATE: &str = "TESSERA_KERNEL_GATE";
    /// Path of the driver's own `libcuda.so.1`; may be missing.
    pub const DRIVER: &str = "TESSERA_KERNEL_CUDA";
    /// File for the shim's log; may be missing.
    pub const LOG: &str = "TESSERA_KERNEL_LOG";
    /// Whether the shim observes the program's memory and its first launch: [`WATCH_ON`] if it does.
    pub const WATCH: &str = "TESSERA_WATCH";
    /// The value of [`WATCH`] that switches it on.
    pub const WATCH_ON: &str = "on";
    /// The named pipe in which observers inside of an attempt's processes report.
    pub const MEMORY_PIPE: &str = "TESSERA_MEMORY_PIPE";
}

/// From a shim to its slice's queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToQueue {
    /// Always first.
    Hello(ShimHello),
    /// Records, oldest first: at most [`RECORDS_MAX`].
    Records(Vec<ShimRecord>),
    /// The thread that serves this session, for which the process' launches wait. Sent once, after the welcome.
    /// Since version [`PROTOCOL_WITH_SESSION_THREAD`].
    SessionThread {
        /// Its number, in the process' own pid namespace.
        thread: u32,
    },
}

impl FrameKinds for ToQueue {
    const KNOWN: u32 = 3;
}

/// Identifies the process that connects. Priority, class and task come from the token's attempt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimHello {
    /// [`PROTOCOL_VERSION`] of the shim's build.
    pub protocol: u16,
    /// The attempt's token.
    pub token: [u8; 32],
    /// The pid, in the process' own pid namespace.
    pub pid: u32,
    /// A random number of the process: a second connection with it replaces the first.
    pub process: u64,
    /// The UUID of the device, as reported by the driver.
    pub device: String,
    /// The driver's CUDA version from `cuDriverGetVersion`: 12040 is 12.4.
    pub driver: u32,
}

impl std::fmt::Debug for ShimHello {
    /// Hides the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShimHello")
            .field("protocol", &self.protocol)
            .field("pid", &self.pid)
            .field("process", &self.process)
            .field("device", &self.device)
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

/// One event in the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ShimRecord {
    /// A definition of a kernel before its first launch. The answer is [`ToShim::Defined`].
    Define {
        /// The shim's own number for it.
        number: u32,
        /// The name, grid and block that stand for a number from now on.
        kernel: KernelId,
    },
    /// A launch without a grant: of a holder, or one that can't wait. It is reported before the
    /// driver is called.
    Launch {
        /// The number of the launch.
        launch: u64,
        /// The kernel; [`KernelIndex::UNKNOWN`] until it has an index.
        kernel: KernelIndex,
        /// What [`crate::gate::GatePage::add_launch`] returned; zero without a page.
        count: u64,
        /// The time of the event.
        at: Nanos,
    },
    /// A request: a thread waits until this launch is granted.
    Request {
        /// The number of the launch.
        launch: u64,
        /// The number of the kernel that waits.
        kernel: KernelIndex,
        /// The current grant, if it doesn't cover the kernel: it ends.
        beyond: Option<u64>,
        /// The time of the event.
        at: Nanos,
    },
    /// A launch under a grant.
    Started {
        /// The number of the launch.
        launch: u64,
        /// The number of the kernel that was launched.
        kernel: KernelIndex,
        /// The grant's number.
        grant: u64,
        /// The time of the event.
        at: Nanos,
    },
    /// The oldest kernel in flight ended.
    Done {
        /// When that was noticed.
        at: Nanos,
    },
    /// A synchronising call returned: nothing is in flight.
    Sync {
        /// The grant that is returned early, if it yields.
        returns: Option<u64>,
        /// The time of the event.
        at: Nanos,
    },
    /// A kernel was measured.
    Sample(KernelSample),
    /// Records were dropped because the ring was full.
    Lost {
        /// Their number.
        records: u64,
    },
    /// The driver refused a launch that was reported: it doesn't run.
    Failed {
        /// Its number.
        launch: u64,
    },
    /// The process is alive: sent at least every third of [`ShimWelcome::silence_max`].
    Alive,
    /// The device memory that it allocated, as far as the shim saw.
    Memory {
        /// Now, in bytes.
        used: u64,
        /// At most so far, in bytes.
        peak: u64,
    },
    /// Launches that passed without a report, such as captures.
    Passed {
        /// How many since the last such record.
        launches: u64,
    },
    /// The process ends or leaves the queue.
    Bye,
    /// What a kernel needs of the process' part of the slice. Sent once for each kernel, and again if
    /// a launch needs more. Since version [`PROTOCOL_WITH_NEEDS`].
    Need {
        /// The number of the kernel that was measured.
        kernel: KernelIndex,
        /// What it needs.
        need: ResourceNeed,
    },
    /// On how many streams the process has launched so far. Since version [`PROTOCOL_WITH_NEEDS`].
    Streams {
        /// Their number.
        streams: u32,
    },
    /// The process brings the device back to its context: the answer to [`ToShim::Recall`]. Since version
    /// [`PROTOCOL_WITH_RECALL`].
    Recalled {
        /// The time of the event.
        at: Nanos,
    },
}

impl ShimRecord {
    /// Returns its size in a frame in bytes, or slightly more.
    pub fn frame_bytes(&self) -> usize {
        const TAG: usize = 4;
        const NUMBER: usize = 8;
        const INDEX: usize = 2;
        TAG + match self {
            // A number, the name behind its length, six sides.
            Self::Define { kernel, .. } => 4 + NUMBER + kernel.name().len() + 6 * 4,
            Self::Launch { .. } | Self::Started { .. } => NUMBER + INDEX + 2 * NUMBER,
            Self::Request { .. } => NUMBER + INDEX + (1 + NUMBER) + NUMBER,
            Self::Sync { .. } => (1 + NUMBER) + NUMBER,
            Self::Sample(_) => INDEX + (1 + INDEX) + NUMBER + (1 + NUMBER),
            Self::Done { .. }
            | Self::Recalled { .. }
            | Self::Lost { .. }
            | Self::Failed { .. }
            | Self::Passed { .. } => NUMBER,
            Self::Memory { .. } => 2 * NUMBER,
            Self::Need { .. } => INDEX + 3 * 4,
            Self::Streams { .. } => 4,
            Self::Alive | Self::Bye => 0,
        }
    }
}

/// Maximum number of bytes of the records of one frame. The rest is the frame's tag and the number
/// of records.
pub const RECORDS_BYTES_MAX: usize = FRAME_BYTES_MAX - 12;

/// From a slice's queue to a shim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToShim {
    /// The answer to the hello: the process has a session.
    Welcome(ShimWelcome),
    /// The new role. If it is that of a holder, waiting launches go.
    Role(Role),
    /// Permission to launch.
    Grant(Grant),
    /// A grant is over.
    Revoke {
        /// Its number.
        grant: u64,
    },
    /// The index of a kernel that the shim defined.
    Defined {
        /// The shim's own number for it.
        number: u32,
        /// Its index.
        kernel: KernelIndex,
        /// Its predicted time, if known.
        sk: Option<Nanos>,
        /// Whether every launch of it is measured.
        measure: bool,
    },
    /// The facts about a kernel changed.
    Known {
        /// Its index.
        kernel: KernelIndex,
        /// Its predicted time, if known.
        sk: Option<Nanos>,
        /// Whether every launch of it is measured.
        measure: bool,
    },
    /// A record was ignored.
    Refused {
        /// The reason.
        why: QueueRefusal,
        /// The launch that it concerned, if any: it is requested again after a pause.
        launch: Option<u64>,
    },
    /// The queue is alive. Sent while a launch of the shim may be waiting.
    Ping,
    /// The session is over, or there is none.
    Bye(Farewell),
    /// The holder's gap is expected to end soon: the process brings the device back to its context, unless a holder has
    /// launched by then. It replaces an earlier order. Since version [`PROTOCOL_WITH_RECALL`].
    Recall {
        /// When to do so.
        at: Nanos,
        /// The gate's launches: if there are more, the gap has ended.
        launches: u64,
    },
    /// Permission to launch in a gap that has not begun. The shim observes its begin on the gate page. Since version
    /// [`PROTOCOL_WITH_GRANTS_AHEAD`].
    GrantAhead {
        /// The permission.
        grant: Grant,
        /// The launch of the holder after which the gap begins.
        opening: GapOpening,
    },
}

impl FrameKinds for ToShim {
    const KNOWN: u32 = 11;
}

/// The terms of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimWelcome {
    /// The protocol version: the older of both sides' versions.
    pub protocol: u16,
    /// The session's number, for logs.
    pub session: u64,
    /// The role of the session.
    pub role: Role,
    /// Maximum number of kernels in flight under grants.
    pub in_flight: u16,
    /// A launch that has waited for so long is requested again, in case that its request was lost.
    pub wait_max: Nanos,
    /// The kernel time of the holders after which a waiting launch goes (MMK's threshold).
    pub ages_after: Nanos,
    /// After so long without a record the session counts as dead.
    pub silence_max: Nanos,
    /// Sampling interval in launches during the sharing stage; 0 for no samples.
    pub sample_every: u32,
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Farewell {
    /// The reason.
    pub why: SessionEnd,
    /// Whether the shim should connect again later. Otherwise it runs without a queue.
    pub again: bool,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// The token belongs to no live attempt.
    Unknown,
    /// There is no common protocol version.
    Protocol {
        /// The oldest version of the queue.
        oldest: u16,
        /// The newest version of the queue.
        newest: u16,
    },
    /// The device is not the attempt's slice.
    WrongDevice,
    /// The slice has the maximum number of sessions.
    Full,
    /// A frame was invalid or unexpected.
    Nonsense,
    /// The process was silent for too long.
    Silent,
    /// The shim did not read its frames.
    TooMuch,
    /// The attempt is over, or leaves the kernel tier.
    Attempt,
    /// The agent stops. The job runs on.
    Stopping,
    /// The same process connected again.
    Replaced,
    /// The process is gone.
    Gone,
}
