//! Where the stand-in's library is, for tests and test drivers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, io};

/// The libraries of NVIDIA that have a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandInLibrary {
    /// NVIDIA's management library, `libnvidia-ml.so.1`.
    Nvml,
    /// The CUDA driver.
    Cuda,
}

impl StandInLibrary {
    /// Returns the names of its package and of the package's target.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Nvml => ("tessera-stand-in-nvml", "nvidia_ml_stand_in"),
            Self::Cuda => ("tessera-stand-in-cuda", "cuda_stand_in"),
        }
    }

    /// Returns the name under which `./x build` installs the library: the driver's own.
    const fn installed_name(self) -> &'static str {
        match self {
            Self::Nvml => "libnvidia-ml.so.1",
            Self::Cuda => "libcuda.so.1",
        }
    }
}

/// Builds NVML's stand-in: see [`build_part`].
///
/// # Errors
///
/// [`LibraryError`] if it can't be built.
pub fn build() -> Result<PathBuf, LibraryError> {
    build_part(StandInLibrary::Nvml)
}

/// Builds a part of the stand-in with Cargo, once a process, and returns the library's path.
///
/// If it is built already, `TESSERA_STAND_IN` names its folder, and that library is used. Cargo
/// would build it again, since a single package requests fewer features than the workspace.
///
/// A cdylib can't be a dependency of a test, and Cargo's lock is free while tests run. The library
/// is at its name in the target folder then. Load a copy where several are needed in one process,
/// since the loader knows libraries by file and each holds one node.
///
/// # Errors
///
/// [`LibraryError`] if it can't be built.
pub fn build_part(part: StandInLibrary) -> Result<PathBuf, LibraryError> {
    static BUILT: Mutex<BTreeMap<StandInLibrary, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(&part) {
        return Ok(path.clone());
    }
    let path = match env::var_os("TESSERA_STAND_IN") {
        Some(folder) => Path::new(&folder).join(part.installed_name()),
        None => run_cargo(part)?,
    };
    built.insert(part, path.clone());
    Ok(path)
}

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Cargo can't be run.
    #[error("can't run cargo")]
    NoCargo(#[from] io::Error),
    /// The build failed; Cargo has printed why on stderr.
    #[error("the stand-in doesn't build")]
    Failed,
}

fn run_cargo(part: StandInLibrary) -> Result<PathBuf, LibraryError> {
    let (package, target) = part.names();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = Command::new(cargo)
        .args(["build", "--release", "--package", package, "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()?;
    String::from_utf8_lossy(&build.stdout)
        .lines()
        .filter(|_| build.status.success())
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|message| message["target"]["name"] == target)
        .and_then(|artifact| artifact["filenames"][0].as_str().map(PathBuf::from))
        .ok_or(LibraryError::Failed)
}
