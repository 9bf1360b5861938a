//! What controllers do, the leader and those that take themselves for it.

use super::{Move, Moves};
use crate::rules::Rule;
use crate::state::{
    ATTEMPTS, Attempt, Controller, DRIFT, Epoch, Job, LEADER_LEASE, Launch, Message, NODE_LEASE,
    NODES, Node,
};

/// Everything that one controller may do next.
pub fn moves(moves: &mut Moves<'_>, controller: Controller) {
    let state = moves.before;
    elect(moves, controller);
    let Some(epoch) = state.leaders[controller].epoch else { return };
    if state.crashes < moves.bounds.crashes {
        moves.add(Move::ControllerCrashes { controller }, |after| {
            after.crashes += 1;
            let leader = &mut after.leaders[controller];
            leader.epoch = None;
            leader.to_send = None;
        });
    }
    let leads = epoch == state.store.epoch;
    if leads && state.now + LEADER_LEASE > state.store.leader_until {
        moves.add(Move::LeadershipIsRenewed { controller }, |after| {
            after.store.leader_until = after.now + LEADER_LEASE;
            after.leaders[controller].trusts_itself_until = after.now + LEADER_LEASE - DRIFT;
        });
    }
    // F2: a deposed leader's transaction finds the newer epoch and aborts.
    let may_write = leads || !moves.rules.hold(Rule::TxnGuard);
    if may_write && state.now >= state.hold_until {
        match state.store.job {
            Job::Queued => commit_attempts(moves, controller),
            Job::Live { attempt, node } => drive(moves, controller, attempt, node, epoch),
            Job::Done { .. } => {}
        }
        for node in 0..NODES {
            declare_lost(moves, controller, node);
        }
    }
    send_launch(moves, controller, epoch);
    answer_renewals(moves, controller, leads);
    if leads {
        record_exits(moves, controller);
    }
}

/// Another controller takes over once the leader's lease has ended on the store's clock.
fn elect(moves: &mut Moves<'_>, controller: Controller) {
    let state = moves.before;
    let leads = state.leaders[controller].epoch == Some(state.store.epoch);
    let free = state.now >= state.store.leader_until;
    if leads || !free || state.store.epoch >= moves.bounds.epochs {
        return;
    }
    let mut epoch = state.store.epoch + 1;
    if moves.bounds.rewinds && moves.rules.hold(Rule::RewindHold) {
        // F14: agents report the highest epoch that they have seen.
        let seen = state.agents.iter().map(|agent| agent.epoch_seen).max();
        epoch = epoch.max(seen.map_or(0, |seen| seen + 1));
    }
    let grace = if moves.rules.hold(Rule::Grace) { NODE_LEASE } else { 0 };
    moves.add(Move::LeaderIsElected { controller, epoch }, |after| {
        after.store.epoch = epoch;
        after.store.leader_until = after.now + LEADER_LEASE;
        let leader = &mut after.leaders[controller];
        leader.size = 0;
        leader.epoch = Some(epoch);
        leader.trusts_itself_until = after.now + LEADER_LEASE - DRIFT;
        leader.lease_ends = [after.now + grace; NODES];
        leader.to_send = None;
    });
}

/// The first attempt goes to node 0: the nodes are alike.
fn commit_attempts(moves: &mut Moves<'_>, controller: Controller) {
    let store = &moves.before.store;
    let attempt = store.next_attempt;
    let busy = moves.before.leaders[controller].to_send.is_some();
    if busy || attempt > moves.bounds.attempts() {
        return;
    }
    // What one leader alone knows is gone with it.
    let size = match moves.rules.hold(Rule::SizeRecorded) {
        true => store.size,
        false => moves.before.leaders[controller].size,
    };
    for node in 0..NODES {
        if !store.attached[node] || (attempt == 1 && node != 0) {
            continue;
        }
        moves.add(Move::AttemptIsCommitted { controller, attempt, node }, |after| {
            let generation = after.store.generations[node];
            after.store.next_attempt += 1;
            after.last_attempt = after.last_attempt.max(attempt);
            after.store.job = Job::Live { attempt, node };
            after.given[usize::from(attempt) - 1] = size;
            after.size_tried_twice |= size < after.too_small_below;
            after.leaders[controller].to_send = Some(Launch { attempt, node, generation });
        });
    }
}

