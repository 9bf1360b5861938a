//! Every way to have a kernel or a graph run.

use std::ffi::c_uint;

use crate::abi::{Code, DEPENDENT_LAUNCH, Handle, LaunchConfig, LaunchParams, STREAM_LEGACY};
use crate::kernels::Shape;
use crate::launch::{Launch, launch};

/// Takes in the two functions whose path is short: one launch in the usual form.
macro_rules! plain {
    ($($symbol:ident $per_thread:literal ($($more:ident : $kind:ty),*);)+) => { hooks! { $(
        $symbol(
            function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
            shared: c_uint, stream: Handle, $($more: $kind),*
        ) |call| {
            let shape = Shape { function, grid: [gx, gy, gz], block: [bx, by, bz] };
            launch(&Launch { shape, stream, per_thread: $per_thread, dependent: false }, call)
        };
    )+ } };
}

plain! {
    cuLaunchKernel false (parameters: Handle, extra: Handle);
    cuLaunchKernel_ptsz true (parameters: Handle, extra: Handle);
    cuLaunchCooperativeKernel false (parameters: Handle);
    cuLaunchCooperativeKernel_ptsz true (parameters: Handle);
}

hooks! {
    cuLaunchKernelEx(config: *const LaunchConfig, function: Handle, parameters: Handle, extra: Handle) |call| {
        // SAFETY: the program's structure, which the driver reads as well.
        match unsafe { described(config, function, false) } {
            Some(what) => launch(&what, call),
            None => call(),
        }
    };
    cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: Handle, parameters: Handle, extra: Handle) |call| {
        // SAFETY: as above.
        match unsafe { described(config, function, true) } {
            Some(what) => launch(&what, call),
            None => call(),
        }
    };
    cuLaunchCooperativeKernelMultiDevice(list: *const LaunchParams, count: c_uint, flags: c_uint) |call| {
        // Kernels of several devices wait for each other: it is told as its first one, and goes.
        // SAFETY: the program's list, which the driver reads as well.
        match unsafe { super::written(list) }.filter(|_| count > 0) {
            Some(first) => {
                let shape = Shape { function: first.function, grid: first.grid, block: first.block };
                launch(&Launch { shape, stream: first.stream, per_thread: false, dependent: true }, call)
            }
            None => call(),
        }
    };
    cuGraphLaunch(graph: Handle, stream: Handle) |call| launch(&whole(graph, stream, false), call);
    cuGraphLaunch_ptsz(graph: Handle, stream: Handle) |call| launch(&whole(graph, stream, true), call);
    // The forms of before CUDA 4: the block's sides were set by calls of their own, and are one
    // number less to tell kernels apart by.
    cuLaunch(function: Handle) |call| launch(&old(function, [1, 1], STREAM_LEGACY), call);
    cuLaunchGrid(function: Handle, width: c_uint, height: c_uint) |call| {
        launch(&old(function, [width, height], STREAM_LEGACY), call)
    };
    cuLaunchGridAsync(function: Handle, width: c_uint, height: c_uint, stream: Handle) |call| {
        launch(&old(function, [width, height], stream), call)
    };
}

/// A graph is one kernel: all of it runs before anything else of its stream does.
fn whole(graph: Handle, stream: Handle, per_thread: bool) -> Launch {
    let shape = Shape { function: graph, grid: [1; 3], block: [1; 3] };
    Launch { shape, stream, per_thread, dependent: false }
}

fn old(function: Handle, [width, height]: [c_uint; 2], stream: Handle) -> Launch {
    let shape = Shape { function, grid: [width, height, 1], block: [0; 3] };
    Launch { shape, stream, per_thread: false, dependent: false }
}

/// Reads what a launch's structure says of it.
///
/// # Safety
///
/// `config` is null or the structure that the program gives the driver.
unsafe fn described(
    config: *const LaunchConfig,
    function: Handle,
    per_thread: bool,
) -> Option<Launch> {
    // SAFETY: the caller's promise.
    let config = unsafe { config.as_ref() }?;
    let attributes = match usize::try_from(config.attributes_count) {
        Ok(count) if count > 0 && !config.attributes.is_null() => {
            // SAFETY: the program's list of so many, which the driver reads as well.
            unsafe { std::slice::from_raw_parts(config.attributes, count) }
        }
        _ => &[],
    };
    let dependent = attributes.iter().any(|attribute| DEPENDENT_LAUNCH.contains(&attribute.id));
    let shape = Shape { function, grid: config.grid, block: config.block };
    Some(Launch { shape, stream: config.stream, per_thread, dependent })
}
