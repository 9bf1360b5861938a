//! Hooks for the begin and end of captures.

use std::ffi::c_int;

use super::after;
use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::captures::{count_captures, is_captured, is_capturing};
use crate::recall;

const WHEN: u32 = crate::state::WITH_QUEUE;

/// Functions that begin a capture, by their arguments.
macro_rules! begins {
    ($($symbol:ident ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol($($name: $kind),*) |call| {
            // During a capture some calls of the shim are errors, and end it.
            let _none_in_progress = recall::hold_calls();
            let code = call();
            after(code, || count_captures(1))
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
            let was = is_capturing() && is_captured(stream, $per_thread);
            let code = call();
            if code == SUCCESS || was && !is_captured(stream, $per_thread) {
                count_captures(-1);
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
