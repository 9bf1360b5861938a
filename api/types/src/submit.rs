//! Requests for jobs, arrays and gangs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::Millis;
use tessera_model::batch::{ArrayLimit, Interaction};
use tessera_model::share::SmPercent;
use tessera_model::spec::{
    BadField, DependencyUpdate, JobSpec, JobUpdate, Nice, Priority, QueueRank, RawJobSpec,
    TimeUpdate, time_limit,
};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::sessions::{InteractiveRequest, TerminalView};

/// A job to run, or an array of them.
///
/// Give either `script` or `command`. Everything else has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SubmitRequest {
    /// Its name; by default the program's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The user who submits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Text of a script; its first line names the interpreter (`#!/bin/bash`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// A program on the node, and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Absolute path of the working directory; by default a directory of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// File for standard output; `%j` is the job, `%A` the array, `%a` the index, `%x` the
    /// name, `%u` the user, `%N` the node, `%r` the restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// File for standard error; by default where standard output goes, if that is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// File for standard input, with the same patterns; by default there is nothing to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The container that the program runs in; by default it runs on the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerRequest>,
    /// For how many seconds the job's GPUs may do nothing, 10 to 604800; by default without a limit. The job is warned at
    /// half of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
    /// What follows after `idle_timeout_secs`: `end` (the default) or `requeue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_action: Option<String>,
    /// GPU memory that the job needs. Without it, `gpu_profile` or `gpu_whole`, the policy chooses
    /// among all slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// Requested MIG profile, such as `1g.5gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_profile: Option<String>,
    /// Whether the job requests a whole GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gpu_whole: bool,
    /// Longest run time in seconds; by default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
    /// Seconds between `SIGTERM` and `SIGKILL`; by default 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_secs: Option<u64>,
    /// `online` (latency) or `offline` (throughput, the default).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// 0 (highest) to 9; by default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Places the job behind others of its priority: 0 (the default) to 2147483645.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nice: Option<i64>,
    /// How often the job is retried after its own failures; by default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// What is done when its node is lost: `requeue` (the default), `hold` or `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<String>,
    /// Jobs with the same key share their predictions; by default the program and its
    /// arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_key: Option<String>,
    /// Whether the job may wait for hardware that the cluster doesn't have yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_pending: bool,
    /// `exclusive` (the default): the job has its slice to itself. `mps`: other jobs of the same
    /// user may share it under NVIDIA's Multi-Process Service. `kernel`: other jobs of the same user
    /// may share it, and kernels of lower `priority` run in the gaps of the higher. `kernel:exclusive`: the
    /// same, but this job never runs next to the others. From its first kernel on it has the slice until it ends, and
    /// before that it waits for jobs of the same or a better priority. `auto`: the controller decides at each placement. It may share the slice with one other job of the same
    /// user, if a benefit is predicted with certainty. All of them need `gpu_memory_bytes`, which is
    /// the job's limit. Without `share`, the controller's setting `share-default` decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// With `share` = `mps`: the percentage of the slice's multiprocessors that it may use, 1 to
    /// 100; by default 50. With `share` = `kernel` it applies where the node runs MPS below the kernel
    /// queue, and has no effect elsewhere; by default 100, or the node's setting for offline jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Signal on which the program writes a checkpoint and exits: `USR1`, `USR2`, `HUP`, `INT` or
    /// `TERM`. A job that has one can be updated and migrated while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_signal: Option<String>,
    /// The time by which the job has to be done. The response states the probability that it is.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<OffsetDateTime>,
    /// With `deadline`: `accept` (the default), or `refuse` to have the job refused if it is more
    /// likely to be late than in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<String>,
    /// Maximum memory of the host in bytes that an attempt may use; by default no limit. An attempt
    /// that uses more is killed by the kernel, and ends as out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
    /// Maximum number of processors that an attempt may use; by default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// What is done when the job runs out of GPU memory. `larger`: it runs again with more, at least a
    /// fifth and 1 GiB. `same`: it runs again with the same memory, at most 8 times. `fail`: it fails. The
    /// default is `larger`, but `fail` with `gpu_profile` and `gpu_whole`. None of this uses up a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_policy: Option<String>,
    /// What to do if its GPU memory is predicted to exceed its slice: `off`, `advise` (report it), or `act` (move the
    /// job to a larger slice in time). By default as the cluster is configured, which is `advise`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_prediction: Option<String>,
    /// Estimated GPU memory of a job that names no size. Earlier runs of its task count more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_estimate_bytes: Option<u64>,
    /// The script's arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// With `gang`: `each` (the default) starts one process for each GPU, with its rank. `once` starts one on
    /// the first node, which sees all GPUs there and starts the others itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
    /// A signal that the job gets before its time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<EarlySignalRequest>,
    /// What attempts do with output files that exist: `append` or `truncate`. Without it, further attempts
    /// append, and so do the tasks of arrays and gangs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_mode: Option<String>,
    /// Makes the job interactive. It then has one process, and no output files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<InteractiveRequest>,
    /// The model of the GPU, such as `a100`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// The only nodes that the job may run on, such as `n1,gpu[1-3]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodelist: Option<String>,
    /// Nodes that the job may not run on, in the same form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
    /// The time before which the job may not start.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub begin: Option<OffsetDateTime>,
    /// The jobs that the job waits for, such as `afterok:42,afterany:43_7`, `after:42+5` or `singleton`. The kinds
    /// are `after`, `afterany`, `afterok`, `afternotok`, `aftercorr` and `singleton`. All conditions between
    /// commas have to be met, or one of those between question marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Whether the job is cancelled once its `dependency` can never be met; otherwise it waits until its user
    /// cancels it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kill_on_invalid_dep: bool,
    /// Whether unknown jobs in `dependency` count as conditions that are met, as in Slurm; otherwise the request is
    /// refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_unknown_jobs: bool,
    /// A partition, as batch schedulers call a part of a cluster. The operator's settings define it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// A quality of service. The operator's settings define it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Features of nodes and GPUs that the job needs: `a100`, `a100|h100`, `a100&ib`. A GPU model is a feature
    /// of its node, and the operator's settings declare others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Its user's remark about the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Events about which mail is sent: `begin`, `end`, `fail`, `requeue`, `invalid_depend`, `time_limit`,
    /// `time_limit_90`, `time_limit_80` and `time_limit_50`. `all` stands for the first five, and `none` takes back
    /// what is before it. With `array_tasks`, each task of an array gets its own mail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mail_types: Vec<String>,
    /// Who gets that mail: up to 8 addresses with commas between them; by default the job's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail_user: Option<String>,
    /// Whether the job requests its GPU without co-runners, even if the operator's settings let
    /// jobs that request one GPU share it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Whether the request is only checked, and nothing is stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub test_only: bool,
    /// Whether the job is held until it is released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Makes it an array: one task for each index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayRange>,
    /// Makes it an array with these indexes, in ascending order; instead of `array`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub array_indexes: Vec<u32>,
    /// How many tasks of the array may run at a time; by default any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_limit: Option<u32>,
    /// Makes it a gang: one process on each of several GPUs, which start together and end together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangRequest>,
}