/// A launch without an answer is sent again, or given up although the node's lease is good.
fn drive(
    moves: &mut Moves<'_>,
    controller: Controller,
    attempt: Attempt,
    node: Node,
    epoch: Epoch,
) {
    let state = moves.before;
    if state.leaders[controller].to_send.is_none() {
        moves.add(Move::LaunchIsDrivenAgain { controller, attempt }, |after| {
            let generation = after.store.generations[node];
            after.leaders[controller].to_send = Some(Launch { attempt, node, generation });
        });
    }
    if state.store.next_attempt > moves.bounds.attempts() {
        return;
    }
    let agent = &state.agents[node];
    let revokes = moves.rules.hold(Rule::Revoke);
    // F8: question and answer in one step, since only the acknowledgement counts.
    if !revokes || (agent.up && epoch >= agent.epoch_seen) {
        moves.add(Move::LaunchIsGivenUp { controller, attempt, node }, |after| {
            after.store.job = Job::Queued;
            if revokes {
                let agent = &mut after.agents[node];
                agent.epoch_seen = epoch;
                agent.tombstones.insert(attempt);
                *agent.processes_of(attempt) = 0;
            }
        });
    }
}

fn declare_lost(moves: &mut Moves<'_>, controller: Controller, node: Node) {
    let state = moves.before;
    let margin = if moves.rules.hold(Rule::DriftMargin) { DRIFT } else { 0 };
    let expiry = state.leaders[controller].lease_ends[node] + margin;
    if !state.store.attached[node] || state.now < expiry {
        return;
    }
    moves.add(Move::NodeIsDeclaredLost { controller, node }, |after| {
        let store = &mut after.store;
        store.attached[node] = false;
        store.generations[node] += 1;
        match store.job {
            Job::Live { node: of, .. } if of == node => store.job = Job::Queued,
            Job::Live { .. } | Job::Queued | Job::Done { .. } => {}
        }
    });
}

fn send_launch(moves: &mut Moves<'_>, controller: Controller, epoch: Epoch) {
    let Some(launch) = moves.before.leaders[controller].to_send else { return };
    let Launch { attempt, node, generation } = launch;
    moves.add(Move::LaunchIsSent { controller, attempt, node }, |after| {
        after.leaders[controller].to_send = None;
        after.net.insert(Message::Launch { attempt, node, generation, epoch });
    });
}

/// A deposed leader answers from what it remembers: it knows of no newer generation.
fn answer_renewals(moves: &mut Moves<'_>, controller: Controller, leads: bool) {
    let state = moves.before;
    let trusts_itself = state.now < state.leaders[controller].trusts_itself_until;
    if !trusts_itself && moves.rules.hold(Rule::TrustWindow) {
        return;
    }
    for message in &state.net {
        let Message::Renewal { node, sent, generation } = *message else { continue };
        let current =
            !moves.rules.hold(Rule::NodeGeneration) || generation == state.store.generations[node];
        if leads && !(state.store.attached[node] && current) {
            continue;
        }
        moves.add(Move::RenewalIsAnswered { controller, node }, |after| {
            after.net.remove(message);
            after.net.insert(Message::Renewed { node, sent, generation });
            let ends = &mut after.leaders[controller].lease_ends[node];
            *ends = (*ends).max(after.now + NODE_LEASE);
        });
    }
}

/// F10: the exit must name the attempt that the job has now.
fn record_exits(moves: &mut Moves<'_>, controller: Controller) {
    let state = moves.before;
    let fenced = moves.rules.hold(Rule::ResultFence);
    for attempt in (1..).take(ATTEMPTS).filter(|attempt| state.exits.contains(*attempt)) {
        let moves_job = match state.store.job {
            Job::Live { attempt: current, .. } => current == attempt || !fenced,
            Job::Queued => !fenced,
            Job::Done { .. } => false,
        };
        if moves_job {
            moves.add(Move::ExitIsRecorded { controller, attempt }, |after| {
                if !after.ran_out.contains(attempt) {
                    after.store.job = Job::Done { by: attempt };
                    return;
                }
                let next = after.given[usize::from(attempt) - 1] + 1;
                after.store.job = Job::Queued;
                after.store.size = next.max(after.store.size);
                after.leaders[controller].size = next;
                after.too_small_below = after.too_small_below.max(next);
            });
        }
    }
}
