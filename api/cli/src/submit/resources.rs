//! The combined effect of a job's options for GPUs, nodes, tasks, memory and processors.

use tessera_model::spec::{ALL_PROCESSORS, GpuRequest};

use rustix::process::{getgid, getuid};

use super::gpu::{CountedGpus, GpusOption, GresOption, NamedGpu, NodesOption, VramOption};
use super::options::{DependencyOption, HostMemory, JobOptions};
use super::{DEFAULT_PARTITION, SubmitContext};
use tessera_api_types::{GangRequest, SubmitRequest};

/// Requested GPUs, nodes and tasks that don't fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadResources {
    /// Two options request different GPU resources.
    #[error("a job states its size in one way only, but here it requests {first} and {other}")]
    TwoSizes {
        /// The request of the first option.
        first: GpuRequest,
        /// The request of another one.
        other: GpuRequest,
    },
    /// Two options name different models.
    #[error("a job has GPUs of one model, but here it requests {first} and {other}")]
    TwoModels {
        /// The value of the first option.
        first: String,
        /// The value of another one.
        other: String,
    },
    /// `--launch each` with several GPUs for each process.
    #[error(
        "with --launch each a process has one GPU: give the number of processes as --ntasks or --gpus"
    )]
    SeveralGpusPerProcess,
    /// Two options give different numbers of GPUs.
    #[error(
        "{option} requests {gpus} GPUs or slices in all, but {other_option} {other}: give one of them"
    )]
    TwoCounts {
        /// The first option.
        option: &'static str,
        /// The number of GPUs that follows from it.
        gpus: u32,
        /// The option that contradicts.
        other_option: &'static str,
        /// The number that follows from that one.
        other: u32,
    },
    /// The GPUs are no multiple of the nodes.
    #[error("{gpus} GPUs can't be spread evenly over {nodes} nodes: give a multiple of {nodes}")]
    Uneven {
        /// How many GPUs were requested.
        gpus: u32,
        /// Over how many nodes.
        nodes: u32,
    },
    /// More memory than can be written down.
    #[error("the memory of all processors or GPUs of a node together is too large: give --mem")]
    TooMuchMemory,
}

impl JobOptions {
    /// Returns the GPU resources that this layer requests, if any.
    ///
    /// # Errors
    ///
    /// [`BadResources::TwoSizes`] if it requests two different things.
    pub fn gpu(&self) -> Result<Option<GpuRequest>, BadResources> {
        let counted = || self.counted_gpus().map(|(_, counted)| counted);
        let named = [
            self.vram.as_ref().map(|VramOption(request)| request.clone()),
            self.profile.as_ref().map(|NamedGpu(request)| request.clone()),
        ];
        let kinds = counted().filter(|counted| counted.count > 0).map(CountedGpus::request);
        let whole =
            self.exclusive.as_ref().filter(|_| counted().all(|counted| counted.kind.is_none()));
        let whole = whole.map(|_| GpuRequest::Whole);
        let mut given = named.into_iter().chain(kinds).chain([whole]).flatten();
        let Some(first) = given.next() else {
            // A number of GPUs without a size is one of whole GPUs.
            return Ok(counted().any(|counted| counted.count > 0).then_some(GpuRequest::Whole));
        };
        match given.find(|other| *other != first) {
            None => Ok(Some(first)),
            Some(other) => Err(BadResources::TwoSizes { first, other }),
        }
    }

    /// Returns the GPU model that this layer names, if any.
    ///
    /// # Errors
    ///
    /// [`BadResources::TwoModels`] if it names two.
    pub fn model(&self) -> Result<Option<String>, BadResources> {
        let mut models = self.counted_gpus().filter_map(|(_, counted)| counted.model.clone());
        let Some(first) = models.next() else { return Ok(None) };
        match models.find(|other| !other.eq_ignore_ascii_case(&first)) {
            None => Ok(Some(first)),
            Some(other) => Err(BadResources::TwoModels { first, other }),
        }
    }

    /// Returns resources other than GPUs that `--gres` requests, which nothing counts.
    pub fn uncounted(&self) -> impl Iterator<Item = &String> {
        self.gres.iter().flat_map(|GresOption(counted)| &counted.uncounted)
    }

