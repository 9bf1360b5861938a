//! Writes down what a `nvidia-cuda-mps-control` answers to a fixed list of commands, on a machine
//! without GPUs: the data with which the stand-in is compared
//! (`lab/stand-in/tests/mps_transcript`).

use std::path::Path;
use std::process::ExitCode;

use tessera_stand_in::mps::transcript::TranscriptRig;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [program, folder] = &arguments[..] else {
        eprintln!("usage: mps-transcript PROGRAM EMPTY-FOLDER > TRANSCRIPT");
        return ExitCode::from(2);
    };
    let rig =
        TranscriptRig { program: Path::new(program), folder: Path::new(folder), variables: &[] };
    match rig.record() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}
