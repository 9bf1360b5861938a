//! What happens on nodes: time, processes, agents, and what reaches them.

use super::{Move, Moves};
use crate::rules::Rule;
use crate::state::{ATTEMPTS, Agent, Attempt, DRIFT, Message, NODE_LEASE, Node};

/// The clock moves on. A fence that is due by [`DRIFT`] has struck by then.
pub fn time_passes(moves: &mut Moves<'_>) {
    let state = moves.before;
    if state.now >= moves.bounds.ticks {
        return;
    }
    let shepherds = moves.rules.hold(Rule::ShepherdFence);
    let now = state.now + 1;
    moves.add(Move::TimePasses { now }, |after| {
        after.now = now;
        for agent in &mut after.agents {
            if can_fence(agent, shepherds) && now >= agent.lease_ends + DRIFT {
                agent.kill_all();
            }
        }
    });
}

/// F5: with shepherds, a dead agent doesn't keep the fence from working.
fn can_fence(agent: &Agent, shepherds: bool) -> bool {
    agent.live() > 0 && (agent.up || shepherds)
}

/// Adds the moves that a node makes by itself.
pub fn own_moves(moves: &mut Moves<'_>, node: Node) {
    let state = moves.before;
    let agent = &state.agents[node];
    let shepherds = moves.rules.hold(Rule::ShepherdFence);
    if can_fence(agent, shepherds) && state.now >= agent.lease_ends {
        moves.add(Move::NodeFencesItself { node }, |after| after.agents[node].kill_all());
    }
    if agent.up && state.crashes < moves.bounds.crashes {
        let forgets = !moves.rules.hold(Rule::AgentEpochPersisted);
        moves.add(Move::AgentCrashes { node }, |after| {
            after.crashes += 1;
            let agent = &mut after.agents[node];
            agent.up = false;
            agent.launching = None;
            if forgets {
                agent.epoch_seen = 0;
            }
        });
    }
    if !agent.up {
        moves.add(Move::AgentRestarts { node }, |after| after.agents[node].up = true);
    }
    for attempt in (1..).take(ATTEMPTS) {
        if agent.processes[usize::from(attempt) - 1] > 0 {
            moves.add(Move::ProcessExits { node, attempt }, |after| {
                *after.agents[node].processes_of(attempt) -= 1;
                after.exits.insert(attempt);
            });
            if state.given[usize::from(attempt) - 1] + 1 < moves.bounds.sizes {
                moves.add(Move::ProcessRunsOutOfMemory { node, attempt }, |after| {
                    *after.agents[node].processes_of(attempt) -= 1;
                    after.exits.insert(attempt);
                    after.ran_out.insert(attempt);
                });
            }
        }
    }
    if let (true, Some(attempt)) = (agent.up, agent.launching) {
        complete_launch(moves, node, attempt);
    }
    renew(moves, node);
}

/// F9: the journal's entry stands, so a spawn that a crash cuts short is never repeated. Without
/// the rule the process runs before the journal knows of it.
fn complete_launch(moves: &mut Moves<'_>, node: Node, attempt: Attempt) {
    let journalled = moves.rules.hold(Rule::JournalFirst);
    moves.add(Move::LaunchIsCompleted { node, attempt }, |after| {
        let now = after.now;
        let agent = &mut after.agents[node];
        agent.launching = None;
        if !journalled {
            agent.journal.insert(attempt);
        } else if !agent.tombstones.contains(attempt) && now < agent.lease_ends {
            *agent.processes_of(attempt) += 1;
        }
    });
}

/// One renewal is under way at a time; the answer may be lost as well as the question.
fn renew(moves: &mut Moves<'_>, node: Node) {
    let state = moves.before;
    let agent = &state.agents[node];
    let under_way = state.net.iter().copied().find(|message| match message {
        Message::Renewal { node: of, .. } | Message::Renewed { node: of, .. } => *of == node,
        Message::Launch { .. } => false,
    });
    if let Some(message) = under_way {
        moves.add(Move::RenewalIsLost { node }, |after| {
            after.net.remove(&message);
        });
    } else if agent.up && state.store.attached[node] && state.now + NODE_LEASE > agent.lease_ends {
        let (sent, generation) = (state.now, agent.generation);
        moves.add(Move::RenewalIsSent { node }, |after| {
            after.net.insert(Message::Renewal { node, sent, generation });
        });
    }
}

/// A message reaches an agent.
pub fn delivery(moves: &mut Moves<'_>, message: Message) {
    match message {
        Message::Launch { .. } => accept_launch(moves, message),
        Message::Renewed { .. } => take_lease(moves, message),
        Message::Renewal { .. } => {}
    }
}

/// The message stays under way: it may come again.
fn accept_launch(moves: &mut Moves<'_>, message: Message) {
    let Message::Launch { attempt, node, generation, epoch } = message else { return };
    let state = moves.before;
    let agent = &state.agents[node];
    let checks_epoch = moves.rules.hold(Rule::AgentEpoch);
    let known = agent.journal.contains(attempt) || agent.tombstones.contains(attempt);
    let accepted = agent.up
        && agent.launching.is_none()
        && (!checks_epoch || epoch >= agent.epoch_seen)
        && (!moves.rules.hold(Rule::NodeGeneration) || generation == agent.generation)
        && !known
        && state.now < agent.lease_ends;
    if !accepted {
        return;
    }
    let journals = moves.rules.hold(Rule::JournalFirst);
    moves.add(Move::LaunchIsAccepted { node, attempt, epoch }, |after| {
        let agent = &mut after.agents[node];
        if checks_epoch {
            agent.epoch_seen = agent.epoch_seen.max(epoch);
        }
        agent.launching = Some(attempt);
        if journals {
            agent.journal.insert(attempt);
        } else {
            *agent.processes_of(attempt) += 1;
        }
    });
}

fn take_lease(moves: &mut Moves<'_>, message: Message) {
    let Message::Renewed { node, sent, generation } = message else { return };
    let state = moves.before;
    let agent = &state.agents[node];
    let counted_from = if moves.rules.hold(Rule::LeaseFromSend) { sent } else { state.now };
    let until = counted_from + NODE_LEASE;
    if agent.up && generation == agent.generation && until > agent.lease_ends {
        moves.add(Move::LeaseIsTaken { node, until }, |after| {
            after.net.remove(&message);
            after.agents[node].lease_ends = until;
        });
    }
}

/// A node that was declared lost comes back, gets the new generation and a fresh lease.
pub fn reattachment(moves: &mut Moves<'_>, node: Node) {
    let state = moves.before;
    let led = state.leaders.iter().any(|leader| leader.epoch == Some(state.store.epoch));
    let lost = !state.store.attached[node];
    if !(state.agents[node].up && lost && led && state.now < moves.bounds.ticks) {
        return;
    }
    let generation = state.store.generations[node];
    let kills = moves.rules.hold(Rule::KillOnReattach);
    moves.add(Move::NodeReattaches { node, generation }, |after| {
        let until = after.now + NODE_LEASE;
        let agent = &mut after.agents[node];
        if kills {
            agent.kill_all();
            agent.launching = None;
        }
        agent.generation = generation;
        agent.lease_ends = until;
        after.store.attached[node] = true;
        let epoch = after.store.epoch;
        for leader in after.leaders.iter_mut().filter(|leader| leader.epoch == Some(epoch)) {
            leader.lease_ends[node] = until;
        }
    });
}
