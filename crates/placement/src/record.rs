//! Recorded rounds: each can be decided again from exactly the policy's input.
//!
//! A [`RoundRecorder`] works for the caller of a policy. For each round it makes a [`RoundRecord`]: the
//! decisions, and what changed since the round recorded before (GPUs, waiting jobs, facts and
//! predictions). The first record of a **chain** has everything. A [`RoundReplay`] reads the records of
//! a chain, decides each round again, and reports the differences.
//!
//! - **Only what was seen.** The answers that the policy requested are kept ([`AnswerRecorder`]).
//!   Their source, and what models learned later, don't matter.
//! - **Bit for bit.** Decisions are compared in their stored form, including all explanations. The
//!   [`RoundRecord::digest`] is stored together with the record.
//! - **Limited.** A chain has at most [`CHAIN_MAX`] records and covers at most [`CHAIN_SPAN`]. Old
//!   chains are removed as a whole.
//! - **Older formats** are read, too. Their rounds are compared without the texts of explanations,
//!   which other versions worded differently ([`FORMAT`]).

mod answer_recorder;
mod answers;
mod chain;
mod difference;
mod gpu_kind;
mod recorded_answers;
mod recorder;
mod replay;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tessera_model::{GpuId, JobId, Millis};

use crate::decision::Decision;
use crate::policy::Policy;
use crate::power_cap::PowerCap;
use crate::view::{GpuView, QueuedJob};

pub use answer_recorder::AnswerRecorder;
pub use answers::NewAnswers;
pub use gpu_kind::GpuKindRecord;
pub use recorder::{PendingRecord, RoundInput, RoundRecorder};
pub use replay::{BadRecord, DecisionDifference, ReplayedRound, RoundReplay};

/// Version of the format. Version 2 has the keys of version 1, and explanations with other wording.
/// The keys never change, so that stored rounds can always be read: renamed fields have their first
/// name in `serde(rename)`.
pub const FORMAT: u16 = 2;
/// The oldest version that can be read.
pub const FORMAT_MIN: u16 = 1;
/// The most records of a chain. The first record costs as much as some hundred others, and a reader
/// has to read all records before the one that it requests.
pub const CHAIN_MAX: u64 = 1_000;
/// Longest time that a chain covers: quiet clusters must not keep old records for months.
pub const CHAIN_SPAN: Millis = Millis::from_secs(3_600);

/// The policy that decides, with everything else that its decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidingPolicy {
    /// The policy's name.
    pub policy: String,
    /// The version of the program.
    pub version: String,
    /// The policy's settings by name; null if it has none. A controller's policies use no random
    /// numbers, so there is no seed.
    pub settings: Value,
}

impl DecidingPolicy {
    /// Describes a policy of this program.
    pub fn describe(policy: &dyn Policy) -> Self {
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
pub struct RoundRecord {
    /// The version of the format ([`FORMAT`]).
    pub format: u16,
    /// Its number in its chain. Number 0 has the whole state, and each later one has the changes.
    pub number: u64,
    /// The policy; only in record 0 of a chain.
    #[serde(rename = "brain", default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<DecidingPolicy>,
    /// The time on the leader's boot clock, which the policy was given.
    pub now: Millis,
    /// The most jobs that could start.
    pub starts_max: usize,
    /// The power cap, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_cap: Option<PowerCap>,
    /// New kinds of GPUs, numbered in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<GpuKindRecord>,
    /// GPUs that changed or are new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRecord>,
    /// GPUs that no longer exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_gone: Vec<GpuId>,
    /// Waiting jobs that changed or are new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<QueuedJob>,
    /// Jobs that no longer wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs_gone: Vec<JobId>,
    /// Facts and predictions that the policy requested, if they are new or changed.
    #[serde(rename = "told", default)]
    pub answers: NewAnswers,
    /// The decisions, in order.
    #[serde(rename = "said")]
    pub decisions: Vec<RecordedDecision>,
}

/// A GPU with its kind, which has its geometry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    /// The number of its kind.
    pub kind: u32,
    /// The GPU without its geometry.
    pub gpu: GpuView,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedDecision {
    /// The job waits, with the same explanation as in its last decision in this chain.
    Same(JobId),
    /// A new decision.
    New(Decision),
}

impl RoundRecord {
    /// Returns the digest of the decisions: SHA-256 of their text. [`RecordedDecision::Same`] refers to
    /// the records before.
    pub fn digest(&self) -> [u8; 32] {
        digest(&self.decisions)
    }
}

fn digest(decisions: &[RecordedDecision]) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(decisions).unwrap_or_default()).into()
}
