//! The shepherds of a node: started on demand, kept for the next attempt, found again after
//! a restart.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tessera_frames::cluster::AttemptStatus;
use tessera_model::{AttemptId, BootId, Millis};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::messages::NodeInput;
use crate::shepherd::protocol::{
    FromShepherd, PROTOCOL_FLAG, ShepherdHello, SpawnOrder, ToShepherd, VERSION,
};
use crate::shepherd::serve::{ENDS_MAX, identity_path, socket_path};
use crate::shepherd::socket::{frame_bytes, take_frame};
use crate::shepherd::{group, limits, sessions};
use crate::sys::clock;
use crate::sys::identity::ProcessIdentity;

/// Idle shepherds that are kept: as many as small slices on two large GPUs.
const IDLE_MAX: usize = 16;
/// Maximum number of shepherds at once; each is one process of about a megabyte.
const SHEPHERDS_MAX: usize = 1024;
/// Frames on their way to one shepherd: an order has two, its stop one more.
const QUEUE: usize = 16;
/// How long a shepherd may be silent about an attempt that should have ended: it reports every second that it
/// kills it again.
const SILENT_FOR: Millis = Millis::from_secs(10);
/// What comes before the kill may take this long.
const BEFORE_KILL_WITHIN: Millis = Millis::from_secs(6);
/// The grace of attempts that an earlier agent ordered: longer than people choose.
const GRACE_UNKNOWN: Millis = Millis::from_secs(3600);
/// A shepherd that holds this many journalled ends is sent their ids at once; it holds twice as many.
const FORGET_AT: usize = ENDS_MAX / 2;

/// The first version of the shepherds' protocol with interactive sessions.
const SESSIONS_SINCE: u16 = 8;

/// Where shepherds come from.
#[derive(Clone, Debug)]
pub struct ShepherdLauncher {
    /// The shepherd's program.
    pub program: PathBuf,
    /// The program that starts attempts as their users.
    pub launch: PathBuf,
    /// The agent's data folder.
    pub data: PathBuf,
    /// Where they may make control groups.
    pub groups: Option<PathBuf>,
    /// This boot.
    pub boot: BootId,
}

#[derive(Debug)]
struct ShepherdHandle {
    orders: mpsc::Sender<ToShepherd>,
    process: Option<ProcessIdentity>,
    /// Its protocol version.
    version: u16,
    attempt: Option<AttemptId>,
    /// Ends that it holds although they are journalled: it is sent their ids with its next order, or when
    /// there is time, since reporting it wakes it up.
    journalled: Vec<AttemptId>,
    /// The grace of its attempt.
    grace: Millis,
    /// When its attempt must have ended, on the boot clock, or it must have reported that it still tries.
    ends_by: Option<Millis>,
}

/// All shepherds of a node.
#[derive(Debug)]
pub struct ShepherdPool {
    nursery: ShepherdLauncher,
    node: mpsc::Sender<NodeInput>,
    handles: BTreeMap<Uuid, ShepherdHandle>,
    by_attempt: BTreeMap<AttemptId, Uuid>,
    /// The shepherds that hold ends that aren't journalled yet.
    holders: BTreeMap<AttemptId, Uuid>,
    idle: Vec<Uuid>,
}

impl ShepherdPool {
    /// Makes an empty pool whose shepherds report to `node`.
    pub fn new(nursery: ShepherdLauncher, node: mpsc::Sender<NodeInput>) -> Self {
        Self {
            nursery,
            node,
            handles: BTreeMap::new(),
            by_attempt: BTreeMap::new(),
            holders: BTreeMap::new(),
            idle: Vec::new(),
        }
    }

    /// Adds a shepherd of an earlier agent that has answered.
    pub fn adopt(&mut self, hello: &ShepherdHello, stream: UnixStream, rest: Vec<u8>) {
        let mut running = None;
        for held in &hello.held {
            match held.status {
                AttemptStatus::Ended(_) => {
                    self.holders.insert(held.attempt, hello.id);
                }
                AttemptStatus::Journalled | AttemptStatus::Running { .. } => {
                    running = Some(held.attempt);
                }
            }
        }
        self.add_shepherd(hello.id, stream, rest, Some(hello), running);
    }

