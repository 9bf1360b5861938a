//! The options of a job: on the command line, and in a script's headers.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use tessera_model::Bytes;
use tessera_model::dependency::DependencyRequest;
use tessera_model::mail::MailRules;
use tessera_model::spec::{BadField, GpuRequest};

use super::array::ArraySpec;
use super::export::{BadExport, ExportChoice};
use super::gpu::{CountedGpus, GpusOption, GresOption, NamedGpu, NodesOption, VramOption};
use super::links_path::keep_links;
use super::resources::{BadResources, submit_variables};
use super::signal::EarlySignalOption;
use super::{SubmitContext, SubmitDialect};
use crate::clock_time::{BadClockTime, ClockTime};
use crate::container_options::{BadContainerOptions, ContainerOptions};
use crate::estimate::MemoryFrom;
use crate::span::TimeLimit;
use tessera_api_types::{ArrayRange, SubmitRequest};

/// One layer of options; an option of a stronger layer overrides that of a weaker one.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct JobOptions {
    /// Name of the job; by default the script's or the program's name
    #[arg(short = 'J', long, value_name = "NAME")]
    pub job_name: Option<String>,
    /// File for standard output (%j job, %A array, %a index, %x name, %u user, %N node, %r restarts;
    /// %4a with leading zeros); without it `tessera logs` shows the output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// File for standard error; by default where standard output goes
    #[arg(short, long, value_name = "FILE")]
    pub error: Option<String>,
    /// File that the program reads from standard input, with the patterns of --output; by default it reads nothing
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<String>,
    /// Longest run time: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS
    #[arg(short, long, value_name = "TIME")]
    pub time: Option<TimeLimit>,
    /// Seconds between SIGTERM and SIGKILL when the job has to end; by default 30
    #[arg(long, value_name = "SECONDS")]
    pub grace: Option<u64>,
    /// Time for which the job's GPUs may do nothing, in the forms of --time. Its user is warned at half of it; then
    /// --idle-action follows. A job that uses a GPU is never affected
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<TimeLimit>,
    /// Action after --idle-timeout: `end` (the default), or `requeue` to start again later
    #[arg(long, value_name = "WHAT", value_parser = ["end", "requeue"])]
    pub idle_action: Option<String>,
    /// Signal that is sent before the time limit, such as USR1@60 (60 seconds before; by default 60). With
    /// B: only the script's shell gets it, otherwise all of the job's processes except that shell
    #[arg(long, value_name = "[B:]SIGNAL[@SECONDS]")]
    pub signal: Option<EarlySignalOption>,
    /// Maximum host memory on each node, such as 16G; a number alone counts MiB, and 0 means no
    /// limit
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<HostMemory>,
    /// Maximum host memory for each processor: multiplied by --cpus-per-task and the tasks of a
    /// node
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["mem", "mem_per_gpu"])]
    pub mem_per_cpu: Option<HostMemory>,
    /// Maximum host memory for each GPU: multiplied by the GPUs of a node
    #[arg(long, value_name = "SIZE", conflicts_with = "mem")]
    pub mem_per_gpu: Option<HostMemory>,
    /// Maximum number of processors of each task
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus_per_task: Option<u32>,
    /// Maximum number of processors for each GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "cpus_per_task")]
    pub cpus_per_gpu: Option<u32>,
    /// Submit an array: one task for each index, such as 0-31, 1,3,7-15:2, or 0-31%4 for 4 at a time
    #[arg(short, long, value_name = "INDEXES")]
    pub array: Option<ArraySpec>,
    /// Working directory; by default the current one
    #[arg(short = 'D', long, alias = "workdir", value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// GPU memory that the job needs, such as 10G; with `auto` (the default) any slice is large enough
    /// at first
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<VramOption>,
    /// MIG profile, such as 1g.5gb; or a compute instance of one, such as 1c.3g.20gb, if an operator
    /// has split a GPU instance that way
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<NamedGpu>,
    /// Number of whole GPUs (4, or a100:4), or of slices of a profile on as many GPUs (1g.5gb:4); with
    /// --vram or --profile, of slices of that size
    #[arg(short = 'G', long, value_name = "[TYPE:]N")]
    pub gpus: Option<GpusOption>,
    /// Number of GPUs or slices on each node
    #[arg(long, value_name = "[TYPE:]N")]
    pub gpus_per_node: Option<GpusOption>,
    /// Number of GPUs or slices of each task
    #[arg(long, value_name = "[TYPE:]N")]
    pub gpus_per_task: Option<GpusOption>,
    /// --gpus-per-node as Slurm writes it: gpu:4, gpu:a100:4 or gpu:1g.5gb:4
    #[arg(long, value_name = "GRES")]
    pub gres: Option<GresOption>,
    /// Number of nodes that the GPUs are on; by default 1
    #[arg(short = 'N', long, value_name = "N")]
    pub nodes: Option<NodesOption>,
    /// Number of tasks that `srun` starts by default
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks: Option<u32>,
    /// Number of tasks on each node
    #[arg(long, alias = "tasks-per-node", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks_per_node: Option<u32>,
    /// Number of tasks for each GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks_per_gpu: Option<u32>,
    /// The only nodes that the job may run on, such as n1,gpu[1-3]
    #[arg(short = 'w', long, value_name = "NODES")]
    pub nodelist: Option<String>,
    /// Nodes that the job may not run on
    #[arg(short = 'x', long, value_name = "NODES")]
    pub exclude: Option<String>,
    /// Features of nodes that the job needs: a100, 'a100|h100', 'a100&ib'
    #[arg(short = 'C', long, value_name = "FEATURES")]
    pub constraint: Option<String>,
    /// Partition of the cluster, as the operator's settings define it
    #[arg(short, long, value_name = "NAMES")]
    pub partition: Option<String>,
    /// Quality of service, as the operator's settings define it
    #[arg(short, long, value_name = "NAME")]
    pub qos: Option<String>,
    /// Comment that is stored with the job
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Events about which mail is sent: begin, end, fail, requeue, invalid_depend, time_limit, time_limit_90,
    /// time_limit_80, time_limit_50, all (the first five) or none; with array_tasks for each task of an array
    #[arg(long, value_name = "EVENTS", value_parser = parse_mail_types)]
    pub mail_type: Option<MailTypes>,
    /// Who gets the mail: a user or addresses, separated by commas; by default the user who submits
    #[arg(long, value_name = "ADDRESSES")]
    pub mail_user: Option<String>,
    /// Time before which the job may not start: 18:00, 2027-01-31, now+2hours, noon or midnight
    #[arg(short, long, value_name = "TIME")]
    pub begin: Option<ClockTime>,
    /// Jobs to wait for: afterok:42, afterany:42:43_7, after:42+5 (minutes), afternotok, aftercorr or singleton;
    /// separated by commas, or by question marks if one condition is enough
    #[arg(short, long, value_name = "CONDITIONS")]
    pub dependency: Option<DependencyOption>,
    /// With `yes`, cancel the job if its dependency can never be met; by default it waits
    #[arg(long, value_name = "YES|NO", value_parser = ["yes", "no"])]
    pub kill_on_invalid_dep: Option<String>,
    /// Check the request only: state what would happen and when, and store nothing
    #[arg(long)]
    pub test_only: bool,
    /// `once` (the default): the job is one process on its first node, which sees all GPUs there. `each`: one
    /// process for each GPU or slice, with ranks as torchrun sets them
    #[arg(long, value_name = "HOW", value_parser = ["once", "each"])]
    pub launch: Option<String>,
    /// Request a whole GPU without co-runners
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "", value_name = "MODE", hide_possible_values = true)]
    pub exclusive: Option<String>,
    /// `exclusive` (the default); `mps` to share a slice with other jobs of the same user; `kernel`
    /// to share one by interleaving kernels by priority. `kernel:exclusive` is the same, but the job never runs
    /// next to the others. `auto` shares one with another of your jobs where a benefit is predicted. All but the
    /// first need --vram
    #[arg(long, value_name = "HOW")]
    pub share: Option<String>,
    /// With --share mps: percentage of the slice's multiprocessors; by default 50. With --share kernel it
    /// applies on nodes that run MPS below the kernel queue
    #[arg(long, value_name = "PERCENT")]
    pub sm: Option<u64>,
    /// Signal on which the program writes a checkpoint and exits, such as USR1; sent before a
    /// migration, or when its share is updated
    #[arg(long, value_name = "SIGNAL")]
    pub checkpoint: Option<String>,
    /// `online` for latency, `offline` (the default) for throughput
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// Priority: 0 (highest) to 9; by default 5
    #[arg(long, value_name = "0-9")]
    pub priority: Option<u64>,
    /// Offset within its priority: 0 (first) to 2147483645; 100 if no value is given
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100")]
    pub nice: Option<i64>,
    /// Number of retries after the job's own failures; by default 0
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// Action when it runs out of GPU memory: run again with `larger` memory, with the `same`, or `fail`;
    /// by default `larger`, but `fail` for a named slice. It uses up no retry
    #[arg(long, value_name = "WHAT")]
    pub oom_policy: Option<String>,
    /// Estimate of its GPU memory, if it names no size: a file that `tessera estimate --json`
    /// wrote, or a model followed by how it is run, such as
    /// config.json,batch=8,seq=512,optimizer=adamw,dtype=mixed,checkpointing
    #[arg(long, value_name = "FILE[,OPTIONS]")]
    pub memory_from: Option<MemoryFrom>,
    /// Action if its GPU memory is predicted to exceed its slice: `off`, `advise` (report), or `act` (move
    /// it in time); by default as the cluster is configured
    #[arg(long, value_name = "WHAT")]
    pub memory_prediction: Option<String>,
    /// Action when its node is lost: `requeue` (the default), `hold` or `fail`
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["requeue", "no_requeue"])]
    pub on_lost: Option<String>,
    /// The same as --on-lost requeue
    #[arg(long, conflicts_with = "no_requeue")]
    pub requeue: bool,
    /// The same as --on-lost fail
    #[arg(long)]
    pub no_requeue: bool,
    /// What a restart does with the output files: `append` or `truncate`; by default it appends
    #[arg(long, value_name = "WHAT", value_parser = parse_open_mode)]
    pub open_mode: Option<String>,
    /// Key of its task: jobs with the same key share their predictions
    #[arg(long, value_name = "KEY")]
    pub task_key: Option<String>,
    /// Accept the job even if the cluster does not have the hardware yet
    #[arg(long)]
    pub allow_pending: bool,
    /// Time by which the job has to be done: 18:00, 2027-01-31, 2027-01-31T18:00, now+2hours, noon or
    /// midnight. The probability that it is met is printed. A late job still runs
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<ClockTime>,
    /// What is done if the deadline would probably be missed: `accept` (the default) or `refuse` the job
    #[arg(long, value_name = "WHAT")]
    pub late: Option<String>,
    /// Hold the job until `tessera release`
    #[arg(short = 'H', long)]
    pub hold: bool,
    #[command(flatten)]
    pub container: ContainerOptions,
    /// Environment variables to export to the job: ALL, NONE, or names and NAME=VALUE, separated
    /// by commas; by default PATH, HOME, the language, and those of a Python environment
    #[arg(long, value_name = "WHICH")]
    pub export: Option<ExportChoice>,
    /// Set one more environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<EnvVariable>,
}

