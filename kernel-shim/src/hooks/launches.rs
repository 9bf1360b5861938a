//! Hooks for every way to launch a kernel or a graph.

use std::ffi::c_uint;

use crate::abi::{CudaResult, DriverHandle, LaunchConfig, LaunchParams, STREAM_LEGACY};
use crate::kernel_cache::LaunchShape;
use crate::launch::{LaunchCall, launch};

const WHEN: u32 = crate::state::UNTIL_LAUNCH;

/// Hooks for functions that take the launch as plain arguments.
macro_rules! plain {
    ($($symbol:ident $per_thread:literal ($($more:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(
            function: DriverHandle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
            shared: c_uint, stream: DriverHandle, $($more: $kind),*
        ) |call| {
            let shape = LaunchShape { function, grid: [gx, gy, gz], block: [bx, by, bz] };
            launch(&LaunchCall { shape, shared_bytes: shared, stream, per_thread: $per_thread, waits_for_peers: false }, call)
        };
    )+ } };
}

plain! {
    cuLaunchKernel false (parameters: DriverHandle, extra: DriverHandle);
    cuLaunchKernel_ptsz true (parameters: DriverHandle, extra: DriverHandle);
    cuLaunchCooperativeKernel false (parameters: DriverHandle);
    cuLaunchCooperativeKernel_ptsz true (parameters: DriverHandle);
}

hooks! {
    cuLaunchKernelEx(config: *const LaunchConfig, function: DriverHandle, parameters: DriverHandle, extra: DriverHandle) |call| {
        // SAFETY: the program's structure, which the driver reads as well.
        match unsafe { described(config, function, false) } {
            Some(what) => launch(&what, call),
            None => call(),
        }
    };
    cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: DriverHandle, parameters: DriverHandle, extra: DriverHandle) |call| {
        // SAFETY: as above.
        match unsafe { described(config, function, true) } {
            Some(what) => launch(&what, call),
            None => call(),
        }
    };
    cuLaunchCooperativeKernelMultiDevice(list: *const LaunchParams, count: c_uint, flags: c_uint) |call| {
        // Kernels of several devices wait for each other: it is reported as its first kernel and
        // never waits.
        // SAFETY: the program's list, which the driver reads as well.
        match unsafe { super::written(list) }.filter(|_| count > 0) {
            Some(first) => {
                let shape = LaunchShape { function: first.function, grid: first.grid, block: first.block };
                let shared_bytes = first.shared_bytes;
                launch(&LaunchCall { shape, shared_bytes, stream: first.stream, per_thread: false, waits_for_peers: true }, call)
            }
            None => call(),
        }
    };
    cuGraphLaunch(graph: DriverHandle, stream: DriverHandle) |call| launch(&whole(graph, stream, false), call);
    cuGraphLaunch_ptsz(graph: DriverHandle, stream: DriverHandle) |call| launch(&whole(graph, stream, true), call);
    // The forms before CUDA 4 set the block's sides by separate calls, so the sides are unknown
    // here.
    cuLaunch(function: DriverHandle) |call| launch(&old(function, [1, 1], STREAM_LEGACY), call);
    cuLaunchGrid(function: DriverHandle, width: c_uint, height: c_uint) |call| {
        launch(&old(function, [width, height], STREAM_LEGACY), call)
    };
    cuLaunchGridAsync(function: DriverHandle, width: c_uint, height: c_uint, stream: DriverHandle) |call| {
        launch(&old(function, [width, height], stream), call)
    };
}

/// Returns the launch of a graph, which counts as one kernel.
fn whole(graph: DriverHandle, stream: DriverHandle, per_thread: bool) -> LaunchCall {
    let shape = LaunchShape { function: graph, grid: [1; 3], block: [1; 3] };
    LaunchCall { shape, shared_bytes: 0, stream, per_thread, waits_for_peers: false }
}

fn old(function: DriverHandle, [width, height]: [c_uint; 2], stream: DriverHandle) -> LaunchCall {
    let shape = LaunchShape { function, grid: [width, height, 1], block: [0; 3] };
    LaunchCall { shape, shared_bytes: 0, stream, per_thread: false, waits_for_peers: false }
}

/// Reads a launch from the program's structure.
///
/// # Safety
///
/// `config` is null or the structure that the program gives the driver.
unsafe fn described(
    config: *const LaunchConfig,
    function: DriverHandle,
    per_thread: bool,
) -> Option<LaunchCall> {
    // SAFETY: the caller's promise.
    let config = unsafe { config.as_ref() }?;
    // A launch that may start before its predecessor ends (attributes 6 and 7) waits like any other. The
    // later kernel depends on the earlier one, and never the reverse.
    let shape = LaunchShape { function, grid: config.grid, block: config.block };
    let (shared_bytes, stream) = (config.shared_bytes, config.stream);
    Some(LaunchCall { shape, shared_bytes, stream, per_thread, waits_for_peers: false })
}
