//! Copies and fills.

use std::ffi::c_void;
use std::sync::Arc;

use super::launches::put;
use super::memory::number;
use crate::abi::{Code, DevicePointer, H, Outcome};
use crate::gate::{Call, cuda};
use crate::memory::Kind;
use crate::work::Step;
use crate::world::{Put, World};

/// One copy, by what the program says of it.
#[derive(Clone, Copy)]
struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
}

/// Whether a call returns at once or when its work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    AtOnce,
    WhenDone,
}

cuda! {
    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
    ) |call| {
        copy(call, DEFAULT, Copy { to, from: number(from), bytes }, Return::WhenDone)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
    ) |call| {
        copy(call, DEFAULT, Copy { to: number(to), from, bytes }, Return::WhenDone)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
    ) |call| {
        copy(call, DEFAULT, Copy { to, from, bytes }, Return::AtOnce)
    }

    fn cuMemcpy / cuMemcpy_ptds(to: DevicePointer, from: DevicePointer, bytes: usize) |call| {
        copy(call, DEFAULT, Copy { to, from, bytes }, Return::WhenDone)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz(
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, Copy { to, from: number(from), bytes }, Return::AtOnce)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz(
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, Copy { to: number(to), from, bytes }, Return::AtOnce)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz(
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, Copy { to, from, bytes }, Return::AtOnce)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz(
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: H,
    ) |call| {
        copy(call, stream, Copy { to, from, bytes }, Return::AtOnce)
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

fn copy(call: &Call, stream: H, asked: Copy, returns: Return) -> Outcome {
    let Copy { to, from, .. } = asked;
    if returns == Return::WhenDone {
        call.driver.world().refuse_unsafe()?;
    }
    if asked.bytes == 0 {
        return Ok(());
    }
    let bytes = u64::try_from(asked.bytes).map_err(|_| Code::INVALID_VALUE)?;
    let mut waits = returns == Return::WhenDone;
    let done = put(call, stream, |world, _| {
        let (to_kind, from_kind) = (side(world, to, bytes)?, side(world, from, bytes)?);
        if to == 0 || from == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let on_device = |kind| matches!(kind, Some(Kind::Device | Kind::Managed));
        let over_bus = !(on_device(to_kind) && on_device(from_kind));
        // Memory that isn't pinned may be gone or changed when it is the copy's turn.
        waits |= to_kind.is_none();
        let staged = from_kind.is_none().then(|| staged(from, asked.bytes));
        Ok(Step::Copy { to, from, bytes, over_bus, staged })
    })?;
    if let (Put::Queued { lane, seq }, true) = (done, waits) {
        call.driver.wait_for(&[(lane, seq)]);
        let context = call.driver.world().lane(lane)?.context;
        return call.driver.verdict(context);
    }
    Ok(())
}

/// Returns what an address is, or `None` for the program's own memory.
fn side(world: &World, address: u64, bytes: u64) -> Outcome<Option<Kind>> {
    match world.memory.at(address) {
        None => Ok(None),
        Some(found) if world.memory.holds(address, bytes) => Ok(Some(found.kind)),
        Some(_) => Err(Code::INVALID_VALUE),
    }
}

fn staged(from: u64, bytes: usize) -> Arc<[u8]> {
    let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(from).unwrap_or(0));
    // SAFETY: by the driver's contract the program's memory of this size.
    Arc::from(unsafe { std::slice::from_raw_parts(from, bytes) })
}

fn fill(call: &Call, stream: H, at: u64, pattern: &[u8], count: usize) -> Outcome {
    let (size, count) =
        (u64::try_from(pattern.len()).unwrap_or(1), u64::try_from(count).unwrap_or(u64::MAX));
    if count == 0 {
        return Ok(());
    }
    put(call, stream, |world, _| {
        let bytes = count.checked_mul(size).ok_or(Code::INVALID_VALUE)?;
        if !world.memory.holds(at, bytes) || !at.is_multiple_of(size) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Step::Fill { at, pattern: pattern.to_vec(), count })
    })
    .map(drop)
}
