//! Steps: the processes that `srun` starts inside an allocation, on the node where it is called and on others.
//!
//! On its own node a step starts its processes itself. On others it starts a *part*, this same program, as a session of
//! the job there. A step over several nodes has a part on its own node, too, so that all processes are alike, and end
//! when the step is killed.
//!
//! Each process gets its rank, and by default sees all GPUs of its node, as in Slurm. A step that names GPUs
//! has them to itself while it runs: it locks files in the job's folder for temporary files.

mod across;
mod environment;
mod exchange;
mod gpus;
mod layout;
mod options;
mod output;
mod own_number;
mod part;
mod pmi;
mod recorder;
mod remote_terminal;
mod tasks;
mod transport;
mod unused;
mod variables;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::across::StepAcross;
use self::environment::StepFacts;
use self::gpus::{StepGpus, busy};
pub use self::options::{MPI_LIST, StepMpi, StepOptions, StepPlan};
pub use self::own_number::{become_program, plain};
pub use self::part::run_part;
use self::recorder::StepRecorder;
pub use self::remote_terminal::become_process;
use self::tasks::StepTasks;
pub use self::unused::UnusedStepOptions;
pub use self::watch::run_watch;
use crate::failure::CommandFailure;

/// Where a step runs: as the job's environment states it.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// The job's number.
    pub job: String,
    /// The node of this process.
    pub node: String,
    /// All nodes of the job, in order.
    pub nodes: Vec<JobNode>,
    /// Whether the job starts one process for each GPU, each of which has only its own.
    pub is_launched_each: bool,
    /// The devices of the job on this node, as CUDA names them.
    pub devices: Vec<String>,
    /// A folder of the job's own.
    pub folder: PathBuf,
    /// Where this process runs.
    pub work_dir: PathBuf,
    pub environment: BTreeMap<String, String>,
}

/// One node of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobNode {
    pub name: String,
    /// The number of the job's member there by which its processes are started; `None` if it is not known.
    pub member: Option<u64>,
}

impl Allocation {
    /// Reads the environment; `None` outside of a job. Only Tessera's own variables are needed, since some
    /// tools remove those of Slurm.
    pub fn find(environment: BTreeMap<String, String>) -> Option<Self> {
        let get = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
        let job = get("TESSERA_JOB_ID").or_else(|| get("SLURM_JOB_ID"))?;
        let node = get("TESSERA_NODE")?;
        let names = get("TESSERA_JOB_NODELIST").unwrap_or_else(|| node.clone());
        let members = get("TESSERA_STEP_JOBS").unwrap_or_default();
        let mut members = members.split(',').map(|member| member.parse().ok());
        let mut nodes: Vec<JobNode> = Vec::new();
        for name in names.split(',') {
            let member = members.next().flatten();
            nodes.push(JobNode { name: name.to_owned(), member });
        }
        let devices = get("TESSERA_DEVICES").or_else(|| get("CUDA_VISIBLE_DEVICES"));
        let devices = devices.iter().flat_map(|list| list.split(',')).map(str::to_owned);
        // The job's own on each node; elsewhere other jobs may have theirs.
        let folder = match get("SLURM_TMPDIR") {
            Some(own) => PathBuf::from(own).join("tessera-steps"),
            None => {
                let shared = get("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
                shared.join(format!("tessera-steps-{job}"))
            }
        };
        Some(Self {
            nodes,
            is_launched_each: get("TESSERA_GANG_SIZE").is_some(),
            devices: devices.collect(),
            folder,
            // Without it, paths stay relative.
            work_dir: std::env::current_dir().unwrap_or_default(),
            job,
            node,
            environment,
        })
    }

    /// Returns a number from the environment.
    fn number(&self, name: &str) -> Option<u32> {
        self.environment.get(name)?.parse().ok()
    }
}

/// Runs a step in the job that this process belongs to.
///
/// # Errors
///
/// [`CommandFailure::Usage`] outside of a job; otherwise as [`run`].
pub async fn run_here(options: StepOptions) -> Result<u8, CommandFailure> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let allocation = Allocation::find(environment.collect()).ok_or_else(|| {
        CommandFailure::usage(
            "this is not inside a job: submit a script that calls it, or use tessera submit",
        )
    })?;
    run(options, &allocation).await
}

