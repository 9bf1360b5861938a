//! Calls: connections of jobs' processes to the controller's API, by way of their node. They need no token: the kernel
//! names the process, and a process whose ancestor is a shepherd belongs to that shepherd's attempt.
//!
//! The bytes are only copied. The controller decides what the processes of an attempt may request.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tessera_frames::certificates::CertificateRequest;
use tessera_model::AttemptId;
use tokio::io::copy;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::messages::NodeInput;
use crate::shepherd::socket::frame_bytes;
use crate::sys::relatives::{self, Relatives};

/// Maximum number of calls at once. Each is a stream of the connection to the controller, which has
/// 512: the renewal of the node's certificate needs one, too.
const CALLS_MAX: usize = 384;
/// Maximum number of calls of one account at once: one for each of the sessions that a user may
/// hold.
const CALLS_EACH_MAX: usize = 128;
/// Maximum number of ancestors that are looked at: no sound program has deeper trees of processes.
const ANCESTORS_MAX: usize = 256;
/// Pause after a connection that could not be accepted, for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where processes of this node's jobs call.
#[derive(Clone, Debug)]
pub struct CallListener {
    listener: Arc<UnixListener>,
    places: CallPlaces,
}

/// How many calls each account holds.
#[derive(Clone, Debug, Default)]
struct CallPlaces(Arc<Mutex<HashMap<u32, usize>>>);

/// The place of one call, until it is dropped.
#[derive(Debug)]
struct CallPlace {
    places: CallPlaces,
    uid: u32,
}

impl CallPlaces {
    /// Takes a place for a call of an account; `None` if it has all of its places, or if there is
    /// none left.
    fn take(&self, uid: u32) -> Option<CallPlace> {
        let mut held = self.lock();
        let own = held.get(&uid).copied().unwrap_or(0);
        if own >= CALLS_EACH_MAX || held.values().sum::<usize>() >= CALLS_MAX {
            return None;
        }
        held.insert(uid, own + 1);
        Some(CallPlace { places: self.clone(), uid })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut held = self.places.lock();
        match held.get_mut(&self.uid) {
            Some(own) if *own > 1 => *own -= 1,
            // An account without calls needs no entry.
            _ => drop(held.remove(&self.uid)),
        }
    }
}

impl CallListener {
    /// Listens in the data folder, whose lock the caller holds.
    ///
    /// # Errors
    ///
    /// The socket can't be made.
    pub fn open(data: &Path) -> io::Result<Self> {
        let path = socket_path(data);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        // Through the folder's descriptor: a socket's address holds 107 bytes, a data folder's path may be longer.
        let folder = File::open(data)?;
        let short = socket_path(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())));
        let listener = UnixListener::bind(short)?;
        // Every caller is checked, and one that belongs to no attempt is disconnected.
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        Ok(Self { listener: Arc::new(listener), places: CallPlaces::default() })
    }

    /// Carries calls for as long as the connection to the controller exists.
    pub async fn serve(&self, connection: &quinn::Connection, node: &mpsc::Sender<NodeInput>) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let Ok(peer) = stream.peer_cred() else { continue };
            // Its client tries again.
            let Some(place) = self.places.take(peer.uid()) else { continue };
            let (connection, node) = (connection.clone(), node.clone());
            tokio::task::spawn_local(async move {
                if let Err(error) = carry(stream, &connection, &node).await {
                    tracing::debug!(%error, "a call of a job ended");
                }
                drop(place);
            });
        }
    }
}

/// Returns where the socket is.
pub fn socket_path(data: &Path) -> PathBuf {
    data.join("calls.sock")
}

async fn carry(
    stream: UnixStream,
    connection: &quinn::Connection,
    node: &mpsc::Sender<NodeInput>,
) -> io::Result<()> {
    let Some(attempt) = attempt_of(&stream, node).await? else {
        tracing::debug!("a process that belongs to no job called");
        return Ok(());
    };
    let (mut to_controller, mut from_controller) = connection.open_bi().await?;
    let first = frame_bytes(&CertificateRequest::Call { attempt })?;
    to_controller.write_all(&first).await?;
    let (mut from_process, mut to_process) = stream.into_split();
    let there = async {
        let copied = copy(&mut from_process, &mut to_controller).await;
        // A process that is gone has ended its call, whatever the reason. A broken connection alone
        // does not show this.
        let _ = to_controller.finish();
        // What was sent has to arrive before the stream is dropped.
        let _ = to_controller.stopped().await;
        copied
    };
    tokio::select! {
        copied = there => copied.map(drop),
        copied = copy(&mut from_controller, &mut to_process) => copied.map(drop),
    }
}

/// Finds the attempt that the process at the other end belongs to.
async fn attempt_of(
    stream: &UnixStream,
    node: &mpsc::Sender<NodeInput>,
) -> io::Result<Option<AttemptId>> {
    let peer = stream.peer_cred()?;
    let Some(pid) = peer.pid().and_then(|pid| u32::try_from(pid).ok()) else { return Ok(None) };
    let lineage = lineage(pid, peer.uid(), &relatives::find);
    if lineage.is_empty() {
        return Ok(None);
    }
    let (answer, answered) = oneshot::channel();
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    node.send(NodeInput::FindCaller { lineage, answer }).await.map_err(gone)?;
    Ok(answered.await.ok().flatten())
}

/// Returns a process and its ancestors, the nearest first; nothing, if the process now belongs to
/// another user: its number was reused.
fn lineage(pid: u32, uid: u32, find: &impl Fn(u32) -> io::Result<Relatives>) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = pid;
    while next > 1 && found.len() < ANCESTORS_MAX {
        // A process that has ended in the meantime does not lead to a shepherd.
        let Ok(relatives) = find(next) else { break };
        if found.is_empty() && relatives.uid != uid {
            break;
        }
        found.push(next);
        next = relatives.parent;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process 40 is a child of 30, which is a child of 20, which is init's.
    fn tree(pid: u32) -> io::Result<Relatives> {
        let parent = match pid {
            40 => 30,
            30 => 20,
            20 => 1,
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Relatives { uid: 1_001, parent })
    }

    #[test]
    fn one_account_can_not_take_the_places_of_all_calls() {
        let places = CallPlaces::default();
        let mut held: Vec<_> = (0..CALLS_EACH_MAX).map(|_| places.take(7).unwrap()).collect();

        assert!(places.take(7).is_none(), "its part is taken");
        let others: Vec<_> = (8..200).filter_map(|uid| places.take(uid)).collect();
        assert_eq!(others.len(), 192);
        held.pop();
        assert!(places.take(7).is_some());
        drop((held, others));
        assert!(places.lock().is_empty());
    }

    #[test]
    fn a_process_has_its_ancestors_up_to_init() {
        assert_eq!(lineage(40, 1001, &tree), [40, 30, 20]);
        assert_eq!(lineage(20, 1001, &tree), [20]);
    }

    #[test]
    fn a_number_that_was_given_to_a_stranger_leads_nowhere() {
        assert!(lineage(40, 7, &tree).is_empty(), "another user's");
        assert!(lineage(50, 1001, &tree).is_empty(), "gone");
    }
}
