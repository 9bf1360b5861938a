//! Modules and functions.

use std::ffi::{CString, c_char, c_void};
use std::fs;
use std::sync::Arc;

use tessera_stand_in::cuda::image::{BYTES_MAX, ImageError, ImageKernel, KernelImage};
use tessera_stand_in::cuda::names::WRAPPER;

use crate::abi::{
    CallResult, CudaCode, DevicePointer, H, InPointer, OutPointer, to_int, to_native,
};
use crate::complaints::complain;
use crate::driver::CudaDriver;
use crate::gate::cuda;

/// Modes of loading: the driver's own, which is lazy on Linux.
const LAZY: i32 = 2;
const EAGER: i32 = 1;
/// Attributes of functions.
const THREADS_MAX: i32 = 0;
const SHARED_BYTES: i32 = 1;
const REGISTERS: i32 = 4;
const PTX_VERSION: i32 = 5;
const BINARY_VERSION: i32 = 6;
const DYNAMIC_SHARED_MAX: i32 = 8;
const CARVEOUT: i32 = 9;
const ATTRIBUTES: i32 = 16;
/// Maximum dynamic shared memory of a block.
pub const SHARED_MAX: i32 = 166_912;

cuda! {
    fn cuModuleLoad(module: OutPointer<H>, path: InPointer<c_char>) |call| {
        let image = image_of_file(&path.text()?)?;
        load(call.driver, module, image)
    }

    fn cuModuleLoadData(module: OutPointer<H>, image: InPointer<u8>) |call| {
        load(call.driver, module, image_at(image)?)
    }

    fn cuModuleLoadDataEx(
        module: OutPointer<H>,
        image: InPointer<u8>,
        _count: u32,
        _options: InPointer<i32>,
        _values: InPointer<*mut c_void>,
    ) |call| {
        load(call.driver, module, image_at(image)?)
    }

    fn cuModuleLoadFatBinary(module: OutPointer<H>, image: InPointer<u8>) |call| {
        load(call.driver, module, image_at(image)?)
    }

    fn cuModuleUnload(module: H) |call| {
        let world = call.driver.world();
        world.current()?;
        if world.modules.get(module)?.of_library {
            return Err(CudaCode::NOT_PERMITTED);
        }
        let ends = world.ends_of(world.modules.get(module)?.context);
        drop(world);
        call.driver.wait_for(&ends);
        call.driver.world().unload_module(module)
    }

    fn cuModuleGetFunction(function: OutPointer<H>, module: H, name: InPointer<c_char>) |call| {
        let name = name.text()?;
        let mut world = call.driver.world();
        world.current()?;
        let image = &world.modules.get(module)?.image;
        let index = image.kernels.iter().position(|kernel| kernel.name == name);
        let found = world.function(module, index.ok_or(CudaCode::NOT_FOUND)?)?;
        function.set(found)
    }

    fn cuModuleGetGlobal_v2(
        address: OutPointer<DevicePointer>,
        bytes: OutPointer<usize>,
        module: H,
        name: InPointer<c_char>,
    ) |call| {
        let name = name.text()?;
        let world = call.driver.world();
        world.current()?;
        let found = world.modules.get(module)?;
        let index = found.image.globals.iter().position(|(global, _)| *global == name);
        let index = index.ok_or(CudaCode::NOT_FOUND)?;
        address.offer(found.globals[index]);
        bytes.offer(to_native(found.image.globals[index].1));
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: OutPointer<i32>) |_call| {
        let eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        mode.set(if eager { EAGER } else { LAZY })
    }

    fn cuModuleGetFunctionCount(count: OutPointer<u32>, module: H) |call| {
        let world = call.driver.world();
        let kernels = world.modules.get(module)?.image.kernels.len();
        count.set(to_int(kernels)?)
    }

    fn cuModuleEnumerateFunctions(functions: OutPointer<H>, count: u32, module: H) |call| {
        let mut world = call.driver.world();
        let kernels = world.modules.get(module)?.image.kernels.len();
        for index in 0..kernels.min(count as usize) {
            functions.set_at(index, world.function(module, index)?)?;
        }
        Ok(())
    }

    fn cuFuncGetName(name: OutPointer<*const c_char>, function: H) |call| {
        let world = call.driver.world();
        name.set(world.functions.get(function)?.name.as_ptr())
    }

    fn cuFuncGetModule(module: OutPointer<H>, function: H) |call| {
        module.set(call.driver.world().functions.get(function)?.module)
    }

    fn cuFuncGetParamInfo(
        function: H,
        index: usize,
        offset: OutPointer<usize>,
        bytes: OutPointer<usize>,
    ) |call| {
        let world = call.driver.world();
        param_info(&world.functions.get(function)?.kernel, index, offset, bytes)
    }

    fn cuFuncGetParamCount(function: H, count: OutPointer<usize>) |call| {
        let world = call.driver.world();
        count.set(params(&world.functions.get(function)?.kernel)?.len())
    }

    fn cuFuncGetAttribute(value: OutPointer<i32>, attribute: i32, function: H) |call| {
        let mut world = call.driver.world();
        let context = world.current()?;
        let found = world.launchable(function, context)?;
        value.set(attribute_of(&found.kernel, found.dynamic_shared_bytes, attribute)?)
    }

    fn cuFuncSetAttribute(function: H, attribute: i32, value: i32) |call| {
        let mut world = call.driver.world();
        world.current()?;
        match attribute {
            DYNAMIC_SHARED_MAX if (0..=SHARED_MAX).contains(&value) => {
                if let Ok(function) = world.functions.get_mut(function) {
                    function.dynamic_shared_bytes = value;
                } else {
                    world.kernels.get_mut(function)?.dynamic_shared_bytes = value;
                }
                Ok(())
            }
            CARVEOUT..ATTRIBUTES => world.functions.get(function).map(drop),
            _ => Err(CudaCode::INVALID_VALUE),
        }
    }

    fn cuFuncSetCacheConfig(function: H, config: i32) |call| {
        let world = call.driver.world();
        world.functions.get(function)?;
        if (0..=3).contains(&config) { Ok(()) } else { Err(CudaCode::INVALID_VALUE) }
    }
}

