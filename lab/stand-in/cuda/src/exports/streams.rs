//! Streams, and their capture into graphs.

use std::ffi::c_void;
use std::ptr;

use super::contexts::HIGHEST_PRIORITY;
use super::launches::put;
use crate::abi::{CallResult, CudaCode, EdgeData, H, OutPointer, StreamCallback};
use crate::capture_mode;
use crate::gate::{GateCall, cuda};
use crate::world::{DriverState, LaneKind, StreamStep, context_handle};

/// Flag of a stream that does not synchronise with the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// Status of a capture.
const ACTIVE: i32 = 1;
const INVALIDATED: i32 = 2;

cuda! {
    fn cuStreamCreate(stream: OutPointer<H>, flags: u32) |call| {
        create(call, stream, flags, 0)
    }

    /// A priority out of range is clamped.
    fn cuStreamCreateWithPriority(stream: OutPointer<H>, flags: u32, priority: i32) |call| {
        create(call, stream, flags, priority.clamp(HIGHEST_PRIORITY, 0))
    }

    /// Its work is still done.
    fn cuStreamDestroy_v2(stream: H) |call| {
        let mut world = call.driver.world();
        let id = world.streams.remove(stream)?;
        let lane = world.lane(id)?;
        lane.gone = true;
        if let Some(capture) = lane.capture.take()
            && let Some(capture) = world.captures.get_mut(&capture)
        {
            capture.invalid = true;
        }
        Ok(())
    }

    fn cuStreamSynchronize / cuStreamSynchronize_ptsz(stream: H) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        world.refuse_captured(lane)?;
        let found = world.lane(lane)?;
        let (context, end) = (found.context, found.issued);
        // The legacy stream's end is that of all that it waits for.
        let ends = if found.kind == LaneKind::Legacy {
            let mut ends = world.ends_of(context);
            ends.retain(|(other, _)| world.lanes[other].kind != LaneKind::NonBlocking);
            ends
        } else {
            vec![(lane, end)]
        };
        drop(world);
        call.driver.wait_for(&ends);
        call.driver.verdict(context)
    }

    fn cuStreamQuery / cuStreamQuery_ptsz(stream: H) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        world.refuse_captured(lane)?;
        world.pump(call.driver.now());
        let found = world.lane(lane)?;
        let (context, end) = (found.context, found.issued);
        let over = world.is_over((lane, end));
        drop(world);
        if over { call.driver.verdict(context) } else { Err(CudaCode::NOT_READY) }
    }

    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz(stream: H, event: H, flags: u32) |call| {
        if flags > 1 {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        world.wait_event(lane, event, call.driver.now())
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz(
        stream: H,
        function: Option<StreamCallback>,
        data: *mut c_void,
        flags: u32,
    ) |call| {
        let function = function.ok_or(CudaCode::INVALID_VALUE)?;
        if flags != 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        put(call, stream, |_, _| Ok(StreamStep::Callback { function, stream, data })).map(drop)
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz(stream: H, context: OutPointer<H>) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        context.set(context_handle(world.lane(lane)?.context))
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz(stream: H, flags: OutPointer<u32>) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        flags.set(world.lane(lane)?.flags)
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz(stream: H, priority: OutPointer<i32>) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        priority.set(world.lane(lane)?.priority)
    }

    fn cuStreamGetId / cuStreamGetId_ptsz(stream: H, id: OutPointer<u64>) |call| {
        id.set(call.driver.world().lane_of(stream, call.per_thread())?)
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz(stream: H, status: OutPointer<i32>) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        if world.lane(lane)?.kind == LaneKind::Legacy {
            world.refuse_implicit(lane)?;
        }
        status.set(status_of(&mut world, lane)?.0)
    }

    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz(stream: H, mode: i32) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        world.begin_capture(lane, mode)
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz(stream: H, graph: OutPointer<H>) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        let ended = world.end_capture(lane);
        graph.set(ended.unwrap_or(ptr::null_mut()))?;
        ended.map(drop)
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz(
        stream: H,
        status: OutPointer<i32>,
        id: OutPointer<u64>,
        graph: OutPointer<H>,
        deps: OutPointer<*const H>,
        dep_count: OutPointer<usize>,
    ) |call| {
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        capture_info(&mut world, lane, status, id, (graph, deps, dep_count))
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz(
        stream: H,
        status: OutPointer<i32>,
        id: OutPointer<u64>,
        graph: OutPointer<H>,
        deps: OutPointer<*const H>,
        edges: OutPointer<*const EdgeData>,
        dep_count: OutPointer<usize>,
    ) |call| {
        edges.offer(ptr::null());
        let mut world = call.driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        capture_info(&mut world, lane, status, id, (graph, deps, dep_count))
    }

    fn cuThreadExchangeStreamCaptureMode(mode: OutPointer<i32>) |_call| {
        let requested = mode.value()?;
        if !(0..=2).contains(&requested) {
            return Err(CudaCode::INVALID_VALUE);
        }
        mode.set(capture_mode::exchange(requested))
    }
}

fn create(call: &GateCall, stream: OutPointer<H>, flags: u32, priority: i32) -> CallResult {
    if flags & !NON_BLOCKING != 0 || stream.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    let mut world = call.driver.world();
    let context = world.current()?;
    let kind = if flags == NON_BLOCKING { LaneKind::NonBlocking } else { LaneKind::Blocking };
    let lane = world.add_lane(context, kind, flags, priority);
    stream.set(world.streams.add(lane))
}

/// Returns the status of a lane's capture and its number.
fn status_of(world: &mut DriverState, lane: u64) -> CallResult<(i32, u64)> {
    let Some(id) = world.lane(lane)?.capture else { return Ok((0, 0)) };
    let invalid = world.captures.get(&id).is_none_or(|capture| capture.invalid);
    Ok((if invalid { INVALIDATED } else { ACTIVE }, id))
}

fn capture_info(
    world: &mut DriverState,
    lane: u64,
    status: OutPointer<i32>,
    id: OutPointer<u64>,
    (graph, deps, dep_count): (OutPointer<H>, OutPointer<*const H>, OutPointer<usize>),
) -> CallResult {
    if world.lane(lane)?.kind == LaneKind::Legacy {
        world.refuse_implicit(lane)?;
    }
    let (found, number) = status_of(world, lane)?;
    status.set(found)?;
    if found != ACTIVE {
        return Ok(());
    }
    id.offer(number);
    let (of_capture, handles) = world.deps_of_capture(number, lane)?;
    graph.offer(of_capture);
    dep_count.offer(handles.len());
    deps.offer(world.lend_handles(handles));
    Ok(())
}
