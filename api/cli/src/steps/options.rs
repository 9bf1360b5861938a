//! The request of a step, and the settings derived from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;

use super::Allocation;
use super::gpus::GpuBinding;
use super::layout::{BadLayout, Distribution, NodeRequest, StepLayout, StepNode, share};
use crate::container_options::{BadContainerOptions, ContainerOptions};
use tessera_model::container::ContainerRules;
use tessera_model::number::clamped;
use tessera_model::place::node_list;
use tessera_model::spec::BadField;

/// Options of a step, as `srun` takes them inside an allocation.
#[derive(Args, Clone, Debug, Default)]
pub struct StepOptions {
    /// Number of processes; by default that of the job, or one for each node
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks: Option<u32>,
    /// Number of nodes; by default those of the job
    #[arg(short = 'N', long, value_name = "N")]
    pub nodes: Option<String>,
    /// Nodes to run on, such as n1,gpu[1-3]
    #[arg(short = 'w', long, value_name = "NODES")]
    pub nodelist: Option<String>,
    /// Nodes not to run on
    #[arg(short = 'x', long, value_name = "NODES")]
    pub exclude: Option<String>,
    /// The first node to run on, by its number in the job, from 0
    #[arg(short = 'r', long, value_name = "N")]
    pub relative: Option<usize>,
    /// How ranks follow each other: `block` on each node, `cyclic` over the nodes, or `plane=N` for N at a time
    #[arg(short = 'm', long, value_name = "HOW")]
    pub distribution: Option<String>,
    /// Number of processes on each node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks_per_node: Option<u32>,
    /// Number of processors of each process, which it finds in SLURM_CPUS_PER_TASK; the job's limits count
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus_per_task: Option<u32>,
    /// GPUs of each process; by default each sees all GPUs of the job on its node
    #[arg(long, value_name = "N")]
    pub gpus_per_task: Option<String>,
    /// GPUs of the step together
    #[arg(short = 'G', long, value_name = "N")]
    pub gpus: Option<String>,
    /// GPUs of the step on each node
    #[arg(long, value_name = "N")]
    pub gpus_per_node: Option<String>,
    /// `--gpus-per-node` as Slurm writes it: gpu:2, or none
    #[arg(long, value_name = "GRES")]
    pub gres: Option<String>,
    /// How GPUs are given to processes: `single:1` and `per_task:1` give one to each, and `map_gpu:0,1` names those of
    /// each
    #[arg(long, value_name = "HOW")]
    pub gpu_bind: Option<String>,
    /// Share GPUs with other steps of the job
    #[arg(long)]
    pub overlap: bool,
    /// Begin each line of output with the number of its process
    #[arg(short, long)]
    pub label: bool,
    /// File for standard output: %j job, %t process, %s step, %N node
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// File for standard error; by default where standard output goes
    #[arg(short, long, value_name = "FILE")]
    pub error: Option<String>,
    /// File that all processes read from standard input; `none` for nothing
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<String>,
    #[command(flatten)]
    pub container: ContainerOptions,
    /// Working directory
    #[arg(short = 'D', long, value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// End all processes when one fails
    #[arg(short = 'K', long, num_args = 0..=1, require_equals = true, default_missing_value = "1", value_name = "0|1")]
    pub kill_on_bad_exit: Option<u8>,
    /// Name of the step, which its processes find in SLURM_JOB_NAME
    #[arg(short = 'J', long, value_name = "NAME")]
    pub job_name: Option<String>,
    /// The end of -K1
    #[arg(short = '1', hide = true)]
    pub is_killing: bool,
    /// The end of -K0
    #[arg(short = '0', hide = true)]
    pub is_sparing: bool,
    /// Seconds after the first process has ended at which the others are ended; 0 waits for all
    #[arg(short = 'W', long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// How processes with MPI find each other: `pmi2`, the default of several processes, which also serves PMI-1 (MPICH,
    /// Intel MPI), or `none`; `list` prints these
    #[arg(long, value_name = "HOW")]
    pub mpi: Option<StepMpi>,
    /// Variables to export: ALL, NONE, or names and NAME=VALUE
    #[arg(long, value_name = "WHICH")]
    pub export: Option<String>,
    /// The file lists a program for each process: `0 prepare`, `1-3 work %t`
    #[arg(long)]
    pub multi_prog: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub program: Vec<String>,
    /// Variables of options of `srun` that have no other effect
    #[arg(skip)]
    pub stated: Vec<(String, String)>,
}

