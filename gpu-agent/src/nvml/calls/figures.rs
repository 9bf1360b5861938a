//! The power of a GPU and the processes that use it.

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t, nvmlUtilization_t,
};

use super::{FUNCTION_NOT_FOUND, NvmlLibrary, SUCCESS, filled};
use tessera_agent_core::nvml::error::NvmlCallError;

const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
/// Entries requested at first; the library reports if there are more.
const ENTRIES_MIN: c_uint = 64;
/// Maximum number of entries that are read: more processes than any GPU runs, and longer than
/// any driver's buffer of samples.
const ENTRIES_MAX: c_uint = 4096;

impl NvmlLibrary {
    /// Lists the processes that compute on a GPU, its instances included, or on a MIG device.
    pub fn compute_processes(
        &self,
        device: nvmlDevice_t,
    ) -> Result<Vec<nvmlProcessInfo_t>, NvmlCallError> {
        listed(|count, list| {
            call!(self.nvmlDeviceGetComputeRunningProcesses_v3(device, count, list))
        })
    }

    /// Lists the clients of MPS servers, likewise.
    pub fn mps_processes(
        &self,
        device: nvmlDevice_t,
    ) -> Result<Vec<nvmlProcessInfo_t>, NvmlCallError> {
        listed(|count, list| {
            call!(self.nvmlDeviceGetMPSComputeRunningProcesses_v3(device, count, list))
        })
    }

    /// Lists how busy processes kept a GPU since a moment of an earlier list, in microseconds
    /// since 1970. Not supported with MIG on.
    pub fn process_loads(
        &self,
        device: nvmlDevice_t,
        since_us: u64,
    ) -> Result<Vec<nvmlProcessUtilizationSample_t>, NvmlCallError> {
        let loads = listed(|count, list| {
            call!(self.nvmlDeviceGetProcessUtilization(device, list, count, since_us))
        });
        match loads {
            // No process was busy.
            Err(fault) if fault.code == NOT_FOUND => Ok(Vec::new()),
            other => other,
        }
    }

    /// Returns how busy a GPU was recently, in percent. Not supported with MIG
    /// on.
    pub fn utilization(&self, device: nvmlDevice_t) -> Result<nvmlUtilization_t, NvmlCallError> {
        let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        call!(self.nvmlDeviceGetUtilizationRates(device, &raw mut rates))?;
        Ok(rates)
    }

    /// Returns the power of a whole GPU, in milliwatts.
    pub fn power(&self, device: nvmlDevice_t) -> Result<u32, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetPowerUsage(device, place)))
    }

    /// Returns the energy of a whole GPU since its driver was loaded, in millijoules.
    pub fn energy(&self, device: nvmlDevice_t) -> Result<u64, NvmlCallError> {
        filled(|place| call!(self.nvmlDeviceGetTotalEnergyConsumption(device, place)))
    }
}

/// Lets a call fill in a list, which may have more entries than its first buffer.
fn listed<T: Copy>(
    fill: impl Fn(*mut c_uint, *mut T) -> Result<(), NvmlCallError>,
) -> Result<Vec<T>, NvmlCallError> {
    let mut capacity = ENTRIES_MIN;
    loop {
        // SAFETY: used for structures of plain integers only, for which zero is valid.
        let empty: T = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut list = vec![empty; capacity as usize];
        let mut count = capacity;
        match fill(&raw mut count, list.as_mut_ptr()) {
            Ok(()) => {
                list.truncate(count as usize);
                return Ok(list);
            }
            Err(fault) if fault.code == INSUFFICIENT_SIZE && capacity < ENTRIES_MAX => {
                capacity = ENTRIES_MAX;
            }
            Err(fault) => return Err(fault),
        }
    }
}
