//! A small kernel as a client of the slice's MPS server: works, or doesn't.
//!
//! Runs in its own process, since a broken server may hang it.

use std::ffi::{CStr, c_int, c_uint, c_void};

/// The driver's library, as every CUDA program finds it.
const LIBRARY: &CStr = c"libcuda.so.1";
/// Bytes that the kernel writes: one page of a client's memory.
const BYTES: usize = 4096;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Set = unsafe extern "C" fn(u64, u8, usize) -> c_int;
type Wait = unsafe extern "C" fn() -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Why the small kernel didn't run.
#[derive(Debug, thiserror::Error)]
pub enum KernelRunError {
    /// The driver lacks a function.
    #[error("the driver has no {0}")]
    NoFunction(String),
    /// A call failed.
    #[error("{call} returned CUresult {code}")]
    Refused {
        /// The function.
        call: &'static str,
        /// What it returned: a `CUresult` of the driver.
        code: i32,
    },
}

/// Creates a context, runs a small kernel, and destroys the context.
///
/// # Errors
///
/// [`KernelRunError`]. Without a driver's library nothing can be tested, and that is no error: the
/// server's status has to be enough.
pub fn run() -> Result<(), KernelRunError> {
    // SAFETY: the name is a C string; loading the driver is what every CUDA program does.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Ok(());
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle is the library's, and stays loaded until the process ends.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() {
            Err(KernelRunError::NoFunction(name.to_string_lossy().into_owned()))
        } else {
            Ok(found)
        }
    };
    // SAFETY: these are the functions' types in NVIDIA's `cuda.h`.
    let (init, device_get, create, allocate, set, wait, destroy) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Init>(symbol(c"cuInit")?),
            std::mem::transmute::<*mut c_void, DeviceGet>(symbol(c"cuDeviceGet")?),
            std::mem::transmute::<*mut c_void, Create>(symbol(c"cuCtxCreate_v2")?),
            std::mem::transmute::<*mut c_void, Allocate>(symbol(c"cuMemAlloc_v2")?),
            std::mem::transmute::<*mut c_void, Set>(symbol(c"cuMemsetD8_v2")?),
            std::mem::transmute::<*mut c_void, Wait>(symbol(c"cuCtxSynchronize")?),
            std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cuCtxDestroy_v2")?),
        )
    };
    let check = |call: &'static str, code: c_int| match code {
        0 => Ok(()),
        code => Err(KernelRunError::Refused { call, code }),
    };
    let (mut device, mut context, mut memory) = (0, std::ptr::null_mut(), 0);
    // SAFETY: every pointer is to a live local of the function's own type, in the order that the
    // driver's document prescribes.
    unsafe {
        check("cuInit", init(0))?;
        check("cuDeviceGet", device_get(&raw mut device, 0))?;
        check("cuCtxCreate", create(&raw mut context, 0, device))?;
        check("cuMemAlloc", allocate(&raw mut memory, BYTES))?;
        check("cuMemsetD8", set(memory, 7, BYTES))?;
        check("cuCtxSynchronize", wait())?;
        check("cuCtxDestroy", destroy(context))
    }
}
