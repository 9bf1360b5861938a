//! Two agents with one identity: a copied disk, or a copied identity folder (rule A8).
//!
//! A restarted agent connects while the connection of its former process may still look alive. So
//! the old connection is probed: if it answers, it stays; if it doesn't, the second agent replaces
//! it. Nothing else distinguishes the cases: both hold the same certificate, and a cloned process
//! may even share the boot.

use crate::round::{Round, RoundEffect};
use crate::state::ClusterState;
use crate::state::inventory::{DuplicateAgent, NodeInventory};
use tessera_frames::cluster::{Hello, ToAgent};
use tessera_model::NodeIdentity;
use tessera_model::{Millis, NodeId};

/// How long the old connection may take to answer. Short against everything that users of a
/// restarted node wait for; long against the stalls of a busy machine.
pub(crate) const ANSWER_WITHIN: Millis = Millis::from_secs(2);

impl ClusterState {
    /// Welcomes second agents whose predecessors did not answer.
    pub(crate) fn welcome_successors(&mut self, now: Millis, round: &mut Round) {
        let is_due = |duplicate: &DuplicateAgent| now >= duplicate.since.plus(ANSWER_WITHIN);
        let due: Vec<_> = self
            .inventory
            .duplicates
            .iter()
            .filter(|(_, duplicate)| is_due(duplicate))
            .map(|(id, _)| *id)
            .collect();
        for node in due {
            self.welcome_successor(node, now, round);
        }
    }

    /// Notes that a connection ended: a waiting agent's own, or the one that it waits for.
    pub(crate) fn note_closed_connection(
        &mut self,
        node: NodeId,
        session: u64,
        now: Millis,
        round: &mut Round,
    ) {
        if self
            .inventory
            .duplicates
            .get(&node)
            .is_some_and(|duplicate| duplicate.session == session)
        {
            self.inventory.duplicates.remove(&node);
        } else if self.inventory.session_mut(node).is_none() {
            self.welcome_successor(node, now, round);
        }
    }

    fn welcome_successor(&mut self, node: NodeId, now: Millis, round: &mut Round) {
        if let Some(DuplicateAgent { peer, session, hello, .. }) =
            self.inventory.duplicates.remove(&node)
        {
            self.welcome(peer, session, hello, now, round);
        }
    }
}

/// Lets a second agent wait if another process has the node's session. Returns `None` if it
/// need not wait.
pub(crate) fn hold_duplicate(
    inventory: &mut NodeInventory,
    peer: &NodeIdentity,
    session: u64,
    hello: &Hello,
    now: Millis,
    effects: &mut Vec<RoundEffect>,
) -> Option<()> {
    let held = inventory.session_mut(peer.id)?;
    if held.process == hello.process {
        return None;
    }
    if inventory.duplicates.contains_key(&peer.id) {
        let reason = format!("another agent has requested to connect as {} before", peer.name);
        effects.push(RoundEffect::Refuse { session, reason, retry: true });
        return Some(());
    }
    let duplicate =
        DuplicateAgent { peer: peer.clone(), session, hello: hello.clone(), since: now };
    inventory.duplicates.insert(peer.id, duplicate);
    let frame = Box::new(ToAgent::Probe { token: session });
    effects.push(RoundEffect::Send { node: peer.id, frame });
    Some(())
}

/// Refuses the second agent, since the node's old connection answers.
pub(crate) fn refuse_duplicate(
    inventory: &mut NodeInventory,
    node: NodeId,
    token: u64,
    effects: &mut Vec<RoundEffect>,
) {
    let Some(duplicate) = inventory.duplicates.remove(&node) else { return };
    if duplicate.session != token {
        inventory.duplicates.insert(node, duplicate);
        return;
    }
    let known = inventory.nodes.get(&node);
    let here = known.is_some_and(|known| known.boot == duplicate.hello.boot);
    let where_ = if here { "on this machine" } else { "on another machine" };
    let reason = format!(
        "another agent {where_} is connected as {0} and answers: two can't share an \
         identity. Make one for this agent with tessera-controller node-cert NAME, and give \
         it a data folder of its own",
        duplicate.peer.name
    );
    effects.push(RoundEffect::Refuse { session: duplicate.session, reason, retry: false });
}

#[cfg(test)]
mod tests {
    use tessera_frames::cluster::{PROTOCOL_VERSION, ToController};
    use tessera_model::lease::LeaseTerms;
    use tessera_model::{BootId, Bytes, ControllerId};
    use uuid::Uuid;

    use super::*;
    use crate::Input;
    use crate::rows::snapshot::StoreSnapshot;

    const START: Millis = Millis::from_secs(1_000);

    fn node() -> NodeId {
        NodeId::from_uuid(Uuid::from_u128(1))
    }