/// `--dependency`, checked; which jobs there are is known where jobs are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyOption(pub(super) String);

impl FromStr for DependencyOption {
    type Err = BadDependency;

    fn from_str(text: &str) -> Result<Self, BadDependency> {
        match text.parse::<DependencyRequest>() {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(bad) => Err(BadDependency { problem: bad.problem, expected: bad.expected }),
        }
    }
}

/// A text that is not a dependency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; write {expected}")]
pub struct BadDependency {
    problem: String,
    expected: String,
}

/// `--mail-type`: what the controller reads, without Slurm's event that never happens here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailTypes {
    types: Vec<String>,
    /// Whether Slurm's event about burst buffers was among them.
    has_staging: bool,
}

/// A list of events that `--mail-type` does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; write {expected}")]
pub struct BadMailTypes {
    problem: String,
    expected: String,
}

/// Reads `--mail-type`. Files are not staged out here, so that event is omitted.
fn parse_mail_types(text: &str) -> Result<MailTypes, BadMailTypes> {
    let words = text.split(',').map(|word| word.trim().to_ascii_lowercase());
    let words = words.filter(|word| !word.is_empty());
    let (staging, types): (Vec<_>, Vec<_>) = words.partition(|word| word == "stage_out");
    // The user's name matters only if mail is sent, where the controller checks it.
    MailRules::parse(&types, None, "user")
        .map_err(|BadField { problem, expected, .. }| BadMailTypes { problem, expected })?;
    Ok(MailTypes { types, has_staging: !staging.is_empty() })
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvVariable {
    name: String,
    value: String,
}

/// A text that sets no variable; clap names the option and the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write NAME=VALUE")]
pub struct BadEnvVariable;

/// A limit of host memory in bytes, as Slurm writes it; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory(pub(super) Option<u64>);

impl FromStr for HostMemory {
    type Err = BadHostMemory;

    fn from_str(text: &str) -> Result<Self, BadHostMemory> {
        let bytes = match text.parse::<u64>() {
            Ok(mib) => Bytes::from_mib(u64::from(u32::try_from(mib).map_err(|_| BadHostMemory)?)),
            Err(_) => text.parse::<Bytes>().map_err(|_| BadHostMemory)?,
        };
        Ok(Self(Some(bytes.get()).filter(|bytes| *bytes > 0)))
    }
}

/// A text that is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number of MiB, or a size such as 512M or 16G")]
pub struct BadHostMemory;

/// Options that can't be used, or can't be used together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJobOptions {
    /// The requested GPUs, nodes and tasks don't fit together.
    #[error(transparent)]
    Resources(#[from] BadResources),
    /// `--priority` out of range.
    #[error("--priority {number}: priorities go from 0 (highest) to 9 (lowest)")]
    Priority {
        /// The given value.
        number: u64,
    },
    /// `--sm` out of range.
    #[error("--sm {number}: give 1 to 100 percent of the slice")]
    SharePercent {
        /// The given value.
        number: u64,
    },
    /// Options about containers that make no sense together.
    #[error(transparent)]
    Container(#[from] BadContainerOptions),
    /// What follows after an idle timeout, of a job that has none.
    #[error("--idle-action needs --idle-timeout TIME, after which it follows")]
    NoIdleTimeout,
    /// A path that JSON can't hold.
    #[error("{}: the name is not valid UTF-8", path.display())]
    PathNotText { path: PathBuf },
    /// A time that does not exist, or not here.
    #[error(transparent)]
    Time(#[from] BadClockTime),
    /// `--memory-from` names no estimate and no model.
    #[error("{problem}")]
    Estimate {
        /// The reason.
        problem: String,
    },
    /// The environment can't be exported.
    #[error(transparent)]
    Export(#[from] BadExport),
}

impl FromStr for EnvVariable {
    type Err = BadEnvVariable;

    fn from_str(text: &str) -> Result<Self, BadEnvVariable> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Self { name: name.to_owned(), value: value.to_owned() })
            }
            Some(_) | None => Err(BadEnvVariable),
        }
    }
}

