//! Values on their way to and from C.
//!
//! Layouts are those of `cuda.h` of CUDA 12.4 to 13.5 on 64-bit machines. The types make one
//! promise, which comes from the driver's own contract. A pointer that is not null points to memory
//! of its type that the caller lets the driver use.

use std::ffi::{CStr, c_char, c_void};

/// A result that ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaCode(pub i32);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal, $description:literal;)*) => {
        impl CudaCode {
            $(#[allow(dead_code, reason = "some are only looked up by number")]
            pub const $name: Self = Self($number);)*

            /// Returns the name and the description of a code that exists.
            pub const fn name_and_text(self) -> Option<(&'static CStr, &'static CStr)> {
                match self.0 {
                    $($number => Some((
                        // SAFETY: a literal that ends in its one NUL.
                        unsafe { CStr::from_bytes_with_nul_unchecked(concat!($text, "\0").as_bytes()) },
                        // SAFETY: as above.
                        unsafe { CStr::from_bytes_with_nul_unchecked(concat!($description, "\0").as_bytes()) },
                    )),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    DEINITIALIZED = 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down";
    STUB_LIBRARY = 34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library";
    DEVICE_UNAVAILABLE = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
    INVALID_SOURCE = 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
    PRIMARY_CONTEXT_ACTIVE = 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch";
    NOT_PERMITTED = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    SYSTEM_DRIVER_MISMATCH = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination";
    MPS_CONNECTION_FAILED = 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server";
    MPS_RPC_FAILURE = 806, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed";
    MPS_SERVER_NOT_READY = 807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests";
    MPS_MAX_CLIENTS_REACHED = 808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the hardware resources required to create MPS client have been exhausted";
    MPS_MAX_CONNECTIONS_REACHED = 809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the hardware resources required to support device connections have been exhausted";
    MPS_CLIENT_TERMINATED = 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

impl CudaCode {
    /// Returns whether the error stays with its context until that is destroyed.
    pub const fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 714..=719 | 999)
    }
}

pub type CallResult<T = ()> = Result<T, CudaCode>;

/// Anything that the driver names by an opaque pointer. They are numbers here, never addresses.
pub type H = *mut c_void;

/// An address in device memory.
pub type DevicePointer = u64;

/// A pointer that the driver writes to, and may read from where its contract states so.
#[repr(transparent)]
pub struct OutPointer<T>(*mut T);

impl<T> Clone for OutPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OutPointer<T> {}

impl<T: Copy> OutPointer<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn address(self) -> usize {
        self.0.addr()
    }

    pub fn set(self, value: T) -> CallResult {
        self.set_at(0, value)
    }

    /// Writes if the caller needs to know.
    pub fn offer(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so by the driver's contract the caller's memory of this type.
            unsafe { self.0.write(value) };
        }
    }

    /// Writes one element of an array that the caller made large enough.
    pub fn set_at(self, index: usize, value: T) -> CallResult {
        if self.0.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract the caller's array of this type.
        unsafe { self.0.add(index).write(value) };
        Ok(())
    }

    pub fn value(self) -> CallResult<T> {
        if self.0.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract the caller's memory of this type.
        Ok(unsafe { self.0.read() })
    }
}

/// A pointer from which the driver reads.
#[repr(transparent)]
pub struct InPointer<T>(*const T);

impl<T> Clone for InPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InPointer<T> {}

impl<T: Copy> InPointer<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn address(self) -> usize {
        self.0.addr()
    }

    pub fn value(self) -> CallResult<T> {
        self.value_at(0)
    }

    pub fn value_at(self, index: usize) -> CallResult<T> {
        if self.0.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract the caller's array of this type.
        Ok(unsafe { self.0.add(index).read() })
    }

    pub fn list(self, count: usize) -> CallResult<Vec<T>> {
        (0..count).map(|index| self.value_at(index)).collect()
    }
}

