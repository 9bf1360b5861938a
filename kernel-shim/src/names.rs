//! What each handle of a function or kernel is called, and whose it is.
//!
//! A handle is classified by where it came from, never by trying: a kernel's handle in a query for
//! functions is undefined. Handles are reused once their module is unloaded, so what came from one
//! is forgotten *before* it goes.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, Handle, SUCCESS};
use crate::driver;
use crate::exports::slot;

/// Most handles that are remembered; of those beyond, the driver is asked each time they are new
/// to the cache.
const NAMES_MAX: usize = 65_536;

/// Longest name that is copied: the queue takes no longer one.
const NAME_BYTES_MAX: usize = tessera_kernel_queue::limits::KERNEL_NAME_BYTES_MAX;

/// Where a handle came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A module: a `CUfunction`.
    Module,
    /// A library: a `CUkernel`, which launches take as well.
    Library,
}

/// What is known of a handle.
#[derive(Clone, Debug)]
pub struct Named {
    origin: Origin,
    /// The module or library; zero if it was not seen.
    owner: Handle,
    /// The name, if it was given or asked for.
    name: Option<String>,
    /// Its place among what came from its owner, for those without any name.
    ordinal: usize,
}

static NAMES: Mutex<Option<HashMap<Handle, Named>>> = Mutex::new(None);

fn names() -> MutexGuard<'static, Option<HashMap<Handle, Named>>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a handle that the driver gave out; what was known of it before is over.
pub fn note(handle: Handle, origin: Origin, owner: Handle, name: Option<String>) {
    let mut guard = names();
    let names = guard.get_or_insert_default();
    let known = names.get(&handle);
    let same = known.is_some_and(|known| (known.origin, known.owner) == (origin, owner));
    if same && (name.is_none() || known.is_some_and(|known| known.name == name)) {
        return;
    }
    if names.len() >= NAMES_MAX && known.is_none() {
        return;
    }
    let is_new = known.is_none();
    let ordinal = names.len();
    names.insert(handle, Named { origin, owner, name, ordinal });
    drop(guard);
    if !is_new {
        crate::kernels::forget();
    }
}

/// A function that the driver made from a kernel has its kernel's name and owner.
pub fn note_from_kernel(function: Handle, kernel: Handle) {
    let of = names().as_ref().and_then(|names| names.get(&kernel).cloned());
    let (owner, name) = of.map_or((0, None), |named| (named.owner, named.name));
    note(function, Origin::Module, owner, name);
}

/// Takes out all that came from a module or library, and what came from nowhere that was seen.
pub fn take(owner: Handle) -> Vec<(Handle, Named)> {
    let taken = match names().as_mut() {
        Some(names) => {
            let is_its = |_: &Handle, named: &mut Named| named.owner == owner || named.owner == 0;
            names.extract_if(is_its).collect()
        }
        None => Vec::new(),
    };
    crate::kernels::forget();
    taken
}

/// Puts back what [`take`] took out: the driver refused.
pub fn put_back(taken: Vec<(Handle, Named)>) {
    names().get_or_insert_default().extend(taken);
}

/// Forgets everything: a context is gone, and all that was loaded in it.
pub fn forget_all() {
    if let Some(names) = names().as_mut() {
        names.clear();
    }
    crate::kernels::forget();
}

/// Returns a handle's name. May ask the driver, once for each handle.
pub fn of(handle: Handle) -> String {
    let known = names().as_ref().and_then(|names| names.get(&handle).cloned());
    if let Some(name) = known.as_ref().and_then(|named| named.name.clone()) {
        return name;
    }
    let origin = known.as_ref().map_or(Origin::Module, |named| named.origin);
    let owner = known.as_ref().map_or(0, |named| named.owner);
    let name = ask(handle, origin)
        .unwrap_or_else(|| format!("?{}", known.as_ref().map_or(handle, |named| named.ordinal)));
    note(handle, origin, owner, Some(name.clone()));
    name
}

/// Asks the driver, if it is one that answers (12.3 and later).
fn ask(handle: Handle, origin: Origin) -> Option<String> {
    type GetName = unsafe extern "C" fn(*mut *const c_char, Handle) -> Code;
    let slot = match origin {
        Origin::Module => slot::cuFuncGetName,
        Origin::Library => slot::cuKernelGetName,
    };
    // SAFETY: both functions have this type.
    let get: GetName = unsafe { driver::real_if_there(slot) }?;
    let mut name = std::ptr::null();
    // SAFETY: a place of ours, and a handle that the program is just launching.
    if unsafe { get(&raw mut name, handle) } != SUCCESS {
        return None;
    }
    // SAFETY: the driver's text, which stays while the kernel is loaded.
    unsafe { text(name) }
}

/// Copies a name of C's.
///
/// # Safety
///
/// `name` is null or ends with a zero.
pub unsafe fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    (!name.is_empty()).then(|| {
        let mut name = String::from_utf8_lossy(name).into_owned();
        // Replacing what is no text may have made it longer.
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        name
    })
}