/// Runs a step to its end, and returns its exit code: the largest of its processes' codes, where a
/// signal counts as 128 plus its number.
///
/// # Errors
///
/// [`CommandFailure`] states what the step requests that the job does not have.
pub async fn run(options: StepOptions, allocation: &Allocation) -> Result<u8, CommandFailure> {
    let mut options = options.with_variables(&allocation.environment);
    if let Some(input) = options.input.take().filter(|input| input != "all") {
        read_from(&input)?;
    }
    if options.mpi == Some(StepMpi::List) {
        use std::io::Write as _;
        std::io::stdout().write_all(MPI_LIST.as_bytes())?;
        return Ok(0);
    }
    let plan = options.plan(allocation).map_err(CommandFailure::refused)?;
    plan.remark.iter().for_each(|remark| eprintln!("srun: {remark}"));
    std::fs::create_dir_all(&allocation.folder)?;
    let number = next_step(&allocation.folder)?;
    let facts = facts(&plan, allocation, number);
    if !is_here(&plan, allocation) {
        let recorder = StepRecorder::start(&plan, allocation, number);
        let end = StepAcross { plan: &plan, allocation, facts }.run().await?;
        recorder.finish(end).await;
        return Ok(end.code);
    }
    let needed = plan.gpus.as_ref().and_then(|gpus| gpus.first().copied());
    let announce = || eprintln!("{}", busy(&allocation.job));
    let gpus = StepGpus::take((needed, plan.overlap), allocation, announce).await?;
    // Under Slurm a step that waits for others does not exist yet.
    let recorder = StepRecorder::start(&plan, allocation, number);
    let end = StepTasks { plan: &plan, allocation, facts, devices: gpus.devices() }.run().await?;
    // The next step may have them while this one is accounted for.
    drop(gpus);
    recorder.finish(end).await;
    Ok(end.code)
}

/// Puts a file in the place of standard input, as if the shell had redirected it.
fn read_from(input: &str) -> Result<(), CommandFailure> {
    let path = if input == "none" { "/dev/null" } else { input };
    let file = std::fs::File::open(path).map_err(|error| {
        CommandFailure::refused(format!("--input {input}: the file can't be read: {error}"))
    })?;
    Ok(rustix::stdio::dup2_stdin(&file).map_err(std::io::Error::from)?)
}

/// Returns whether all processes run on the node of this one.
fn is_here(plan: &StepPlan, allocation: &Allocation) -> bool {
    plan.layout.nodes.iter().all(|node| node.name == allocation.node)
}

/// Returns what the processes of a step have in common.
fn facts(plan: &StepPlan, allocation: &Allocation, number: u64) -> StepFacts {
    let is_first = allocation.nodes.first().is_some_and(|node| node.name == allocation.node);
    let address = match allocation.environment.get("TESSERA_MASTER_ADDR") {
        _ if allocation.nodes.len() == 1 => "127.0.0.1".to_owned(),
        Some(address) if is_first => address.clone(),
        Some(_) | None => allocation.node.clone(),
    };
    StepFacts {
        job: allocation.job.clone(),
        number,
        layout: plan.layout.clone(),
        address,
        gpus_per_task: plan.gpus_per_task,
        distribution: plan.distribution.clone(),
        binding: plan.binding.clone(),
        cpus_per_task: plan.cpus_per_task,
        umask: own_umask(),
        named: plan.named.clone(),
    }
}

/// Returns what this process's new files are not to allow, as four digits: reading it elsewhere would change it.
fn own_umask() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    found.map_or_else(|| "0022".to_owned(), |digits| digits.trim().to_owned())
}

/// Runs the single process of a step in this terminal. On this node it replaces this process, so that it keeps the
/// terminal. It takes no GPU from other steps, since a shell that is left open would keep it. Returns its exit code, if
/// it ran on another node.
///
/// # Errors
///
/// [`CommandFailure`] states what the step requests that it can't have.
pub async fn run_in_terminal(
    options: StepOptions,
    allocation: &Allocation,
) -> Result<u8, CommandFailure> {
    if !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(CommandFailure::refused(
            "standard input is not a terminal: call srun --pty in a terminal, or omit --pty",
        ));
    }
    if options.input.is_some() {
        return Err(CommandFailure::refused(
            "a process with a terminal reads from it: leave --input or --pty out",
        ));
    }
    let plan = options.plan(allocation).map_err(CommandFailure::refused)?;
    std::fs::create_dir_all(&allocation.folder)?;
    let number = next_step(&allocation.folder)?;
    let facts = facts(&plan, allocation, number);
    if !is_here(&plan, allocation) {
        return remote_terminal::run_there(&plan, allocation, facts).await;
    }
    StepTasks { plan: &plan, allocation, facts, devices: None }.become_first()
}

/// Draws the number of a step: they count from 0.
fn next_step(folder: &Path) -> std::io::Result<u64> {
    use std::io::{Read as _, Seek as _, Write as _};
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(folder.join("next"))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let number = text.trim().parse().unwrap_or(0_u64);
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "{}", number + 1)?;
    Ok(number)
}

#[cfg(test)]
mod tests;
