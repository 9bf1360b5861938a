//! Compute instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
};

use super::{FUNCTION_NOT_FOUND, NvmlLibrary, SUCCESS, filled};
use tessera_agent_core::nvml::error::NvmlCallError;

impl NvmlLibrary {
    /// Describes a compute-instance profile by its enumeration number.
    pub fn compute_profile(
        &self,
        instance: nvmlGpuInstance_t,
        number: u32,
    ) -> Result<nvmlComputeInstanceProfileInfo_t, NvmlCallError> {
        filled(|place| {
            call!(self.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, place))
        })
    }

    /// Lists the compute instances of a profile, of which the instance holds at most `most`.
    pub fn compute_instances(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
        most: u32,
    ) -> Result<Vec<nvmlComputeInstance_t>, NvmlCallError> {
        let mut count = most;
        let mut list = vec![std::ptr::null_mut(); most.max(1) as usize];
        call!(self.nvmlGpuInstanceGetComputeInstances(
            instance,
            profile,
            list.as_mut_ptr(),
            &raw mut count
        ))?;
        list.truncate(count as usize);
        Ok(list)
    }

    /// Makes a compute instance.
    pub fn create_compute(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
    ) -> Result<nvmlComputeInstance_t, NvmlCallError> {
        filled(|place| call!(self.nvmlGpuInstanceCreateComputeInstance(instance, profile, place)))
    }

    /// Creates a compute instance at a position of its GPU instance.
    pub fn create_compute_at(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
        place: nvmlComputeInstancePlacement_t,
    ) -> Result<nvmlComputeInstance_t, NvmlCallError> {
        let made = filled(|made| {
            call!(self.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                instance,
                profile,
                &raw const place,
                made
            ))
        });
        match made {
            // A driver before 535 chooses the place itself; the result is read back.
            Err(fault) if fault.code == FUNCTION_NOT_FOUND => {
                self.create_compute(instance, profile)
            }
            other => other,
        }
    }

    /// Describes a compute instance.
    pub fn compute_info(
        &self,
        compute: nvmlComputeInstance_t,
    ) -> Result<nvmlComputeInstanceInfo_t, NvmlCallError> {
        filled(|place| call!(self.nvmlComputeInstanceGetInfo_v2(compute, place)))
    }

    /// Returns the compute instance under a MIG device, of a GPU instance.
    pub fn compute_of(
        &self,
        instance: nvmlGpuInstance_t,
        mig: nvmlDevice_t,
    ) -> Result<nvmlComputeInstance_t, NvmlCallError> {
        let number: c_uint =
            filled(|place| call!(self.nvmlDeviceGetComputeInstanceId(mig, place)))?;
        filled(|place| call!(self.nvmlGpuInstanceGetComputeInstanceById(instance, number, place)))
    }

    /// Returns a MIG device's part of its GPU.
    pub fn attributes(&self, mig: nvmlDevice_t) -> Result<nvmlDeviceAttributes_t, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetAttributes_v2(mig, place)))
    }

    /// Destroys a compute instance.
    pub fn destroy_compute(&self, compute: nvmlComputeInstance_t) -> Result<(), NvmlCallError> {
        call!(self.nvmlComputeInstanceDestroy(compute))
    }
}
