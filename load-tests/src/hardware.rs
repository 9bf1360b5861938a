//! A node's GPUs as its driver's library shows them, past the agent.

use std::path::Path;
use std::ptr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, nvmlComputeInstance_t,
    nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t, nvmlGpuInstanceProfileInfo_t,
};

/// Lists the UUIDs of the MIG devices of this process's node.
///
/// # Errors
///
/// The error of the library.
pub fn mig_devices(library: &Path) -> Result<Vec<String>, NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    let mut devices = Vec::new();
    for index in 0..nvml.device_count()? {
        let gpu = nvml.device_by_index(index)?;
        for slot in 0..gpu.mig_device_count().unwrap_or(0) {
            match gpu.mig_device_by_index(slot) {
                Ok(device) => devices.push(device.uuid()?),
                Err(NvmlError::NotFound) => {}
                Err(other) => return Err(other),
            }
        }
    }
    Ok(devices)
}

/// Makes an instance of the profile with NVML's index `profile` where the driver places it, with
/// one compute instance of the same size.
///
/// # Errors
///
/// The first call that the library refuses, with its code.
pub fn cut(library: &Path, gpu: u32, profile: u32) -> anyhow::Result<()> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    let board = nvml.device_by_index(gpu)?;
    // Sound: the handle goes back only to the library that it came from.
    let device = unsafe { board.handle() };
    macro_rules! call {
        ($name:ident($($argument:expr),*)) => {{
            let function = nvml.lib().$name.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?;
            // Sound: the arguments have the types that the binding requires, and outlive the call.
            let code = unsafe { function($($argument),*) };
            anyhow::ensure!(code == 0, "{}: {code}", stringify!($name));
        }};
    }
    // Sound: both are plain C structures that the library fills.
    let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    let mut inner: nvmlComputeInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    let mut instance: nvmlGpuInstance_t = ptr::null_mut();
    let mut compute: nvmlComputeInstance_t = ptr::null_mut();
    call!(nvmlDeviceGetGpuInstanceProfileInfo(device, profile, &mut info));
    call!(nvmlDeviceCreateGpuInstance(device, info.id, &mut instance));
    call!(nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance,
        profile,
        NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
        &mut inner
    ));
    call!(nvmlGpuInstanceCreateComputeInstance(instance, inner.id, &mut compute));
    Ok(())
}
