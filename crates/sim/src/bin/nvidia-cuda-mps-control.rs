//! The stand-in for NVIDIA's MPS control program: see [`tessera_sim::mps`].

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    tessera_sim::mps::run(&arguments)
}
