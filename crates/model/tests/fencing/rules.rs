//! The rules that can be taken away, one at a time.

/// A fencing rule. Each is one mechanism of the protocol; the model requests it by name wherever
/// it acts, so that a run can go without it.
///
/// F1 (every move is a compare-and-set) and F12 (results are kept until acknowledged) have no
/// entry. Without F1 there is no model, and F12 is about losing a result, not about two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// F2: a move's transaction checks, under a lock that a takeover waits for, that its leader is
    /// still the leader.
    TxnGuard,
    /// F3: a leader trusts itself only until the start of its last renewal + TTL − D.
    TrustWindow,
    /// F4: a new leader gives every node a full lease before it may declare it lost.
    Grace,
    /// F5: the shepherd kills its attempt when the lease runs out, agent alive or not.
    ShepherdFence,
    /// F6: the node counts its lease from the moment at which it sent the renewal.
    LeaseFromSend,
    /// F6: the controller adds the drift bound before it declares a node lost.
    DriftMargin,
    /// F7: a launch carries the node's generation, and any other one is refused.
    NodeGeneration,
    /// F8: a launch is given up only after the agent acknowledged a tombstone for the attempt.
    Revoke,
    /// F9: the agent journals an attempt before it spawns it.
    JournalFirst,
    /// F10: an exit moves the job only if it names the job's current attempt.
    ResultFence,
    /// F11: a node that was declared lost kills its old attempts before it gets a new lease.
    KillOnReattach,
    /// F13: an attempt's identity is made once and never given out again.
    AttemptUuid,
    /// F14: after the store went back in time, nothing is placed until every lease has run out,
    /// and all generations rise above what agents report.
    RewindHold,
    /// F15: the agent refuses commands of an older leader than it has seen.
    AgentEpoch,
    /// F15: the agent remembers that across its own restart.
    AgentEpochPersisted,
    /// The size that a job has outgrown is written with the exit that shows it, so that the next leader
    /// knows it.
    SizeRecorded,
}

/// The rules in force.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub without: Option<Rule>,
}

impl Rules {
    pub const ALL: Self = Self { without: None };

    pub fn without(rule: Rule) -> Self {
        Self { without: Some(rule) }
    }

    pub fn hold(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}
