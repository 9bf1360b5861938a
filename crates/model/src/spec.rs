//! Job specifications, parsed once from requests: later code doesn't check these fields again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::batch::{ArrayLimit, ArrayRules, BatchRules, EarlySignal, Interaction, LaunchStyle};
use crate::container::ContainerRules;
use crate::dependency::Dependency;
use crate::gang::GangShape;
use crate::idle::IdleRules;
use crate::ids::BadId;
use crate::life::{OnLost, RetryRules, words};
use crate::mail::MailRules;
use crate::mig::ProfileName;
use crate::mig::compute::ComputeName;
use crate::place::{PlaceFilter, node_list};
use crate::share::{CheckpointSignal, SharingMode};
use crate::sizing::{MemoryPrediction, OomPolicy};
use crate::units::{Bytes, Millis};

/// A request that breaks a rule, reported so that its author can fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {expected}")]
pub struct BadField {
    /// The field, as the caller wrote it.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// The expected value.
    pub expected: String,
}

impl BadField {
    /// States what is wrong with `field`, and what is expected.
    pub fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: problem.into(), expected: expected.into() }
    }
}

/// Longest script: with environment and arguments it must fit into one frame of 64 KiB.
pub const SCRIPT_BYTES_MAX: usize = 40_000;
/// Maximum number of bytes that arguments, environment, paths and names may have together.
pub const REST_BYTES_MAX: usize = 20_000;
/// Maximum number of environment variables.
pub const ENV_VARS_MAX: usize = 512;
/// Longest name of a job.
pub const NAME_BYTES_MAX: usize = 128;
/// Maximum number of tasks in one array.
pub const ARRAY_TASKS_MAX: u32 = 10_000;

words! {
    /// The class of a job: what its user needs.
    Class {
        /// Latency: each request or step should be quick.
        Online = "online",
        /// Throughput: done as soon as the cluster allows.
        Offline = "offline",
    }
}

/// A job's priority: 0 (highest) to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct Priority(u8);

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Priority {
    /// The priority that is served first, Q0.
    pub const HIGHEST: Self = Self(0);
    /// The default priority.
    pub const DEFAULT: Self = Self(5);

    /// Returns the number, 0 to 9.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Priority {
    type Error = BadField;

    fn try_from(number: u8) -> Result<Self, BadField> {
        match number {
            0..=9 => Ok(Self(number)),
            10.. => Err(BadField::new(
                "priority",
                format!("{number} is out of range"),
                "0 (highest) to 9 (lowest)",
            )),
        }
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

/// The offset of a job behind others of its priority, like Slurm's `--nice`: 0 to 2,147,483,645.
///
/// There are no negative values, since users must not place their jobs ahead of others'.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(into = "i64", try_from = "i64")]
pub struct Nice(u32);

impl Nice {
    /// The largest value, which is Slurm's.
    pub const MAX: Self = Self(2_147_483_645);

    /// Returns the value.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns whether the offset is zero.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl TryFrom<i64> for Nice {
    type Error = BadField;

    fn try_from(value: i64) -> Result<Self, BadField> {
        let nice = u32::try_from(value).ok().map(Self).filter(|nice| *nice <= Self::MAX);
        nice.ok_or_else(|| {
            let why = match value {
                ..0 => format!("{value} is negative, and a job can only be placed behind others"),
                0.. => format!("{value} is out of range"),
            };
            BadField::new("nice", why, format!("0 to {}", Self::MAX.0))
        })
    }
}

impl From<Nice> for i64 {
    fn from(nice: Nice) -> Self {
        nice.0.into()
    }
}

/// The rank of a job in the queue: the smallest rank is served first, and equal ranks by number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct QueueRank {
    /// The queue that its user chose, Q0 to Q9.
    pub priority: Priority,
    /// The offset within the priority.
    #[serde(default, skip_serializing_if = "Nice::is_zero")]
    pub nice: Nice,
}

impl QueueRank {
    /// Returns the priority with its offset, which is less than one priority: half of one at 100, the value
    /// of `--nice` without a number.
    pub fn level(self) -> f64 {
        let nice = f64::from(self.nice.get());
        f64::from(self.priority.get()) + nice / (nice + 100.0)
    }
}

impl From<Priority> for QueueRank {
    fn from(priority: Priority) -> Self {
        Self { priority, nice: Nice::default() }
    }
}

/// A job update: what a user may change at any time. Absent fields don't change.
///
/// It is stored with the keys of [`JobSpec`], and earlier updates of the job keep what it leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobUpdate {
    /// The new priority; a running job has it when it waits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The new offset within the priority; a running job has it when it waits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<Nice>,
    /// Longest run time of an attempt.
    #[serde(
        rename = "time_limit",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "TimeUpdate::deserialize_some"
    )]
    pub limit: Option<TimeUpdate>,
    /// Its deadline, in milliseconds since 1970.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "TimeUpdate::deserialize_some"
    )]
    pub deadline: Option<TimeUpdate>,
    /// The jobs that it waits for; only a waiting job's can change.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "DependencyUpdate::deserialize_some"
    )]
    pub dependency: Option<DependencyUpdate>,
    /// Its name, for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its user's remark; empty for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The earliest start, in milliseconds since 1970; only a waiting job's can change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Millis>,
    /// What becomes of it after its node was lost. In specifications it is below the retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<OnLost>,
    /// How many tasks of its array may run at a time; none at a time stands for no limit. In specifications it is below
    /// the array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_limit: Option<ArrayLimit>,
}

/// A dependency that replaces another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<Dependency>", into = "Option<Dependency>")]
pub enum DependencyUpdate {
    /// The job waits for no other job any more.
    Removed,
    /// The new one; one copy serves all tasks of an array.
    To(Arc<Dependency>),
}