    /// Gives an attempt to an idle shepherd, or to a new one.
    ///
    /// # Errors
    ///
    /// [`AssignError`]; nothing was started.
    pub fn assign(&mut self, order: SpawnOrder, script: Option<String>) -> Result<(), AssignError> {
        let attempt = order.attempt;
        let id = match self.idle.pop() {
            Some(id) => id,
            None => self.start().map_err(AssignError::NotStarted)?,
        };
        let handle = self.handles.get_mut(&id).ok_or(AssignError::Gone)?;
        handle.attempt = Some(attempt);
        handle.grace = order.run.grace;
        handle.ends_by = None;
        handle.forget();
        self.by_attempt.insert(attempt, id);
        if let Some(script) = script {
            self.send(attempt, ToShepherd::Script(script));
        }
        self.send(attempt, ToShepherd::Spawn(Box::new(order)));
        Ok(())
    }

    /// Sends a frame to the shepherd of an attempt. One that can't take it is about to be
    /// reported as gone.
    pub fn send(&mut self, attempt: AttemptId, frame: ToShepherd) {
        let handle = self.by_attempt.get(&attempt).and_then(|id| self.handles.get_mut(id));
        let Some(handle) = handle else { return };
        let limit = match &frame {
            ToShepherd::Stop { .. } => Some(handle.grace.plus(BEFORE_KILL_WITHIN)),
            ToShepherd::Kill { .. } => Some(Millis::ZERO),
            _ => None,
        };
        if let Some(limit) = limit.filter(|_| handle.version == VERSION) {
            let ends_by = clock::boot_now().plus(limit).plus(SILENT_FOR);
            handle.ends_by = Some(handle.ends_by.map_or(ends_by, |earlier| earlier.min(ends_by)));
        }
        if !frame.is_known_to(handle.version) {
            let version = handle.version;
            tracing::warn!(%attempt, version, "the attempt's shepherd is too old for this message");
            return;
        }
        if let Err(refused) = handle.orders.try_send(frame) {
            tracing::warn!(%attempt, %refused, "a shepherd takes no orders");
        }
    }

    /// Returns the shepherd of an attempt, if it serves sessions.
    pub fn of_attempt(&self, attempt: AttemptId) -> Option<Uuid> {
        let id = self.by_attempt.get(&attempt)?;
        self.handles.get(id).filter(|handle| handle.version >= SESSIONS_SINCE).map(|_| *id)
    }

    /// Returns the attempt of the shepherd that is among these processes: the nearest, if there are several.
    pub fn attempt_of(&self, lineage: &[u32]) -> Option<AttemptId> {
        let of_shepherd = |pid: &u32| {
            let is_it =
                |handle: &&ShepherdHandle| handle.process.is_some_and(|own| own.pid == *pid);
            self.handles.values().find(is_it)
        };
        lineage.iter().find_map(of_shepherd)?.attempt
    }

    /// Records the identity of a new shepherd.
    pub fn record_identity(&mut self, hello: &ShepherdHello) {
        if let Some(handle) = self.handles.get_mut(&hello.id) {
            handle.process = Some(hello.process);
        }
    }

    /// Takes back the shepherd of an ended attempt; it holds the end until [`Self::release_end`].
    pub fn release(&mut self, attempt: AttemptId) {
        let Some(id) = self.by_attempt.remove(&attempt) else { return };
        let Some(handle) = self.handles.get_mut(&id) else { return };
        handle.attempt = None;
        handle.ends_by = None;
        self.holders.insert(attempt, id);
        if handle.version == VERSION && self.idle.len() < IDLE_MAX {
            self.idle.push(id);
        } else {
            // Its connection ends with its handle. The idle shepherd then exits, once it has put on
            // disk what it holds.
            self.handles.remove(&id);
        }
    }

    /// Records that an end need not be held any longer.
    pub fn release_end(&mut self, attempt: AttemptId) {
        let Some(id) = self.holders.remove(&attempt) else { return };
        let Some(handle) = self.handles.get_mut(&id) else { return };
        handle.journalled.push(attempt);
        if handle.journalled.len() >= FORGET_AT {
            handle.forget();
        }
    }

    /// Records that a shepherd still tries to end its attempt.
    pub fn note_still_ending(&mut self, attempt: AttemptId, now: Millis) {
        let handle = self.by_attempt.get(&attempt).and_then(|id| self.handles.get_mut(id));
        if let Some(ends_by) = handle.and_then(|handle| handle.ends_by.as_mut()) {
            *ends_by = now.plus(SILENT_FOR);
        }
    }

