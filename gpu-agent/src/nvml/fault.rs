//! What each return code of the library means for us: one table.

use std::fmt;

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

/// A call that the library refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which call.
    pub call: String,
    /// Its return code.
    pub code: u32,
}

/// What to do about a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// What was to be destroyed or read is not there.
    Absent,
    /// A process holds it: wait for it, then try again, at last mark it stuck.
    InUse,
    /// It may work a moment later.
    Retry,
    /// The driver doesn't take this layout: plan anew.
    Replan,
    /// The GPU, its driver or the machine needs a person.
    Faulty,
    /// We called it wrongly, or the driver lacks the call.
    Bug,
}

impl Fault {
    /// Looks call and code up. Codes that no header names count as a faulty GPU: the one reading that
    /// is always safe.
    pub fn handling(&self) -> Handling {
        match self.code {
            sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => Handling::Absent,
            // A handle of what is gone is a bad argument.
            sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT if self.destroys() => Handling::Absent,
            sys::nvmlReturn_enum_NVML_ERROR_IN_USE => Handling::InUse,
            sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT
            | sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM
            | sys::nvmlReturn_enum_NVML_ERROR_MEMORY
            | sys::nvmlReturn_enum_NVML_ERROR_NO_DATA
            | sys::nvmlReturn_enum_NVML_ERROR_NOT_READY => Handling::Retry,
            sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES
            | sys::nvmlReturn_enum_NVML_ERROR_INVALID_STATE
            | sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => Handling::Replan,
            sys::nvmlReturn_enum_NVML_SUCCESS
            | sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED
            | sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
            | sys::nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED
            | sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE
            | sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
            | sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
            | sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED
            | sys::nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED
            | sys::nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED
            | sys::nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED => Handling::Bug,
            // NO_PERMISSION, INSUFFICIENT_POWER, DRIVER_NOT_LOADED, IRQ_ISSUE,
            // LIBRARY_NOT_FOUND, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED,
            // LIB_RM_VERSION_MISMATCH, GPU_NOT_FOUND, UNKNOWN and what nobody knows yet.
            _ => Handling::Faulty,
        }
    }

    /// Tells whether the GPU is gone, with all that ran on it: lost, in need of a reset, or not
    /// listed by a driver that lists others.
    pub const fn is_loss(&self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
                | sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED
                | sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND
        )
    }

    /// Tells whether nothing happened in the time that was given.
    pub const fn is_timeout(&self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT
    }

    fn destroys(&self) -> bool {
        self.call.ends_with("InstanceDestroy")
    }

    /// Tells whether the GPU or its driver lacks what was asked for.
    pub const fn is_unsupported(&self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
                | sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
        )
    }

    /// Tells whether the library didn't know what it was asked about: a handle of something that
    /// is gone, a number that its list lacks.
    pub const fn is_bad_argument(&self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
    }

    /// Tells whether reading once more makes sense at once: what was looked at changed under the
    /// reader's eyes, or the driver was busy.
    pub fn is_fleeting(&self) -> bool {
        matches!(self.handling(), Handling::Retry | Handling::Absent) || self.is_bad_argument()
    }

    const fn words(&self) -> &'static str {
        match self.code {
            2 => "invalid argument",
            3 => "not supported",
            4 => "no permission: the agent must run as root for this",
            6 => "not found",
            9 => "the driver is not loaded",
            10 => "timeout",
            12 => "the library was not found",
            13 => "the driver is too old: it lacks this call",
            15 => "the GPU is lost: reset it or reboot",
            16 => "the GPU needs a reset",
            17 => "operating system error",
            18 => "library and driver differ in version: reload the driver or reboot",
            19 => "in use by another client",
            20 => "out of memory",
            23 => "insufficient resources",
            27 => "not ready",
            28 => "the GPU was not found",
            29 => "invalid state",
            _ => "error",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} from {})", self.words(), self.code, self.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_handling_and_words() {
        for code in (0..=40).chain([999, u32::MAX]) {
            let fault = Fault { call: "nvmlX".into(), code };

            let handling = fault.handling();

            assert!(fault.to_string().contains(&code.to_string()));
            assert_eq!(handling == Handling::InUse, code == 19);
            assert_eq!(handling == Handling::Absent, code == 6);
        }
    }
}
