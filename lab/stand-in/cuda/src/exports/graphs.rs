//! Graphs.

use std::ptr;

use tessera_stand_in::cuda::image::LaunchShape;

use super::launches::params_of;
use crate::abi::{CudaCode, H, InPointer, KernelNodeParams, OutPointer};
use crate::gate::cuda;
use crate::world::{CudaGraph, DriverState, GraphExec, KernelLaunch, StreamStep};

/// Types of nodes.
const KERNEL: i32 = 0;
const COPY: i32 = 1;
const FILL: i32 = 2;
const HOST: i32 = 3;
const EMPTY: i32 = 5;
/// Flags of an instantiation that change nothing here: freeing on launch, upload, node priority.
const FLAGS: u64 = 0xb;

cuda! {
    fn cuGraphCreate(graph: OutPointer<H>, flags: u32) |call| {
        if flags != 0 || graph.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        graph.set(call.driver.world().graphs.add(CudaGraph::default()))
    }

    fn cuGraphDestroy(graph: H) |call| {
        let mut world = call.driver.world();
        if world.graphs.get(graph).map_err(|_| CudaCode::INVALID_VALUE)?.captured {
            return Err(CudaCode::ILLEGAL_STATE);
        }
        world.destroy_graph(graph)
    }

    fn cuGraphAddKernelNode_v2(
        node: OutPointer<H>,
        graph: H,
        deps: InPointer<H>,
        dep_count: usize,
        params: InPointer<KernelNodeParams>,
    ) |call| {
        let params = params.value()?;
        let deps = deps.list(dep_count)?;
        let mut world = call.driver.world();
        let context = world.context_or_current(params.context)?;
        let handle = if params.function.is_null() { params.kernel } else { params.function };
        let kernel = world.launchable(handle, context)?.kernel;
        // SAFETY: pointers of one layout; what they point to is the driver's contract.
        let values = unsafe {
            params_of(
                &kernel,
                std::mem::transmute::<*mut *mut std::ffi::c_void, InPointer<*const u8>>(params.params),
                std::mem::transmute::<*mut *mut std::ffi::c_void, InPointer<*mut std::ffi::c_void>>(
                    params.extra,
                ),
            )?
        };
        let deps = deps.iter().map(|dep| index_of(&world, graph, *dep)).collect::<Result<_, _>>()?;
        let shape = LaunchShape { grid: params.grid, block: params.block };
        let (function, shared_bytes) = (handle, params.shared_bytes);
        let launch = KernelLaunch { function, kernel, shape, shared_bytes, params: values };
        node.set(world.add_node(graph, StreamStep::Kernel(launch), deps)?)
    }

    fn cuGraphInstantiateWithFlags(exec: OutPointer<H>, graph: H, flags: u64) |call| {
        if flags & !FLAGS != 0 || exec.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut world = call.driver.world();
        let context = world.current()?;
        let found = world.graphs.get(graph).map_err(|_| CudaCode::INVALID_VALUE)?;
        if found.captured {
            return Err(CudaCode::ILLEGAL_STATE);
        }
        // Nodes come after those on which they depend.
        let steps = found.nodes.iter().map(|node| node.step.clone()).collect();
        exec.set(world.execs.add(GraphExec { context, steps }))
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz(exec: H, stream: H) |call| {
        let driver = call.driver;
        let mut world = driver.world();
        let lane = world.lane_of(stream, call.per_thread())?;
        if world.execs.get(exec)?.context != world.lane(lane)?.context {
            return Err(CudaCode::INVALID_HANDLE);
        }
        drop(world);
        driver.wait(|world| world.has_space(lane).then_some(()));
        world = driver.world();
        world.launch_graph(exec, lane, driver.now())?;
        world.pump(driver.now());
        drop(world);
        driver.spend_launch_cost(call.began);
        Ok(())
    }

    fn cuGraphExecDestroy(exec: H) |call| {
        call.driver.world().execs.remove(exec).map(drop)
    }

    fn cuGraphGetNodes(graph: H, nodes: OutPointer<H>, count: OutPointer<usize>) |call| {
        let world = call.driver.world();
        let found = &world.graphs.get(graph).map_err(|_| CudaCode::INVALID_VALUE)?.nodes;
        if nodes.is_null() {
            return count.set(found.len());
        }
        let capacity = count.value()?;
        for index in 0..capacity {
            // What is beyond the last is null.
            let handle = found.get(index).map_or(ptr::null_mut(), |node| node.handle);
            nodes.set_at(index, handle)?;
        }
        count.set(found.len().min(capacity))
    }

    fn cuGraphNodeGetType(node: H, kind: OutPointer<i32>) |call| {
        let world = call.driver.world();
        kind.set(match step_of(&world, node)? {
            StreamStep::Kernel(_) => KERNEL,
            StreamStep::Copy { .. } => COPY,
            StreamStep::Fill { .. } => FILL,
            StreamStep::Host(..) | StreamStep::Callback { .. } => HOST,
            StreamStep::Record(_) | StreamStep::Free(_) => EMPTY,
        })
    }

    /// The parameters' values stay with the graph; their addresses are not given.
    fn cuGraphKernelNodeGetParams_v2(node: H, params: OutPointer<KernelNodeParams>) |call| {
        let world = call.driver.world();
        let StreamStep::Kernel(launch) = step_of(&world, node)? else {
            return Err(CudaCode::INVALID_VALUE);
        };
        let is_library = world.kernels.get(launch.function).is_ok();
        let null = ptr::null_mut();
        params.set(KernelNodeParams {
            function: if is_library { null } else { launch.function },
            grid: launch.shape.grid,
            block: launch.shape.block,
            shared_bytes: launch.shared_bytes,
            params: ptr::null_mut(),
            extra: ptr::null_mut(),
            kernel: if is_library { launch.function } else { null },
            context: null,
        })
    }
}

fn index_of(world: &DriverState, graph: H, node: H) -> Result<usize, CudaCode> {
    let found = world.nodes.get(node)?;
    (found.graph == graph).then_some(found.index).ok_or(CudaCode::INVALID_VALUE)
}

fn step_of(world: &DriverState, node: H) -> Result<&StreamStep, CudaCode> {
    let found = world.nodes.get(node)?;
    Ok(&world.graphs.get(found.graph)?.nodes[found.index].step)
}