impl From<Option<Dependency>> for DependencyUpdate {
    fn from(dependency: Option<Dependency>) -> Self {
        dependency.map_or(Self::Removed, |dependency| Self::To(Arc::new(dependency)))
    }
}

impl From<DependencyUpdate> for Option<Dependency> {
    fn from(update: DependencyUpdate) -> Self {
        update.dependency().cloned()
    }
}

impl DependencyUpdate {
    /// Returns the dependency as in specifications: `None` if it is removed.
    pub fn dependency(&self) -> Option<&Dependency> {
        match self {
            Self::Removed => None,
            Self::To(dependency) => Some(dependency),
        }
    }

    /// Reads an update that is there: `null` means that there is no dependency any more.
    fn deserialize_some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(from).map(Some)
    }
}

/// A time limit or a deadline that replaces another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<Millis>", into = "Option<Millis>")]
pub enum TimeUpdate {
    /// The job has no time limit any more.
    Removed,
    /// The new one.
    To(Millis),
}

impl From<Option<Millis>> for TimeUpdate {
    fn from(time: Option<Millis>) -> Self {
        time.map_or(Self::Removed, Self::To)
    }
}

impl From<TimeUpdate> for Option<Millis> {
    fn from(update: TimeUpdate) -> Self {
        update.time()
    }
}

impl TimeUpdate {
    /// Returns the time as in specifications: `None` if it is removed.
    pub const fn time(self) -> Option<Millis> {
        match self {
            Self::Removed => None,
            Self::To(time) => Some(time),
        }
    }

    /// Reads an update that is there: `null` means that there is no time any more.
    fn deserialize_some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(from).map(Some)
    }
}

impl JobUpdate {
    /// Returns whether nothing is updated.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the update to a job's specification.
    pub fn apply_to(&self, spec: &mut JobSpec) {
        spec.queue_rank = self.rank_over(spec.queue_rank);
        if let Some(limit) = self.limit {
            spec.run.time_limit = limit.time();
        }
        if let Some(deadline) = self.deadline {
            spec.deadline = deadline.time();
        }
        if let Some(dependency) = &self.dependency {
            spec.dependency = dependency.dependency().cloned();
        }
        if let Some(name) = &self.name {
            spec.name.clone_from(name);
        }
        if let Some(comment) = &self.comment {
            spec.comment = Some(comment.clone()).filter(|comment| !comment.is_empty());
        }
        if let Some(on_lost) = self.on_lost {
            spec.retry.on_lost = on_lost;
        }
        spec.begin = self.begin.or(spec.begin);
        spec.array.limit = self.array_limit_over(spec.array.limit);
    }

    /// Returns how many tasks of a job's array may run at a time after the update.
    pub fn array_limit_over(&self, limit: Option<ArrayLimit>) -> Option<ArrayLimit> {
        self.array_limit.map_or(limit, |limit| Some(limit).filter(|limit| limit.at_once > 0))
    }

    /// Returns a job's rank after the update.
    #[must_use]
    pub const fn rank_over(&self, mut rank: QueueRank) -> QueueRank {
        if let Some(priority) = self.priority {
            rank.priority = priority;
        }
        if let Some(nice) = self.nice {
            rank.nice = nice;
        }
        rank
    }

    /// Reads new values that are texts; an empty comment removes it.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first invalid one.
    pub fn with_texts(
        self,
        name: Option<String>,
        comment: Option<String>,
        on_lost: Option<String>,
    ) -> Result<Self, BadField> {
        Ok(Self {
            name: name.map(|name| plain_text("name", name, NAME_BYTES_MAX)).transpose()?,
            comment: match comment {
                Some(none) if none.is_empty() => Some(none),
                comment => optional_text("comment", comment)?,
            },
            on_lost: parse_optional("on_lost", on_lost)?,
            ..self
        })
    }

    /// Returns an earlier update with this one on top.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        Self {
            priority: self.priority.or(earlier.priority),
            nice: self.nice.or(earlier.nice),
            limit: self.limit.or(earlier.limit),
            deadline: self.deadline.or(earlier.deadline),
            dependency: self.dependency.or(earlier.dependency),
            name: self.name.or(earlier.name),
            comment: self.comment.or(earlier.comment),
            begin: self.begin.or(earlier.begin),
            on_lost: self.on_lost.or(earlier.on_lost),
            array_limit: self.array_limit.or(earlier.array_limit),
        }
    }

    /// Returns what changes, as text.
    pub fn text(&self) -> String {
        let priority =
            self.priority.map(|priority| format!("its priority becomes {}", priority.get()));
        let nice = self.nice.map(|nice| format!("its nice value becomes {}", nice.get()));
        let limit = self.limit.map(|limit| match limit {
            TimeUpdate::Removed => "it has no time limit any more".to_owned(),
            TimeUpdate::To(time) => format!("its time limit becomes {} s", time.get() / 1_000),
        });
        let deadline = self.deadline.map(|deadline| match deadline {
            TimeUpdate::Removed => "it has no deadline any more",
            TimeUpdate::To(_) => "it has another deadline",
        });
        let deadline = deadline.map(str::to_owned);
        let dependency = self.dependency.as_ref().map(|dependency| match dependency {
            DependencyUpdate::Removed => "it waits for no other job any more".to_owned(),
            DependencyUpdate::To(dependency) => format!("it waits for {dependency}"),
        });
        let name = self.name.as_ref().map(|name| format!("its name becomes {name}"));
        let comment = self.comment.as_ref().map(|_| "it has another comment".to_owned());
        let begin = self.begin.map(|_| "it has another earliest start".to_owned());
        let on_lost =
            self.on_lost.map(|on_lost| format!("after the loss of its node: {}", on_lost.word()));
        let array_limit = self.array_limit.map(|limit| match limit.at_once {
            0 => "all tasks of its array may run at a time".to_owned(),
            at_once => format!("{at_once} tasks of its array may run at a time"),
        });
        let all = [
            priority,
            nice,
            limit,
            deadline,
            dependency,
            name,
            comment,
            begin,
            on_lost,
            array_limit,
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        format!("{}, by its user", all.join(", "))
    }
}