/// Number of GPUs of a gang, with one process each. Every process gets the GPU resources that the
/// request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GangRequest {
    /// Number of nodes; by default 1.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Number of GPUs on each node; at most 256 in total.
    pub gpus_per_node: u32,
}

const fn one() -> u32 {
    1
}

/// A container that a job's program runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContainerRequest {
    /// The image: a name in the user's image store on the node, such as `python:3.12`, which rootless podman runs;
    /// or the absolute path of a `.sif` file, which apptainer runs.
    pub image: String,
    /// What the program sees of the node, in addition to its working folder: `SOURCE`, `SOURCE:TARGET` or
    /// `SOURCE:TARGET:ro`, absolute paths; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// The folder inside in which the program starts; by default its working folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
}

/// A signal before the time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlySignalRequest {
    /// `HUP`, `INT`, `QUIT`, `USR1`, `USR2`, `TERM` or `CONT`.
    pub signal: String,
    /// How many seconds before the time limit, at most 65535.
    pub secs_before_limit: u64,
    /// Whether only the job's first process gets it; otherwise all processes except that one get
    /// it.
    #[serde(default)]
    pub script_only: bool,
}

/// The indexes of an array's tasks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrayRange {
    /// Smallest index.
    pub first: u32,
    /// Largest index; at most 9,999 above the smallest.
    pub last: u32,
}

