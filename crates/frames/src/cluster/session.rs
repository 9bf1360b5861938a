//! What agent and controller exchange first.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tessera_model::isolation::IsolationGap;
use tessera_model::lease::LeaseTerms;
use tessera_model::{BootId, Bytes, ControllerId, NodeName};

/// Who is speaking. The node's id and name come from its certificate, never from here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the agent's build.
    pub protocol: u16,
    /// The agent's version, for people.
    pub software: String,
    /// This boot of the machine.
    pub boot: BootId,
    /// A number that this agent process drew at its start: distinguishes two agents with one identity
    /// apart (rule A8).
    pub process: u64,
    /// The generation that the node holds (0 before its first welcome).
    pub generation: u64,
    /// The highest leader epoch that the node ever obeyed (rules F14, F15).
    pub highest_epoch: u64,
    /// The controller's own word on both: what came with its last welcome. Without it they are the node's word
    /// only. A controller empties it unless it proves them.
    pub receipt: Vec<u8>,
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
    /// Which limits and protections its jobs don't have, each once.
    pub isolation_gaps: BTreeSet<IsolationGap>,
}

/// The terms of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the controller's build.
    pub protocol: u16,
    /// The controller that answers, so that an agent notices a change.
    pub controller: ControllerId,
    /// The node's name, as in its certificate.
    pub node: NodeName,
    /// The leader's epoch: commands of a lower one are refused from now on (rule F15).
    pub epoch: u64,
    /// The node's generation: if it differs from the one in the hello, every attempt of the old
    /// one is killed before anything else (rule F11).
    pub generation: u64,
    /// How long a renewal lasts.
    pub lease: LeaseTerms,
    /// What the node has to bring back with its next hello: epoch and generation, signed by the controller.
    pub receipt: Vec<u8>,
}
