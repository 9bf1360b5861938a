//! One check of the driver for the doctor, in a separate process, since it may hang or crash.

use std::ffi::OsStr;
use std::io::{self, Write as _};

use nvml_wrapper_sys::bindings::{NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlDevice_t};
use serde::{Deserialize, Serialize};

use super::calls::NvmlLibrary;
use tessera_agent_core::doctor::{DriverFacts, GpuCheckup};
use tessera_agent_core::nvml::error::{ErrorHandling, NvmlCallError};

/// What the process prints: one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CheckupOutput {
    /// The library answered. An agent of an earlier release, which still runs, reads this name.
    Told(DriverFacts),
    /// The library could not be used.
    Refused(NvmlCallError),
}

/// Queries the driver, and prints a [`CheckupOutput`].
///
/// # Errors
///
/// Standard output broke: the reader is gone.
pub fn run(library: &OsStr) -> io::Result<()> {
    let answer = match look(library) {
        Ok(facts) => CheckupOutput::Told(facts),
        Err(fault) => CheckupOutput::Refused(fault),
    };
    let text = serde_json::to_string(&answer).map_err(io::Error::from)?;
    writeln!(io::stdout().lock(), "{text}")
}

fn look(path: &OsStr) -> Result<DriverFacts, NvmlCallError> {
    let library = NvmlLibrary::load(path)?;
    let mut facts = DriverFacts {
        driver: library.driver_version().ok(),
        library: library.library_version().ok(),
        ..DriverFacts::default()
    };
    for index in 0..library.count()? {
        match library.device(index) {
            Ok(device) => facts.gpus.push(gpu(&library, device, index)),
            Err(fault) => facts.lost.push((index, fault)),
        }
    }
    Ok(facts)
}

fn gpu(library: &NvmlLibrary, device: nvmlDevice_t, index: u32) -> GpuCheckup {
    let mig = match library.mig_modes(device) {
        Ok(modes) => Ok(Some(modes)),
        Err(fault) if matches!(fault.handling(), ErrorHandling::Replan | ErrorHandling::Bug) => {
            Ok(None)
        }
        Err(fault) => Err(fault),
    };
    GpuCheckup {
        index,
        model: library.name(device).unwrap_or_else(|_| "a GPU".to_owned()),
        may_cut: may_cut(library, device),
        mig,
        persistence: library.persistence(device).ok(),
        display: library.display_active(device).ok(),
        processes: library.processes(device).unwrap_or_default(),
    }
}

/// Makes a query that needs the right to configure MIG; nothing is changed.
fn may_cut(library: &NvmlLibrary, device: nvmlDevice_t) -> Result<(), NvmlCallError> {
    let mut last = NvmlCallError { call: "nvmlDeviceGetGpuInstances".to_owned(), code: 3 };
    for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        match library.profile(device, number) {
            Ok((info, _)) => {
                return library.instances(device, info.id, info.instanceCount).map(drop);
            }
            Err(fault) => last = fault,
        }
    }
    Err(last)
}