/// What a job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobProgram {
    /// A script's text, handed to the interpreter of its first line.
    Script(String),
    /// A program of the node and its arguments.
    Command(Vec<String>),
}

/// How much of a GPU a job requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuRequest {
    /// Its user doesn't know: any slice, which the policy chooses (MIGM §2.2, case 4, has the smallest).
    Unknown,
    /// A slice with at least this memory.
    Memory(Bytes),
    /// A slice of exactly this profile.
    Profile(ProfileName),
    /// A whole GPU, alone.
    Whole,
    /// A whole GPU, alone, with MIG off: one of several that a job uses together. GPUs with MIG on can't
    /// reach each other's memory.
    Unpartitioned,
    /// A compute instance of this kind: its compute slices are its own, its GPU instance's memory
    /// is not.
    Compute(ComputeName),
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.pad("any slice"),
            Self::Memory(bytes) => f.pad(&format!("{bytes}")),
            Self::Profile(name) => f.pad(name.as_str()),
            Self::Whole => f.pad("a whole GPU"),
            Self::Unpartitioned => f.pad("a whole GPU with MIG off"),
            Self::Compute(name) => name.fmt(f),
        }
    }
}

/// Where a job's output goes. Without a path it stays in the attempt's own folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPaths {
    /// Pattern for standard output (`%j` job, `%A` array, `%a` index, `%x` name, `%u` user,
    /// `%N` node, `%r` restarts, `%%` a percent sign).
    pub stdout: Option<String>,
    /// Pattern for standard error; standard output's file, if only that is given.
    pub stderr: Option<String>,
}

/// How each attempt of a job is run. The controller hands it to the agent, and the agent to the
/// shepherd, as one value: a new field passes through all of them without a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// What is started on the first node.
    pub program: JobProgram,
    /// The working directory; the attempt's own directory, if not given.
    pub work_dir: Option<String>,
    /// Environment variables in addition to those that Tessera sets.
    pub env: BTreeMap<String, String>,
    /// The output files.
    pub output: OutputPaths,
    /// Longest run time of one attempt.
    pub time_limit: Option<Millis>,
    /// Time between `SIGTERM` and `SIGKILL`.
    pub grace: Millis,
    /// The signal on which the program writes a checkpoint and exits; without one it is never
    /// migrated.
    #[serde(default)]
    pub checkpoint_signal: Option<CheckpointSignal>,
    /// Maximum memory of the host that an attempt may use.
    #[serde(default)]
    pub host_memory: Option<Bytes>,
    /// Maximum number of processors that an attempt may use.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// How it is started and warned.
    #[serde(default)]
    pub batch: BatchRules,
    /// Pattern of the file that standard input comes from; without one there is nothing to read.
    #[serde(default)]
    pub input: Option<String>,
    /// The container that the program runs in; without one it runs on the node itself.
    #[serde(default)]
    pub container: Option<ContainerRules>,
}

/// A job, as its user requests it: every field has passed every check that needs no cluster state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its name, for users.
    pub name: String,
    /// The user who submitted it, as the client states.
    pub user: String,
    /// How each attempt is run. It is stored next to the other fields, not below them.
    #[serde(flatten)]
    pub run: RunSpec,
    /// How much of a GPU it requests.
    pub gpu: GpuRequest,
    /// Latency or throughput.
    pub class: Class,
    /// Its rank in the queue. It is stored next to the other fields, not below them.
    #[serde(flatten)]
    pub queue_rank: QueueRank,
    /// How often it may run again.
    pub retry: RetryRules,
    /// The key that its runs share with those of other jobs; derived from the program, if not
    /// given.
    pub task_key: Option<String>,
    /// Whether it may wait for hardware that the cluster doesn't have.
    pub allow_pending: bool,
    /// Whether it has its slice to itself. Jobs that were stored before there was a choice do.
    #[serde(default)]
    pub share: SharingMode,
    /// On how many GPUs of how many nodes it runs, one process each, if on more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangShape>,
    /// Its deadline, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Millis>,
    /// The policy if it runs out of GPU memory, if its user named one; see [`JobSpec::oom_policy`].
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "oom_policy")]
    pub named_oom_policy: Option<OomPolicy>,
    /// The action on a prediction that it exceeds its slice, if its user named one; the cluster has
    /// a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<MemoryPrediction>,
    /// The memory that its user's estimate gives it if it names no size: runs of its task count more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_memory: Option<Bytes>,
    /// On which nodes and GPUs it may run.
    #[serde(default, skip_serializing_if = "PlaceFilter::is_open")]
    pub place: PlaceFilter,
    /// The earliest start, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Millis>,
    /// The jobs that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<Dependency>,
    /// Its array, if its indexes have gaps or its tasks are limited.
    #[serde(default, skip_serializing_if = "ArrayRules::is_plain")]
    pub array: ArrayRules,
    /// The partition that its user names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The quality of service that its user names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Its user's remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The mail about it that its user requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mail: Option<MailRules>,
    /// What becomes of it if its GPU does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleRules>,
}

