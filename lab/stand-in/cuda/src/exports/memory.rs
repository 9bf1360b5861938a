//! Memory of the device and of the host.

use std::ffi::c_void;

use super::launches::put;
use crate::abi::{CallResult, CudaCode, DevicePointer, H, OutPointer, to_int, to_native};
use crate::driver::CudaDriver;
use crate::gate::cuda;
use crate::memory::{AllocationKind, MemoryAllocation};
use crate::world::{StreamStep, context_handle};

/// Flags of host memory that exist.
const HOST_FLAGS: u32 = 0xf;
/// Attributes of pointers.
const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
/// Values of `MEMORY_TYPE`.
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;

cuda! {
    fn cuMemAlloc_v2(address: OutPointer<DevicePointer>, bytes: usize) |call| {
        call.driver.world().refuse_unsafe()?;
        allocate(call.driver, address, bytes, AllocationKind::Device)
    }

    /// Waits for the context's work: some of it may use the memory.
    fn cuMemFree_v2(address: DevicePointer) |call| {
        if address == 0 {
            return Ok(());
        }
        free(call.driver, address, &[AllocationKind::Device, AllocationKind::Managed])
    }

    fn cuMemGetInfo_v2(free: OutPointer<usize>, total: OutPointer<usize>) |call| {
        let world = call.driver.world();
        let id = world.current()?;
        let memory = world.context(id)?.claim.memory().map_err(|_| CudaCode::UNKNOWN)?;
        free.offer(to_native(memory.free_bytes));
        total.offer(to_native(memory.total_bytes));
        Ok(())
    }

    fn cuMemAllocManaged(address: OutPointer<DevicePointer>, bytes: usize, flags: u32) |call| {
        if !matches!(flags, 1 | 2) {
            return Err(CudaCode::INVALID_VALUE);
        }
        call.driver.world().refuse_unsafe()?;
        allocate(call.driver, address, bytes, AllocationKind::Managed)
    }

    fn cuMemAllocHost_v2(address: OutPointer<*mut c_void>, bytes: usize) |call| {
        allocate_host(call.driver, address, bytes)
    }

    fn cuMemHostAlloc(address: OutPointer<*mut c_void>, bytes: usize, flags: u32) |call| {
        if flags & !HOST_FLAGS != 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        allocate_host(call.driver, address, bytes)
    }

    fn cuMemFreeHost(address: *mut c_void) |call| {
        if address.is_null() {
            return Ok(());
        }
        free(call.driver, number(address), &[AllocationKind::Host])
    }

    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32) |call| {
        if address.is_null() || bytes == 0 || flags & !HOST_FLAGS != 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut world = call.driver.world();
        let context = world.current()?;
        world.memory.register(number(address), bytes as u64, context)
    }

    fn cuMemHostUnregister(address: *mut c_void) |call| {
        let mut world = call.driver.world();
        world.current()?;
        let freed = world.memory.free(number(address), &[AllocationKind::Registered]);
        freed.map(drop).map_err(|_| CudaCode::HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(
        device: OutPointer<DevicePointer>,
        host: *mut c_void,
        flags: u32,
    ) |call| {
        let world = call.driver.world();
        world.current()?;
        let known = world.memory.at(number(host));
        if flags != 0 || !known.is_some_and(|a| matches!(a.kind, AllocationKind::Host | AllocationKind::Registered)) {
            return Err(CudaCode::INVALID_VALUE);
        }
        device.set(number(host))
    }

    fn cuMemAllocAsync / cuMemAllocAsync_ptsz(
        address: OutPointer<DevicePointer>,
        bytes: usize,
        stream: H,
    ) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        if world.lane(lane)?.capture.is_some() {
            world.refuse_captured(lane)?;
        }
        drop(world);
        allocate(call.driver, address, bytes, AllocationKind::Device)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz(address: DevicePointer, stream: H) |call| {
        if address == 0 {
            return Ok(());
        }
        put(call, stream, |world, _| {
            let known = world.memory.at(address).filter(|a| a.base == address);
            let known = known.filter(|a| a.kind == AllocationKind::Device);
            known.map(|_| StreamStep::Free(address)).ok_or(CudaCode::INVALID_VALUE)
        })
        .map(drop)
    }

    fn cuPointerGetAttribute(value: OutPointer<u64>, attribute: i32, address: DevicePointer) |call| {
        let world = call.driver.world();
        let found = world.memory.at(address).ok_or(CudaCode::INVALID_VALUE)?;
        // Values of different sizes are behind one untyped pointer.
        // SAFETY: pointers of the same layout; by the driver's contract to memory of that size.
        let small: OutPointer<u32> = unsafe { std::mem::transmute(value) };
        match attribute {
            CONTEXT => value.set(context_handle(found.context).addr() as u64),
            MEMORY_TYPE => small.set(memory_type(found)),
            DEVICE_POINTER => value.set(address),
            HOST_POINTER if found.kind == AllocationKind::Device => Err(CudaCode::INVALID_VALUE),
            HOST_POINTER => value.set(address),
            IS_MANAGED => {
                // SAFETY: as above: a bool.
                let bit: OutPointer<bool> = unsafe { std::mem::transmute(value) };
                bit.set(found.kind == AllocationKind::Managed)
            }
            DEVICE_ORDINAL => {
                let device = world.context(found.context)?.device;
                small.set(to_int(device)?)
            }
            RANGE_START => value.set(found.base),
            RANGE_SIZE => value.set(found.bytes),
            _ => Err(CudaCode::NOT_SUPPORTED),
        }
    }
}

const fn memory_type(found: MemoryAllocation) -> u32 {
    match found.kind {
        AllocationKind::Device | AllocationKind::Managed => TYPE_DEVICE,
        AllocationKind::Host | AllocationKind::Registered => TYPE_HOST,
    }
}

/// Returns a pointer as a number.
pub fn number(address: *const c_void) -> u64 {
    address.expose_provenance() as u64
}

fn allocate(
    driver: &CudaDriver,
    address: OutPointer<u64>,
    bytes: usize,
    kind: AllocationKind,
) -> CallResult {
    if address.is_null() || bytes == 0 {
        return Err(CudaCode::INVALID_VALUE);
    }
    let bytes = u64::try_from(bytes).map_err(|_| CudaCode::OUT_OF_MEMORY)?;
    let mut world = driver.world();
    let context = world.current()?;
    world.take_memory(context, bytes)?;
    match world.memory.allocate(bytes, kind, context) {
        Ok(base) => address.set(base),
        Err(code) => {
            world.give_memory(context, bytes)?;
            Err(code)
        }
    }
}

fn allocate_host(
    driver: &CudaDriver,
    address: OutPointer<*mut c_void>,
    bytes: usize,
) -> CallResult {
    if address.is_null() || bytes == 0 {
        return Err(CudaCode::INVALID_VALUE);
    }
    let mut world = driver.world();
    world.refuse_unsafe()?;
    let context = world.current()?;
    let bytes = u64::try_from(bytes).map_err(|_| CudaCode::OUT_OF_MEMORY)?;
    let base = world.memory.allocate(bytes, AllocationKind::Host, context)?;
    let base = usize::try_from(base).map_err(|_| CudaCode::OUT_OF_MEMORY)?;
    address.set(std::ptr::with_exposed_provenance_mut(base))
}

fn free(driver: &CudaDriver, address: u64, kinds: &[AllocationKind]) -> CallResult {
    let mut world = driver.world();
    world.refuse_unsafe()?;
    world.current()?;
    let found = world.memory.at(address).filter(|a| a.base == address && kinds.contains(&a.kind));
    let found = found.ok_or(CudaCode::INVALID_VALUE)?;
    let ends = world.ends_of(found.context);
    drop(world);
    driver.wait_for(&ends);
    world = driver.world();
    let freed = world.memory.free(address, kinds)?;
    match freed.kind {
        AllocationKind::Device | AllocationKind::Managed => {
            world.give_memory(freed.context, freed.bytes)
        }
        AllocationKind::Host | AllocationKind::Registered => Ok(()),
    }
}
