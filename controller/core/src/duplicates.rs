//! Two agents with one identity: a copied disk, or a copied identity folder (rule A8).
//!
//! A restarted agent may connect while the connection of its former process still seems to be
//! alive. So the old connection is probed: if it answers, it stays; if it doesn't, the second agent
//! replaces it. Nothing else distinguishes the cases: both hold the same certificate, and a cloned
//! process may even share the boot.

use crate::round::RoundEffect;
use crate::state::inventory::{ConnectedAgent, DuplicateAgent, NodeInventory};
use tessera_frames::cluster::ToAgent;
use tessera_model::{Millis, NodeId};

/// How long the old connection may take to answer. This is short compared with other delays of a
/// restarted node, and long compared with the stalls of a busy machine.
pub(crate) const ANSWER_WITHIN: Millis = Millis::from_secs(2);

/// Accepts the second agents whose predecessors did not answer.
pub(crate) fn take_due_successors(
    inventory: &mut NodeInventory,
    now: Millis,
) -> Vec<ConnectedAgent> {
    let is_due = |duplicate: &DuplicateAgent| now >= duplicate.since.plus(ANSWER_WITHIN);
    let waiting = inventory.duplicates.iter().filter(|(_, duplicate)| is_due(duplicate));
    let due: Vec<NodeId> = waiting.map(|(id, _)| *id).collect();
    let taken = due.iter().filter_map(|id| inventory.duplicates.remove(id));
    taken.map(|duplicate| duplicate.agent).collect()
}

/// Records that a connection ended: a waiting agent's own, or the one that it waits for. Returns
/// the agent that no longer waits.
pub(crate) fn note_closed_connection(
    inventory: &mut NodeInventory,
    node: NodeId,
    session: u64,
) -> Option<ConnectedAgent> {
    let waiting = inventory.duplicates.get(&node);
    if waiting.is_some_and(|duplicate| duplicate.agent.session == session) {
        inventory.duplicates.remove(&node);
        return None;
    }
    if inventory.session_mut(node).is_some() {
        return None;
    }
    inventory.duplicates.remove(&node).map(|duplicate| duplicate.agent)
}

/// Lets a second agent wait if another process has the node's session. Returns `None` if it
/// need not wait.
pub(crate) fn hold_duplicate(
    inventory: &mut NodeInventory,
    agent: &ConnectedAgent,
    now: Millis,
    effects: &mut Vec<RoundEffect>,
) -> Option<()> {
    let ConnectedAgent { peer, session, hello } = agent;
    let session = *session;
    let held = inventory.session_mut(peer.id)?;
    if held.process == hello.process {
        return None;
    }
    if inventory.duplicates.contains_key(&peer.id) {
        let reason = format!("another agent has requested to connect as {} before", peer.name);
        effects.push(RoundEffect::Refuse { session, reason, retry: true });
        return Some(());
    }
    let duplicate = DuplicateAgent { agent: agent.clone(), since: now };
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
    if duplicate.agent.session != token {
        inventory.duplicates.insert(node, duplicate);
        return;
    }
    let known = inventory.nodes.get(&node);
    let here = known.is_some_and(|known| known.boot == duplicate.agent.hello.boot);
    let where_ = if here { "on this machine" } else { "on another machine" };
    let reason = format!(
        "another agent {where_} is connected as {0} and answers: two agents can't share an \
         identity. Create one for this agent with tessera-controller node-cert NAME, and give it \
         its own data folder",
        duplicate.agent.peer.name
    );
    effects.push(RoundEffect::Refuse { session: duplicate.agent.session, reason, retry: false });
}

#[cfg(test)]
mod tests {
    use tessera_frames::cluster::{Hello, PROTOCOL_VERSION, ToController};
    use tessera_model::lease::LeaseTerms;
    use tessera_model::{BootId, Bytes, ControllerId, NodeIdentity};
    use uuid::Uuid;

    use super::*;
    use crate::round::Round;
    use crate::rows::snapshot::StoreSnapshot;
    use crate::{ClusterState, Input};

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
                receipt: Vec::new(),
                controller: None,
                cores: 1,
                memory: Bytes::new(1),
                mps: false,
                kernel: false,
                address: String::new(),
                isolation_gaps: std::collections::BTreeSet::new(),
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
    fn a_restarted_agent_takes_over_from_a_silent_process() {
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
    fn a_process_that_reconnects_is_accepted_at_once() {
        let mut cluster = connected();

        assert_eq!(bound(&step(&mut cluster, vec![hello(2, 10, 1)], Millis::ZERO)), [2]);
    }

    #[test]
    fn a_second_agent_that_disconnected_is_forgotten() {
        let mut cluster = connected();
        step(&mut cluster, vec![hello(2, 11, 1)], Millis::ZERO);
        let gone = Input::Closed { node: node(), session: 2 };
        step(&mut cluster, vec![gone], Millis::ZERO);

        assert!(bound(&step(&mut cluster, vec![Input::Tick], ANSWER_WITHIN)).is_empty());
        // A late answer concerns no waiting agent.
        assert!(step(&mut cluster, vec![answer(2)], ANSWER_WITHIN).effects.is_empty());
    }

    #[test]
    fn of_two_new_agents_the_second_waits_until_the_first_is_decided() {
        let mut cluster = connected();
        step(&mut cluster, vec![hello(2, 11, 1)], Millis::ZERO);

        let round = step(&mut cluster, vec![hello(3, 12, 1)], Millis::ZERO);

        let again =
            |e: &RoundEffect| matches!(e, RoundEffect::Refuse { session: 3, retry: true, .. });
        assert!(round.effects.iter().any(again), "{:?}", round.effects);
    }
}
