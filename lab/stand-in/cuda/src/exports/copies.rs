//! Copies and fills.

use std::ffi::c_void;
use std::sync::Arc;

use super::launches::put;
use super::memory::number;
use crate::abi::{CallResult, CudaCode, DevicePointer, H, to_native};
use crate::gate::{GateCall, cuda};
use crate::memory::AllocationKind;
use crate::world::{DriverState, PutOutcome, StreamStep};

/// One copy, by its arguments.
#[derive(Clone, Copy)]
struct MemoryCopy {
    to: u64,
    from: u64,
    bytes: usize,
}

/// Whether a call returns at once or when its work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyReturn {
    AtOnce,
    WhenDone,
}

cuda! {
    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
    ) |call| {
        copy(call, DEFAULT, MemoryCopy { to, from: number(from), bytes }, CopyReturn::WhenDone)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
    ) |call| {
        copy(call, DEFAULT, MemoryCopy { to: number(to), from, bytes }, CopyReturn::WhenDone)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
    ) |call| {
        copy(call, DEFAULT, MemoryCopy { to, from, bytes }, CopyReturn::AtOnce)
    }

    fn cuMemcpy / cuMemcpy_ptds(to: DevicePointer, from: DevicePointer, bytes: usize) |call| {
        copy(call, DEFAULT, MemoryCopy { to, from, bytes }, CopyReturn::WhenDone)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz(
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, MemoryCopy { to, from: number(from), bytes }, CopyReturn::AtOnce)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz(
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, MemoryCopy { to: number(to), from, bytes }, CopyReturn::AtOnce)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz(
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, MemoryCopy { to, from, bytes }, CopyReturn::AtOnce)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz(
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, MemoryCopy { to, from, bytes }, CopyReturn::AtOnce)
    }

    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds(to: DevicePointer, value: u8, count: usize) |call| {
        fill(call, DEFAULT, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD8Async / cuMemsetD8Async_ptsz(
        to: DevicePointer,
        value: u8,
        count: usize,
        stream: H,
    ) |call| {
        fill(call, stream, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds(to: DevicePointer, value: u16, count: usize) |call| {
        fill(call, DEFAULT, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD16Async / cuMemsetD16Async_ptsz(
        to: DevicePointer,
        value: u16,
        count: usize,
        stream: H,
    ) |call| {
        fill(call, stream, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds(to: DevicePointer, value: u32, count: usize) |call| {
        fill(call, DEFAULT, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32Async / cuMemsetD32Async_ptsz(
        to: DevicePointer,
        value: u32,
        count: usize,
        stream: H,
    ) |call| {
        fill(call, stream, to, &value.to_le_bytes(), count)
    }
}

/// The default stream, by the call's build.
const DEFAULT: H = std::ptr::null_mut();

fn copy(call: &GateCall, stream: H, request: MemoryCopy, returns: CopyReturn) -> CallResult {
    let MemoryCopy { to, from, .. } = request;
    if returns == CopyReturn::WhenDone {
        call.driver.world().refuse_unsafe()?;
    }
    if request.bytes == 0 {
        return Ok(());
    }
    let bytes = u64::try_from(request.bytes).map_err(|_| CudaCode::INVALID_VALUE)?;
    let mut waits = returns == CopyReturn::WhenDone;
    let done = put(call, stream, |world, _| {
        let (to_kind, from_kind) = (side(world, to, bytes)?, side(world, from, bytes)?);
        if to == 0 || from == 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        let on_device =
            |kind| matches!(kind, Some(AllocationKind::Device | AllocationKind::Managed));
        let over_bus = !(on_device(to_kind) && on_device(from_kind));
        // Memory that isn't pinned may be freed or changed by the time the copy runs.
        waits |= to_kind.is_none();
        let staged = from_kind.is_none().then(|| staged(from, request.bytes));
        Ok(StreamStep::Copy { to, from, bytes, over_bus, staged })
    })?;
    if let (PutOutcome::Queued { lane, seq }, true) = (done, waits) {
        call.driver.wait_for(&[(lane, seq)]);
        let context = call.driver.world().lane(lane)?.context;
        return call.driver.verdict(context);
    }
    Ok(())
}

/// Returns what an address is, or `None` for the program's own memory.
fn side(world: &DriverState, address: u64, bytes: u64) -> CallResult<Option<AllocationKind>> {
    match world.memory.at(address) {
        None => Ok(None),
        Some(found) if world.memory.holds(address, bytes) => Ok(Some(found.kind)),
        Some(_) => Err(CudaCode::INVALID_VALUE),
    }
}

fn staged(from: u64, bytes: usize) -> Arc<[u8]> {
    let from = std::ptr::with_exposed_provenance::<u8>(to_native(from));
    // SAFETY: by the driver's contract the program's memory of this size.
    Arc::from(unsafe { std::slice::from_raw_parts(from, bytes) })
}

fn fill(call: &GateCall, stream: H, at: u64, pattern: &[u8], count: usize) -> CallResult {
    let (size, count) = (pattern.len() as u64, count as u64);
    if count == 0 {
        return Ok(());
    }
    put(call, stream, |world, _| {
        let bytes = count.checked_mul(size).ok_or(CudaCode::INVALID_VALUE)?;
        if !world.memory.holds(at, bytes) || !at.is_multiple_of(size) {
            return Err(CudaCode::INVALID_VALUE);
        }
        Ok(StreamStep::Fill { at, pattern: pattern.to_vec(), count })
    })
    .map(drop)
}
