//! What a preloaded shim and the kernel queue of its slice say to each other.
//!
//! One QUIC connection for each process and slice, to the agent on the same machine; one
//! bidirectional stream that the shim opens; frames as everywhere ([`crate::link`]), each at most
//! [`FRAME_BYTES_MAX`](crate::codec::FRAME_BYTES_MAX). The shim speaks first ([`Hello`]), the queue
//! answers [`Welcome`] or [`Bye`]. Kinds of frames that a build doesn't know are skipped
//! ([`crate::link::FrameReader::receive_known`]); a shim sends no records that are younger than the
//! protocol in its welcome.
//!
//! All times are `CLOCK_MONOTONIC` of the machine that both run on.
//!
//! # How a session goes
//!
//! - [`Role::Free`](tessera_kernel_queue::Role): nothing is told but what is measured.
//! - `Hold` and `Measure`: the gate's launches rise by one before each launch, and each launch is
//!   told with the count that came out. What a session does in another role it doesn't count.
//! - `Ask`: a launch that no grant covers is wanted once, and its thread waits. It launches unasked
//!   after [`Welcome::wait_max`], told as [`Record::Launch`].
//! - In every role but `Measure` one launch in [`Welcome::sample_every`] is sampled, and each one of
//!   kernels that are to be measured ([`ToShim::Known`]).

pub mod identity;

use serde::{Deserialize, Serialize};
use tessera_kernel_queue::{Grant, KernelId, KernelIndex, Nanos, Refusal, Role, Sample};

use crate::codec::FRAME_BYTES_MAX;

/// The version that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// The oldest version that this build understands.
pub const PROTOCOL_VERSION_MIN: u16 = 1;

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"tessera-kernel/1";

/// The name that the endpoint's certificate is made for; shims pin the certificate itself.
pub const SERVER_NAME: &str = "kernel-queue.tessera.internal";

/// Most records in one frame: what a program at 200,000 launches a second says in 5 ms.
pub const RECORDS_MAX: usize = 1_024;

/// Longest device name in a hello: NVIDIA's UUIDs have 40 characters, MIG's 44.
pub const DEVICE_BYTES_MAX: usize = 64;

/// Variables of a process under the kernel tier.
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
}

/// A kind of frame of which peers may know more variants than this build.
pub trait Kinds {
    /// How many variants this build knows.
    const KNOWN: u32;
}

/// From a shim to its slice's queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToQueue {
    /// Always first.
    Hello(Hello),
    /// What happened, oldest first; at most [`RECORDS_MAX`].
    Records(Vec<Record>),
}

impl Kinds for ToQueue {
    const KNOWN: u32 = 2;
}

/// Who connects. Priority, class and task come from the attempt that the token stands for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the shim's build.
    pub protocol: u16,
    /// The attempt's token.
    pub token: [u8; 32],
    /// The process, in its own name space of processes.
    pub pid: u32,
    /// A number that the process drew: a second connection with it is the same process anew.
    pub process: u64,
    /// The device, by the UUID that the driver says.
    pub device: String,
    /// The driver's version of CUDA, as `cuDriverGetVersion` says: 12040 is 12.4.
    pub driver: u32,
}

impl std::fmt::Debug for Hello {
    /// Keeps the token to itself.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello")
            .field("protocol", &self.protocol)
            .field("pid", &self.pid)
            .field("process", &self.process)
            .field("device", &self.device)
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

/// One thing that happened in the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// It will launch this kernel: answered by [`ToShim::Defined`].
    Define {
        /// The shim's own number for it.
        number: u32,
        /// What.
        kernel: KernelId,
    },
    /// It launches without a grant: it holds, or waited for too long. Told before the driver is
    /// called.
    Launch {
        /// Its number of this launch.
        launch: u64,
        /// What; [`KernelIndex::UNKNOWN`] until it has an index.
        kernel: KernelIndex,
        /// What [`crate::gate::GatePage::add_launch`] returned; zero without a page.
        count: u64,
        /// When.
        at: Nanos,
    },
    /// A thread waits until this launch is granted.
    Want {
        /// Its number of this launch.
        launch: u64,
        /// What.
        kernel: KernelIndex,
        /// The grant that doesn't cover it, if one stands: it ends.
        beyond: Option<u64>,
        /// When.
        at: Nanos,
    },
    /// It launches under a grant.
    Started {
        /// Its number of this launch.
        launch: u64,
        /// What.
        kernel: KernelIndex,
        /// The grant's number.
        grant: u64,
        /// When.
        at: Nanos,
    },
    /// Its oldest kernel in flight ended.
    Done {
        /// When that was noticed.
        at: Nanos,
    },
    /// A synchronising call returned: nothing is in flight.
    Sync {
        /// The grant that it gives back, if that one yields.
        returns: Option<u64>,
        /// When.
        at: Nanos,
    },
    /// A kernel was measured.
    Sample(Sample),
    /// So many records found no room and are gone.
    Lost {
        /// How many.
        records: u64,
    },
    /// The driver refused this launch, which was told: it doesn't run.
    Failed {
        /// Its number.
        launch: u64,
    },
    /// It is there and has nothing to say: at least every third of [`Welcome::silence_max`].
    Alive,
    /// What it allocated on the device, as far as the shim saw.
    Memory {
        /// Now, in bytes.
        used: u64,
        /// At most so far, in bytes.
        peak: u64,
    },
    /// Launches that passed without being told: captures, calls that the shim doesn't take in.
    Passed {
        /// How many since the last such record.
        launches: u64,
    },
    /// It ends, or wants nothing of the queue any more.
    Bye,
}

