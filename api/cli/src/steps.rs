//! Steps: the processes that `srun` starts inside an allocation, on the node where it is called.
//!
//! Each process gets its rank, and by default sees all GPUs of its node, as in Slurm. A step that names GPUs
//! has them to itself while it runs: it locks files in the job's folder for temporary files.

mod gpus;
mod options;
mod output;
mod tasks;
mod unused;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use self::gpus::StepGpus;
pub use self::options::{StepOptions, StepPlan};
use self::tasks::StepTasks;
pub use self::unused::UnusedStepOptions;
use crate::failure::CommandFailure;
use tessera_model::number::clamped;

/// Where a step runs: as the job's environment states it.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// The job's number.
    pub job: String,
    /// The node of this process.
    pub node: String,
    /// How many nodes the job has.
    pub nodes: u32,
    /// The devices of the job on this node, as CUDA names them.
    pub devices: Vec<String>,
    /// A folder of the job's own.
    pub folder: PathBuf,
    /// The environment.
    pub environment: BTreeMap<String, String>,
}

impl Allocation {
    /// Reads the environment; `None` outside of a job. Only Tessera's own variables are needed, since some
    /// tools remove those of Slurm.
    pub fn find(environment: BTreeMap<String, String>) -> Option<Self> {
        let get = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
        let job = get("TESSERA_JOB_ID").or_else(|| get("SLURM_JOB_ID"))?;
        let node = get("TESSERA_NODE")?;
        let nodes = get("TESSERA_JOB_NODELIST").map_or(1, |list| list.split(',').count());
        let devices = get("TESSERA_DEVICES").or_else(|| get("CUDA_VISIBLE_DEVICES"));
        let devices = devices.iter().flat_map(|list| list.split(',')).map(str::to_owned);
        let folder = get("SLURM_TMPDIR").or_else(|| get("TMPDIR"));
        let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
        Some(Self {
            nodes: clamped(nodes),
            devices: devices.collect(),
            folder: folder.join(format!("tessera-steps-{job}")),
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
            "this is not inside of a job: submit a script that calls it, or use tessera submit",
        )
    })?;
    run(options, &allocation).await
}

/// Runs a step to its end, and returns its exit code: the largest of its processes, with 128 and the signal's
/// number for one that a signal ended.
///
/// # Errors
///
/// [`CommandFailure`] states what the step requests that the job does not have.
pub async fn run(options: StepOptions, allocation: &Allocation) -> Result<u8, CommandFailure> {
    let plan = options.plan(allocation).map_err(CommandFailure::refused)?;
    std::fs::create_dir_all(&allocation.folder)?;
    let number = next_step(&allocation.folder)?;
    let gpus = StepGpus::take(&plan, allocation).await?;
    StepTasks { plan: &plan, allocation, number, devices: gpus.devices() }.run().await
}

/// Puts the single process of a step in the place of this one, so that it has this one's terminal. It takes no GPU
/// from other steps, since a shell that is left open would keep it. Returns only why that failed.
pub fn become_step(options: StepOptions, allocation: &Allocation) -> CommandFailure {
    match try_become_step(options, allocation) {
        Ok(never) => match never {},
        Err(failed) => failed,
    }
}

fn try_become_step(
    options: StepOptions,
    allocation: &Allocation,
) -> Result<Infallible, CommandFailure> {
    if !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(CommandFailure::refused(
            "standard input is no terminal: call srun --pty in a terminal, or leave --pty out",
        ));
    }
    let plan = options.plan(allocation).map_err(CommandFailure::refused)?;
    std::fs::create_dir_all(&allocation.folder)?;
    let number = next_step(&allocation.folder)?;
    StepTasks { plan: &plan, allocation, number, devices: None }.become_first()
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
