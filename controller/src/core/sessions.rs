//! Who is connected, who may run attempts until when, and who is lost.

use tessera_model::life::Outcome;
use tessera_model::{GpuId, Millis, NodeId, NodeName};
use tessera_wire::frames::{Hello, PROTOCOL_VERSION, ToAgent, Welcome};
use tessera_wire::tls::NodeIdentity;

use super::setback::{SetBack, is_credible};
use super::{Cluster, Effect, Node, Round, Session};
use crate::store::moves::record_without_exit;
use crate::store::nodes::Attach;

/// From this many nodes on, losing most of them at once is more likely our own fault.
const BRAKE_FROM_NODES: usize = 3;

impl Cluster {
    /// Welcomes a node, or says why not.
    pub(super) fn hello(
        &mut self,
        peer: NodeIdentity,
        session: u64,
        hello: Hello,
        now: Millis,
        round: &mut Round,
    ) {
        if let Err((reason, retry)) = self.admit(&peer, &hello) {
            round.effects.push(Effect::Refuse { session, reason, retry });
            return;
        }
        if let Some(set_back) = self.set_back_by(&peer, &hello) {
            let worse = round.rewound.is_none_or(|known| {
                (known.highest_epoch(), known.highest_generation())
                    < (set_back.highest_epoch(), set_back.highest_generation())
            });
            if worse {
                round.rewound = Some(set_back);
            }
            let reason = "the store was set back: the controller takes stock first".to_owned();
            round.effects.push(Effect::Refuse { session, reason, retry: true });
            return;
        }
        if self.doubt(&peer, session, &hello, now, round).is_none() {
            self.welcome(peer, session, hello, now, round);
        }
    }

