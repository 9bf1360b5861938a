//! Captures: the work of a stream is recorded in a graph instead of run.

use std::ffi::c_int;

use super::after;
use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::exports::slot;
use crate::{driver, session};

/// Functions that begin a capture, by their arguments.
macro_rules! begins {
    ($($symbol:ident ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol($($name: $kind),*) |call| {
            let code = call();
            after(code, || session::count_captures(1))
        };
    )+ } };
}

begins! {
    cuStreamBeginCapture(stream: DriverHandle);
    cuStreamBeginCapture_ptsz(stream: DriverHandle);
    cuStreamBeginCapture_v2(stream: DriverHandle, mode: c_int);
    cuStreamBeginCapture_v2_ptsz(stream: DriverHandle, mode: c_int);
    cuStreamBeginCaptureToGraph(stream: DriverHandle, graph: DriverHandle, nodes: DriverHandle, edges: DriverHandle, count: usize, mode: c_int);
    cuStreamBeginCaptureToGraph_ptsz(stream: DriverHandle, graph: DriverHandle, nodes: DriverHandle, edges: DriverHandle, count: usize, mode: c_int);
    cuStreamBeginCaptureToCig(stream: DriverHandle, parameters: DriverHandle);
    cuStreamBeginCaptureToCig_ptsz(stream: DriverHandle, parameters: DriverHandle);
}

/// Functions that end a capture. A failed call may end it as well, so the driver is queried.
macro_rules! ends {
    ($($symbol:ident $per_thread:literal ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(stream: DriverHandle, $($name: $kind),*) |call| {
            let was = session::is_capturing() && is_captured(stream, $per_thread);
            let code = call();
            if code == SUCCESS || was && !is_captured(stream, $per_thread) {
                session::count_captures(-1);
            }
            code
        };
    )+ } };
}

ends! {
    cuStreamEndCapture false (graph: *mut DriverHandle);
    cuStreamEndCapture_ptsz true (graph: *mut DriverHandle);
    cuStreamEndCaptureToCig false ();
    cuStreamEndCaptureToCig_ptsz true ();
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
