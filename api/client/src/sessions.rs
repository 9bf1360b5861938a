//! Interactive sessions: WebSocket connections to programs in jobs.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Upgraded;
use tessera_api_types::{SessionCommand, SessionEvent, SessionOpening};
use tessera_model::JobRef;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::http::ApiCall;
use super::{ApiClient, ClientError};

/// The session of an interactive job's own program.
pub const MAIN_SESSION: &str = "main";

/// What came from a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionMessage {
    /// A piece of standard output.
    Stdout(Vec<u8>),
    /// A piece of standard error.
    Stderr(Vec<u8>),
    /// Anything else.
    Event(SessionEvent),
}

/// A connection that broke: the session may be there still, and can be joined again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the session broke")]
pub struct SessionBroken;

/// The sending half of a session.
#[derive(Debug)]
pub struct SessionSender(SplitSink<WebSocketStream<Upgraded>, Message>);

impl SessionSender {
    /// Sends input.
    ///
    /// # Errors
    ///
    /// [`SessionBroken`].
    pub async fn input(&mut self, bytes: Vec<u8>) -> Result<(), SessionBroken> {
        self.0.send(Message::binary(bytes)).await.map_err(|_| SessionBroken)
    }

    /// Sends a command.
    ///
    /// # Errors
    ///
    /// [`SessionBroken`].
    pub async fn command(&mut self, command: &SessionCommand) -> Result<(), SessionBroken> {
        self.0.send(text(command)).await.map_err(|_| SessionBroken)
    }

    /// Ends the session: its program is hung up.
    pub async fn close(&mut self) {
        // A connection that is gone ends the session as well.
        let _ = self.0.close().await;
    }
}

/// The receiving half of a session.
#[derive(Debug)]
pub struct SessionReceiver(SplitStream<WebSocketStream<Upgraded>>);

impl SessionReceiver {
    /// Receives the next message.
    ///
    /// # Errors
    ///
    /// [`SessionBroken`].
    pub async fn next(&mut self) -> Result<SessionMessage, SessionBroken> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => {
                    let event = serde_json::from_str(&text).map_err(|_| SessionBroken)?;
                    return Ok(SessionMessage::Event(event));
                }
                Some(Ok(Message::Binary(bytes))) => match bytes.split_first() {
                    Some((1, output)) => return Ok(SessionMessage::Stdout(output.to_vec())),
                    Some((2, output)) => return Ok(SessionMessage::Stderr(output.to_vec())),
                    Some(_) | None => return Err(SessionBroken),
                },
                // The library answers pings with the next read or write.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(SessionBroken),
            }
        }
    }
}

impl ApiClient {
    /// Joins a session of a job, and starts it if it is not there and `opening` names a program or a port. With
    /// `wait`, a job that has not started yet is waited for.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such job, if it does not run, or if it is another user's.
    pub async fn join_session(
        &self,
        job: JobRef,
        session: &str,
        opening: &SessionOpening,
        wait: bool,
    ) -> Result<(SessionSender, SessionReceiver), ClientError> {
        let call = ApiCall::get(&format!("v1/jobs/{job}/sessions/{session}"))
            .query("wait", wait)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", &generate_key());
        let upgraded = self.http.upgrade(call).await?;
        let stream = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
        let (sink, stream) = stream.split();
        let (mut sender, receiver) = (SessionSender(sink), SessionReceiver(stream));
        // A connection that is broken already shows at the first read.
        let _ = sender.0.send(text(opening)).await;
        Ok((sender, receiver))
    }
}

fn text(message: &impl serde::Serialize) -> Message {
    Message::text(serde_json::to_string(message).expect("messages have text keys only"))
}
