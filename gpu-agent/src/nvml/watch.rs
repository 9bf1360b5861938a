//! The second worker process: waits for errors that the driver reports by itself. It is separate
//! from the one that answers requests, since waiting and answering exclude each other.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tessera_model::GpuId;

use super::calls::NvmlLibrary;
use crate::shepherd::socket::frame_bytes;
use tessera_agent_core::nvml::error::NvmlCallError;

/// How long one wait lasts; after each, a sign of life.
const WAIT_MS: u32 = 1_000;
/// How often GPUs are counted: one may come back after a reset.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// How soon it begins again, if a GPU could not be listened to; one that is lost takes longer to
/// come back, and is waited for as for others ([`COUNT_EVERY`]).
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// From the worker to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchMessage {
    /// It waits.
    Heartbeat,
    /// An error.
    Xid {
        /// The GPU that it belongs to.
        gpu: GpuId,
        /// Its number.
        xid: u32,
        /// The affected GPU instance.
        instance: Option<u32>,
    },
    /// A GPU is lost; the driver doesn't report which.
    Lost,
}

/// Prints events until the agent goes away, the library can't continue, or the list of GPUs
/// changes.
///
/// # Errors
///
/// Standard output broke: the agent is gone.
pub fn run(path: &OsStr) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match Watch::begin(path) {
        Ok(watch) => watch.send(),
        Err(fault) => Err(io::Error::other(fault.to_string())),
    }
}

struct Watch {
    library: NvmlLibrary,
    set: nvml_wrapper_sys::bindings::nvmlEventSet_t,
    count: u32,
    names: BTreeMap<usize, GpuId>,
    /// When to begin again, if the driver didn't let a GPU be listened to.
    again: Option<Duration>,
}

impl Watch {
    fn begin(path: &OsStr) -> Result<Self, NvmlCallError> {
        let library = NvmlLibrary::load(path)?;
        let (set, count) = (library.event_set()?, library.count()?);
        let (mut names, mut again) = (BTreeMap::new(), None);
        for index in 0..count {
            // One lost GPU must not silence the others.
            let watched = library.device(index).and_then(|device| {
                let uuid = library.uuid(device)?;
                Ok((device, uuid, library.watch(device, set)?))
            });
            match watched {
                Ok((device, uuid, true)) => {
                    if let Ok(gpu) = uuid.parse() {
                        names.insert(key(device), gpu);
                    }
                }
                Ok((_, _, false)) => {}
                Err(fault) if fault.is_unsupported() => {}
                Err(fault) => {
                    let pause = if fault.is_loss() { COUNT_EVERY } else { AGAIN_AFTER };
                    again = Some(again.unwrap_or(pause).min(pause));
                }
            }
        }
        Ok(Self { library, set, count, names, again })
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "GPUs are counted in real time, between waits for the driver"
    )]
    fn send(&self) -> io::Result<()> {
        let mut output = io::stdout().lock();
        let mut counted = Instant::now();
        loop {
            let received = match self.library.next_event(self.set, WAIT_MS) {
                Ok(event) => match (self.names.get(&key(event.device)), event.xid.try_into()) {
                    (Some(gpu), Ok(xid)) => {
                        WatchMessage::Xid { gpu: gpu.clone(), xid, instance: event.instance }
                    }
                    _ => WatchMessage::Heartbeat,
                },
                Err(fault) if fault.is_timeout() => WatchMessage::Heartbeat,
                Err(fault) if fault.code == LOST => {
                    // Reported repeatedly as long as it lasts.
                    std::thread::sleep(Duration::from_millis(WAIT_MS.into()));
                    WatchMessage::Lost
                }
                Err(fault) => return Err(io::Error::other(fault.to_string())),
            };
            output.write_all(&frame_bytes(&received)?)?;
            output.flush()?;
            if self.again.is_some_and(|again| counted.elapsed() >= again) {
                return Ok(());
            }
            if counted.elapsed() >= COUNT_EVERY {
                counted = Instant::now();
                if self.library.count().is_ok_and(|count| count != self.count) {
                    return Ok(());
                }
            }
        }
    }
}

const LOST: u32 = 15;

/// Handles are distinguished by their addresses.
fn key(device: nvmlDevice_t) -> usize {
    device.addr()
}