    /// Sends idle shepherds the ends that they may forget, and kills those that are silent about an attempt
    /// that should have ended. Their attempts die with them.
    pub fn tick(&mut self, now: Millis) {
        for (id, handle) in &mut self.handles {
            if handle.ends_by.is_some_and(|ends_by| ends_by <= now) {
                handle.ends_by = None;
                tracing::error!(shepherd = %id, attempt = ?handle.attempt, "a silent shepherd is killed");
                if let Some(process) = handle.process {
                    process.kill(self.nursery.boot);
                }
            }
        }
        let idle = self.handles.values_mut().filter(|handle| handle.attempt.is_none());
        idle.for_each(ShepherdHandle::forget);
    }

    /// Cleans up after a shepherd whose connection ended; returns the attempt that it had.
    ///
    /// Nothing of the attempt runs any more when this returns, except what hangs in the kernel for
    /// seconds.
    pub fn remove_shepherd(&mut self, id: Uuid) -> Option<AttemptId> {
        let handle = self.handles.remove(&id)?;
        self.idle.retain(|idle| *idle != id);
        self.holders.retain(|_, holder| *holder != id);
        let attempt = handle.attempt?;
        self.by_attempt.remove(&attempt);
        // It dropped the connection, or died. In either case it must not continue unseen.
        if let Some(process) = handle.process {
            process.kill(self.nursery.boot);
        }
        self.nursery.clear(id, Some(attempt));
        Some(attempt)
    }

    fn start(&mut self) -> io::Result<Uuid> {
        if self.handles.len() >= SHEPHERDS_MAX {
            return Err(io::Error::other(format!("{SHEPHERDS_MAX} of them exist already")));
        }
        let id = Uuid::new_v4();
        let (ours, theirs) = StdUnixStream::pair()?;
        self.nursery.spawn(id, theirs)?;
        ours.set_nonblocking(true)?;
        let stream = UnixStream::from_std(ours)?;
        self.add_shepherd(id, stream, Vec::new(), None, None);
        Ok(id)
    }

    fn add_shepherd(
        &mut self,
        id: Uuid,
        stream: UnixStream,
        rest: Vec<u8>,
        hello: Option<&ShepherdHello>,
        attempt: Option<AttemptId>,
    ) {
        let (orders, queue) = mpsc::channel(QUEUE);
        let process = hello.map(|hello| hello.process);
        // A new one is assumed to be of this version until its hello: until then it is sent
        // nothing.
        let version = hello.map_or(VERSION, |hello| hello.version);
        let known = hello.is_some();
        let journalled = Vec::new();
        let (grace, ends_by) = (GRACE_UNKNOWN, None);
        let handle =
            ShepherdHandle { orders, process, version, attempt, journalled, grace, ends_by };
        self.handles.insert(id, handle);
        match attempt {
            Some(attempt) => {
                self.by_attempt.insert(attempt, id);
            }
            None if known && version == VERSION => self.idle.push(id),
            // Of an earlier version, with nothing to do: it exits once its ends are on disk.
            None if known => drop(self.handles.remove(&id)),
            None => {}
        }
        tokio::task::spawn_local(carry_frames(id, stream, rest, queue, self.node.clone(), known));
    }
}

impl ShepherdHandle {
    /// Sends the shepherd the ends that are journalled. If it takes no orders now, it is about to be
    /// reported as gone.
    fn forget(&mut self) {
        if !self.journalled.is_empty() {
            let attempts = std::mem::take(&mut self.journalled);
            let _ = self.orders.try_send(ToShepherd::Forget { attempts });
        }
    }
}

