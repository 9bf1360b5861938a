//! How a step's caller reaches its parts: a child process on the caller's own node, and sessions of the job on others.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::OFlags;
use tessera_api_types::SessionOpening;
use tessera_client::{Access, ApiClient, RetryPatience};
use tessera_model::number::clamped;
use tessera_model::{JobId, JobRef};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::Allocation;
use super::across::AcrossEvent;
use super::environment::StepFacts;
use super::exchange::{FromPart, MessageBuffer, ToPart};
use crate::connection::{Connection, Given};
use crate::failure::CommandFailure;
use crate::interactive::{Conversation, LocalInput, Output, SessionEnd};
use crate::own_program;
use crate::session::CommandSession;

/// Largest piece of a message on its way to another node.
const CHUNK: usize = 16 * 1024;
/// Pieces that may wait for the network.
const WAITING: usize = 16;
/// Longest path of a Unix socket, which is the kernel's limit.
const SOCKET_PATH_MAX: usize = 107;

/// Where the messages of a part go.
pub struct Connected {
    /// The part's number.
    pub index: usize,
    /// The step.
    pub events: mpsc::Sender<AcrossEvent>,
}

/// The way to a part.
pub struct PartLink(Option<mpsc::UnboundedSender<Vec<u8>>>);

impl PartLink {
    /// Sends a message. A part that is gone is reported as closed.
    pub fn send(&self, message: &ToPart) {
        if let (Some(to), Ok(bytes)) = (&self.0, message.encode()) {
            let _ = to.send(bytes);
        }
    }

    /// Sends nothing more: a part whose processes run ends them.
    pub fn close(&mut self) {
        self.0 = None;
    }
}

/// Starts the part on this node.
///
/// # Errors
///
/// This program can't be started.
pub fn connect_here(to: Connected, facts: &StepFacts) -> Result<PartLink, CommandFailure> {
    let mut command = Command::from(own_program::command("step-part")?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // Signals to the steps of the job come to it: by this variable they are found.
    command.env("SLURM_STEP_ID", facts.number.to_string()).process_group(0);
    let mut child = command.spawn()?;
    let (pieces, mut waiting) = mpsc::unbounded_channel::<Vec<u8>>();
    if let Some(mut input) = child.stdin.take() {
        tokio::spawn(async move {
            while let Some(piece) = waiting.recv().await {
                if input.write_all(&piece).await.is_err() {
                    return;
                }
            }
        });
    }
    tokio::spawn(async move {
        let mut receiver = PartReceiver { to, buffer: MessageBuffer::default() };
        let mut bytes = vec![0; CHUNK];
        if let Some(mut output) = child.stdout.take() {
            while let Ok(read @ 1..) = output.read(&mut bytes).await {
                if receiver.take(&bytes[..read]).await.is_err() {
                    break;
                }
            }
        }
        let ended = child.wait().await;
        let reason = ended.ok().filter(|status| !status.success());
        receiver.close(reason.map(|status| status.to_string())).await;
    });
    Ok(PartLink(Some(pieces)))
}

/// Starts the part on another node of the job.
///
/// # Errors
///
/// The node is not known by a number of the job, or there is no way to the controller.
pub fn connect_there(
    to: Connected,
    node: &str,
    allocation: &Allocation,
) -> Result<PartLink, CommandFailure> {
    let job = member_on(node, allocation)?;
    let client = client(allocation)?;
    let program = own_program::words("step-part")?;
    let opening = SessionOpening { program, ..SessionOpening::default() };
    let (pieces, mut waiting) = mpsc::unbounded_channel::<Vec<u8>>();
    let (input, received) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        while let Some(message) = waiting.recv().await {
            for piece in message.chunks(CHUNK) {
                if input.send(piece.to_vec()).await.is_err() {
                    return;
                }
            }
        }
    });
    let name = (job, uuid::Uuid::new_v4().to_string());
    let conversation = Conversation::new(client, name, opening, LocalInput::of(received)).waiting();
    tokio::spawn(async move {
        let mut receiver = PartReceiver { to, buffer: MessageBuffer::default() };
        let reason = match conversation.run(&mut receiver).await {
            Ok(SessionEnd::Exited(0)) => None,
            Ok(SessionEnd::Exited(code)) => {
                Some(format!("its part of the step ended with code {code}"))
            }
            Ok(SessionEnd::NotStarted(reason)) if reason.starts_with("no such program") => {
                Some(format!("{reason}: tessera must have the same path on all nodes"))
            }
            Ok(SessionEnd::NotStarted(reason)) => Some(reason),
            Ok(SessionEnd::Replaced | SessionEnd::Interrupted(_)) => None,
            Err(failed) => Some(failed.to_string()),
        };
        receiver.close(reason).await;
    });
    Ok(PartLink(Some(pieces)))
}

/// Returns the job's member on another node, in whose sessions processes are started there.
///
/// # Errors
///
/// The node is not known by a number of the job.
pub fn member_on(node: &str, allocation: &Allocation) -> Result<JobRef, CommandFailure> {
    let known = allocation.nodes.iter().find(|known| known.name == node);
    let member = known.and_then(|known| known.member).ok_or_else(|| {
        CommandFailure::refused(format!(
            "the agent of this node is older than this program, and does not state how {node} is reached"
        ))
    })?;
    Ok(JobRef::Job(JobId::from_number(member)))
}

/// Returns the client for steps: by way of this node, which needs no token; else as every other command.
pub fn client(allocation: &Allocation) -> Result<ApiClient, CommandFailure> {
    let get = |name: &str| allocation.environment.get(name).filter(|value| !value.is_empty());
    let socket = get("TESSERA_CALLS").map(Path::new).filter(|path| path.exists());
    if let Some(path) = socket {
        let path = reachable(path)?;
        let access = Access { token: None, authority: None };
        let url = format!("unix://{}", path.display());
        return Ok(ApiClient::new(&url, &access, RetryPatience::LONG)?);
    }
    let given = Given {
        url: get("TESSERA_URL").cloned(),
        token: get("TESSERA_TOKEN").cloned(),
        ca: get("TESSERA_CA").map(Into::into),
    };
    Ok(CommandSession::open(&Connection::find(&given)?, false)?
        .client
        .with_patience(RetryPatience::LONG))
}

/// Returns a path of a socket that is short enough for the kernel. If need be, it leads through the descriptor of its
/// folder, which stays open for as long as this process lives.
fn reachable(path: &Path) -> std::io::Result<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path.to_owned());
    };
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return Ok(path.to_owned());
    }
    // Its folder may only be passed through.
    let flags = clamped((OFlags::PATH | OFlags::DIRECTORY).bits());
    let folder = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    std::mem::forget(folder);
    Ok(short)
}

/// Turns what a part writes into events.
struct PartReceiver {
    to: Connected,
    buffer: MessageBuffer,
}

impl PartReceiver {
    async fn take(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.buffer.push(bytes);
        while let Some(message) = self.buffer.next_of_part().map_err(std::io::Error::other)? {
            self.report(AcrossEvent::Message(self.to.index, message)).await?;
        }
        Ok(())
    }

    async fn report(&self, event: AcrossEvent) -> std::io::Result<()> {
        let gone = |_| std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        self.to.events.send(event).await.map_err(gone)
    }

    async fn close(self, reason: Option<String>) {
        let _ = self.report(AcrossEvent::Closed(self.to.index, reason)).await;
    }
}

impl Output for PartReceiver {
    async fn stdout(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        self.take(&bytes).await
    }

    async fn stderr(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        self.report(AcrossEvent::Message(self.to.index, FromPart::Note(text))).await
    }
}
