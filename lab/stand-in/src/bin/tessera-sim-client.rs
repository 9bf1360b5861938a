//! Holds a simulated slice as a job would, until its time has passed or it is killed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use tessera_stand_in::client::{DeviceClient, DeviceClientError};
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::device::ClaimKind;
use tessera_stand_in::mps::client::{MpsClient, MpsError};
use tessera_stand_in::node::SimulatedNode;

/// How often a client of an MPS server runs a kernel: it learns of a fault at its next call.
const KERNEL_EVERY: Duration = Duration::from_millis(20);

/// Holds the slice that CUDA_VISIBLE_DEVICES names on the node of TESSERA_SIM_NODE.
#[derive(Parser)]
#[command(name = "tessera-sim-client", version)]
struct ClientArguments {
    /// UUID of the slice (MIG-…) or GPU (GPU-…).
    #[arg(long, env = "CUDA_VISIBLE_DEVICES")]
    slice: String,
    /// Memory to allocate, in bytes.
    #[arg(long, default_value_t = 0)]
    memory_bytes: u64,
    /// How busy to keep the slice, in percent.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    load_percent: u8,
    /// The kind of process that holds it.
    #[arg(long, value_enum, default_value_t = ClientKind::Compute)]
    kind: ClientKind,
    /// How long to hold it, in seconds; by default until killed.
    #[arg(long)]
    seconds: Option<f64>,
    /// Be a client of the MPS server of CUDA_MPS_PIPE_DIRECTORY, and run kernels.
    #[arg(long)]
    mps: bool,
    /// With --mps: run one kernel and end.
    #[arg(long, requires = "mps")]
    canary: bool,
    /// With --mps: end in order once this file exists.
    #[arg(long, value_name = "FILE", requires = "mps")]
    until: Option<PathBuf>,
    /// With --mps: touch memory that isn't there once this file exists.
    #[arg(long, value_name = "FILE", requires = "mps")]
    fault_when: Option<PathBuf>,
    /// With --mps: allocate this much more once the file of --grow-when exists.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    grow_bytes: u64,
    /// With --mps: when to allocate more.
    #[arg(long, value_name = "FILE", requires = "mps")]
    grow_when: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ClientKind {
    /// A CUDA program.
    Compute,
    /// A client of an MPS server.
    Mps,
    /// A program that only watches: it is in no process list, but prevents destruction.
    Monitor,
}

impl From<ClientKind> for ClaimKind {
    fn from(kind: ClientKind) -> Self {
        match kind {
            ClientKind::Compute => Self::Compute,
            ClientKind::Mps => Self::MpsClient,
            ClientKind::Monitor => Self::Monitor,
        }
    }
}

fn main() -> ExitCode {
    let arguments = ClientArguments::parse();
    let held = if arguments.mps {
        share(&arguments).map_err(|error| error.to_string())
    } else {
        hold(&arguments).map_err(|error| error.to_string())
    };
    match held {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera-sim-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold(arguments: &ClientArguments) -> Result<(), DeviceClientError> {
    let config =
        StandInConfig::from_env().map_err(tessera_stand_in::node::SimulatedNodeError::from)?;
    let client = DeviceClient::open_as(
        &SimulatedNode::open(&config)?,
        &arguments.slice,
        arguments.kind.into(),
    )?;
    client.allocate(arguments.memory_bytes)?;
    client.set_load(arguments.load_percent)?;
    let slice = client.slice();
    println!("{}", slice.name);
    println!("memory_bytes {}", client.memory()?.total_bytes);
    println!("sm_count {}", slice.sms);
    match arguments.seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(time)) => thread::sleep(time),
        Some(Err(_)) | None => loop {
            thread::park();
        },
    }
    Ok(())
}

/// Why a client of an MPS server can't go on.
#[derive(Debug, thiserror::Error)]
enum ShareError {
    #[error(transparent)]
    Mps(#[from] MpsError),
    #[error(transparent)]
    Slice(#[from] DeviceClientError),
}

fn share(arguments: &ClientArguments) -> Result<(), ShareError> {
    let mut mps = MpsClient::connect()?;
    let config =
        StandInConfig::from_env().map_err(tessera_stand_in::node::SimulatedNodeError::from);
    let node =
        config.and_then(|config| SimulatedNode::open(&config)).map_err(DeviceClientError::from)?;
    let slice = DeviceClient::open_as(&node, &arguments.slice, ClaimKind::MpsClient)?;
    mps.allocate(arguments.memory_bytes)?;
    slice.allocate(arguments.memory_bytes)?;
    slice.set_load(arguments.load_percent)?;
    mps.kernel()?;
    println!("shares {} through server {}", slice.slice().name, mps.server());
    let is_there = |file: &Option<PathBuf>| file.as_ref().is_some_and(|file| file.exists());
    let ends = arguments
        .seconds
        .and_then(|secs| Duration::try_from_secs_f64(secs).ok())
        .map(|time| Instant::now() + time);
    let mut grown = false;
    while !arguments.canary
        && !is_there(&arguments.until)
        && ends.is_none_or(|ends| Instant::now() < ends)
    {
        if is_there(&arguments.fault_when) {
            mps.fault()?;
        }
        if !grown && is_there(&arguments.grow_when) {
            grown = true;
            mps.allocate(arguments.grow_bytes)?;
            slice.allocate(arguments.grow_bytes)?;
        }
        mps.kernel()?;
        thread::sleep(KERNEL_EVERY);
    }
    mps.close();
    Ok(())
}
