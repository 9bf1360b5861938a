//! `tessera demo`: a walk through what Tessera does, on a running cluster.
//!
//! It runs this very command, verb by verb, so that all that it shows can be typed.

mod scenes;
mod stage;

use clap::Args;

use self::stage::Stage;
use super::failure::Failure;
use super::session::Session;

/// The exit code of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

/// Submits a few jobs and shows what becomes of them. Needs a cluster with a GPU that can be
/// cut into slices; `./x demo` starts one with simulated GPUs.
#[derive(Args)]
pub struct Demo {}

impl Demo {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let folder = std::env::temp_dir().join(format!("tessera-tour-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let stage = Stage::new(session, &folder)?;
        let played = tokio::select! {
            played = scenes::play(&stage) => played.map(|()| 0),
            _ = tokio::signal::ctrl_c() => Ok(INTERRUPTED),
        };
        // What is left behind in a temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&folder);
        played
    }
}
