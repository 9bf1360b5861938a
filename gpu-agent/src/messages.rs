//! Messages between the parts of the agent.
//!
//! They are below all parts: the node sends to and receives from every part, and no part imports
//! the node.

pub mod account;
pub mod gpu;
pub mod mps;
pub mod telemetry;

use std::net::IpAddr;

use tessera_agent_core::attempts::AttemptEffect;
use tessera_frames::cluster::{ToAgent, ToController};
use tessera_model::AttemptId;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::kernel::KernelEvent;
use crate::shepherd::protocol::FromShepherd;
use account::LookupResult;
use gpu::GpuEvent;
use mps::MpsEvent;

/// Inputs that may be queued: enough for one of every attempt at once.
pub const INPUTS_MAX: usize = 8192;

/// Every input of a node.
#[derive(Debug)]
pub enum NodeInput {
    /// Of the connection to the controller.
    Link(LinkEvent),
    /// From the shepherd of an attempt.
    Shepherd {
        /// Which one.
        id: Uuid,
        /// Its event.
        frame: FromShepherd,
    },
    /// A shepherd's connection ended.
    ShepherdGone {
        /// Which one.
        id: Uuid,
        /// Its protocol version, if it was dropped because that differs from this agent's.
        foreigner: Option<u16>,
    },
    /// Records are on disk.
    Journalled(Vec<AttemptEffect>),
    /// Records could not be put on disk.
    NotJournalled {
        /// What would have followed.
        then: Vec<AttemptEffect>,
        /// The journal's thread finished.
        reason: String,
    },
    /// From the actor of a GPU.
    Gpu(GpuEvent),
    /// A frame of the GPU sampling for the controller.
    Telemetry(ToController),
    /// Requests whether an attempt may still write output.
    IsAlive {
        /// The attempt's id.
        attempt: AttemptId,
        /// Where the answer goes.
        answer: oneshot::Sender<bool>,
    },
    /// Requests which shepherd has the sessions of an attempt.
    FindShepherd {
        /// The attempt's id.
        attempt: AttemptId,
        /// Where the answer goes.
        answer: oneshot::Sender<Option<Uuid>>,
    },
    /// Requests the attempt that a process belongs to.
    FindCaller {
        /// The process and its ancestors, the nearest first.
        lineage: Vec<u32>,
        /// Where the answer goes; `None` if it belongs to none.
        answer: oneshot::Sender<Option<AttemptId>>,
    },
    /// An answer of the name service.
    Account {
        /// The user's name.
        name: String,
        /// The account, if there is one.
        found: LookupResult,
    },
    /// Of the slices that attempts share.
    Mps(MpsEvent),
    /// Of the kernel queues.
    Kernel(KernelEvent),
    /// A frame for the controller that doesn't concern the node itself.
    Forward(ToController),
    /// Time passed.
    Tick,
}

/// Events of the connection to the controller.
#[derive(Debug)]
pub enum LinkEvent {
    /// It stands.
    Up {
        /// Takes frames. Dropping it ends the connection.
        port: mpsc::Sender<ToController>,
        /// The address by which this machine talks to the controller, if that is known.
        local: Option<IpAddr>,
    },
    /// A frame came.
    Frame(ToAgent),
    /// It ended.
    Down,
}
