//! Calls that wait for the device, and what is needed to know what they waited for.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use super::{after, written};
use crate::abi::{Code, Handle, STREAM_LEGACY, STREAM_NON_BLOCKING};
use crate::launch::{settle, waited};
use crate::{counters, streams};

/// Functions of one stream, with and without the ending.
macro_rules! of_stream {
    ($($symbol:ident $per_thread:literal;)+) => { hooks! { $(
        $symbol(stream: Handle) |call| {
            let before = launches();
            let code = call();
            after(code, || waited(Some(streams::meant(stream, $per_thread)), before))
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
        let before = launches();
        let code = call();
        after(code, || waited(None, before))
    };
    cuCtxSynchronize_v2(context: Handle) |call| {
        let before = launches();
        let code = call();
        after(code, || waited(None, before))
    };
    cuEventSynchronize(event: Handle) |call| {
        let before = launches();
        let code = call();
        after(code, || came(event, before))
    };
    cuEventQuery(event: Handle) |call| {
        let before = launches();
        let code = call();
        after(code, || came(event, before))
    };
    cuEventRecord(event: Handle, stream: Handle) |call| {
        let code = call();
        after(code, || streams::recorded(event, streams::meant(stream, false), launches()))
    };
    cuEventRecord_ptsz(event: Handle, stream: Handle) |call| {
        let code = call();
        after(code, || streams::recorded(event, streams::meant(stream, true), launches()))
    };
    cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) |call| {
        let code = call();
        after(code, || streams::recorded(event, streams::meant(stream, false), launches()))
    };
    cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: c_uint) |call| {
        let code = call();
        after(code, || streams::recorded(event, streams::meant(stream, true), launches()))
    };
    // Copies to the host that return when they are done have waited for their stream.
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |call| {
        let before = launches();
        let code = call();
        after(code, || waited(Some(STREAM_LEGACY), before))
    };
    cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: u64, bytes: usize) |call| {
        let before = launches();
        let code = call();
        after(code, || waited(Some(streams::meant(0, true)), before))
    };
    cuStreamCreate(out: *mut Handle, flags: c_uint) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { made(out, flags) })
    };
    cuStreamCreateWithPriority(out: *mut Handle, flags: c_uint, priority: c_int) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { made(out, flags) })
    };
    cuStreamDestroy(stream: Handle) |call| {
        let code = call();
        after(code, || streams::destroyed(stream))
    };
    cuStreamDestroy_v2(stream: Handle) |call| {
        let code = call();
        after(code, || streams::destroyed(stream))
    };
}

/// How many launches there were: what a call that begins now can wait for.
fn launches() -> u64 {
    counters::LAUNCHES.load(Ordering::Relaxed)
}

fn came(event: Handle, before: u64) {
    streams::came(event);
    settle(before);
}

/// Notes a new stream.
///
/// # Safety
///
/// `out` was written by the driver.
unsafe fn made(out: *const Handle, flags: c_uint) {
    // SAFETY: the caller's promise.
    if let Some(stream) = unsafe { written(out) } {
        streams::made(stream, flags & STREAM_NON_BLOCKING == 0);
    }
}
