//! The second worker process: waits for what the driver tells by itself. Apart from the one that
//! answers questions, since waiting and answering exclude each other.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tessera_model::GpuId;

use super::calls::Library;
use super::fault::Fault;
use crate::shepherd::socket::frame_bytes;

/// How long one wait lasts; after each, a sign of life.
const WAIT_MS: u32 = 1_000;
/// How often GPUs are counted: one may come back after a reset.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// How soon it begins anew, if a GPU could not be listened to; one that is lost takes longer to
/// come back, and is waited for as for others ([`COUNT_EVERY`]).
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// From the worker to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heard {
    /// It waits.
    Beat,
    /// An error.
    Xid {
        /// Of which GPU.
        gpu: GpuId,
        /// Its number.
        xid: u32,
        /// The GPU instance that it struck.
        instance: Option<u32>,
    },
    /// A GPU is lost; it isn't said which.
    Lost,
}

/// Tells of events until the agent goes away, the library can't go on, or other GPUs are there.
///
/// # Errors
///
/// Standard output broke: the agent is gone.
pub fn run(path: &OsStr) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match Watch::begin(path) {
        Ok(watch) => watch.tell(),
        Err(fault) => Err(io::Error::other(fault.to_string())),
    }
}

struct Watch {
    library: Library,
    set: nvml_wrapper_sys::bindings::nvmlEventSet_t,
    count: u32,
    names: BTreeMap<usize, GpuId>,
    /// When to begin anew, if the driver didn't let a GPU be listened to.
    again: Option<Duration>,
}

impl Watch {
    fn begin(path: &OsStr) -> Result<Self, Fault> {
        let library = Library::load(path)?;
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

    fn tell(&self) -> io::Result<()> {
        let mut output = io::stdout().lock();
        let mut counted = Instant::now();
        loop {
            let heard = match self.library.next_event(self.set, WAIT_MS) {
                Ok(event) => match (self.names.get(&key(event.device)), event.xid.try_into()) {
                    (Some(gpu), Ok(xid)) => {
                        Heard::Xid { gpu: gpu.clone(), xid, instance: event.instance }
                    }
                    _ => Heard::Beat,
                },
                Err(fault) if fault.is_timeout() => Heard::Beat,
                Err(fault) if fault.code == LOST => {
                    // Said again and again as long as it lasts.
                    std::thread::sleep(Duration::from_millis(WAIT_MS.into()));
                    Heard::Lost
                }
                Err(fault) => return Err(io::Error::other(fault.to_string())),
            };
            output.write_all(&frame_bytes(&heard)?)?;
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

/// Handles are told apart by their addresses.
fn key(device: nvmlDevice_t) -> usize {
    device.addr()
}
