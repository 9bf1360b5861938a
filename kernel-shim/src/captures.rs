//! Captures: the work of a stream is recorded in a graph instead of run.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::driver;
use crate::driver::table::slot;

/// The number of captures in progress in the process.
static CAPTURES: AtomicI32 = AtomicI32::new(0);

/// Returns whether any capture is in progress: then many calls are errors.
#[inline]
pub fn is_capturing() -> bool {
    CAPTURES.load(Ordering::Relaxed) > 0
}

/// Counts the start or end of a capture.
pub fn count_captures(more: i32) {
    CAPTURES.fetch_add(more, Ordering::Relaxed);
}

/// Returns whether launches on a stream are captured.
///
/// A stream joins a capture by waiting for one of its events, so only the driver knows. The query
/// is always allowed. An error counts as a capture.
pub fn is_captured(stream: DriverHandle, per_thread: bool) -> bool {
    type IsCapturing = unsafe extern "C" fn(DriverHandle, *mut c_int) -> CudaResult;
    let slot = if per_thread { slot::cuStreamIsCapturing_ptsz } else { slot::cuStreamIsCapturing };
    let mut status = 0;
    // SAFETY: the type of both functions; the program's stream and a place of ours.
    let code = unsafe { driver::real::<IsCapturing>(slot)(stream, &raw mut status) };
    code != SUCCESS || status != 0
}
