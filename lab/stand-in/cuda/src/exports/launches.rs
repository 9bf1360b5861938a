//! Launches of kernels and host functions.

use std::ffi::c_void;
use std::ptr;

use tessera_stand_in::cuda::image::{ImageKernel, LaunchShape};

use super::images::{SHARED_MAX, param_places};
use crate::abi::{CallResult, CudaCode, H, HostFunction, InPointer, LaunchConfig};
use crate::gate::{GateCall, cuda};
use crate::world::{AHEAD, DriverState, KernelLaunch, PutOutcome, StreamStep};

/// Limits of compute capability 8.0.
const THREADS_MAX: u64 = 1_024;
const THREADS_OF_SM: u64 = 2_048;
const REGISTERS: u64 = 65_536;
/// Dynamic shared memory of a function that requested no more.
const SHARED_USUAL: u32 = 49_152;
/// Attribute of a launch: cooperative.
const COOPERATIVE: u32 = 2;
/// Maximum number of attributes that a launch has.
const ATTRIBUTES_MAX: u32 = 64;

/// Entries of the array `extra`.
const EXTRA_END: usize = 0;
const EXTRA_BUFFER: usize = 1;
const EXTRA_SIZE: usize = 2;

/// What a launch requests.
struct LaunchRequest {
    function: H,
    shape: LaunchShape,
    shared_bytes: u32,
    stream: H,
    params: InPointer<*const u8>,
    extra: InPointer<*mut c_void>,
    cooperative: bool,
}

