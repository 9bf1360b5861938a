//! The settings of a process for the driver, read once from the environment.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use super::board::nanos;
use super::schedule::DeviceRules;

/// CUDA versions whose behaviour is known: those of the recorded runtimes, and 13.0.
pub const VERSIONS: [u32; 6] = [11_080, 12_010, 12_040, 12_090, 13_000, 13_050];

/// Settings of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaSettings {
    /// CUDA version of the driver: 12040 for 12.4.
    pub version: u32,
    /// How contexts alternate.
    pub rules: DeviceRules,
    /// Minimum time that a launch keeps its thread busy.
    pub launch_cost: Duration,
    /// Minimum time that recording an event keeps its thread busy.
    pub record_cost: Duration,
    /// Time from a launch to the earliest start of its kernel, in nanoseconds.
    pub launch_to_start: u64,
    /// Memory that a context takes for itself, in bytes.
    pub context_bytes: u64,
    /// Whether time is virtual.
    pub virtual_time: bool,
    /// Folder for traces.
    pub trace: Option<PathBuf>,
    /// Whether a call of a function that isn't simulated aborts the process.
    pub strict: bool,
    /// Faults of this process.
    pub faults: String,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// A setting that can't be used, with what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is `{value}`: {expected}")]
pub struct SettingError {
    /// The variable.
    pub name: &'static str,
    /// The text that can't be read.
    pub value: String,
    /// What would be right.
    pub expected: String,
}

impl CudaSettings {
    /// Reads the process's environment.
    ///
    /// # Errors
    ///
    /// [`SettingError`] states which variable to set to what.
    pub fn from_env() -> Result<Self, SettingError> {
        Self::from_variables(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Reads variables from anywhere.
    ///
    /// # Errors
    ///
    /// [`SettingError`] states which variable to set to what.
    pub fn from_variables(
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let number = |name, unset: u64, most: u64| match variable(name) {
            None => Ok(unset),
            Some(text) => match text.parse::<u64>() {
                Ok(number) if number <= most => Ok(number),
                _ => Err(bad(name, text, format!("use a whole number up to {most}"))),
            },
        };
        let version = number("TESSERA_SIM_CUDA_VERSION", 12_090, 99_999)?;
        let version =
            VERSIONS.into_iter().find(|known| u64::from(*known) == version).ok_or_else(|| {
                let known = VERSIONS.map(|version| version.to_string()).join(", ");
                bad("TESSERA_SIM_CUDA_VERSION", version.to_string(), format!("use one of {known}"))
            })?;
        let clock = variable("TESSERA_SIM_CUDA_CLOCK");
        let virtual_time = match clock.as_deref() {
            None | Some("real") => false,
            Some("virtual") => true,
            Some(other) => {
                let expected = "use real or virtual".to_owned();
                return Err(bad("TESSERA_SIM_CUDA_CLOCK", other.to_owned(), expected));
            }
        };
        let micros = |micros| nanos(Duration::from_micros(micros));
        Ok(Self {
            version,
            rules: DeviceRules {
                slice: micros(number("TESSERA_SIM_CUDA_SLICE_US", 2_000, 10_000_000)?.max(1)),
                switch: micros(number("TESSERA_SIM_CUDA_SWITCH_US", 150, 10_000_000)?),
            },
            launch_cost: Duration::from_nanos(number(
                "TESSERA_SIM_CUDA_LAUNCH_NS",
                4_500,
                1_000_000_000,
            )?),
            record_cost: Duration::from_nanos(number(
                "TESSERA_SIM_CUDA_RECORD_NS",
                2_500,
                1_000_000_000,
            )?),
            launch_to_start: number("TESSERA_SIM_CUDA_START_NS", 3_000, 1_000_000_000)?,
            context_bytes: number("TESSERA_SIM_CUDA_CONTEXT_MIB", 300, 1 << 20)? << 20,
            virtual_time,
            trace: variable("TESSERA_SIM_CUDA_TRACE").map(PathBuf::from),
            strict: variable("TESSERA_SIM_CUDA_STRICT").is_some(),
            faults: variable("TESSERA_SIM_CUDA_FAULTS").unwrap_or_default(),
            seed: number("TESSERA_SIM_CUDA_SEED", 0, u64::MAX)?,
        })
    }
}

fn bad(name: &'static str, value: String, expected: String) -> SettingError {
    SettingError { name, value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_setting_is_refused_with_what_would_be_right() {
        for (name, value, hint) in [
            ("TESSERA_SIM_CUDA_VERSION", "12", "13050"),
            ("TESSERA_SIM_CUDA_CLOCK", "fast", "real or virtual"),
            ("TESSERA_SIM_CUDA_SLICE_US", "-1", "whole number"),
        ] {
            let refused = CudaSettings::from_variables(|n| (n == name).then(|| value.to_owned()));
            assert!(refused.unwrap_err().to_string().contains(hint), "{name}={value}");
        }
    }

    #[test]
    fn unset_it_is_a_driver_of_cuda_12_9_in_real_time() {
        let settings = CudaSettings::from_variables(|_| None).unwrap();

        assert_eq!(settings.version, 12_090);
        assert!(!settings.virtual_time);
    }
}
