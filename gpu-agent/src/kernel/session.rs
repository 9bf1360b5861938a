//! One shim's connection, from its handshake to its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tessera_kernel_queue::SessionId;
use tessera_wire::kernel::{Ended, Farewell, Hello, RECORDS_MAX, ToQueue, ToShim};
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};

use super::hub::Hub;
use super::outbox::Outbox;
use super::process::Process;

/// How long a handshake and a hello may take: a machine that starts a full node's jobs at once is
/// slow, and whoever needs longer runs without a queue meanwhile.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long a good-bye may take to arrive.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);
/// Frames that are taken in before others have their turn.
const FRAMES_AT_ONCE: usize = 8;

/// Serves one connection.
pub async fn serve(hub: Rc<RefCell<Hub>>, incoming: quinn::Incoming) {
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
        hub.borrow_mut().note_refused(false);
        return;
    };
    let (hello, joined) = match hello {
        Ok(Some(ToQueue::Hello(hello))) => {
            let joined = hub.borrow_mut().join(&hello);
            (hello, joined)
        }
        Ok(_) | Err(_) => {
            hub.borrow_mut().note_refused(true);
            return part(connection, writer, Ended::Nonsense, false).await;
        }
    };
    match joined {
        Ok((session, welcome, outbox)) => {
            if writer.send(&ToShim::Welcome(welcome)).await.is_ok() {
                let seat = Seat { hub: Rc::clone(&hub), session, outbox, hello };
                seat.run(connection, writer, reader).await;
            }
            hub.borrow_mut().leave(session, Ended::Gone);
        }
        Err(Farewell { why, again }) => {
            tracing::info!(?why, pid = hello.pid, "a process got no session of the kernel queue");
            hub.borrow_mut().note_refused(false);
            part(connection, writer, why, again).await;
        }
    }
}

/// Says good-bye, and waits for a moment that it arrives.
async fn part(connection: quinn::Connection, mut writer: FrameWriter, why: Ended, again: bool) {
    let farewell = ToShim::Bye(Farewell { why, again });
    if writer.send(&farewell).await.is_ok() {
        writer.finish();
        // The shim closes when it has read it.
        let _ = tokio::time::timeout(GOODBYE_WITHIN, connection.closed()).await;
    }
    connection.close(0_u32.into(), b"");
}

/// A process that has a session.
struct Seat {
    hub: Rc<RefCell<Hub>>,
    session: SessionId,
    outbox: Rc<Outbox>,
    hello: Hello,
}

impl Seat {
    async fn run(self, connection: quinn::Connection, writer: FrameWriter, reader: FrameReader) {
        let writer = write(connection, writer, Rc::clone(&self.outbox));
        let writing = tokio::task::spawn_local(writer);
        let process = Process::watch(self.hello.pid);
        let why = tokio::select! {
            why = self.read(reader) => why,
            // Only then is it known that nothing more will come: what had arrived is worthless.
            () = process.ended() => Ended::Gone,
            () = self.outbox.closed() => self.outbox.end().unwrap_or(Ended::Gone),
        };
        self.hub.borrow_mut().leave(self.session, why);
        // It writes what is left, and the good-bye.
        let _ = writing.await;
    }

    async fn read(&self, mut reader: FrameReader) -> Ended {
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
                    self.hub.borrow_mut().records(self.session, records);
                }
                // A hello again, or more records than a frame may have.
                Ok(Some(ToQueue::Hello(_) | ToQueue::Records(_)))
                | Err(LinkError::Decode(_) | LinkError::Encode(_)) => {
                    self.hub.borrow_mut().note_refused(true);
                    return Ended::Nonsense;
                }
                Ok(None) | Err(LinkError::Broken(_)) => return Ended::Gone,
            }
            if self.outbox.end().is_some() {
                return self.outbox.end().unwrap_or(Ended::Gone);
            }
            at_once += 1;
            if at_once >= FRAMES_AT_ONCE {
                at_once = 0;
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Writes what a session is to be sent, until it is over.
async fn write(connection: quinn::Connection, mut writer: FrameWriter, outbox: Rc<Outbox>) {
    let mut frames = Vec::new();
    loop {
        let end = outbox.take(&mut frames).await;
        for frame in frames.drain(..) {
            // The queue's own frames are far below the limit.
            let _ = writer.queue(&frame);
        }
        if let Some(why) = end {
            let again = match why {
                Ended::Full | Ended::Silent | Ended::TooMuch | Ended::Stopping => true,
                Ended::Unknown
                | Ended::Protocol { .. }
                | Ended::WrongDevice
                | Ended::Nonsense
                | Ended::Attempt
                | Ended::Replaced
                | Ended::Gone => false,
            };
            let _ = tokio::time::timeout(GOODBYE_WITHIN, writer.flush()).await;
            return part(connection, writer, why, again).await;
        }
        if writer.flush().await.is_err() {
            return outbox.close(Ended::Gone);
        }
    }
}
