//! The library itself, and finding GPUs.

use std::ffi::{CStr, c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use tessera_stand_in::device::ClaimPlace;

use crate::abi::{NvmlCode, Opaque, OpaqueHandle, OutPointer, TextIn, TextOut};
use crate::device::bus_id as bus_id_of;
use crate::session::{self, nvml};

/// The driver whose behaviour is imitated. Programs choose structure versions and field numbers
/// by it, so it is a version that was published.
const DRIVER_VERSION: &str = "580.95.05";
const NVML_VERSION: &str = "13.580.95.05";
/// CUDA 13.0, as NVML writes it.
const CUDA_VERSION: c_int = 13_000;

/// Functions that work before the library is initialised.
pub const ENTRY_NAMES: &[&str] = &["nvmlInit_v2", "nvmlInitWithFlags"];

/// Initialises the library.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    session::answer(|| session::initialize("nvmlInit_v2"))
}

/// Initialises the library; a node always has GPUs, so no flag changes anything.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    session::answer(|| session::initialize("nvmlInitWithFlags"))
}

nvml! {
    fn nvmlShutdown() |_call| { session::shut_down() }

    fn nvmlSystemGetDriverVersion(version: TextOut, length: c_uint) |_call| {
        version.set(length, DRIVER_VERSION)
    }

    fn nvmlSystemGetNVMLVersion(version: TextOut, length: c_uint) |_call| {
        version.set(length, NVML_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion(version: OutPointer<c_int>) |_call| { version.set(CUDA_VERSION) }

    fn nvmlSystemGetCudaDriverVersion_v2(version: OutPointer<c_int>) |_call| { version.set(CUDA_VERSION) }

    fn nvmlDeviceGetCount_v2(count: OutPointer<c_uint>) |call| {
        count.set(u32::try_from(call.state.gpus.len()).map_err(|_| NvmlCode::UNKNOWN)?)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: OutPointer<nvmlDevice_t>) |call| {
        let gpu = usize::try_from(index).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
        call.reach(gpu)?;
        device.set(nvmlDevice_t::of(OpaqueHandle::Gpu(gpu)))
    }

    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, device: OutPointer<nvmlDevice_t>) |call| {
        let place = call.state.by_uuid(&uuid.read()?).ok_or(NvmlCode::NOT_FOUND)?;
        call.reach(call.state.gpu_of(place).ok_or(NvmlCode::NOT_FOUND)?)?;
        device.set(nvmlDevice_t::of(match place {
            ClaimPlace::Gpu(gpu) => OpaqueHandle::Gpu(gpu),
            ClaimPlace::Compute(serial) => OpaqueHandle::Mig(serial),
        }))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: TextIn, device: OutPointer<nvmlDevice_t>) |call| {
        let requested = bus_id.read()?.to_ascii_uppercase();
        let is_requested = |gpu: &usize| {
            let id = bus_id_of(*gpu);
            // The domain has eight digits, or four as Linux writes it, or is left out.
            [&id, &id[4..], &id[9..]].contains(&requested.as_str())
        };
        let gpu = (0..call.state.gpus.len()).find(is_requested).ok_or(NvmlCode::NOT_FOUND)?;
        call.reach(gpu)?;
        device.set(nvmlDevice_t::of(OpaqueHandle::Gpu(gpu)))
    }
}

/// Names a code.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text: &'static CStr = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"VGPU ECC not supported",
        23 => c"Insufficient Resources",
        24 => c"Frequency not supported",
        25 => c"Argument version mismatch",
        26 => c"Function deprecated",
        27 => c"System not ready",
        28 => c"GPU not found",
        29 => c"Resource not in the required state",
        30 => c"Reset type not supported",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
