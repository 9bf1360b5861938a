//! The real driver: found, opened once, and called.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Once;

use crate::abi::{CudaResult, NO_DEVICE, NOT_SUPPORTED};
use crate::state::{self, HookScope};

mod search;
pub mod table;

/// A symbol that only a shim exports, so that one shim never mistakes another for the driver.
const MARK: &CStr = c"tessera_kernel_shim_counters";

static OPENED: Once = Once::new();

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Opens the driver once and decides whether the shim is active in this process.
pub fn open() {
    // The driver's constructors may call the driver while the first call still waits for them.
    if OPENING.with(Cell::get) {
        return;
    }
    OPENING.with(|opening| opening.set(true));
    OPENED.call_once(|| {
        let found = state::guarded(find_and_fill).unwrap_or(false);
        // Bugs of the shim go to its log, never to the program's outputs.
        std::panic::set_hook(Box::new(|bug| crate::log::note(format_args!("{bug}"))));
        let next = match found {
            true if crate::settings::settings().is_some() => state::PASSIVE,
            true if crate::watch::begin() => state::WATCHING,
            true | false => state::INERT,
        };
        if next == state::PASSIVE {
            crate::watch::begin();
        }
        state::transition(state::COLD, next);
    });
    OPENING.with(|opening| opening.set(false));
}

/// Enters a hook that works in the states of `when`, and opens the driver before the first one. `None` if the call must
/// be passed on.
#[inline]
pub fn enter_hook(when: u32) -> Option<HookScope> {
    if !state::is_one_of(when) {
        if state::mode() != state::COLD {
            return None;
        }
        open();
        if !state::is_one_of(when) {
            return None;
        }
    }
    state::enter_hook()
}

/// Returns the target of a slot's calls once the driver is open.
pub fn opened(slot: usize) -> *mut () {
    // While this thread opens the driver, the slot still holds the function that opens it.
    if OPENING.with(Cell::get) { absent as *mut () } else { table::address(slot) }
}

/// Returns the driver's function of a slot.
///
/// # Safety
///
/// `F` is the type of the function that the slot stands for.
#[inline]
pub unsafe fn real<F: Copy>(slot: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut ()>(), "a function") };
    let address = table::address(slot);
    // SAFETY: a slot always holds the address of a function; the caller answers for its type.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Returns the driver's function of a slot if this driver has it.
///
/// # Safety
///
/// As for [`real`].
pub unsafe fn real_if_there<F: Copy>(slot: usize) -> Option<F> {
    if table::address(slot) == absent as *mut () {
        return None;
    }
    // SAFETY: the caller answers for the type.
    Some(unsafe { real(slot) })
}

/// Stands for a function that this driver lacks. It answers as a stub of a newer driver would.
extern "C" fn absent() -> CudaResult {
    NOT_SUPPORTED
}

/// Stands for every function on a machine without a driver.
extern "C" fn no_driver() -> CudaResult {
    NO_DEVICE
}

fn find_and_fill() -> bool {
    let found = search::candidates().into_iter().find_map(|path| load(&path));
    let Some(library) = found else {
        crate::log::note(format_args!("no libcuda.so.1 except this one: there is no device"));
        for slot in 0..table::SLOTS {
            table::set(slot, no_driver as *mut c_void);
        }
        return false;
    };
    for (slot, name) in table::NAMES.iter().enumerate() {
        // SAFETY: an open library and a name that ends with a zero.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        table::set(slot, if address.is_null() { absent as *mut c_void } else { address });
    }
    true
}

fn load(path: &Path) -> Option<*mut c_void> {
    if search::is_this_library(path) {
        return None;
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // By its path: by the bare name the loader would give the shim itself.
    // SAFETY: a text that ends with a zero. Loading the library does the same as in any CUDA program.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library and a name that ends with a zero.
    if unsafe { !libc::dlsym(library, MARK.as_ptr()).is_null() } {
        return None;
    }
    Some(library)
}