/// How processes with MPI find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMpi {
    /// By PMI-1 or PMI-2.
    Pmi,
    /// By PMIx, which is not served.
    Pmix,
    /// Not at all.
    None,
    /// Print what there is.
    List,
}

/// What `srun --mpi=list` prints, as Slurm does.
pub const MPI_LIST: &str = "MPI plugin types are...\n\tnone\n\tpmi2\n";

impl StepMpi {
    /// Returns whether processes can find each other by it.
    pub const fn is_served(&self) -> bool {
        matches!(self, Self::Pmi | Self::None)
    }

    /// Returns its word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pmi => "pmi2",
            Self::Pmix => "pmix",
            Self::None => "none",
            Self::List => "list",
        }
    }
}

impl std::str::FromStr for StepMpi {
    type Err = UnknownMpi;

    fn from_str(text: &str) -> Result<Self, UnknownMpi> {
        match text {
            "pmi2" | "pmi1" | "pmi" | "cray_shasta" => Ok(Self::Pmi),
            "none" => Ok(Self::None),
            "list" => Ok(Self::List),
            // Versions have their own names: pmix_v4.
            _ if text.starts_with("pmix") || text == "openmpi" => Ok(Self::Pmix),
            _ => Err(UnknownMpi),
        }
    }
}

/// A kind of MPI that no step serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write pmi2 or none")]
pub struct UnknownMpi;

/// A step that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStep {
    /// There is nothing to run.
    #[error("no program is given: write srun PROGRAM ARGUMENTS")]
    NoProgram,
    /// It is to run on nodes, or with numbers of processes, that the job does not have.
    #[error(transparent)]
    Layout(#[from] BadLayout),
    /// The job starts one process for each GPU itself.
    #[error(
        "this job starts a process for each GPU itself (--launch each), so that steps run on one node: write -N1, or \
         submit with --launch once"
    )]
    EachLaunched,
    /// It requests more GPUs than there are.
    #[error("the step requests {requested} GPUs of this node, and the job has {held} there")]
    TooManyGpus {
        /// How many it requests.
        requested: u32,
        /// How many the job has.
        held: usize,
    },
    /// The container can't be run as it is described.
    #[error("the container of the step: {bad}")]
    Container {
        /// What is wrong.
        bad: BadField,
    },
    /// Options about containers that make no sense together.
    #[error(transparent)]
    ContainerOptions(#[from] BadContainerOptions),
    /// The process is not in a job that an agent started.
    #[error(
        "TESSERA_CONTAINER_RUNNER is not set, which names what starts containers: don't remove it from the job"
    )]
    NoRunner,
    /// An option's value can't be read.
    #[error("{option} {text:?} can't be read: {expected}")]
    Unreadable {
        option: &'static str,
        /// The given value.
        text: String,
        /// The valid form.
        expected: &'static str,
    },
    /// A file of programs that can't be used.
    #[error("the list of programs can't be used: {why}")]
    Programs {
        /// The fault.
        why: String,
    },
}

/// A step that is ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// The program of each process with its arguments.
    pub programs: Vec<Vec<String>>,
    /// Which of them run where.
    pub layout: StepLayout,
    /// GPUs of the step on each of its nodes; `None` if it sees all and takes none.
    pub gpus: Option<Vec<u32>>,
    /// GPUs of each process; `None` if each sees those of the step.
    pub gpus_per_task: Option<u32>,
    /// Whether it shares GPUs with other steps.
    pub overlap: bool,
    /// Whether lines begin with the number of their process.
    pub label: bool,
    /// File for standard output.
    pub output: Option<String>,
    /// File for standard error.
    pub error: Option<String>,
    /// Working directory.
    pub folder: Option<PathBuf>,
    /// Variables of options that only have these.
    pub named: BTreeMap<String, String>,
    /// Whether all end when one fails.
    pub kill_on_bad_exit: bool,
    /// Seconds after the first end at which the others are ended.
    pub wait_secs: Option<u64>,
    /// Variables that are exported, if not all.
    pub export: Option<String>,
    /// Whether its processes find each other by PMI.
    pub pmi: bool,
    /// How its user spreads ranks over nodes, if that is named.
    pub distribution: Option<String>,
    /// Processors of each process, if that is named.
    pub cpus_per_task: Option<u32>,
    /// Which GPUs of its node each process sees.
    pub binding: GpuBinding,
    /// A remark for its user.
    pub remark: Option<&'static str>,
}

