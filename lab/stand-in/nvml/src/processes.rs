//! The processes that use a device.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};
use tessera_stand_in::device::{ClaimKind, ClaimPlace, DeviceClaim};
use tessera_stand_in::node::now_ms;

use crate::abi::{NvmlCode, OutPointer};
use crate::session::{DeviceHandle, NvmlCall, nvml};

/// What stands for "no instance" in a process's entry.
const NO_INSTANCE: c_uint = c_uint::MAX;

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t,
        count: OutPointer<c_uint>,
        infos: OutPointer<nvmlProcessInfo_t>,
    ) |call| {
        list(&call, device, ClaimKind::Compute, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t,
        count: OutPointer<c_uint>,
        infos: OutPointer<nvmlProcessInfo_t>,
    ) |call| {
        list(&call, device, ClaimKind::MpsClient, count, infos)
    }

    /// None of the simulated clients uses graphics.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t,
        count: OutPointer<c_uint>,
        _infos: OutPointer<nvmlProcessInfo_t>,
    ) |call| {
        call.device(device)?;
        count.set(0)
    }

    /// Not supported while MIG is on, as documented. One sample for each busy process, taken
    /// now; none is newer than a `since` that lies in the future.
    fn nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t,
        samples: OutPointer<nvmlProcessUtilizationSample_t>,
        count: OutPointer<c_uint>,
        since: c_ulonglong,
    ) |call| {
        let gpu = call.gpu_figure(device)?;
        if call.gpu_state(gpu).mig {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        let now = now_ms().saturating_mul(1_000);
        let loads = call.state.process_loads(gpu);
        let busy: Vec<_> = loads.into_iter().filter(|(_, load)| *load > 0).collect();
        let capacity = count.value()? as usize;
        count.set(u32::try_from(busy.len()).map_err(|_| NvmlCode::UNKNOWN)?)?;
        if busy.is_empty() || since >= now {
            return Err(NvmlCode::NOT_FOUND);
        }
        if samples.is_null() || capacity < busy.len() {
            return Err(NvmlCode::INSUFFICIENT_SIZE);
        }
        busy.iter().enumerate().try_for_each(|(index, (pid, load))| {
            let load = u32::try_from(*load).map_err(|_| NvmlCode::UNKNOWN)?;
            // Clients state one load, so memory is as busy as the rest.
            samples.set_at(index, nvmlProcessUtilizationSample_t {
                pid: *pid,
                timeStamp: now,
                smUtil: load,
                memUtil: load,
                encUtil: 0,
                decUtil: 0,
            })
        })
    }
}

/// Lists the clients of a MIG device, or of a GPU with all its MIG devices.
fn list(
    call: &NvmlCall,
    device: nvmlDevice_t,
    kind: ClaimKind,
    count: OutPointer<c_uint>,
    infos: OutPointer<nvmlProcessInfo_t>,
) -> Result<(), NvmlCode> {
    let found: Vec<_> = match call.device(device)? {
        DeviceHandle::Gpu(gpu) => entries(call, kind, call.state.claims_on_gpu(gpu)),
        DeviceHandle::Mig { compute, .. } => {
            entries(call, kind, call.state.claims_on_compute(compute.serial))
        }
    };
    let capacity = count.value()? as usize;
    count.set(u32::try_from(found.len()).map_err(|_| NvmlCode::UNKNOWN)?)?;
    if found.len() > capacity {
        return Err(NvmlCode::INSUFFICIENT_SIZE);
    }
    found.iter().enumerate().try_for_each(|(index, entry)| infos.set_at(index, *entry))
}

/// Returns one entry for each process and place: a process that holds a slice twice has one
/// context there as far as NVML can see.
fn entries<'s>(
    call: &'s NvmlCall,
    kind: ClaimKind,
    claims: impl Iterator<Item = &'s DeviceClaim>,
) -> Vec<nvmlProcessInfo_t> {
    let mut found: Vec<nvmlProcessInfo_t> = Vec::new();
    for claim in claims.filter(|claim| claim.kind == kind) {
        let entry = entry(call, claim);
        let key = |e: &nvmlProcessInfo_t| (e.pid, e.gpuInstanceId, e.computeInstanceId);
        match found.iter_mut().find(|e| key(e) == key(&entry)) {
            Some(known) => known.usedGpuMemory += entry.usedGpuMemory,
            None => found.push(entry),
        }
    }
    found
}

fn entry(call: &NvmlCall, claim: &DeviceClaim) -> nvmlProcessInfo_t {
    let (gpu_instance, compute_instance) = match claim.place {
        ClaimPlace::Gpu(_) => (NO_INSTANCE, NO_INSTANCE),
        ClaimPlace::Compute(serial) => call
            .state
            .compute_instance(serial)
            .map_or((NO_INSTANCE, NO_INSTANCE), |(_, instance, compute)| (instance.id, compute.id)),
    };
    nvmlProcessInfo_t {
        pid: claim.process.pid,
        usedGpuMemory: claim.memory_bytes,
        gpuInstanceId: gpu_instance,
        computeInstanceId: compute_instance,
    }
}
