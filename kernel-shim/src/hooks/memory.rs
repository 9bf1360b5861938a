//! Memory of the device that the process takes: looked at, never limited.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use super::{after, written};
use crate::abi::{Code, Handle, SUCCESS};
use crate::counters::{MEMORY_PEAK, MEMORY_USED};

/// Most allocations that are followed; those beyond are not counted. Frameworks keep few large
/// ones.
const ALLOCATIONS_MAX: usize = 1 << 20;

static HELD: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// Functions that take memory, by their arguments.
macro_rules! takes {
    ($($symbol:ident ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(out: *mut u64, bytes: usize, $($name: $kind),*) |call| {
            let code = call();
            // SAFETY: written by the driver.
            after(code, || unsafe { took(out, bytes) })
        };
    )+ } };
}

takes! {
    cuMemAlloc_v2();
    cuMemAllocManaged(flags: c_uint);
    cuMemAllocAsync(stream: Handle);
    cuMemAllocAsync_ptsz(stream: Handle);
    cuMemAllocFromPoolAsync(pool: Handle, stream: Handle);
    cuMemAllocFromPoolAsync_ptsz(pool: Handle, stream: Handle);
    cuMemCreate(properties: *const c_void, flags: u64);
}

/// Functions that give memory back.
macro_rules! gives {
    ($($symbol:ident ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(what: u64, $($name: $kind),*) |call| gave(what, call);
    )+ } };
}

gives! {
    cuMemFree_v2();
    cuMemFreeAsync(stream: Handle);
    cuMemFreeAsync_ptsz(stream: Handle);
    cuMemRelease();
}

hooks! {
    cuMemAllocPitch_v2(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) |call| {
        let code = call();
        after(code, || {
            // SAFETY: both written by the driver.
            let pitch = unsafe { written(pitch) }.unwrap_or(width);
            // SAFETY: as above.
            unsafe { took(out, pitch.saturating_mul(height)) }
        })
    };
}

/// Notes memory that was taken.
///
/// # Safety
///
/// `out` was written by the driver.
unsafe fn took(out: *const u64, bytes: usize) {
    // SAFETY: the caller's promise.
    if let Some(what) = unsafe { written(out) } {
        hold(what, u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}

fn hold(what: u64, bytes: u64) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let held = held.get_or_insert_default();
    if held.len() < ALLOCATIONS_MAX {
        let before = held.insert(what, bytes).unwrap_or(0);
        let used = MEMORY_USED.load(Ordering::Relaxed).saturating_sub(before).saturating_add(bytes);
        MEMORY_USED.store(used, Ordering::Relaxed);
        MEMORY_PEAK.fetch_max(used, Ordering::Relaxed);
    }
}

/// Gives memory back: out of the books first, because another thread may get the same address
/// before this one is back from the driver.
fn gave(what: u64, call: impl FnOnce() -> Code) -> Code {
    let bytes = crate::state::guarded(|| {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = held.as_mut().and_then(|held| held.remove(&what))?;
        MEMORY_USED.fetch_sub(bytes, Ordering::Relaxed);
        Some(bytes)
    });
    let code = call();
    if let (Some(Some(bytes)), true) = (bytes, code != SUCCESS) {
        crate::state::guarded(|| hold(what, bytes));
    }
    code
}