impl ShepherdLauncher {
    fn spawn(&self, id: Uuid, socket: StdUnixStream) -> io::Result<()> {
        let errors = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.data.join("shepherds").join("errors.log"))?;
        let mut command = tokio::process::Command::new(&self.program);
        command.arg("--data").arg(&self.data).arg("--id").arg(id.to_string());
        command.arg("--launch").arg(&self.launch);
        if let Some(groups) = &self.groups {
            command.arg("--groups").arg(groups);
        }
        // Never the agent's own output: a shepherd outlives it, and would hold it open.
        command.stdin(OwnedFd::from(socket)).stdout(Stdio::null()).stderr(errors);
        // In its own group from the first moment: a ^C at the agent's terminal is not
        // for attempts.
        command.process_group(0);
        command.spawn().map(drop)
    }

    /// Kills what a dead shepherd may have left behind, and removes its files.
    pub fn clear(&self, id: Uuid, attempt: Option<AttemptId>) {
        if let Some(groups) = &self.groups {
            let name = id.simple().to_string();
            group::kill_orphans(groups, &name);
            limits::remove_left(&name);
        }
        if let Some(attempt) = attempt {
            let found = crate::sys::identity::kill_by_environment(&attempt.to_string());
            if found > 0 {
                tracing::warn!(%attempt, found, "killed processes of a dead shepherd");
            }
        }
        let _ = std::fs::remove_file(identity_path(&self.data, id));
        let _ = std::fs::remove_file(socket_path(&self.data, id));
        let _ = std::fs::remove_file(sessions::socket_path(&self.data, id));
    }
}

/// Carries frames between a shepherd and the node until either side ends it.
async fn carry_frames(
    id: Uuid,
    stream: UnixStream,
    mut buffer: Vec<u8>,
    mut orders: mpsc::Receiver<ToShepherd>,
    node: mpsc::Sender<NodeInput>,
    known: bool,
) {
    let (mut reader, mut writer) = stream.into_split();
    // No order leaves before the hello: a shepherd sends its hello once later agents can find it, and
    // an order that it had before could be obeyed behind their backs. And none leaves at all to one
    // that turns out to speak another version.
    let (greeted, hello) = tokio::sync::oneshot::channel();
    let mut greeted = (!known).then_some(greeted);
    let reading = async {
        let mut chunk = vec![0; 4096];
        loop {
            while let Some(frame) = take_frame::<FromShepherd>(&mut buffer)? {
                if let Some(greeted) = greeted.take() {
                    if let Some(version) = foreign(&frame) {
                        return Ok(version);
                    }
                    let _ = greeted.send(());
                }
                let reported = node.send(NodeInput::Shepherd { id, frame }).await;
                reported.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            }
            match reader.read(&mut chunk).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                bytes => buffer.extend_from_slice(&chunk[..bytes]),
            }
        }
    };
    let writing = async {
        if !known && hello.await.is_err() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut waiting = Vec::with_capacity(QUEUE);
        while orders.recv_many(&mut waiting, QUEUE).await > 0 {
            // In one write: the shepherd is woken once.
            let frames = waiting.drain(..).map(|order| frame_bytes(&order));
            writer.write_all(&frames.collect::<io::Result<Vec<_>>>()?.concat()).await?;
        }
        Ok::<(), io::Error>(())
    };
    let mut foreigner = None;
    tokio::select! {
        read = reading => {
            match read {
                Ok(version) => foreigner = Some(version),
                Err(error) => {
                    tracing::debug!(shepherd = %id, %error, "a shepherd's connection ended");
                }
            }
        }
        written = writing => {
            if written.is_ok() {
                // It was dismissed, so its end is expected.
                return;
            }
        }
    }
    // Fails only when the node itself is going down.
    let _ = node.send(NodeInput::ShepherdGone { id, foreigner }).await;
}

/// Returns the version of a new shepherd that speaks another one than this agent.
const fn foreign(first: &FromShepherd) -> Option<u16> {
    match first {
        FromShepherd::Hello(hello) if hello.version != VERSION => Some(hello.version),
        _ => None,
    }
}

