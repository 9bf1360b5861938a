//! Event sets, by which the driver reports errors by itself.

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use super::{FUNCTION_NOT_FOUND, NvmlCallError, NvmlLibrary, SUCCESS, filled};

/// `nvmlEventTypeXidCriticalError`.
const XID: u64 = 8;
/// What stands for "no instance".
const NO_INSTANCE: c_uint = c_uint::MAX;

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct DriverEvent {
    /// Handle of the GPU.
    pub device: nvmlDevice_t,
    /// The error's number.
    pub xid: u64,
    /// The GPU instance that it struck.
    pub instance: Option<u32>,
}

impl NvmlLibrary {
    /// Makes an event set.
    pub fn event_set(&self) -> Result<nvmlEventSet_t, NvmlCallError> {
        filled(|place| call!(self.nvmlEventSetCreate(place)))
    }

    /// Adds a GPU's errors to a set; `false` if the GPU reports none.
    pub fn watch(&self, device: nvmlDevice_t, set: nvmlEventSet_t) -> Result<bool, NvmlCallError> {
        let types: u64 =
            filled(|place| call!(self.nvmlDeviceGetSupportedEventTypes(device, place)))?;
        if types & XID == 0 {
            return Ok(false);
        }
        call!(self.nvmlDeviceRegisterEvents(device, XID, set)).map(|()| true)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// [`NvmlCallError`] with the code for "timeout" if there was none.
    pub fn next_event(
        &self,
        set: nvmlEventSet_t,
        wait_ms: u32,
    ) -> Result<DriverEvent, NvmlCallError> {
        let mut place = MaybeUninit::<nvmlEventData_t>::zeroed();
        call!(self.nvmlEventSetWait_v2(set, place.as_mut_ptr(), wait_ms))?;
        // SAFETY: a handle and integers, all of which may be zero.
        let data = unsafe { place.assume_init() };
        Ok(DriverEvent {
            device: data.device,
            xid: data.eventData,
            instance: (data.gpuInstanceId != NO_INSTANCE).then_some(data.gpuInstanceId),
        })
    }
}
