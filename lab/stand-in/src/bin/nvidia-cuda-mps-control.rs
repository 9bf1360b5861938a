//! The stand-in for NVIDIA's MPS control program: see [`tessera_stand_in::mps`].

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    tessera_stand_in::mps::run(&arguments)
}
