//! Everything that can happen next.

mod controllers;
mod nodes;
mod store;

use crate::rules::Rules;
use crate::state::{Attempt, Bounds, Controller, Epoch, Generation, Node, State, Tick};

/// What happened; a run is a list of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    TimePasses {
        now: Tick,
    },
    NodeFencesItself {
        node: Node,
    },
    AgentCrashes {
        node: Node,
    },
    AgentRestarts {
        node: Node,
    },
    ProcessExits {
        node: Node,
        attempt: Attempt,
    },
    /// The second half of a launch: the spawn, or with rule F9 off the journal's entry.
    LaunchIsCompleted {
        node: Node,
        attempt: Attempt,
    },
    RenewalIsSent {
        node: Node,
    },
    RenewalIsLost {
        node: Node,
    },
    LaunchIsAccepted {
        node: Node,
        attempt: Attempt,
        epoch: Epoch,
    },
    LeaseIsTaken {
        node: Node,
        until: Tick,
    },
    LeaderIsElected {
        controller: Controller,
        epoch: Epoch,
    },
    ControllerCrashes {
        controller: Controller,
    },
    LeadershipIsRenewed {
        controller: Controller,
    },
    AttemptIsCommitted {
        controller: Controller,
        attempt: Attempt,
        node: Node,
    },
    LaunchIsDrivenAgain {
        controller: Controller,
        attempt: Attempt,
    },
    LaunchIsGivenUp {
        controller: Controller,
        attempt: Attempt,
        node: Node,
    },
    NodeIsDeclaredLost {
        controller: Controller,
        node: Node,
    },
    LaunchIsSent {
        controller: Controller,
        attempt: Attempt,
        node: Node,
    },
    RenewalIsAnswered {
        controller: Controller,
        node: Node,
    },
    ExitIsRecorded {
        controller: Controller,
        attempt: Attempt,
    },
    NodeReattaches {
        node: Node,
        generation: Generation,
    },
    StandbyHasThisState,
    StoreGoesBack,
    ProcessRunsOutOfMemory {
        node: Node,
        attempt: Attempt,
    },
}

impl Move {
    /// Returns the node that it is about, if it is about one.
    pub fn node(self) -> Option<Node> {
        match self {
            Self::NodeFencesItself { node }
            | Self::AgentCrashes { node }
            | Self::AgentRestarts { node }
            | Self::ProcessExits { node, .. }
            | Self::LaunchIsCompleted { node, .. }
            | Self::RenewalIsSent { node }
            | Self::RenewalIsLost { node }
            | Self::LaunchIsAccepted { node, .. }
            | Self::LeaseIsTaken { node, .. }
            | Self::AttemptIsCommitted { node, .. }
            | Self::LaunchIsGivenUp { node, .. }
            | Self::NodeIsDeclaredLost { node, .. }
            | Self::LaunchIsSent { node, .. }
            | Self::RenewalIsAnswered { node, .. }
            | Self::NodeReattaches { node, .. }
            | Self::ProcessRunsOutOfMemory { node, .. } => Some(node),
            Self::TimePasses { .. }
            | Self::LeaderIsElected { .. }
            | Self::ControllerCrashes { .. }
            | Self::LeadershipIsRenewed { .. }
            | Self::LaunchIsDrivenAgain { .. }
            | Self::ExitIsRecorded { .. }
            | Self::StandbyHasThisState
            | Self::StoreGoesBack => None,
        }
    }
}

/// The moves out of one state.
#[derive(Debug)]
pub struct Moves<'s> {
    pub before: &'s State,
    pub rules: Rules,
    pub bounds: Bounds,
    out: Vec<(Move, State)>,
}

impl Moves<'_> {
    /// Adds a move that changes a copy of the state.
    pub fn add(&mut self, name: Move, change: impl FnOnce(&mut State)) {
        let mut after = self.before.clone();
        change(&mut after);
        self.out.push((name, after));
    }
}

/// Returns every move out of `state` and where it leads, always in the same order.
pub fn successors(state: &State, rules: Rules, bounds: Bounds) -> Vec<(Move, State)> {
    let mut moves = Moves { before: state, rules, bounds, out: Vec::with_capacity(24) };
    nodes::time_passes(&mut moves);
    for node in 0..state.agents.len() {
        nodes::own_moves(&mut moves, node);
    }
    for controller in 0..state.leaders.len() {
        controllers::moves(&mut moves, controller);
    }
    for message in &state.net {
        nodes::delivery(&mut moves, *message);
    }
    for node in 0..state.agents.len() {
        nodes::reattachment(&mut moves, node);
    }
    if bounds.rewinds {
        store::goes_back(&mut moves);
    }
    moves.out
}
