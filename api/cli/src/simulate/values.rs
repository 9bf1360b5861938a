//! Values of `simulate`'s options that are given as text.

use serde_json::Value;
use tessera_simulator::cluster::overheads::{self, KernelSharingModel};

/// Reads how kernels of several jobs are interleaved.
pub fn kernel_sharing(text: &str) -> Result<KernelSharingModel, String> {
    let named = serde_json::from_value(Value::String(text.to_owned()));
    named.map_err(|_| format!("{text:?} is unknown: expected modelled, queue or slices"))
}

/// Reads a time as milliseconds.
pub fn time_ms(text: &str) -> Result<u64, String> {
    overheads::duration_ms(text).ok_or_else(|| format!("{text:?} is no time: write 10s or 500ms"))
}

/// Reads `name=value`; a value is JSON, or else a text.
pub fn setting(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is no setting: write NAME=VALUE, such as thrift=0.5"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok((name.trim().to_owned(), value))
}
