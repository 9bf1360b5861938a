//! The library's calls, one thin function each: the only unsafe code that touches NVML.
//!
//! Made through the function table that `nvml-wrapper` has loaded, since its safe interface lacks
//! most of MIG. A symbol that the driver lacks is an error here, never a panic. Runs in the worker
//! process only.

use std::ffi::{CStr, OsStr, c_char, c_uint};
use std::mem::MaybeUninit;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlFieldValue_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
};

use tessera_agent_core::nvml::error::NvmlCallError;

const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 3;
const LIBRARY_NOT_FOUND: u32 = 12;
const FUNCTION_NOT_FOUND: u32 = 13;
const UNKNOWN: u32 = 999;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = 230;

/// Longest UUID (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`) and name.
const TEXT_BYTES: c_uint = 96;

/// The loaded library.
pub struct NvmlLibrary {
    nvml: Nvml,
}

/// Calls one function of the table.
macro_rules! call {
    ($self:ident . $name:ident ( $($argument:expr),* $(,)? )) => {{
        let lib: &NvmlLib = $self.nvml.lib();
        let code = match &lib.$name {
            // SAFETY: the function comes from the loaded library under its own name. Each caller passes
            // handles that the library gave out, and places of the sizes in nvml.h that are valid for writes
            // during the call.
            Ok(function) => unsafe { function($($argument),*) },
            Err(_) => FUNCTION_NOT_FOUND,
        };
        if code == SUCCESS {
            Ok(())
        } else {
            Err(NvmlCallError { call: stringify!($name).to_owned(), code })
        }
    }};
}

mod compute;
pub mod events;

/// Lets a call fill in a structure of plain integers.
fn filled<T>(fill: impl FnOnce(*mut T) -> Result<(), NvmlCallError>) -> Result<T, NvmlCallError> {
    let mut place = MaybeUninit::<T>::zeroed();
    fill(place.as_mut_ptr())?;
    // SAFETY: used for integers, pointers and structures of them only, for which all zeroes
    // are valid; the library has written over what it fills in.
    Ok(unsafe { place.assume_init() })
}

mod figures;
pub mod gpm;

impl NvmlLibrary {
    /// Loads the library and initialises it.
    ///
    /// # Errors
    ///
    /// The library is missing, or there is no driver that goes with it.
    pub fn load(path: &OsStr) -> Result<Self, NvmlCallError> {
        Nvml::builder().lib_path(path).init().map(|nvml| Self { nvml }).map_err(|error| {
            let code = match error {
                NvmlError::LibloadingError(_) => LIBRARY_NOT_FOUND,
                NvmlError::DriverNotLoaded => 9,
                NvmlError::LibRmVersionMismatch => 18,
                NvmlError::NoPermission => 4,
                NvmlError::UnexpectedVariant(code) => code,
                _ => UNKNOWN,
            };
            NvmlCallError { call: "nvmlInit_v2".to_owned(), code }
        })
    }

