//! What the data folder remembers of the store, so that a controller notices at its start, and at
//! each new connection, that the database was set back while it looked away (rule F14).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;

use crate::core::setback::Remembered;

/// The memory; shared by everyone who opens connections.
#[derive(Debug)]
pub struct StoreMemory {
    path: PathBuf,
    known: Mutex<Option<Remembered>>,
}

impl StoreMemory {
    /// Reads what the data folder remembers; nothing before the first election.
    ///
    /// # Errors
    ///
    /// If the file is there and can't be understood: to go on without it could run jobs twice.
    pub fn open(data: &Path) -> anyhow::Result<Self> {
        let path = data.join("store-memory.json");
        let known = match fs::read(&path) {
            Ok(text) => Some(serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} can't be understood; delete it only if the database was not set back \
                     to an earlier state since this controller last ran",
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

    /// Returns what is remembered.
    pub fn known(&self) -> Option<Remembered> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers, on disk too. Called only after a commit was answered that came after what is to
    /// be remembered.
    ///
    /// A disk that refuses leaves the older memory there: it recognises less, and nothing wrong.
    pub fn remember(&self, fresh: Remembered) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = write(&self.path, &fresh) {
            tracing::warn!(%error, path = %self.path.display(), "the store's state is not remembered");
        }
        *known = Some(fresh);
    }
}

fn write(path: &Path, fresh: &Remembered) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = fs::File::create(&beside)?;
    serde_json::to_writer(&mut file, fresh)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::setback::Lineage;

    #[test]
    fn what_is_remembered_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let memory = StoreMemory::open(folder.path()).unwrap();
        assert_eq!(memory.known(), None);

        let fresh =
            Remembered { lineage: Lineage { system: -7, timeline: 3 }, log_end: 9, epoch: 5 };
        memory.remember(fresh);

        assert_eq!(StoreMemory::open(folder.path()).unwrap().known(), Some(fresh));
    }

    #[test]
    fn a_damaged_memory_is_never_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("store-memory.json"), "{\"epoch\":").unwrap();

        let error = StoreMemory::open(folder.path()).unwrap_err();

        assert!(format!("{error:#}").contains("delete it only if"), "{error:#}");
    }
}
