//! The driver's types and constants that the shim uses. Sizes and offsets are those of `cuda.h`.

/// What every function of the driver returns: `CUresult`.
pub type CudaResult = i32;

/// A handle of the driver that the shim only passes on or compares.
pub type DriverHandle = usize;

/// The call succeeded.
pub const SUCCESS: CudaResult = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: CudaResult = 2;
/// The result of every call on a machine without a driver.
pub const NO_DEVICE: CudaResult = 100;
/// The result of a function that this driver lacks.
pub const NOT_SUPPORTED: CudaResult = 801;
/// The device has not reached the event yet.
pub const NOT_READY: CudaResult = 600;

/// The legacy default stream, which synchronises with blocking streams. 0 usually means it.
pub const STREAM_LEGACY: DriverHandle = 1;
/// Each thread's own default stream. 0 means it in `_ptsz` functions.
pub const STREAM_PER_THREAD: DriverHandle = 2;
/// A stream that does not wait for the legacy one.
pub const STREAM_NON_BLOCKING: u32 = 1;

/// An event without timing.
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// An event with timing.
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
    pub stream: DriverHandle,
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

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    pub function: DriverHandle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: DriverHandle,
    pub parameters: DriverHandle,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNode {
    pub function: DriverHandle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub parameters: DriverHandle,
    pub extra: DriverHandle,
    pub kernel: DriverHandle,
    pub context: DriverHandle,
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
