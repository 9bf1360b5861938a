//! Holds a simulated slice as a job would, until its time is up or it is killed.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use tessera_sim::client::{Client, ClientError};
use tessera_sim::config::Config;
use tessera_sim::device::ClaimKind;
use tessera_sim::node::Node;

/// Holds the slice that CUDA_VISIBLE_DEVICES names on the node of TESSERA_SIM_NODE.
#[derive(Parser)]
#[command(name = "tessera-sim-client", version)]
struct Arguments {
    /// UUID of the slice (MIG-…) or GPU (GPU-…).
    #[arg(long, env = "CUDA_VISIBLE_DEVICES")]
    slice: String,
    /// Memory to allocate, in bytes.
    #[arg(long, default_value_t = 0)]
    memory_bytes: u64,
    /// How busy to keep the slice, in percent.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    load_percent: u8,
    /// As what to hold it.
    #[arg(long, value_enum, default_value_t = Kind::Compute)]
    kind: Kind,
    /// How long to hold it, in seconds; until killed if left out.
    #[arg(long)]
    seconds: Option<f64>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// A CUDA program.
    Compute,
    /// A client of an MPS server.
    Mps,
    /// A program that only watches: it is in no process list, but in the way of destruction.
    Monitor,
}

impl From<Kind> for ClaimKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Compute => Self::Compute,
            Kind::Mps => Self::MpsClient,
            Kind::Monitor => Self::Monitor,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match hold(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera-sim-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold(arguments: &Arguments) -> Result<(), ClientError> {
    let config = Config::from_env().map_err(tessera_sim::node::NodeError::from)?;
    let client = Client::open_as(&Node::open(&config)?, &arguments.slice, arguments.kind.into())?;
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
