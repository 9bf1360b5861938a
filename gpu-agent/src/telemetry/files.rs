//! Accounts on disk. They outlive the agent's process at any moment, and a failure of the machine
//! at the ends of attempts. What is reported to the controller of an attempt is synced first, all
//! ends between two samples of a GPU together. In between they are moved into place each second and
//! synced every half minute: a sync each second would cost more than what a failing machine loses.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tessera_model::GpuId;

use tessera_agent_core::telemetry::meter::MeterState;

/// Their folder in the data folder.
const FOLDER: &str = "telemetry";

/// Reads what an earlier agent kept of a GPU; nothing if it can't be understood: lost energy
/// figures must not keep a node from working.
pub fn load(data: &Path, gpu: &GpuId) -> MeterState {
    let path = path(data, gpu);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return MeterState::default(),
        Err(error) => {
            tracing::warn!(%gpu, %error, "the energy account can't be read, a new one begins");
            return MeterState::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%gpu, %error, "the energy account is damaged, a new one begins");
        MeterState::default()
    })
}

/// What accounts on disk have to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The agent's process.
    Restart,
    /// The machine, too.
    PowerLoss,
}

/// Writes a GPU's accounts to disk, outside of the agent's main thread.
pub async fn save(data: &Path, gpu: &GpuId, text: Vec<u8>, until: Durability) {
    let path = path(data, gpu);
    let written = tokio::task::spawn_blocking(move || write(&path, &text, until)).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(%gpu, %error, "the energy account can't be written");
    }
}

fn write(path: &Path, text: &[u8], until: Durability) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(text)?;
    if until == Durability::PowerLoss {
        file.sync_data()?;
    }
    fs::rename(&temporary, path)?;
    if until == Durability::PowerLoss {
        // The name is on disk only with its folder.
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn path(data: &Path, gpu: &GpuId) -> PathBuf {
    // A GPU's UUID holds letters, digits, dashes and slashes only.
    data.join(FOLDER).join(format!("{}.json", gpu.as_str().replace('/', "_")))
}
