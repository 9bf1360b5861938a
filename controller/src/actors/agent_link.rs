//! One agent's connection as the placer holds it, and the messages about connections.

use actix::Message;
use tessera_frames::cluster::{Hello, LogReply, LogRequest, ToAgent, ToController};
use tessera_model::{Millis, NodeId, NodeIdentity};
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tokio::sync::mpsc;

/// Pieces of output under way to one reader.
const LOG_PIECES: usize = 8;

/// An agent sent its hello.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LinkOpened {
    /// The connection's number.
    pub session: u64,
    /// The node, by its certificate.
    pub peer: NodeIdentity,
    /// Its hello.
    pub hello: Box<Hello>,
    /// The way to send it frames.
    pub link: AgentLink,
}

/// An agent sent frames.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LinkFrames {
    /// The connection's number.
    pub session: u64,
    /// The node.
    pub node: NodeId,
    /// The frames, in order.
    pub frames: Vec<ToController>,
}

/// An agent requests another lease; answered at once, commits or not.
#[derive(Debug, Message)]
#[rtype(result = "Option<ToAgent>")]
pub struct LinkRenews {
    /// The connection's number.
    pub session: u64,
    /// The node.
    pub node: NodeId,
    /// When it sent the request, on its own clock.
    pub sent: Millis,
    /// The generation that it knows.
    pub generation: u64,
}

/// A connection ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LinkClosed {
    /// The connection's number.
    pub session: u64,
    /// The node.
    pub node: NodeId,
}

/// One agent's connection, as the placer holds it.
#[derive(Clone, Debug)]
pub struct AgentLink {
    outbox: mpsc::Sender<ToAgent>,
    connection: quinn::Connection,
}

impl AgentLink {
    /// Makes the placer's end of a connection.
    pub fn new(outbox: mpsc::Sender<ToAgent>, connection: quinn::Connection) -> Self {
        Self { outbox, connection }
    }

    /// Queues a frame; `false` if the connection is of no more use.
    pub fn send(&self, frame: ToAgent) -> bool {
        let queued = self.outbox.try_send(frame);
        if queued.is_err() {
            self.connection.close(1_u32.into(), b"the outbox is full");
        }
        queued.is_ok()
    }

    /// Requests an attempt's output.
    pub fn open_log(&self, request: LogRequest) -> mpsc::Receiver<LogReply> {
        let (pieces, receiver) = mpsc::channel(LOG_PIECES);
        let connection = self.connection.clone();
        tokio::spawn(async move {
            if let Err(error) = read_log(&connection, request, &pieces).await {
                let reason = format!("the node's connection broke: {error}");
                // The reader may be gone, which is why the stream ended.
                let _ = pieces.send(LogReply::Unknown { reason }).await;
            }
        });
        receiver
    }
}

async fn read_log(
    connection: &quinn::Connection,
    request: LogRequest,
    pieces: &mpsc::Sender<LogReply>,
) -> Result<(), LinkError> {
    let (send, receive) =
        connection.open_bi().await.map_err(|cause| LinkError::Broken(cause.into()))?;
    let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
    writer.send(&request).await?;
    writer.finish();
    while let Some(reply) = reader.receive::<LogReply>().await? {
        if pieces.send(reply).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
