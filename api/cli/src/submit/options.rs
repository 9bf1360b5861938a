//! The options of a job: on the command line, and in a script's headers.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use tessera_model::Bytes;
use tessera_model::spec::GpuRequest;

use super::array::ArraySpec;
use super::export::{BadExport, ExportChoice};
use super::gpu::{GpusOption, GresOption, NamedGpu, NodesOption, VramOption};
use crate::clock_time::{BadClockTime, ClockTime};
use crate::span::TimeLimit;
use tessera_api_types::{GangRequest, SubmitRequest};

/// One layer of options; an option of a stronger layer overrides that of a weaker one.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct JobOptions {
    /// Name of the job; by default the script's or the program's name
    #[arg(short = 'J', long, value_name = "NAME")]
    pub job_name: Option<String>,
    /// File for standard output (%j job, %A array, %a index, %x name, %u user, %N node);
    /// without it `tessera logs` shows the output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// File for standard error; by default where standard output goes
    #[arg(short, long, value_name = "FILE")]
    pub error: Option<String>,
    /// Longest run time: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS
    #[arg(short, long, value_name = "TIME")]
    pub time: Option<TimeLimit>,
    /// Seconds between SIGTERM and SIGKILL when the job has to end; by default 30
    #[arg(long, value_name = "SECONDS")]
    pub grace: Option<u64>,
    /// Most host memory of each process of the job, such as 16G; a number alone counts MiB, and 0 means no limit
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<HostMemory>,
    /// Most processors of each process of the job
    #[arg(short, long, value_name = "N")]
    pub cpus_per_task: Option<u32>,
    /// Submit an array: one task for each index, such as 0-31
    #[arg(short, long, value_name = "FIRST-LAST")]
    pub array: Option<ArraySpec>,
    /// Working directory; by default the current one
    #[arg(short = 'D', long, value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// GPU memory that the job needs, such as 10G; with `auto` (the default) any slice is large enough
    /// at first
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<VramOption>,
    /// MIG profile, such as 1g.5gb; or a compute instance of one, such as 1c.3g.20gb, if an operator
    /// has split a GPU instance that way
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<NamedGpu>,
    /// Number of whole GPUs (4), or of slices of a profile on as many GPUs (1g.5gb:4); with --vram or
    /// --profile, of slices of that size. Each has its own process; all start and end together
    #[arg(short = 'G', long, value_name = "[PROFILE:]N")]
    pub gpus: Option<GpusOption>,
    /// Number of GPUs or slices on each node
    #[arg(long, value_name = "[PROFILE:]N")]
    pub gpus_per_node: Option<GpusOption>,
    /// GPUs or slices of each process: always 1
    #[arg(long, value_name = "[PROFILE:]1")]
    pub gpus_per_task: Option<GpusOption>,
    /// --gpus-per-node as Slurm writes it: gpu:4 or gpu:1g.5gb:4
    #[arg(long, value_name = "GRES")]
    pub gres: Option<GresOption>,
    /// Number of nodes that the GPUs are on; by default 1
    #[arg(short = 'N', long, value_name = "N")]
    pub nodes: Option<NodesOption>,
    /// Number of processes, with one GPU or slice each
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks: Option<u32>,
    /// Number of processes on each node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks_per_node: Option<u32>,
    /// Request a whole GPU without co-runners
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "", value_name = "MODE", hide_possible_values = true)]
    pub exclusive: Option<String>,
    /// `exclusive` (the default); `mps` to share a slice with other jobs of the same user; `kernel`
    /// to share one by interleaving kernels by priority. The last two need --vram
    #[arg(long, value_name = "HOW")]
    pub share: Option<String>,
    /// With --share mps: percentage of the slice's multiprocessors; by default 50
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
    /// Place the job behind others of its priority, by 0 to 2147483645; without a value 100
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100")]
    pub nice: Option<i64>,
    /// Number of retries after failures of its own; by default 0
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// Action when its node is lost: `requeue` (the default), `hold` or `fail`
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["requeue", "no_requeue"])]
    pub on_lost: Option<String>,
    /// The same as --on-lost requeue
    #[arg(long, conflicts_with = "no_requeue")]
    pub requeue: bool,
    /// The same as --on-lost fail
    #[arg(long)]
    pub no_requeue: bool,
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
    /// Environment variables to export to the job: ALL, NONE, or names and NAME=VALUE, separated
    /// by commas; by default PATH, HOME, the language, and those of a Python environment
    #[arg(long, value_name = "WHICH")]
    pub export: Option<ExportChoice>,
    /// Set one more environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<EnvVariable>,
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
pub struct HostMemory(Option<u64>);

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