impl JobOptions {
    /// Overrides this layer with `stronger`.
    ///
    /// # Errors
    ///
    /// As [`JobOptions::gpu`].
    pub fn under(self, stronger: Self) -> Result<Self, BadJobOptions> {
        // GPU resources have several spellings: the stronger layer overrides all of them together.
        let sizes = if stronger.gpu()?.is_some() { stronger.clone() } else { self.clone() };
        let memory = if stronger.has_memory() { stronger.clone() } else { self.clone() };
        let cpus = if stronger.has_cpus() { stronger.clone() } else { self.clone() };
        let lost = if stronger.has_on_lost() { stronger.clone() } else { self.clone() };
        Ok(Self {
            job_name: stronger.job_name.or(self.job_name),
            output: stronger.output.or(self.output),
            error: stronger.error.or(self.error),
            input: stronger.input.or(self.input),
            idle_timeout: stronger.idle_timeout.or(self.idle_timeout),
            idle_action: stronger.idle_action.or(self.idle_action),
            container: self.container.under(stronger.container),
            time: stronger.time.or(self.time),
            grace: stronger.grace.or(self.grace),
            signal: stronger.signal.or(self.signal),
            mem: memory.mem,
            mem_per_cpu: memory.mem_per_cpu,
            mem_per_gpu: memory.mem_per_gpu,
            cpus_per_task: cpus.cpus_per_task,
            cpus_per_gpu: cpus.cpus_per_gpu,
            array: stronger.array.or(self.array),
            chdir: stronger.chdir.or(self.chdir),
            vram: sizes.vram,
            profile: sizes.profile,
            gpus: sizes.gpus,
            gpus_per_node: sizes.gpus_per_node,
            gpus_per_task: sizes.gpus_per_task,
            gres: sizes.gres,
            nodes: stronger.nodes.or(self.nodes),
            ntasks: stronger.ntasks.or(self.ntasks),
            ntasks_per_node: stronger.ntasks_per_node.or(self.ntasks_per_node),
            ntasks_per_gpu: stronger.ntasks_per_gpu.or(self.ntasks_per_gpu),
            nodelist: stronger.nodelist.or(self.nodelist),
            exclude: stronger.exclude.or(self.exclude),
            constraint: stronger.constraint.or(self.constraint),
            partition: stronger.partition.or(self.partition),
            qos: stronger.qos.or(self.qos),
            comment: stronger.comment.or(self.comment),
            mail_type: stronger.mail_type.or(self.mail_type),
            mail_user: stronger.mail_user.or(self.mail_user),
            begin: stronger.begin.or(self.begin),
            dependency: stronger.dependency.or(self.dependency),
            kill_on_invalid_dep: stronger.kill_on_invalid_dep.or(self.kill_on_invalid_dep),
            test_only: self.test_only || stronger.test_only,
            launch: stronger.launch.or(self.launch),
            open_mode: stronger.open_mode.or(self.open_mode),
            exclusive: sizes.exclusive,
            share: stronger.share.or(self.share),
            sm: stronger.sm.or(self.sm),
            checkpoint: stronger.checkpoint.or(self.checkpoint),
            class: stronger.class.or(self.class),
            priority: stronger.priority.or(self.priority),
            nice: stronger.nice.or(self.nice),
            max_retries: stronger.max_retries.or(self.max_retries),
            oom_policy: stronger.oom_policy.or(self.oom_policy),
            memory_from: stronger.memory_from.or(self.memory_from),
            memory_prediction: stronger.memory_prediction.or(self.memory_prediction),
            on_lost: lost.on_lost,
            requeue: lost.requeue,
            no_requeue: lost.no_requeue,
            task_key: stronger.task_key.or(self.task_key),
            deadline: stronger.deadline.or(self.deadline),
            late: stronger.late.or(self.late),
            allow_pending: self.allow_pending || stronger.allow_pending,
            hold: self.hold || stronger.hold,
            export: stronger.export.or(self.export),
            env: self.env.into_iter().chain(stronger.env).collect(),
        })
    }

