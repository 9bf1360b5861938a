//! Finding the shepherds of an earlier agent again.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use uuid::Uuid;

use crate::pool::{ShepherdLauncher, ShepherdPool};
use crate::shepherd::protocol::{FromShepherd, ShepherdHello};
use crate::shepherd::socket::take_frame;
use crate::sys::identity::ProcessIdentity;
use tessera_agent_core::shepherd::HeldAttempt;

/// How long a shepherd may take to answer. It does nothing that takes longer; one that doesn't
/// answer is stopped or broken, and can't be trusted to keep its lease.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Connects to every live shepherd, and cleans up after the others. Returns the attempts of the
/// live ones.
pub async fn adopt(nursery: &ShepherdLauncher, pool: &mut ShepherdPool) -> Vec<HeldAttempt> {
    let mut held = Vec::new();
    for (id, process) in named(&nursery.data) {
        let alive = process.filter(|process| process.is_alive(nursery.boot));
        let Some(process) = alive else {
            nursery.clear(id, None);
            continue;
        };
        match tokio::time::timeout(ANSWER_WITHIN, read_hello(&nursery.data, id, process)).await {
            Ok(Ok((hello, stream, rest))) => {
                held.extend(hello.held.iter().cloned());
                pool.adopt(&hello, stream, rest);
            }
            Ok(Err(error)) => give_up(nursery, id, process, &error.to_string()),
            Err(_) => give_up(nursery, id, process, "no answer"),
        }
    }
    held
}

fn give_up(nursery: &ShepherdLauncher, id: Uuid, process: ProcessIdentity, reason: &str) {
    // An idle one exits by itself, once it has noticed that its agent is gone.
    if process.is_alive(nursery.boot) {
        tracing::warn!(shepherd = %id, pid = process.pid, reason, "a shepherd is killed");
        process.kill(nursery.boot);
    }
    nursery.clear(id, None);
}

/// Lists the shepherds that the data folder names.
fn named(data: &Path) -> Vec<(Uuid, Option<ProcessIdentity>)> {
    let Ok(entries) = fs::read_dir(data.join("shepherds")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = Uuid::try_parse(name.strip_suffix(".id")?).ok()?;
            let text = fs::read(entry.path()).ok()?;
            Some((id, serde_json::from_slice(&text).ok()))
        })
        .collect()
}

async fn read_hello(
    data: &Path,
    id: Uuid,
    process: ProcessIdentity,
) -> io::Result<(ShepherdHello, UnixStream, Vec<u8>)> {
    // Through the folder's descriptor: a socket's address holds 107 bytes, a data folder's path
    // may be longer.
    let folder = File::open(data.join("shepherds"))?;
    let path = format!("/proc/self/fd/{}/{}.sock", folder.as_raw_fd(), id.simple());
    let mut stream = UnixStream::connect(path).await?;
    let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    if peer != Some(process.pid) {
        return Err(io::Error::other("another process listens in its place"));
    }
    let mut buffer = Vec::new();
    let hello = loop {
        match take_frame(&mut buffer)? {
            Some(FromShepherd::Hello(hello)) => break hello,
            Some(
                FromShepherd::Started { .. }
                | FromShepherd::Ended { .. }
                | FromShepherd::Ending { .. }
                | FromShepherd::Memory { .. }
                | FromShepherd::Trail { .. }
                | FromShepherd::Needs { .. },
            ) => {
                return Err(io::Error::other("it didn't begin with a hello"));
            }
            None if stream.read_buf(&mut buffer).await? == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            None => {}
        }
    };
    if hello.id != id || hello.process != process {
        return Err(io::Error::other("its hello names another shepherd"));
    }
    Ok((hello, stream, buffer))
}
