//! Where the stand-in's library is, for tests and drivers of tests.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, io};

/// Name of the library's target.
const TARGET: &str = "nvidia_ml_stand_in";

/// Builds the stand-in with Cargo, once a process, and returns the library's path.
///
/// A cdylib can't be a dependency of a test, and Cargo's lock is free while tests run. The
/// library is at its name in the target folder then: load a copy where several are needed in
/// one process, since the loader knows libraries by file and each holds one node.
///
/// # Errors
///
/// [`LibraryError`] if it can't be built.
pub fn build() -> Result<PathBuf, LibraryError> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.as_ref() {
        return Ok(path.clone());
    }
    Ok(built.insert(run_cargo()?).clone())
}

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Cargo can't be run.
    #[error("can't run cargo")]
    NoCargo(#[from] io::Error),
    /// The build failed; Cargo has said why on stderr.
    #[error("the stand-in doesn't build")]
    Failed,
}

fn run_cargo() -> Result<PathBuf, LibraryError> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = Command::new(cargo)
        .args(["build", "--release", "--package", "tessera-sim-nvml", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()?;
    String::from_utf8_lossy(&build.stdout)
        .lines()
        .filter(|_| build.status.success())
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|message| message["target"]["name"] == TARGET)
        .and_then(|artifact| artifact["filenames"][0].as_str().map(PathBuf::from))
        .ok_or(LibraryError::Failed)
}
