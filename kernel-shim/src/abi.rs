//! The driver's types and numbers that the shim uses; sizes and offsets are those of `cuda.h`.

/// What every function of the driver returns: `CUresult`.
pub type Code = i32;

/// A pointer to something of the driver's that the shim only passes on or compares.
pub type Handle = usize;

/// It worked.
pub const SUCCESS: Code = 0;
/// What functions of the real driver say that is not there.
pub const NO_DEVICE: Code = 100;
/// What a function says that this driver does not have.
pub const NOT_SUPPORTED: Code = 801;
/// The device has not come that far.
pub const NOT_READY: Code = 600;

/// The stream that waits for all others: by its name and by the usual meaning of 0.
pub const STREAM_LEGACY: Handle = 1;
/// Each thread's own default stream: by its name and by the meaning of 0 in `_ptsz` functions.
pub const STREAM_PER_THREAD: Handle = 2;
/// A stream that does not wait for the legacy one.
pub const STREAM_NON_BLOCKING: u32 = 1;

/// An event that keeps no time.
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// An event that keeps time.
pub const EVENT_DEFAULT: u32 = 0;

/// The meaning of `cuGetProcAddress`' flag for per-thread default streams.
pub const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// The kind of a graph's node that is a kernel.
pub const GRAPH_NODE_KERNEL: i32 = 0;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attributes_count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    pub id: u32,
    padding: u32,
    pub value: [u8; 64],
}

/// Attributes by which a kernel begins before the one before it has ended: holding it back could
/// hold up one that is launched already.
pub const DEPENDENT_LAUNCH: [u32; 2] = [6, 7];

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: Handle,
    pub parameters: Handle,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNode {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub parameters: Handle,
    pub extra: Handle,
    pub kernel: Handle,
    pub context: Handle,
}

const _: () = {
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);
    assert!(std::mem::offset_of!(LaunchConfig, attributes_count) == 48);
    assert!(size_of::<LaunchAttribute>() == 72);
    assert!(std::mem::offset_of!(LaunchAttribute, value) == 8);
    assert!(size_of::<LaunchParams>() == 56);
    assert!(std::mem::offset_of!(LaunchParams, stream) == 40);
    assert!(size_of::<KernelNode>() == 72);
    assert!(std::mem::offset_of!(KernelNode, kernel) == 56);
};
