//! Carries the frames of interactive sessions between a controller and the shepherd that has the session. Both
//! speak the same frames, so that only the request is read here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use tessera_frames::cluster::{FromSession, SessionRequest};
use tessera_wire::link::{FrameReader, FrameWriter};
use tokio::io::{AsyncWriteExt as _, copy};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::messages::NodeInput;
use crate::shepherd::sessions::socket_path;
use crate::shepherd::socket::frame_bytes;

/// Joins a session for a controller, until either side ends its stream.
pub async fn relay(
    request: &SessionRequest,
    data: &Path,
    node: &mpsc::Sender<NodeInput>,
    reader: FrameReader,
    mut sender: quinn::SendStream,
) {
    let shepherd = match join(request, data, node).await {
        Ok(shepherd) => shepherd,
        Err(error) => {
            let mut writer = FrameWriter::new(sender);
            let reason = error.to_string();
            // A client may go away at any time.
            if writer.send(&FromSession::Refused { reason, retry: true }).await.is_ok() {
                writer.finish();
            }
            return;
        }
    };
    let (mut from_shepherd, mut to_shepherd) = shepherd.into_split();
    let (mut from_controller, read) = reader.into_stream();
    let there = async {
        to_shepherd.write_all(&read).await?;
        copy(&mut from_controller, &mut to_shepherd).await
    };
    let back = copy(&mut from_shepherd, &mut sender);
    tokio::select! {
        // The session waits for its client, who may come back over another connection.
        _ = there => {}
        sent = back => if sent.is_ok() {
            let _ = sender.finish();
            // Fails only if the other side is gone. What was sent has to arrive before the stream is dropped.
            let _ = sender.stopped().await;
        }
    }
}

/// Why a session does not begin.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    /// The node knows no such job.
    #[error("the job does not run here now, or was started by an agent without sessions")]
    Unknown,
    /// Its shepherd does not answer.
    #[error("the job's shepherd accepts no client: {0}")]
    Shepherd(io::Error),
}

async fn join(
    request: &SessionRequest,
    data: &Path,
    node: &mpsc::Sender<NodeInput>,
) -> Result<UnixStream, JoinError> {
    let (answer, answered) = oneshot::channel();
    let question = NodeInput::FindShepherd { attempt: request.attempt, answer };
    let sent = node.send(question).await;
    let found = if sent.is_ok() { answered.await.ok().flatten() } else { None };
    let id = found.ok_or(JoinError::Unknown)?;
    connect(data, id, request).await.map_err(JoinError::Shepherd)
}

async fn connect(data: &Path, id: Uuid, request: &SessionRequest) -> io::Result<UnixStream> {
    // Through the folder's descriptor: a socket's address holds 107 bytes, a data folder's path may be longer.
    let folder = File::open(data)?;
    let path = socket_path(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())), id);
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(&frame_bytes(request)?).await?;
    Ok(stream)
}
