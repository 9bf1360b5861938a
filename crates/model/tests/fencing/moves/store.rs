//! The store loses its newest transactions, as after an asynchronous failover.

use super::{Move, Moves};
use crate::rules::Rule;
use crate::state::{DRIFT, Job, NODE_LEASE, Store};

/// Once in a run the standby is left behind, and once the store goes back to it.
pub fn goes_back(moves: &mut Moves<'_>) {
    let state = moves.before;
    if state.rewound {
        return;
    }
    match &state.standby {
        None => moves.add(Move::StandbyHasThisState, |after| {
            after.standby = Some(Box::new(after.store.clone()));
        }),
        Some(standby) if **standby != state.store => rewind(moves, standby),
        Some(_) => {}
    }
}

fn rewind(moves: &mut Moves<'_>, standby: &Store) {
    let is_new = moves.rules.hold(Rule::AttemptUuid);
    let holds = moves.rules.hold(Rule::RewindHold);
    moves.add(Move::StoreGoesBack, |after| {
        after.store = standby.clone();
        after.store.leader_until = after.store.leader_until.min(after.now);
        after.rewound = true;
        after.standby = None;
        for leader in &mut after.leaders {
            leader.epoch = None;
            leader.to_send = None;
        }
        if is_new {
            // F13: an identity is never made again, whatever the store remembers.
            after.store.next_attempt = after.last_attempt + 1;
        }
        if holds {
            after.hold_until = after.now + NODE_LEASE + DRIFT;
            for (node, agent) in after.agents.iter().enumerate() {
                let generation = &mut after.store.generations[node];
                *generation = (*generation).max(agent.generation) + 1;
                after.store.attached[node] = false;
            }
            if let Job::Live { .. } = after.store.job {
                after.store.job = Job::Queued;
            }
        }
    });
}