/// Queries a shepherd's program which version it speaks.
///
/// # Errors
///
/// It can't be run, or it speaks another version than this agent: both belong together.
pub fn check_program(program: &Path) -> Result<(), ShepherdProgramError> {
    let shown = || program.display().to_string();
    let output =
        std::process::Command::new(program).arg(PROTOCOL_FLAG).stdin(Stdio::null()).output();
    let output =
        output.map_err(|source| ShepherdProgramError::NotRunnable { program: shown(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse::<u16>() {
        Ok(VERSION) => Ok(()),
        Ok(version) => Err(ShepherdProgramError::OtherVersion { program: shown(), version }),
        Err(_) => Err(ShepherdProgramError::NoVersion { program: shown() }),
    }
}

/// Why no shepherd takes an attempt.
#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    /// No shepherd is idle, and none can be started.
    #[error("no shepherd can be started: {0}")]
    NotStarted(io::Error),
    /// The idle shepherd has ended.
    #[error("a shepherd is gone")]
    Gone,
}

/// A shepherd's program that this agent can't work with.
#[derive(Debug, thiserror::Error)]
pub enum ShepherdProgramError {
    /// It can't be run.
    #[error("{program} can't be run")]
    NotRunnable {
        /// Its path.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is of another release.
    #[error(
        "{program} speaks version {version} of the shepherds' protocol, this agent version {VERSION}: \
         install both from one release"
    )]
    OtherVersion {
        /// Its path.
        program: String,
        /// The version that it speaks.
        version: u16,
    },
    /// It is another program, or too old.
    #[error(
        "{program} doesn't print the version of the shepherds' protocol that it speaks: install it \
         from the release of this agent"
    )]
    NoVersion {
        /// Its path.
        program: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new shepherd's connection, with an order that waits to be sent.
    fn greeting(version: u16) -> (UnixStream, mpsc::Receiver<NodeInput>, impl Future<Output = ()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (node, received) = mpsc::channel(4);
        let (orders, queue) = mpsc::channel(QUEUE);
        let id = Uuid::from_u128(1);
        let process = ProcessIdentity { boot: BootId::from_uuid(id), pid: 1, start_ticks: 1 };
        let hello = ShepherdHello { version, id, process, held: Vec::new() };
        let attending = async move {
            orders.send(ToShepherd::Script("true".to_owned())).await.unwrap();
            let hello = frame_bytes(&FromShepherd::Hello(hello)).unwrap();
            carry_frames(id, ours, hello, queue, node, false).await;
            drop(orders);
        };
        (theirs, received, attending)
    }

    #[tokio::test]
    async fn a_new_shepherd_of_another_version_is_dismissed_before_it_has_an_order() {
        let (mut theirs, mut received, attending) = greeting(VERSION + 1);

        attending.await;

        let mut reported = Vec::new();
        theirs.read_to_end(&mut reported).await.unwrap();
        assert!(reported.is_empty(), "{reported:?}");
        let gone = received.recv().await.unwrap();
        assert!(
            matches!(gone, NodeInput::ShepherdGone { foreigner: Some(version), .. } if version == VERSION + 1),
            "{gone:?}"
        );
    }

    #[tokio::test]
    async fn a_new_shepherd_of_this_version_gets_its_order_after_its_hello() {
        let (mut theirs, mut received, attending) = greeting(VERSION);
        let obeying = async {
            let mut reported = Vec::new();
            let first = loop {
                if let Some(frame) = take_frame::<ToShepherd>(&mut reported).unwrap() {
                    break frame;
                }
                assert!(theirs.read_buf(&mut reported).await.unwrap() > 0, "the agent hung up");
            };
            drop(theirs);
            first
        };

        let ((), first) = tokio::join!(attending, obeying);

        assert_eq!(first, ToShepherd::Script("true".to_owned()));
        assert!(matches!(received.recv().await, Some(NodeInput::Shepherd { .. })));
        assert!(matches!(
            received.recv().await,
            Some(NodeInput::ShepherdGone { foreigner: None, .. })
        ));
    }

    #[test]
    fn a_program_that_is_no_shepherd_of_this_release_is_refused() {
        let refused = |program: &str| check_program(Path::new(program)).unwrap_err().to_string();

        assert!(refused("/bin/true").contains("doesn't print the version"));
        assert!(refused("/bin/nonexistent").contains("can't be run"));
    }

    #[test]
    fn an_earlier_shepherd_is_reported_how_its_attempt_ends_and_gets_no_other() {
        let attempt = AttemptId::from_uuid(Uuid::from_u128(2));
        let cause = tessera_frames::cluster::StopCause::Cancel;

        assert!(ToShepherd::Stop { attempt, cause }.is_known_to(VERSION - 1));
        assert!(!ToShepherd::SetTimeLimit { attempt, limit: None }.is_known_to(2));
        assert!(!ToShepherd::Script(String::new()).is_known_to(VERSION - 1));
        assert!(ToShepherd::Script(String::new()).is_known_to(VERSION));
    }
}
