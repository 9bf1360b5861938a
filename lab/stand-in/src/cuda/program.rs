//! What a CUDA program does, for programs and tests of ours: it opens the driver by its name,
//! as every program does, and so meets whatever was preloaded.

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::ptr;

use libloading::Library;

use super::image::LaunchShape;

/// The name under which programs load the driver.
pub const NAME: &str = "libcuda.so.1";

/// An opaque handle of the driver, which only it can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct CudaHandle(usize);

impl CudaHandle {
    /// No handle; of streams, the default one.
    pub const NULL: Self = Self(0);
}

/// The driver, opened by a program.
#[derive(Debug)]
pub struct CudaProgram(Library);

/// Why a program can't continue.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver, or one without a function.
    #[error(transparent)]
    Library(#[from] libloading::Error),
    /// A call's result, which is not success.
    #[error("{call}: {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The result's name.
        name: String,
    },
    /// A name with a NUL in it.
    #[error("a name with a NUL byte")]
    Name(#[from] std::ffi::NulError),
}

impl CudaError {
    /// Returns the driver's code, if it is one.
    pub const fn code(&self) -> Option<i32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Library(_) | Self::Name(_) => None,
        }
    }
}

/// Calls a function of the driver by its exported name, with arguments of its own types.
#[macro_export]
macro_rules! cuda_call {
    ($cuda:expr, $name:ident($($arg:expr => $type:ty),* $(,)?)) => {{
        let symbol = concat!(stringify!($name), "\0");
        // SAFETY: the types are those of the function's declaration in `cuda.h`, and the
        // arguments are the caller's own.
        unsafe {
            $cuda.function::<unsafe extern "C" fn($($type),*) -> i32>(symbol)
                .map_err($crate::cuda::program::CudaError::from)
                .and_then(|function| $cuda.check(stringify!($name), function($($arg),*)))
        }
    }};
}

impl CudaProgram {
    /// Opens a driver, by [`NAME`] or by its path.
    ///
    /// # Errors
    ///
    /// [`CudaError::Library`] if the loader finds none.
    pub fn open(name: impl AsRef<OsStr>) -> Result<Self, CudaError> {
        // SAFETY: a driver's library does nothing when it is loaded.
        Ok(Self(unsafe { Library::new(name.as_ref()) }?))
    }

