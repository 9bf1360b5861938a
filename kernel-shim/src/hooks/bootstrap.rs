//! Hooks for `cuGetProcAddress`, by which programs find the driver's functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::abi::{CudaResult, SUCCESS};
use crate::counters::{self, count};
use crate::driver::table::{self, ExportRow, slot};
use crate::{driver, log, procaddr, state};

const WHEN: u32 = crate::state::ALWAYS;

hooks! {
    cuGetProcAddress(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) |call| {
        let code = call();
        // SAFETY: what the driver took and wrote.
        unsafe { answer(code, symbol, function, (version, flags), |version, place| older(symbol, place, version, flags)) };
        code
    };

    cuGetProcAddress_v2(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) |call| {
        let code = call();
        // SAFETY: what the driver took and wrote.
        unsafe {
            answer(code, symbol, function, (version, flags), |version, place| {
                newer(symbol, place, version, flags)
            });
        }
        code
    };
}

/// Calls the driver again, as programs of CUDA 11 do.
///
/// # Safety
///
/// As `cuGetProcAddress`.
unsafe fn older(
    symbol: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CudaResult {
    type GetProcAddressFn =
        unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CudaResult;
    // SAFETY: the function's type; the caller answers for the arguments.
    unsafe {
        driver::real::<GetProcAddressFn>(slot::cuGetProcAddress)(symbol, place, version, flags)
    }
}

/// Calls the driver again, as programs since CUDA 12 do.
///
/// # Safety
///
/// As `cuGetProcAddress_v2`.
unsafe fn newer(
    symbol: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CudaResult {
    type GetProcAddressFn =
        unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CudaResult;
    let mut status = 0;
    // SAFETY: the function's type; the caller answers for the arguments.
    unsafe {
        driver::real::<GetProcAddressFn>(slot::cuGetProcAddress_v2)(
            symbol,
            place,
            version,
            flags,
            &raw mut status,
        )
    }
}

/// Replaces the driver's answer with the hook.
///
/// # Safety
///
/// The driver was just called with these arguments and returned `code`; `again` calls it for
/// another version.
unsafe fn answer(
    code: CudaResult,
    symbol: *const c_char,
    function: *mut *mut c_void,
    (version, flags): (c_int, u64),
    again: impl Fn(c_int, *mut *mut c_void) -> CudaResult,
) {
    if code != SUCCESS || symbol.is_null() || function.is_null() {
        return;
    }
    // SAFETY: not null, and written by the driver, which returned success.
    let address = unsafe { function.read() };
    if address.is_null() {
        return;
    }
    // SAFETY: not null, and a text that the driver just read.
    let Ok(name) = (unsafe { CStr::from_ptr(symbol) }).to_str() else { return };
    state::guarded(|| {
        let Some(row) = hooked(name, version, flags, address) else { return };
        if version > procaddr::TABLE_VERSION && !is_same(&again, address) {
            count(&counters::UNHOOKED);
            log::note(format_args!(
                "{name} has an unknown newer revision at {version}: it is not hooked"
            ));
            return;
        }
        let Some(hook) = row.hook else { return };
        // A driver whose symbols can be interposed answers with the hook already. The hook must not
        // call itself.
        if hook.0 == address.cast_const().cast() {
            return;
        }
        if table::address(row.slot) != address.cast() {
            table::set(row.slot, address);
        }
        // SAFETY: as for the read above.
        unsafe { function.write(hook.0.cast_mut().cast()) };
    });
}

fn hooked(
    name: &str,
    version: c_int,
    flags: u64,
    address: *mut c_void,
) -> Option<&'static ExportRow> {
    if !procaddr::is_known(name) {
        return None;
    }
    procaddr::best(name, version, flags, address.cast()).filter(|row| row.hook.is_some())
}

/// Returns whether the driver answered with the newest revision in the table.
fn is_same(again: &impl Fn(c_int, *mut *mut c_void) -> CudaResult, address: *mut c_void) -> bool {
    let mut known = std::ptr::null_mut();
    again(procaddr::TABLE_VERSION, &raw mut known) == SUCCESS && known == address
}
