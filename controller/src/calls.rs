//! Calls of jobs' processes to the API, which agents carry. Each enters the API's server by a socket that only this
//! process can use, and is known there by its job.
//!
//! The socket is a file that only this account may connect to. An abstract one would be everybody's: others could fill
//! its queue, hold connections to it, and take the names that calls have.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getpeername, getsockname, socket_with, sockopt,
};
use tessera_control::callers::CallerJob;
use tessera_model::{AttemptId, NodeIdentity};
use tokio::io::{AsyncWriteExt as _, copy, sink};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::ports::ToPlacer;

/// A process of a job, as its node names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCaller {
    /// The job whose process calls.
    pub job: CallerJob,
    /// Where its node's agent is.
    pub from: SocketAddr,
}

/// The way by which carried calls enter the API's server. Each call binds its own name before it connects, by which
/// the server finds the caller. The names are random, so that nobody can take them.
#[derive(Clone, Debug)]
pub struct JobCallSocket {
    /// The socket, by its folder's descriptor: an address holds 107 bytes, a data folder's path may be longer.
    path: Arc<str>,
    _folder: Arc<File>,
    waiting: Arc<Mutex<HashMap<Vec<u8>, Arc<JobCaller>>>>,
}

/// The socket's name in the data folder.
const SOCKET: &str = "job-calls.sock";

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub enum CallOrigin {
    /// Nobody: the connection is of another listener.
    Elsewhere,
    /// A call that was announced.
    Announced(Arc<JobCaller>),
    /// Somebody else on this machine.
    Stranger,
}

impl JobCallSocket {
    /// Opens a socket in the data folder, whose lock the caller holds; its listener is for the API's server.
    ///
    /// # Errors
    ///
    /// What the system reports.
    pub fn open(data: &Path) -> io::Result<(Self, UnixListener)> {
        let file = data.join(SOCKET);
        if let Err(error) = fs::remove_file(&file)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let folder = File::open(data)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
        let listener = UnixListener::bind(&path)?;
        // Who connected before this line is a stranger by its process.
        fs::set_permissions(&file, Permissions::from_mode(0o600))?;
        let (path, folder) = (path.into(), Arc::new(folder));
        Ok((Self { path, _folder: folder, waiting: Arc::default() }, listener))
    }

    /// Returns who is at the other end of a connection that the server accepted.
    pub fn admit(&self, connection: &impl AsFd) -> CallOrigin {
        let unix = |found: Option<SocketAddrAny>| SocketAddrUnix::try_from(found?).ok();
        let own = unix(getsockname(connection).ok());
        if own.as_ref().and_then(SocketAddrUnix::path_bytes) != Some(self.path.as_bytes()) {
            return CallOrigin::Elsewhere;
        }
        let name_of = |found: Option<SocketAddrAny>| Some(unix(found)?.abstract_name()?.to_vec());
        let is_own = sockopt::socket_peercred(connection)
            .is_ok_and(|peer| peer.pid == rustix::process::getpid());
        let announced = name_of(getpeername(connection).ok().flatten()).filter(|_| is_own);
        match announced.and_then(|name| self.lock().remove(&name)) {
            Some(caller) => CallOrigin::Announced(caller),
            None => CallOrigin::Stranger,
        }
    }

    /// Connects a call to the server.
    fn enter(&self, caller: JobCaller) -> io::Result<(UnixStream, Announcement<'_>)> {
        let name = format!("tessera-call-{}", Uuid::new_v4().simple()).into_bytes();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
        self.lock().insert(name.clone(), Arc::new(caller));
        let announcement = Announcement { job_calls: self, name };
        connect(&socket, &SocketAddrUnix::new(&*self.path)?)?;
        Ok((UnixStream::from_std(socket.into())?, announcement))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<JobCaller>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that the server may not have seen yet; forgotten with its end.
struct Announcement<'d> {
    job_calls: &'d JobCallSocket,
    name: Vec<u8>,
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        self.job_calls.lock().remove(&self.name);
    }
}

/// What carries calls.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Who knows which attempts are alive.
    pub placer: mpsc::Sender<ToPlacer>,
    /// The way into the API's server.
    pub job_calls: JobCallSocket,
}

impl Calls {
    /// Carries a call of a node's process until either side ends it.
    ///
    /// # Errors
    ///
    /// The server takes no connection, or one of both broke.
    pub async fn carry(
        &self,
        (node, from): (&NodeIdentity, SocketAddr),
        attempt: AttemptId,
        (mut to_node, (mut from_node, read)): (quinn::SendStream, (quinn::RecvStream, Vec<u8>)),
    ) -> io::Result<()> {
        let (reply, answer) = oneshot::channel();
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        let question = ToPlacer::FindCaller { node: node.id, attempt, reply };
        self.placer.send(question).await.map_err(gone)?;
        let Some(job) = answer.await.ok().flatten() else {
            tracing::warn!(node = %node.name, %attempt, "a call of an attempt that is not alive there");
            return Ok(());
        };
        let (server, _announcement) = self.job_calls.enter(JobCaller { job, from })?;
        let (mut from_server, mut to_server) = server.into_split();
        let there = async {
            to_server.write_all(&read).await?;
            copy(&mut from_node, &mut to_server).await
        };
        let back = copy(&mut from_server, &mut to_node);
        let ended = tokio::select! {
            ended = there => ended,
            copied = back => {
                let _ = to_node.finish();
                return copied.map(drop);
            }
        };
        if ended.is_err() {
            // The node's connection broke, and the process does not know: it comes back. A connection that is closed
            // would end what it has begun, so that this one stays open until the server gives it up.
            copy(&mut from_server, &mut sink()).await?;
        }
        ended.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::JobId;

    fn caller() -> JobCaller {
        let job = JobId::from_number(7);
        let job = CallerJob { user: "ada".into(), first: job, last: job };
        JobCaller { job, from: SocketAddr::from(([127, 0, 0, 1], 5)) }
    }

    #[tokio::test]
    async fn a_call_is_known_by_its_job_once() {
        let folder = tempfile::tempdir().unwrap();
        let (job_calls, listener) = JobCallSocket::open(folder.path()).unwrap();
        let (_stream, announcement) = job_calls.enter(caller()).unwrap();
        let (accepted, _) = listener.accept().unwrap();

        let CallOrigin::Announced(known) = job_calls.admit(&accepted) else {
            panic!("not announced")
        };
        assert_eq!(*known, caller());
        assert!(matches!(job_calls.admit(&accepted), CallOrigin::Stranger), "a name is used once");
        drop(announcement);
        assert!(job_calls.lock().is_empty());
    }

    #[tokio::test]
    async fn who_was_not_announced_is_a_stranger_and_other_listeners_are_none_of_the_doors() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        fs::create_dir(&long).unwrap();
        let (job_calls, listener) = JobCallSocket::open(&long).unwrap();
        let _stranger = std::os::unix::net::UnixStream::connect(&*job_calls.path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(matches!(job_calls.admit(&accepted), CallOrigin::Stranger));
        let mode = fs::metadata(long.join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "only this account connects");

        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(job_calls.admit(&one), CallOrigin::Elsewhere));
    }
}