/// The fields of a job to update; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateRequest {
    /// With `share` = `mps`: the percentage of the slice's multiprocessors that it may use, 1 to
    /// 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Its priority: 0 (highest) to 9. For a running job it takes effect if it is requeued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Its offset within its priority: 0 (first) to 2147483645. For a running job it takes effect
    /// if it is requeued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nice: Option<i64>,
    /// Longest run time of an attempt in seconds, from its start; 0 for none. It applies to a
    /// running job at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
    /// The time by which it has to be done, in the future. Placement plans for it from now on.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<OffsetDateTime>,
    /// Whether its deadline is removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_deadline: bool,
    /// The jobs that it waits for from now on, in the forms of a submit's `dependency`; empty for none. It replaces
    /// what the job waited for. Only a job that has not started takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Its name from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its comment; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The earliest start; a time that has passed removes an earlier one. Only a job that has not started takes it.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub begin: Option<OffsetDateTime>,
    /// What becomes of it after its node was lost: `requeue`, `hold` or `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<String>,
    /// How many tasks of its array may run at a time; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_limit: Option<u32>,
}

/// What orders a job in the queue before its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RankView {
    /// 0 (highest) to 9.
    pub priority: u8,
    /// Its offset behind others of its priority.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nice: u32,
}

/// What updates changed of a job's order in the queue; absent fields are as submitted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
pub struct RankUpdateView {
    /// 0 (highest) to 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Its offset behind others of its priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<QueueRank> for RankView {
    fn from(rank: QueueRank) -> Self {
        Self { priority: rank.priority.get(), nice: rank.nice.get() }
    }
}

impl From<&JobUpdate> for RankUpdateView {
    fn from(update: &JobUpdate) -> Self {
        Self { priority: update.priority.map(Priority::get), nice: update.nice.map(Nice::get) }
    }
}

impl RankUpdateView {
    /// Returns whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the rank after the updates.
    #[must_use]
    pub fn over(self, submitted: RankView) -> RankView {
        RankView {
            priority: self.priority.unwrap_or(submitted.priority),
            nice: self.nice.unwrap_or(submitted.nice),
        }
    }
}

impl SubmitRequest {
    /// Checks the request, and turns it into a job's specification.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first invalid field and what is expected.
    pub fn into_spec(self) -> Result<JobSpec, BadField> {
        JobSpec::parse(RawJobSpec {
            name: self.name,
            user: self.user,
            script: self.script,
            command: self.command,
            work_dir: self.work_dir,
            env: self.env,
            stdout: self.stdout,
            stderr: self.stderr,
            gpu_memory_bytes: self.gpu_memory_bytes,
            gpu_profile: self.gpu_profile,
            gpu_whole: self.gpu_whole,
            time_limit_secs: self.time_limit_secs,
            grace_secs: self.grace_secs,
            class: self.class,
            priority: self.priority,
            nice: self.nice,
            max_retries: self.max_retries,
            on_lost: self.on_lost,
            task_key: self.task_key,
            allow_pending: self.allow_pending,
            share: self.share,
            sm_percent: self.sm_percent,
            checkpoint_signal: self.checkpoint_signal,
            host_memory_bytes: self.host_memory_bytes,
            cpus: self.cpus,
            gang: self.gang.map(|gang| (gang.nodes, gang.gpus_per_node)),
            oom_policy: self.oom_policy,
            memory_prediction: self.memory_prediction,
            gpu_memory_estimate_bytes: self.gpu_memory_estimate_bytes,
            deadline: self.deadline.map(|at| since_1970("deadline", at)).transpose()?,
            begin: self.begin.map(|at| since_1970("begin", at)).transpose()?,
            array_tasks: array_tasks(self.array, &self.array_indexes),
            array_indexes: self.array_indexes,
            array_limit: self.array_limit,
            partition: self.partition,
            qos: self.qos,
            comment: self.comment,
            mail_types: self.mail_types,
            mail_user: self.mail_user,
            arguments: self.arguments,
            launch: self.launch,
            signal: self
                .signal
                .map(|early| (early.signal, early.secs_before_limit, early.script_only)),
            open_mode: self.open_mode,
            interaction: self.interactive.map(interaction).transpose()?,
            gpu_model: self.gpu_model,
            nodelist: self.nodelist,
            exclude: self.exclude,
            input: self.input,
            container: self.container.map(|of| (of.image, of.mounts, of.work_dir)),
            idle_timeout_secs: self.idle_timeout_secs,
            idle_action: self.idle_action,
        })
    }
}

