//! Sessions of nodes: which are connected, until when each may run attempts, and which are lost.

use crate::duplicates::hold_duplicate;
use crate::rollback::{DatabaseRollback, is_credible};
use crate::round::{Round, RoundEffect};
use crate::rows::nodes::NodeRegistration;
use crate::rows::transitions::record_without_exit;
use crate::state::ClusterState;
use crate::state::guards::LeaderGuards;
use crate::state::inventory::{NodeInventory, NodeSession, NodeState};
use std::collections::HashSet;
use tessera_frames::cluster::{Hello, PROTOCOL_VERSION, ToAgent, Welcome};
use tessera_model::NodeIdentity;
use tessera_model::life::Outcome;
use tessera_model::{Millis, NodeId, NodeName};

/// With this many nodes or more, losing most of them at once is more likely the controller's own
/// fault.
const BRAKE_FROM_NODES: usize = 3;

/// Why an agent can't be a session's, however often it tries.
#[derive(Debug, thiserror::Error)]
enum HelloRefusal {
    #[error(
        "the agent speaks protocol {agent}, this controller {PROTOCOL_VERSION}: install matching \
         versions"
    )]
    OtherProtocol { agent: u16 },
    #[error(
        "the agent holds epoch {epoch} and generation {generation}, which nobody gave it: the state \
         in its data folder is damaged; give the node a new identity and an empty folder"
    )]
    DamagedState { epoch: u64, generation: u64 },
    #[error("the name {name} belongs to {owner}: choose another")]
    NameTaken { name: NodeName, owner: NodeId },
}

impl ClusterState {
    /// Welcomes a node, or refuses its connection with a reason.
    pub(crate) fn handle_hello(
        &mut self,
        peer: NodeIdentity,
        session: u64,
        hello: Hello,
        now: Millis,
        round: &mut Round,
    ) {
        if let Err(refusal) = check_hello(&self.guards, &self.inventory, &peer, &hello) {
            let reason = refusal.to_string();
            round.effects.push(RoundEffect::Refuse { session, reason, retry: false });
            return;
        }
        if let Some(rollback) = find_rollback(&self.guards, &self.inventory, &peer, &hello) {
            let worse = round.rollback.is_none_or(|known| {
                (known.highest_epoch(), known.highest_generation())
                    < (rollback.highest_epoch(), rollback.highest_generation())
            });
            if worse {
                round.rollback = Some(rollback);
            }
            let reason =
                "the database was rolled back: the controller recovers first, try again".to_owned();
            round.effects.push(RoundEffect::Refuse { session, reason, retry: true });
            return;
        }
        let effects = &mut round.effects;
        if hold_duplicate(&mut self.inventory, &peer, session, &hello, now, effects).is_none() {
            self.welcome(peer, session, hello, now, round);
        }
    }

    /// Makes a connection its node's session.
    pub(crate) fn welcome(
        &mut self,
        peer: NodeIdentity,
        session: u64,
        hello: Hello,
        now: Millis,
        round: &mut Round,
    ) {
        self.end_earlier_boots(peer.id, &hello, round);
        let node = welcomed_node(&self.guards, &self.inventory, &peer, session, &hello, now);
        let welcome = Welcome {
            protocol: PROTOCOL_VERSION,
            controller: self.guards.controller,
            node: peer.name.clone(),
            epoch: self.guards.epoch,
            generation: node.generation,
            lease: self.guards.lease,
        };
        let known = self.inventory.nodes.get(&peer.id);
        if !known.is_some_and(|known| is_registered(known, &node, &hello)) {
            round.nodes.registrations.push(registration(&peer, &node));
        }
        self.inventory.nodes.insert(peer.id, node);
        for gpu in self.inventory.gpus.values_mut().filter(|gpu| gpu.node == peer.id) {
            gpu.fresh = false;
        }
        round.shape_changed = true;
        round.effects.push(RoundEffect::Bind { node: peer.id, session });
        let frame = Box::new(ToAgent::Welcome(welcome));
        round.effects.push(RoundEffect::Send { node: peer.id, frame });
    }

    /// Ends the attempts of earlier boots: a new boot id proves that none of them runs. The
    /// generation rises, so that their launches can't arrive late.
    fn end_earlier_boots(&mut self, id: NodeId, hello: &Hello, round: &mut Round) {
        let Some(node) = self.inventory.nodes.get_mut(&id) else { return };
        if node.boot == hello.boot {
            return;
        }
        let dead = self.attempts.on_node(id);
        if !dead.is_empty() {
            node.generation += 1;
        }
        // A reboot removes all instances, so that the rest of a plan would not make its layout.
        self.give_up_layouts(id, "its node was rebooted", round);
        for attempt in dead {
            let detail = "its node was rebooted".to_owned();
            self.end_attempt(attempt, record_without_exit(Outcome::Lost, detail), round);
        }
    }

