//! A simulated node as a folder that processes share.
//!
//! The state is one file. A writer holds `device.lock`, writes the whole state next to the file and
//! renames it into place. So a process that is killed at any point leaves either the old state or
//! the new one, and readers need no lock. Operations that take time hold the lock of their GPU for
//! that time, and the file's lock only at the instant of the change. The GPU's other operations
//! wait, as on a GPU, while reads and other GPUs continue.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tessera_model::mig::catalog;
use uuid::Uuid;

use crate::config::{ConfigError, StandInConfig};
use crate::device::{ClaimPlace, DeviceRefusal, DeviceState, FORMAT};
use crate::files;

const STATE_FILE: &str = "device.json";
const STATE_LOCK: &str = "device.lock";

/// A folder that holds a node.
#[derive(Clone, Debug)]
pub struct SimulatedNode {
    folder: PathBuf,
    latency: f64,
}

/// Why a node can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedNodeError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder holds other GPUs than those that were named.
    #[error(
        "the node in {} has the GPUs {holds}, TESSERA_SIM_GPUS requests {requested}: name another \
         folder, or leave the variable out", folder.display()
    )]
    OtherGpus {
        /// The folder of the node that has them.
        folder: PathBuf,
        /// What it holds.
        holds: String,
        /// What was requested.
        requested: String,
    },
    /// The device file is not one of this version.
    #[error("{} is not a device file of format {FORMAT}: {why}; remove the folder to start over",
            path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system refused.
    #[error("can't {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
}

/// Why a change didn't happen.
#[derive(Debug, thiserror::Error)]
pub enum DeviceChangeError {
    /// The model refuses it.
    #[error(transparent)]
    Refused(#[from] DeviceRefusal),
    /// The node can't be used.
    #[error(transparent)]
    Node(#[from] SimulatedNodeError),
}

impl SimulatedNode {
    /// Opens the node of a configuration, and makes it if its folder holds none.
    ///
    /// # Errors
    ///
    /// [`SimulatedNodeError`] if the folder can't be used or holds another node than requested.
    pub fn open(config: &StandInConfig) -> Result<Self, SimulatedNodeError> {
        let node = Self { folder: config.folder.clone(), latency: config.latency };
        fs::create_dir_all(&node.folder).map_err(io_error("create", &node.folder))?;
        let state = {
            let _lock = node.lock(STATE_LOCK)?;
            if node.path(STATE_FILE).exists() {
                node.load()?
            } else {
                let gpus = config.gpus_or_default();
                let made = DeviceState::new(Uuid::new_v4(), &gpus, config.mig, running_ms());
                files::lay_out(&node.folder, gpus.len())
                    .map_err(io_error("lay out", &node.folder))?;
                node.store(&made)?;
                made
            }
        };
        let holds: Vec<_> = state.gpus.iter().map(|gpu| gpu.model.clone()).collect();
        match &config.gpus {
            Some(requested) if *requested != holds => Err(SimulatedNodeError::OtherGpus {
                folder: config.folder.clone(),
                holds: holds.join(","),
                requested: requested.join(","),
            }),
            Some(_) | None => Ok(node),
        }
    }

    /// Returns the state as it is now, without the claims of processes that are gone.
    ///
    /// # Errors
    ///
    /// [`SimulatedNodeError`] if the device file can't be read.
    pub fn read(&self) -> Result<DeviceState, SimulatedNodeError> {
        let state = self.load()?;
        if state.claims.iter().all(|claim| claim.process.is_alive()) {
            return Ok(state);
        }
        // Removing dead processes is a change: their share of the energy counts up to now, or the
        // counter would run backwards.
        self.change(|state| state.clone())
    }

    /// Changes the state atomically.
    ///
    /// # Errors
    ///
    /// [`SimulatedNodeError`] if the device file can't be read or written. Nothing is changed then.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut DeviceState) -> T,
    ) -> Result<T, SimulatedNodeError> {
        let _lock = self.lock(STATE_LOCK)?;
        let mut state = self.load()?;
        state.settle_energy(running_ms());
        state.claims.retain(|claim| claim.process.is_alive());
        let result = change(&mut state);
        self.store(&state)?;
        Ok(result)
    }

    /// Carries out an operation that keeps a GPU busy for `takes`.
    ///
    /// A refusal is immediate. Half of the time passes before the change is made
    /// and half after it, so that a process killed meanwhile may leave either state behind.
    ///
    /// # Errors
    ///
    /// [`DeviceChangeError::Refused`] as `change` has it, [`DeviceChangeError::SimulatedNode`] if the folder fails.
    pub fn operate<T>(
        &self,
        gpu: usize,
        takes: Duration,
        change: impl Fn(&mut DeviceState) -> Result<T, DeviceRefusal>,
    ) -> Result<T, DeviceChangeError> {
        let _turn = self.lock(&format!("gpu-{gpu}.lock"))?;
        change(&mut self.read()?)?;
        let half = takes.mul_f64(self.latency) / 2;
        thread::sleep(half);
        // A client may have come meanwhile, so the rules are applied again.
        let done = self.change(|state| {
            let mut changed = state.clone();
            change(&mut changed).inspect(|_| *state = changed)
        })??;
        thread::sleep(half);
        Ok(done)
    }

    /// Writes the node's fault list (see [`crate::faults`]) so that no reader sees half of it.
    ///
    /// # Errors
    ///
    /// [`SimulatedNodeError::Io`] if the folder can't be written.
    pub fn set_faults(&self, lines: &str) -> Result<(), SimulatedNodeError> {
        let _lock = self.lock(STATE_LOCK)?;
        self.replace(files::FAULT_LIST, lines.as_bytes())
    }

    /// Resets the GPUs as a restart of the machine does, with another boot id; see
    /// [`DeviceState::reboot`]. The caller has to end the clients' processes.
    ///
    /// # Errors
    ///
    /// [`SimulatedNodeError`] if the folder can't be read or written.
    pub fn reboot(&self) -> Result<(), SimulatedNodeError> {
        self.change(DeviceState::reboot)?;
        files::renew_boot(&self.folder).map_err(io_error("write into", &self.folder))
    }

    /// Returns the folder of the node.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn open_files(
        &self,
        state: &DeviceState,
        place: ClaimPlace,
    ) -> Result<Vec<File>, SimulatedNodeError> {
        files::open(&self.folder, state, place).map_err(io_error("open files in", &self.folder))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Locks a file of the folder until the guard is dropped, or the process is gone.
    pub(crate) fn lock(&self, name: &str) -> Result<File, SimulatedNodeError> {
        let path = self.path(name);
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(io_error("open", &path))?;
        loop {
            match file.lock() {
                Ok(()) => return Ok(file),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error("lock", &path)(error)),
            }
        }
    }

