//! `tessera demo`: a walk through what Tessera does, on a running cluster.
//!
//! It runs this command itself, verb by verb, so that users can repeat every step.

mod scenes;
mod stage;

use clap::Args;

use self::stage::DemoStage;
use super::failure::CommandFailure;
use super::session::CommandSession;

/// The exit code of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

/// Submits a few jobs, and shows their placements and results. This needs a cluster with a GPU that
/// supports MIG; `./x demo` starts one with simulated GPUs.
#[derive(Args)]
pub struct Demo {}

impl Demo {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let folder = std::env::temp_dir().join(format!("tessera-tour-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let stage = DemoStage::new(session, &folder)?;
        let played = tokio::select! {
            played = scenes::play(&stage) => played.map(|()| 0),
            _ = tokio::signal::ctrl_c() => Ok(INTERRUPTED),
        };
        // A leftover temporary folder is harmless.
        let _ = std::fs::remove_dir_all(&folder);
        played
    }
}
