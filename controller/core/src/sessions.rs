//! Sessions of nodes: connected nodes, their leases, and lost nodes.

use crate::duplicates::hold_duplicate;
use crate::rollback::{DatabaseRollback, is_credible};
use crate::round::{NodeWrites, RoundEffect};
use crate::rows::nodes::NodeRegistration;
use crate::state::guards::LeaderGuards;
use crate::state::inventory::{ConnectedAgent, NodeInventory, NodeSession, NodeState};
use std::collections::HashSet;
use tessera_frames::cluster::{Hello, PROTOCOL_VERSION, ToAgent, Welcome};
use tessera_model::NodeIdentity;
use tessera_model::{Millis, NodeId, NodeName};

/// With this many nodes or more, the simultaneous loss of most of them is more likely the
/// controller's own fault.
const BRAKE_FROM_NODES: usize = 3;

/// Why an agent can never get a session, however often it tries.
#[derive(Debug, thiserror::Error)]
enum HelloRefusal {
    #[error(
        "the agent speaks protocol {agent}, this controller {PROTOCOL_VERSION}: install matching \
         versions"
    )]
    OtherProtocol { agent: u16 },
    #[error(
        "the agent holds epoch {epoch} and generation {generation}, which were never assigned to \
         it. The state in its data folder is damaged: give the node a new identity and an empty \
         folder"
    )]
    DamagedState { epoch: u64, generation: u64 },
    #[error(
        "the node is quarantined: it claims epoch {epoch} and generation {generation}, which this \
         controller has not signed. Its state file was edited, or belongs to another cluster. Give \
         the node a new identity and an empty folder, or restore its state; then: tessera clear \
         NODE"
    )]
    Unproven { epoch: u64, generation: u64 },
    #[error("the name {name} belongs to {owner}: choose another")]
    NameTaken { name: NodeName, owner: NodeId },
}

/// A node that is declared lost.
#[derive(Clone, Debug)]
pub(crate) struct LostNode {
    pub(crate) node: NodeId,
    /// Its new generation.
    pub(crate) generation: u64,
    /// Why it is lost, as text.
    pub(crate) detail: String,
}

/// Decides whether a connection may become its node's session. Otherwise it is refused with a reason,
/// or waits for the node's other agent. A node that claims numbers which were never assigned is
/// added to `liars`, with its claim.
pub(crate) fn is_admitted(
    guards: &LeaderGuards,
    inventory: &mut NodeInventory,
    agent: &ConnectedAgent,
    now: Millis,
    found: &mut Option<DatabaseRollback>,
    (liars, effects): (&mut Vec<(NodeId, String)>, &mut Vec<RoundEffect>),
) -> bool {
    let ConnectedAgent { peer, session, hello } = agent;
    let session = *session;
    if let Err(refusal) = check_hello(guards, inventory, peer, hello) {
        if let HelloRefusal::Unproven { epoch, generation }
        | HelloRefusal::DamagedState { epoch, generation } = &refusal
        {
            let claim = format!("it claims epoch {epoch} and generation {generation}");
            liars.push((peer.id, claim));
        }
        let reason = refusal.to_string();
        effects.push(RoundEffect::Refuse { session, reason, retry: false });
        return false;
    }
    if let Some(rollback) = find_rollback(guards, inventory, peer, hello) {
        let worse = found.is_none_or(|known| {
            (known.highest_epoch(), known.highest_generation())
                < (rollback.highest_epoch(), rollback.highest_generation())
        });
        if worse {
            *found = Some(rollback);
        }
        let reason =
            "the database was rolled back: the controller recovers first, try again".to_owned();
        effects.push(RoundEffect::Refuse { session, reason, retry: true });
        return false;
    }
    hold_duplicate(inventory, agent, now, effects).is_none()
}

/// Returns whether the hello comes from a later boot than the known one: then no earlier attempt of
/// the node still runs.
pub(crate) fn is_rebooted(inventory: &NodeInventory, node: NodeId, hello: &Hello) -> bool {
    inventory.nodes.get(&node).is_some_and(|known| known.boot != hello.boot)
}

