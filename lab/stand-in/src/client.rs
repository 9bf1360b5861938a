//! A process that uses a slice: its claim keeps the slice from being destroyed.
//!
//! The claim names the process by id and start time, so it ends with the process however that
//! ends.

use std::fs::File;

use crate::device::{ClaimId, ClaimKind, ClaimPlace, DeviceState, MemoryFigures, OutOfMemory};
use crate::node::{SimulatedNode, SimulatedNodeError};
use crate::process::ProcessIdentity;

/// A hold on one slice, which is released when it is dropped.
#[derive(Debug)]
pub struct DeviceClient {
    node: SimulatedNode,
    claim: ClaimId,
    slice: ClientSlice,
    /// Held open, so that a check of open files finds the client.
    _files: Vec<File>,
}

/// What a client sees of its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSlice {
    /// What it is.
    pub place: ClaimPlace,
    /// Its name, as NVML gives it.
    pub name: String,
    /// Streaming multiprocessors; 0 where no source states them.
    pub sms: u16,
}

/// Why a slice can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceClientError {
    /// Nothing with that name exists on this node.
    #[error("no slice {uuid} on this node: `nvidia-smi -L` or the agent names those that exist")]
    NoSlice {
        /// What was named.
        uuid: String,
    },
    /// A whole GPU that is cut into slices.
    #[error("{uuid} is in MIG mode: name one of its MIG devices")]
    InMigMode {
        /// What was named.
        uuid: String,
    },
    /// The slice has no memory left.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The process can't be distinguished from others.
    #[error("can't read the start time of this process from /proc")]
    NoProc,
    /// The node can't be used.
    #[error(transparent)]
    Node(#[from] SimulatedNodeError),
}

impl DeviceClient {
    /// Opens the slice or whole GPU with this UUID as a compute process.
    ///
    /// # Errors
    ///
    /// [`DeviceClientError`] states why it can't be opened.
    pub fn open(node: &SimulatedNode, uuid: &str) -> Result<Self, DeviceClientError> {
        Self::open_as(node, uuid, ClaimKind::Compute)
    }

    /// Opens the slice or whole GPU with this UUID.
    ///
    /// # Errors
    ///
    /// [`DeviceClientError`] states why it can't be opened.
    pub fn open_as(
        node: &SimulatedNode,
        uuid: &str,
        kind: ClaimKind,
    ) -> Result<Self, DeviceClientError> {
        let process = ProcessIdentity::current().ok_or(DeviceClientError::NoProc)?;
        let gone = || DeviceClientError::NoSlice { uuid: uuid.to_owned() };
        node.change(|state| {
            let place = state.by_uuid(uuid).ok_or_else(gone)?;
            if matches!(place, ClaimPlace::Gpu(gpu) if state.gpus[gpu].mig) {
                return Err(DeviceClientError::InMigMode { uuid: uuid.to_owned() });
            }
            let claim = state.add_claim(process, place, kind).ok_or_else(gone)?;
            let slice = ClientSlice::of(state, place).ok_or_else(gone)?;
            Ok(Self { node: node.clone(), claim, slice, _files: node.open_files(state, place)? })
        })?
    }

    /// Returns what the client sees of its slice.
    pub const fn slice(&self) -> &ClientSlice {
        &self.slice
    }

    /// Returns the slice's memory, other clients' included.
    ///
    /// # Errors
    ///
    /// [`DeviceClientError::SimulatedNode`] if the node can't be read.
    pub fn memory(&self) -> Result<MemoryFigures, DeviceClientError> {
        Ok(self.node.read()?.memory(self.slice.place))
    }

    /// Allocates memory on the slice.
    ///
    /// # Errors
    ///
    /// [`DeviceClientError::OutOfMemory`] if it has less left: nothing is allocated then.
    pub fn allocate(&self, bytes: u64) -> Result<(), DeviceClientError> {
        Ok(self.node.change(|state| state.allocate(self.claim, bytes))??)
    }

    /// Releases memory; at most what the client has.
    ///
    /// # Errors
    ///
    /// [`DeviceClientError::SimulatedNode`] if the node can't be written.
    pub fn free(&self, bytes: u64) -> Result<(), DeviceClientError> {
        self.with_claim(|claim| claim.memory_bytes = claim.memory_bytes.saturating_sub(bytes))
    }

    /// States how busy the client keeps its slice, in percent (at most 100): power, energy and
    /// utilisation follow.
    ///
    /// # Errors
    ///
    /// [`DeviceClientError::SimulatedNode`] if the node can't be written.
    pub fn set_load(&self, percent: u8) -> Result<(), DeviceClientError> {
        self.with_claim(|claim| claim.load_percent = percent.min(100))
    }

    fn with_claim(
        &self,
        change: impl Fn(&mut crate::device::DeviceClaim),
    ) -> Result<(), DeviceClientError> {
        let claim = self.claim;
        self.node
            .change(|state| state.claims.iter_mut().filter(|c| c.id == claim).for_each(change))?;
        Ok(())
    }
}

impl Drop for DeviceClient {
    fn drop(&mut self) {
        let claim = self.claim;
        // If the folder can't be written now, the claim still ends with the process.
        let _ = self.node.change(|state| state.claims.retain(|c| c.id != claim));
    }
}

impl ClientSlice {
    /// Returns what is visible of a place, or `None` if it is gone.
    pub fn of(state: &DeviceState, place: ClaimPlace) -> Option<Self> {
        let gpu = state.gpus.get(state.gpu_of(place)?)?;
        let model_name = gpu.model().names.first()?;
        Some(match place {
            ClaimPlace::Gpu(_) => {
                Self { place, name: model_name.clone(), sms: gpu.model().sms.unwrap_or(0) }
            }
            ClaimPlace::Compute(serial) => {
                let (_, instance, compute) = state.compute_instance(serial)?;
                let profile = instance.compute_profile(gpu, compute.profile)?;
                let name = format!("{model_name} MIG {}", profile.name);
                Self { place, name, sms: profile.sm.unwrap_or(0) }
            }
        })
    }
}
