//! The settings of a process for its node, read once from the environment.

use std::env;
use std::path::PathBuf;

use tessera_model::mig::catalog;

/// The GPU of a node without a description.
const DEFAULT_GPU: &str = "a100-40gb";

/// NVML knows no more GPUs than this on one machine (`NVML_MAX_PHYSICAL_GPUS` of its tools), and
/// no test needs more.
const MAX_GPUS: usize = 64;

/// Settings of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct StandInConfig {
    /// The node's folder.
    pub folder: PathBuf,
    /// Catalogue keys of the GPUs, if they were named.
    pub gpus: Option<Vec<String>>,
    /// MIG mode of a new node.
    pub mig: bool,
    /// Factor on the time of operations.
    pub latency: f64,
    /// Faults of this process.
    pub faults: String,
    /// Whether to name the stand-in on stderr.
    pub verbose: bool,
}

/// A setting that can't be used, with what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No folder was named for the state of the node.
    #[error("TESSERA_SIM_NODE is not set: name the folder of the simulated node")]
    NoFolder,
    /// A GPU that can't be simulated.
    #[error(
        "TESSERA_SIM_GPUS names `{key}`, which is not a model with known placements: use {}",
        known_keys()
    )]
    UnknownModel {
        /// What was named.
        key: String,
    },
    /// None, or too many.
    #[error("TESSERA_SIM_GPUS names {count} GPUs: name 1 to {MAX_GPUS}, separated by commas")]
    GpuCount {
        /// How many were named.
        count: usize,
    },
    /// A value outside its range.
    #[error("{name} is `{value}`: {expected}")]
    Value {
        /// The variable.
        name: &'static str,
        /// The text that can't be read.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl StandInConfig {
    /// Makes a configuration of a node with these GPUs, without latencies, for tests.
    pub fn new(folder: impl Into<PathBuf>, gpus: &[&str]) -> Self {
        Self {
            folder: folder.into(),
            gpus: Some(gpus.iter().map(|key| (*key).to_owned()).collect()),
            mig: true,
            latency: 0.0,
            faults: String::new(),
            verbose: false,
        }
    }

    /// Reads the process's environment.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] states which variable to set to what.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// Reads variables from anywhere.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] states which variable to set to what.
    pub fn from_variables(
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let folder =
            variable("TESSERA_SIM_NODE").filter(|v| !v.is_empty()).ok_or(ConfigError::NoFolder)?;
        Ok(Self {
            folder: folder.into(),
            gpus: variable("TESSERA_SIM_GPUS").map(|text| parse_gpus(&text)).transpose()?,
            mig: parse_mode(variable("TESSERA_SIM_MIG"))?,
            latency: parse_latency(variable("TESSERA_SIM_LATENCY"))?,
            faults: variable("TESSERA_SIM_FAULTS").unwrap_or_default(),
            verbose: variable("TESSERA_SIM_VERBOSE").is_some(),
        })
    }

    /// Returns the GPUs of a new node.
    pub fn gpus_or_default(&self) -> Vec<String> {
        self.gpus.clone().unwrap_or_else(|| vec![DEFAULT_GPU.to_owned()])
    }
}

fn parse_gpus(text: &str) -> Result<Vec<String>, ConfigError> {
    let keys: Vec<_> = text.split(',').map(|key| key.trim().to_owned()).collect();
    if keys.len() > MAX_GPUS {
        return Err(ConfigError::GpuCount { count: keys.len() });
    }
    match keys.iter().find(|key| !catalog::models().contains_key(*key)) {
        Some(unknown) => Err(ConfigError::UnknownModel { key: unknown.clone() }),
        None => Ok(keys),
    }
}

fn parse_mode(value: Option<String>) -> Result<bool, ConfigError> {
    match value.as_deref() {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(ConfigError::Value {
            name: "TESSERA_SIM_MIG",
            value: other.to_owned(),
            expected: "use on or off",
        }),
    }
}

fn parse_latency(value: Option<String>) -> Result<f64, ConfigError> {
    let Some(text) = value else { return Ok(1.0) };
    match text.parse::<f64>() {
        // A factor of 1000 is two minutes a creation: more is a typing error.
        Ok(factor) if (0.0..=1000.0).contains(&factor) => Ok(factor),
        _ => Err(ConfigError::Value {
            name: "TESSERA_SIM_LATENCY",
            value: text,
            expected: "use a factor from 0 to 1000, such as 1 or 0.1",
        }),
    }
}

fn known_keys() -> String {
    catalog::models().keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<StandInConfig, ConfigError> {
        StandInConfig::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_undescribed_node_is_one_a100_with_mig_on_at_full_latency() {
        let config = parse(&[("TESSERA_SIM_NODE", "/n")]).unwrap();

        assert_eq!(config.gpus_or_default(), ["a100-40gb"]);
        assert!(config.mig);
        assert!((config.latency - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_bad_setting_is_refused_with_what_would_be_right() {
        for (name, value, hint) in [
            ("TESSERA_SIM_GPUS", "a100", "a100-40gb"),
            ("TESSERA_SIM_GPUS", "rtx-pro-4500-32gb", "not a model with known placements"),
            ("TESSERA_SIM_GPUS", "", "a30-24gb"),
            ("TESSERA_SIM_MIG", "yes", "on or off"),
            ("TESSERA_SIM_LATENCY", "-1", "factor"),
            ("TESSERA_SIM_LATENCY", "NaN", "factor"),
        ] {
            let refused = parse(&[("TESSERA_SIM_NODE", "/n"), (name, value)]).unwrap_err();
            assert!(refused.to_string().contains(hint), "{name}={value}: {refused}");
        }
        assert_eq!(parse(&[]), Err(ConfigError::NoFolder));
    }
}