/// Makes a connection its node's session.
pub(crate) fn bind_session(
    guards: &LeaderGuards,
    inventory: &mut NodeInventory,
    agent: &ConnectedAgent,
    now: Millis,
    nodes: &mut NodeWrites,
    effects: &mut Vec<RoundEffect>,
) {
    let ConnectedAgent { peer, session, hello } = agent;
    let node = welcomed_node(guards, inventory, agent, now);
    let welcome = Welcome {
        protocol: PROTOCOL_VERSION,
        controller: guards.controller,
        node: peer.name.clone(),
        epoch: guards.epoch,
        generation: node.generation,
        lease: guards.lease,
        // The receipt is signed when it is sent.
        receipt: Vec::new(),
    };
    let known = inventory.nodes.get(&peer.id);
    if !known.is_some_and(|known| is_registered(known, &node, hello)) {
        nodes.registrations.push(registration(peer, &node));
    }
    inventory.nodes.insert(peer.id, node);
    for gpu in inventory.gpus.values_mut().filter(|gpu| gpu.node == peer.id) {
        gpu.fresh = false;
    }
    nodes.shape_changed = true;
    effects.push(RoundEffect::Bind { node: peer.id, session: *session });
    let frame = Box::new(ToAgent::Welcome(welcome));
    effects.push(RoundEffect::Send { node: peer.id, frame });
}

/// Grants a node another lease, and records its end; see [`ClusterState::renew_lease`].
///
/// [`ClusterState::renew_lease`]: crate::ClusterState::renew_lease
pub(crate) fn grant_lease(
    inventory: &mut NodeInventory,
    (node, session): (NodeId, u64),
    generation: u64,
    expiry: Millis,
    now_unix: Millis,
) -> Option<()> {
    if !inventory.is_session(node, session) {
        return None;
    }
    let known = inventory.nodes.get_mut(&node)?;
    if known.lost || known.generation != generation {
        return None;
    }
    known.expiry = known.expiry.max(expiry);
    known.last_seen_unix = now_unix;
    Some(())
}

/// Returns the nodes whose leases expired.
pub(crate) fn overdue_nodes(inventory: &NodeInventory, now: Millis) -> Vec<LostNode> {
    if is_braking(inventory, now) {
        return Vec::new();
    }
    let overdue = inventory.nodes.iter().filter(|(_, node)| !node.lost && now >= node.expiry);
    let lost = overdue.map(|(id, node)| LostNode {
        node: *id,
        generation: node.generation + 1,
        detail: format!("node {} did not report for a whole lease", node.name),
    });
    lost.collect()
}

/// Returns the nodes of old generations after a database rollback. Their attempts end in the store
/// now, and on the node when it comes back (rule F11). No job is placed until all leases of unknown
/// grants have expired.
pub(crate) fn rolled_back_nodes(inventory: &NodeInventory, generation_min: u64) -> Vec<LostNode> {
    let below = inventory.nodes.iter().filter(|(_, node)| node.generation < generation_min);
    let lost = below.map(|(id, _)| LostNode {
        node: *id,
        generation: generation_min,
        detail: "the database was rolled back to an earlier state".to_owned(),
    });
    lost.collect()
}

/// Marks a node as lost, and closes its session.
pub(crate) fn close_lost_node(
    inventory: &mut NodeInventory,
    lost: &LostNode,
    nodes: &mut NodeWrites,
    effects: &mut Vec<RoundEffect>,
) {
    let LostNode { node: id, generation, detail } = lost;
    let Some(node) = inventory.nodes.get_mut(id) else { return };
    node.lost = true;
    node.generation = *generation;
    if let Some(session) = node.session.take() {
        let reason = format!("it was declared lost: {detail}");
        effects.push(RoundEffect::Refuse { session: session.id, reason, retry: true });
    }
    nodes.generations.push((*id, *generation, true));
    nodes.shape_changed = true;
}

