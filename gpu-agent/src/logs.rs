//! Answering controllers that read an attempt's output, or join one of its sessions.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tessera_frames::cluster::{LOG_CHUNK_BYTES_MAX, LogReply, LogRequest, StreamRequest};
use tessera_launch::client::open_as;
use tessera_launch::order::FileOrder;
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::{mpsc, oneshot};

use crate::link::ControllerAddress;
use crate::messages::NodeInput;
use crate::sessions;
use crate::shepherd::files::{self, NamedOutput};

/// How often a growing file is polled.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long opening a user's file may take.
const OPEN_WITHIN_MS: u32 = 5_000;

/// Serves readers for as long as the connection exists.
pub async fn serve(
    connection: &quinn::Connection,
    controller: &ControllerAddress,
    node: &mpsc::Sender<NodeInput>,
) {
    while let Ok((sender, receiver)) = connection.accept_bi().await {
        let (controller, node) = (controller.clone(), node.clone());
        tokio::task::spawn_local(async move {
            let mut reader = FrameReader::new(receiver);
            let request = match reader.receive::<StreamRequest>().await {
                Ok(Some(StreamRequest::Log(request))) => request,
                Ok(Some(StreamRequest::Session(request))) => {
                    sessions::relay(&request, &controller.data, &node, reader, sender).await;
                    return;
                }
                Ok(None) | Err(_) => return,
            };
            let mut writer = FrameWriter::new(sender);
            // A reader may go away at any time.
            if answer(&request, &controller, &node, &mut writer).await.is_ok() {
                writer.finish();
            }
        });
    }
}

async fn answer(
    request: &LogRequest,
    controller: &ControllerAddress,
    node: &mpsc::Sender<NodeInput>,
    writer: &mut FrameWriter,
) -> Result<(), LinkError> {
    let path = path(request, &controller.data);
    // Requested before the file is read: what is written before the end is then never missed.
    let mut alive = is_alive(request, node).await;
    let mut file = match open(controller, &path, request.offset).await {
        Ok(file) => file,
        Err(_) if alive && request.follow => loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match open(controller, &path, request.offset).await {
                Ok(file) => break file,
                Err(_) if is_alive(request, node).await => {}
                Err(error) => return unknown(request, controller, writer, &error).await,
            }
        },
        Err(_) if alive => return writer.send(&LogReply::End { length: 0 }).await,
        Err(error) => return unknown(request, controller, writer, &error).await,
    };
    let mut offset = request.offset;
    loop {
        offset = copy(&mut file, offset, writer).await?;
        if !(alive && request.follow) {
            let length = file.metadata().await.map_or(offset, |found| found.len());
            return writer.send(&LogReply::End { length }).await;
        }
        tokio::time::sleep(LOOK_EVERY).await;
        alive = is_alive(request, node).await;
    }
}

async fn unknown(
    request: &LogRequest,
    controller: &ControllerAddress,
    writer: &mut FrameWriter,
    error: &io::Error,
) -> Result<(), LinkError> {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => controller.outputs.explain(request.attempt),
        _ => format!("the output can't be read: {error}"),
    };
    writer.send(&LogReply::Unknown { reason }).await
}

/// Sends what the file holds from `offset` on; returns where it ends.
async fn copy(
    file: &mut File,
    mut offset: u64,
    writer: &mut FrameWriter,
) -> Result<u64, LinkError> {
    loop {
        let mut bytes = vec![0; LOG_CHUNK_BYTES_MAX];
        let read = file.read(&mut bytes).await.map_err(LinkError::Broken)?;
        if read == 0 {
            return Ok(offset);
        }
        bytes.truncate(read);
        writer.send(&LogReply::Chunk { offset, bytes }).await?;
        offset += read as u64;
    }
}

/// The attempt's own file, or the link to the one that its user named. The path consists of an id
/// and one of two names, so no request leads elsewhere.
fn path(request: &LogRequest, data: &Path) -> PathBuf {
    files::output(data, request.attempt, request.stream)
}

async fn open(controller: &ControllerAddress, path: &Path, offset: u64) -> io::Result<File> {
    let mut file = match path.symlink_metadata()?.is_symlink() {
        true => open_named(controller, path).await?,
        false => {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).await?
        }
    };
    // After the end there is nothing yet; later output is sent from there on.
    file.seek(SeekFrom::Start(offset)).await?;
    Ok(file)
}

/// Opens a file that the user named, as the user, and only if it is the one that the attempt opened.
async fn open_named(controller: &ControllerAddress, link: &Path) -> io::Result<File> {
    let target = std::fs::read_link(link)?;
    let named = NamedOutput::read(link).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the attempt has not opened it, or its user may not read it",
        ),
        _ => error,
    })?;
    let order = FileOrder {
        account: named.account.as_ref().map(|account| account.to_launch()),
        uid_min: named.uid_min,
        root_allowed: named.root_allowed,
        path: target.display().to_string(),
        within_ms: OPEN_WITHIN_MS,
    };
    let launch = controller.launch.clone();
    let opening = tokio::task::spawn_blocking(move || {
        open_as(&launch, order, (named.device, named.inode, named.born))
    });
    let opened = opening.await.map_err(io::Error::other)?;
    opened.map(File::from_std).map_err(|reason| {
        io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {reason}", target.display()))
    })
}

async fn is_alive(request: &LogRequest, node: &mpsc::Sender<NodeInput>) -> bool {
    let (answer, answered) = oneshot::channel();
    let sent = node.send(NodeInput::IsAlive { attempt: request.attempt, answer }).await;
    sent.is_ok() && answered.await.unwrap_or(false)
}