/// A request as it came from outside, every field optional or unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawJobSpec {
    /// See [`JobSpec::name`]; the program's name, if empty.
    pub name: Option<String>,
    /// See [`JobSpec::user`].
    pub user: Option<String>,
    /// A script's text.
    pub script: Option<String>,
    /// A command and its arguments.
    pub command: Option<Vec<String>>,
    /// See [`RunSpec::work_dir`].
    pub work_dir: Option<String>,
    /// See [`RunSpec::env`].
    pub env: BTreeMap<String, String>,
    /// See [`OutputPaths::stdout`].
    pub stdout: Option<String>,
    /// See [`OutputPaths::stderr`].
    pub stderr: Option<String>,
    /// GPU memory that the user named; none if a slice or a GPU was named, or nothing.
    pub gpu_memory_bytes: Option<u64>,
    /// A MIG profile.
    pub gpu_profile: Option<String>,
    /// Whether the job requests a whole GPU.
    pub gpu_whole: bool,
    /// Longest run time in seconds.
    pub time_limit_secs: Option<u64>,
    /// Grace after `SIGTERM` in seconds.
    pub grace_secs: Option<u64>,
    /// `online` or `offline`.
    pub class: Option<String>,
    /// 0 to 9.
    pub priority: Option<u8>,
    /// See [`Nice`].
    pub nice: Option<i64>,
    /// Own failures that it survives.
    pub max_retries: Option<u32>,
    /// `requeue`, `hold` or `fail`.
    pub on_lost: Option<String>,
    /// See [`JobSpec::task_key`].
    pub task_key: Option<String>,
    /// See [`JobSpec::allow_pending`].
    pub allow_pending: bool,
    /// The words of [`SharingMode::parse`].
    pub share: Option<String>,
    /// Share of the slice's multiprocessors in percent, with `mps` or `kernel`.
    pub sm_percent: Option<u8>,
    /// See [`RunSpec::checkpoint_signal`].
    pub checkpoint_signal: Option<String>,
    /// See [`RunSpec::host_memory`].
    pub host_memory_bytes: Option<u64>,
    /// See [`RunSpec::cpus`].
    pub cpus: Option<u32>,
    /// See [`JobSpec::gang`]: nodes, and GPUs on each.
    pub gang: Option<(u32, u32)>,
    /// See [`JobSpec::deadline`].
    pub deadline: Option<Millis>,
    /// `larger`, `same` or `fail`.
    pub oom_policy: Option<String>,
    /// `off`, `advise` or `act`.
    pub memory_prediction: Option<String>,
    /// See [`JobSpec::estimated_memory`].
    pub gpu_memory_estimate_bytes: Option<u64>,
    /// See [`BatchRules::interaction`].
    pub interaction: Option<Interaction>,
    /// The script's arguments.
    pub arguments: Vec<String>,
    /// See [`JobSpec::begin`].
    pub begin: Option<Millis>,
    /// See [`ArrayRules::indexes`].
    pub array_indexes: Vec<u32>,
    /// See [`ArrayRules::limit`].
    pub array_limit: Option<u32>,
    /// How many tasks the array has.
    pub array_tasks: u32,
    /// See [`JobSpec::partition`].
    pub partition: Option<String>,
    /// See [`JobSpec::qos`].
    pub qos: Option<String>,
    /// See [`JobSpec::comment`].
    pub comment: Option<String>,
    /// Events about which its user gets mail.
    pub mail_types: Vec<String>,
    /// The recipients of that mail, with commas between addresses.
    pub mail_user: Option<String>,
    /// `each` or `once`.
    pub launch: Option<String>,
    /// A signal, how many seconds before the time limit, and whether only the script gets it.
    pub signal: Option<(String, u64, bool)>,
    /// `append` or `truncate`.
    pub open_mode: Option<String>,
    /// See [`PlaceFilter::model`].
    pub gpu_model: Option<String>,
    /// Nodes, as batch schedulers list them.
    pub nodelist: Option<String>,
    /// Nodes, as batch schedulers list them.
    pub exclude: Option<String>,
    /// See [`RunSpec::input`].
    pub input: Option<String>,
    /// An image, mounts as `SOURCE:TARGET`, and a folder inside.
    pub container: Option<(String, Vec<String>, Option<String>)>,
    /// See [`IdleRules::timeout`].
    pub idle_timeout_secs: Option<u64>,
    /// `end` or `requeue`.
    pub idle_action: Option<String>,
}

/// Grace after `SIGTERM` where a job requests none, as batch schedulers give.
const DEFAULT_GRACE: Millis = Millis::from_secs(30);
/// Longest grace: a node can't wait forever to get its slice back.
const GRACE_SECS_MAX: u64 = 3_600;
/// Longest time limit, one year: longer ones are typing errors.
const TIME_LIMIT_SECS_MAX: u64 = 366 * 24 * 3_600;
/// Least memory of the host: below it no program starts.
const HOST_MEMORY_MIN: Bytes = Bytes::from_mib(1);
/// Maximum memory of the host: more than any machine has.
const HOST_MEMORY_MAX: Bytes = Bytes::from_mib(1 << 30);
/// Maximum number of processors: what Linux has at most.
const CPUS_MAX: u32 = 8_192;
/// Most of its own failures that a job may survive.
const RETRIES_MAX: u32 = 1_000;

fn host_memory(bytes: u64) -> Result<Bytes, BadField> {
    let (least, most) = (HOST_MEMORY_MIN.get(), HOST_MEMORY_MAX.get());
    in_range("host_memory_bytes", bytes, least, most).map(Bytes::new)
}

