//! The settings that the agent puts into a process' environment.

use std::ffi::CString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use tessera_frames::kernel::variables;
use tessera_wire::kernel_identity::from_hex;

/// The address and credentials of the queue.
#[derive(Clone)]
pub struct ShimSettings {
    /// The agent's endpoint.
    pub endpoint: SocketAddr,
    /// The attempt's token.
    pub token: [u8; 32],
    /// SHA-256 of the endpoint's certificate.
    pub certificate: [u8; 32],
    /// The slice's gate page.
    pub gate: Option<PathBuf>,
}

/// Variables that show an NVIDIA tool which observes or replaces launches. Two such tools disturb
/// each other.
const TOOLS: [&str; 3] = [
    "CUDA_INJECTION64_PATH",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    "NV_SANITIZER_INJECTION_PORT_BASE",
];

/// Returns the settings; `None` if the process runs without a queue.
pub fn settings() -> Option<&'static ShimSettings> {
    static SETTINGS: OnceLock<Option<ShimSettings>> = OnceLock::new();
    SETTINGS.get_or_init(read).as_ref()
}

/// Returns the pipe of the attempt's memory; `None` if the process is not watched.
pub fn watch_pipe() -> Option<CString> {
    if std::env::var(variables::WATCH).ok()? != variables::WATCH_ON || has_tool() {
        return None;
    }
    CString::new(std::env::var_os(variables::MEMORY_PIPE)?.into_vec()).ok()
}

/// Returns whether an NVIDIA tool observes the process.
fn has_tool() -> bool {
    let tool = TOOLS.into_iter().find(|name| std::env::var_os(name).is_some());
    if let Some(tool) = tool {
        crate::log::note(format_args!(
            "{tool} is set: the shim is off, so that the tool is not disturbed"
        ));
    }
    tool.is_some()
}

fn read() -> Option<ShimSettings> {
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let (endpoint, token, certificate) =
        (text(variables::ENDPOINT)?, text(variables::TOKEN)?, text(variables::CERTIFICATE)?);
    if has_tool() {
        return None;
    }
    let settings = ShimSettings {
        endpoint: endpoint.parse().ok().or_else(|| wrong(variables::ENDPOINT, "ADDRESS:PORT"))?,
        token: from_hex(&token)
            .ok()
            .or_else(|| wrong(variables::TOKEN, "64 hexadecimal digits"))?,
        certificate: from_hex(&certificate)
            .ok()
            .or_else(|| wrong(variables::CERTIFICATE, "64 hexadecimal digits"))?,
        gate: std::env::var_os(variables::GATE).map(PathBuf::from),
    };
    Some(settings)
}

fn wrong<T>(name: &str, right: &str) -> Option<T> {
    crate::log::note(format_args!("{name} is invalid, expected {right}: the shim is off"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_64_hexadecimal_digits_and_nothing_else() {
        assert_eq!(from_hex(&"0f".repeat(32)), Ok([15; 32]));
        for wrong in
            ["", "0f", &"0f".repeat(33), &"0g".repeat(32), &"+f".repeat(32), &"é".repeat(32)]
        {
            assert!(from_hex(wrong).is_err(), "{wrong}");
        }
    }
}
