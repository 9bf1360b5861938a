//! The real driver: found, opened once, and called.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Once;

use crate::abi::{Code, NO_DEVICE, NOT_SUPPORTED};
use crate::{exports, state};

mod search;

/// A symbol that only a shim exports, so that one shim never takes another for the driver.
const MARK: &CStr = c"tessera_kernel_shim_counters";

static OPENED: Once = Once::new();

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Opens the driver, if that was not done, and decides whether the shim has anything to do here.
pub fn open() {
    // The driver's constructors may call the driver: the first call still waits for their end.
    if OPENING.with(Cell::get) {
        return;
    }
    OPENING.with(|opening| opening.set(true));
    OPENED.call_once(|| {
        let found = state::guarded(find_and_fill).unwrap_or(false);
        // A bug of the shim's is noted in its log: the program's outputs are the program's.
        std::panic::set_hook(Box::new(|bug| crate::log::note(format_args!("{bug}"))));
        let wanted = found && crate::settings::settings().is_some();
        state::turn(state::COLD, if wanted { state::PASSIVE } else { state::INERT });
    });
    OPENING.with(|opening| opening.set(false));
}

/// Returns where a slot's calls go once the driver is open.
pub fn opened(slot: usize) -> *mut () {
    // Still the finder of a driver that is just being opened by this very thread?
    if OPENING.with(Cell::get) { absent as *mut () } else { exports::address(slot) }
}

/// Returns the driver's function of a slot.
///
/// # Safety
///
/// `F` is the type of the function that the slot stands for.
#[inline]
pub unsafe fn real<F: Copy>(slot: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut ()>(), "a function") };
    let address = exports::address(slot);
    // SAFETY: a slot always holds the address of a function; the caller answers for its type.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Returns the driver's function of a slot if this driver has it.
///
/// # Safety
///
/// As for [`real`].
pub unsafe fn real_if_there<F: Copy>(slot: usize) -> Option<F> {
    if exports::address(slot) == absent as *mut () {
        return None;
    }
    // SAFETY: the caller answers for the type.
    Some(unsafe { real(slot) })
}

/// What a program calls that this driver does not have: as a stub of a newer driver would answer.
extern "C" fn absent() -> Code {
    NOT_SUPPORTED
}

/// What a program calls on a machine without a driver.
extern "C" fn no_driver() -> Code {
    NO_DEVICE
}

fn find_and_fill() -> bool {
    let found = search::candidates().into_iter().find_map(|path| load(&path));
    let Some(library) = found else {
        crate::log::note(format_args!("no libcuda.so.1 but this one: there is no device"));
        for slot in 0..exports::SLOTS {
            exports::set(slot, no_driver as *mut c_void);
        }
        return false;
    };
    for (slot, name) in exports::NAMES.iter().enumerate() {
        // SAFETY: an open library and a name that ends with a zero.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        exports::set(slot, if address.is_null() { absent as *mut c_void } else { address });
    }
    true
}

fn load(path: &Path) -> Option<*mut c_void> {
    if search::is_this_library(path) {
        return None;
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // By its path: by the bare name the loader would give the shim itself.
    // SAFETY: a text that ends with a zero. What the library does when it is loaded is what it
    // does in any program of CUDA's.
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