fn cpus(number: u32) -> Result<u32, BadField> {
    in_range("cpus", u64::from(number), 1, u64::from(CPUS_MAX)).map(|_| number)
}

impl JobSpec {
    /// Reads a request into a job.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first field that breaks a rule, and what is expected.
    pub fn parse(raw: RawJobSpec) -> Result<Self, BadField> {
        let program = parse_program(raw.script, raw.command)?;
        let arguments = parse_arguments(&program, raw.arguments)?;
        let name = raw.name.filter(|n| !n.is_empty()).unwrap_or_else(|| default_name(&program));
        let gpu = parse_gpu(raw.gpu_memory_bytes, raw.gpu_profile, raw.gpu_whole)?;
        let name = plain_text("name", name, NAME_BYTES_MAX)?;
        let user = plain_text("user", raw.user.unwrap_or_else(|| "unknown".into()), 64)?;
        let mail = MailRules::parse(&raw.mail_types, raw.mail_user.as_deref(), &user)?;
        let spec = Self {
            name,
            user,
            run: RunSpec {
                work_dir: raw.work_dir.map(|dir| absolute_path("work_dir", dir)).transpose()?,
                env: parse_env(raw.env)?,
                output: OutputPaths {
                    stdout: raw.stdout.map(|p| no_nul("stdout", p)).transpose()?,
                    stderr: raw.stderr.map(|p| no_nul("stderr", p)).transpose()?,
                },
                checkpoint_signal: parse_optional("checkpoint_signal", raw.checkpoint_signal)?,
                host_memory: raw.host_memory_bytes.map(host_memory).transpose()?,
                cpus: raw.cpus.map(cpus).transpose()?,
                time_limit: raw.time_limit_secs.map(time_limit).transpose()?,
                grace: raw
                    .grace_secs
                    .map(|secs| in_range("grace_secs", secs, 0, GRACE_SECS_MAX))
                    .transpose()?
                    .map_or(DEFAULT_GRACE, Millis::from_secs),
                program,
                batch: BatchRules {
                    launch: parse_word("launch", raw.launch, LaunchStyle::Each)?,
                    arguments,
                    signal: raw
                        .signal
                        .map(|(signal, secs, script)| EarlySignal::parse(&signal, secs, script))
                        .transpose()?,
                    open_mode: parse_optional("open_mode", raw.open_mode)?,
                    interaction: raw.interaction,
                },
                input: raw.input.map(|path| no_nul("input", path)).transpose()?,
                container: raw
                    .container
                    .map(|(image, mounts, folder)| ContainerRules::parse(&image, &mounts, folder))
                    .transpose()?,
            },
            place: PlaceFilter {
                model: raw.gpu_model.map(|model| plain_text("gpu_model", model, 64)).transpose()?,
                nodes: listed("nodelist", raw.nodelist)?,
                exclude: listed("exclude", raw.exclude)?,
            },
            share: SharingMode::parse(raw.share.as_deref(), raw.sm_percent, &gpu)?,
            gang: raw.gang.map(|(nodes, gpus)| GangShape::new(nodes, gpus)).transpose()?,
            estimated_memory: raw
                .gpu_memory_estimate_bytes
                .map(|bytes| estimated_memory(bytes, &gpu))
                .transpose()?,
            named_oom_policy: parse_optional("oom_policy", raw.oom_policy)?,
            memory_prediction: parse_optional("memory_prediction", raw.memory_prediction)?,
            gpu,
            class: parse_word("class", raw.class, Class::Offline)?,
            queue_rank: QueueRank {
                priority: raw.priority.map_or(Ok(Priority::DEFAULT), Priority::try_from)?,
                nice: raw.nice.map_or(Ok(Nice::default()), Nice::try_from)?,
            },
            retry: RetryRules {
                max_retries: match raw.max_retries.unwrap_or(0) {
                    retries @ 0..=RETRIES_MAX => retries,
                    retries => {
                        return Err(BadField::new(
                            "max_retries",
                            format!("{retries} is out of range"),
                            format!("0 to {RETRIES_MAX}"),
                        ));
                    }
                },
                on_lost: parse_word("on_lost", raw.on_lost, OnLost::Requeue)?,
            },
            task_key: raw.task_key.map(|key| plain_text("task_key", key, 256)).transpose()?,
            allow_pending: raw.allow_pending,
            deadline: raw.deadline,
            begin: raw.begin,
            // It is looked up where jobs are stored.
            dependency: None,
            array: ArrayRules::parse(raw.array_indexes, raw.array_limit, raw.array_tasks)?,
            partition: optional_text("partition", raw.partition)?,
            qos: optional_text("qos", raw.qos)?,
            comment: optional_text("comment", raw.comment)?,
            mail,
            idle: IdleRules::parse(raw.idle_timeout_secs, raw.idle_action.as_deref())?,
        };
        spec.check_size()?;
        spec.check_interaction()?;
        spec.gang_of_several()
    }

    /// An interactive job connects one user with one program: it has one process, and no files for
    /// its output.
    fn check_interaction(&self) -> Result<(), BadField> {
        if self.run.batch.interaction.is_none() {
            return Ok(());
        }
        let refuse = |problem: &str, expected: &str| {
            Err(BadField::new("interactive", problem.to_owned(), expected.to_owned()))
        };
        if self.run.input.is_some() {
            return refuse("its input comes from its user, not from a file", "no `input`");
        }
        if self.run.output.stdout.is_some() || self.run.output.stderr.is_some() {
            return refuse(
                "its output goes to its user, not to a file",
                "no `stdout` and no `stderr`",
            );
        }
        let has_several = self.gang.is_some_and(|shape| shape.members() > 1);
        if has_several && self.run.batch.launch == LaunchStyle::Each {
            return refuse("one process for each GPU can't share a terminal", "`launch` = `once`");
        }
        Ok(())
    }

