//! Compute instances within a GPU instance.

use tessera_model::mig::catalog::ComputeProfile;
use uuid::Uuid;

use super::{
    ComputeInstance, DeviceGpu, DeviceRefusal, DeviceState, GpuInstance, InstanceSerial,
    lowest_free,
};

/// The requested position of a compute instance, in compute slices of its GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputePlacement {
    /// First compute slice.
    pub start: u32,
    /// Compute slices, which must be the profile's.
    pub size: u32,
}

impl DeviceState {
    /// Creates a compute instance, at `at` or at the lowest start that is free.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] for an instance or placement that doesn't exist,
    /// [`DeviceRefusal::NotSupported`] for a profile that the GPU instance doesn't have,
    /// [`DeviceRefusal::InsufficientResources`] if there is no space.
    pub fn create_compute_instance(
        &mut self,
        parent: InstanceSerial,
        profile: u32,
        at: Option<ComputePlacement>,
    ) -> Result<InstanceSerial, DeviceRefusal> {
        let (gpu, instance) = self.gpu_instance(parent).ok_or(DeviceRefusal::InvalidArgument)?;
        let target = &self.gpus[gpu];
        let requested =
            instance.compute_profile(target, profile).ok_or(DeviceRefusal::NotSupported)?;
        let start = instance.free_start(target, requested, at)?;
        let id = lowest_free(0, instance.compute.iter().map(|c| c.id));
        let devices = target.instances.iter().flat_map(|i| &i.compute);
        let mig_index = lowest_free(0, devices.map(|c| c.mig_index));
        let serial = self.take_serial();
        let uuid = Uuid::new_v5(&self.seed, format!("mig {}", serial.0).as_bytes());
        let made = ComputeInstance { serial, id, profile, start, mig_index, uuid };
        self.gpus[gpu]
            .instances
            .iter_mut()
            .find(|i| i.serial == parent)
            .expect("found above")
            .compute
            .push(made);
        Ok(serial)
    }

    /// Destroys a compute instance that no process uses.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] if it isn't there, [`DeviceRefusal::InUse`] while a process uses it.
    pub fn destroy_compute_instance(
        &mut self,
        serial: InstanceSerial,
    ) -> Result<(), DeviceRefusal> {
        let (gpu, parent, _) =
            self.compute_instance(serial).ok_or(DeviceRefusal::InvalidArgument)?;
        let parent = parent.serial;
        if self.claims_on_compute(serial).next().is_some() {
            return Err(DeviceRefusal::InUse);
        }
        for instance in self.gpus[gpu].instances.iter_mut().filter(|i| i.serial == parent) {
            instance.compute.retain(|c| c.serial != serial);
        }
        Ok(())
    }

    /// Returns how many more compute instances of `profile` a GPU instance takes.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] if the instance isn't there, [`DeviceRefusal::NotSupported`] for a
    /// profile that it doesn't have.
    pub fn remaining_compute_capacity(
        &self,
        parent: InstanceSerial,
        profile: u32,
    ) -> Result<u32, DeviceRefusal> {
        let (gpu, instance) = self.gpu_instance(parent).ok_or(DeviceRefusal::InvalidArgument)?;
        instance.compute_profile(&self.gpus[gpu], profile).ok_or(DeviceRefusal::NotSupported)?;
        let mut filled = self.clone();
        let mut count = 0;
        while filled.create_compute_instance(parent, profile, None).is_ok() {
            count += 1;
        }
        Ok(count)
    }
}

impl GpuInstance {
    /// Finds one of its compute profiles by the driver's id.
    pub fn compute_profile(&self, gpu: &DeviceGpu, id: u32) -> Option<&'static ComputeProfile> {
        self.profile(gpu).compute.iter().find(|c| c.id == Some(id))
    }

    fn free_start(
        &self,
        gpu: &DeviceGpu,
        requested: &ComputeProfile,
        at: Option<ComputePlacement>,
    ) -> Result<u8, DeviceRefusal> {
        let siblings = self.compute.iter().filter(|c| Some(c.profile) == requested.id).count();
        let start = match at {
            None => None,
            Some(placement) if placement.size != u32::from(requested.compute_slices) => {
                return Err(DeviceRefusal::InvalidArgument);
            }
            Some(placement) => {
                let start = u8::try_from(placement.start).ok();
                Some(
                    start
                        .filter(|s| requested.starts.contains(s))
                        .ok_or(DeviceRefusal::InvalidArgument)?,
                )
            }
        };
        if siblings >= usize::from(requested.max_instances) {
            return Err(DeviceRefusal::InsufficientResources);
        }
        let free = |start: &u8| self.is_free(gpu, *start, requested.compute_slices);
        match start {
            Some(start) => Some(start).filter(free),
            None => requested.starts.iter().copied().find(free),
        }
        .ok_or(DeviceRefusal::InsufficientResources)
    }

    fn is_free(&self, gpu: &DeviceGpu, start: u8, slices: u8) -> bool {
        self.compute.iter().all(|standing| {
            let taken = self.compute_profile(gpu, standing.profile).map_or(0, |p| p.compute_slices);
            start + slices <= standing.start || standing.start + taken <= start
        })
    }
}
