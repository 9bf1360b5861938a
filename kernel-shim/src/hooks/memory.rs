//! Device memory that the process allocates: it is observed and never limited.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use super::{after, written};
use crate::abi::{CudaResult, DriverHandle, OUT_OF_MEMORY, SUCCESS};
use crate::counters::{MEMORY_PEAK, MEMORY_USED};
use crate::watch;

const WHEN: u32 = crate::state::ALWAYS;

/// Maximum number of tracked allocations. Further ones are not counted. Frameworks keep few large ones.
const ALLOCATIONS_MAX: usize = 1 << 20;

static HELD: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// Functions that allocate memory, by their arguments.
macro_rules! takes {
    ($($symbol:ident ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(out: *mut u64, bytes: usize, $($name: $kind),*) |call| {
            let code = call();
            observe_refusal(code, bytes);
            // SAFETY: written by the driver.
            after(code, || unsafe { track_allocation(out, bytes) })
        };
    )+ } };
}

takes! {
    cuMemAlloc_v2();
    cuMemAllocManaged(flags: c_uint);
    cuMemAllocAsync(stream: DriverHandle);
    cuMemAllocAsync_ptsz(stream: DriverHandle);
    cuMemAllocFromPoolAsync(pool: DriverHandle, stream: DriverHandle);
    cuMemAllocFromPoolAsync_ptsz(pool: DriverHandle, stream: DriverHandle);
    cuMemCreate(properties: *const c_void, flags: u64);
}

/// Functions that free memory.
macro_rules! gives {
    ($($symbol:ident ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(what: u64, $($name: $kind),*) |call| gave(what, call);
    )+ } };
}

gives! {
    cuMemFree_v2();
    cuMemFreeAsync(stream: DriverHandle);
    cuMemFreeAsync_ptsz(stream: DriverHandle);
    cuMemRelease();
}

hooks! {
    cuMemAllocPitch_v2(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) |call| {
        let code = call();
        observe_refusal(code, width.saturating_mul(height));
        after(code, || {
            // SAFETY: both written by the driver.
            let pitch = unsafe { written(pitch) }.unwrap_or(width);
            // SAFETY: as above.
            unsafe { track_allocation(out, pitch.saturating_mul(height)) }
        })
    };
}

/// Observes a request that the driver refused because memory was short. The program gets the driver's answer.
fn observe_refusal(code: CudaResult, bytes: usize) {
    if code == OUT_OF_MEMORY && watch::is_on() {
        crate::state::guarded(|| watch::on_refusal(bytes as u64));
    }
}

/// Tracks an allocation.
///
/// # Safety
///
/// `out` was written by the driver.
unsafe fn track_allocation(out: *const u64, bytes: usize) {
    // SAFETY: the caller's promise.
    if let Some(what) = unsafe { written(out) } {
        hold(what, bytes as u64);
    }
}

fn hold(what: u64, bytes: u64) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let all = held.get_or_insert_default();
    if all.len() >= ALLOCATIONS_MAX {
        return;
    }
    let before = all.insert(what, bytes).unwrap_or(0);
    let used = MEMORY_USED.load(Ordering::Relaxed).saturating_sub(before).saturating_add(bytes);
    MEMORY_USED.store(used, Ordering::Relaxed);
    MEMORY_PEAK.fetch_max(used, Ordering::Relaxed);
    drop(held);
    if watch::is_on() {
        watch::on_allocation();
    }
}

/// Frees memory. The allocation is removed first, because another thread may get the same address
/// before this call returns.
fn gave(what: u64, call: impl FnOnce() -> CudaResult) -> CudaResult {
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
