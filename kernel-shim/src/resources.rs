//! What the driver reports about functions and the device, from which a launch's needs follow.
//!
//! A function is queried once, at its first launch, and the device before the session's thread starts. A
//! query that fails changes nothing for the program: the kernel's needs stay unknown.

use std::ffi::c_int;
use std::sync::OnceLock;

use tessera_kernel_queue::need::{DeviceLimits, FunctionResources};

use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::driver;
use crate::driver::table::slot;
use crate::names::Origin;

/// Attributes of a function: the numbers of `CUfunction_attribute`.
mod function {
    use std::ffi::c_int;

    pub const THREADS_MAX: c_int = 0;
    pub const SHARED_BYTES: c_int = 1;
    pub const REGISTERS: c_int = 4;
}

/// Attributes of a device: the numbers of `CUdevice_attribute`.
mod device {
    use std::ffi::c_int;

    pub const BLOCK_THREADS_MAX: c_int = 1;
    pub const MULTIPROCESSORS: c_int = 16;
    pub const THREADS: c_int = 39;
    pub const SHARED_BYTES: c_int = 81;
    pub const REGISTERS: c_int = 82;
    pub const BLOCKS: c_int = 106;
    pub const SHARED_RESERVED_BYTES: c_int = 111;
}

static DEVICE: OnceLock<(c_int, DeviceLimits)> = OnceLock::new();

/// Queries the device of the session, once.
pub fn note_device(ordinal: c_int) {
    if let Some(limits) = query_device(ordinal) {
        DEVICE.get_or_init(|| (ordinal, limits));
    }
}

/// Returns the limits of the session's device, if the driver reported them.
pub fn device_limits() -> Option<&'static DeviceLimits> {
    DEVICE.get().map(|(_, limits)| limits)
}

fn query_device(ordinal: c_int) -> Option<DeviceLimits> {
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> CudaResult;
    // SAFETY: the function's type.
    let get: GetAttribute = unsafe { driver::real_if_there(slot::cuDeviceGetAttribute) }?;
    // SAFETY: a place of ours.
    let read = |attribute| number(|value| unsafe { get(value, attribute, ordinal) });
    Some(DeviceLimits {
        multiprocessors: read(device::MULTIPROCESSORS)?,
        block_threads: read(device::BLOCK_THREADS_MAX)?,
        threads: read(device::THREADS)?,
        // Drivers before CUDA 11 report neither of these. Few slots make needs larger.
        blocks: read(device::BLOCKS).unwrap_or(16),
        registers: read(device::REGISTERS)?,
        shared_bytes: read(device::SHARED_BYTES)?,
        shared_reserved_bytes: read(device::SHARED_RESERVED_BYTES).unwrap_or(0),
    })
}

/// Queries the driver about a function. Only handles whose origin is known may be given: a query about any other
/// is undefined.
pub fn query_function(handle: DriverHandle, origin: Origin) -> Option<FunctionResources> {
    let (device, _) = DEVICE.get()?;
    match origin {
        Origin::Module => {
            type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, DriverHandle) -> CudaResult;
            // SAFETY: the function's type.
            let get: GetAttribute = unsafe { driver::real_if_there(slot::cuFuncGetAttribute) }?;
            // SAFETY: a place of ours, and a function that the program is just launching.
            read_function(|value, attribute| unsafe { get(value, attribute, handle) })
        }
        Origin::Library => {
            type GetAttribute =
                unsafe extern "C" fn(*mut c_int, c_int, DriverHandle, c_int) -> CudaResult;
            // SAFETY: the function's type.
            let get: GetAttribute = unsafe { driver::real_if_there(slot::cuKernelGetAttribute) }?;
            // SAFETY: a place of ours, and a kernel that the program is just launching.
            read_function(|value, attribute| unsafe { get(value, attribute, handle, *device) })
        }
        Origin::Graph => None,
    }
}

fn read_function(get: impl Fn(*mut c_int, c_int) -> CudaResult) -> Option<FunctionResources> {
    let read = |attribute| number(|value| get(value, attribute));
    Some(FunctionResources {
        registers: read(function::REGISTERS)?,
        shared_bytes: read(function::SHARED_BYTES)?,
        block_threads: read(function::THREADS_MAX)?,
    })
}

/// Returns what a query writes, if it succeeds.
fn number(query: impl FnOnce(*mut c_int) -> CudaResult) -> Option<u32> {
    let mut value = 0;
    if query(&raw mut value) != SUCCESS {
        return None;
    }
    u32::try_from(value).ok()
}
