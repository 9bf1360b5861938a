//! One agent's connection as the placer holds it, and the messages about connections.

use actix::Message;
use tessera_frames::cluster::{
    FromSession, Hello, LogReply, LogRequest, SessionRequest, StreamRequest, ToAgent, ToController,
    ToSession,
};
use tessera_model::{Millis, NodeId, NodeIdentity};
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tokio::sync::mpsc;

use crate::ports::SessionLink;

/// Pieces of output under way to one reader.
const LOG_PIECES: usize = 8;
/// Frames of a session under way in each direction.
const SESSION_FRAMES: usize = 64;

/// An agent sent its hello.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LinkOpened {
    /// The connection's number.
    pub session: u64,
    /// The node, by its certificate.
    pub peer: NodeIdentity,
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
    pub node: NodeId,
    /// The frames, in order.
    pub frames: Vec<ToController>,
}

/// An agent requests another lease; answered once the round that is being decided is known, commits or not.
#[derive(Debug, Message)]
#[rtype(result = "Option<ToAgent>")]
pub struct LinkRenews {
    /// The connection's number.
    pub session: u64,
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

    /// Queues a frame; `false` if the connection can no longer be used.
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

    /// Joins an interactive session.
    pub fn open_session(&self, request: SessionRequest) -> SessionLink {
        let (to, frames) = mpsc::channel(SESSION_FRAMES);
        let (replies, from) = mpsc::channel(SESSION_FRAMES);
        let connection = self.connection.clone();
        tokio::spawn(async move {
            if let Err(error) = carry_session(&connection, request, frames, &replies).await {
                tracing::debug!(%error, "a session's stream broke");
            }
        });
        SessionLink { to, from }
    }
}

/// Carries a session's frames until either side leaves.
async fn carry_session(
    connection: &quinn::Connection,
    request: SessionRequest,
    mut frames: mpsc::Receiver<ToSession>,
    replies: &mpsc::Sender<FromSession>,
) -> Result<(), LinkError> {
    let (send, receive) =
        connection.open_bi().await.map_err(|cause| LinkError::Broken(cause.into()))?;
    let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
    writer.send(&StreamRequest::Session(request)).await?;
    let there = async {
        let mut batch = Vec::with_capacity(SESSION_FRAMES);
        while frames.recv_many(&mut batch, SESSION_FRAMES).await > 0 {
            for frame in batch.drain(..) {
                writer.queue(&frame)?;
            }
            writer.flush().await?;
        }
        writer.finish();
        Ok(())
    };
    let back = async {
        while let Some(reply) = reader.receive::<FromSession>().await? {
            if replies.send(reply).await.is_err() {
                // What was queued for the session is still sent.
                std::future::pending::<()>().await;
            }
        }
        Ok(())
    };
    tokio::select! {
        done = there => done,
        done = back => done,
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
    writer.send(&StreamRequest::Log(request)).await?;
    writer.finish();
    while let Some(reply) = reader.receive::<LogReply>().await? {
        if pieces.send(reply).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
