//! Rounds written down, so that each can be decided again from exactly what the policy saw.
//!
//! A [`Recorder`] stands beside whoever asks a policy. For each round it yields a [`Record`]: what
//! is other than in the round recorded before it – GPUs, waiting jobs, answers of the forecast –
//! and what was decided. The first record of a **chain** has everything. A [`Tape`] is fed the
//! records of a chain, has each round decided again, and says where the two differ.
//!
//! - **What is written is what was seen.** Of the forecast those answers are kept that the policy
//!   asked for ([`Heard`]): where they came from, and what was learned since, is of no matter.
//! - **Bit for bit.** What was decided is compared as it is written: with every word and number of
//!   the explanations. A [`Record::digest`] is stored beside the record as it is made.
//! - **Bounded.** A chain has at most [`CHAIN_MAX`] records, and begins anew after
//!   [`CHAIN_SPAN`]; old chains are removed as a whole.

mod recorder;
mod state;
mod tape;
mod told;
mod words;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tessera_model::{GpuId, JobId, Millis};

use crate::decision::Decision;
use crate::policy::Policy;
use crate::view::{GpuView, QueuedJob};

pub use recorder::{Asked, Draft, Recorder};
pub use tape::{BadRecord, Difference, Replayed, Tape};
pub use told::{Heard, KindRecord, News};

/// Version of the format; a reader refuses others.
pub const FORMAT: u16 = 1;
/// Most records of a chain: a whole one costs as much as some hundred others, and a reader has to
/// go through all that stand before the one that it wants.
pub const CHAIN_MAX: u64 = 1_000;
/// After which time a chain ends: quiet clusters must not keep old records for months.
pub const CHAIN_SPAN: Millis = Millis::from_secs(3_600);

/// Who decides, in all that its decisions depend on besides what it sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brain {
    /// The policy's name.
    pub policy: String,
    /// The version of the program.
    pub version: String,
    /// What can be set of the policy, by name; null if nothing can. No policy of a controller
    /// draws lots, so that there is no seed.
    pub settings: Value,
}

impl Brain {
    /// Describes a policy of this program.
    pub fn of(policy: &dyn Policy) -> Self {
        Self {
            policy: policy.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: policy.settings(),
        }
    }
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The format: [`FORMAT`].
    pub format: u16,
    /// Its place in its chain; 0 is whole, each other adds to the one before.
    pub number: u64,
    /// Who decided; said by whole records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brain: Option<Brain>,
    /// When, on the leader's boot clock, which the policy was told.
    pub now: Millis,
    /// How many jobs might start.
    pub starts_max: usize,
    /// Kinds of GPUs that are new; they are numbered in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindRecord>,
    /// GPUs that changed or are new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRecord>,
    /// GPUs that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_gone: Vec<GpuId>,
    /// Waiting jobs that changed or are new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<QueuedJob>,
    /// Jobs that were no longer shown as waiting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs_gone: Vec<JobId>,
    /// What was told of jobs, as far as it is new.
    #[serde(default)]
    pub told: News,
    /// What was decided, in order.
    pub said: Vec<Said>,
}

/// A GPU with its kind, which has its geometry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    /// The number of its kind.
    pub kind: u32,
    /// All else.
    pub gpu: GpuView,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// The job waits, in the words in which this was last said of it in the chain.
    Same(JobId),
    /// This.
    New(Decision),
}

impl Record {
    /// Returns the digest of what was decided: SHA-256 of its text. By [`Said::Same`] it counts on
    /// the records before.
    pub fn digest(&self) -> [u8; 32] {
        digest(&self.said)
    }
}

fn digest(said: &[Said]) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(said).unwrap_or_default()).into()
}
