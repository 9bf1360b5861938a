//! Hooks for functions that create and invalidate handles of functions and kernels.

use std::ffi::{c_char, c_int, c_uint};

use super::{after, written};
use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::names::{self, Origin};
use crate::{filler, measure, recall, run_ahead, startup, state};

const WHEN: u32 = crate::state::WITH_QUEUE;

hooks! {
    cuModuleGetFunction(out: *mut DriverHandle, module: DriverHandle, name: *const c_char) |call| {
        let code = call();
        // SAFETY: written by the driver, which also read the name.
        after(code, || unsafe { record_handle(out, Origin::Module, module, name) })
    };
    cuLibraryGetKernel(out: *mut DriverHandle, library: DriverHandle, name: *const c_char) |call| {
        let code = call();
        // SAFETY: as above.
        after(code, || unsafe { record_handle(out, Origin::Library, library, name) })
    };
    cuKernelGetFunction(out: *mut DriverHandle, kernel: DriverHandle) |call| {
        let code = call();
        after(code, || {
            // SAFETY: written by the driver.
            if let Some(function) = unsafe { written(out) } {
                names::note_from_kernel(function, kernel);
            }
        })
    };
    cuModuleEnumerateFunctions(out: *mut DriverHandle, count: c_uint, module: DriverHandle) |call| {
        let code = call();
        // SAFETY: the driver wrote at most so many.
        after(code, || unsafe { record_list(out, count, Origin::Module, module) })
    };
    cuLibraryEnumerateKernels(out: *mut DriverHandle, count: c_uint, library: DriverHandle) |call| {
        let code = call();
        // SAFETY: as above.
        after(code, || unsafe { record_list(out, count, Origin::Library, library) })
    };
    cuModuleUnload(module: DriverHandle) |call| unload(module, call);
    cuLibraryUnload(library: DriverHandle) |call| unload(library, call);
    cuCtxDestroy(context: DriverHandle) |call| context_ends(call);
    cuCtxDestroy_v2(context: DriverHandle) |call| context_ends(call);
    cuDevicePrimaryCtxReset(device: c_int) |call| context_ends(call);
    cuDevicePrimaryCtxReset_v2(device: c_int) |call| context_ends(call);
    cuDevicePrimaryCtxRelease(device: c_int) |call| context_ends(call);
    cuDevicePrimaryCtxRelease_v2(device: c_int) |call| context_ends(call);
}

/// Records a handle that the driver returned for a name.
///
/// # Safety
///
/// `out` was written by the driver; `name` is a text of C's.
unsafe fn record_handle(
    out: *const DriverHandle,
    origin: Origin,
    owner: DriverHandle,
    name: *const c_char,
) {
    // SAFETY: the caller's promise.
    let (handle, name) = unsafe { (written(out), names::copy_text(name)) };
    if let Some(handle) = handle {
        names::note(handle, origin, owner, name);
        // It is going to launch: the session can begin meanwhile.
        if state::mode() == state::PASSIVE {
            startup::start_session_thread();
        }
    }
}

/// Records handles that the driver listed. Their names are queried at their first launch.
///
/// # Safety
///
/// `out` is null or points to space for `count` handles.
unsafe fn record_list(
    out: *const DriverHandle,
    count: c_uint,
    origin: Origin,
    owner: DriverHandle,
) {
    if out.is_null() {
        return;
    }
    for at in 0..count as usize {
        // SAFETY: the caller's promise; a place that the driver left is what the program put there.
        let handle = unsafe { out.add(at).read_unaligned() };
        if handle != 0 {
            names::note(handle, origin, owner, None);
        }
    }
}

/// Discards a module's handles before the driver can reuse them.
fn unload(owner: DriverHandle, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let taken = state::guarded(|| names::take_names_of(owner)).unwrap_or_default();
    let code = call();
    if code != SUCCESS {
        state::guarded(|| names::put_back(taken));
    }
    code
}

/// Discards everything that belongs to contexts. The names of another context are queried again,
/// and its events are left to the driver.
fn context_ends(call: impl FnOnce() -> CudaResult) -> CudaResult {
    state::guarded(|| {
        names::forget_all();
        filler::on_context_end();
        measure::forget();
        run_ahead::on_context_end();
        recall::on_context_end();
    });
    call()
}
