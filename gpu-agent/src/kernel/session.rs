//! The connection of one shim, from its handshake to its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tessera_frames::kernel::{Farewell, RECORDS_MAX, SessionEnd, ShimHello, ToQueue, ToShim};
use tessera_kernel_queue::SessionId;
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};

use super::outbox::FrameOutbox;
use super::process::WatchedProcess;
use super::registry::QueueRegistry;

/// Limit for the handshake and the hello. A machine that starts a full node's jobs at once is slow. A
/// shim that needs longer runs without a queue for now.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Limit for the delivery of the last frame.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);
/// Frames of one session that are handled before other sessions.
const FRAMES_AT_ONCE: usize = 8;

/// Serves one connection.
pub async fn serve(registry: Rc<RefCell<QueueRegistry>>, incoming: quinn::Incoming) {
    let Ok(connecting) = incoming.accept() else { return };
    let greeting = async {
        let connection = connecting.await.ok()?;
        let (send, receive) = connection.accept_bi().await.ok()?;
        let (writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
        let hello = reader.receive_known::<ToQueue>().await;
        Some((connection, writer, reader, hello))
    };
    let Ok(Some((connection, mut writer, reader, hello))) =
        tokio::time::timeout(HELLO_WITHIN, greeting).await
    else {
        registry.borrow_mut().note_refused(false);
        return;
    };
    let (hello, joined) = match hello {
        Ok(Some(ToQueue::Hello(hello))) => {
            let joined = registry.borrow_mut().add_session(&hello);
            (hello, joined)
        }
        Ok(_) | Err(_) => {
            registry.borrow_mut().note_refused(true);
            return close_with_farewell(connection, writer, SessionEnd::Nonsense, false).await;
        }
    };
    match joined {
        Ok((session, welcome, outbox)) => {
            if writer.send(&ToShim::Welcome(welcome)).await.is_ok() {
                let served = ShimSession { registry: Rc::clone(&registry), session, outbox, hello };
                served.run(connection, writer, reader).await;
            }
            registry.borrow_mut().end_session(session, SessionEnd::Gone);
        }
        Err(Farewell { why, again }) => {
            tracing::info!(
                ?why,
                pid = hello.pid,
                "a process was refused a session with the kernel queue"
            );
            registry.borrow_mut().note_refused(false);
            close_with_farewell(connection, writer, why, again).await;
        }
    }
}

/// Sends the farewell, and waits a moment for its delivery.
async fn close_with_farewell(
    connection: quinn::Connection,
    mut writer: FrameWriter,
    why: SessionEnd,
    again: bool,
) {
    let farewell = ToShim::Bye(Farewell { why, again });
    if writer.send(&farewell).await.is_ok() {
        writer.finish();
        // The shim closes when it has read it.
        let _ = tokio::time::timeout(GOODBYE_WITHIN, connection.closed()).await;
    }
    connection.close(0_u32.into(), b"");
}

/// A process that has a session.
struct ShimSession {
    registry: Rc<RefCell<QueueRegistry>>,
    session: SessionId,
    outbox: Rc<FrameOutbox>,
    hello: ShimHello,
}

impl ShimSession {
    async fn run(self, connection: quinn::Connection, writer: FrameWriter, reader: FrameReader) {
        let writer = write_frames(connection, writer, Rc::clone(&self.outbox));
        let writing = tokio::task::spawn_local(writer);
        let process = WatchedProcess::watch(self.hello.pid);
        let why = tokio::select! {
            why = self.read_records(reader) => why,
            // The process is dead, so its unread records are worthless.
            () = process.ended() => SessionEnd::Gone,
            () = self.outbox.closed() => self.outbox.end().unwrap_or(SessionEnd::Gone),
        };
        self.registry.borrow_mut().end_session(self.session, why);
        // The writing task sends the waiting frames and the farewell.
        let _ = writing.await;
    }

    async fn read_records(&self, mut reader: FrameReader) -> SessionEnd {
        let mut at_once = 0;
        loop {
            let frame = match reader.take_known::<ToQueue>() {
                Ok(None) => {
                    at_once = 0;
                    reader.receive_known::<ToQueue>().await
                }
                taken => taken,
            };
            match frame {
                Ok(Some(ToQueue::Records(records))) if records.len() <= RECORDS_MAX => {
                    self.registry.borrow_mut().add_records(self.session, records);
                }
                // A hello again, or more records than a frame may have.
                Ok(Some(ToQueue::Hello(_) | ToQueue::Records(_)))
                | Err(LinkError::Decode(_) | LinkError::Encode(_)) => {
                    self.registry.borrow_mut().note_refused(true);
                    return SessionEnd::Nonsense;
                }
                Ok(None) | Err(LinkError::Broken(_)) => return SessionEnd::Gone,
            }
            if self.outbox.end().is_some() {
                return self.outbox.end().unwrap_or(SessionEnd::Gone);
            }
            at_once += 1;
            if at_once >= FRAMES_AT_ONCE {
                at_once = 0;
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Writes the frames of a session until it ends.
async fn write_frames(
    connection: quinn::Connection,
    mut writer: FrameWriter,
    outbox: Rc<FrameOutbox>,
) {
    let mut frames = Vec::new();
    loop {
        let end = outbox.take(&mut frames).await;
        for frame in frames.drain(..) {
            // The queue's own frames are far below the limit.
            let _ = writer.queue(&frame);
        }
        if let Some(why) = end {
            let again = match why {
                SessionEnd::Full
                | SessionEnd::Silent
                | SessionEnd::TooMuch
                | SessionEnd::Stopping => true,
                SessionEnd::Unknown
                | SessionEnd::Protocol { .. }
                | SessionEnd::WrongDevice
                | SessionEnd::Nonsense
                | SessionEnd::Attempt
                | SessionEnd::Replaced
                | SessionEnd::Gone => false,
            };
            let _ = tokio::time::timeout(GOODBYE_WITHIN, writer.flush()).await;
            return close_with_farewell(connection, writer, why, again).await;
        }
        if writer.flush().await.is_err() {
            return outbox.close(SessionEnd::Gone);
        }
    }
}