    /// Adds a later line of the same script. Different options for GPUs count together, as on one line.
    ///
    /// # Errors
    ///
    /// As [`JobOptions::gpu`].
    pub fn then(self, later: Self) -> Result<Self, BadJobOptions> {
        let (before, after) = (self.clone(), later.clone());
        let all = Self {
            vram: after.vram.or(before.vram),
            profile: after.profile.or(before.profile),
            gpus: after.gpus.or(before.gpus),
            gpus_per_node: after.gpus_per_node.or(before.gpus_per_node),
            gpus_per_task: after.gpus_per_task.or(before.gpus_per_task),
            gres: after.gres.or(before.gres),
            exclusive: after.exclusive.or(before.exclusive),
            ..self.under(later)?
        };
        all.gpu()?;
        Ok(all)
    }

    const fn has_memory(&self) -> bool {
        self.mem.is_some() || self.mem_per_cpu.is_some() || self.mem_per_gpu.is_some()
    }

    pub(super) const fn has_cpus(&self) -> bool {
        self.cpus_per_task.is_some() || self.cpus_per_gpu.is_some()
    }

    /// Returns what each option requests of GPUs, by the option's name.
    pub fn counted_gpus(&self) -> impl Iterator<Item = (&'static str, &CountedGpus)> {
        let gres = self.gres.as_ref().map(|GresOption(counted)| counted);
        let all = [
            ("--gpus", self.gpus.as_ref().map(|gpus| &gpus.counted)),
            ("--gpus-per-node", self.gpus_per_node.as_ref().map(|gpus| &gpus.counted)),
            ("--gres", gres),
            ("--gpus-per-task", self.gpus_per_task.as_ref().map(|gpus| &gpus.counted)),
        ];
        all.into_iter().filter_map(|(name, counted)| Some((name, counted?)))
    }

