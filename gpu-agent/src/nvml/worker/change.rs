//! Changing the instances.

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstancePlacement_t, nvmlGpuInstance_t,
    nvmlGpuInstancePlacement_t,
};
use tessera_model::GpuId;
use tessera_model::mig::Slot;
use tessera_model::mig::compute::{ComputeSlot, Cut};

use super::Loaded;
use crate::nvml::messages::NvmlReply;
use crate::nvml::read::{self, ComputeSize, InstanceHandle};
use tessera_agent_core::nvml::error::{ErrorHandling, NvmlCallError};

impl Loaded {
    /// Makes an instance, or completes one that was left incomplete; returns its new state.
    pub(super) fn create(&mut self, gpu: &GpuId, slot: Slot) -> Result<NvmlReply, NvmlCallError> {
        self.make(gpu, slot, |loaded, standing| loaded.complete(gpu, standing))
    }

    /// Gives an instance exactly these compute instances; returns its state then.
    pub(super) fn cut(
        &mut self,
        gpu: &GpuId,
        slot: Slot,
        cut: &Cut,
    ) -> Result<NvmlReply, NvmlCallError> {
        self.make(gpu, slot, |loaded, standing| loaded.recut(gpu, standing, cut))
    }

    /// Makes the GPU instance, if it isn't there, and lets its compute instances be made.
    fn make(
        &mut self,
        gpu: &GpuId,
        slot: Slot,
        fill: impl FnOnce(&mut Self, &InstanceHandle) -> Result<(), NvmlCallError>,
    ) -> Result<NvmlReply, NvmlCallError> {
        let device = self.device(gpu)?;
        let geometry = self.geometry(gpu)?;
        let profile = geometry
            .profile(slot.profile)
            .ok_or_else(|| NvmlCallError { call: "CreateGpuInstance".to_owned(), code: 3 })?;
        let placement = nvmlGpuInstancePlacement_t {
            start: slot.start.into(),
            size: profile.memory_slices.into(),
        };
        let (handle, fresh) = match self.find(gpu, slot)? {
            Some(standing) => (standing.handle, false),
            None => (self.library.create(device, slot.profile.0, placement)?, true),
        };
        let made = self.verify(handle, slot, placement).and_then(|standing| fill(self, &standing));
        match made {
            Ok(()) => Ok(self.read_back(gpu, slot)),
            Err(fault) => {
                if fresh {
                    // Leaves no incomplete instance behind, if the driver permits; else the next
                    // read reports.
                    let _ = self.library.destroy(handle);
                }
                Err(fault)
            }
        }
    }

    /// Returns what exists in a changed slot. A driver that can't read it has changed it
    /// nevertheless.
    fn read_back(&mut self, gpu: &GpuId, slot: Slot) -> NvmlReply {
        self.look(gpu, slot).map_or(NvmlReply::Done, |found| NvmlReply::One(found.map(Box::new)))
    }

    /// Makes sure that an instance is at the intended position (G11).
    fn verify(
        &self,
        handle: nvmlGpuInstance_t,
        slot: Slot,
        meant: nvmlGpuInstancePlacement_t,
    ) -> Result<InstanceHandle, NvmlCallError> {
        let info = self.library.instance(handle)?;
        let found = info.placement;
        if (found.start, found.size) == (meant.start, meant.size) {
            return Ok(InstanceHandle { handle, number: info.id, slot });
        }
        Err(NvmlCallError { call: "nvmlDeviceCreateGpuInstanceWithPlacement".to_owned(), code: 29 })
    }

    fn complete(&mut self, gpu: &GpuId, standing: &InstanceHandle) -> Result<(), NvmlCallError> {
        let geometry = self.geometry(gpu)?;
        let slices = geometry.profile(standing.slot.profile).map_or(0, |p| p.compute_slices.into());
        let sizes = self.sizes(gpu, standing)?;
        if !read::compute_instances(&self.library, standing.handle, &sizes)?.is_empty() {
            return Ok(());
        }
        let whole = sizes.iter().find(|size| size.slices == slices);
        let whole = whole
            .ok_or_else(|| NvmlCallError { call: "CreateComputeInstance".to_owned(), code: 3 })?;
        self.library.create_compute(standing.handle, whole.id).map(drop)
    }

    /// Destroys the compute instances that are not requested, and creates those that are missing.
    /// If one can't be created, the new ones are destroyed again: the earlier ones can't be
    /// restored.
    fn recut(
        &mut self,
        gpu: &GpuId,
        standing: &InstanceHandle,
        cut: &Cut,
    ) -> Result<(), NvmlCallError> {
        let sizes = self.sizes(gpu, standing)?;
        let mut there = Cut::default();
        for compute in read::compute_instances(&self.library, standing.handle, &sizes)? {
            let slot = read::slot_of(&self.library.compute_info(compute)?);
            match slot.filter(|slot| cut.contains(*slot)) {
                Some(slot) => {
                    there.insert(slot);
                }
                None => absent_is_done(self.library.destroy_compute(compute))?,
            }
        }
        let mut made = Vec::new();
        for slot in cut.iter().filter(|slot| !there.contains(*slot)) {
            match self.create_part(standing, &sizes, slot) {
                Ok(compute) => made.push(compute),
                Err(fault) => {
                    for compute in made {
                        let _ = self.library.destroy_compute(compute);
                    }
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    fn create_part(
        &self,
        standing: &InstanceHandle,
        sizes: &[ComputeSize],
        slot: ComputeSlot,
    ) -> Result<nvmlComputeInstance_t, NvmlCallError> {
        let size = sizes.iter().find(|size| size.slices == u32::from(slot.slices));
        let size = size
            .ok_or_else(|| NvmlCallError { call: "CreateComputeInstance".to_owned(), code: 3 })?;
        let place =
            nvmlComputeInstancePlacement_t { start: slot.start.into(), size: slot.slices.into() };
        self.library.create_compute_at(standing.handle, size.id, place)
    }

    /// Destroys an instance; returns what exists there then, which should be nothing.
    pub(super) fn destroy(&mut self, gpu: &GpuId, slot: Slot) -> Result<NvmlReply, NvmlCallError> {
        let Some(standing) = self.find(gpu, slot)? else { return Ok(NvmlReply::One(None)) };
        let sizes = self.sizes(gpu, &standing)?;
        for compute in read::compute_instances(&self.library, standing.handle, &sizes)? {
            absent_is_done(self.library.destroy_compute(compute))?;
        }
        absent_is_done(self.library.destroy(standing.handle))?;
        Ok(self.read_back(gpu, slot))
    }
}

fn absent_is_done(result: Result<(), NvmlCallError>) -> Result<(), NvmlCallError> {
    match result {
        Err(fault) if fault.handling() == ErrorHandling::Absent => Ok(()),
        other => other,
    }
}
