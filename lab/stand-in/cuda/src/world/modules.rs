//! Modules, libraries and what is launched from them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

use tessera_stand_in::cuda::image::{ImageKernel, KernelImage};

use super::DriverState;
use crate::abi::{CallResult, CudaCode, H};
use crate::memory::AllocationKind;

/// A module of one context.
pub struct LoadedModule {
    pub context: u64,
    pub image: Arc<KernelImage>,
    /// Functions by the kernels' places in the image, as they were requested.
    pub functions: BTreeMap<usize, H>,
    /// Where its variables are, by their places in the image.
    pub globals: Vec<u64>,
    /// Whether it belongs to a library, which unloads it.
    pub of_library: bool,
}

/// A kernel in a module.
pub struct ModuleFunction {
    pub context: u64,
    pub module: H,
    pub kernel: Arc<ImageKernel>,
    /// What `cuFuncGetName` points to.
    pub name: CString,
    pub dynamic_shared_bytes: i32,
}

/// A library: modules of all contexts that need it.
pub struct LoadedLibrary {
    pub image: Arc<KernelImage>,
    pub kernels: Vec<H>,
    /// By context.
    pub modules: BTreeMap<u64, H>,
}

pub struct LibraryKernel {
    pub library: H,
    pub index: usize,
    pub kernel: Arc<ImageKernel>,
    /// What `cuKernelGetName` points to.
    pub name: CString,
    pub dynamic_shared_bytes: i32,
}

/// What a launch runs.
pub struct Launchable {
    pub kernel: Arc<ImageKernel>,
    pub dynamic_shared_bytes: i32,
}

impl DriverState {
    /// Loads an image into a context.
    pub fn load_module(
        &mut self,
        context: u64,
        image: Arc<KernelImage>,
        of_library: bool,
    ) -> CallResult<H> {
        let mut globals = Vec::new();
        for (_, bytes) in &image.globals {
            self.take_memory(context, *bytes)?;
            globals.push(self.memory.allocate(*bytes, AllocationKind::Device, context)?);
        }
        let functions = BTreeMap::new();
        Ok(self.modules.add(LoadedModule { context, image, functions, globals, of_library }))
    }

    /// Unloads a module; its functions' handles are free.
    pub fn unload_module(&mut self, handle: H) -> CallResult {
        let module = self.modules.remove(handle)?;
        for function in module.functions.values() {
            let _ = self.functions.remove(*function);
        }
        for address in module.globals {
            if let Ok(freed) = self.memory.free(address, &[AllocationKind::Device]) {
                self.give_memory(module.context, freed.bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the function of a kernel of a module, by the kernel's place in its image.
    pub fn function(&mut self, module: H, index: usize) -> CallResult<H> {
        let found = self.modules.get(module)?;
        if let Some(function) = found.functions.get(&index) {
            return Ok(*function);
        }
        let kernel = found.image.kernels.get(index).ok_or(CudaCode::NOT_FOUND)?.clone();
        let context = found.context;
        let name = c_name(&kernel)?;
        let kernel = Arc::new(kernel);
        let function = self.functions.add(ModuleFunction {
            context,
            module,
            kernel,
            name,
            dynamic_shared_bytes: 0,
        });
        self.modules.get_mut(module)?.functions.insert(index, function);
        Ok(function)
    }

    /// Returns the module of a library in a context, loading it on first use.
    pub fn library_module(&mut self, library: H, context: u64) -> CallResult<H> {
        let found = self.libraries.get(library)?;
        let known = found.modules.get(&context).copied();
        if let Some(module) = known.filter(|module| self.modules.get(*module).is_ok()) {
            return Ok(module);
        }
        let image = Arc::clone(&found.image);
        let module = self.load_module(context, image, true)?;
        self.libraries.get_mut(library)?.modules.insert(context, module);
        Ok(module)
    }

    /// Returns the function of a library's kernel in a context.
    pub fn kernel_function(&mut self, kernel: H, context: u64) -> CallResult<H> {
        let found = self.kernels.get(kernel)?;
        let (library, index) = (found.library, found.index);
        let module = self.library_module(library, context)?;
        self.function(module, index)
    }

    /// Adds a library.
    pub fn load_library(&mut self, image: KernelImage) -> CallResult<H> {
        let image = Arc::new(image);
        let empty = LoadedLibrary {
            image: Arc::clone(&image),
            kernels: Vec::new(),
            modules: BTreeMap::new(),
        };
        let library = self.libraries.add(empty);
        let mut kernels = Vec::new();
        for (index, kernel) in image.kernels.iter().enumerate() {
            let name = c_name(kernel)?;
            let kernel = Arc::new(kernel.clone());
            let dynamic_shared_bytes = 0;
            let one = LibraryKernel { library, index, kernel, name, dynamic_shared_bytes };
            kernels.push(self.kernels.add(one));
        }
        self.libraries.get_mut(library)?.kernels = kernels;
        Ok(library)
    }

    /// Removes a library with its kernels and modules.
    pub fn unload_library(&mut self, handle: H) -> CallResult {
        let library = self.libraries.remove(handle)?;
        for kernel in library.kernels {
            self.kernels.remove(kernel)?;
        }
        for module in library.modules.into_values() {
            // Gone already if its context is.
            let _ = self.unload_module(module);
        }
        Ok(())
    }

    /// Finds what a launch in a context runs: a function of that context, or a library's kernel.
    pub fn launchable(&mut self, handle: H, context: u64) -> CallResult<Launchable> {
        if let Ok(found) = self.functions.get(handle) {
            if found.context != context {
                return Err(CudaCode::INVALID_HANDLE);
            }
            let kernel = Arc::clone(&found.kernel);
            return Ok(Launchable { kernel, dynamic_shared_bytes: found.dynamic_shared_bytes });
        }
        let found = self.kernels.get(handle)?;
        let kernel = Arc::clone(&found.kernel);
        let dynamic_shared_bytes = found.dynamic_shared_bytes;
        // As lazily as the driver: the first launch loads the code.
        self.kernel_function(handle, context)?;
        Ok(Launchable { kernel, dynamic_shared_bytes })
    }
}

fn c_name(kernel: &ImageKernel) -> CallResult<CString> {
    CString::new(kernel.name.as_str()).map_err(|_| CudaCode::INVALID_IMAGE)
}