    /// Finds a function by its name with a NUL at the end.
    ///
    /// # Errors
    ///
    /// The loader's.
    ///
    /// # Safety
    ///
    /// `F` is the function's type.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, libloading::Error> {
        // SAFETY: the caller's promise.
        unsafe { self.0.get::<F>(name.as_bytes()).map(|symbol| *symbol) }
    }

    /// Turns a result into an error.
    ///
    /// # Errors
    ///
    /// [`CudaError::Call`] unless it is 0.
    pub fn check(&self, call: &'static str, code: i32) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        Err(CudaError::Call { call, code, name: self.name_of(code) })
    }

    fn name_of(&self, code: i32) -> String {
        let mut text: *const c_char = ptr::null();
        type Name = unsafe extern "C" fn(i32, *mut *const c_char) -> i32;
        // SAFETY: the function's type; a text that it returns belongs to the driver forever.
        unsafe {
            match self.function::<Name>("cuGetErrorName\0") {
                Ok(name) if name(code, &mut text) == 0 && !text.is_null() => {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
                _ => "an unknown error".to_owned(),
            }
        }
    }

    /// Initialises the driver.
    ///
    /// # Errors
    ///
    /// [`CudaError`], as of all that follow.
    pub fn init(&self) -> Result<(), CudaError> {
        cuda_call!(self, cuInit(0 => u32))
    }

    /// Makes a device's primary context the thread's current one.
    pub fn use_device(&self, device: i32) -> Result<CudaHandle, CudaError> {
        let mut context = CudaHandle::NULL;
        cuda_call!(self, cuDevicePrimaryCtxRetain(&mut context => *mut CudaHandle, device => i32))?;
        self.use_context(context)?;
        Ok(context)
    }

    /// Makes a context the thread's current one.
    pub fn use_context(&self, context: CudaHandle) -> Result<(), CudaError> {
        cuda_call!(self, cuCtxSetCurrent(context => CudaHandle))
    }

    /// Loads a module from the text of its image.
    pub fn load(&self, image: &str) -> Result<CudaHandle, CudaError> {
        let image = CString::new(image)?;
        let mut module = CudaHandle::NULL;
        cuda_call!(
            self,
            cuModuleLoadData(&mut module => *mut CudaHandle, image.as_ptr() => *const c_char)
        )?;
        Ok(module)
    }

    /// Finds a kernel in a module.
    pub fn kernel(&self, module: CudaHandle, name: &str) -> Result<CudaHandle, CudaError> {
        let name = CString::new(name)?;
        let mut function = CudaHandle::NULL;
        cuda_call!(
            self,
            cuModuleGetFunction(
                &mut function => *mut CudaHandle, module => CudaHandle, name.as_ptr() => *const c_char,
            )
        )?;
        Ok(function)
    }

    /// Launches a kernel whose parameters have 8 bytes each.
    pub fn launch(
        &self,
        function: CudaHandle,
        shape: LaunchShape,
        stream: CudaHandle,
        params: &[u64],
    ) -> Result<(), CudaError> {
        let mut at: Vec<*const u64> = params.iter().map(ptr::from_ref).collect();
        let LaunchShape { grid, block } = shape;
        cuda_call!(
            self,
            cuLaunchKernel(
                function => CudaHandle,
                grid[0] => u32, grid[1] => u32, grid[2] => u32,
                block[0] => u32, block[1] => u32, block[2] => u32,
                0 => u32, stream => CudaHandle,
                at.as_mut_ptr() => *mut *const u64, ptr::null_mut() => *mut *mut c_void,
            )
        )
    }

    /// Makes a stream.
    pub fn stream(&self, flags: u32, priority: i32) -> Result<CudaHandle, CudaError> {
        let mut stream = CudaHandle::NULL;
        cuda_call!(
            self,
            cuStreamCreateWithPriority(
                &mut stream => *mut CudaHandle, flags => u32, priority => i32,
            )
        )?;
        Ok(stream)
    }

    /// Waits for all work of the current context.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        cuda_call!(self, cuCtxSynchronize())
    }

    /// Waits for a stream.
    pub fn wait(&self, stream: CudaHandle) -> Result<(), CudaError> {
        cuda_call!(self, cuStreamSynchronize(stream => CudaHandle))
    }

    /// Makes an event that knows its time.
    pub fn event(&self) -> Result<CudaHandle, CudaError> {
        let mut event = CudaHandle::NULL;
        cuda_call!(self, cuEventCreate(&mut event => *mut CudaHandle, 0 => u32))?;
        Ok(event)
    }

    /// Records an event in a stream.
    pub fn record(&self, event: CudaHandle, stream: CudaHandle) -> Result<(), CudaError> {
        cuda_call!(self, cuEventRecord(event => CudaHandle, stream => CudaHandle))
    }

    /// Returns the milliseconds between two events.
    pub fn elapsed(&self, start: CudaHandle, end: CudaHandle) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        cuda_call!(
            self,
            cuEventElapsedTime(&mut milliseconds => *mut f32, start => CudaHandle, end => CudaHandle)
        )?;
        Ok(milliseconds)
    }

    /// Allocates device memory, in bytes.
    pub fn allocate(&self, bytes: u64) -> Result<u64, CudaError> {
        let mut address = 0;
        #[expect(clippy::cast_possible_truncation, reason = "CUDA's driver is for 64-bit machines")]
        let bytes = bytes as usize;
        cuda_call!(self, cuMemAlloc_v2(&mut address => *mut u64, bytes => usize))?;
        Ok(address)
    }

    /// Frees device memory.
    pub fn free(&self, address: u64) -> Result<(), CudaError> {
        cuda_call!(self, cuMemFree_v2(address => u64))
    }

    /// Returns the device's free memory and all of it, in bytes.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0_usize, 0_usize);
        cuda_call!(self, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize))?;
        Ok((free as u64, total as u64))
    }

    /// Copies words to the device.
    pub fn write(&self, to: u64, words: &[u64]) -> Result<(), CudaError> {
        let bytes = size_of_val(words);
        cuda_call!(
            self,
            cuMemcpyHtoD_v2(to => u64, words.as_ptr() => *const u64, bytes => usize)
        )
    }

    /// Copies words from the device.
    pub fn read(&self, from: u64, count: usize) -> Result<Vec<u64>, CudaError> {
        let mut words = vec![0; count];
        let bytes = size_of_val(&words[..]);
        cuda_call!(
            self,
            cuMemcpyDtoH_v2(words.as_mut_ptr() => *mut u64, from => u64, bytes => usize)
        )?;
        Ok(words)
    }

    /// Returns the device's time in nanoseconds, if this driver is the stand-in.
    pub fn now(&self) -> Option<u64> {
        type Now = unsafe extern "C" fn() -> u64;
        // SAFETY: the function's type.
        unsafe { self.function::<Now>("tesseraSimNow\0").ok().map(|now| now()) }
    }

    /// Lets virtual time pass, if this driver is the stand-in with a virtual clock; returns
    /// whether it is.
    pub fn pass(&self, nanoseconds: u64) -> bool {
        type Pass = unsafe extern "C" fn(u64) -> i32;
        // SAFETY: the function's type.
        unsafe {
            self.function::<Pass>("tesseraSimPass\0").is_ok_and(|pass| pass(nanoseconds) == 0)
        }
    }
}