/// What somebody who names PMIx has to know. Programs of Open MPI end by themselves then; many others need none.
const NO_PMIX: &str = "--mpi: there is no PMIx here. Processes have SLURM_PROCID and SLURM_NTASKS; a program of Open MPI \
                       that calls MPI_Init has to be started by mpirun instead of srun";
/// What somebody who gives a number for each node in a job with a number of tasks has to know.
const TASKS_OF_JOB: &str = "--ntasks-per-node has no effect, since the job has a number of tasks (SLURM_NTASKS), as in \
                            Slurm; write --ntasks as well";
/// What somebody who names PMI for containers has to know.
const NO_PMI_INSIDE: &str = "--mpi: processes in containers find each other by no PMI. They have SLURM_PROCID and \
                             SLURM_NTASKS; a program that calls MPI_Init has to be started by mpirun in one container";

impl StepOptions {
    /// Returns whether processes find each other by PMI, and a remark.
    fn choose_mpi(&self, tasks: u32) -> (bool, Option<&'static str>) {
        let is_inside = self.container.image.is_some();
        match self.mpi {
            _ if tasks == 1 && self.mpi != Some(StepMpi::Pmi) => (false, None),
            Some(StepMpi::None | StepMpi::List) => (false, None),
            Some(StepMpi::Pmix) => (!is_inside, Some(NO_PMIX)),
            Some(StepMpi::Pmi) if is_inside => (false, Some(NO_PMI_INSIDE)),
            Some(StepMpi::Pmi) => (true, None),
            None => (!is_inside, None),
        }
    }

    /// Works out what the step takes of its job.
    ///
    /// # Errors
    ///
    /// [`BadStep`].
    pub fn plan(self, allocation: &Allocation) -> Result<StepPlan, BadStep> {
        let layout = self.layout(allocation)?;
        let tasks = clamped(layout.tasks());
        let binding = self.gpu_bind.as_deref().map(GpuBinding::parse).transpose()?;
        let binding = binding.unwrap_or_default();
        let per_task = match (&self.gpus_per_task, &binding) {
            (Some(text), _) => Some(count("--gpus-per-task", text)?),
            (None, GpuBinding::Each(gpus)) => Some(*gpus),
            (None, _) => None,
        };
        let gpus = self.gpus_by_node(&layout, per_task)?;
        let held = allocation.devices.len();
        let most = gpus.iter().flatten().copied().max();
        if let Some(requested) = most
            && usize::try_from(requested).is_ok_and(|requested| requested > held)
        {
            return Err(BadStep::TooManyGpus { requested, held });
        }
        if self.program.is_empty() {
            return Err(BadStep::NoProgram);
        }
        let name = self.job_name.clone().map(|name| ("SLURM_JOB_NAME", name));
        let per_node = self.ntasks_per_node.map(|each| ("SLURM_NTASKS_PER_NODE", each.to_string()));
        let named = name.into_iter().chain(per_node);
        let named = named.map(|(name, value)| (name.to_owned(), value));
        let named = named.chain(self.stated.clone()).collect();
        let container = self.container_words(allocation)?;
        let (pmi, remark) = self.choose_mpi(tasks);
        let counted = self.ntasks_per_node.filter(|_| self.ntasks.is_none());
        let ignored = counted
            .filter(|each| layout.nodes.iter().any(|n| n.ranks.len() > clamped::<usize>(*each)));
        let remark = remark.or(ignored.map(|_| TASKS_OF_JOB));
        let programs = match self.multi_prog {
            false => vec![self.program; clamped(tasks)],
            true => programs(&self.program, tasks)?,
        };
        let programs = programs.into_iter().map(|words| [container.clone(), words].concat());
        let programs = programs.collect();
        Ok(StepPlan {
            programs,
            layout,
            gpus,
            gpus_per_task: per_task,
            overlap: self.overlap,
            label: self.label,
            output: self.output.filter(|file| file != "-"),
            error: self.error.filter(|file| file != "-"),
            folder: self.chdir,
            named,
            kill_on_bad_exit: self.kill_on_bad_exit.is_some_and(|how| how != 0) && !self.is_sparing,
            wait_secs: self.wait.filter(|secs| *secs > 0),
            export: self.export,
            pmi,
            distribution: self.distribution,
            cpus_per_task: self.cpus_per_task,
            binding,
            remark,
        })
    }

