//! Events.

use std::time::Duration;

use super::launches::put;
use crate::abi::{CallResult, CudaCode, H, OutPointer};
use crate::gate::{GateCall, cuda};
use crate::world::{CudaEvent, DriverState, PutOutcome, StreamStep};

/// Flags of events.
const NO_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const FLAGS: u32 = 7;
/// Flag of a record: as an external node of a graph.
const EXTERNAL: u32 = 1;

cuda! {
    fn cuEventCreate(event: OutPointer<H>, flags: u32) |call| {
        if flags & !FLAGS != 0 || event.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(if flags & NO_TIMING == 0 { CudaCode::INVALID_VALUE } else { CudaCode::NOT_SUPPORTED });
        }
        let mut world = call.driver.world();
        let context = world.current()?;
        let (place, done, captured) = (None, None, None);
        event.set(world.events.add(CudaEvent { context, flags, generation: 0, place, done, captured }))
    }

    fn cuEventDestroy_v2(event: H) |call| {
        call.driver.world().events.remove(event).map(drop)
    }

    fn cuEventRecord / cuEventRecord_ptsz(event: H, stream: H) |call| {
        record(call, event, stream)
    }

    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz(
        event: H,
        stream: H,
        flags: u32,
    ) |call| {
        match flags {
            0 => record(call, event, stream),
            EXTERNAL => Err(CudaCode::NOT_SUPPORTED),
            _ => Err(CudaCode::INVALID_VALUE),
        }
    }

    fn cuEventQuery(event: H) |call| {
        let mut world = call.driver.world();
        refuse_captured(&mut world, event)?;
        world.pump(call.driver.now());
        let found = world.events.get(event)?;
        let (context, place) = (found.context, found.place);
        let over = place.is_none_or(|place| world.is_over(place));
        drop(world);
        if over { call.driver.verdict(context) } else { Err(CudaCode::NOT_READY) }
    }

    fn cuEventSynchronize(event: H) |call| {
        let mut world = call.driver.world();
        refuse_captured(&mut world, event)?;
        let found = world.events.get(event)?;
        let (context, place) = (found.context, found.place);
        drop(world);
        call.driver.wait_for(place.as_slice());
        call.driver.verdict(context)
    }

    fn cuEventElapsedTime(milliseconds: OutPointer<f32>, start: H, end: H) |call| {
        elapsed(call, milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: OutPointer<f32>, start: H, end: H) |call| {
        elapsed(call, milliseconds, start, end)
    }
}

fn record(call: &GateCall, event: H, stream: H) -> CallResult {
    let put = put(call, stream, |world, context| {
        let found = world.events.get_mut(event)?;
        if found.context != context {
            return Err(CudaCode::INVALID_HANDLE);
        }
        found.generation += 1;
        (found.done, found.captured) = (None, None);
        Ok(StreamStep::Record(event))
    })?;
    if let PutOutcome::Queued { lane, seq } = put {
        call.driver.world().events.get_mut(event)?.place = Some((lane, seq));
    }
    call.driver.spend(call.began, call.driver.settings.record_cost);
    Ok(())
}

fn refuse_captured(world: &mut DriverState, event: H) -> CallResult {
    let captured = world.events.get(event)?.captured.as_ref().map(|(id, _)| *id);
    let Some(id) = captured else { return Ok(()) };
    if let Some(capture) = world.captures.get_mut(&id) {
        capture.invalid = true;
    }
    Err(CudaCode::CAPTURED_EVENT)
}

fn elapsed(call: &GateCall, milliseconds: OutPointer<f32>, start: H, end: H) -> CallResult {
    let mut world = call.driver.world();
    world.pump(call.driver.now());
    let mut times = [0; 2];
    for (time, event) in times.iter_mut().zip([start, end]) {
        let found = world.events.get(event)?;
        if found.flags & NO_TIMING != 0 || found.place.is_none() {
            return Err(CudaCode::INVALID_HANDLE);
        }
        *time = found.done.ok_or(CudaCode::NOT_READY)?;
    }
    let [start, end] = times;
    let apart = Duration::from_nanos(end.abs_diff(start)).as_secs_f32() * 1e3;
    milliseconds.set(if end < start { -apart } else { apart })
}
