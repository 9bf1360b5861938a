//! Graphs: an instance counts as one kernel, named after the kernels in it.

use std::ffi::{c_char, c_int, c_uint};

use super::{after, written};
use crate::abi::{CudaResult, DriverHandle, GRAPH_NODE_KERNEL, KernelNode, SUCCESS};
use crate::driver;
use crate::driver::table::slot;
use crate::names::{self, Origin};

const WHEN: u32 = crate::state::WITH_QUEUE;

/// Most nodes whose kernels are read: the graph of one step of a large model has some thousand.
const NODES_MAX: usize = 16_384;

hooks! {
    cuGraphInstantiate(out: *mut DriverHandle, graph: DriverHandle, node: *mut DriverHandle, log: *mut c_char, bytes: usize) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { name_instance(out, graph) })
    };
    cuGraphInstantiate_v2(out: *mut DriverHandle, graph: DriverHandle, node: *mut DriverHandle, log: *mut c_char, bytes: usize) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { name_instance(out, graph) })
    };
    cuGraphInstantiateWithFlags(out: *mut DriverHandle, graph: DriverHandle, flags: u64) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { name_instance(out, graph) })
    };
    cuGraphInstantiateWithParams(out: *mut DriverHandle, graph: DriverHandle, parameters: DriverHandle) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { name_instance(out, graph) })
    };
    cuGraphInstantiateWithParams_ptsz(out: *mut DriverHandle, graph: DriverHandle, parameters: DriverHandle) |call| {
        let code = call();
        // SAFETY: written by the driver.
        after(code, || unsafe { name_instance(out, graph) })
    };
    cuGraphExecUpdate(instance: DriverHandle, graph: DriverHandle, node: *mut DriverHandle, result: *mut c_uint) |call| {
        let code = call();
        after(code, || name(instance, graph))
    };
    cuGraphExecUpdate_v2(instance: DriverHandle, graph: DriverHandle, result: DriverHandle) |call| {
        let code = call();
        after(code, || name(instance, graph))
    };
    cuGraphExecDestroy(instance: DriverHandle) |call| {
        crate::state::guarded(|| names::take_names_of(instance));
        call()
    };
}

/// Names a new instance.
///
/// # Safety
///
/// `out` was written by the driver.
unsafe fn name_instance(out: *const DriverHandle, graph: DriverHandle) {
    // SAFETY: the caller's promise.
    if let Some(instance) = unsafe { written(out) } {
        name(instance, graph);
    }
}

/// Names an instance after the kernels of its graph and their sizes. Every process that builds the
/// same graph gets the same name.
fn name(instance: DriverHandle, graph: DriverHandle) {
    let kernels = kernels(graph);
    let digest = kernels.as_ref().map(|(kernels, _)| {
        let mut kernels = kernels.clone();
        kernels.sort_unstable();
        // FNV-1a, 64 bits: the same in every build.
        kernels.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    });
    let name = match (digest, kernels) {
        (Some(digest), Some((kernels, nodes))) => {
            format!("graph:{digest:016x}:{}/{nodes}", kernels.len())
        }
        _ => "graph:?".to_owned(),
    };
    // It is its own owner, since destroying it ends it.
    names::note(instance, Origin::Graph, instance, Some(name));
}

/// Returns a graph's kernels as texts and its number of nodes.
fn kernels(graph: DriverHandle) -> Option<(Vec<String>, usize)> {
    type GetNodes = unsafe extern "C" fn(DriverHandle, *mut DriverHandle, *mut usize) -> CudaResult;
    type GetType = unsafe extern "C" fn(DriverHandle, *mut c_int) -> CudaResult;
    type GetParams = unsafe extern "C" fn(DriverHandle, *mut KernelNode) -> CudaResult;
    // SAFETY: the functions' types. The first revision of the last one fills a shorter structure
    // with the same beginning.
    let (get_nodes, get_type, get_params): (GetNodes, GetType, GetParams) = unsafe {
        (
            driver::real_if_there(slot::cuGraphGetNodes)?,
            driver::real_if_there(slot::cuGraphNodeGetType)?,
            driver::real_if_there(slot::cuGraphKernelNodeGetParams_v2)
                .or_else(|| driver::real_if_there(slot::cuGraphKernelNodeGetParams))?,
        )
    };
    let mut count = 0;
    // SAFETY: without a list the function only counts.
    if unsafe { get_nodes(graph, std::ptr::null_mut(), &raw mut count) } != SUCCESS {
        return None;
    }
    let all = count;
    count = count.min(NODES_MAX);
    let mut nodes: Vec<DriverHandle> = vec![0; count];
    // SAFETY: a list with space for `count`.
    if unsafe { get_nodes(graph, nodes.as_mut_ptr(), &raw mut count) } != SUCCESS {
        return None;
    }
    let mut kernels = Vec::new();
    for node in nodes.into_iter().take(count) {
        let (mut kind, mut kernel) = (-1, KernelNode::default());
        // SAFETY: a node of the graph, places of ours.
        let is_kernel =
            unsafe { get_type(node, &raw mut kind) } == SUCCESS && kind == GRAPH_NODE_KERNEL;
        // SAFETY: a node that is a kernel, a place of ours.
        if is_kernel && unsafe { get_params(node, &raw mut kernel) } == SUCCESS {
            let handle = if kernel.function == 0 { kernel.kernel } else { kernel.function };
            kernels.push(format!(
                "{} {:?} {:?}",
                names::name_of(handle),
                kernel.grid,
                kernel.block
            ));
        }
    }
    Some((kernels, all))
}