    /// A gang of one is a job like any other; the members of a larger one have their slices alone.
    fn gang_of_several(mut self) -> Result<Self, BadField> {
        self.gang = self.gang.filter(|shape| shape.members() > 1);
        if self.gang.is_none() {
            return Ok(self);
        }
        if self.share != SharingMode::Exclusive {
            return Err(BadField::new(
                "share",
                format!("the members of a gang can't share their slices ({})", self.share.word()),
                "exclusive, or one GPU",
            ));
        }
        if self.gpu == GpuRequest::Whole {
            self.gpu = GpuRequest::Unpartitioned;
        }
        if let GpuRequest::Compute(name) = &self.gpu {
            return Err(BadField::new(
                "gpu_profile",
                format!("the members of a gang can't have compute instances such as {name}"),
                "gpu_whole, gpu_memory_bytes, or a MIG profile such as 1g.5gb",
            ));
        }
        Ok(self)
    }

    /// Returns the policy if the job runs out of GPU memory.
    pub const fn oom_policy(&self) -> OomPolicy {
        match self.named_oom_policy {
            Some(policy) => policy,
            None => OomPolicy::default_for(&self.gpu),
        }
    }

    fn check_size(&self) -> Result<(), BadField> {
        let command = match &self.run.program {
            JobProgram::Script(_) => {
                self.run.batch.arguments.iter().map(|a| a.len() + 8).sum::<usize>()
            }
            JobProgram::Command(argv) => argv.iter().map(|a| a.len() + 8).sum(),
        };
        let env: usize = self.run.env.iter().map(|(k, v)| k.len() + v.len() + 16).sum();
        let paths: usize =
            [&self.run.work_dir, &self.run.output.stdout, &self.run.output.stderr, &self.run.input]
                .iter()
                .filter_map(|p| p.as_ref().map(String::len))
                .sum();
        let container = self.run.container.as_ref().map_or(0, ContainerRules::bytes);
        let total = command + env + paths + container;
        if total > REST_BYTES_MAX {
            return Err(BadField::new(
                "env",
                format!("arguments, environment and paths take {total} bytes together"),
                format!("at most {REST_BYTES_MAX}: put large values into a file"),
            ));
        }
        Ok(())
    }
}

fn parse_program(
    script: Option<String>,
    command: Option<Vec<String>>,
) -> Result<JobProgram, BadField> {
    match (script, command) {
        (Some(script), None) => {
            if !script.starts_with("#!") {
                return Err(BadField::new(
                    "script",
                    "the first line names no interpreter",
                    "begin with a line such as #!/bin/bash",
                ));
            }
            if script.len() > SCRIPT_BYTES_MAX {
                return Err(BadField::new(
                    "script",
                    format!("it has {} bytes", script.len()),
                    format!("at most {SCRIPT_BYTES_MAX}: put large parts into a file"),
                ));
            }
            no_nul("script", script).map(JobProgram::Script)
        }
        (None, Some(argv)) => {
            if argv.first().is_none_or(String::is_empty) {
                return Err(BadField::new(
                    "command",
                    "it names no program",
                    "give the program and its arguments, such as [\"python3\", \"train.py\"]",
                ));
            }
            let argv = argv.into_iter().map(|arg| no_nul("command", arg));
            Ok(JobProgram::Command(argv.collect::<Result<_, _>>()?))
        }
        (None, None) | (Some(_), Some(_)) => Err(BadField::new(
            "script",
            "a job runs exactly one thing",
            "give either script (its text) or command (a list of words)",
        )),
    }
}

/// Checks the arguments of a script; a command has its own.
fn parse_arguments(program: &JobProgram, arguments: Vec<String>) -> Result<Vec<String>, BadField> {
    if matches!(program, JobProgram::Command(_)) && !arguments.is_empty() {
        return Err(BadField::new(
            "arguments",
            "they are those of a script, and there is none",
            "the words of command to hold the arguments",
        ));
    }
    arguments.into_iter().map(|argument| no_nul("arguments", argument)).collect()
}

/// Reads a list of nodes, if there is one.
fn listed(
    field: &str,
    text: Option<String>,
) -> Result<std::collections::BTreeSet<crate::ids::NodeName>, BadField> {
    text.map_or(Ok(Default::default()), |text| node_list(field, &text))
}

fn default_name(program: &JobProgram) -> String {
    match program {
        JobProgram::Script(_) => "script".to_owned(),
        JobProgram::Command(argv) => {
            let program = argv.first().map_or("job", String::as_str);
            let base = program.rsplit('/').next().unwrap_or(program);
            base.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX / 4).collect()
        }
    }
}

fn parse_gpu(
    memory: Option<u64>,
    profile: Option<String>,
    whole: bool,
) -> Result<GpuRequest, BadField> {
    match (memory, profile, whole) {
        (None, None, false) => Ok(GpuRequest::Unknown),
        (None, None, true) => Ok(GpuRequest::Whole),
        (Some(0), None, false) => Err(BadField::new(
            "gpu_memory_bytes",
            "a slice with no memory is no slice",
            "a positive number of bytes, or leave it out if any slice may do",
        )),
        (Some(bytes), None, false) => Ok(GpuRequest::Memory(Bytes::new(bytes))),
        (None, Some(name), false) => request_by_name(&name),
        _ => Err(BadField::new(
            "gpu_memory_bytes",
            "a job gives its size in one way",
            "give one of gpu_memory_bytes, gpu_profile and gpu_whole",
        )),
    }
}