    /// Replaces a file of the folder in one step. The caller holds the lock under which that
    /// file is written; what a killed writer left next to it is overwritten.
    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> Result<(), SimulatedNodeError> {
        let temporary = self.path(&format!("{name}.tmp"));
        let path = self.path(name);
        fs::write(&temporary, content).map_err(io_error("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(io_error("replace", &path))
    }

    fn load(&self) -> Result<DeviceState, SimulatedNodeError> {
        let path = self.path(STATE_FILE);
        let text = fs::read(&path).map_err(io_error("read", &path))?;
        let unreadable = |why: String| SimulatedNodeError::Unreadable { path: path.clone(), why };
        let state: DeviceState =
            serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        if state.format != FORMAT {
            return Err(unreadable(format!("its format is {}", state.format)));
        }
        match state.gpus.iter().find(|gpu| !catalog::models().contains_key(&gpu.model)) {
            Some(gpu) => Err(unreadable(format!("unknown model {}", gpu.model))),
            None => Ok(state),
        }
    }

    fn store(&self, state: &DeviceState) -> Result<(), SimulatedNodeError> {
        let text = serde_json::to_vec(state).expect("a state is plain data");
        self.replace(STATE_FILE, &text)
    }
}

/// Returns how long the machine has been up, in milliseconds. Energy is counted by that, since the
/// wall clock may be moved back, and a counter of energy never runs backwards.
pub fn running_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // The kernel counts this clock from the start of the machine.
    now.tv_sec.cast_unsigned() * 1_000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// Returns the time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, reason = "584 million years of milliseconds fit")]
    let millis = since.as_millis() as u64;
    millis
}

pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> SimulatedNodeError {
    move |source| SimulatedNodeError::Io { action, path: path.to_owned(), source }
}