    /// Returns the words in front of each program that runs in a container; none without one.
    fn container_words(&self, allocation: &Allocation) -> Result<Vec<String>, BadStep> {
        let variable = |name: &str| allocation.environment.get(name).cloned();
        let folder = self.chdir.clone().unwrap_or_default();
        let home = variable("HOME");
        let Some(request) =
            self.container.request(&allocation.work_dir.join(folder), home.as_ref())?
        else {
            return Ok(Vec::new());
        };
        let runner = variable("TESSERA_CONTAINER_RUNNER").ok_or(BadStep::NoRunner)?;
        ContainerRules::parse(&request.image, &request.mounts, request.work_dir.clone())
            .map_err(|bad| BadStep::Container { bad })?;
        let described = serde_json::json!({
            "image": request.image, "mounts": request.mounts, "work_dir": request.work_dir,
        });
        Ok(vec![runner, "container-step".to_owned(), described.to_string()])
    }

    /// Chooses nodes, and spreads the processes over them.
    fn layout(&self, allocation: &Allocation) -> Result<StepLayout, BadStep> {
        let count = self.nodes.as_deref().map(node_count).transpose()?;
        let listed = |option: &'static str, text: &Option<String>| {
            let Some(text) = text else { return Ok(BTreeSet::new()) };
            let names = node_list(option, text).map_err(|_| BadStep::Unreadable {
                option,
                text: text.clone(),
                expected: "write names such as n1,gpu[1-3]",
            });
            names.map(|names| names.iter().map(ToString::to_string).collect())
        };
        let request = NodeRequest {
            // Fewer processes than nodes leave nodes empty, as in Slurm.
            count: count.map(|count| self.ntasks.map_or(count, |tasks| count.min(clamped(tasks)))),
            named: listed("--nodelist", &self.nodelist)?,
            excluded: listed("--exclude", &self.exclude)?,
            first: self.relative.unwrap_or(0),
            tasks: self.ntasks.map(clamped),
        };
        let held: Vec<String> = allocation.nodes.iter().map(|node| node.name.clone()).collect();
        let here = || {
            let held = allocation.nodes.iter().filter(|node| node.name == allocation.node);
            held.map(|node| node.name.clone()).collect::<Vec<_>>()
        };
        let is_anywhere = request.named.is_empty() && self.relative.is_none();
        let nodes = match request.choose(&held) {
            // By default, a single process runs where it is called.
            Ok(chosen)
                if chosen.len() == 1 && is_anywhere && !request.excludes(&allocation.node) =>
            {
                here()
            }
            Ok(chosen) => chosen,
            Err(refused) => return Err(refused.into()),
        };
        if allocation.is_launched_each && nodes != here() {
            return Err(BadStep::EachLaunched);
        }
        let tasks = self.tasks_on(allocation, nodes.len());
        // With both, the number for each node is a maximum.
        let each = self.ntasks_per_node.filter(|_| self.ntasks.is_some()).map(clamped);
        Ok(StepLayout::spread(nodes, tasks, each, self.distribution()?)?)
    }

    /// Reads how ranks are spread; what comes after a colon concerns processors.
    fn distribution(&self) -> Result<Distribution, BadStep> {
        let text = self.distribution.as_deref().unwrap_or("block");
        let bad = || BadStep::Unreadable {
            option: "--distribution",
            text: text.to_owned(),
            expected: "write block, cyclic or plane=N",
        };
        let word = text.split([':', ',']).next().unwrap_or(text).to_ascii_lowercase();
        match word.split_once('=') {
            Some(("plane", size)) => size.parse().map(Distribution::Plane).map_err(|_| bad()),
            Some(_) => Err(bad()),
            None => match word.as_str() {
                "block" | "*" | "pack" | "nopack" | "fcyclic" => Ok(Distribution::Block),
                "cyclic" => Ok(Distribution::Cyclic),
                _ => Err(bad()),
            },
        }
    }

    /// Returns the GPUs that the step takes on each node; `None` if it names none.
    fn gpus_by_node(
        &self,
        layout: &StepLayout,
        per_task: Option<u32>,
    ) -> Result<Option<Vec<u32>>, BadStep> {
        let nodes = layout.nodes.len();
        if let Some(text) = &self.gpus {
            let total = count("--gpus", text)?;
            return Ok(Some((0..nodes).map(|node| share(total, nodes, node)).collect()));
        }
        let named = [("--gpus-per-node", &self.gpus_per_node), ("--gres", &self.gres)];
        let named = named.into_iter().find_map(|(option, text)| Some((option, text.as_ref()?)));
        if let Some((option, text)) = named {
            return Ok(Some(vec![count(option, text)?; nodes]));
        }
        let of_node = |per_task: u32| {
            let each = |node: &StepNode| per_task.saturating_mul(clamped(node.ranks.len()));
            layout.nodes.iter().map(each).collect()
        };
        Ok(per_task.map(of_node))
    }

    /// Returns the number of processes on so many nodes.
    fn tasks_on(&self, allocation: &Allocation, nodes: usize) -> usize {
        let on_all = |each: u32| each.saturating_mul(clamped(nodes));
        let of_nodes = self.ntasks_per_node.map(on_all);
        let of_job = || allocation.number("SLURM_NTASKS");
        let each_of_job = || allocation.number("SLURM_NTASKS_PER_NODE").map(on_all);
        // On some of the nodes a step has what the job has on each of them.
        let is_whole = nodes >= allocation.nodes.len();
        let tasks = match is_whole {
            // The number of the job counts more than that of a node, as in Slurm.
            true => self.ntasks.or_else(of_job).or(of_nodes).or_else(each_of_job),
            false => self.ntasks.or(of_nodes).or_else(each_of_job).or_else(of_job),
        };
        tasks.map_or(nodes, clamped).max(1)
    }

    /// Returns the number of processes; the nodes of the job, if the requested nodes are not
    /// available.
    pub fn task_count(&self, allocation: &Allocation) -> u32 {
        let nodes =
            self.layout(allocation).map_or(allocation.nodes.len(), |layout| layout.nodes.len());
        clamped(self.tasks_on(allocation, nodes))
    }
}