/// Reads an estimate of a job's memory, which only a job that names no size has.
fn estimated_memory(bytes: u64, gpu: &GpuRequest) -> Result<Bytes, BadField> {
    match (bytes, gpu) {
        (1.., GpuRequest::Unknown) => Ok(Bytes::new(bytes)),
        (0, GpuRequest::Unknown) => Err(BadField::new(
            "gpu_memory_estimate_bytes",
            "a program without memory needs no GPU",
            "a positive number of bytes, or leave it out",
        )),
        (_, named) => Err(BadField::new(
            "gpu_memory_estimate_bytes",
            format!("the job requests {named} already"),
            "an estimate for a job that names no size, or the size alone",
        )),
    }
}

/// Reads what a job names: a profile, or a kind of compute instance.
///
/// # Errors
///
/// [`BadField`] if it is neither.
pub fn request_by_name(name: &str) -> Result<GpuRequest, BadField> {
    let compute = || name.parse().map(GpuRequest::Compute).ok();
    name.parse().map(GpuRequest::Profile).ok().or_else(compute).ok_or_else(|| {
        BadField::new(
            "gpu_profile",
            format!("{name:?} is no profile"),
            "a MIG profile such as 1g.5gb, or a compute instance of one such as 1c.3g.20gb",
        )
    })
}

/// Variables by which a job switches the observers inside of its processes on and off.
const OBSERVER_SWITCHES: [&str; 2] = ["TESSERA_COMPANION", "TESSERA_WATCH"];
/// The value of a job's `SLURM_CPUS_ON_NODE` that stands for all processors of its node, which replaces it by their
/// number.
pub const ALL_PROCESSORS: &str = "all";
/// Variables by which a job's own commands find the controller. A token is none of them: it would be stored with the job.
pub const CONTROLLER_VARIABLES: [&str; 2] = ["TESSERA_URL", "TESSERA_CA"];

fn parse_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, BadField> {
    if env.len() > ENV_VARS_MAX {
        return Err(BadField::new(
            "env",
            format!("it has {} variables", env.len()),
            format!("at most {ENV_VARS_MAX}"),
        ));
    }
    for (name, value) in &env {
        let well_formed = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| !c.is_control() && c != '=' && c != ' ');
        if !well_formed || value.contains('\0') {
            return Err(BadField::new(
                "env",
                format!("{name:?} can't be set"),
                "a name without = or blanks that doesn't begin with a digit, and a value without NUL",
            ));
        }
        if OBSERVER_SWITCHES.contains(&name.as_str()) {
            if !["on", "off"].contains(&value.as_str()) {
                return Err(BadField::new("env", format!("{name} is {value:?}"), "on or off"));
            }
            continue;
        }
        if name.starts_with("TESSERA_") && !CONTROLLER_VARIABLES.contains(&name.as_str()) {
            return Err(BadField::new(
                "env",
                format!("{name} is one of the variables that Tessera sets"),
                "choose a name that doesn't begin with TESSERA_",
            ));
        }
    }
    Ok(env)
}

fn parse_word<T: FromStr<Err = BadId>>(
    field: &str,
    text: Option<String>,
    default: T,
) -> Result<T, BadField> {
    text.map_or(Ok(default), |text| {
        text.parse().map_err(|bad: BadId| {
            BadField::new(field, format!("{:?} is unknown", bad.text), bad.expected)
        })
    })
}

fn parse_optional<T: FromStr<Err = BadId>>(
    field: &str,
    text: Option<String>,
) -> Result<Option<T>, BadField> {
    let parse = |text: String| {
        text.parse().map_err(|bad: BadId| {
            BadField::new(field, format!("{:?} is unknown", bad.text), bad.expected)
        })
    };
    text.map(parse).transpose()
}

/// Reads a time limit.
///
/// # Errors
///
/// [`BadField`] if it is none that a job may have.
pub fn time_limit(secs: u64) -> Result<Millis, BadField> {
    in_range("time_limit_secs", secs, 1, TIME_LIMIT_SECS_MAX).map(Millis::from_secs)
}

fn in_range(field: &str, value: u64, least: u64, most: u64) -> Result<u64, BadField> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(BadField::new(field, format!("{value} is out of range"), format!("{least} to {most}")))
    }
}

fn plain_text(field: &str, text: String, most: usize) -> Result<String, BadField> {
    if !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        Err(BadField::new(
            field,
            "it is empty, too long, or holds control characters",
            format!("1 to {most} bytes of plain text"),
        ))
    }
}

/// Reads a short text, if there is one; an empty one counts as none.
fn optional_text(field: &str, text: Option<String>) -> Result<Option<String>, BadField> {
    text.filter(|text| !text.is_empty()).map(|text| plain_text(field, text, 1_024)).transpose()
}

fn absolute_path(field: &str, path: String) -> Result<String, BadField> {
    if path.starts_with('/') {
        no_nul(field, path)
    } else {
        Err(BadField::new(field, format!("{path:?} is relative"), "an absolute path"))
    }
}

