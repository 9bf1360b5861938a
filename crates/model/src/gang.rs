//! Jobs over several GPUs, whose members start together and end together.
//!
//! A process can use one MIG device only, so a job over several GPUs has several members. They are a
//! **gang**, each with its own slice or GPU. The program runs once, for the first member, or once for each. They are numbered by rank;
//! those of one node group run on distinct GPUs of one node. All members get placements in one
//! round, or none does. When one fails, is cancelled or lost, all are ended together, and one
//! verdict applies to all.

use crate::number::clamped;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::life::Outcome;
use crate::spec::BadField;

/// Maximum number of members of a gang: as many attempts as one round of the leader can start.
pub const GANG_MEMBERS_MAX: u32 = 256;

/// The first rendezvous port of gangs: below the ephemeral ports (32,768 on Linux), above those of
/// the usual services.
const PORTS_FROM: u16 = 20_480;
/// How many ports there are from that one on.
const PORTS: u64 = 8_192;
/// The distance between the ports of two gangs, or of two attempts of one: prime, so that a port is
/// reused only after all others.
const PORT_STRIDE: u64 = 1_009;

/// On how many nodes a gang runs, and how many members it has on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawShape", into = "RawShape")]
pub struct GangShape {
    nodes: u32,
    per_node: u32,
}

#[derive(Serialize, Deserialize)]
struct RawShape {
    nodes: u32,
    per_node: u32,
}

impl GangShape {
    /// Reads a shape from outside.
    ///
    /// # Errors
    ///
    /// [`BadField`] if it has no members, or more than [`GANG_MEMBERS_MAX`].
    pub fn new(nodes: u32, per_node: u32) -> Result<Self, BadField> {
        match nodes.checked_mul(per_node) {
            Some(1..=GANG_MEMBERS_MAX) => Ok(Self { nodes, per_node }),
            Some(0) => Err(BadField::new(
                "gang",
                format!("{nodes} nodes with {per_node} GPUs each are no GPUs"),
                "at least one node with at least one GPU",
            )),
            Some(_) | None => Err(BadField::new(
                "gang",
                format!("{nodes} nodes with {per_node} GPUs each are too many"),
                format!("at most {GANG_MEMBERS_MAX} GPUs in all"),
            )),
        }
    }

    /// Returns on how many nodes it runs.
    pub const fn nodes(self) -> u32 {
        self.nodes
    }

    /// Returns how many members it has on each node, each on its own GPU.
    pub const fn per_node(self) -> u32 {
        self.per_node
    }

    /// Returns how many members it has.
    pub const fn members(self) -> u32 {
        self.nodes * self.per_node
    }
}

impl fmt::Display for GangShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nodes, self.per_node) {
            (1, gpus) => write!(f, "{gpus} GPUs of one node"),
            (nodes, 1) => write!(f, "one GPU on each of {nodes} nodes"),
            (nodes, gpus) => write!(f, "{gpus} GPUs on each of {nodes} nodes"),
        }
    }
}

impl TryFrom<RawShape> for GangShape {
    type Error = BadField;

    fn try_from(raw: RawShape) -> Result<Self, BadField> {
        Self::new(raw.nodes, raw.per_node)
    }
}

impl From<GangShape> for RawShape {
    fn from(shape: GangShape) -> Self {
        Self { nodes: shape.nodes, per_node: shape.per_node }
    }
}

/// One job's membership in its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GangMember {
    /// The gang's number, which is that of its first member.
    pub gang: JobId,
    /// How many there are, and where.
    pub shape: GangShape,
    /// Its number among them, from 0.
    pub rank: u32,
}

impl GangMember {
    /// Returns a job's membership in its gang; `None` if it is not part of the submission. `first`
    /// is the submission's first job. Members have consecutive numbers in the order of their ranks,
    /// and so have the gangs of an array in the order of their indexes.
    pub fn of(job: JobId, first: JobId, shape: GangShape) -> Option<Self> {
        let offset = u32::try_from(job.number().checked_sub(first.number())?).ok()?;
        let rank = offset % shape.members();
        let gang = JobId::from_number(job.number() - u64::from(rank));
        Some(Self { gang, shape, rank })
    }

    /// Returns the jobs of the whole gang, by rank.
    pub fn all(self) -> impl Iterator<Item = JobId> {
        let first = self.gang.number();
        (first..first + u64::from(self.shape.members())).map(JobId::from_number)
    }

    /// Returns the number of its node among those of the gang, from 0.
    pub const fn node_rank(self) -> u32 {
        self.rank / self.shape.per_node
    }

    /// Returns its number among the members on its node, from 0.
    pub const fn local_rank(self) -> u32 {
        self.rank % self.shape.per_node
    }

    /// Returns the rendezvous port on rank 0's node for the gang's `attempt`-th attempt (1 is the
    /// first).
    ///
    /// It depends only on data that every leader has, so that all members get the same port from any leader.
    /// The next attempt has another port, in case another program uses this one.
    pub fn port(self, attempt: u32) -> u16 {
        let shift = self.gang.number().wrapping_add(u64::from(attempt));
        let offset = (shift % PORTS * PORT_STRIDE) % PORTS;
        PORTS_FROM.saturating_add(clamped(offset))
    }
}

