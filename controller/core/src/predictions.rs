//! Predictions of run times: the facts about a job, its predictions, and their outcomes.
//!
//! Runs are learned as they end; a reload learns the newest ones again from the store. The
//! remaining time of a job follows from how long it has run ([`Prediction::after`]), including the
//! work before its checkpoints. Time on another slice is converted by the two slices' predictions.
//! The training sample of a resumed job is the sum of its runs.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tessera_model::share::SharingMode;
use tessera_model::spec::{Class, JobSpec, JobUpdate, TimeUpdate};
use tessera_model::task::task_key;
use tessera_model::{AttemptId, Bytes, JobId, Millis};
use tessera_placement::{Prediction, SliceKind};
use tessera_predict::memory::{MemoryEstimate, MemoryEvidence};

pub mod sizes;
use crate::queue_rules::QueueRules;

pub mod trained;

/// What placement knows about a job, apart from its request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    /// The key that its runs share with those of similar jobs; empty if unknown.
    pub task: String,
    /// Longest run time of one attempt, as its user set it.
    pub limit: Option<Millis>,
    /// Whether it can checkpoint and continue elsewhere: it has a checkpoint signal and its slice
    /// to itself, and is in no gang.
    pub movable: bool,
    /// Whether it serves requests whose users need quick answers.
    pub online: bool,
    /// Whether the controller decides if it shares a slice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// Whether it shares a slice kernel by kernel, and never runs next to the other jobs there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel_exclusive: bool,
    /// How long it may take to checkpoint.
    pub grace: Millis,
    /// Its deadline, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Millis>,
    /// The memory that its user's estimate gives it, if it names no size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_memory: Option<Bytes>,
    /// Where and when its user lets it run.
    #[serde(default, skip_serializing_if = "QueueRules::is_open")]
    pub rules: QueueRules,
}

/// The prediction of an attempt's run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptPrediction {
    /// The task's key.
    pub task: String,
    /// The kind of slice on which it runs.
    pub on: SliceKind,
    /// Whether the attempt runs the whole job.
    pub whole: bool,
    /// The predicted time; `None` where nothing was known.
    pub prediction: Option<Prediction>,
    /// The fingerprint of the model that predicted it, if one did.
    pub model: Option<u64>,
}

/// How many predictions were accurate, and how many were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// The outcome lay within the interval.
    pub within: u64,
    /// The outcome lay outside the interval.
    pub outside: u64,
}

/// A run time that predictions learn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSample {
    /// The task's key.
    pub task: String,
    /// The kind of slice on which it ran.
    pub on: SliceKind,
    /// How long it ran.
    pub ran: Millis,
}

/// The memory of a run, and its prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySample {
    /// The attempt that was observed.
    pub attempt: AttemptId,
    /// The task's key.
    pub task: String,
    /// NVIDIA's name of the GPU on which it ran.
    pub gpu_model: String,
    /// The memory that it had.
    pub slice: Bytes,
    /// The memory that it used; a peak of zero means that no sample was taken.
    pub evidence: MemoryEvidence,
    /// The prediction, if its job named no size.
    pub prediction: Option<MemoryEstimate>,
}

impl MemorySample {
    /// Returns the prediction, if the run shows whether it was accurate.
    pub(crate) const fn judged(&self) -> Option<&MemoryEstimate> {
        match self.evidence {
            MemoryEvidence::Peak(Bytes::ZERO) => None,
            MemoryEvidence::Peak(_) | MemoryEvidence::OutOf(_) => self.prediction.as_ref(),
        }
    }
}

/// A checkpoint of an attempt of an unfinished job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCheckpoint {
    /// The job that wrote the checkpoint.
    pub job: JobId,
    /// The kind of slice on which it ran.
    pub on: SliceKind,
    /// How long it ran.
    pub ran: Millis,
}

/// The run times of an attempt that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptRunTimes {
    /// How long the attempt ran, if it finished its job.
    pub ran: Option<Millis>,
    /// How long it ran, if it checkpointed.
    pub checkpointed: Option<Millis>,
    /// How long the whole job takes on such a slice, if it was resumed and that could be learned.
    pub useful: Option<Millis>,
}

/// Returns the facts of a job about which nothing is known.
pub(crate) fn unknown() -> Arc<TaskFacts> {
    Arc::default()
}

impl TaskFacts {
    /// Returns the facts for placement from a specification.
    pub fn of(spec: &JobSpec) -> Self {
        Self {
            task: task_key(&spec.user, spec.task_key.as_deref(), &spec.run.program),
            limit: spec.run.time_limit,
            movable: spec.run.checkpoint_signal.is_some()
                && spec.share.part().is_none()
                && spec.gang.is_none(),
            online: spec.class == Class::Online,
            auto: spec.share == SharingMode::Auto,
            kernel_exclusive: spec.share.kernel().is_some_and(|terms| terms.exclusive),
            grace: spec.run.grace,
            deadline: spec.deadline,
            estimated_memory: spec.estimated_memory,
            rules: QueueRules::of(spec),
        }
    }

    /// Returns the facts after an update of the job.
    #[must_use]
    pub fn updated(&self, update: &JobUpdate) -> Self {
        let mut rules = self.rules.clone();
        if let Some(dependency) = &update.dependency {
            rules.dependency = dependency.dependency().cloned();
        }
        rules.begin = update.begin.or(rules.begin);
        rules.array_limit = update.array_limit_over(rules.array_limit);
        Self {
            rules,
            limit: update.limit.map_or(self.limit, TimeUpdate::time),
            deadline: update.deadline.map_or(self.deadline, TimeUpdate::time),
            ..self.clone()
        }
    }
}

impl OutcomeCounts {
    /// Counts one more outcome.
    pub const fn take(&mut self, within: bool) {
        let counted = if within { &mut self.within } else { &mut self.outside };
        *counted = counted.saturating_add(1);
    }
}
