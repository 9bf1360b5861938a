//! Streams whose work is written down into a graph instead of run.

use std::ffi::c_int;

use super::after;
use crate::abi::{Code, Handle, SUCCESS};
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
    cuStreamBeginCapture(stream: Handle);
    cuStreamBeginCapture_ptsz(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_int);
    cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, nodes: Handle, edges: Handle, count: usize, mode: c_int);
    cuStreamBeginCaptureToGraph_ptsz(stream: Handle, graph: Handle, nodes: Handle, edges: Handle, count: usize, mode: c_int);
    cuStreamBeginCaptureToCig(stream: Handle, parameters: Handle);
    cuStreamBeginCaptureToCig_ptsz(stream: Handle, parameters: Handle);
}

/// Functions that end one. An answer other than success may end it as well: the driver is asked.
macro_rules! ends {
    ($($symbol:ident $per_thread:literal ($($name:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(stream: Handle, $($name: $kind),*) |call| {
            let was = session::captures() && is_captured(stream, $per_thread);
            let code = call();
            if code == SUCCESS || was && !is_captured(stream, $per_thread) {
                session::count_captures(-1);
            }
            code
        };
    )+ } };
}

ends! {
    cuStreamEndCapture false (graph: *mut Handle);
    cuStreamEndCapture_ptsz true (graph: *mut Handle);
    cuStreamEndCaptureToCig false ();
    cuStreamEndCaptureToCig_ptsz true ();
}

/// Tells whether what is launched on a stream is written down. A stream joins a capture by
/// waiting for an event of one, so the driver is asked and not a list of ours; it may be asked at
/// any time, and where it does not say there is a capture about.
pub fn is_captured(stream: Handle, per_thread: bool) -> bool {
    type IsCapturing = unsafe extern "C" fn(Handle, *mut c_int) -> Code;
    let slot = if per_thread { slot::cuStreamIsCapturing_ptsz } else { slot::cuStreamIsCapturing };
    let mut status = 0;
    // SAFETY: the type of both functions; the program's stream and a place of ours.
    let code = unsafe { driver::real::<IsCapturing>(slot)(stream, &raw mut status) };
    code != SUCCESS || status != 0
}