fn interaction(requested: InteractiveRequest) -> Result<Interaction, BadField> {
    let terminal = requested.terminal.map(TerminalView::size).transpose()?;
    Ok(Interaction { terminal })
}

impl UpdateRequest {
    /// Checks the request: the new share of a slice, and the update of the other fields. A dependency that is not
    /// empty is left to the caller, which knows the jobs that it names. So is the number of an array's tasks.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first invalid field and what is expected, also if nothing changes.
    pub fn into_update(self) -> Result<(Option<SmPercent>, JobUpdate), BadField> {
        let update = JobUpdate {
            priority: self.priority.map(Priority::try_from).transpose()?,
            nice: self.nice.map(Nice::try_from).transpose()?,
            limit: self.time_limit_secs.map(updated_limit).transpose()?,
            deadline: match (self.deadline, self.no_deadline) {
                (Some(_), true) => {
                    return Err(BadField::new(
                        "no_deadline",
                        "a deadline is given as well",
                        "either deadline or no_deadline",
                    ));
                }
                (Some(at), false) => Some(TimeUpdate::To(since_1970("deadline", at)?)),
                (None, true) => Some(TimeUpdate::Removed),
                (None, false) => None,
            },
            dependency: (self.dependency.as_deref().map(str::trim) == Some(""))
                .then_some(DependencyUpdate::Removed),
            begin: self.begin.map(|at| since_1970("begin", at)).transpose()?,
            // How many tasks the array has is left to the caller.
            array_limit: self.array_limit.map(|at_once| ArrayLimit { tasks: 0, at_once }),
            ..JobUpdate::default()
        };
        let update = update.with_texts(self.name, self.comment, self.on_lost)?;
        let sm = self.sm_percent.map(SmPercent::try_from).transpose()?;
        if sm.is_none() && update.is_empty() && self.dependency.is_none() {
            return Err(BadField::new(
                "priority",
                "there is nothing to change",
                "priority, nice, time_limit_secs, deadline, no_deadline, dependency, name, comment, begin, on_lost, \
                 array_limit or sm_percent",
            ));
        }
        Ok((sm, update))
    }
}

/// Returns how many tasks an array has.
fn array_tasks(range: Option<ArrayRange>, indexes: &[u32]) -> u32 {
    let of_range = range.map(|range| range.last.saturating_sub(range.first).saturating_add(1));
    of_range.or_else(|| u32::try_from(indexes.len()).ok()).unwrap_or(u32::MAX)
}

/// Returns a time in milliseconds since 1970.
fn since_1970(field: &str, at: OffsetDateTime) -> Result<Millis, BadField> {
    let ms = u64::try_from(at.unix_timestamp_nanos() / 1_000_000);
    ms.map(Millis::new).map_err(|_| {
        BadField::new(field, "it is before 1970", "a time after now, such as 2027-01-31T18:00:00Z")
    })
}

/// Reads a new time limit; 0 removes it.
fn updated_limit(secs: u64) -> Result<TimeUpdate, BadField> {
    match secs {
        0 => Ok(TimeUpdate::Removed),
        secs => time_limit(secs).map(TimeUpdate::To),
    }
}

/// An accepted submit; it was committed before this response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitResponse {
    /// The job's number; for an array or a gang its number, which is that of its first task.
    pub job_id: u64,
    /// Number of accepted jobs.
    pub tasks: u32,
    /// `queued` or `held`.
    pub state: String,
    /// What the user should know: what the operator's settings made of the request, such as a smaller GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Whether its deadline is expected to be met, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineView>,
}

/// Whether a job's deadline is expected to be met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadlineView {
    /// The deadline.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The probability that it is met, in percent, rounded down; absent if nothing is known about
    /// the job's run time or its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability_percent: Option<u32>,
    /// When the job is expected to end.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub expected_end: Option<OffsetDateTime>,
    /// The same in a sentence, with its basis.
    pub text: String,
}