/// Returns an attribute of a function by its number in `cuda.h`.
pub fn attribute_of(kernel: &ImageKernel, dynamic_shared: i32, attribute: i32) -> CallResult<i32> {
    Ok(match attribute {
        THREADS_MAX => to_int(threads_max(kernel.registers))?,
        SHARED_BYTES => to_int(kernel.shared_bytes)?,
        REGISTERS => to_int(kernel.registers)?,
        PTX_VERSION | BINARY_VERSION => 80,
        DYNAMIC_SHARED_MAX => dynamic_shared.max(49_152),
        CARVEOUT => -1,
        _ if (0..ATTRIBUTES).contains(&attribute) => 0,
        _ => return Err(CudaCode::INVALID_VALUE),
    })
}

/// Returns the most threads of a block whose registers fit on an SM: whole warps of 32.
fn threads_max(registers: u32) -> u32 {
    (65_536 / registers.max(1) / 32 * 32).min(1_024)
}

fn load(driver: &CudaDriver, module: OutPointer<H>, image: KernelImage) -> CallResult {
    if module.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    let mut world = driver.world();
    let context = world.current()?;
    module.set(world.load_module(context, Arc::new(image), false)?)
}

/// Reads an image from a file.
pub fn image_of_file(path: &str) -> CallResult<KernelImage> {
    let bytes = fs::read(path).map_err(|_| CudaCode::FILE_NOT_FOUND)?;
    KernelImage::parse(&bytes).map_err(|_| CudaCode::INVALID_IMAGE)
}

/// Reads an image from the program's memory, of which only the beginning is known.
pub fn image_at(image: InPointer<u8>) -> CallResult<KernelImage> {
    if image.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    let bytes = bytes_at(image)?;
    KernelImage::parse(&bytes).map_err(|error| match error {
        ImageError::Unknown => CudaCode::INVALID_IMAGE,
        ImageError::Line { .. } => {
            complain(&format!("a module image is refused: {error}"));
            CudaCode::INVALID_IMAGE
        }
    })
}

/// Copies an image whose size its own headers name: text ends at its NUL.
fn bytes_at(image: InPointer<u8>) -> CallResult<Vec<u8>> {
    let word = |at: usize, bytes: usize| -> CallResult<usize> {
        (0..bytes).rev().try_fold(0_usize, |all, index| {
            Ok(all.wrapping_mul(256).wrapping_add(usize::from(image.value_at(at + index)?)))
        })
    };
    let first = u32::from_le_bytes([0, 1, 2, 3].map(|index| image.value_at(index).unwrap_or(0)));
    if first == WRAPPER {
        // The wrapper of a fat binary: a pointer to it is its third word.
        let inner = std::ptr::with_exposed_provenance::<u8>(word(8, 8)?);
        // SAFETY: a pointer by the driver's contract, as the wrapper itself.
        let inner = unsafe { std::mem::transmute::<*const u8, InPointer<u8>>(inner) };
        return if inner.is_null() { Err(CudaCode::INVALID_IMAGE) } else { bytes_at(inner) };
    }
    let length = match first.to_le_bytes() {
        [0x7f, b'E', b'L', b'F'] => {
            // Cubins end with their tables: sections or segments, whichever is later.
            let sections = word(0x28, 8)? + word(0x3a, 2)? * word(0x3c, 2)?;
            let segments = word(0x20, 8)? + word(0x36, 2)? * word(0x38, 2)?;
            sections.max(segments)
        }
        [0x50, 0xed, 0x55, 0xba] => word(6, 2)? + word(8, 8)?,
        _ => {
            let mut length = 0;
            while length < BYTES_MAX && image.value_at(length)? != 0 {
                length += 1;
            }
            length
        }
    };
    if length > BYTES_MAX { Err(CudaCode::INVALID_IMAGE) } else { image.list(length) }
}

fn params(kernel: &ImageKernel) -> CallResult<&[u32]> {
    // Of real images only the names are known.
    kernel.params.as_deref().ok_or(CudaCode::NOT_SUPPORTED)
}

/// Reports where a parameter is in the parameters' memory: each aligned to its own size.
pub fn param_info(
    kernel: &ImageKernel,
    index: usize,
    offset: OutPointer<usize>,
    bytes: OutPointer<usize>,
) -> CallResult {
    let found = param_places(params(kernel)?).nth(index).ok_or(CudaCode::INVALID_VALUE)?;
    offset.set(found.0)?;
    bytes.offer(found.1);
    Ok(())
}

/// Returns offset and size of each parameter.
pub fn param_places(sizes: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    sizes.iter().scan(0_usize, |end, size| {
        let size = *size as usize;
        // Structures are aligned to 8 at most here.
        let align = size.next_power_of_two().clamp(1, 8);
        let offset = end.next_multiple_of(align);
        *end = offset + size;
        Some((offset, size))
    })
}

/// Returns how many parameters a kernel has.
pub fn param_count(kernel: &ImageKernel) -> CallResult<usize> {
    params(kernel).map(<[u32]>::len)
}

/// Returns a name as C needs it.
pub fn name_pointer(name: &CString) -> *const c_char {
    name.as_ptr()
}