/// The end of a member, as far as it matters for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEnd {
    /// Its own outcome.
    pub outcome: Outcome,
    /// Whether it was stopped, or never started, since another one had ended before.
    pub follows: bool,
}

/// Returns the end that decides about the gang, to which its retry rules apply.
///
/// A cancellation by its user comes first. Then a cause from outside: a node, a GPU, or a missing
/// placement. A program whose peer is gone fails too, mostly before the loss of the peer is known,
/// and must not be charged for that. Then the programs' own failures, the final ones first. A member that
/// ran out of memory counts more than one that failed: its end ended the others. All have to
/// succeed for the gang to succeed.
pub fn decisive(ends: impl IntoIterator<Item = MemberEnd>) -> Outcome {
    let weight = |end: &MemberEnd| match end.outcome {
        Outcome::Succeeded => 0,
        Outcome::Cancelled => 20,
        _ if end.follows => 1,
        Outcome::Preempted => 2,
        Outcome::Failed => 3,
        Outcome::OutOfMemory => 4,
        Outcome::TimedOut => 5,
        Outcome::LaunchFailed => 6,
        Outcome::NotStarted => 7,
        Outcome::Collateral => 8,
        Outcome::Lost => 9,
    };
    let worst = ends.into_iter().max_by_key(weight);
    worst.map_or(Outcome::NotStarted, |end| end.outcome)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn member(rank: u32) -> GangMember {
        let shape = GangShape::new(2, 3).unwrap();
        GangMember { gang: JobId::from_number(40), shape, rank }
    }

    fn end(outcome: Outcome) -> MemberEnd {
        MemberEnd { outcome, follows: false }
    }

    fn followed(outcome: Outcome) -> MemberEnd {
        MemberEnd { outcome, follows: true }
    }

    #[test]
    fn ranks_fill_one_node_after_another() {
        let places: Vec<_> = (0..6).map(member).map(|m| (m.node_rank(), m.local_rank())).collect();

        assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn the_gangs_of_an_array_follow_each_other() {
        let shape = member(0).shape;
        let of = |job| GangMember::of(JobId::from_number(job), JobId::from_number(40), shape);

        assert_eq!(of(39), None, "it is older than the submission");
        assert_eq!(of(45), Some(member(5)));
        assert_eq!(of(47), Some(GangMember { gang: JobId::from_number(46), shape, rank: 1 }));
    }

    #[test]
    fn a_gang_without_members_and_one_that_no_round_can_start_are_refused() {
        for (nodes, per_node) in [(0, 4), (4, 0), (257, 1), (u32::MAX, u32::MAX)] {
            assert!(GangShape::new(nodes, per_node).is_err(), "{nodes} x {per_node}");
        }
        assert!(GangShape::new(32, 8).is_ok());
    }

    #[test]
    fn each_attempt_of_a_gang_has_another_rendezvous_port() {
        let ports: BTreeSet<u16> = (1..=1_000).map(|attempt| member(0).port(attempt)).collect();

        assert_eq!(ports.len(), 1_000);
        assert!(ports.iter().all(|port| (20_480..28_672).contains(port)));
    }

    #[test]
    fn an_external_cause_is_not_charged_to_the_programs_that_failed_because_of_it() {
        let ends = [end(Outcome::Failed), end(Outcome::Lost), followed(Outcome::Preempted)];

        assert_eq!(decisive(ends), Outcome::Lost);
    }

    #[test]
    fn a_member_that_was_stopped_for_anothers_failure_decides_nothing() {
        let ends = [
            followed(Outcome::NotStarted),
            end(Outcome::LaunchFailed),
            followed(Outcome::Preempted),
        ];

        assert_eq!(decisive(ends), Outcome::LaunchFailed);
    }

    fn ends() -> impl Strategy<Value = Vec<MemberEnd>> {
        let one = (prop::sample::select(Outcome::ALL), any::<bool>());
        prop::collection::vec(
            one.prop_map(|(outcome, follows)| MemberEnd { outcome, follows }),
            1..9,
        )
    }

    proptest! {
        #[test]
        fn a_gang_succeeds_only_if_all_members_do(ends in ends()) {
            let all = ends.iter().all(|end| end.outcome == Outcome::Succeeded);

            prop_assert_eq!(decisive(ends) == Outcome::Succeeded, all);
        }

        #[test]
        fn the_deciding_end_is_one_members_own_and_the_order_does_not_matter(mut ends in ends()) {
            let decided = decisive(ends.clone());
            ends.reverse();

            prop_assert!(ends.iter().any(|end| end.outcome == decided));
            let own = ends.iter().any(|end| !end.follows && end.outcome != Outcome::Succeeded);
            // Two members that only followed count equally.
            prop_assert!(!own || decisive(ends) == decided);
        }

        #[test]
        fn a_shape_reads_back(nodes in 1_u32..17, per_node in 1_u32..17) {
            let shape = GangShape::new(nodes, per_node).unwrap();

            let text = serde_json::to_string(&shape).unwrap();

            prop_assert_eq!(serde_json::from_str::<GangShape>(&text).unwrap(), shape);
        }
    }
}
