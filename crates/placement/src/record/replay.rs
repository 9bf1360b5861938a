//! Reads recorded rounds, and decides them again.

use tessera_model::JobId;

use super::chain::{ChainState, abridged};
use super::recorded_answers::RecordedAnswers;
use super::{DecidingPolicy, FORMAT, RoundRecord, difference, digest};
use crate::decide_round::decide_round;
use crate::decision::Decision;
use crate::policy::Policy;
use crate::view::ClusterView;

/// Why a record can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// It is of another format.
    #[error(
        "the record has format {found}, and this program reads {} to {}: use the version that wrote it",
        super::FORMAT_MIN,
        super::FORMAT
    )]
    Format {
        /// The record's.
        found: u16,
    },
    /// Records are missing before it.
    #[error(
        "record {expected} of the chain is missing before record {found}: read the chain from its start"
    )]
    Gap {
        /// The number of the next record.
        expected: u64,
        /// The number of the record that was read.
        found: u64,
    },
    /// It contradicts itself.
    #[error("the record is damaged: {what} is missing, so read another chain")]
    Damaged {
        /// What is missing.
        what: &'static str,
    },
}

/// Reads the records of chains, one after another.
#[derive(Debug, Default)]
pub struct RoundReplay {
    state: Option<ChainState>,
}

/// A round that was decided again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedRound {
    /// The recorded decisions.
    pub recorded: Vec<Decision>,
    /// The new decisions; empty without a policy.
    pub decided: Option<Vec<Decision>>,
    /// Digest of the new decisions, to compare with [`RoundRecord::digest`].
    pub digest: Option<[u8; 32]>,
}

/// Where two rounds differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionDifference {
    /// The job; none for a GPU that gets another layout.
    pub job: Option<JobId>,
    /// The recorded decision.
    pub recorded: String,
    /// The new decision.
    pub decided: String,
}

impl RoundReplay {
    /// Returns the policy that decided the chain that is being read.
    pub fn policy(&self) -> Option<&DecidingPolicy> {
        self.state.as_ref().map(|state| &state.policy)
    }

    /// Returns the cluster as of the record that was read last.
    pub fn cluster(&self) -> Option<&ClusterView> {
        self.state.as_ref().map(|state| &state.cluster)
    }

    /// Reads the next record, and decides its round again by `policy`, if there is one.
    ///
    /// For records of an older format, new decisions that differ only in the texts of explanations
    /// are returned in their recorded form.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it is not the next record of its chain, or is damaged. After that, only the
    /// first record of another chain can be read.
    pub fn read_record(
        &mut self,
        record: RoundRecord,
        policy: Option<&dyn Policy>,
    ) -> Result<ReplayedRound, BadRecord> {
        let (format, now, starts_max) = (record.format, record.now, record.starts_max);
        if let Some(decides) = &record.policy {
            self.state = Some(ChainState::new(decides.clone(), now));
        }
        let gap = BadRecord::Gap { expected: 0, found: record.number };
        let mut state = self.state.take().ok_or(gap)?;
        let stored = state.apply_input(record)?;
        let mut decided = policy.map(|policy| {
            let known = RecordedAnswers { kinds: &state.kinds, answers: &state.answers };
            let mut queue = state.queue.iter();
            decide_round(policy, &state.cluster, known.knowledge(), &mut queue, now, starts_max)
        });
        let mut digest_now = decided.as_ref().map(|now| digest(&abridged(&state.waits, now)));
        let digest_then = digest(&stored);
        let recorded = state.complete_decisions(stored)?;
        if let Some(now) = decided.as_mut().filter(|_| format < FORMAT)
            && differ_in_texts_only(&recorded, now)
        {
            now.clone_from(&recorded);
            digest_now = Some(digest_then);
        }
        self.state = Some(state);
        Ok(ReplayedRound { recorded, decided, digest: digest_now })
    }
}

/// Returns whether decisions are equal apart from the sentences of their explanations.
fn differ_in_texts_only(recorded: &[Decision], decided: &[Decision]) -> bool {
    let pairs = recorded.iter().zip(decided);
    recorded.len() == decided.len() && pairs.into_iter().all(|(a, b)| textless(a) == textless(b))
}

fn textless(decision: &Decision) -> Decision {
    let mut bare = decision.clone();
    match &mut bare {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. }
        | Decision::Preempt { why, .. } => {
            why.summary.clear();
            why.would_start_if = why.would_start_if.as_ref().map(|_| String::new());
        }
    }
    bare
}

impl ReplayedRound {
    /// Returns the first difference between the recorded and the new decisions; `None` if they are
    /// identical, or if no policy was given.
    pub fn difference(&self) -> Option<DecisionDifference> {
        let decided = self.decided.as_ref()?;
        let longest = self.recorded.len().max(decided.len());
        let at = (0..longest).find(|at| self.recorded.get(*at) != decided.get(*at))?;
        Some(difference::difference(&self.recorded, decided, at))
    }
}