    pub(super) fn welcome(
        &mut self,
        peer: NodeIdentity,
        session: u64,
        hello: Hello,
        now: Millis,
        round: &mut Round,
    ) {
        self.bury_other_boots(peer.id, &hello, round);
        let known = self.nodes.get(&peer.id);
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
        let generation = known.map_or(1, |node| node.generation).max(self.generation_floor);
        let generation =
            if hello.generation > generation { hello.generation + 1 } else { generation };
        let node = Node {
            name: peer.name.clone(),
            generation,
            lost: false,
            boot: hello.boot,
            software: hello.software.clone(),
            cores: hello.cores,
            memory_bytes: hello.memory.get(),
            mps: hello.mps,
            kernel: hello.kernel,
            session: Some(Session {
                id: session,
                process: hello.process,
                address: hello.address,
                ready: false,
                reported: std::collections::HashSet::new(),
            }),
            expiry: self.expiry_from(now),
            last_seen_unix: known.map_or(Millis::ZERO, |node| node.last_seen_unix),
        };
        if !unchanged {
            round.attaches.push(Attach {
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
        self.nodes.insert(peer.id, node);
        for gpu in self.gpus.values_mut().filter(|gpu| gpu.node == peer.id) {
            gpu.fresh = false;
        }
        round.shape_changed = true;
        round.effects.push(Effect::Bind { node: peer.id, session });
        let welcome = Welcome {
            protocol: PROTOCOL_VERSION,
            controller: self.controller,
            node: peer.name,
            epoch: self.epoch,
            generation,
            lease: self.terms,
        };
        round
            .effects
            .push(Effect::Send { node: peer.id, frame: Box::new(ToAgent::Welcome(welcome)) });
    }

    /// What an agent holds that the store never gave it: generations are committed before they are
    /// sent, and so are epochs.
    fn set_back_by(&self, peer: &NodeIdentity, hello: &Hello) -> Option<SetBack> {
        if hello.highest_epoch > self.epoch {
            return Some(SetBack::EarlierEpoch { known: hello.highest_epoch, found: self.epoch });
        }
        let given = self.nodes.get(&peer.id)?.generation.max(self.generation_floor);
        (hello.generation > given)
            .then_some(SetBack::EarlierGeneration { known: hello.generation, found: given })
    }

    fn admit(&self, peer: &NodeIdentity, hello: &Hello) -> Result<(), (String, bool)> {
        if hello.protocol != PROTOCOL_VERSION {
            let reason = format!(
                "the agent speaks protocol {}, this controller {PROTOCOL_VERSION}: \
                 install matching versions",
                hello.protocol
            );
            return Err((reason, false));
        }
        if !is_credible(self.epoch, hello.highest_epoch, hello.generation) {
            let reason = format!(
                "the agent holds epoch {} and generation {}, which nobody gave it: the state in \
                 its data folder is damaged; give the node a new identity and an empty folder",
                hello.highest_epoch, hello.generation
            );
            return Err((reason, false));
        }
        if let Some((id, _)) =
            self.nodes.iter().find(|(id, node)| **id != peer.id && node.name == peer.name)
        {
            let reason = format!("the name {} belongs to {id}: choose another", peer.name);
            return Err((reason, false));
        }
        Ok(())
    }

    /// A new boot id proves that every attempt of the old boot is dead: they need not be waited
    /// for. The generation rises, so that their launches can't arrive late.
    fn bury_other_boots(&mut self, id: NodeId, hello: &Hello, round: &mut Round) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.boot == hello.boot {
            return;
        }
        let dead: Vec<_> =
            self.live.iter().filter(|(_, l)| l.node == id).map(|(a, _)| *a).collect();
        if !dead.is_empty() {
            node.generation += 1;
        }
        // What stood is gone, so that the rest of a plan would not make what was asked for.
        self.give_up_wishes(id, "its node was rebooted", round);
        for attempt in dead {
            let detail = "its node was rebooted".to_owned();
            self.end(attempt, record_without_exit(Outcome::Lost, detail), round);
        }
    }

    /// Tells whether a connection is the node's session.
    pub(super) fn hears(&mut self, node: NodeId, session: u64) -> bool {
        self.session(node).is_some_and(|current| current.id == session)
    }

    pub(super) fn session(&mut self, node: NodeId) -> Option<&mut Session> {
        self.nodes.get_mut(&node)?.session.as_mut()
    }

    pub(super) fn close_session(&mut self, node: NodeId, session: u64) {
        if let Some(known) = self.nodes.get_mut(&node)
            && known.session.as_ref().is_some_and(|s| s.id == session)
        {
            known.session = None;
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
        if !self.hears(node, session) {
            return None;
        }
        let expiry = self.expiry_from(now);
        let known = self.nodes.get_mut(&node)?;
        if known.lost || known.generation != generation {
            return None;
        }
        known.expiry = known.expiry.max(expiry);
        known.last_seen_unix = now_unix;
        self.now_unix = now_unix;
        Some(ToAgent::RenewOk { sent, generation })
    }

    /// When a node is given up that is heard of now, and then never again: not before what an
    /// earlier leader granted it has run out, which may have been longer.
    pub(super) fn expiry_from(&self, now: Millis) -> Millis {
        self.terms.controller_expiry(now).max(self.granted_until)
    }

    /// Declares nodes lost whose leases ran out, and sends their jobs on.
    pub(super) fn expire(&mut self, now: Millis, round: &mut Round) {
        self.lose_what_was_granted_unseen(round);
        let overdue: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| !node.lost && now >= node.expiry)
            .map(|(id, _)| *id)
            .collect();
        let members = self.nodes.values().filter(|node| !node.lost).count();
        if overdue.is_empty() || (members >= BRAKE_FROM_NODES && overdue.len() * 2 > members) {
            return;
        }
        for id in overdue {
            let Some(node) = self.nodes.get(&id) else { continue };
            let detail = format!("node {} was not heard of for a whole lease", node.name);
            let generation = node.generation + 1;
            self.lose(id, generation, &detail, round);
        }
    }

    /// After the store was set back, every node is lost as it was: its attempts end in the books
    /// now, and on the node when it comes back (rule F11); nothing is placed until all leases of
    /// unknown grants have run out.
    fn lose_what_was_granted_unseen(&mut self, round: &mut Round) {
        let floor = self.generation_floor;
        let below: Vec<NodeId> =
            self.nodes.iter().filter(|(_, n)| n.generation < floor).map(|(id, _)| *id).collect();
        for id in below {
            self.lose(id, floor, "the database was set back to an earlier state", round);
        }
    }

    fn lose(&mut self, id: NodeId, generation: u64, detail: &str, round: &mut Round) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.lost = true;
        node.generation = generation;
        if let Some(session) = node.session.take() {
            let reason = format!("it was declared lost: {detail}");
            round.effects.push(Effect::Refuse { session: session.id, reason, retry: true });
        }
        round.raises.push((id, generation, true));
        self.give_up_wishes(id, detail, round);
        round.shape_changed = true;
        let lost: Vec<_> =
            self.live.iter().filter(|(_, l)| l.node == id).map(|(a, _)| *a).collect();
        for attempt in lost {
            self.end(attempt, record_without_exit(Outcome::Lost, detail.to_owned()), round);
        }
    }

    /// Tells whether most nodes fell silent at once, so that none is declared lost: the
    /// controller itself is probably the one that is cut off.
    pub fn braking(&self, now: Millis) -> bool {
        let members = self.nodes.values().filter(|node| !node.lost).count();
        let overdue = self.nodes.values().filter(|node| !node.lost && now >= node.expiry).count();
        members >= BRAKE_FROM_NODES && overdue * 2 > members
    }

    /// Finds a node by its name.
    pub fn node_named(&self, name: &NodeName) -> Option<NodeId> {
        self.nodes.iter().find(|(_, node)| node.name == *name).map(|(id, _)| *id)
    }

    /// Returns the node that a GPU is in, if it is known and connected.
    pub fn node_of_gpu(&self, gpu: &GpuId) -> Option<NodeId> {
        let node = self.gpus.get(gpu)?.node;
        self.nodes.get(&node)?.session.as_ref().map(|_| node)
    }
}