    /// Leaves out addresses that no mail can be sent to: scripts often keep a placeholder there. Returns a warning
    /// if there was one.
    pub fn without_bad_addresses(&mut self) -> Option<String> {
        let given =
            self.mail_user.take_if(|to| MailRules::parse(&[], Some(to), "user").is_err())?;
        Some(format!(
            "--mail-user={given} has no effect: it is not an address such as ada@example.org; mail \
             goes to the user who submits"
        ))
    }

    /// Returns a warning if mail about an event is requested that never happens here.
    pub fn unmailed(&self) -> Option<String> {
        let has_staging = self.mail_type.as_ref().is_some_and(|mail| mail.has_staging);
        has_staging
            .then(|| "--mail-type=stage_out has no effect: there are no burst buffers".to_owned())
    }

    fn has_on_lost(&self) -> bool {
        self.on_lost.is_some() || self.requeue || self.no_requeue
    }

    /// Writes the options into a request. Relative paths count from the context's folder. Returns a warning if
    /// variables are left out.
    ///
    /// # Errors
    ///
    /// [`BadJobOptions`] states what can't be sent.
    pub fn write_into(
        mut self,
        request: &mut SubmitRequest,
        around: &SubmitContext,
    ) -> Result<Option<String>, BadJobOptions> {
        self.write_resources(request)?;
        let of_options = self.slurm_variables(around);
        self.write_files(request, around)?;
        let home = around.environment.get("HOME");
        request.container = self.container.request(&around.folder, home)?;
        if self.idle_action.is_some() && self.idle_timeout.is_none() {
            return Err(BadJobOptions::NoIdleTimeout);
        }
        request.idle_timeout_secs = self.idle_timeout.and_then(TimeLimit::secs);
        request.idle_action =
            self.idle_action.take().filter(|_| request.idle_timeout_secs.is_some());
        let choice = self.export.take().unwrap_or(around.default_export());
        let choice = if around.dialect.is_slurm() { choice.that_fits() } else { choice };
        let exported = choice.choose(&around.environment)?;
        let left_out = exported.warning();
        request.env = exported.chosen;
        request.env.extend(choice.variables());
        request.env.extend(of_options);
        request.env.extend(submit_variables(around, request));
        request.env.extend(std::mem::take(&mut self.env).into_iter().map(|v| (v.name, v.value)));
        if around.dialect.is_slurm() {
            keep_links(&mut request.env, &around.environment);
        }
        if let Some(name) = self.job_name {
            request.name = Some(name);
        }
        request.time_limit_secs = self.time.and_then(TimeLimit::secs);
        request.grace_secs = self.grace;
        request.signal = self.signal.map(|EarlySignalOption(signal)| signal);
        request.share = self.share;
        request.sm_percent = self.sm.map(percent).transpose()?;
        request.checkpoint_signal = self.checkpoint;
        request.class = self.class;
        request.priority = self.priority.map(small_priority).transpose()?;
        request.nice = self.nice;
        request.max_retries = self.max_retries;
        request.oom_policy = self.oom_policy;
        request.gpu_memory_estimate_bytes = match &self.memory_from {
            Some(from) => {
                let bytes = from.bytes();
                Some(bytes.map_err(|e| BadJobOptions::Estimate { problem: e.to_string() })?)
            }
            None => None,
        };
        request.memory_prediction = self.memory_prediction;
        request.on_lost = match (self.on_lost, self.requeue, self.no_requeue) {
            (Some(word), _, _) => Some(word),
            (None, true, _) => Some("requeue".to_owned()),
            (None, false, true) => Some("fail".to_owned()),
            (None, false, false) => None,
        };
        request.task_key = self.task_key;
        request.deadline = self.deadline.map(ClockTime::after_now).transpose()?;
        request.late = self.late;
        request.begin = self.begin.map(ClockTime::after_now).transpose()?;
        request.dependency = self.dependency.map(|DependencyOption(text)| text);
        request.kill_on_invalid_dep = self.kill_on_invalid_dep.as_deref() == Some("yes");
        request.ignore_unknown_jobs = around.dialect.is_slurm();
        request.constraint = self.constraint;
        request.partition = self.partition;
        request.qos = self.qos;
        request.comment = self.comment;
        request.mail_types = self.mail_type.map(|mail| mail.types).unwrap_or_default();
        request.mail_user = self.mail_user;
        request.test_only = self.test_only;
        request.exclusive = self.exclusive.is_some();
        request.allow_pending = self.allow_pending;
        request.hold = self.hold;
        if let Some(array) = self.array {
            match array.range() {
                Some((first, last)) => request.array = Some(ArrayRange { first, last }),
                None => request.array_indexes = array.indexes,
            }
            request.array_limit = array.limit;
        }
        Ok(left_out)
    }

