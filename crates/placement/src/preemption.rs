//! Pre-emption by class: online jobs that find no place send offline jobs back to the queue.
//!
//! The class rules are data ([`PreemptionRules`]), which an operator sets. They have two parts, which the live
//! cluster and the simulator share:
//!
//! - [`PreemptionRules::price`] decides whether a running job may be sent back, and what that costs. A job of the
//!   same or a higher class never is. Without a checkpoint, a job is sent back only where the operator allows it.
//! - [`crate::preemption_search::add_preemptions`] runs at the end of a round. For an online job without a place it finds the GPU on which
//!   the least work is lost. A job that could start without it sends nobody away.
//!
//! **No thrashing.** A job is sent back at most [`PreemptionRules::most_per_job`] times, and not within
//! [`PreemptionRules::min_run`] of its restart. So the work that is lost to its restarts is bounded, whatever
//! jobs arrive.
//!
//! **No starvation.** After the last of these times the job is protected: it runs to its end. It keeps its age and
//! its place in the queue. So its wait is at most the sum of as many waits as it may be sent back, and one more.
//! Each of them has the bound of the policy.
//!
//! Source of the classes: MMK. Source of the order (the least lost work first): chosen, as in Slurm's `PreemptMode`
//! with checkpoints before requeues.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tessera_model::{GangMember, JobId, Millis};

use crate::decision::JobPlacement;

/// What online jobs may do to offline jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PreemptionMode {
    /// Nothing.
    Off,
    /// They send those back that write a checkpoint when they are stopped.
    #[default]
    Checkpoint,
    /// In addition they send those back that begin again from their start.
    Requeue,
}

impl PreemptionMode {
    /// Every value.
    pub const ALL: [Self; 3] = [Self::Off, Self::Checkpoint, Self::Requeue];

    /// Returns the value in the settings.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Checkpoint => "checkpoint",
            Self::Requeue => "requeue",
        }
    }
}

impl FromStr for PreemptionMode {
    type Err = BadPreemptionMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.word() == text);
        found.ok_or_else(|| BadPreemptionMode { text: text.to_owned() })
    }
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no way of pre-emption: write off, checkpoint or requeue")]
pub struct BadPreemptionMode {
    /// What was read.
    pub text: String,
}

/// The class rules, as in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct PreemptionRules {
    /// What online jobs may do to offline jobs.
    pub online_over_offline: PreemptionMode,
    /// How long a job runs at least after it was sent back, in seconds.
    #[serde(with = "seconds")]
    pub min_run: Millis,
    /// How often one job is sent back at most.
    pub most_per_job: u32,
    /// How long an online job waits before it sends others back, in seconds.
    #[serde(with = "seconds")]
    pub patience: Millis,
}

impl Default for PreemptionRules {
    /// The default rules: only jobs whose users declared how to checkpoint them are sent back. A controller may stop
    /// such a job anyway, to move it. All values were chosen: with ten minutes between two times, the assumed
    /// 30 s of a restart are a twentieth of the job's time.
    fn default() -> Self {
        Self {
            online_over_offline: PreemptionMode::Checkpoint,
            min_run: Millis::from_secs(600),
            most_per_job: 3,
            patience: Millis::ZERO,
        }
    }
}

impl PreemptionRules {
    /// Rules by which no job is ever sent back.
    pub const OFF: Self = Self {
        online_over_offline: PreemptionMode::Off,
        min_run: Millis::ZERO,
        most_per_job: 0,
        patience: Millis::ZERO,
    };
}

/// A running job, as far as it matters whether it may be sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// Whether it is of the class `online`.
    pub online: bool,
    /// Whether it writes a checkpoint when it is stopped, and continues from that.
    pub saves: bool,
    /// Whether its user lets it run again after its attempt was ended.
    pub requeueable: bool,
    /// Whether it was accepted with a deadline.
    pub has_deadline: bool,
    /// Its gang, if it has one: all members are sent back together.
    pub gang: Option<GangMember>,
    /// When its program began; `None` while it starts.
    pub began: Option<Millis>,
    /// How often it was sent back before.
    pub preempted: u32,
    /// How long it takes from the request until its place is free.
    pub stop: Millis,
    /// How long it takes from its next placement until it continues.
    pub restore: Millis,
    /// When it is expected to end by itself, from now; `None` if that is not known.
    pub ends_in: Option<Millis>,
}