    /// Counts the GPUs.
    pub fn count(&self) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetCount_v2(place)))
    }

    /// Finds a GPU by index.
    pub fn device(&self, index: u32) -> Result<nvmlDevice_t, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetHandleByIndex_v2(index, place)))
    }

    /// Returns the index of a GPU.
    pub fn index(&self, device: nvmlDevice_t) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetIndex(device, place)))
    }

    /// Returns the UUID of a GPU or MIG device.
    pub fn uuid(&self, device: nvmlDevice_t) -> Result<String, NvmlCallError> {
        text(|place, size| call!(self.nvmlDeviceGetUUID(device, place, size)))
    }

    /// Returns the name of a board.
    pub fn name(&self, device: nvmlDevice_t) -> Result<String, NvmlCallError> {
        text(|place, size| call!(self.nvmlDeviceGetName(device, place, size)))
    }

    /// Returns the memory of a GPU or MIG device: all of it, and what is in use, in bytes.
    pub fn memory(&self, device: nvmlDevice_t) -> Result<(u64, u64), NvmlCallError> {
        let newer = filled(|place: *mut nvmlMemory_v2_t| {
            // SAFETY: `filled` passes a valid place.
            unsafe { (*place).version = versioned::<nvmlMemory_v2_t>(2) };
            call!(self.nvmlDeviceGetMemoryInfo_v2(device, place))
        });
        if let Ok(memory) = newer {
            return Ok((memory.total, memory.used));
        }
        let older: nvmlMemory_t =
            filled(|place| call!(self.nvmlDeviceGetMemoryInfo(device, place)))?;
        Ok((older.total, older.used))
    }

    /// Returns whether MIG mode is on.
    pub fn mig_mode(&self, device: nvmlDevice_t) -> Result<bool, NvmlCallError> {
        let mut pending: c_uint = 0;
        let current: c_uint =
            filled(|place| call!(self.nvmlDeviceGetMigMode(device, place, &raw mut pending)))?;
        Ok(current == 1)
    }

    /// Returns the current and the pending MIG mode.
    pub fn mig_modes(&self, device: nvmlDevice_t) -> Result<(bool, bool), NvmlCallError> {
        let mut pending: c_uint = 0;
        let current: c_uint =
            filled(|place| call!(self.nvmlDeviceGetMigMode(device, place, &raw mut pending)))?;
        Ok((current == 1, pending == 1))
    }

    /// Returns the driver's version.
    pub fn driver_version(&self) -> Result<String, NvmlCallError> {
        text(|place, size| call!(self.nvmlSystemGetDriverVersion(place, size)))
    }

    /// Returns the library's version.
    pub fn library_version(&self) -> Result<String, NvmlCallError> {
        text(|place, size| call!(self.nvmlSystemGetNVMLVersion(place, size)))
    }

    /// Returns whether persistence mode is on.
    pub fn persistence(&self, device: nvmlDevice_t) -> Result<bool, NvmlCallError> {
        let mode: c_uint = filled(|place| call!(self.nvmlDeviceGetPersistenceMode(device, place)))?;
        Ok(mode == 1)
    }

    /// Returns whether a display is driven.
    pub fn display_active(&self, device: nvmlDevice_t) -> Result<bool, NvmlCallError> {
        let active: c_uint = filled(|place| call!(self.nvmlDeviceGetDisplayActive(device, place)))?;
        Ok(active == 1)
    }

    /// Switches MIG mode; returns the activation status, which may be an error code although
    /// the call succeeded.
    pub fn set_mig_mode(&self, device: nvmlDevice_t, on: bool) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceSetMigMode(device, on.into(), place)))
    }

    /// Describes a profile by its enumeration number, with its name if the driver gives one.
    pub fn profile(
        &self,
        device: nvmlDevice_t,
        number: u32,
    ) -> Result<(nvmlGpuInstanceProfileInfo_t, Option<String>), NvmlCallError> {
        let plain: nvmlGpuInstanceProfileInfo_t =
            filled(|place| call!(self.nvmlDeviceGetGpuInstanceProfileInfo(device, number, place)))?;
        let version = versioned::<nvmlGpuInstanceProfileInfo_v2_t>(2);
        let named = filled(|place: *mut nvmlGpuInstanceProfileInfo_v2_t| {
            // SAFETY: `filled` passes a valid place.
            unsafe { (*place).version = version };
            call!(self.nvmlDeviceGetGpuInstanceProfileInfoV(device, number, place))
        });
        Ok((plain, named.ok().and_then(|info| to_text(&info.name))))
    }

    /// Lists the possible positions of a profile's instances.
    pub fn placements(
        &self,
        device: nvmlDevice_t,
        profile: u32,
    ) -> Result<Vec<nvmlGpuInstancePlacement_t>, NvmlCallError> {
        let mut count: c_uint = filled(|place| {
            call!(self.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                profile,
                std::ptr::null_mut(),
                place
            ))
        })?;
        let mut list = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        call!(self.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
            device,
            profile,
            list.as_mut_ptr(),
            &raw mut count
        ))?;
        list.truncate(count as usize);
        Ok(list)
    }

    /// Lists the instances of a profile, of which the GPU holds at most `most`.
    pub fn instances(
        &self,
        device: nvmlDevice_t,
        profile: u32,
        most: u32,
    ) -> Result<Vec<nvmlGpuInstance_t>, NvmlCallError> {
        let mut count = most;
        // The call takes no capacity: the list must hold as many as there can be.
        let mut list = vec![std::ptr::null_mut(); most.max(1) as usize];
        call!(self.nvmlDeviceGetGpuInstances(device, profile, list.as_mut_ptr(), &raw mut count))?;
        list.truncate(count as usize);
        Ok(list)
    }

    /// Describes an instance.
    pub fn instance(
        &self,
        instance: nvmlGpuInstance_t,
    ) -> Result<nvmlGpuInstanceInfo_t, NvmlCallError> {
        filled(|place| call!(self.nvmlGpuInstanceGetInfo(instance, place)))
    }

    /// Makes an instance.
    pub fn create(
        &self,
        device: nvmlDevice_t,
        profile: u32,
        placement: nvmlGpuInstancePlacement_t,
    ) -> Result<nvmlGpuInstance_t, NvmlCallError> {
        filled(|place| {
            call!(self.nvmlDeviceCreateGpuInstanceWithPlacement(
                device,
                profile,
                &raw const placement,
                place
            ))
        })
    }

    /// Destroys an instance.
    pub fn destroy(&self, instance: nvmlGpuInstance_t) -> Result<(), NvmlCallError> {
        call!(self.nvmlGpuInstanceDestroy(instance))
    }

    /// Returns how many MIG devices a GPU can have.
    pub fn mig_devices_max(&self, device: nvmlDevice_t) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetMaxMigDeviceCount(device, place)))
    }

    /// Returns the bus address of a GPU: domain, bus and device.
    pub fn bus(&self, device: nvmlDevice_t) -> Result<(u32, u32, u32), NvmlCallError> {
        let pci: nvmlPciInfo_t =
            filled(|place| call!(self.nvmlDeviceGetPciInfo_v3(device, place)))?;
        Ok((pci.domain, pci.bus, pci.device))
    }

    /// Returns the minor number of a GPU's device file.
    pub fn minor(&self, device: nvmlDevice_t) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetMinorNumber(device, place)))
    }

    /// Returns the major part of the CUDA compute capability.
    pub fn capability(&self, device: nvmlDevice_t) -> Result<i32, NvmlCallError> {
        let mut minor = 0;
        filled(|place| {
            call!(self.nvmlDeviceGetCudaComputeCapability(device, place, &raw mut minor))
        })
    }

    /// Returns what the driver advises to do about a GPU.
    pub fn recovery(&self, device: nvmlDevice_t) -> Result<u32, NvmlCallError> {
        // SAFETY: integers and a union of numbers, for which all zeroes are valid.
        let mut field: nvmlFieldValue_t = unsafe { MaybeUninit::zeroed().assume_init() };
        field.fieldId = RECOVERY_ACTION;
        call!(self.nvmlDeviceGetFieldValues(device, 1, &raw mut field))?;
        match field.nvmlReturn {
            // SAFETY: the union held zeroes, and every member is a number.
            SUCCESS => Ok(unsafe { field.value.uiVal }),
            code => Err(NvmlCallError { call: "nvmlDeviceGetFieldValues".to_owned(), code }),
        }
    }

    /// Returns whether a row of memory waits for a reset to be remapped.
    pub fn remap_pending(&self, device: nvmlDevice_t) -> Result<bool, NvmlCallError> {
        let (mut correctable, mut uncorrectable, mut failed) = (0, 0, 0);
        let pending: c_uint = filled(|place| {
            call!(self.nvmlDeviceGetRemappedRows(
                device,
                &raw mut correctable,
                &raw mut uncorrectable,
                place,
                &raw mut failed
            ))
        })?;
        Ok(pending != 0)
    }

    /// Finds a MIG device by index.
    pub fn mig_device(
        &self,
        device: nvmlDevice_t,
        index: u32,
    ) -> Result<nvmlDevice_t, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetMigDeviceHandleByIndex(device, index, place)))
    }

    /// Returns the number of the instance under a MIG device.
    pub fn instance_of(&self, mig: nvmlDevice_t) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetGpuInstanceId(mig, place)))
    }

    /// Lists the pids that compute on a GPU or MIG device, by themselves or through an MPS
    /// server.
    pub fn processes(&self, device: nvmlDevice_t) -> Result<Vec<u32>, NvmlCallError> {
        let mut found = self.compute_processes(device)?;
        match self.mps_processes(device) {
            Ok(clients) => found.extend(clients),
            // An older driver, or a device without MPS: then it has no clients.
            Err(fault) if matches!(fault.code, NOT_SUPPORTED | FUNCTION_NOT_FOUND) => {}
            Err(fault) => return Err(fault),
        }
        let mut pids: Vec<u32> = found.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }
}

/// Returns the version word of a structure (`nvmlStruct##_v##ver`).
#[expect(clippy::cast_possible_truncation, reason = "checked before: the size has 24 bits")]
const fn versioned<T>(version: u32) -> u32 {
    const { assert!(size_of::<T>() < 1 << 24, "the word has no place for the size") };
    size_of::<T>() as u32 | version << 24
}

fn text(
    fill: impl FnOnce(*mut c_char, c_uint) -> Result<(), NvmlCallError>,
) -> Result<String, NvmlCallError> {
    let mut buffer = [0; TEXT_BYTES as usize];
    fill(buffer.as_mut_ptr(), TEXT_BYTES)?;
    Ok(to_text(&buffer).unwrap_or_default())
}

fn to_text(buffer: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = buffer.iter().map(|c| c.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    Some(text.to_owned()).filter(|text| !text.is_empty())
}
