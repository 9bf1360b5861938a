//! Hooks for calls that wait for the device, and for the streams and events that they wait for.

use std::ffi::{c_int, c_uint, c_void};

use super::{after, written};
use crate::abi::{CudaResult, DriverHandle, STREAM_LEGACY, STREAM_NON_BLOCKING};
use crate::launch::{on_wait, report_idle};
use crate::streams;

const WHEN: u32 = crate::state::WITH_QUEUE;

/// Functions of one stream, with and without the suffix of per-thread default streams.
macro_rules! of_stream {
    ($($symbol:ident $per_thread:literal;)+) => { hooks! { $(
        $symbol(stream: DriverHandle) |call| {
            let before = streams::departed();
            let code = call();
            after(code, || on_wait(Some(streams::meant(stream, $per_thread)), before))
        };
    )+ } };
}

of_stream! {
    cuStreamSynchronize false;
    cuStreamSynchronize_ptsz true;
    cuStreamQuery false;
    cuStreamQuery_ptsz true;
}

hooks! {
    cuCtxSynchronize() |call| {
        let before = streams::departed();
        let code = call();
        after(code, || on_wait(None, before))
    };
    cuCtxSynchronize_v2(context: DriverHandle) |call| {
        let before = streams::departed();
        let code = call();
        after(code, || on_wait(None, before))
    };
    cuEventSynchronize(event: DriverHandle) |call| {
        let before = streams::departed();
        let code = call();
        after(code, || on_event(event, before))
    };
    cuEventQuery(event: DriverHandle) |call| {
        let before = streams::departed();
        let code = call();
        after(code, || on_event(event, before))
    };
    cuEventRecord(event: DriverHandle, stream: DriverHandle) |call| {
        let code = call();
        after(code, || streams::record_event(event, streams::meant(stream, false), streams::departed()))
    };
    cuEventRecord_ptsz(event: DriverHandle, stream: DriverHandle) |call| {
        let code = call();
        after(code, || streams::record_event(event, streams::meant(stream, true), streams::departed()))
    };
    cuEventRecordWithFlags(event: DriverHandle, stream: DriverHandle, flags: c_uint) |call| {
        let code = call();
        after(code, || streams::record_event(event, streams::meant(stream, false), streams::departed()))
    };
    cuEventRecordWithFlags_ptsz(event: DriverHandle, stream: DriverHandle, flags: c_uint) |call| {
        let code = call();
        after(code, || streams::record_event(event, streams::meant(stream, true), streams::departed()))
    };
    // A synchronous copy to the host has waited for its stream.
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |call| {
        let before = streams::departed();
        let code = call();
        after(code, || on_wait(Some(STREAM_LEGACY), before))
    };
    cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: u64, bytes: usize) |call| {
        let before = streams::departed();
        let code = call();
        after(code, || on_wait(Some(streams::meant(0, true)), before))
    };
    cuStreamCreate(out: *mut DriverHandle, flags: c_uint) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { record_stream(out, flags) })
    };
    cuStreamCreateWithPriority(out: *mut DriverHandle, flags: c_uint, priority: c_int) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { record_stream(out, flags) })
    };
    cuStreamDestroy(stream: DriverHandle) |call| {
        let code = call();
        after(code, || streams::remove_stream(stream))
    };
    cuStreamDestroy_v2(stream: DriverHandle) |call| {
        let code = call();
        after(code, || streams::remove_stream(stream))
    };
}

fn on_event(event: DriverHandle, before: u64) {
    streams::on_event(event);
    report_idle(before);
}

/// Records a new stream.
///
/// # Safety
///
/// `out` was written by the driver.
unsafe fn record_stream(out: *const DriverHandle, flags: c_uint) {
    // SAFETY: the caller's promise.
    if let Some(stream) = unsafe { written(out) } {
        streams::add_stream(stream, flags & STREAM_NON_BLOCKING == 0);
    }
}
