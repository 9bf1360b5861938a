//! The processes that use GPUs and instances, with their memory and load.

use serde::{Deserialize, Serialize};

use super::{DeviceState, InstanceSerial};
use crate::process::ProcessIdentity;

/// One hold of one process on one GPU or MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceClaim {
    /// Identity within the node.
    pub id: ClaimId,
    /// Who holds.
    pub process: ProcessIdentity,
    /// What is held.
    pub place: ClaimPlace,
    /// How the process appears in NVML's lists.
    pub kind: ClaimKind,
    /// Memory that it has allocated.
    pub memory_bytes: u64,
    /// How busy it keeps the place, in percent.
    pub load_percent: u8,
}

/// Identifies a claim within the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimId(pub u64);

/// What can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClaimPlace {
    /// A whole GPU, by index.
    Gpu(usize),
    /// A compute instance.
    Compute(InstanceSerial),
}

/// How a process appears in NVML's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimKind {
    /// A compute process: a CUDA program, or an MPS server.
    Compute,
    /// A client of an MPS server.
    MpsClient,
    /// A program that only watches, such as DCGM: it is in no list, but prevents destruction.
    Monitor,
}

/// Why memory is refused to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {requested_bytes} bytes more, {free_bytes} free")]
pub struct OutOfMemory {
    /// What was requested.
    pub requested_bytes: u64,
    /// What is left.
    pub free_bytes: u64,
}

impl DeviceState {
    /// Returns the claims on a GPU, those on its instances included.
    pub fn claims_on_gpu(&self, gpu: usize) -> impl Iterator<Item = &DeviceClaim> {
        self.claims.iter().filter(move |claim| self.gpu_of(claim.place) == Some(gpu))
    }

    /// Returns the claims on one compute instance.
    pub fn claims_on_compute(&self, serial: InstanceSerial) -> impl Iterator<Item = &DeviceClaim> {
        self.claims.iter().filter(move |claim| claim.place == ClaimPlace::Compute(serial))
    }

    /// Adds a claim without memory or load, if its place exists.
    pub(crate) fn add_claim(
        &mut self,
        process: ProcessIdentity,
        place: ClaimPlace,
        kind: ClaimKind,
    ) -> Option<ClaimId> {
        self.gpu_of(place)?;
        let id = ClaimId(self.take_serial().0);
        self.claims.push(DeviceClaim {
            id,
            process,
            place,
            kind,
            memory_bytes: 0,
            load_percent: 0,
        });
        Some(id)
    }

    /// Allocates more memory for a claim.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if its place has less left. Compute instances of one GPU instance share
    /// that instance's memory.
    pub(crate) fn allocate(&mut self, id: ClaimId, bytes: u64) -> Result<(), OutOfMemory> {
        let Some(claim) = self.claims.iter().find(|c| c.id == id) else {
            return Err(OutOfMemory { requested_bytes: bytes, free_bytes: 0 });
        };
        let free_bytes = self.memory(claim.place).free_bytes;
        if bytes > free_bytes {
            return Err(OutOfMemory { requested_bytes: bytes, free_bytes });
        }
        for claim in self.claims.iter_mut().filter(|c| c.id == id) {
            claim.memory_bytes += bytes;
        }
        Ok(())
    }
}