    /// Returns `each` if every GPU has its own process, and `once` otherwise.
    pub fn launch_word(&self) -> &'static str {
        match self.launch.as_deref() {
            Some("each") => "each",
            Some(_) | None => "once",
        }
    }

    /// Returns the number of nodes that the options give.
    pub fn node_count(&self) -> u32 {
        let from_tasks = || match (self.ntasks, self.ntasks_per_node) {
            (Some(tasks), Some(per_node)) => Some(tasks.div_ceil(per_node)),
            _ => None,
        };
        let given = self.nodes.map(|NodesOption(nodes)| nodes);
        given.or_else(from_tasks).unwrap_or(1).max(1)
    }

    /// Returns the number of tasks that the options give, if they do.
    pub fn task_count(&self) -> Option<u32> {
        let per_node = self.ntasks_per_node.map(|tasks| tasks.saturating_mul(self.node_count()));
        self.ntasks.or(per_node)
    }

    /// Returns the shape of the gang that this layer requests, if it has more than one GPU or node.
    ///
    /// # Errors
    ///
    /// [`BadResources`] if it requests two different things, or what is impossible.
    pub fn gang(&self) -> Result<Option<GangRequest>, BadResources> {
        let nodes = self.node_count();
        let gpus = match self.launch_word() {
            "each" => self.gpus_of_processes(nodes)?,
            _ => self.gpu_count(nodes)?,
        };
        if !gpus.is_multiple_of(nodes) {
            return Err(BadResources::Uneven { gpus, nodes });
        }
        let gang = GangRequest { nodes, gpus_per_node: gpus / nodes };
        Ok((gpus > 1).then_some(gang))
    }

    /// Returns the number of GPUs of a job whose processes `srun` or the program itself starts.
    fn gpu_count(&self, nodes: u32) -> Result<u32, BadResources> {
        let each = |count: u32| count.saturating_mul(nodes);
        let count = |option: &Option<GpusOption>| option.as_ref().map(|gpus| gpus.counted.count);
        let per_gpu = self.ntasks_per_gpu.zip(self.task_count());
        let given = [
            ("--gpus", count(&self.gpus)),
            ("--gpus-per-node", count(&self.gpus_per_node).map(each)),
            ("--gres", self.gres.as_ref().map(|GresOption(counted)| each(counted.count))),
        ];
        let given = given.into_iter().filter_map(|(option, count)| Some((option, count?)));
        let mut given = given.filter(|(_, count)| *count > 0);
        let Some((option, gpus)) = given.next() else {
            let of_tasks = count(&self.gpus_per_task)
                .map(|gpus| gpus.saturating_mul(self.task_count().unwrap_or(nodes)))
                .or_else(|| per_gpu.map(|(per_gpu, tasks)| tasks.div_ceil(per_gpu)));
            // Without GPUs each node has one slice: there are no other places.
            return Ok(of_tasks.unwrap_or(nodes).max(nodes));
        };
        match given.find(|(_, count)| *count != gpus) {
            Some((other_option, other)) => {
                Err(BadResources::TwoCounts { option, gpus, other_option, other })
            }
            None => Ok(gpus),
        }
    }

    /// Returns the number of GPUs of a job of which each has its own process.
    fn gpus_of_processes(&self, nodes: u32) -> Result<u32, BadResources> {
        let per_task = self.gpus_per_task.as_ref().map_or(1, |gpus| gpus.counted.count);
        if per_task != 1 || self.ntasks_per_gpu.is_some_and(|tasks| tasks != 1) {
            return Err(BadResources::SeveralGpusPerProcess);
        }
        let each = |count: u32| count.saturating_mul(nodes);
        let given = [
            ("--gpus", self.gpus.as_ref().map(|gpus| gpus.counted.count)),
            ("--ntasks", self.ntasks),
            ("--gpus-per-node", self.gpus_per_node.as_ref().map(|gpus| each(gpus.counted.count))),
            ("--gres", self.gres.as_ref().map(|GresOption(counted)| each(counted.count))),
            ("--ntasks-per-node", self.ntasks_per_node.map(each)),
        ];
        let mut given = given.into_iter().filter_map(|(option, count)| Some((option, count?)));
        let (option, gpus) = given.next().unwrap_or(("--nodes", nodes));
        match given.find(|(_, count)| *count != gpus) {
            Some((other_option, other)) => {
                Err(BadResources::TwoCounts { option, gpus, other_option, other })
            }
            None => Ok(gpus),
        }
    }

    /// Returns how many tasks a node has.
    fn tasks_of_node(&self) -> u32 {
        let spread = || self.ntasks.map(|tasks| tasks.div_ceil(self.node_count()));
        self.ntasks_per_node.or_else(spread).unwrap_or(1)
    }

    /// Returns the maximum number of processors of a process of the job: on its node, or with
    /// `each` its own.
    pub fn cpus(&self, gang: Option<GangRequest>) -> Option<u32> {
        let gpus = gang.map_or(1, |gang| gang.gpus_per_node);
        let each = self.launch_word() == "each";
        let of_tasks = self.cpus_per_task.map(|cpus| match each {
            true => cpus,
            false => cpus.saturating_mul(self.tasks_of_node()),
        });
        let of_gpus = self.cpus_per_gpu.map(|cpus| match each {
            true => cpus,
            false => cpus.saturating_mul(gpus),
        });
        of_tasks.or(of_gpus)
    }

    /// Returns the maximum host memory of the job on a node, in bytes.
    ///
    /// # Errors
    ///
    /// [`BadResources::TooMuchMemory`].
    pub fn host_memory(&self, gang: Option<GangRequest>) -> Result<Option<u64>, BadResources> {
        let gpus = gang.map_or(1, |gang| gang.gpus_per_node);
        let cpus = self.cpus(gang).unwrap_or_else(|| self.tasks_of_node());
        let times = |memory: Option<HostMemory>, count: u32| match memory {
            Some(HostMemory(Some(bytes))) => {
                bytes.checked_mul(u64::from(count)).map(Some).ok_or(BadResources::TooMuchMemory)
            }
            Some(HostMemory(None)) | None => Ok(None),
        };
        let per_gpu = if self.launch_word() == "each" { 1 } else { gpus };
        let by_gpu = times(self.mem_per_gpu, per_gpu)?;
        Ok(times(self.mem, 1)?.or(times(self.mem_per_cpu, cpus)?).or(by_gpu))
    }

    /// Returns the variables that Slurm sets because of options.
    pub(super) fn slurm_variables(&self, around: &SubmitContext) -> Vec<(String, String)> {
        let count = |option: &Option<GpusOption>| option.as_ref().map(|gpus| gpus.counted.count);
        // As it was written: `a100:2` names the type as well.
        let text = |option: &Option<GpusOption>| option.as_ref().map(|gpus| gpus.text.clone());
        let mib = |memory: Option<HostMemory>| Some(memory?.0? >> 20);
        let tasks = self.task_count().or_else(|| {
            let gpus = count(&self.gpus)?;
            // `--gpus=2 --gpus-per-task=1` makes two tasks.
            let by_task = count(&self.gpus_per_task).and_then(|each| gpus.checked_div(each));
            by_task.or_else(|| gpus.checked_mul(self.ntasks_per_gpu?))
        });
        let numbers = [
            ("SLURM_ARRAY_TASK_STEP", self.array.as_ref().map(|array| u64::from(array.step))),
            ("SLURM_CPUS_PER_TASK", self.cpus_per_task.map(u64::from)),
            ("SLURM_CPUS_PER_GPU", self.cpus_per_gpu.map(u64::from)),
            ("SLURM_NTASKS", tasks.map(u64::from)),
            ("SLURM_NPROCS", tasks.map(u64::from)),
            ("SLURM_NTASKS_PER_NODE", self.ntasks_per_node.map(u64::from)),
            ("SLURM_NTASKS_PER_GPU", self.ntasks_per_gpu.map(u64::from)),
            ("SLURM_MEM_PER_NODE", mib(self.mem)),
            ("SLURM_MEM_PER_CPU", mib(self.mem_per_cpu)),
            ("SLURM_MEM_PER_GPU", mib(self.mem_per_gpu)),
        ];
        let numbers =
            numbers.into_iter().filter_map(|(name, value)| Some((name, value?.to_string())));
        let is_slurm = around.dialect.is_slurm();
        let of_slurm = |value: Option<String>| value.filter(|_| is_slurm);
        let usual = |value: &Option<String>, usual: &str| {
            of_slurm(Some(value.clone().unwrap_or_else(|| usual.to_owned())))
        };
        // An exclusive job has all processors of its node, unless it shares the node with its user's other jobs.
        let alone = self.exclusive.as_deref().is_some_and(|with| !matches!(with, "user" | "mcs"));
        let is_whole = alone && !self.has_cpus();
        let dependency = self.dependency.as_ref().map(|DependencyOption(text)| text.clone());
        let texts = [
            ("SLURM_GPUS", text(&self.gpus)),
            ("SLURM_GPUS_PER_NODE", text(&self.gpus_per_node)),
            ("SLURM_GPUS_PER_TASK", text(&self.gpus_per_task)),
            ("SLURM_CPUS_ON_NODE", is_whole.then(|| ALL_PROCESSORS.to_owned())),
            ("SLURM_JOB_DEPENDENCY", dependency),
            ("SLURM_JOB_PARTITION", usual(&self.partition, DEFAULT_PARTITION)),
            ("SLURM_JOB_QOS", usual(&self.qos, "normal")),
            ("SLURM_OPEN_MODE", of_slurm(self.open_mode.as_ref().map(|how| how[..1].to_owned()))),
        ];
        let texts = texts.into_iter().filter_map(|(name, value)| Some((name, value?)));
        numbers.chain(texts).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Returns the variables about where a job is submitted, and by which user.
pub(super) fn submit_variables(
    around: &SubmitContext,
    request: &SubmitRequest,
) -> Vec<(String, String)> {
    let submit_dir = around.folder.to_str().map(str::to_owned);
    let of_slurm = |value: String| Some(value).filter(|_| around.dialect.is_slurm());
    let texts = [
        ("SLURM_SUBMIT_DIR", submit_dir.or_else(|| request.work_dir.clone())),
        ("SLURM_SUBMIT_HOST", around.host.clone()),
        ("SLURM_JOB_UID", of_slurm(getuid().as_raw().to_string())),
        ("SLURM_JOB_GID", of_slurm(getgid().as_raw().to_string())),
    ];
    texts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
