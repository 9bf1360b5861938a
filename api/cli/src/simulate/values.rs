//! Values of `simulate`'s options that are given as text.

use serde_json::Value;
use tessera_simulator::cluster::overheads::{
    self, KernelSharingModel, RunTimeKnowledge, SimulatedSharing,
};

/// A value of an option of `simulate` that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSimulateOption {
    /// `--kernel-sharing` names no way to interleave kernels.
    #[error("{text:?} is unknown: expected modelled, queue or slices")]
    UnknownKernelSharing {
        /// The given value.
        text: String,
    },
    /// `--times` names nothing that policies can know.
    #[error("{text:?} is unknown: expected known, learned or unknown")]
    UnknownKnowledge {
        /// The given value.
        text: String,
    },
    /// `--share` names no jobs that share.
    #[error("{text:?} is unknown: expected policy, exclusive or auto")]
    UnknownSharing {
        /// The given value.
        text: String,
    },
    /// A duration has no unit, or is not a duration.
    #[error("{text:?} is not a time: write 10s or 500ms")]
    NoDuration {
        /// The given value.
        text: String,
    },
    /// `--set` without an equals sign.
    #[error("{text:?} is not a setting: write NAME=VALUE, such as thrift=0.5")]
    NoSetting {
        /// The given value.
        text: String,
    },
    /// `--seed` is not a number, or is below 0.
    #[error("write a whole number from 0, such as 7")]
    NoSeed,
}

/// Parses how kernels of several jobs are interleaved.
pub fn parse_kernel_sharing(text: &str) -> Result<KernelSharingModel, BadSimulateOption> {
    let named = serde_json::from_value(Value::String(text.to_owned()));
    named.map_err(|_| BadSimulateOption::UnknownKernelSharing { text: text.to_owned() })
}

/// Parses what policies know of run times.
pub fn parse_run_time_knowledge(text: &str) -> Result<RunTimeKnowledge, BadSimulateOption> {
    let named = serde_json::from_value(Value::String(text.to_owned()));
    named.map_err(|_| BadSimulateOption::UnknownKnowledge { text: text.to_owned() })
}

/// Parses which jobs share slices.
pub fn parse_sharing(text: &str) -> Result<SimulatedSharing, BadSimulateOption> {
    let named = serde_json::from_value(Value::String(text.to_owned()));
    named.map_err(|_| BadSimulateOption::UnknownSharing { text: text.to_owned() })
}

/// Parses a duration to milliseconds.
pub fn parse_duration_ms(text: &str) -> Result<u64, BadSimulateOption> {
    overheads::duration_ms(text)
        .ok_or_else(|| BadSimulateOption::NoDuration { text: text.to_owned() })
}

/// Parses `name=value`; a value is JSON, or else a text.
pub fn parse_setting(text: &str) -> Result<(String, Value), BadSimulateOption> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| BadSimulateOption::NoSetting { text: text.to_owned() })?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok((name.trim().to_owned(), value))
}

/// Parses the seed of the random number generator.
pub fn parse_seed(text: &str) -> Result<u64, BadSimulateOption> {
    text.parse().map_err(|_| BadSimulateOption::NoSeed)
}