/// Reads a number of nodes; the lower end of a range counts.
fn node_count(text: &str) -> Result<usize, BadStep> {
    let least = text.split('-').next().unwrap_or(text);
    least.parse().ok().filter(|count| *count > 0).ok_or_else(|| BadStep::Unreadable {
        option: "--nodes",
        text: text.to_owned(),
        expected: "write a number, such as 2",
    })
}

/// Reads a number of GPUs in any of Slurm's forms: `2`, `a100:2`, `gpu:2`, `gpu`, `none`.
fn count(option: &'static str, text: &str) -> Result<u32, BadStep> {
    let plain = text.strip_prefix("gres/").unwrap_or(text);
    let last = plain.rsplit(':').next().unwrap_or(plain);
    match (plain, last.parse()) {
        ("none", _) => Ok(0),
        (_, Ok(number)) => Ok(number),
        ("gpu", Err(_)) => Ok(1),
        (_, Err(_)) => Err(BadStep::Unreadable {
            option,
            text: text.to_owned(),
            expected: "write a number of GPUs, such as 2 or gpu:2",
        }),
    }
}

/// Reads the programs of processes from a file.
fn programs(words: &[String], tasks: u32) -> Result<Vec<Vec<String>>, BadStep> {
    let bad = |why: String| BadStep::Programs { why };
    let file = words.first().ok_or(BadStep::NoProgram)?;
    let text = std::fs::read_to_string(file).map_err(|error| bad(format!("{file}: {error}")))?;
    let mut programs: Vec<Vec<String>> = vec![Vec::new(); clamped(tasks)];
    for line in
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let mut words = line.split_whitespace();
        let ranks = words.next().unwrap_or_default();
        let program: Vec<String> = words.map(str::to_owned).collect();
        let mut offset = 0_usize;
        for range in ranks.split(',') {
            let (first, last) = match range {
                "*" => (0, programs.len().saturating_sub(1)),
                range => {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let number = |text: &str| text.parse::<usize>();
                    match (number(first), number(last)) {
                        (Ok(first), Ok(last)) => (first, last),
                        _ => return Err(bad(format!("{ranks:?} are not process numbers"))),
                    }
                }
            };
            for rank in first..=last {
                let Some(place) = programs.get_mut(rank).filter(|place| place.is_empty()) else {
                    continue;
                };
                let fill = |word: &String| {
                    word.replace("%t", &rank.to_string()).replace("%o", &offset.to_string())
                };
                *place = program.iter().map(fill).collect();
                offset += 1;
            }
        }
    }
    match programs.iter().position(Vec::is_empty) {
        Some(rank) => Err(bad(format!("it has no line for process {rank}"))),
        None => Ok(programs),
    }
}
