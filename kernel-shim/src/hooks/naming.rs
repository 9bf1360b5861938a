//! Where handles of functions and kernels come from, and when they stop meaning anything.

use std::ffi::{c_char, c_int, c_uint};

use super::{after, written};
use crate::abi::{Code, Handle, SUCCESS};
use crate::names::{self, Origin};
use crate::{fill, measure, state};

hooks! {
    cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char) |call| {
        let code = call();
        // SAFETY: written by the driver, which also read the name.
        after(code, || unsafe { given(out, Origin::Module, module, name) })
    };
    cuLibraryGetKernel(out: *mut Handle, library: Handle, name: *const c_char) |call| {
        let code = call();
        // SAFETY: as above.
        after(code, || unsafe { given(out, Origin::Library, library, name) })
    };
    cuKernelGetFunction(out: *mut Handle, kernel: Handle) |call| {
        let code = call();
        after(code, || {
            // SAFETY: written by the driver.
            if let Some(function) = unsafe { written(out) } {
                names::note_from_kernel(function, kernel);
            }
        })
    };
    cuModuleEnumerateFunctions(out: *mut Handle, count: c_uint, module: Handle) |call| {
        let code = call();
        // SAFETY: the driver wrote at most so many.
        after(code, || unsafe { listed(out, count, Origin::Module, module) })
    };
    cuLibraryEnumerateKernels(out: *mut Handle, count: c_uint, library: Handle) |call| {
        let code = call();
        // SAFETY: as above.
        after(code, || unsafe { listed(out, count, Origin::Library, library) })
    };
    cuModuleUnload(module: Handle) |call| unload(module, call);
    cuLibraryUnload(library: Handle) |call| unload(library, call);
    cuCtxDestroy(context: Handle) |call| context_ends(call);
    cuCtxDestroy_v2(context: Handle) |call| context_ends(call);
    cuDevicePrimaryCtxReset(device: c_int) |call| context_ends(call);
    cuDevicePrimaryCtxReset_v2(device: c_int) |call| context_ends(call);
    cuDevicePrimaryCtxRelease(device: c_int) |call| context_ends(call);
    cuDevicePrimaryCtxRelease_v2(device: c_int) |call| context_ends(call);
}

/// Notes one handle that the driver gave for a name.
///
/// # Safety
///
/// `out` was written by the driver; `name` is a text of C's.
unsafe fn given(out: *const Handle, origin: Origin, owner: Handle, name: *const c_char) {
    // SAFETY: the caller's promise.
    let (handle, name) = unsafe { (written(out), names::text(name)) };
    if let Some(handle) = handle {
        names::note(handle, origin, owner, name);
    }
}

/// Notes handles that the driver listed; it is asked for their names when they are launched.
///
/// # Safety
///
/// `out` is null or has room for `count` handles.
unsafe fn listed(out: *const Handle, count: c_uint, origin: Origin, owner: Handle) {
    let count = usize::try_from(count).unwrap_or(0);
    if out.is_null() {
        return;
    }
    for at in 0..count {
        // SAFETY: the caller's promise; a place that the driver left is what the program put there.
        let handle = unsafe { out.add(at).read_unaligned() };
        if handle != 0 {
            names::note(handle, origin, owner, None);
        }
    }
}

/// Forgets a module's handles before the driver may give the same ones to another.
fn unload(owner: Handle, call: impl FnOnce() -> Code) -> Code {
    let taken = state::guarded(|| names::take(owner)).unwrap_or_default();
    let code = call();
    if code != SUCCESS {
        state::guarded(|| names::put_back(taken));
    }
    code
}

/// Forgets what lives in contexts. If another one stays, its handles are asked for again, and its
/// events are left to it.
fn context_ends(call: impl FnOnce() -> Code) -> Code {
    state::guarded(|| {
        names::forget_all();
        fill::forget();
        measure::forget();
    });
    call()
}
