//! The properties of GPUs and MIG devices.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlFieldValue_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlTemperatureSensors_t, nvmlUtilization_t, nvmlValue_t,
};
use tessera_model::mig::MediaEngines;
use tessera_stand_in::client::ClientSlice;
use tessera_stand_in::node::{now_ms, running_ms};

use crate::abi::{NvmlCode, OutPointer, TextOut, struct_version, text_array};
use crate::session::{DeviceHandle, NvmlCall, complain, nvml};

/// NVIDIA's vendor number, the lower half of a combined PCI device id.
const VENDOR: u32 = 0x10DE;

/// Bus of the first GPU. Any will do, but 0 is the chipset's.
const FIRST_BUS: usize = 7;

/// Fields of `nvmlDeviceGetFieldValues`, by NVML's number.
mod field {
    pub const TOTAL_ENERGY_MILLIJOULES: u32 = 83;
    pub const POWER_INSTANT_MILLIWATTS: u32 = 186;
    pub const RECOVERY_ACTION: u32 = 230;
}

/// `nvmlValueType_t` of the values above.
mod value_type {
    pub const UNSIGNED_INT: u32 = 1;
    pub const UNSIGNED_LONG_LONG: u32 = 3;
}

nvml! {
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: TextOut, length: c_uint) |call| {
        match call.device(device)? {
            DeviceHandle::Gpu(gpu) => uuid.set(length, &call.state.gpu_uuid(gpu)),
            DeviceHandle::Mig { compute, .. } => uuid.set(length, &compute.mig_uuid()),
        }
    }

    fn nvmlDeviceGetName(device: nvmlDevice_t, name: TextOut, length: c_uint) |call| {
        let place = call.device(device)?.place();
        name.set(length, &ClientSlice::of(&call.state, place).ok_or(NvmlCode::UNKNOWN)?.name)
    }

    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: OutPointer<c_uint>) |call| {
        index.set(match call.device(device)? {
            DeviceHandle::Gpu(gpu) => u32::try_from(gpu).map_err(|_| NvmlCode::UNKNOWN)?,
            DeviceHandle::Mig { compute, .. } => compute.mig_index,
        })
    }

    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: OutPointer<c_uint>) |call| {
        let gpu = call.gpu_figure(device)?;
        minor.set(u32::try_from(gpu).map_err(|_| NvmlCode::UNKNOWN)?)
    }

    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: OutPointer<nvmlPciInfo_t>) |call| {
        let gpu = call.gpu(device)?;
        pci.set(pci_info(&call, gpu)?)
    }

    fn nvmlDeviceGetCudaComputeCapability(
        device: nvmlDevice_t,
        major: OutPointer<c_int>,
        minor: OutPointer<c_int>,
    ) |call| {
        let gpu = call.device(device)?.gpu();
        let capability = call.gpu_state(gpu).model().compute_capability.split_once('.');
        let (high, low) = capability.ok_or(NvmlCode::NOT_SUPPORTED)?;
        major.set(high.parse().map_err(|_| NvmlCode::NOT_SUPPORTED)?)?;
        minor.set(low.parse().map_err(|_| NvmlCode::NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: OutPointer<nvmlMemory_t>) |call| {
        let seen = call.state.memory(call.device(device)?.place());
        memory.set(nvmlMemory_t {
            total: seen.total_bytes,
            free: seen.free_bytes,
            used: seen.used_bytes,
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: OutPointer<nvmlMemory_v2_t>) |call| {
        let version = memory.version()?;
        if version != struct_version::<nvmlMemory_v2_t>(2) {
            return Err(NvmlCode::ARGUMENT_VERSION_MISMATCH);
        }
        let seen = call.state.memory(call.device(device)?.place());
        memory.set(nvmlMemory_v2_t {
            version,
            total: seen.total_bytes,
            reserved: 0,
            free: seen.free_bytes,
            used: seen.used_bytes,
        })
    }

    /// Not supported while MIG is on, as documented.
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, rates: OutPointer<nvmlUtilization_t>) |call| {
        let gpu = call.gpu_figure(device)?;
        if call.gpu_state(gpu).mig {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        // Clients state one load, so memory is as busy as the rest.
        let load = u32::try_from(call.state.load_percent(gpu)).map_err(|_| NvmlCode::UNKNOWN)?;
        rates.set(nvmlUtilization_t { gpu: load, memory: load })
    }

    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, milliwatts: OutPointer<c_uint>) |call| {
        let gpu = call.gpu_figure(device)?;
        milliwatts.set(milliwatts_of(&call, gpu)?)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(
        device: nvmlDevice_t,
        millijoules: OutPointer<c_ulonglong>,
    ) |call| {
        let gpu = call.gpu_figure(device)?;
        millijoules.set(call.state.energy_millijoules(gpu, running_ms()))
    }

    fn nvmlDeviceGetTemperature(
        device: nvmlDevice_t,
        sensor: nvmlTemperatureSensors_t,
        celsius: OutPointer<c_uint>,
    ) |call| {
        let gpu = call.gpu_figure(device)?;
        if sensor != 0 {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let degrees = call.state.temperature_celsius(gpu);
        celsius.set(u32::try_from(degrees).map_err(|_| NvmlCode::UNKNOWN)?)
    }

    fn nvmlDeviceGetAttributes_v2(
        device: nvmlDevice_t,
        attributes: OutPointer<nvmlDeviceAttributes_t>,
    ) |call| {
        let DeviceHandle::Mig { gpu, instance, compute } = call.device(device)? else {
            return Err(NvmlCode::NOT_SUPPORTED);
        };
        let gpu_state = call.gpu_state(gpu);
        let profile = &instance.profile(gpu_state).profile;
        let part = instance.compute_profile(gpu_state, compute.profile).ok_or(NvmlCode::UNKNOWN)?;
        let MediaEngines { decoders, encoders, jpeg, ofa } = profile.media;
        attributes.set(nvmlDeviceAttributes_t {
            multiprocessorCount: part.sm.unwrap_or(0).into(),
            sharedCopyEngineCount: profile.copy_engines,
            sharedDecoderCount: decoders,
            sharedEncoderCount: encoders,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
            gpuInstanceSliceCount: profile.compute_slices.into(),
            computeInstanceSliceCount: part.compute_slices.into(),
            memorySizeMB: profile.memory.mib(),
        })
    }

    /// Rows are counted as none: the fault list only states how remapping stands.
    fn nvmlDeviceGetRemappedRows(
        device: nvmlDevice_t,
        correctable: OutPointer<c_uint>,
        uncorrectable: OutPointer<c_uint>,
        pending: OutPointer<c_uint>,
        failed: OutPointer<c_uint>,
    ) |call| {
        let gpu = u32::try_from(call.gpu_figure(device)?).map_err(|_| NvmlCode::UNKNOWN)?;
        let found = call.session.injector.remapping(gpu);
        let (waits, broke) = found.map_err(|error| complain(&error, NvmlCode::UNKNOWN))?;
        correctable.set(0)?;
        uncorrectable.set(0)?;
        pending.set(waits.into())?;
        failed.set(broke.into())
    }

    /// Each value has its own code; fields that the stand-in lacks are not supported.
    fn nvmlDeviceGetFieldValues(
        device: nvmlDevice_t,
        count: c_int,
        values: OutPointer<nvmlFieldValue_t>,
    ) |call| {
        let gpu = call.gpu_figure(device)?;
        let count = usize::try_from(count).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
        for index in 0..count {
            let mut field = values.value_at(index)?;
            fill_field(&call, gpu, &mut field)?;
            values.set_at(index, field)?;
        }
        Ok(())
    }
}

/// Returns the bus id of a GPU, with the domain in eight digits.
pub fn bus_id(gpu: usize) -> String {
    format!("00000000:{:02X}:00.0", FIRST_BUS + gpu)
}

fn pci_info(call: &NvmlCall, gpu: usize) -> Result<nvmlPciInfo_t, NvmlCode> {
    let id = bus_id(gpu);
    // The catalogue writes `0x20B0`, sometimes followed by a remark.
    let device_id = call
        .gpu_state(gpu)
        .model()
        .pci_device_ids
        .first()
        .and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?.get(..4)?, 16).ok());
    Ok(nvmlPciInfo_t {
        busIdLegacy: text_array(&id[4..]),
        domain: 0,
        bus: u32::try_from(FIRST_BUS + gpu).map_err(|_| NvmlCode::UNKNOWN)?,
        device: 0,
        pciDeviceId: device_id.unwrap_or(0) << 16 | VENDOR,
        pciSubSystemId: VENDOR,
        busId: text_array(&id),
    })
}

fn milliwatts_of(call: &NvmlCall, gpu: usize) -> Result<u32, NvmlCode> {
    u32::try_from(call.state.power_milliwatts(gpu)).map_err(|_| NvmlCode::UNKNOWN)
}

fn fill_field(call: &NvmlCall, gpu: usize, field: &mut nvmlFieldValue_t) -> Result<(), NvmlCode> {
    let now = now_ms();
    let (kind, value) = match field.fieldId {
        field::TOTAL_ENERGY_MILLIJOULES => {
            let ullVal = call.state.energy_millijoules(gpu, running_ms());
            (value_type::UNSIGNED_LONG_LONG, nvmlValue_t { ullVal })
        }
        field::POWER_INSTANT_MILLIWATTS => {
            (value_type::UNSIGNED_INT, nvmlValue_t { uiVal: milliwatts_of(call, gpu)? })
        }
        field::RECOVERY_ACTION => {
            let number = u32::try_from(gpu).map_err(|_| NvmlCode::UNKNOWN)?;
            let action = call.session.injector.recovery(number);
            let uiVal = action.map_err(|error| complain(&error, NvmlCode::UNKNOWN))?;
            (value_type::UNSIGNED_INT, nvmlValue_t { uiVal })
        }
        _ => {
            field.nvmlReturn = NvmlCode::NOT_SUPPORTED.0;
            return Ok(());
        }
    };
    field.timestamp = (now * 1_000).cast_signed();
    field.latencyUsec = 0;
    field.valueType = kind;
    field.nvmlReturn = 0;
    field.value = value;
    Ok(())
}
