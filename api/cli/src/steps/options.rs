//! What a step requests, and what follows from it.

use std::path::PathBuf;

use clap::Args;

use super::Allocation;
use tessera_model::number::clamped;

/// Options of a step, as `srun` takes them inside an allocation.
#[derive(Args, Clone, Debug, Default)]
pub struct StepOptions {
    /// Number of processes; by default that of the job, or one for each node
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks: Option<u32>,
    /// Number of nodes: steps run on one node
    #[arg(short = 'N', long, value_name = "N")]
    pub nodes: Option<String>,
    /// Number of processes on each node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks_per_node: Option<u32>,
    /// GPUs of each process; by default each sees all GPUs of the job on its node
    #[arg(long, value_name = "N")]
    pub gpus_per_task: Option<String>,
    /// GPUs of the step together
    #[arg(short = 'G', long, value_name = "N")]
    pub gpus: Option<String>,
    /// The same
    #[arg(long, value_name = "N")]
    pub gpus_per_node: Option<String>,
    /// The same as Slurm writes it: gpu:2, or none
    #[arg(long, value_name = "GRES")]
    pub gres: Option<String>,
    /// How GPUs are given to processes: `single:1` gives one to each
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
    /// Working directory
    #[arg(short = 'D', long, value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// End all processes when one fails
    #[arg(short = 'K', long, num_args = 0..=1, require_equals = true, default_missing_value = "1", value_name = "0|1")]
    pub kill_on_bad_exit: Option<u8>,
    /// Seconds after the first end at which the others are ended; 0 waits for all
    #[arg(short = 'W', long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Variables to export: ALL, NONE, or names and NAME=VALUE
    #[arg(long, value_name = "WHICH")]
    pub export: Option<String>,
    /// The file lists a program for each process: `0 prepare`, `1-3 work %t`
    #[arg(long)]
    pub multi_prog: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub program: Vec<String>,
}

/// A step that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStep {
    /// There is nothing to run.
    #[error("no program is given: write srun PROGRAM ARGUMENTS")]
    NoProgram,
    /// It is to run on several nodes.
    #[error(
        "a step runs on one node, and this one requests {nodes}: write -N1, or submit with --launch each, which \
         starts a process for each GPU"
    )]
    SeveralNodes {
        /// On how many.
        nodes: u32,
    },
    /// It requests more GPUs than there are.
    #[error("the step requests {requested} GPUs of this node, and the job has {held} there")]
    TooManyGpus {
        /// How many it requests.
        requested: u32,
        /// How many the job has.
        held: usize,
    },
    /// An option's value can't be read.
    #[error("{option} {text:?} can't be read: {expected}")]
    Unreadable {
        /// The option.
        option: &'static str,
        /// What was given.
        text: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A file of programs that can't be used.
    #[error("the list of programs can't be used: {why}")]
    Programs {
        /// What is wrong with it.
        why: String,
    },
}

/// A step that is ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// The program of each process with its arguments.
    pub programs: Vec<Vec<String>>,
    /// GPUs of the step; `None` if it sees all and takes none.
    pub gpus: Option<u32>,
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
    /// Whether all end when one fails.
    pub kill_on_bad_exit: bool,
    /// Seconds after the first end at which the others are ended.
    pub wait_secs: Option<u64>,
    /// What is exported, if not all.
    pub export: Option<String>,
}

impl StepOptions {
    /// Works out what the step takes of its job.
    ///
    /// # Errors
    ///
    /// [`BadStep`].
    pub fn plan(self, allocation: &Allocation) -> Result<StepPlan, BadStep> {
        let nodes = self.node_count(allocation)?;
        if nodes > 1 {
            return Err(BadStep::SeveralNodes { nodes });
        }
        let tasks = self.task_count(allocation);
        let per_task = match self.gpu_bind.as_deref().and_then(|how| how.strip_prefix("single:")) {
            Some(_) if self.gpus_per_task.is_none() => Some(1),
            _ => self
                .gpus_per_task
                .as_deref()
                .map(|text| count("--gpus-per-task", text))
                .transpose()?,
        };
        let named = [
            ("--gpus", &self.gpus),
            ("--gpus-per-node", &self.gpus_per_node),
            ("--gres", &self.gres),
        ];
        let named = named.into_iter().find_map(|(option, text)| Some((option, text.as_ref()?)));
        let named = named.map(|(option, text)| count(option, text)).transpose()?;
        let gpus = named.or(per_task.map(|per_task| per_task.saturating_mul(tasks)));
        let held = allocation.devices.len();
        if let Some(requested) = gpus
            && usize::try_from(requested).is_ok_and(|requested| requested > held)
        {
            return Err(BadStep::TooManyGpus { requested, held });
        }
        if self.program.is_empty() {
            return Err(BadStep::NoProgram);
        }
        let programs = match self.multi_prog {
            false => vec![self.program; clamped(tasks)],
            true => programs(&self.program, tasks)?,
        };
        Ok(StepPlan {
            programs,
            gpus,
            gpus_per_task: per_task,
            overlap: self.overlap,
            label: self.label,
            output: self.output.filter(|file| file != "-"),
            error: self.error.filter(|file| file != "-"),
            folder: self.chdir,
            kill_on_bad_exit: self.kill_on_bad_exit.is_some_and(|how| how != 0),
            wait_secs: self.wait.filter(|secs| *secs > 0),
            export: self.export,
        })
    }

    fn node_count(&self, allocation: &Allocation) -> Result<u32, BadStep> {
        let Some(text) = &self.nodes else {
            // One process fits on this node, whatever the job has besides.
            return Ok(if self.ntasks == Some(1) { 1 } else { allocation.nodes });
        };
        let least = text.split('-').next().unwrap_or(text);
        least.parse().map_err(|_| BadStep::Unreadable {
            option: "--nodes",
            text: text.clone(),
            expected: "write how many, such as 1",
        })
    }

    /// Returns the number of processes.
    pub fn task_count(&self, allocation: &Allocation) -> u32 {
        let per_node = self.ntasks_per_node.or_else(|| allocation.number("SLURM_NTASKS_PER_NODE"));
        let of_job = || allocation.number("SLURM_NTASKS");
        self.ntasks.or_else(of_job).or(per_node).unwrap_or(1).max(1)
    }
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
            expected: "write how many GPUs, such as 2 or gpu:2",
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
                        _ => return Err(bad(format!("{ranks:?} are no numbers of processes"))),
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
