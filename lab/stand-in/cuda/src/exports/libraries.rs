//! Libraries: modules that belong to no context.

use std::ffi::{c_char, c_void};

use tessera_stand_in::cuda::image::KernelImage;

use super::images::{attribute_of, image_at, image_of_file, name_pointer, param_count, param_info};
use crate::abi::{CallResult, CudaCode, H, InPointer, OutPointer, to_int};
use crate::driver::CudaDriver;
use crate::gate::cuda;

cuda! {
    fn cuLibraryLoadData(
        library: OutPointer<H>,
        code: InPointer<u8>,
        _jit_options: InPointer<i32>,
        _jit_values: InPointer<*mut c_void>,
        _jit_count: u32,
        _options: InPointer<i32>,
        _values: InPointer<*mut c_void>,
        _count: u32,
    ) |call| {
        load(call.driver, library, image_at(code)?)
    }

    fn cuLibraryLoadFromFile(
        library: OutPointer<H>,
        path: InPointer<c_char>,
        _jit_options: InPointer<i32>,
        _jit_values: InPointer<*mut c_void>,
        _jit_count: u32,
        _options: InPointer<i32>,
        _values: InPointer<*mut c_void>,
        _count: u32,
    ) |call| {
        load(call.driver, library, image_of_file(&path.text()?)?)
    }

    fn cuLibraryUnload(library: H) |call| {
        let world = call.driver.world();
        let modules = world.libraries.get(library)?.modules.keys();
        let ends: Vec<_> = modules.flat_map(|context| world.ends_of(*context)).collect();
        drop(world);
        call.driver.wait_for(&ends);
        call.driver.world().unload_library(library)
    }

    fn cuLibraryGetKernel(kernel: OutPointer<H>, library: H, name: InPointer<c_char>) |call| {
        let name = name.text()?;
        let world = call.driver.world();
        let found = world.libraries.get(library)?;
        let index = found.image.kernels.iter().position(|kernel| kernel.name == name);
        kernel.set(found.kernels[index.ok_or(CudaCode::NOT_FOUND)?])
    }

    fn cuLibraryGetKernelCount(count: OutPointer<u32>, library: H) |call| {
        let world = call.driver.world();
        let kernels = world.libraries.get(library)?.kernels.len();
        count.set(to_int(kernels)?)
    }

    fn cuLibraryEnumerateKernels(kernels: OutPointer<H>, count: u32, library: H) |call| {
        let world = call.driver.world();
        let found = world.libraries.get(library)?.kernels.iter();
        found.take(count as usize).enumerate().try_for_each(|(index, one)| kernels.set_at(index, *one))
    }

    fn cuLibraryGetModule(module: OutPointer<H>, library: H) |call| {
        let mut world = call.driver.world();
        let context = world.current()?;
        module.set(world.library_module(library, context)?)
    }

    fn cuKernelGetFunction(function: OutPointer<H>, kernel: H) |call| {
        let mut world = call.driver.world();
        let context = world.current()?;
        function.set(world.kernel_function(kernel, context)?)
    }

    fn cuKernelGetLibrary(library: OutPointer<H>, kernel: H) |call| {
        library.set(call.driver.world().kernels.get(kernel)?.library)
    }

    fn cuKernelGetName(name: OutPointer<*const c_char>, kernel: H) |call| {
        let world = call.driver.world();
        name.set(name_pointer(&world.kernels.get(kernel)?.name))
    }

    fn cuKernelGetParamInfo(kernel: H, index: usize, offset: OutPointer<usize>, bytes: OutPointer<usize>) |call| {
        let world = call.driver.world();
        param_info(&world.kernels.get(kernel)?.kernel, index, offset, bytes)
    }

    fn cuKernelGetAttribute(value: OutPointer<i32>, attribute: i32, kernel: H, device: i32) |call| {
        let world = call.driver.world();
        world.device(device)?;
        let found = world.kernels.get(kernel)?;
        value.set(attribute_of(&found.kernel, found.dynamic_shared_bytes, attribute)?)
    }

    fn cuKernelGetParamCount(kernel: H, count: OutPointer<usize>) |call| {
        let world = call.driver.world();
        count.set(param_count(&world.kernels.get(kernel)?.kernel)?)
    }
}

fn load(driver: &CudaDriver, library: OutPointer<H>, image: KernelImage) -> CallResult {
    if library.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    library.set(driver.world().load_library(image)?)
}