impl InPointer<c_char> {
    pub fn text(self) -> CallResult<String> {
        if self.0.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract a C string of the caller.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: H,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: u32,
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    pub id: u32,
    pub padding: u32,
    pub value: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParams {
    pub function: H,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kernel: H,
    pub context: H,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextParams {
    pub affinity: *mut c_void,
    pub affinity_count: i32,
    pub graphics: *mut c_void,
}

/// The data of an edge of a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EdgeData {
    pub bytes: [u8; 8],
}

pub type HostFunction = unsafe extern "C" fn(*mut c_void);
pub type StreamCallback = unsafe extern "C" fn(H, i32, *mut c_void);

const _: () = assert!(usize::BITS == 64, "CUDA's driver is for 64-bit machines");

/// Returns a 64-bit number as an address or a size of this machine.
#[expect(clippy::cast_possible_truncation, reason = "checked above: both have 64 bits")]
pub const fn to_native(number: u64) -> usize {
    number as usize
}

/// Returns a number as the type in which a function reports it.
///
/// # Errors
///
/// [`CudaCode::UNKNOWN`] if it doesn't fit.
pub fn to_int<N, I: TryFrom<N>>(number: N) -> CallResult<I> {
    I::try_from(number).map_err(|_| CudaCode::UNKNOWN)
}

/// Arguments as the trace shows them.
pub trait TracedArgument {
    fn shown(&self) -> u64;
}

macro_rules! shown {
    ($($type:ty),*) => {
        $(impl TracedArgument for $type {
            fn shown(&self) -> u64 {
                u64::from(*self)
            }
        })*
    };
}

shown!(u8, u16, u32, u64);

impl TracedArgument for i32 {
    fn shown(&self) -> u64 {
        u64::from(self.cast_unsigned())
    }
}

impl TracedArgument for usize {
    fn shown(&self) -> u64 {
        *self as u64
    }
}

impl<T> TracedArgument for *mut T {
    fn shown(&self) -> u64 {
        self.addr().shown()
    }
}

impl<T> TracedArgument for *const T {
    fn shown(&self) -> u64 {
        self.addr().shown()
    }
}

impl<T: Copy> TracedArgument for OutPointer<T> {
    fn shown(&self) -> u64 {
        self.address().shown()
    }
}

impl<T: Copy> TracedArgument for InPointer<T> {
    fn shown(&self) -> u64 {
        self.address().shown()
    }
}

impl TracedArgument for Option<HostFunction> {
    fn shown(&self) -> u64 {
        self.map_or(0, |function| (function as *const ()).addr().shown())
    }
}

impl TracedArgument for Option<StreamCallback> {
    fn shown(&self) -> u64 {
        self.map_or(0, |function| (function as *const ()).addr().shown())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn structures_have_the_layout_of_the_header() {
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(offset_of!(LaunchConfig, grid), 0);
        assert_eq!(offset_of!(LaunchConfig, block), 12);
        assert_eq!(offset_of!(LaunchConfig, shared_bytes), 24);
        assert_eq!(offset_of!(LaunchConfig, stream), 32);
        assert_eq!(offset_of!(LaunchConfig, attributes), 40);
        assert_eq!(offset_of!(LaunchConfig, attribute_count), 48);
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(offset_of!(LaunchAttribute, id), 0);
        assert_eq!(offset_of!(LaunchAttribute, value), 8);
        assert_eq!(size_of::<KernelNodeParams>(), 72);
        assert_eq!(offset_of!(KernelNodeParams, function), 0);
        assert_eq!(offset_of!(KernelNodeParams, grid), 8);
        assert_eq!(offset_of!(KernelNodeParams, block), 20);
        assert_eq!(offset_of!(KernelNodeParams, shared_bytes), 32);
        assert_eq!(offset_of!(KernelNodeParams, params), 40);
        assert_eq!(offset_of!(KernelNodeParams, extra), 48);
        assert_eq!(offset_of!(KernelNodeParams, kernel), 56);
        assert_eq!(offset_of!(KernelNodeParams, context), 64);
        assert_eq!(size_of::<ContextParams>(), 24);
        assert_eq!(offset_of!(ContextParams, affinity_count), 8);
        assert_eq!(offset_of!(ContextParams, graphics), 16);
        assert_eq!(size_of::<EdgeData>(), 8);
        assert_eq!(size_of::<OutPointer<u64>>(), 8);
        assert_eq!(size_of::<Option<HostFunction>>(), 8);
    }
}
