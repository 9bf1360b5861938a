//! The names and owners of the handles of functions and kernels.
//!
//! A handle is classified by its origin and never by trial, since querying a kernel's handle as a
//! function is undefined. The driver reuses handles after their module is unloaded, so a module's
//! handles are discarded *before* it is unloaded.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tessera_kernel_queue::need::FunctionResources;

use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::driver::table::slot;
use crate::{captures, driver, kernel_cache, resources};

/// Most handles that are stored. For further handles the driver is queried each time.
const NAMES_MAX: usize = 65_536;

/// Longest name that is copied: the queue accepts no longer one.
const NAME_BYTES_MAX: usize = tessera_kernel_queue::limits::KERNEL_NAME_BYTES_MAX;

/// The origin of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A module: a `CUfunction`.
    Module,
    /// A library: a `CUkernel`, which launches take as well.
    Library,
    /// An instance of a graph.
    Graph,
}

/// The name and owner of a handle.
#[derive(Clone, Debug)]
pub struct NamedHandle {
    origin: Origin,
    /// The module or library; zero if unknown.
    owner: DriverHandle,
    /// The name, if known.
    name: Option<String>,
    /// What the driver reported about it, once it was queried.
    resources: Option<Option<FunctionResources>>,
    /// Its position among all handles, for those without a name.
    ordinal: usize,
}

static NAMES: Mutex<Option<HashMap<DriverHandle, NamedHandle>>> = Mutex::new(None);

fn names() -> MutexGuard<'static, Option<HashMap<DriverHandle, NamedHandle>>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a handle from the driver. It replaces an earlier record.
pub fn note(handle: DriverHandle, origin: Origin, owner: DriverHandle, name: Option<String>) {
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
    let resources = known.filter(|_| same).and_then(|known| known.resources);
    names.insert(handle, NamedHandle { origin, owner, name, resources, ordinal });
    drop(guard);
    if !is_new {
        kernel_cache::forget();
    }
}

/// Records a function that the driver made from a kernel: it has the kernel's name and owner.
pub fn note_from_kernel(function: DriverHandle, kernel: DriverHandle) {
    let of = names().as_ref().and_then(|names| names.get(&kernel).cloned());
    let (owner, name) = of.map_or((0, None), |named| (named.owner, named.name));
    note(function, Origin::Module, owner, name);
}

/// Removes and returns all handles of a module or library, and those of unknown owners.
pub fn take_names_of(owner: DriverHandle) -> Vec<(DriverHandle, NamedHandle)> {
    let taken = match names().as_mut() {
        Some(names) => {
            let is_its = |_: &DriverHandle, named: &mut NamedHandle| {
                named.owner == owner || named.owner == 0
            };
            names.extract_if(is_its).collect()
        }
        None => Vec::new(),
    };
    kernel_cache::forget();
    taken
}

/// Puts back what [`take_names_of`] removed, since the driver refused.
pub fn put_back(taken: Vec<(DriverHandle, NamedHandle)>) {
    names().get_or_insert_default().extend(taken);
}

/// Discards all handles, since their context is gone.
pub fn forget_all() {
    if let Some(names) = names().as_mut() {
        names.clear();
    }
    kernel_cache::forget();
}

/// Returns a handle's name. It may query the driver, once for each handle.
pub fn name_of(handle: DriverHandle) -> String {
    let known = names().as_ref().and_then(|names| names.get(&handle).cloned());
    if let Some(name) = known.as_ref().and_then(|named| named.name.clone()) {
        return name;
    }
    let origin = known.as_ref().map_or(Origin::Module, |named| named.origin);
    let owner = known.as_ref().map_or(0, |named| named.owner);
    let name = query_driver(handle, origin)
        .unwrap_or_else(|| format!("?{}", known.as_ref().map_or(handle, |named| named.ordinal)));
    note(handle, origin, owner, Some(name.clone()));
    name
}

/// Returns what the driver reports about a handle's function. It queries the driver once for each handle.
///
/// While anything is captured nothing is queried, since a function may be loaded for the query. It is
/// queried at a later launch of a new shape.
pub fn resources_of(handle: DriverHandle) -> Option<FunctionResources> {
    let named = names().as_ref().and_then(|names| names.get(&handle).cloned())?;
    // Without an owner its origin is only assumed.
    if named.resources.is_some() || named.owner == 0 || captures::is_capturing() {
        return named.resources.flatten();
    }
    let found = resources::query_function(handle, named.origin);
    if let Some(named) = names().as_mut().and_then(|names| names.get_mut(&handle)) {
        named.resources = Some(found);
    }
    found
}

/// Queries the driver for a name (version 12.3 and later).
fn query_driver(handle: DriverHandle, origin: Origin) -> Option<String> {
    type GetName = unsafe extern "C" fn(*mut *const c_char, DriverHandle) -> CudaResult;
    let slot = match origin {
        Origin::Module => slot::cuFuncGetName,
        Origin::Library => slot::cuKernelGetName,
        Origin::Graph => return None,
    };
    // SAFETY: both functions have this type.
    let get: GetName = unsafe { driver::real_if_there(slot) }?;
    let mut name = std::ptr::null();
    // SAFETY: a place of ours, and a handle that the program is just launching.
    if unsafe { get(&raw mut name, handle) } != SUCCESS {
        return None;
    }
    // SAFETY: the driver's text, which stays while the kernel is loaded.
    unsafe { copy_text(name) }
}

/// Copies a C string.
///
/// # Safety
///
/// `name` is null or ends with a zero.
pub unsafe fn copy_text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    (!name.is_empty()).then(|| {
        let mut name = String::from_utf8_lossy(name).into_owned();
        // Replacing invalid bytes may have made it longer.
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        name
    })
}