/// What is lost if a job is sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptionPrice {
    /// The time that stopping and continuing takes.
    pub fixed: Millis,
    /// The work since then is lost; `None` if it is in a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Millis>,
    /// The gang that is sent back as a whole, if the job is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangMember>,
}

impl PreemptionPrice {
    /// Returns the time that is lost.
    pub fn loss(&self, now: Millis) -> Millis {
        self.lost_since.map_or(Millis::ZERO, |since| now.minus(since)).plus(self.fixed)
    }
}

/// Why a running job is not sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// The operator's rules send no job back.
    Off,
    /// It is of the highest class.
    Class,
    /// Its user doesn't let it run again.
    NoRequeue,
    /// It writes no checkpoint, and the operator's rules require one.
    NoCheckpoint,
    /// It was accepted with a deadline.
    Deadline,
    /// Its program has not begun.
    Starting,
    /// It was sent back as often as the rules allow.
    SentBackOften,
    /// It runs again since a short time.
    RunsAgain,
    /// It ends sooner than its place would be free.
    EndsSoon,
}

impl Protection {
    /// Returns the reason as a text that follows "it".
    pub const fn text(self) -> &'static str {
        match self {
            Self::Off => "is never sent back by the operator's settings",
            Self::Class => "is online itself",
            Self::NoRequeue => "must not be requeued",
            Self::NoCheckpoint => "writes no checkpoint",
            Self::Deadline => "has a deadline",
            Self::Starting => "is starting",
            Self::SentBackOften => "was sent back as often as is allowed",
            Self::RunsAgain => "runs again only since a short time",
            Self::EndsSoon => "ends sooner by itself",
        }
    }
}

impl PreemptionRules {
    /// Returns whether a waiting job may send others back.
    pub fn may_preempt(&self, online: bool, waited: Millis) -> bool {
        self.online_over_offline != PreemptionMode::Off && online && waited >= self.patience
    }

    /// Returns what sending a running job back costs.
    ///
    /// # Errors
    ///
    /// [`Protection`] if it must not be sent back.
    pub fn price(&self, job: &RunningJob, now: Millis) -> Result<PreemptionPrice, Protection> {
        // The work of a gang's members is not checkpointed together.
        let saves = job.saves && job.gang.is_none();
        match self.online_over_offline {
            PreemptionMode::Off => return Err(Protection::Off),
            PreemptionMode::Checkpoint | PreemptionMode::Requeue if job.online => {
                return Err(Protection::Class);
            }
            PreemptionMode::Checkpoint if !saves => return Err(Protection::NoCheckpoint),
            PreemptionMode::Checkpoint | PreemptionMode::Requeue => {}
        }
        if !job.requeueable {
            return Err(Protection::NoRequeue);
        }
        if job.has_deadline {
            return Err(Protection::Deadline);
        }
        let began = job.began.ok_or(Protection::Starting)?;
        if job.preempted >= self.most_per_job {
            return Err(Protection::SentBackOften);
        }
        if job.preempted > 0 && now < began.plus(self.min_run) {
            return Err(Protection::RunsAgain);
        }
        if job.ends_in.is_some_and(|left| left <= job.stop) {
            return Err(Protection::EndsSoon);
        }
        Ok(PreemptionPrice {
            fixed: job.stop.plus(job.restore),
            lost_since: (!saves).then_some(began),
            gang: job.gang,
        })
    }
}

/// Running jobs that are sent back to the queue for another job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// The job that gets the place.
    pub job: JobId,
    /// Where it starts once the others have left. Its steps assume that they have.
    pub place: JobPlacement,
    /// The jobs that are sent back, with all members of their gangs.
    pub sent_back: Vec<JobId>,
    /// The time that they lose together.
    pub loss: Millis,
}

/// Times in whole seconds, as in other settings.
mod seconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use tessera_model::Millis;

    pub(super) fn serialize<S: Serializer>(time: &Millis, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.get() / 1_000)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Millis, D::Error> {
        u64::deserialize(from).map(Millis::from_secs)
    }
}