    fn hello(session: u64, process: u64, boot: u128) -> Input {
        Input::Hello {
            peer: NodeIdentity { id: node(), name: "n1".parse().unwrap() },
            session,
            hello: Box::new(Hello {
                protocol: PROTOCOL_VERSION,
                software: String::new(),
                boot: BootId::from_uuid(Uuid::from_u128(boot)),
                process,
                generation: 0,
                highest_epoch: 0,
                controller: None,
                cores: 1,
                memory: Bytes::new(1),
                mps: false,
                kernel: false,
                address: String::new(),
            }),
        }
    }

    /// A cluster whose node is connected by session 1 of process 10.
    fn connected() -> ClusterState {
        let policy = tessera_placement::by_name("scheme-b").unwrap();
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let terms = LeaseTerms::default();
        let mut cluster =
            ClusterState::new(5, controller, terms, policy, StoreSnapshot::default(), START);
        let round = cluster.step(vec![hello(1, 10, 1)], START, &mut Uuid::now_v7);
        assert_eq!(bound(&round), [1]);
        cluster
    }

    fn bound(round: &Round) -> Vec<u64> {
        let bind = |effect: &RoundEffect| match effect {
            RoundEffect::Bind { session, .. } => Some(*session),
            _ => None,
        };
        round.effects.iter().filter_map(bind).collect()
    }

    fn step(cluster: &mut ClusterState, inputs: Vec<Input>, after: Millis) -> Round {
        cluster.step(inputs, START.plus(after), &mut Uuid::now_v7)
    }

    fn answer(token: u64) -> Input {
        let frame = Box::new(ToController::Present { token });
        Input::Frame { node: node(), session: 1, frame }
    }

    #[test]
    fn a_second_agent_is_refused_for_good_while_the_first_answers() {
        for (boot, words) in [(1, "on this machine"), (2, "on another machine")] {
            let mut cluster = connected();
            let asked = step(&mut cluster, vec![hello(2, 11, boot)], Millis::ZERO);
            let probe = Box::new(ToAgent::Probe { token: 2 });
            assert_eq!(asked.effects, [RoundEffect::Send { node: node(), frame: probe }]);

            let told = step(&mut cluster, vec![answer(2)], Millis::new(100));

            let [RoundEffect::Refuse { session: 2, reason, retry: false }] = &told.effects[..]
            else {
                panic!("{:?}", told.effects)
            };
            assert!(reason.contains(words) && reason.contains("node-cert"), "{reason}");
            assert!(bound(&step(&mut cluster, vec![Input::Tick], ANSWER_WITHIN)).is_empty());
        }
    }

    #[test]
    fn a_restarted_agent_takes_over_from_a_process_that_keeps_silent() {
        let mut cluster = connected();
        step(&mut cluster, vec![hello(2, 11, 1)], Millis::ZERO);

        let early = step(&mut cluster, vec![Input::Tick], ANSWER_WITHIN.minus(Millis::new(1)));
        assert!(bound(&early).is_empty());
        assert_eq!(bound(&step(&mut cluster, vec![Input::Tick], ANSWER_WITHIN)), [2]);
    }

    #[test]
    fn a_restarted_agent_need_not_wait_for_a_connection_that_ended() {
        let mut cluster = connected();
        step(&mut cluster, vec![hello(2, 11, 1)], Millis::ZERO);

        let closed = Input::Closed { node: node(), session: 1 };
        assert_eq!(bound(&step(&mut cluster, vec![closed], Millis::ZERO)), [2]);
    }

    #[test]
    fn a_process_that_connects_anew_is_welcomed_at_once() {
        let mut cluster = connected();

        assert_eq!(bound(&step(&mut cluster, vec![hello(2, 10, 1)], Millis::ZERO)), [2]);
    }

    #[test]
    fn a_newcomer_that_went_away_is_forgotten() {
        let mut cluster = connected();
        step(&mut cluster, vec![hello(2, 11, 1)], Millis::ZERO);
        let gone = Input::Closed { node: node(), session: 2 };
        step(&mut cluster, vec![gone], Millis::ZERO);

        assert!(bound(&step(&mut cluster, vec![Input::Tick], ANSWER_WITHIN)).is_empty());
        // An answer that comes late is about nobody.
        assert!(step(&mut cluster, vec![answer(2)], ANSWER_WITHIN).effects.is_empty());
    }

    #[test]
    fn of_two_newcomers_the_second_waits_for_the_first_to_be_judged() {
        let mut cluster = connected();
        step(&mut cluster, vec![hello(2, 11, 1)], Millis::ZERO);

        let round = step(&mut cluster, vec![hello(3, 12, 1)], Millis::ZERO);

        let again =
            |e: &RoundEffect| matches!(e, RoundEffect::Refuse { session: 3, retry: true, .. });
        assert!(round.effects.iter().any(again), "{:?}", round.effects);
    }
}
