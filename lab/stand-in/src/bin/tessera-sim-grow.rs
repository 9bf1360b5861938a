//! A program whose device memory grows until there is no more, or until it has enough.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use tessera_stand_in::cuda::program::{CudaError, CudaProgram, NAME};
use tessera_stand_in::cuda::recording::parse_size;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// Allocates device memory step by step, and holds it.
///
/// When memory is refused it complains as CUDA programs do and exits with status 1.
#[derive(Parser)]
#[command(name = "tessera-sim-grow", version)]
struct GrowArguments {
    /// What to allocate at once.
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    step: u64,
    /// How much is enough; until memory is refused if left out.
    #[arg(long, value_parser = parse_size)]
    limit: Option<u64>,
    /// Time between steps, in milliseconds.
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// How long to hold what was enough, in seconds.
    #[arg(long, default_value_t = 0.0)]
    hold_seconds: f64,
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

fn grow(arguments: &GrowArguments) -> Result<(), CudaError> {
    let cuda = CudaProgram::open(NAME)?;
    cuda.init()?;
    cuda.use_device(0)?;
    let mut held = 0;
    while arguments.limit.is_none_or(|limit| held < limit) {
        let left = arguments.limit.map_or(u64::MAX, |limit| limit - held);
        let bytes = arguments.step.min(left);
        cuda.allocate(bytes).inspect_err(|error| {
            if error.code() == Some(OUT_OF_MEMORY) {
                let (free, total) = cuda.memory().unwrap_or((0, 0));
                eprintln!(
                    "CUDA error: out of memory. Tried to allocate {} MiB. GPU 0 has a total \
                     capacity of {} MiB of which {} MiB is free; this process holds {} MiB.",
                    bytes >> 20,
                    total >> 20,
                    free >> 20,
                    held >> 20
                );
            }
        })?;
        held += bytes;
        println!("{}", serde_json::json!({ "held_bytes": held }));
        thread::sleep(Duration::from_millis(arguments.every_ms));
    }
    thread::sleep(Duration::try_from_secs_f64(arguments.hold_seconds).unwrap_or_default());
    Ok(())
}
