//! GPUs, through NVIDIA's management library.
//!
//! The library may hang forever in the kernel, crash, or be missing. So its calls are made in their own
//! process ([`worker`]). [`client`] queries that process with a deadline for each
//! request and replaces it when it doesn't answer. Nothing else in the agent waits for it.

pub mod activity;
pub mod calls;
pub mod checkup;
pub mod client;
pub mod counts;
pub mod events;
pub mod messages;
pub mod read;
pub mod sample;
pub mod watch;
pub mod worker;

#[cfg(test)]
mod tests {
    use nvml_wrapper_sys::bindings as sys;
    use tessera_agent_core::nvml::error::return_code as ours;

    #[test]
    fn return_codes_are_numbered_as_the_bindings_number_them() {
        for (ours, theirs) in [
            (ours::SUCCESS, sys::nvmlReturn_enum_NVML_SUCCESS),
            (ours::UNINITIALIZED, sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED),
            (ours::INVALID_ARGUMENT, sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
            (ours::NOT_SUPPORTED, sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
            (ours::ALREADY_INITIALIZED, sys::nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED),
            (ours::NOT_FOUND, sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND),
            (ours::INSUFFICIENT_SIZE, sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE),
            (ours::TIMEOUT, sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT),
            (ours::FUNCTION_NOT_FOUND, sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND),
            (ours::GPU_IS_LOST, sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST),
            (ours::RESET_REQUIRED, sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED),
            (ours::OPERATING_SYSTEM, sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM),
            (ours::IN_USE, sys::nvmlReturn_enum_NVML_ERROR_IN_USE),
            (ours::MEMORY, sys::nvmlReturn_enum_NVML_ERROR_MEMORY),
            (ours::NO_DATA, sys::nvmlReturn_enum_NVML_ERROR_NO_DATA),
            (ours::VGPU_ECC_NOT_SUPPORTED, sys::nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED),
            (ours::INSUFFICIENT_RESOURCES, sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES),
            (ours::FREQ_NOT_SUPPORTED, sys::nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED),
            (
                ours::ARGUMENT_VERSION_MISMATCH,
                sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            ),
            (ours::DEPRECATED, sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED),
            (ours::NOT_READY, sys::nvmlReturn_enum_NVML_ERROR_NOT_READY),
            (ours::GPU_NOT_FOUND, sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND),
            (ours::INVALID_STATE, sys::nvmlReturn_enum_NVML_ERROR_INVALID_STATE),
            (
                ours::RESET_TYPE_NOT_SUPPORTED,
                sys::nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED,
            ),
            (ours::UNKNOWN, sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN),
        ] {
            assert_eq!(ours, theirs);
        }
    }
}
