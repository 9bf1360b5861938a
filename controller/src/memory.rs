//! The data folder's record of the store. By it a controller finds out, at its start and at each new
//! connection, that the database was rolled back meanwhile (rule F14).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;

use tessera_control::rollback::Remembered;

/// The record of the store; shared by everything that opens connections.
#[derive(Debug)]
pub struct StoreMemory {
    path: PathBuf,
    known: Mutex<Option<Remembered>>,
}

impl StoreMemory {
    /// Reads the data folder's record; there is none before the first election.
    ///
    /// # Errors
    ///
    /// If the file exists and is not valid: going on without it could run jobs twice.
    pub fn open(data: &Path) -> anyhow::Result<Self> {
        let path = data.join("store-memory.json");
        let known = match fs::read(&path) {
            Ok(text) => Some(serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} is not valid; delete it only if the database was not rolled back to an \
                     earlier state since this controller last ran",
                    path.display()
                )
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("can't read {}", path.display()));
            }
        };
        Ok(Self { path, known: Mutex::new(known) })
    }

    /// Returns the record.
    pub fn known(&self) -> Option<Remembered> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the store's state in memory and on disk. Call it only after a later commit succeeded.
    ///
    /// If writing fails, the older record stays on disk: it finds fewer rollbacks, and no wrong ones.
    pub fn remember(&self, fresh: Remembered) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = write(&self.path, &fresh) {
            tracing::warn!(%error, path = %self.path.display(), "the record of the store was not written");
        }
        *known = Some(fresh);
    }
}

fn write(path: &Path, fresh: &Remembered) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    serde_json::to_writer(&mut file, fresh)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_control::rollback::Lineage;

    #[test]
    fn the_record_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let memory = StoreMemory::open(folder.path()).unwrap();
        assert_eq!(memory.known(), None);

        let fresh =
            Remembered { lineage: Lineage { system: -7, timeline: 3 }, log_end: 9, epoch: 5 };
        memory.remember(fresh);

        assert_eq!(StoreMemory::open(folder.path()).unwrap().known(), Some(fresh));
    }

    #[test]
    fn a_damaged_record_is_never_read_as_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("store-memory.json"), "{\"epoch\":").unwrap();

        let error = StoreMemory::open(folder.path()).unwrap_err();

        assert!(format!("{error:#}").contains("delete it only if"), "{error:#}");
    }
}