/// A text that is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number of MiB, or a size such as 512M or 16G")]
pub struct BadHostMemory;

/// Options that can't be used as they are, or not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJobOptions {
    /// Two options request different GPU resources.
    #[error("a job gives its size in one way, but here it requests {first} and {other}")]
    TwoSizes {
        /// What the first option requests.
        first: GpuRequest,
        /// What another one requests.
        other: GpuRequest,
    },
    /// `--gpus-per-task` with another number than 1.
    #[error("a process has one GPU: give their number, as --ntasks or --gpus")]
    SeveralGpusPerTask,
    /// Two options give different numbers of processes.
    #[error(
        "each process has one GPU, but {option} makes that {members} and {other_option} {other}"
    )]
    TwoGangSizes {
        /// The first option.
        option: &'static str,
        /// The number of processes that follows from it.
        members: u32,
        /// The option that contradicts.
        other_option: &'static str,
        /// The number that follows from that one.
        other: u32,
    },
    /// The GPUs are no multiple of the nodes.
    #[error("{members} GPUs can't be spread evenly over {nodes} nodes: give a multiple of {nodes}")]
    UnevenGang {
        /// How many GPUs were requested.
        members: u32,
        /// Over how many nodes.
        nodes: u32,
    },
    /// `--priority` out of range.
    #[error("--priority {number}: priorities go from 0 (highest) to 9 (lowest)")]
    Priority {
        /// What was given.
        number: u64,
    },
    /// `--sm` out of range.
    #[error("--sm {number}: give 1 to 100 percent of the slice")]
    SharePercent {
        /// What was given.
        number: u64,
    },
    /// A path that JSON can't hold.
    #[error("{}: the name is not valid UTF-8", path.display())]
    PathNotText {
        /// The path.
        path: PathBuf,
    },
    /// A time that does not exist, or not here.
    #[error(transparent)]
    Time(#[from] BadClockTime),
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
    /// Returns the GPU resources that this layer requests, if any.
    ///
    /// # Errors
    ///
    /// [`BadJobOptions::TwoSizes`] if it requests two different things.
    pub fn gpu(&self) -> Result<Option<GpuRequest>, BadJobOptions> {
        let given = [
            self.vram.as_ref().map(|VramOption(request)| request.clone()),
            self.profile.as_ref().map(|NamedGpu(request)| request.clone()),
            self.gpus.as_ref().and_then(|GpusOption(counted)| counted.request()),
            self.gpus_per_node.as_ref().and_then(|GpusOption(counted)| counted.request()),
            self.gpus_per_task.as_ref().and_then(|GpusOption(counted)| counted.request()),
            self.gres.as_ref().and_then(|GresOption(counted)| counted.request()),
            self.exclusive.as_ref().map(|_| GpuRequest::Whole),
        ];
        let mut given = given.into_iter().flatten();
        let Some(first) = given.next() else {
            // A number of GPUs without a size is one of whole GPUs.
            let counted = self.gpus.is_some()
                || self.gpus_per_node.is_some()
                || self.gpus_per_task.is_some()
                || self.gres.is_some();
            return Ok(counted.then_some(GpuRequest::Whole));
        };
        match given.find(|other| *other != first) {
            None => Ok(Some(first)),
            Some(other) => Err(BadJobOptions::TwoSizes { first, other }),
        }
    }

    /// Returns the shape of the gang that this layer requests, if it has more than one process.
    ///
    /// # Errors
    ///
    /// [`BadJobOptions`] if it requests two different things, or what is impossible.
    pub fn gang(&self) -> Result<Option<GangRequest>, BadJobOptions> {
        let nodes = self.nodes.map_or(1, |NodesOption(nodes)| nodes);
        if self.gpus_per_task.as_ref().is_some_and(|GpusOption(counted)| counted.count != 1) {
            return Err(BadJobOptions::SeveralGpusPerTask);
        }
        let each = |count: u32| count.saturating_mul(nodes);
        let given = [
            ("--gpus", self.gpus.as_ref().map(|GpusOption(counted)| counted.count)),
            ("--ntasks", self.ntasks),
            ("--gpus-per-node", self.gpus_per_node.as_ref().map(|GpusOption(c)| each(c.count))),
            ("--gres", self.gres.as_ref().map(|GresOption(counted)| each(counted.count))),
            ("--ntasks-per-node", self.ntasks_per_node.map(each)),
        ];
        let mut given = given.into_iter().filter_map(|(option, count)| Some((option, count?)));
        let (option, members) = given.next().unwrap_or(("--nodes", nodes));
        if let Some((other_option, other)) = given.find(|(_, count)| *count != members) {
            return Err(BadJobOptions::TwoGangSizes { option, members, other_option, other });
        }
        if !members.is_multiple_of(nodes) {
            return Err(BadJobOptions::UnevenGang { members, nodes });
        }
        let gang = GangRequest { nodes, gpus_per_node: members / nodes };
        Ok((members > 1).then_some(gang))
    }

    /// Overrides this layer with `stronger`.
    ///
    /// # Errors
    ///
    /// As [`JobOptions::gpu`].
    pub fn under(self, stronger: Self) -> Result<Self, BadJobOptions> {
        // GPU resources have several spellings: the stronger layer overrides all of them together.
        let sizes = if stronger.gpu()?.is_some() { stronger.clone() } else { self.clone() };
        let lost = if stronger.has_on_lost() { stronger.clone() } else { self.clone() };
        Ok(Self {
            job_name: stronger.job_name.or(self.job_name),
            output: stronger.output.or(self.output),
            error: stronger.error.or(self.error),
            time: stronger.time.or(self.time),
            grace: stronger.grace.or(self.grace),
            mem: stronger.mem.or(self.mem),
            cpus_per_task: stronger.cpus_per_task.or(self.cpus_per_task),
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
            exclusive: sizes.exclusive,
            share: stronger.share.or(self.share),
            sm: stronger.sm.or(self.sm),
            checkpoint: stronger.checkpoint.or(self.checkpoint),
            class: stronger.class.or(self.class),
            priority: stronger.priority.or(self.priority),
            nice: stronger.nice.or(self.nice),
            max_retries: stronger.max_retries.or(self.max_retries),
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

    fn has_on_lost(&self) -> bool {
        self.on_lost.is_some() || self.requeue || self.no_requeue
    }

    /// Writes the options into a request. Relative paths count from `here`.
    ///
    /// # Errors
    ///
    /// [`BadJobOptions`] states what can't be sent.
    pub fn write_into(
        self,
        request: &mut SubmitRequest,
        here: &Path,
        environment: &std::collections::BTreeMap<String, String>,
    ) -> Result<(), BadJobOptions> {
        match self.gpu()? {
            None | Some(GpuRequest::Unknown) => {}
            Some(GpuRequest::Memory(bytes)) => request.gpu_memory_bytes = Some(bytes.get()),
            Some(GpuRequest::Profile(name)) => request.gpu_profile = Some(name.as_str().to_owned()),
            Some(GpuRequest::Compute(name)) => request.gpu_profile = Some(name.to_string()),
            Some(GpuRequest::Whole) => request.gpu_whole = true,
        }
        request.gang = self.gang()?;
        let folder = here.join(self.chdir.clone().unwrap_or_default());
        let absolute = |file: String| plain(&folder.join(file));
        request.work_dir = Some(plain(&folder)?);
        request.stdout = self.output.map(absolute).transpose()?;
        request.stderr = self.error.map(absolute).transpose()?;
        request.env = self.export.unwrap_or(ExportChoice::ESSENTIALS).choose(environment)?;
        request.env.extend(self.env.into_iter().map(|v| (v.name, v.value)));
        if let Some(name) = self.job_name {
            request.name = Some(name);
        }
        request.time_limit_secs = self.time.and_then(TimeLimit::secs);
        request.grace_secs = self.grace;
        request.host_memory_bytes = self.mem.and_then(|HostMemory(limit)| limit);
        request.cpus = self.cpus_per_task;
        request.share = self.share;
        request.sm_percent = self.sm.map(percent).transpose()?;
        request.checkpoint_signal = self.checkpoint;
        request.class = self.class;
        request.priority = self.priority.map(small_priority).transpose()?;
        request.nice = self.nice;
        request.max_retries = self.max_retries;
        request.on_lost = match (self.on_lost, self.requeue, self.no_requeue) {
            (Some(word), _, _) => Some(word),
            (None, true, _) => Some("requeue".to_owned()),
            (None, false, true) => Some("fail".to_owned()),
            (None, false, false) => None,
        };
        request.task_key = self.task_key;
        request.deadline = self.deadline.map(ClockTime::after_now).transpose()?;
        request.late = self.late;
        request.allow_pending = self.allow_pending;
        request.hold = self.hold;
        request.array = self.array.map(|ArraySpec(range)| range);
        Ok(())
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
