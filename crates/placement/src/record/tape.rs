//! Who reads recorded rounds, and has them decided again.

use tessera_model::JobId;

use super::state::{State, abridged};
use super::told::Retold;
use super::{Brain, Record, digest, words};
use crate::ask::ask;
use crate::decision::Decision;
use crate::policy::Policy;
use crate::view::ClusterView;

/// Why a record can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// It is of another format.
    #[error(
        "format {found} is recorded, and this program reads {}: use its version",
        super::FORMAT
    )]
    Format {
        /// The record's.
        found: u16,
    },
    /// Records are missing before it.
    #[error("record {found} of a chain follows where {expected} has to: records are missing")]
    Gap {
        /// What would have followed.
        expected: u64,
        /// What does.
        found: u64,
    },
    /// It contradicts itself.
    #[error("the record is damaged: {what} is missing")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads the records of chains, one after another.
#[derive(Debug, Default)]
pub struct Tape {
    state: Option<State>,
}

/// What came of one round that was decided again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// What was decided then.
    pub recorded: Vec<Decision>,
    /// What is decided now; none, if nobody was asked.
    pub decided: Option<Vec<Decision>>,
    /// Digest of what is decided now, as [`Record::digest`] of what was decided then.
    pub digest: Option<[u8; 32]>,
}

/// Where two rounds differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The job that it is about; none for a GPU that gets another layout.
    pub job: Option<JobId>,
    /// What was decided then.
    pub recorded: String,
    /// What is decided now.
    pub decided: String,
}

impl Tape {
    /// Returns who decided the records of the chain that is being read.
    pub fn brain(&self) -> Option<&Brain> {
        self.state.as_ref().map(|state| &state.brain)
    }

    /// Returns the cluster as the record that was read last saw it.
    pub fn cluster(&self) -> Option<&ClusterView> {
        self.state.as_ref().map(|state| &state.cluster)
    }

    /// Reads the next record, and has its round decided again by `policy`, if there is one.
    ///
    /// # Errors
    ///
    /// [`BadRecord`]: it is not the next of its chain, or can't be understood. Only the first of
    /// another chain can be read after that.
    pub fn read(
        &mut self,
        record: Record,
        policy: Option<&dyn Policy>,
    ) -> Result<Replayed, BadRecord> {
        let (now, starts_max) = (record.now, record.starts_max);
        if let Some(brain) = &record.brain {
            self.state = Some(State::new(brain.clone(), now));
        }
        let gap = BadRecord::Gap { expected: 0, found: record.number };
        let mut state = self.state.take().ok_or(gap)?;
        let said = state.see(record)?;
        let decided = policy.map(|policy| {
            let forecast = Retold { kinds: &state.kinds, told: &state.told };
            let mut queue = state.queue.iter();
            ask(policy, &state.cluster, &forecast, &mut queue, now, starts_max)
        });
        let digest = decided.as_ref().map(|decided| digest(&abridged(&state.waits, decided)));
        let recorded = state.hear(said)?;
        self.state = Some(state);
        Ok(Replayed { recorded, decided, digest })
    }
}

impl Replayed {
    /// Returns where what is decided now first differs from what was decided then; `None` if they
    /// are equal to the last letter, or nobody was asked.
    pub fn difference(&self) -> Option<Difference> {
        let decided = self.decided.as_ref()?;
        let longest = self.recorded.len().max(decided.len());
        let at = (0..longest).find(|at| self.recorded.get(*at) != decided.get(*at))?;
        Some(words::difference(&self.recorded, decided, at))
    }
}
