//! Finds the built programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

/// The programs that a cluster is made of.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
    /// The stand-in for the GPU driver's management library.
    pub nvml: PathBuf,
}

const NAMES: [&str; 8] = [
    "tessera",
    "tessera-controller",
    "tessera-agent",
    "tessera-shepherd",
    "tessera-launch",
    "nvidia-cuda-mps-control",
    "tessera-sim-client",
    "tessera-sim-grow",
];

impl Programs {
    /// Returns the path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Finds the programs next to the one that runs now, and builds them if they aren't there.
///
/// # Panics
///
/// If they can't be built.
pub fn programs() -> &'static Programs {
    static FOUND: OnceLock<Programs> = OnceLock::new();
    FOUND.get_or_init(|| {
        let folder = build_folder();
        let found = find(&folder);
        found
            .or_else(|| {
                build();
                find(&folder)
            })
            .unwrap_or_else(|| panic!("not all of {NAMES:?} and the stand-ins are in {folder:?}"))
    })
}

fn build_folder() -> PathBuf {
    if let Some(folder) = env::var_os("TESSERA_PROGRAMS") {
        return folder.into();
    }
    // target/release/deps/test-program, or target/release/driver.
    let me = env::current_exe().expect("the kernel knows what it runs");
    let folder = me.parent().expect("a program is in a folder");
    match folder.file_name() {
        Some(name) if name == "deps" => folder.parent().unwrap_or(folder).to_owned(),
        Some(_) | None => folder.to_owned(),
    }
}

fn find(folder: &Path) -> Option<Programs> {
    let complete = NAMES.iter().all(|name| folder.join(name).is_file());
    let installed = folder.parent()?.join("stand-in/libnvidia-ml.so.1");
    let built = folder.join("libnvidia_ml_stand_in.so");
    let nvml = [built, installed].into_iter().find(|path| path.is_file())?;
    let nvml = fs::canonicalize(nvml).ok()?;
    complete.then(|| Programs { folder: folder.to_owned(), nvml })
}

fn build() {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--workspace", "--bins", "--lib"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .expect("cargo runs");
    assert!(built.success(), "the programs don't build");
}