    /// Grants a node another lease. Its end here is noted before the grant is sent (rule F6);
    /// the caller has made sure that this controller may still trust itself (rule F3).
    ///
    /// `None`: not granted, since the node is lost, of another generation, or on another
    /// connection.
    pub fn renew_lease(
        &mut self,
        node: NodeId,
        session: u64,
        sent: Millis,
        generation: u64,
        now: Millis,
        now_unix: Millis,
    ) -> Option<ToAgent> {
        if !self.inventory.is_session(node, session) {
            return None;
        }
        let expiry = self.guards.expiry_from(now);
        let known = self.inventory.nodes.get_mut(&node)?;
        if known.lost || known.generation != generation {
            return None;
        }
        known.expiry = known.expiry.max(expiry);
        known.last_seen_unix = now_unix;
        self.clock.unix = now_unix;
        Some(ToAgent::RenewOk { sent, generation })
    }

    /// Declares nodes lost whose leases ran out, and ends their attempts.
    pub(crate) fn expire_nodes(&mut self, now: Millis, round: &mut Round) {
        self.lose_rolled_back_nodes(round);
        let overdue: Vec<NodeId> = self
            .inventory
            .nodes
            .iter()
            .filter(|(_, node)| !node.lost && now >= node.expiry)
            .map(|(id, _)| *id)
            .collect();
        if overdue.is_empty() || self.is_braking(now) {
            return;
        }
        for id in overdue {
            let Some(node) = self.inventory.nodes.get(&id) else { continue };
            let detail = format!("node {} did not report for a whole lease", node.name);
            let generation = node.generation + 1;
            self.declare_lost(id, generation, &detail, round);
        }
    }

    /// Declares nodes of old generations lost after a database rollback. Their attempts end in the
    /// store now, and on the node when it comes back (rule F11). Nothing is placed until all
    /// leases of unknown grants have run out.
    fn lose_rolled_back_nodes(&mut self, round: &mut Round) {
        let generation_min = self.guards.generation_min;
        let below: Vec<NodeId> = self
            .inventory
            .nodes
            .iter()
            .filter(|(_, n)| n.generation < generation_min)
            .map(|(id, _)| *id)
            .collect();
        for id in below {
            self.declare_lost(
                id,
                generation_min,
                "the database was rolled back to an earlier state",
                round,
            );
        }
    }

    fn declare_lost(&mut self, id: NodeId, generation: u64, detail: &str, round: &mut Round) {
        let Some(node) = self.inventory.nodes.get_mut(&id) else { return };
        node.lost = true;
        node.generation = generation;
        if let Some(session) = node.session.take() {
            let reason = format!("it was declared lost: {detail}");
            round.effects.push(RoundEffect::Refuse { session: session.id, reason, retry: true });
        }
        round.nodes.generations.push((id, generation, true));
        self.give_up_layouts(id, detail, round);
        round.shape_changed = true;
        for attempt in self.attempts.on_node(id) {
            self.end_attempt(attempt, record_without_exit(Outcome::Lost, detail.to_owned()), round);
        }
    }

    /// Returns whether most nodes fell silent at once. Then none is declared lost, since the
    /// controller itself is probably cut off.
    pub fn is_braking(&self, now: Millis) -> bool {
        let (members, overdue) = self.inventory.count_overdue(now);
        members >= BRAKE_FROM_NODES && overdue * 2 > members
    }
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
    let mut nodes = inventory.nodes.iter();
    match nodes.find(|(id, node)| **id != peer.id && node.name == peer.name) {
        Some((owner, _)) => Err(HelloRefusal::NameTaken { name: peer.name.clone(), owner: *owner }),
        None => Ok(()),
    }
}

/// Returns the rollback that an agent proves by holding an epoch or a generation that the
/// store never gave out. Both are committed before they are sent.
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

/// Returns a node as its agent's hello describes it, with a new session.
fn welcomed_node(
    guards: &LeaderGuards,
    inventory: &NodeInventory,
    peer: &NodeIdentity,
    session: u64,
    hello: &Hello,
    now: Millis,
) -> NodeState {
    let known = inventory.nodes.get(&peer.id);
    // A node that is not known may have been forgotten with its generation.
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
            id: session,
            process: hello.process,
            address: hello.address.clone(),
            ready: false,
            reported: HashSet::new(),
        }),
        expiry: guards.expiry_from(now),
        last_seen_unix: known.map_or(Millis::ZERO, |node| node.last_seen_unix),
    }
}

/// Whether the store already has all that a hello registers.
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