cuda! {
    fn cuLaunchKernel / cuLaunchKernel_ptsz(
        function: H,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: H,
        params: InPointer<*const u8>,
        extra: InPointer<*mut c_void>,
    ) |call| {
        let shape = LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
        let cooperative = false;
        launch(call, &LaunchRequest { function, shape, shared_bytes, stream, params, extra, cooperative })
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz(
        config: InPointer<LaunchConfig>,
        function: H,
        params: InPointer<*const u8>,
        extra: InPointer<*mut c_void>,
    ) |call| {
        let config = config.value()?;
        let LaunchConfig { grid, block, shared_bytes, stream, .. } = config;
        let cooperative = is_cooperative(&config)?;
        let shape = LaunchShape { grid, block };
        launch(call, &LaunchRequest { function, shape, shared_bytes, stream, params, extra, cooperative })
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz(
        function: H,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: H,
        params: InPointer<*const u8>,
    ) |call| {
        let shape = LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
        // SAFETY: a null pointer of the type's own layout.
        let extra = unsafe { std::mem::zeroed() };
        let cooperative = true;
        launch(call, &LaunchRequest { function, shape, shared_bytes, stream, params, extra, cooperative })
    }

    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz(
        stream: H,
        function: Option<HostFunction>,
        data: *mut c_void,
    ) |call| {
        host(call, stream, function, data)
    }

    fn cuLaunchHostFunc_v2 / cuLaunchHostFunc_v2_ptsz(
        stream: H,
        function: Option<HostFunction>,
        data: *mut c_void,
        _mode: u32,
    ) |call| {
        host(call, stream, function, data)
    }
}

fn host(
    call: &GateCall,
    stream: H,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> CallResult {
    let function = function.ok_or(CudaCode::INVALID_VALUE)?;
    put(call, stream, |_, _| Ok(StreamStep::Host(function, data))).map(drop)
}

/// Puts a step at the end of a stream as soon as that has space.
pub fn put(
    call: &GateCall,
    stream: H,
    step: impl FnOnce(&mut DriverState, u64) -> CallResult<StreamStep>,
) -> CallResult<PutOutcome> {
    let driver = call.driver;
    let mut world = driver.world();
    let lane = world.lane_of(stream, call.per_thread())?;
    if !world.has_space(lane) {
        drop(world);
        driver.wait(|world| world.has_space(lane).then_some(()));
        world = driver.world();
    }
    let context = world.lane(lane)?.context;
    let step = step(&mut world, context)?;
    let now = driver.now();
    let put = world.put(lane, step, now)?;
    // The device is notified of what is next in the lane; a launch far behind does not matter to
    // it.
    if world.lane(lane)?.queue.len() <= AHEAD {
        world.pump(now);
    }
    Ok(put)
}

fn launch(call: &GateCall, request: &LaunchRequest) -> CallResult {
    put(call, request.stream, |world, context| {
        let found = world.launchable(request.function, context)?;
        let sms = u64::from(world.devices[world.context(context)?.device].visible.sms);
        check(request, &found.kernel, found.dynamic_shared_bytes, sms)?;
        let params = params_of(&found.kernel, request.params, request.extra)?;
        let LaunchRequest { function, shape, shared_bytes, .. } = *request;
        Ok(StreamStep::Kernel(KernelLaunch {
            function,
            kernel: found.kernel,
            shape,
            shared_bytes,
            params,
        }))
    })?;
    call.driver.spend_launch_cost(call.began);
    Ok(())
}

fn check(
    request: &LaunchRequest,
    kernel: &ImageKernel,
    dynamic_shared: i32,
    sms: u64,
) -> CallResult {
    let LaunchShape { grid, block } = request.shape;
    let product =
        |axes: [u32; 3]| axes.iter().fold(1_u64, |all, axis| all.saturating_mul(u64::from(*axis)));
    let (blocks, threads) = (product(grid), product(block));
    let too_wide = grid[0] > i32::MAX.cast_unsigned()
        || grid[1..].iter().any(|axis| *axis > 65_535)
        || block[2] > 64;
    if blocks == 0 || threads == 0 || threads > THREADS_MAX || too_wide {
        return Err(CudaCode::INVALID_VALUE);
    }
    let most = dynamic_shared.cast_unsigned().max(SHARED_USUAL);
    let whole = request.shared_bytes.saturating_add(kernel.shared_bytes);
    if whole > most || whole > SHARED_MAX.cast_unsigned() {
        return Err(CudaCode::INVALID_VALUE);
    }
    if threads * u64::from(kernel.registers) > REGISTERS {
        return Err(CudaCode::LAUNCH_OUT_OF_RESOURCES);
    }
    // All blocks of a cooperative launch have to be there at once.
    let by_threads = THREADS_OF_SM / threads;
    let by_registers = REGISTERS / (threads * u64::from(kernel.registers)).max(1);
    if request.cooperative && blocks > sms * by_threads.min(by_registers) {
        return Err(CudaCode::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

fn is_cooperative(config: &LaunchConfig) -> CallResult<bool> {
    if config.attribute_count > ATTRIBUTES_MAX {
        return Err(CudaCode::INVALID_VALUE);
    }
    if config.attributes.is_null() {
        return if config.attribute_count == 0 { Ok(false) } else { Err(CudaCode::INVALID_VALUE) };
    }
    let count = config.attribute_count as usize;
    // SAFETY: not null, so by the driver's contract an array of this many attributes.
    let attributes = unsafe { std::slice::from_raw_parts(config.attributes, count) };
    let mut cooperative = attributes.iter().filter(|attribute| attribute.id == COOPERATIVE);
    Ok(cooperative.any(|attribute| u32::try_from(attribute.value[0] & 0xffff_ffff) != Ok(0)))
}

/// Copies the values of a kernel's parameters, as the driver does before a launch returns.
pub fn params_of(
    kernel: &ImageKernel,
    params: InPointer<*const u8>,
    extra: InPointer<*mut c_void>,
) -> CallResult<Vec<Vec<u8>>> {
    let Some(sizes) = &kernel.params else { return Ok(Vec::new()) };
    let places: Vec<_> = param_places(sizes).collect();
    if places.is_empty() {
        return Ok(Vec::new());
    }
    if !params.is_null() {
        let values = params.list(places.len())?;
        return values.iter().zip(&places).map(|(at, (_, size))| bytes_at(*at, *size)).collect();
    }
    let buffer = buffer_of(extra)?;
    let end = places.last().map_or(0, |(offset, size)| offset + size);
    if buffer.len() < end {
        return Err(CudaCode::INVALID_VALUE);
    }
    Ok(places.iter().map(|(offset, size)| buffer[*offset..offset + size].to_vec()).collect())
}

fn buffer_of(extra: InPointer<*mut c_void>) -> CallResult<Vec<u8>> {
    let (mut at, mut bytes) = (ptr::null(), 0);
    let mut index = 0;
    loop {
        // Pairs of a key and its value, then the end.
        match extra.value_at(index)?.addr() {
            EXTRA_END => break,
            EXTRA_BUFFER => at = extra.value_at(index + 1)?.cast_const().cast::<u8>(),
            EXTRA_SIZE => {
                let size = extra.value_at(index + 1)?.cast::<usize>();
                if size.is_null() {
                    return Err(CudaCode::INVALID_VALUE);
                }
                // SAFETY: not null, so by the driver's contract the size of the buffer.
                bytes = unsafe { size.read() };
            }
            _ => return Err(CudaCode::INVALID_VALUE),
        }
        index += 2;
    }
    bytes_at(at, bytes)
}

fn bytes_at(at: *const u8, bytes: usize) -> CallResult<Vec<u8>> {
    if at.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    // SAFETY: not null, so by the driver's contract the program's memory of this size.
    Ok(unsafe { std::slice::from_raw_parts(at, bytes) }.to_vec())
}
