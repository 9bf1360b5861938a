//! A program whose device memory grows until there is no more, or until it has enough.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use tessera_stand_in::cuda::image::LaunchShape;
use tessera_stand_in::cuda::program::{CudaError, CudaHandle, CudaProgram, NAME};
use tessera_stand_in::cuda::recording::parse_size;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// Allocates device memory step by step, and holds it.
///
/// When memory is refused, it prints an error as CUDA programs do and exits with status 1. It can
/// pause at a size, have peaks, free memory, try again after a refusal as caching allocators do,
/// and save its state and continue from there.
#[derive(Parser)]
#[command(name = "tessera-sim-grow", version)]
struct GrowArguments {
    /// How much to allocate per step.
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    step: u64,
    /// How much to allocate in total; by default until memory is refused.
    #[arg(long, value_parser = parse_size)]
    limit: Option<u64>,
    /// Time between steps, in milliseconds.
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// How long to hold the total, in seconds.
    #[arg(long, default_value_t = 0.0)]
    hold_seconds: f64,
    /// The size at which to pause for --rest-steps steps.
    #[arg(long, value_parser = parse_size)]
    rest_at: Option<u64>,
    /// How many steps to pause there.
    #[arg(long, default_value_t = 10)]
    rest_steps: u64,
    /// How much to allocate in addition for one step in ten, as evaluations do.
    #[arg(long, value_parser = parse_size)]
    spike: Option<u64>,
    /// How much to free once, as soon as --free-at is reached.
    #[arg(long, value_parser = parse_size, requires = "free_at")]
    free: Option<u64>,
    /// When to free it.
    #[arg(long, value_parser = parse_size)]
    free_at: Option<u64>,
    /// Launch a kernel of these blocks, of 256 threads each, as soon as --launch-at is reached.
    #[arg(long, requires = "launch_at")]
    launch_blocks: Option<u32>,
    /// When to launch it.
    #[arg(long, value_parser = parse_size)]
    launch_at: Option<u64>,
    /// How often to free the last step and try again after a refusal.
    #[arg(long, default_value_t = 0)]
    retries: u32,
    /// File with the size when the program was stopped: it continues from there.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Write --state and end in order once this file exists.
    #[arg(long, value_name = "FILE", requires = "state")]
    stop_when: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = GrowArguments::parse();
    match grow(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera-sim-grow: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a program holds: the steps, so that they can be freed.
struct Holdings<'c> {
    cuda: &'c CudaProgram,
    steps: Vec<(u64, u64)>,
    /// How often a refusal is still followed by another try.
    retries: u32,
}

impl Holdings<'_> {
    fn held(&self) -> u64 {
        self.steps.iter().map(|(_, bytes)| bytes).sum()
    }

    fn allocate(&mut self, bytes: u64) -> Result<(), CudaError> {
        loop {
            match self.cuda.allocate(bytes) {
                Ok(address) => {
                    self.steps.push((address, bytes));
                    return Ok(());
                }
                Err(error) if error.code() == Some(OUT_OF_MEMORY) && self.retries > 0 => {
                    self.retries -= 1;
                    self.free(bytes)?;
                }
                Err(error) => {
                    self.complain(bytes, &error);
                    return Err(error);
                }
            }
        }
    }

    /// Frees the newest steps, of at least this many bytes.
    fn free(&mut self, bytes: u64) -> Result<(), CudaError> {
        let mut freed = 0;
        while freed < bytes
            && let Some((address, bytes)) = self.steps.pop()
        {
            self.cuda.free(address)?;
            freed += bytes;
        }
        Ok(())
    }

    fn complain(&self, bytes: u64, error: &CudaError) {
        if error.code() != Some(OUT_OF_MEMORY) {
            return;
        }
        let (free, total) = self.cuda.memory().unwrap_or((0, 0));
        eprintln!(
            "CUDA error: out of memory. Tried to allocate {} MiB. GPU 0 has a total capacity of {} \
             MiB of which {} MiB is free; this process holds {} MiB.",
            bytes >> 20,
            total >> 20,
            free >> 20,
            self.held() >> 20
        );
    }
}

fn grow(arguments: &GrowArguments) -> Result<(), CudaError> {
    let cuda = CudaProgram::open(NAME)?;
    cuda.init()?;
    cuda.use_device(0)?;
    let mut holdings = Holdings { cuda: &cuda, steps: Vec::new(), retries: arguments.retries };
    if let Some(before) = saved(arguments) {
        holdings.allocate(before)?;
        println!("{}", serde_json::json!({ "resumed_bytes": before }));
    }
    let (mut rested, mut freed, mut launched) = (0, false, false);
    for number in 1_u64.. {
        let held = holdings.held();
        if arguments.limit.is_some_and(|limit| held >= limit) {
            break;
        }
        let is_resting = arguments.rest_at.is_some_and(|at| held >= at);
        if is_resting && rested < arguments.rest_steps {
            rested += 1;
        } else {
            let left = arguments.limit.map_or(u64::MAX, |limit| limit - held);
            holdings.allocate(arguments.step.min(left))?;
        }
        if arguments.free_at.is_some_and(|at| held >= at) && !freed {
            freed = true;
            holdings.free(arguments.free.unwrap_or(0))?;
        }
        println!("{}", serde_json::json!({ "held_bytes": holdings.held() }));
        let is_due = arguments.launch_at.is_some_and(|at| holdings.held() >= at);
        if let Some(blocks) = arguments.launch_blocks.filter(|_| is_due && !launched) {
            launched = true;
            launch(&cuda, blocks)?;
        }
        step(arguments, &mut holdings, number)?;
        if is_stopped(arguments, holdings.held()) {
            return Ok(());
        }
    }
    thread::sleep(Duration::try_from_secs_f64(arguments.hold_seconds).unwrap_or_default());
    Ok(())
}

fn launch(cuda: &CudaProgram, blocks: u32) -> Result<(), CudaError> {
    let module = cuda.load("FKCU1\nkernel work dur=1ms\n")?;
    let shape = LaunchShape { grid: [blocks, 1, 1], block: [256, 1, 1] };
    cuda.launch(cuda.kernel(module, "work")?, shape, CudaHandle::NULL, &[])?;
    cuda.synchronize()
}

/// Lets the time of a step pass, with a peak if it is the step's turn.
fn step(
    arguments: &GrowArguments,
    holdings: &mut Holdings<'_>,
    number: u64,
) -> Result<(), CudaError> {
    let spike = arguments.spike.filter(|_| number.is_multiple_of(10));
    if let Some(bytes) = spike {
        holdings.allocate(bytes)?;
    }
    thread::sleep(Duration::from_millis(arguments.every_ms));
    match spike {
        Some(bytes) => holdings.free(bytes),
        None => Ok(()),
    }
}

/// Returns what an earlier run held when it was stopped.
fn saved(arguments: &GrowArguments) -> Option<u64> {
    fs::read_to_string(arguments.state.as_ref()?).ok()?.trim().parse().ok()
}

/// Saves what is held if the program is to end; returns whether it is.
fn is_stopped(arguments: &GrowArguments, held: u64) -> bool {
    let (Some(stop), Some(state)) = (&arguments.stop_when, &arguments.state) else { return false };
    stop.exists() && fs::write(state, held.to_string()).is_ok()
}