fn no_nul(field: &str, text: String) -> Result<String, BadField> {
    if text.contains('\0') {
        Err(BadField::new(field, "it holds a NUL byte", "text without NUL bytes"))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawJobSpec {
        RawJobSpec { command: Some(vec!["/bin/true".into()]), ..RawJobSpec::default() }
    }

    #[test]
    fn a_bare_command_gets_sensible_defaults() {
        let spec = JobSpec::parse(raw()).unwrap();

        assert_eq!(spec.name, "true");
        assert_eq!(spec.gpu, GpuRequest::Unknown);
        assert_eq!(spec.queue_rank.priority.get(), 5);
        assert_eq!(spec.retry.on_lost, OnLost::Requeue);
        assert_eq!(spec.run.grace, Millis::from_secs(30));
    }

    #[test]
    fn a_job_switches_its_observers_on_and_off_and_learns_where_the_controller_is() {
        let mut with = raw();
        with.env.insert("TESSERA_COMPANION".into(), "off".into());
        with.env.insert("TESSERA_WATCH".into(), "on".into());
        with.env.insert("TESSERA_URL".into(), "https://gpu.lab:7070".into());

        let spec = JobSpec::parse(with).unwrap();

        assert_eq!(spec.run.env["TESSERA_URL"], "https://gpu.lab:7070");

        assert_eq!(spec.run.env["TESSERA_COMPANION"], "off");
    }

    #[test]
    fn each_broken_rule_names_its_field_and_says_what_would_be_right() {
        type Break = fn(&mut RawJobSpec);
        let cases: [(&str, &str, Break); 19] = [
            ("script", "either script", |r| r.command = None),
            ("command", "give the program", |r| r.command = Some(vec![])),
            ("script", "#!/bin/bash", |r| {
                r.command = None;
                r.script = Some("echo hi".into());
            }),
            ("work_dir", "absolute", |r| r.work_dir = Some("here".into())),
            ("env", "begin with TESSERA_", |r| {
                r.env.insert("TESSERA_JOB_ID".into(), "1".into());
            }),
            ("env", "on or off", |r| {
                r.env.insert("TESSERA_WATCH".into(), "yes".into());
            }),
            ("env", "without =", |r| {
                r.env.insert("A=B".into(), "1".into());
            }),
            ("gpu_memory_bytes", "positive", |r| r.gpu_memory_bytes = Some(0)),
            ("gpu_profile", "1g.5gb", |r| r.gpu_profile = Some("huge".into())),
            ("gpu_memory_bytes", "one of", |r| {
                r.gpu_memory_bytes = Some(1);
                r.gpu_whole = true;
            }),
            ("priority", "0 (highest)", |r| r.priority = Some(10)),
            ("nice", "0 to 2147483645", |r| r.nice = Some(-1)),
            ("nice", "0 to 2147483645", |r| r.nice = Some(2_147_483_646)),
            ("class", "online offline", |r| r.class = Some("batch".into())),
            ("time_limit_secs", "1 to", |r| r.time_limit_secs = Some(0)),
            ("oom_policy", "larger same fail", |r| r.oom_policy = Some("grow".into())),
            ("memory_prediction", "off advise act", |r| r.memory_prediction = Some("on".into())),
            ("gpu_memory_estimate_bytes", "positive", |r| r.gpu_memory_estimate_bytes = Some(0)),
            ("gpu_memory_estimate_bytes", "names no size", |r| {
                r.gpu_whole = true;
                r.gpu_memory_estimate_bytes = Some(1);
            }),
        ];
        for (field, hint, break_it) in cases {
            let mut raw = raw();
            break_it(&mut raw);

            let bad = JobSpec::parse(raw).unwrap_err();

            assert_eq!(bad.field, field, "{bad}");
            assert!(bad.expected.contains(hint), "{bad}");
        }
    }

    #[test]
    fn a_named_slice_is_kept_after_out_of_memory_unless_the_user_says_otherwise() {
        let named = |policy: Option<&str>| {
            let gpu_profile = Some("1g.5gb".to_owned());
            let oom_policy = policy.map(str::to_owned);
            JobSpec::parse(RawJobSpec { gpu_profile, oom_policy, ..raw() }).unwrap()
        };

        assert_eq!(JobSpec::parse(raw()).unwrap().oom_policy(), OomPolicy::Larger);
        assert_eq!(named(None).oom_policy(), OomPolicy::Fail);
        assert_eq!(named(Some("larger")).oom_policy(), OomPolicy::Larger);
        let stored = serde_json::to_value(named(Some("same"))).unwrap();
        assert_eq!(stored["oom_policy"], "same");
    }

    #[test]
    fn a_gang_of_one_is_a_job_like_any_other() {
        let spec = JobSpec::parse(RawJobSpec { gang: Some((1, 1)), ..raw() }).unwrap();

        assert_eq!(spec.gang, None);
    }

    #[test]
    fn a_gangs_members_share_nothing_and_have_no_compute_instances() {
        let gang = || RawJobSpec { gang: Some((2, 2)), ..raw() };
        let shared =
            RawJobSpec { share: Some("mps".into()), gpu_memory_bytes: Some(1 << 30), ..gang() };
        let part = RawJobSpec { gpu_profile: Some("1c.3g.20gb".into()), ..gang() };

        assert_eq!(JobSpec::parse(shared).unwrap_err().field, "share");
        assert_eq!(JobSpec::parse(part).unwrap_err().field, "gpu_profile");
        assert_eq!(JobSpec::parse(gang()).unwrap().gang.map(GangShape::members), Some(4));
    }

    #[test]
    fn a_spec_that_would_not_fit_into_a_frame_is_refused() {
        let mut raw = raw();
        raw.env.insert("BIG".into(), "x".repeat(REST_BYTES_MAX));

        assert_eq!(JobSpec::parse(raw).unwrap_err().field, "env");
    }

    #[test]
    fn a_spec_survives_the_database() {
        let spec = JobSpec::parse(RawJobSpec {
            gpu_profile: Some("1g.5gb".into()),
            time_limit_secs: Some(60),
            ..raw()
        })
        .unwrap();

        let text = serde_json::to_string(&spec).unwrap();

        assert_eq!(serde_json::from_str::<JobSpec>(&text).unwrap(), spec);
    }
}
