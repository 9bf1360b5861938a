//! Sessions of nodes: which are connected, until when each may run attempts, and which are lost.

use crate::rollback::{DatabaseRollback, is_credible};
use crate::round::{Round, RoundEffect};
use crate::rows::nodes::NodeRegistration;
use crate::rows::transitions::record_without_exit;
use crate::state::ClusterState;
use crate::state::inventory::{NodeSession, NodeState};
use tessera_frames::cluster::{Hello, PROTOCOL_VERSION, ToAgent, Welcome};
use tessera_model::life::Outcome;
use tessera_model::{GpuId, Millis, NodeId, NodeIdentity, NodeName};

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
        if let Err(refusal) = self.check_hello(&peer, &hello) {
            let reason = refusal.to_string();
            round.effects.push(RoundEffect::Refuse { session, reason, retry: false });
            return;
        }
        if let Some(set_back) = self.rollback_shown_by(&peer, &hello) {
            let worse = round.rewound.is_none_or(|known| {
                (known.highest_epoch(), known.highest_generation())
                    < (set_back.highest_epoch(), set_back.highest_generation())
            });
            if worse {
                round.rewound = Some(set_back);
            }
            let reason =
                "the database was rolled back: the controller recovers first, try again".to_owned();
            round.effects.push(RoundEffect::Refuse { session, reason, retry: true });
            return;
        }
        if self.hold_duplicate(&peer, session, &hello, now, round).is_none() {
            self.welcome(peer, session, hello, now, round);
        }
    }

    pub(crate) fn welcome(
        &mut self,
        peer: NodeIdentity,
        session: u64,
        hello: Hello,
        now: Millis,
        round: &mut Round,
    ) {
        self.end_earlier_boots(peer.id, &hello, round);
        let known = self.inventory.nodes.get(&peer.id);
        let unchanged = known.is_some_and(|node| {
            !node.lost
                && node.boot == hello.boot
                && node.name == peer.name
                && node.software == hello.software
                && node.mps == hello.mps
                && node.kernel == hello.kernel
                && node.generation >= hello.generation
        });
        // A node that is not known may have been forgotten with its generation.
        let generation = known.map_or(1, |node| node.generation).max(self.guards.generation_min);
        let generation =
            if hello.generation > generation { hello.generation + 1 } else { generation };
        let node = NodeState {
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
                address: hello.address,
                ready: false,
                reported: std::collections::HashSet::new(),
            }),
            expiry: self.guards.expiry_from(now),
            last_seen_unix: known.map_or(Millis::ZERO, |node| node.last_seen_unix),
        };
        if !unchanged {
            round.attaches.push(NodeRegistration {
                node: peer.id,
                name: peer.name.clone(),
                boot: hello.boot,
                generation,
                software: hello.software,
                cores: hello.cores,
                memory_bytes: hello.memory.get(),
                mps: hello.mps,
                kernel: hello.kernel,
            });
        }
        self.inventory.nodes.insert(peer.id, node);
        for gpu in self.inventory.gpus.values_mut().filter(|gpu| gpu.node == peer.id) {
            gpu.fresh = false;
        }
        round.shape_changed = true;
        round.effects.push(RoundEffect::Bind { node: peer.id, session });
        let welcome = Welcome {
            protocol: PROTOCOL_VERSION,
            controller: self.guards.controller,
            node: peer.name,
            epoch: self.guards.epoch,
            generation,
            lease: self.guards.lease,
        };
        round
            .effects
            .push(RoundEffect::Send { node: peer.id, frame: Box::new(ToAgent::Welcome(welcome)) });
    }

    /// Returns the rollback that an agent proves by holding an epoch or a generation that the
    /// store never gave out. Both are committed before they are sent.
    fn rollback_shown_by(&self, peer: &NodeIdentity, hello: &Hello) -> Option<DatabaseRollback> {
        if hello.highest_epoch > self.guards.epoch {
            return Some(DatabaseRollback::EarlierEpoch {
                known: hello.highest_epoch,
                found: self.guards.epoch,
            });
        }
        let given = self.inventory.nodes.get(&peer.id)?.generation.max(self.guards.generation_min);
        (hello.generation > given).then_some(DatabaseRollback::EarlierGeneration {
            known: hello.generation,
            found: given,
        })
    }

    fn check_hello(&self, peer: &NodeIdentity, hello: &Hello) -> Result<(), HelloRefusal> {
        if hello.protocol != PROTOCOL_VERSION {
            return Err(HelloRefusal::OtherProtocol { agent: hello.protocol });
        }
        if !is_credible(self.guards.epoch, hello.highest_epoch, hello.generation) {
            let (epoch, generation) = (hello.highest_epoch, hello.generation);
            return Err(HelloRefusal::DamagedState { epoch, generation });
        }
        let mut nodes = self.inventory.nodes.iter();
        match nodes.find(|(id, node)| **id != peer.id && node.name == peer.name) {
            Some((owner, _)) => {
                Err(HelloRefusal::NameTaken { name: peer.name.clone(), owner: *owner })
            }
            None => Ok(()),
        }
    }

    /// Ends the attempts of earlier boots: a new boot id proves that none of them runs. The
    /// generation rises, so that their launches can't arrive late.
    fn end_earlier_boots(&mut self, id: NodeId, hello: &Hello, round: &mut Round) {
        let Some(node) = self.inventory.nodes.get_mut(&id) else { return };
        if node.boot == hello.boot {
            return;
        }
        let dead: Vec<_> =
            self.attempts.live.iter().filter(|(_, l)| l.node == id).map(|(a, _)| *a).collect();
        if !dead.is_empty() {
            node.generation += 1;
        }
        // What stood is gone, so that the rest of a plan would not make what was asked for.
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
    pub fn renew(
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
        let members = self.inventory.nodes.values().filter(|node| !node.lost).count();
        if overdue.is_empty() || (members >= BRAKE_FROM_NODES && overdue.len() * 2 > members) {
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
        let floor = self.guards.generation_min;
        let below: Vec<NodeId> = self
            .inventory
            .nodes
            .iter()
            .filter(|(_, n)| n.generation < floor)
            .map(|(id, _)| *id)
            .collect();
        for id in below {
            self.declare_lost(id, floor, "the database was rolled back to an earlier state", round);
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
        round.raises.push((id, generation, true));
        self.give_up_layouts(id, detail, round);
        round.shape_changed = true;
        let lost: Vec<_> =
            self.attempts.live.iter().filter(|(_, l)| l.node == id).map(|(a, _)| *a).collect();
        for attempt in lost {
            self.end_attempt(attempt, record_without_exit(Outcome::Lost, detail.to_owned()), round);
        }
    }

    /// Returns whether most nodes fell silent at once. Then none is declared lost, since the
    /// controller itself is probably cut off.
    pub fn braking(&self, now: Millis) -> bool {
        let members = self.inventory.nodes.values().filter(|node| !node.lost).count();
        let overdue =
            self.inventory.nodes.values().filter(|node| !node.lost && now >= node.expiry).count();
        members >= BRAKE_FROM_NODES && overdue * 2 > members
    }

    /// Returns the node of a name.
    pub fn node_named(&self, name: &NodeName) -> Option<NodeId> {
        self.inventory.nodes.iter().find(|(_, node)| node.name == *name).map(|(id, _)| *id)
    }

    /// Returns the node that a GPU is in, if it is known and connected.
    pub fn node_of_gpu(&self, gpu: &GpuId) -> Option<NodeId> {
        let node = self.inventory.gpus.get(gpu)?.node;
        self.inventory.nodes.get(&node)?.session.as_ref().map(|_| node)
    }
}
