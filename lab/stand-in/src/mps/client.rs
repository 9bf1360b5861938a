//! A process as a client of an MPS server.

use std::collections::BTreeMap;
use std::io;

use super::wire::LineStream;
use super::{MpsFolders, numbers, own_uid};

/// Maximum number of bytes that clients may pin, by device.
pub type MemoryLimits = BTreeMap<String, u64>;

/// A connection to a server; its loss without [`MpsClient::close`] is an unannounced death of the
/// client.
#[derive(Debug)]
pub struct MpsClient {
    lines: LineStream,
    server: u32,
    percentage: f64,
}

/// The first message of a client to the MPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The memory limit in its own environment, in bytes.
    pub limit: Option<u64>,
    /// The client's command line.
    pub command: String,
}

/// Why a call failed, by the name of NVIDIA's error.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// No daemon listens in the folder.
    #[error("no MPS control daemon listens in {0}: CUDA_ERROR_MPS_CONNECTION_FAILED")]
    NoDaemon(String),
    /// The daemon or the server refused, by the error's name.
    #[error("{0}")]
    Refused(String),
    /// The server is gone.
    #[error("CUDA_ERROR_MPS_RPC_FAILURE")]
    Gone(#[from] io::Error),
}

impl MpsClient {
    /// Connects to the server of the daemon that the environment names.
    ///
    /// # Errors
    ///
    /// [`MpsError`] names what refused.
    pub fn connect() -> Result<Self, MpsError> {
        let folders = MpsFolders::from_env();
        let nobody = |_| MpsError::NoDaemon(folders.pipes.display().to_string());
        let mut control = LineStream::connect(&folders.control()).map_err(nobody)?;
        let (pid, uid) = (std::process::id(), own_uid());
        let answer = accepted(control.request(&format!("client {pid} {uid}"))?)?;
        let server = answer.parse().map_err(|_| MpsError::Refused(answer.clone()))?;
        let mut lines = LineStream::connect(&folders.server(server))?;
        let limit = limits_from_env().get("0").copied();
        let command = std::env::args().next().unwrap_or_default();
        let hello = ClientHello { pid, uid, limit, command };
        let answer = accepted(lines.request(&hello.to_line())?)?;
        // A client can narrow what its server was given, never widen it.
        let of_server = answer.strip_prefix("ok ").and_then(|text| text.parse().ok());
        let percentage = of_server.unwrap_or(100.0_f64).min(percentage_from_env());
        Ok(Self { lines, server, percentage })
    }

    /// Returns the server's process.
    pub const fn server(&self) -> u32 {
        self.server
    }

    /// Returns the percentage of the SMs that the client may use.
    pub const fn percentage(&self) -> f64 {
        self.percentage
    }

    /// Runs a small kernel and waits for it.
    ///
    /// # Errors
    ///
    /// [`MpsError::Refused`] with the context's sticky error.
    pub fn kernel(&mut self) -> Result<(), MpsError> {
        accepted(self.lines.request("kernel")?).map(drop)
    }

    /// Requests this much more memory, if it is within the limits.
    ///
    /// # Errors
    ///
    /// [`MpsError::Refused`] with `CUDA_ERROR_OUT_OF_MEMORY`, which affects no other client.
    pub fn allocate(&mut self, bytes: u64) -> Result<(), MpsError> {
        accepted(self.lines.request(&format!("allocate {bytes}"))?).map(drop)
    }

    /// Reports that this much memory is free again.
    ///
    /// # Errors
    ///
    /// [`MpsError::Refused`] with the context's sticky error.
    pub fn free(&mut self, bytes: u64) -> Result<(), MpsError> {
        accepted(self.lines.request(&format!("free {bytes}"))?).map(drop)
    }

    /// Touches memory that isn't there.
    ///
    /// # Errors
    ///
    /// Always: [`MpsError::Refused`] with the error that now every client gets.
    pub fn fault(&mut self) -> Result<(), MpsError> {
        accepted(self.lines.request("fault")?).map(drop)
    }

    /// Releases the context.
    pub fn close(mut self) {
        // A server that is gone needs no goodbye.
        let _ = self.lines.request("bye");
    }
}

fn accepted(answer: String) -> Result<String, MpsError> {
    match answer.strip_prefix('!') {
        Some(refusal) => Err(MpsError::Refused(refusal.to_owned())),
        None => Ok(answer),
    }
}

impl ClientHello {
    fn to_line(&self) -> String {
        let limit = self.limit.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        format!("hello {} {} {limit} {}", self.pid, self.uid, self.command)
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("hello ")?.splitn(4, ' ');
        let pid = words.next()?.parse().ok()?;
        let uid = words.next()?.parse().ok()?;
        let limit = match words.next()? {
            "-" => None,
            bytes => Some(bytes.parse().ok()?),
        };
        Some(Self { pid, uid, limit, command: words.next().unwrap_or_default().to_owned() })
    }
}

/// Reads `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`. What can't be read limits nothing.
fn percentage_from_env() -> f64 {
    let text = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").unwrap_or_default();
    let percentage = text.trim().parse::<f64>().ok();
    percentage.filter(|percentage| *percentage > 0.0 && *percentage <= 100.0).unwrap_or(100.0)
}

/// Reads `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`: `0=10G,1=512M`. What can't be read limits nothing,
/// as in NVIDIA's driver.
pub fn limits_from_env() -> MemoryLimits {
    let text = std::env::var("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").unwrap_or_default();
    text.split(',')
        .filter_map(|pair| {
            let (device, limit) = pair.split_once('=')?;
            Some((device.trim().to_owned(), numbers::limit(Some(&limit.trim()))?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_its_line() {
        let hello = ClientHello { pid: 7, uid: 0, limit: Some(5), command: "a b".to_owned() };

        assert_eq!(ClientHello::parse(&hello.to_line()), Some(hello));
    }
}
