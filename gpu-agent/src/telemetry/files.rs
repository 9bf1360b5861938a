//! Accounts on disk. They outlive the agent's process, not every failure of the machine: they
//! are moved into place but not synced, since a sync ten times a second would cost more than
//! what a failing machine loses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tessera_model::GpuId;

use crate::core::telemetry::meter::Kept;

/// Their folder in the data folder.
const FOLDER: &str = "telemetry";

/// Reads what an earlier agent kept of a GPU; nothing if it can't be understood: energy that
/// nobody can bill any more must not keep a node from working.
pub fn load(data: &Path, gpu: &GpuId) -> Kept {
    let path = path(data, gpu);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Kept::default(),
        Err(error) => {
            tracing::warn!(%gpu, %error, "the energy account can't be read, a new one begins");
            return Kept::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%gpu, %error, "the energy account is damaged, a new one begins");
        Kept::default()
    })
}

/// Puts a GPU's accounts on disk, away from the thread that serves everybody.
pub async fn save(data: &Path, gpu: &GpuId, text: Vec<u8>) {
    let path = path(data, gpu);
    let written = tokio::task::spawn_blocking(move || write(&path, &text)).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(%gpu, %error, "the energy account can't be written");
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let aside = path.with_extension("new");
    fs::write(&aside, text)?;
    fs::rename(&aside, path)
}

fn path(data: &Path, gpu: &GpuId) -> PathBuf {
    // A GPU's UUID holds letters, digits, dashes and slashes only.
    data.join(FOLDER).join(format!("{}.json", gpu.as_str().replace('/', "_")))
}
