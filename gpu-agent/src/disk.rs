//! Small files that must survive a crash: they are written under another name, synced, and moved
//! into place. Those that are written often have two copies ([`twin`]).

pub mod twin;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_model::ControllerId;

/// A data folder that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another agent works in it.
    #[error("another agent works in {folder}: stop it first")]
    Taken {
        /// Path of the folder that another agent uses.
        folder: String,
    },
    /// A file holds something that this version didn't write: a person must examine it.
    #[error("{path} can't be understood")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        #[source]
        cause: serde_json::Error,
    },
    /// The system refused.
    #[error("can't use {path}")]
    Refused {
        /// Which file or folder.
        path: String,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
}

impl DiskError {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |cause| Self::Refused { path, cause }
    }
}

/// The agent's data folder, held by this process alone.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if there is none, and locks it for this process.
    ///
    /// # Errors
    ///
    /// [`DiskError::Taken`] if another agent has it, [`DiskError::Refused`].
    pub fn take(path: &Path) -> Result<Self, DiskError> {
        // Jobs pass through the first ones to their own files, and see nothing else.
        let inner = ["", "attempts", "kernel", "mps"].map(|name| (name, 0o711));
        let closed = ["outputs", "shepherds", "gpus", "kernel/attempts"].map(|name| (name, 0o700));
        for (name, mode) in inner.into_iter().chain(closed) {
            let folder = path.join(name);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(&folder)
                .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)))
                .map_err(DiskError::at(&folder))?;
        }
        let path = path.canonicalize().map_err(DiskError::at(path))?;
        let file = path.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&file)
            .map_err(DiskError::at(&file))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(DiskError::Taken { folder: path.display().to_string() })
            }
            Err(fs::TryLockError::Error(cause)) => Err(DiskError::at(&file)(cause)),
        }
    }

    /// Returns its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a node must never forget (rules F7, F15).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    /// The generation that it holds; 0 before its first welcome.
    pub generation: u64,
    /// The highest leader epoch that it ever obeyed.
    pub highest_epoch: u64,
    /// The controller that it belongs to, once it has been welcomed.
    pub controller: Option<ControllerId>,
    /// The controller's receipt for both numbers; the node can't read it, and returns it.
    #[serde(default)]
    pub receipt: Vec<u8>,
}

impl NodeState {
    /// Reads the state; that of a new node if there is none.
    ///
    /// # Errors
    ///
    /// [`DiskError::Damaged`]: guessing could start an attempt twice.
    pub fn load(data: &Path) -> Result<Self, DiskError> {
        load(&data.join("state")).map(Option::unwrap_or_default)
    }

    /// Puts the state on disk; it is there when this returns.
    ///
    /// # Errors
    ///
    /// [`DiskError::Refused`]: what should have been remembered must not be acted on.
    pub fn save(&self, data: &Path) -> Result<(), DiskError> {
        save(&data.join("state"), self)
    }
}

/// Reads a file that [`save`] wrote; `None` if there is none.
///
/// # Errors
///
/// [`DiskError::Damaged`], [`DiskError::Refused`].
pub fn load<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, DiskError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(DiskError::at(path)(cause)),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|cause| DiskError::Damaged { path: path.display().to_string(), cause })
}

/// Replaces a file; after a crash either the old or the new one is there, whole.
///
/// # Errors
///
/// [`DiskError::Refused`]; the old file is untouched.
pub fn save<T: Serialize>(path: &Path, value: &T) -> Result<(), DiskError> {
    let temporary = path.with_extension("new");
    let write = || {
        let text = serde_json::to_vec(value).map_err(io::Error::other)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(DiskError::at(path))
}

/// The space that a file as short as ours needs.
const SHORTEST_FILE: u64 = 4 << 10;

/// Returns whether the disk of a folder takes no more files.
pub fn is_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder)
        .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < SHORTEST_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_kept_out_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataFolder::take(folder.path()).unwrap();

        let refused = DataFolder::take(folder.path()).unwrap_err();
        drop(first);

        assert!(matches!(refused, DiskError::Taken { .. }), "{refused}");
        assert!(DataFolder::take(folder.path()).is_ok());
    }

    #[test]
    fn a_state_reads_back_and_a_damaged_one_is_no_new_node() {
        let folder = tempfile::tempdir().unwrap();
        let state =
            NodeState { generation: 3, highest_epoch: 9, controller: None, receipt: vec![1, 2] };
        assert_eq!(NodeState::load(folder.path()).unwrap(), NodeState::default());

        state.save(folder.path()).unwrap();
        assert_eq!(NodeState::load(folder.path()).unwrap(), state);

        fs::write(folder.path().join("state"), "{\"generation\":").unwrap();
        assert!(matches!(NodeState::load(folder.path()), Err(DiskError::Damaged { .. })));
    }
}
