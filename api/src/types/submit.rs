//! What is asked for: jobs, arrays and gangs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::spec::{BadField, JobSpec, RawSpec};
use utoipa::ToSchema;

/// A job to run, or an array of them.
///
/// Give either `script` or `command`. Everything else has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SubmitRequest {
    /// What to call it; by default the program's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who submits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Text of a script; its first line names the interpreter (`#!/bin/bash`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// A program of the node, and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Absolute path of the folder to run in; by default a folder of the attempt's own.
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
    /// GPU memory that the job needs. Without it, `gpu_profile` or `gpu_whole`, the job gets
    /// the smallest slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// MIG profile that the job wants, such as `1g.5gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_profile: Option<String>,
    /// Whether the job wants a whole GPU.
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
    /// How many failures of its own the job survives; by default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// What happens when its node is lost: `requeue` (the default), `hold` or `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<String>,
    /// Jobs with one key share what is learned about them; by default the program and its
    /// arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_key: Option<String>,
    /// Whether the job may wait for hardware that the cluster doesn't have yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_pending: bool,
    /// `exclusive` (the default): the job has its slice to itself. `mps`: other jobs of the same
    /// user may share it under NVIDIA's Multi-Process Service. `kernel`: other jobs of the same user
    /// may share it, and their kernels take turns by `priority`, the lower in the higher's gaps.
    /// `gpu_memory_bytes` is needed with both, and is the job's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// With `share` = `mps`: how many percent of the slice's multiprocessors it may use, 1 to
    /// 100; by default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Signal on which the program saves its state and ends: `USR1`, `USR2`, `HUP`, `INT` or
    /// `TERM`. With one the job's share can be changed while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_signal: Option<String>,
    /// Whether the job waits until it is released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Makes it an array: one task for each index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayRange>,
    /// Makes it a gang: one process on each of several GPUs, which start together and end together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangRequest>,
}

/// On how many GPUs a job runs, one process each: every one of them asks for what the request asks
/// of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GangRequest {
    /// On how many nodes; by default 1.
    #[serde(default = "one")]
    pub nodes: u32,
    /// On how many GPUs of each; in all at most 256.
    pub gpus_per_node: u32,
}

const fn one() -> u32 {
    1
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

/// What is to be changed of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateRequest {
    /// With `share` = `mps`: how many percent of the slice's multiprocessors it may use, 1 to
    /// 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<u8>,
    /// Its rank in the queue: 0 (highest) to 9. One that runs has it when it waits again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Longest run time of an attempt, from its start; 0 for none. One that runs is held to it at
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u64>,
}

impl SubmitRequest {
    /// Reads the request into a job's specification.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first field that breaks a rule, and what would be right.
    pub fn into_spec(self) -> Result<JobSpec, BadField> {
        JobSpec::parse(RawSpec {
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
            max_retries: self.max_retries,
            on_lost: self.on_lost,
            task_key: self.task_key,
            allow_pending: self.allow_pending,
            share: self.share,
            sm_percent: self.sm_percent,
            checkpoint_signal: self.checkpoint_signal,
            gang: self.gang.map(|gang| (gang.nodes, gang.gpus_per_node)),
        })
    }
}

/// An accepted submit: committed before this answer was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The job's number; for an array or a gang its number, which is that of its first task.
    pub job_id: u64,
    /// How many jobs were accepted.
    pub tasks: u32,
    /// `queued` or `held`.
    pub state: String,
}