    /// Writes which GPUs, memory and processors the job gets.
    fn write_resources(&self, request: &mut SubmitRequest) -> Result<(), BadJobOptions> {
        match self.gpu()? {
            None | Some(GpuRequest::Unknown) => {}
            Some(GpuRequest::Memory(bytes)) => request.gpu_memory_bytes = Some(bytes.get()),
            Some(GpuRequest::Profile(name)) => request.gpu_profile = Some(name.as_str().to_owned()),
            Some(GpuRequest::Compute(name)) => request.gpu_profile = Some(name.to_string()),
            Some(GpuRequest::Whole | GpuRequest::Unpartitioned) => request.gpu_whole = true,
        }
        request.gang = self.gang()?;
        if request.gang.is_some() {
            request.launch = Some(self.launch_word().to_owned());
        }
        request.gpu_model = self.model()?;
        request.nodelist = self.nodelist.clone();
        request.exclude = self.exclude.clone();
        request.host_memory_bytes = self.host_memory(request.gang)?;
        request.cpus = self.cpus(request.gang);
        Ok(())
    }

    fn write_files(
        &mut self,
        request: &mut SubmitRequest,
        around: &SubmitContext,
    ) -> Result<(), BadJobOptions> {
        let folder = around.folder.join(self.chdir.clone().unwrap_or_default());
        let absolute = |file: String| plain(&folder.join(file));
        request.work_dir = Some(plain(&folder)?);
        let usual = match (around.dialect, &self.array) {
            (SubmitDialect::Tessera, _) => None,
            (SubmitDialect::Slurm(_), None) => Some("slurm-%j.out".to_owned()),
            (SubmitDialect::Slurm(_), Some(_)) => Some("slurm-%A_%a.out".to_owned()),
        };
        request.stdout = self.output.take().or(usual).map(absolute).transpose()?;
        request.stderr = self.error.take().map(absolute).transpose()?;
        request.input = self.input.take().map(absolute).transpose()?;
        request.open_mode = self.open_mode.take().or(match around.dialect {
            SubmitDialect::Tessera => None,
            SubmitDialect::Slurm(_) => Some("truncate".to_owned()),
        });
        Ok(())
    }
}

/// A mode that `--open-mode` does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write append or truncate")]
struct BadOpenMode;

/// Reads `--open-mode`, which Slurm lets be written in full or as a letter.
fn parse_open_mode(text: &str) -> Result<String, BadOpenMode> {
    match text {
        "a" | "append" => Ok("append".to_owned()),
        "t" | "truncate" => Ok("truncate".to_owned()),
        _ => Err(BadOpenMode),
    }
}

fn small_priority(number: u64) -> Result<u8, BadJobOptions> {
    let small = u8::try_from(number).ok().filter(|number| *number <= 9);
    small.ok_or(BadJobOptions::Priority { number })
}

fn percent(number: u64) -> Result<u8, BadJobOptions> {
    let percent = u8::try_from(number).ok().filter(|number| (1..=100).contains(number));
    percent.ok_or(BadJobOptions::SharePercent { number })
}

fn plain(path: &Path) -> Result<String, BadJobOptions> {
    // Without its dots, so that it reads well in listings; links stay as they are.
    let tidy: PathBuf = path.components().collect();
    let text = tidy.to_str().map(str::to_owned);
    text.ok_or_else(|| BadJobOptions::PathNotText { path: path.to_owned() })
}
