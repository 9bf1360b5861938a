//! Contexts.

use std::ffi::c_void;

use crate::abi::{Code, ContextParams, H, In, Out, Outcome};
use crate::driver::{Driver, current_id, pop_current, push_current, set_current};
use crate::gate::{Call, cuda};
use crate::world::{World, context_handle, context_id};

/// Flags of a context that exist.
const FLAGS: u32 = 0xff;
/// Highest priority of a stream; the lowest is 0.
pub const HIGHEST_PRIORITY: i32 = -5;

cuda! {
    fn cuDevicePrimaryCtxRetain(context: Out<H>, device: i32) |call| {
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut world = call.driver.world();
        let found = world.device(device)?;
        let (known, flags) = (found.primary, found.primary_flags);
        let (id, count) = match known {
            Some((id, count)) => (id, count),
            None => (world.create_context(device, flags)?, 0),
        };
        world.device_mut(device)?.primary = Some((id, count + 1));
        context.set(context_handle(id))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) |call| {
        let mut world = call.driver.world();
        match world.device(device)?.primary {
            None => Err(Code::INVALID_CONTEXT),
            Some((id, 1)) => {
                drop(world);
                drain(call.driver, id);
                world = call.driver.world();
                world.device_mut(device)?.primary = None;
                world.destroy_context(id)
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
            Some((id, _)) => world.destroy_context(id),
        }
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |call| {
        if flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
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

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |call| {
        let world = call.driver.world();
        let found = world.device(device)?;
        flags.set(found.primary_flags)?;
        active.set(i32::from(found.primary.is_some()))
    }

    fn cuCtxCreate_v2(context: Out<H>, flags: u32, device: i32) |call| {
        create(call, context, flags, device)
    }

    /// SM affinity is an MPS server's affair, so none may be asked for.
    fn cuCtxCreate_v3(
        context: Out<H>,
        affinity: In<*mut c_void>,
        count: i32,
        flags: u32,
        device: i32,
    ) |call| {
        if !affinity.is_null() || count != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(call, context, flags, device)
    }

    fn cuCtxCreate_v4(
        context: Out<H>,
        params: In<ContextParams>,
        flags: u32,
        device: i32,
    ) |call| {
        if !params.is_null() {
            let params = params.value()?;
            if params.affinity_count != 0 || !params.graphics.is_null() {
                return Err(Code::NOT_SUPPORTED);
            }
        }
        create(call, context, flags, device)
    }

    fn cuCtxDestroy_v2(context: H) |call| {
        let id = context_id(context)?;
        let mut world = call.driver.world();
        if !world.contexts.contains_key(&id) || world.devices.iter().any(|d| is_primary(d, id)) {
            return Err(Code::INVALID_CONTEXT);
        }
        drop(world);
        drain(call.driver, id);
        world = call.driver.world();
        world.destroy_context(id)?;
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

    fn cuCtxGetCurrent(context: Out<H>) |_call| {
        context.set(current_id().map_or(std::ptr::null_mut(), context_handle))
    }

    fn cuCtxPushCurrent_v2(context: H) |call| {
        push_current(living(&call.driver.world(), context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<H>) |_call| {
        let id = pop_current().ok_or(Code::INVALID_CONTEXT)?;
        context.offer(context_handle(id));
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) |call| {
        let world = call.driver.world();
        let id = world.current()?;
        device.set(i32::try_from(world.context(id)?.device).unwrap_or(0))
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: H) |call| {
        let world = call.driver.world();
        let id = world.context_or_current(context)?;
        device.set(i32::try_from(world.context(id)?.device).unwrap_or(0))
    }

    fn cuCtxSynchronize() |call| {
        synchronize(call.driver, std::ptr::null_mut())
    }

    fn cuCtxSynchronize_v2(context: H) |call| {
        synchronize(call.driver, context)
    }

    fn cuCtxGetFlags(flags: Out<u32>) |call| {
        let world = call.driver.world();
        let id = world.current()?;
        flags.set(world.context(id)?.flags)
    }

    fn cuCtxGetId(context: H, number: Out<u64>) |call| {
        number.set(call.driver.world().context_or_current(context)?)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |call| {
        call.driver.world().current()?;
        least.offer(0);
        greatest.offer(HIGHEST_PRIORITY);
        Ok(())
    }
}

fn is_primary(device: &crate::world::Device, id: u64) -> bool {
    device.primary.is_some_and(|(primary, _)| primary == id)
}

fn create(call: &Call, context: Out<H>, flags: u32, device: i32) -> Outcome {
    if flags & !FLAGS != 0 || context.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let id = call.driver.world().create_context(device, flags)?;
    push_current(id);
    context.set(context_handle(id))
}

fn living(world: &World, context: H) -> Outcome<u64> {
    let id = context_id(context)?;
    world.contexts.contains_key(&id).then_some(id).ok_or(Code::INVALID_CONTEXT)
}

/// Waits for all work of a context, whether it is good or not.
fn drain(driver: &Driver, id: u64) {
    let ends = driver.world().ends_of(id);
    driver.wait_for(&ends);
}

fn synchronize(driver: &Driver, context: H) -> Outcome {
    let mut world = driver.world();
    let id = world.context_or_current(context)?;
    let captured = world.lanes.values().any(|lane| lane.context == id && lane.capture.is_some());
    if captured {
        world.captures.values_mut().for_each(|capture| capture.invalid = true);
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let ends = world.ends_of(id);
    drop(world);
    driver.wait_for(&ends);
    driver.verdict(id)
}
