//! The handling of each return code of the library, in one table.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The library's return codes with their own handling, with the numbers of `nvml.h`. A test of the
/// agent compares them with the library's bindings.
#[expect(missing_docs, reason = "the names are NVIDIA's, and documented in nvml.h")]
pub mod return_code {
    pub const SUCCESS: u32 = 0;
    pub const UNINITIALIZED: u32 = 1;
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const ALREADY_INITIALIZED: u32 = 5;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const TIMEOUT: u32 = 10;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const OPERATING_SYSTEM: u32 = 17;
    pub const IN_USE: u32 = 19;
    pub const MEMORY: u32 = 20;
    pub const NO_DATA: u32 = 21;
    pub const VGPU_ECC_NOT_SUPPORTED: u32 = 22;
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
    pub const FREQ_NOT_SUPPORTED: u32 = 24;
    pub const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    pub const DEPRECATED: u32 = 26;
    pub const NOT_READY: u32 = 27;
    pub const GPU_NOT_FOUND: u32 = 28;
    pub const INVALID_STATE: u32 = 29;
    pub const RESET_TYPE_NOT_SUPPORTED: u32 = 30;
    pub const UNKNOWN: u32 = 999;
}

/// A call that the library refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlCallError {
    /// Name of the function of NVML that failed.
    pub call: String,
    /// Its return code.
    pub code: u32,
}

/// What to do about a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorHandling {
    /// The object to destroy or read doesn't exist.
    Absent,
    /// A process holds it: wait and try again, and finally mark it as stuck.
    InUse,
    /// It may work a little later.
    Retry,
    /// The driver doesn't accept this layout: plan again.
    Replan,
    /// The GPU, its driver or the machine needs a person to intervene.
    Faulty,
    /// We called it wrongly, or the driver lacks the call.
    Bug,
}

impl NvmlCallError {
    /// Looks call and code up. Codes that no header names count as a faulty GPU, which is the safe
    /// assumption.
    pub fn handling(&self) -> ErrorHandling {
        match self.code {
            return_code::NOT_FOUND => ErrorHandling::Absent,
            // A handle of a removed object is an invalid argument.
            return_code::INVALID_ARGUMENT if self.destroys() => ErrorHandling::Absent,
            return_code::IN_USE => ErrorHandling::InUse,
            return_code::TIMEOUT
            | return_code::OPERATING_SYSTEM
            | return_code::MEMORY
            | return_code::NO_DATA
            | return_code::NOT_READY => ErrorHandling::Retry,
            return_code::INSUFFICIENT_RESOURCES
            | return_code::INVALID_STATE
            | return_code::NOT_SUPPORTED => ErrorHandling::Replan,
            return_code::SUCCESS
            | return_code::UNINITIALIZED
            | return_code::INVALID_ARGUMENT
            | return_code::ALREADY_INITIALIZED
            | return_code::INSUFFICIENT_SIZE
            | return_code::FUNCTION_NOT_FOUND
            | return_code::ARGUMENT_VERSION_MISMATCH
            | return_code::DEPRECATED
            | return_code::VGPU_ECC_NOT_SUPPORTED
            | return_code::FREQ_NOT_SUPPORTED
            | return_code::RESET_TYPE_NOT_SUPPORTED => ErrorHandling::Bug,
            // NO_PERMISSION, INSUFFICIENT_POWER, DRIVER_NOT_LOADED, IRQ_ISSUE,
            // LIBRARY_NOT_FOUND, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED,
            // LIB_RM_VERSION_MISMATCH, GPU_NOT_FOUND, UNKNOWN and future codes.
            _ => ErrorHandling::Faulty,
        }
    }

    /// Returns whether the GPU is gone with all programs on it: lost, in need of a reset, or not
    /// listed by a driver that lists others.
    pub const fn is_loss(&self) -> bool {
        matches!(
            self.code,
            return_code::GPU_IS_LOST | return_code::RESET_REQUIRED | return_code::GPU_NOT_FOUND
        )
    }

    /// Returns whether the call timed out.
    pub const fn is_timeout(&self) -> bool {
        self.code == return_code::TIMEOUT
    }

    fn destroys(&self) -> bool {
        self.call.ends_with("InstanceDestroy")
    }

    /// Returns whether the GPU or its driver lacks what was requested.
    pub const fn is_unsupported(&self) -> bool {
        matches!(self.code, return_code::NOT_SUPPORTED | return_code::FUNCTION_NOT_FOUND)
    }

    /// Returns whether the library didn't know the queried object: a handle of a removed object, or
    /// a number that its list lacks.
    pub const fn is_bad_argument(&self) -> bool {
        self.code == return_code::INVALID_ARGUMENT
    }

    /// Returns whether an immediate second reading makes sense: the objects changed during the
    /// reading, or the driver was busy.
    pub fn is_fleeting(&self) -> bool {
        matches!(self.handling(), ErrorHandling::Retry | ErrorHandling::Absent)
            || self.is_bad_argument()
    }

    const fn description(&self) -> &'static str {
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

impl fmt::Display for NvmlCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} from {})", self.description(), self.code, self.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_handling_and_a_text() {
        for code in (0..=40).chain([999, u32::MAX]) {
            let error = NvmlCallError { call: "nvmlX".into(), code };

            let handling = error.handling();

            assert!(error.to_string().contains(&code.to_string()));
            assert_eq!(handling == ErrorHandling::InUse, code == 19);
            assert_eq!(handling == ErrorHandling::Absent, code == 6);
        }
    }
}