impl Record {
    /// Returns how many bytes it takes in a frame, to pack frames with.
    pub fn frame_bytes(&self) -> usize {
        const TAG: usize = 4;
        const NUMBER: usize = 8;
        const INDEX: usize = 2;
        TAG + match self {
            // A number, the name behind its length, six sides.
            Self::Define { kernel, .. } => 4 + NUMBER + kernel.name().len() + 6 * 4,
            Self::Launch { .. } | Self::Started { .. } => NUMBER + INDEX + 2 * NUMBER,
            Self::Want { .. } => NUMBER + INDEX + (1 + NUMBER) + NUMBER,
            Self::Sync { .. } => (1 + NUMBER) + NUMBER,
            Self::Sample(_) => INDEX + (1 + INDEX) + NUMBER + (1 + NUMBER),
            Self::Done { .. } | Self::Lost { .. } | Self::Failed { .. } | Self::Passed { .. } => {
                NUMBER
            }
            Self::Memory { .. } => 2 * NUMBER,
            Self::Alive | Self::Bye => 0,
        }
    }
}

/// What the records of one frame may take together: the rest is the frame's tag and their count.
pub const RECORDS_BYTES_MAX: usize = FRAME_BYTES_MAX - 12;

/// From a slice's queue to a shim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToShim {
    /// Answers the hello: the process has a session.
    Welcome(Welcome),
    /// How it may launch from now on. Launches that wait go if it holds.
    Role(Role),
    /// It may launch under this.
    Grant(Grant),
    /// A grant is over.
    Revoke {
        /// Its number.
        grant: u64,
    },
    /// What to call a kernel that it defined.
    Defined {
        /// The shim's own number for it.
        number: u32,
        /// Its index.
        kernel: KernelIndex,
        /// How long it is expected to run, if known.
        sk: Option<Nanos>,
        /// Whether each of its launches is to be measured.
        measure: bool,
    },
    /// What is known of a kernel changed.
    Known {
        /// Its index.
        kernel: KernelIndex,
        /// How long it is expected to run, if known.
        sk: Option<Nanos>,
        /// Whether each of its launches is to be measured.
        measure: bool,
    },
    /// What was told led to nothing.
    Refused {
        /// Why.
        why: Refusal,
        /// The launch that it was about, if it was about one: it goes unasked.
        launch: Option<u64>,
    },
    /// The queue is alive and has nothing to say: sent while a launch of the shim waits and it has
    /// no page.
    Ping,
    /// The session is over, or there is none.
    Bye(Farewell),
}

impl Kinds for ToShim {
    const KNOWN: u32 = 9;
}

/// The terms of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// What is spoken: the older of both sides' versions.
    pub protocol: u16,
    /// The session's number, for logs.
    pub session: u64,
    /// How it may launch.
    pub role: Role,
    /// Kernels that may be launched and not done under grants.
    pub in_flight: u16,
    /// Longest that one launch may wait; then it goes unasked.
    pub wait_max: Nanos,
    /// The kernel time of those that go first after which a wait is let go (MMK's threshold).
    pub ages_after: Nanos,
    /// Without any record for so long, the session counts as dead.
    pub silence_max: Nanos,
    /// One launch in so many is sampled while nothing is measured; 0 is none.
    pub sample_every: u32,
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Farewell {
    /// Why.
    pub why: Ended,
    /// Whether connecting again later makes sense; else the process runs on without a queue.
    pub again: bool,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// The token is no live attempt's.
    Unknown,
    /// The versions have nothing in common.
    Protocol {
        /// The oldest that the queue speaks.
        oldest: u16,
        /// The newest.
        newest: u16,
    },
    /// The device is not the attempt's slice.
    WrongDevice,
    /// The slice has as many sessions as it may have.
    Full,
    /// What came was no frame, or one that makes no sense there.
    Nonsense,
    /// Nothing came for too long.
    Silent,
    /// More came than may, for too long.
    TooMuch,
    /// The attempt is over, or leaves the kernel tier.
    Attempt,
    /// The agent stops; the job goes on.
    Stopping,
    /// The same process connected anew.
    Replaced,
    /// The process is gone.
    Gone,
}
