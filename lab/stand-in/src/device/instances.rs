//! GPU instances: creation, destruction, capacity.

use tessera_model::mig::{IllegalLayout, ProfileId, Slot};

use super::{DeviceGpu, DeviceRefusal, DeviceState, GpuInstance, InstanceSerial, lowest_free};

/// The requested position of a GPU instance, in memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlacement {
    /// First memory slice.
    pub start: u32,
    /// Memory slices, which must be the profile's.
    pub size: u32,
}

impl DeviceState {
    /// Creates a GPU instance, at `at` or wherever there is space.
    ///
    /// Without a placement the highest start that is legal is taken. Drivers choose by their own rule
    /// that no source states, so nothing may depend on this one.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::NotSupported`] with MIG mode off, [`DeviceRefusal::InvalidArgument`] for a profile or
    /// placement that the GPU doesn't have, [`DeviceRefusal::InsufficientResources`] if it is taken.
    pub fn create_gpu_instance(
        &mut self,
        gpu: usize,
        profile: u32,
        at: Option<SlotPlacement>,
    ) -> Result<InstanceSerial, DeviceRefusal> {
        let target = self.gpus.get(gpu).ok_or(DeviceRefusal::InvalidArgument)?;
        let slot = target.free_slot(profile, at)?;
        let id = target.next_instance_id(slot);
        let serial = self.take_serial();
        let made = GpuInstance { serial, id, slot, compute: Vec::new() };
        self.gpus[gpu].instances.push(made);
        Ok(serial)
    }

    /// Destroys a GPU instance that holds no compute instance.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] if it isn't there, [`DeviceRefusal::InUse`] while it holds any.
    pub fn destroy_gpu_instance(&mut self, serial: InstanceSerial) -> Result<(), DeviceRefusal> {
        let (gpu, instance) = self.gpu_instance(serial).ok_or(DeviceRefusal::InvalidArgument)?;
        if !instance.compute.is_empty() {
            return Err(DeviceRefusal::InUse);
        }
        self.gpus[gpu].instances.retain(|i| i.serial != serial);
        Ok(())
    }

    /// Returns how many more instances of `profile` the GPU takes.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::NotSupported`] with MIG mode off or for a profile that the GPU doesn't have.
    pub fn remaining_capacity(&self, gpu: usize, profile: u32) -> Result<u32, DeviceRefusal> {
        let target = self.gpus.get(gpu).ok_or(DeviceRefusal::InvalidArgument)?;
        target.mig_profile(profile)?;
        let mut filled = self.clone();
        let mut count = 0;
        while filled.create_gpu_instance(gpu, profile, None).is_ok() {
            count += 1;
        }
        Ok(count)
    }
}

impl DeviceGpu {
    /// Refuses what needs MIG mode while it is off.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::NotSupported`].
    pub const fn require_mig(&self) -> Result<(), DeviceRefusal> {
        if self.mig { Ok(()) } else { Err(DeviceRefusal::NotSupported) }
    }

    /// Finds a profile by the driver's id, as a query does.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::NotSupported`] with MIG mode off or for a profile that the GPU doesn't have.
    pub fn mig_profile(
        &self,
        id: u32,
    ) -> Result<&'static tessera_model::mig::catalog::CatalogProfile, DeviceRefusal> {
        self.require_mig()?;
        self.profile(id).ok_or(DeviceRefusal::NotSupported)
    }

    fn free_slot(&self, profile: u32, at: Option<SlotPlacement>) -> Result<Slot, DeviceRefusal> {
        self.require_mig()?;
        let requested = &self.profile(profile).ok_or(DeviceRefusal::InvalidArgument)?.profile;
        let Some(placement) = at else {
            let slots = requested.starts.iter().rev().map(|start| slot(*start, requested.id));
            return slots.into_iter().find(|s| self.takes(*s).is_ok()).ok_or(
                // Every start is the profile's own, so only space can be missing.
                DeviceRefusal::InsufficientResources,
            );
        };
        if placement.size != u32::from(requested.memory_slices) {
            return Err(DeviceRefusal::InvalidArgument);
        }
        let start = u8::try_from(placement.start).map_err(|_| DeviceRefusal::InvalidArgument)?;
        self.takes(slot(start, requested.id))?;
        Ok(slot(start, requested.id))
    }

    fn takes(&self, slot: Slot) -> Result<(), DeviceRefusal> {
        let standing = self.instances.iter().map(|i| &i.slot);
        self.model().geometry().check(standing.chain([&slot])).map_err(|illegal| match illegal {
            IllegalLayout::UnknownProfile { .. } | IllegalLayout::NotAStart { .. } => {
                DeviceRefusal::InvalidArgument
            }
            IllegalLayout::Overlap { .. }
            | IllegalLayout::TooMany { .. }
            | IllegalLayout::MediaEngines { .. } => DeviceRefusal::InsufficientResources,
        })
    }

    /// Numbers instances as drivers do. Each size has its own range (on an A100 0 for the
    /// whole GPU, from 1 for halves, from 3 for quarters, from 7 for eighths). Within it the lowest
    /// free number is taken, whatever the slot.
    fn next_instance_id(&self, slot: Slot) -> u32 {
        let size = self.profile(slot.profile.0).map_or(1, |p| p.profile.memory_slices);
        let parts = self.whole().profile.memory_slices / size.max(1);
        let first = u32::from(parts.max(1)) - 1;
        lowest_free(first, self.instances.iter().map(|i| i.id))
    }
}

const fn slot(start: u8, profile: ProfileId) -> Slot {
    Slot { start, profile }
}
