//! Values on their way to and from C.
//!
//! The types here have the layout of the pointers they wrap, so exported functions take them
//! as arguments. Their one promise comes from NVML's own contract: a pointer that is not null
//! points to memory of its type that the caller lets the library write.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlDevice_t, nvmlEventSet_t,
    nvmlGpmSample_t, nvmlGpuInstance_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
};
use tessera_stand_in::device::{DeviceRefusal, InstanceSerial};

/// A return code of NVML that ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmlCode(pub nvmlReturn_t);

impl NvmlCode {
    /// Ends a call that does nothing, and returns success.
    pub const SUCCESS: Self = Self(0);
    pub const UNINITIALIZED: Self = Self(1);
    pub const INVALID_ARGUMENT: Self = Self(2);
    pub const NOT_SUPPORTED: Self = Self(3);
    pub const NOT_FOUND: Self = Self(6);
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    pub const TIMEOUT: Self = Self(10);
    pub const GPU_IS_LOST: Self = Self(15);
    pub const IN_USE: Self = Self(19);
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub const UNKNOWN: Self = Self(999);
}

impl From<DeviceRefusal> for NvmlCode {
    fn from(refusal: DeviceRefusal) -> Self {
        match refusal {
            DeviceRefusal::NotSupported => Self::NOT_SUPPORTED,
            DeviceRefusal::InvalidArgument => Self::INVALID_ARGUMENT,
            DeviceRefusal::NotFound => Self::NOT_FOUND,
            DeviceRefusal::InsufficientResources => Self::INSUFFICIENT_RESOURCES,
            DeviceRefusal::InUse => Self::IN_USE,
        }
    }
}

/// A pointer that the library writes to, and may read from where NVML states so.
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

    pub fn set(self, value: T) -> Result<(), NvmlCode> {
        self.set_at(0, value)
    }

    /// Writes one element of an array that the caller made large enough.
    pub fn set_at(self, index: usize, value: T) -> Result<(), NvmlCode> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract the caller's array of this type.
        unsafe { self.0.add(index).write(value) };
        Ok(())
    }

    pub fn value(self) -> Result<T, NvmlCode> {
        self.value_at(0)
    }

    /// Reads one element of an array that the caller filled.
    pub fn value_at(self, index: usize) -> Result<T, NvmlCode> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract the caller's array, filled as documented.
        Ok(unsafe { self.0.add(index).read() })
    }

    /// Reads the version that opens a versioned structure, and nothing after it: the structure
    /// may be of an older, shorter version than `T`.
    pub fn version(self) -> Result<c_uint, NvmlCode> {
        OutPointer(self.0.cast::<c_uint>()).value()
    }

    /// Sees the structure as another version of itself.
    pub const fn cast<U>(self) -> OutPointer<U> {
        OutPointer(self.0.cast())
    }
}

/// A buffer for text.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextOut(*mut c_char);

impl TextOut {
    /// Writes `text` and its end, if both fit into `length` bytes.
    pub fn set(self, length: c_uint, text: &str) -> Result<(), NvmlCode> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        if (length as usize) < text.len() + 1 {
            return Err(NvmlCode::INSUFFICIENT_SIZE);
        }
        let buffer = OutPointer(self.0.cast::<u8>());
        text.bytes().chain([0]).enumerate().try_for_each(|(i, byte)| buffer.set_at(i, byte))
    }
}

/// A text that the caller passes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextIn(*const c_char);

impl TextIn {
    pub fn read(self) -> Result<String, NvmlCode> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract a text that ends in a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| NvmlCode::INVALID_ARGUMENT)
    }
}

/// What a handle names. Serials are never reused, so a handle may outlive the thing that it names,
/// but never names anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpaqueHandle {
    Gpu(usize),
    Mig(InstanceSerial),
    GpuInstance(InstanceSerial),
    ComputeInstance(InstanceSerial),
    EventSet(u64),
    GpmSample(u64),
}

/// Lowest bits of a handle, which hold its kind.
const KIND_BITS: u32 = 3;

impl OpaqueHandle {
    fn number(self) -> usize {
        let (kind, value) = match self {
            Self::Gpu(index) => (1, index as u64),
            Self::Mig(serial) => (2, serial.0),
            Self::GpuInstance(serial) => (3, serial.0),
            Self::ComputeInstance(serial) => (4, serial.0),
            Self::EventSet(number) => (5, number),
            Self::GpmSample(number) => (6, number),
        };
        usize::try_from(value << KIND_BITS | kind).expect("a 64-bit platform, as NVML needs")
    }

    fn of(number: usize) -> Result<Self, NvmlCode> {
        let number = u64::try_from(number).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
        let value = number >> KIND_BITS;
        match number & ((1 << KIND_BITS) - 1) {
            1 => Ok(Self::Gpu(usize::try_from(value).map_err(|_| NvmlCode::INVALID_ARGUMENT)?)),
            2 => Ok(Self::Mig(InstanceSerial(value))),
            3 => Ok(Self::GpuInstance(InstanceSerial(value))),
            4 => Ok(Self::ComputeInstance(InstanceSerial(value))),
            5 => Ok(Self::EventSet(value)),
            6 => Ok(Self::GpmSample(value)),
            _ => Err(NvmlCode::INVALID_ARGUMENT),
        }
    }
}

/// NVML's handle types, which are pointers in name only.
pub trait Opaque: Copy {
    fn from_number(number: usize) -> Self;
    fn number(self) -> usize;

    fn handle(self) -> Result<OpaqueHandle, NvmlCode> {
        OpaqueHandle::of(self.number())
    }

    fn of(handle: OpaqueHandle) -> Self {
        Self::from_number(handle.number())
    }
}

macro_rules! opaque {
    ($($name:ty),*) => {$(
        impl Opaque for $name {
            fn from_number(number: usize) -> Self {
                std::ptr::without_provenance_mut(number)
            }

            fn number(self) -> usize {
                self.addr()
            }
        }
    )*};
}

opaque!(nvmlDevice_t, nvmlGpuInstance_t, nvmlComputeInstance_t, nvmlEventSet_t, nvmlGpmSample_t);

/// Returns the version word of a versioned structure: its size, and its version in the top byte.
#[expect(clippy::cast_possible_truncation, reason = "the value is far below 2^32")]
pub const fn struct_version<T>(version: u32) -> c_uint {
    let size = size_of::<T>();
    assert!(size < 1 << 24, "no structure of NVML comes near");
    // The assertion has checked it, and conversions that check are not const.
    size as c_uint | version << 24
}

/// Fills a fixed array with a text and its end, cut where it doesn't fit.
pub fn text_array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (target, byte) in array.iter_mut().zip(text.bytes().take(N - 1)) {
        *target = byte.cast_signed();
    }
    array
}

// The sizes that NVIDIA's header gives these on 64-bit Linux: they are part of the version
// words, so programs built against the header must find the same.
const _: () = {
    assert!(struct_version::<nvmlMemory_v2_t>(2) == 0x0200_0028);
    assert!(struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2) == 0x0200_0098);
    assert!(struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2) == 0x0200_0088);
    assert!(size_of::<nvmlProcessInfo_t>() == 24);
    assert!(size_of::<nvmlPciInfo_t>() == 68);
};
