//! Contexts.

use std::ffi::c_void;

use crate::abi::{CallResult, ContextParams, CudaCode, H, InPointer, OutPointer, to_int};
use crate::driver::CudaDriver;
use crate::gate::{GateCall, cuda};
use crate::thread_state::{current_id, pop_current, push_current, set_current};
use crate::world::{DriverState, context_handle, context_id};

/// Flags of a context that exist.
const FLAGS: u32 = 0xff;
/// Highest priority of a stream; the lowest is 0.
pub const HIGHEST_PRIORITY: i32 = -5;

cuda! {
    fn cuDevicePrimaryCtxRetain(context: OutPointer<H>, device: i32) |call| {
        if context.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut world = call.driver.world();
        let found = world.device(device)?;
        let (known, flags) = (found.primary, found.primary_flags);
        let (id, count) = match known {
            Some((id, count)) => (id, count),
            None => (world.create_context(device, flags, call.driver.now())?, 0),
        };
        world.device_mut(device)?.primary = Some((id, count + 1));
        context.set(context_handle(id))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) |call| {
        let mut world = call.driver.world();
        match world.device(device)?.primary {
            None => Err(CudaCode::INVALID_CONTEXT),
            Some((id, 1)) => {
                drop(world);
                drain(call.driver, id);
                world = call.driver.world();
                world.device_mut(device)?.primary = None;
                world.destroy_context(id, call.driver.now())
            }
            Some((id, count)) => {
                world.device_mut(device)?.primary = Some((id, count - 1));
                Ok(())
            }
        }
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) |call| {
        let mut world = call.driver.world();
        match world.device_mut(device)?.primary.take() {
            None => Ok(()),
            Some((id, _)) => world.destroy_context(id, call.driver.now()),
        }
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |call| {
        if flags & !FLAGS != 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut world = call.driver.world();
        world.device_mut(device)?.primary_flags = flags;
        let active = world.device(device)?.primary;
        if let Some((id, _)) = active
            && let Some(context) = world.contexts.get_mut(&id)
        {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: OutPointer<u32>, active: OutPointer<i32>) |call| {
        let world = call.driver.world();
        let found = world.device(device)?;
        flags.set(found.primary_flags)?;
        active.set(i32::from(found.primary.is_some()))
    }

    fn cuCtxCreate_v2(context: OutPointer<H>, flags: u32, device: i32) |call| {
        create(call, context, flags, device)
    }

    /// SM affinity is an MPS server's affair, so none may be requested.
    fn cuCtxCreate_v3(
        context: OutPointer<H>,
        affinity: InPointer<*mut c_void>,
        count: i32,
        flags: u32,
        device: i32,
    ) |call| {
        if !affinity.is_null() || count != 0 {
            return Err(CudaCode::NOT_SUPPORTED);
        }
        create(call, context, flags, device)
    }

    fn cuCtxCreate_v4(
        context: OutPointer<H>,
        params: InPointer<ContextParams>,
        flags: u32,
        device: i32,
    ) |call| {
        if !params.is_null() {
            let params = params.value()?;
            if params.affinity_count != 0 || !params.graphics.is_null() {
                return Err(CudaCode::NOT_SUPPORTED);
            }
        }
        create(call, context, flags, device)
    }

    fn cuCtxDestroy_v2(context: H) |call| {
        let id = context_id(context)?;
        let mut world = call.driver.world();
        if !world.contexts.contains_key(&id) || world.devices.iter().any(|d| is_primary(d, id)) {
            return Err(CudaCode::INVALID_CONTEXT);
        }
        drop(world);
        drain(call.driver, id);
        world = call.driver.world();
        world.destroy_context(id, call.driver.now())?;
        if current_id() == Some(id) {
            pop_current();
        }
        Ok(())
    }

    fn cuCtxSetCurrent(context: H) |call| {
        if context.is_null() {
            set_current(None);
            return Ok(());
        }
        set_current(Some(living(&call.driver.world(), context)?));
        Ok(())
    }

    fn cuCtxGetCurrent(context: OutPointer<H>) |_call| {
        context.set(current_id().map_or(std::ptr::null_mut(), context_handle))
    }

    fn cuCtxPushCurrent_v2(context: H) |call| {
        push_current(living(&call.driver.world(), context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: OutPointer<H>) |_call| {
        let id = pop_current().ok_or(CudaCode::INVALID_CONTEXT)?;
        context.offer(context_handle(id));
        Ok(())
    }

    fn cuCtxGetDevice(device: OutPointer<i32>) |call| {
        let world = call.driver.world();
        let id = world.current()?;
        device.set(to_int(world.context(id)?.device)?)
    }

    fn cuCtxGetDevice_v2(device: OutPointer<i32>, context: H) |call| {
        let world = call.driver.world();
        let id = world.context_or_current(context)?;
        device.set(to_int(world.context(id)?.device)?)
    }

    fn cuCtxSynchronize() |call| {
        synchronize(call.driver, std::ptr::null_mut())
    }

    fn cuCtxSynchronize_v2(context: H) |call| {
        synchronize(call.driver, context)
    }

    fn cuCtxGetFlags(flags: OutPointer<u32>) |call| {
        let world = call.driver.world();
        let id = world.current()?;
        flags.set(world.context(id)?.flags)
    }

    fn cuCtxGetId(context: H, number: OutPointer<u64>) |call| {
        number.set(call.driver.world().context_or_current(context)?)
    }

    fn cuCtxGetStreamPriorityRange(least: OutPointer<i32>, greatest: OutPointer<i32>) |call| {
        call.driver.world().current()?;
        least.offer(0);
        greatest.offer(HIGHEST_PRIORITY);
        Ok(())
    }
}

fn is_primary(device: &crate::world::CudaDevice, id: u64) -> bool {
    device.primary.is_some_and(|(primary, _)| primary == id)
}

fn create(call: &GateCall, context: OutPointer<H>, flags: u32, device: i32) -> CallResult {
    if flags & !FLAGS != 0 || context.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    let id = call.driver.world().create_context(device, flags, call.driver.now())?;
    push_current(id);
    context.set(context_handle(id))
}

fn living(world: &DriverState, context: H) -> CallResult<u64> {
    let id = context_id(context)?;
    world.contexts.contains_key(&id).then_some(id).ok_or(CudaCode::INVALID_CONTEXT)
}

/// Waits for all work of a context, whether it is valid or not.
fn drain(driver: &CudaDriver, id: u64) {
    let ends = driver.world().ends_of(id);
    driver.wait_for(&ends);
}

fn synchronize(driver: &CudaDriver, context: H) -> CallResult {
    let mut world = driver.world();
    let id = world.context_or_current(context)?;
    let captured = world.lanes.values().any(|lane| lane.context == id && lane.capture.is_some());
    if captured {
        world.captures.values_mut().for_each(|capture| capture.invalid = true);
        return Err(CudaCode::STREAM_CAPTURE_UNSUPPORTED);
    }
    let ends = world.ends_of(id);
    drop(world);
    driver.wait_for(&ends);
    driver.verdict(id)
}
