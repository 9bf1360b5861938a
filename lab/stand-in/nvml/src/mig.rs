//! MIG mode and MIG devices.

use std::ffi::c_uint;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use tessera_stand_in::device::ModeActivation;
use tessera_stand_in::faults::FaultAction;

use crate::abi::{NvmlCode, Opaque, OpaqueHandle, OutPointer};
use crate::session::{DeviceHandle, nvml};

nvml! {
    fn nvmlDeviceGetMigMode(
        device: nvmlDevice_t,
        current: OutPointer<c_uint>,
        pending: OutPointer<c_uint>,
    ) |call| {
        let gpu_state = call.gpu_state(call.gpu(device)?);
        current.set(gpu_state.mig.into())?;
        pending.set(gpu_state.mig_pending.into())
    }

    /// Succeeds also where the mode doesn't come into force: the activation status shows it.
    fn nvmlDeviceSetMigMode(
        device: nvmlDevice_t,
        mode: c_uint,
        activation: OutPointer<nvmlReturn_t>,
    ) |call| {
        let gpu = call.gpu(device)?;
        if mode > 1 || activation.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let pending = call.struck.borrow().iter().find_map(|action| {
            if let FaultAction::LeavePending(code) = action { Some(*code) } else { None }
        });
        // No source states how long a change of mode takes.
        let takes = Duration::ZERO;
        if let Some(code) = pending {
            call.operate(gpu, takes, |state| state.set_pending_mig_mode(gpu, mode == 1))?;
            return activation.set(code);
        }
        match call.operate(gpu, takes, |state| state.set_mig_mode(gpu, mode == 1))? {
            ModeActivation::Done => activation.set(0),
            ModeActivation::InUse => activation.set(NvmlCode::IN_USE.0),
        }
    }

    /// Zero while MIG is off, as documented.
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: OutPointer<c_uint>) |call| {
        let gpu_state = call.gpu_state(call.gpu(device)?);
        count.set(if gpu_state.mig { gpu_state.whole().profile.compute_slices.into() } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: nvmlDevice_t,
        index: c_uint,
        mig_device: OutPointer<nvmlDevice_t>,
    ) |call| {
        let gpu_state = call.gpu_state(call.gpu(device)?);
        gpu_state.require_mig()?;
        if index >= gpu_state.whole().profile.compute_slices.into() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let found = gpu_state.mig_device(index).ok_or(NvmlCode::NOT_FOUND)?;
        mig_device.set(nvmlDevice_t::of(OpaqueHandle::Mig(found.serial)))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        mig_device: nvmlDevice_t,
        device: OutPointer<nvmlDevice_t>,
    ) |call| {
        match call.device(mig_device)? {
            DeviceHandle::Gpu(_) => Err(NvmlCode::INVALID_ARGUMENT),
            DeviceHandle::Mig { gpu, .. } => device.set(nvmlDevice_t::of(OpaqueHandle::Gpu(gpu))),
        }
    }

    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig: OutPointer<c_uint>) |call| {
        is_mig.set(matches!(call.device(device)?, DeviceHandle::Mig { .. }).into())
    }

    fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: OutPointer<c_uint>) |call| {
        match call.device(device)? {
            DeviceHandle::Gpu(_) => Err(NvmlCode::NOT_SUPPORTED),
            DeviceHandle::Mig { instance, .. } => id.set(instance.id),
        }
    }

    fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: OutPointer<c_uint>) |call| {
        match call.device(device)? {
            DeviceHandle::Gpu(_) => Err(NvmlCode::NOT_SUPPORTED),
            DeviceHandle::Mig { compute, .. } => id.set(compute.id),
        }
    }
}
