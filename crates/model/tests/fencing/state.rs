//! What the protocol's parts know, all at one moment.

use std::collections::BTreeSet;

/// A moment, in ticks of the one true clock. Clocks of the parts are off by less than
/// [`DRIFT`]: the model lets a kill come up to that much late.
pub type Tick = u8;
pub type Epoch = u8;
pub type Generation = u8;
/// A size on the job's ladder, the smallest first.
pub type Size = u8;
/// Index of a node.
pub type Node = usize;
/// Index of a controller.
pub type Controller = usize;

/// Number of an attempt, from 1. With rule F13 a number is never given out twice, so it stands
/// for the UUID.
pub type Attempt = u8;

pub const NODES: usize = 2;
pub const CONTROLLERS: usize = 2;
/// Maximum number of attempts that any run has.
pub const ATTEMPTS: usize = 3;

/// `L`: ticks that a node's lease lasts.
pub const NODE_LEASE: Tick = 2;
/// Ticks that a leader's lease lasts.
pub const LEADER_LEASE: Tick = 2;
/// `D`.
pub const DRIFT: Tick = 1;

/// How far a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub ticks: Tick,
    /// Epochs of leadership, the first one included.
    pub epochs: Epoch,
    /// Crashes of agents and controllers together.
    pub crashes: u8,
    /// Whether the store may once go back to an earlier state, as an asynchronous failover does.
    pub rewinds: bool,
    /// Sizes of slices. A process runs out of memory on each but the largest, if it does; with one size
    /// no process does.
    pub sizes: Size,
}

impl Bounds {
    /// Attempts that the job may have: a rewind needs space for one that is given out twice.
    pub fn attempts(&self) -> Attempt {
        if self.rewinds { 3 } else { 2 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    Queued,
    Live { attempt: Attempt, node: Node },
    Done { by: Attempt },
}

/// What Postgres holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    pub epoch: Epoch,
    pub job: Job,
    pub next_attempt: Attempt,
    pub generations: [Generation; NODES],
    /// Nodes that were not declared lost.
    pub attached: [bool; NODES],
    pub leader_until: Tick,
    /// The smallest size that the job is given from now on.
    pub size: Size,
}

/// A launch that was committed and not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    pub attempt: Attempt,
    pub node: Node,
    pub generation: Generation,
}

/// What one controller process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The epoch in which it takes itself for the leader.
    pub epoch: Option<Epoch>,
    pub trusts_itself_until: Tick,
    /// When each node's lease ends, before the drift margin.
    pub lease_ends: [Tick; NODES],
    pub to_send: Option<Launch>,
    /// The smallest size that it would give the job by what it saw itself.
    pub size: Size,
}

/// Messages under way. One stays until it is lost, and launches may be delivered again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    Launch { attempt: Attempt, node: Node, generation: Generation, epoch: Epoch },
    Renewal { node: Node, sent: Tick, generation: Generation },
    Renewed { node: Node, sent: Tick, generation: Generation },
}

/// A set of attempts, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempts(u8);

impl Attempts {
    pub fn contains(self, attempt: Attempt) -> bool {
        self.0 & (1 << attempt) != 0
    }

    pub fn insert(&mut self, attempt: Attempt) {
        self.0 |= 1 << attempt;
    }
}

/// One node: its agent, and the shepherds and processes that outlive the agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    pub up: bool,
    /// The highest epoch that it has had a command from.
    pub epoch_seen: Epoch,
    pub generation: Generation,
    pub lease_ends: Tick,
    pub journal: Attempts,
    pub tombstones: Attempts,
    /// The attempt between the two halves of "journal, then spawn".
    pub launching: Option<Attempt>,
    /// Live processes of each attempt, attempt 1 first.
    pub processes: [u8; ATTEMPTS],
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Tick,
    pub store: Store,
    /// What the standby would come back with.
    pub standby: Option<Box<Store>>,
    pub rewound: bool,
    /// No move before this moment (F14).
    pub hold_until: Tick,
    pub leaders: [Leader; CONTROLLERS],
    pub net: BTreeSet<Message>,
    pub agents: [Agent; NODES],
    /// Exits that agents report until they are recorded.
    pub exits: Attempts,
    /// Those of the exits that report that memory ran out.
    pub ran_out: Attempts,
    /// The size that each attempt was given, attempt 1 first.
    pub given: [Size; ATTEMPTS],
    /// Sizes below this one are recorded as too small.
    pub too_small_below: Size,
    /// Whether an attempt was given a size that was recorded as too small.
    pub size_tried_twice: bool,
    pub crashes: u8,
    /// The highest attempt ever given out, rewinds or not.
    pub last_attempt: Attempt,
}

/// What must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// I1.
    TwoLiveProcesses,
    /// I2.
    LiveProcessOfFinalJob,
    /// I3.
    SizeTriedTwice,
}

impl State {
    /// One job queued, both nodes attached with fresh leases, controller 0 the leader.
    pub fn initial() -> Self {
        let agent = Agent {
            up: true,
            epoch_seen: 1,
            generation: 0,
            lease_ends: NODE_LEASE,
            journal: Attempts::default(),
            tombstones: Attempts::default(),
            launching: None,
            processes: [0; ATTEMPTS],
        };
        let leader = Leader {
            epoch: Some(1),
            trusts_itself_until: LEADER_LEASE - DRIFT,
            lease_ends: [NODE_LEASE; NODES],
            to_send: None,
            size: 0,
        };
        let follower = Leader { lease_ends: [NODE_LEASE; NODES], ..Leader::default() };
        Self {
            now: 0,
            store: Store {
                epoch: 1,
                job: Job::Queued,
                next_attempt: 1,
                generations: [0; NODES],
                attached: [true; NODES],
                leader_until: LEADER_LEASE,
                size: 0,
            },
            standby: None,
            rewound: false,
            hold_until: 0,
            leaders: [leader, follower],
            net: BTreeSet::new(),
            agents: [agent.clone(), agent],
            exits: Attempts::default(),
            ran_out: Attempts::default(),
            given: [0; ATTEMPTS],
            too_small_below: 0,
            size_tried_twice: false,
            crashes: 0,
            last_attempt: 0,
        }
    }

    pub fn violation(&self) -> Option<Violation> {
        let live: u8 = self.agents.iter().map(Agent::live).sum();
        match (live, &self.store.job) {
            (2.., _) => Some(Violation::TwoLiveProcesses),
            (1, Job::Done { .. }) => Some(Violation::LiveProcessOfFinalJob),
            (0 | 1, _) if self.size_tried_twice => Some(Violation::SizeTriedTwice),
            (0 | 1, _) => None,
        }
    }
}

impl Agent {
    pub fn live(&self) -> u8 {
        self.processes.iter().sum()
    }

    pub fn kill_all(&mut self) {
        self.processes = [0; ATTEMPTS];
    }

    pub fn processes_of(&mut self, attempt: Attempt) -> &mut u8 {
        &mut self.processes[usize::from(attempt) - 1]
    }
}