/// Returns whether most nodes became silent at once.
pub(crate) fn is_braking(inventory: &NodeInventory, now: Millis) -> bool {
    let (members, overdue) = inventory.count_overdue(now);
    members >= BRAKE_FROM_NODES && overdue * 2 > members
}

fn check_hello(
    guards: &LeaderGuards,
    inventory: &NodeInventory,
    peer: &NodeIdentity,
    hello: &Hello,
) -> Result<(), HelloRefusal> {
    if hello.protocol != PROTOCOL_VERSION {
        return Err(HelloRefusal::OtherProtocol { agent: hello.protocol });
    }
    if !is_credible(guards.epoch, hello.highest_epoch, hello.generation) {
        let (epoch, generation) = (hello.highest_epoch, hello.generation);
        return Err(HelloRefusal::DamagedState { epoch, generation });
    }
    // A claim of one node must not stop the others: it counts only with the controller's receipt.
    if hello.receipt.is_empty() && find_rollback(guards, inventory, peer, hello).is_some() {
        let (epoch, generation) = (hello.highest_epoch, hello.generation);
        return Err(HelloRefusal::Unproven { epoch, generation });
    }
    let mut nodes = inventory.nodes.iter();
    match nodes.find(|(id, node)| **id != peer.id && node.name == peer.name) {
        Some((owner, _)) => Err(HelloRefusal::NameTaken { name: peer.name.clone(), owner: *owner }),
        None => Ok(()),
    }
}

/// Returns the rollback that an agent proves by an epoch or a generation that the store never
/// assigned. Both are committed before they are sent.
fn find_rollback(
    guards: &LeaderGuards,
    inventory: &NodeInventory,
    peer: &NodeIdentity,
    hello: &Hello,
) -> Option<DatabaseRollback> {
    if hello.highest_epoch > guards.epoch {
        return Some(DatabaseRollback::EarlierEpoch {
            known: hello.highest_epoch,
            found: guards.epoch,
        });
    }
    let given = inventory.nodes.get(&peer.id)?.generation.max(guards.generation_min);
    (hello.generation > given)
        .then_some(DatabaseRollback::EarlierGeneration { known: hello.generation, found: given })
}

/// Returns the node that an agent's hello describes, with a new session.
fn welcomed_node(
    guards: &LeaderGuards,
    inventory: &NodeInventory,
    agent: &ConnectedAgent,
    now: Millis,
) -> NodeState {
    let ConnectedAgent { peer, session, hello } = agent;
    let known = inventory.nodes.get(&peer.id);
    // An unknown node may have been removed together with its generation.
    let generation = known.map_or(1, |node| node.generation).max(guards.generation_min);
    let generation = if hello.generation > generation { hello.generation + 1 } else { generation };
    NodeState {
        name: peer.name.clone(),
        generation,
        lost: false,
        boot: hello.boot,
        software: hello.software.clone(),
        cores: hello.cores,
        memory_bytes: hello.memory.get(),
        mps: hello.mps,
        kernel: hello.kernel,
        session: Some(NodeSession {
            id: *session,
            process: hello.process,
            address: hello.address.clone(),
            isolation_gaps: hello.isolation_gaps.clone(),
            ready: false,
            reported: HashSet::new(),
        }),
        expiry: guards.expiry_from(now),
        last_seen_unix: known.map_or(Millis::ZERO, |node| node.last_seen_unix),
    }
}

/// Returns whether the store already has everything that a hello registers.
fn is_registered(known: &NodeState, node: &NodeState, hello: &Hello) -> bool {
    !known.lost
        && known.boot == node.boot
        && known.name == node.name
        && known.software == node.software
        && known.mps == node.mps
        && known.kernel == node.kernel
        && known.generation >= hello.generation
}

fn registration(peer: &NodeIdentity, node: &NodeState) -> NodeRegistration {
    NodeRegistration {
        node: peer.id,
        name: peer.name.clone(),
        boot: node.boot,
        generation: node.generation,
        software: node.software.clone(),
        cores: node.cores,
        memory_bytes: node.memory_bytes,
        mps: node.mps,
        kernel: node.kernel,
    }
}
