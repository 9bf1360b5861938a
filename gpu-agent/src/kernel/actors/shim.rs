//! The actor of one shim: its connection, from the handshake to the end.

use std::rc::Rc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, Recipient,
    WrapFuture as _,
};
use rustix::process::geteuid;
use tessera_frames::kernel::{Farewell, RECORDS_MAX, SessionEnd, ShimHello, ToQueue, ToShim};
use tessera_kernel_queue::SessionId;
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tokio::sync::oneshot;

use super::queue::{Join, Joined, Leave, NoteRaised, NoteRefused, QueueActor, TakeRecords, pass};
use crate::kernel::outbox::{FRAMES_MAX, FrameOutbox};
use crate::kernel::priority::{NamedThread, RaisedThread};
use crate::kernel::process::WatchedProcess;
use crate::kernel::queues::{FrameSink, OpenedSession, ShimPort};

/// Limit for the handshake and the hello. A machine that starts a full node's jobs at once is slow. A
/// shim that needs longer runs without a queue until it has connected again.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Limit for the delivery of the last frame.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);

/// Serves the connection of one shim, and takes the frames for it.
pub struct ShimActor {
    queue: Addr<QueueActor>,
    outbox: Rc<FrameOutbox>,
    /// Until the actor has started.
    incoming: Option<quinn::Incoming>,
}

/// A frame for the shim.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Deliver(pub ToShim);

impl ShimActor {
    /// Starts the actor of a connection on this thread.
    pub fn begin(queue: Addr<QueueActor>, incoming: quinn::Incoming) {
        Self { queue, outbox: Rc::default(), incoming: Some(incoming) }.start();
    }
}

impl Actor for ShimActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(FRAMES_MAX);
        let Some(incoming) = self.incoming.take() else { return };
        let connection = ShimConnection {
            queue: self.queue.clone(),
            outbox: Rc::clone(&self.outbox),
            frames: ctx.address().recipient(),
        };
        let served = connection.serve(incoming).into_actor(self);
        ctx.spawn(served.map(|(), _, ctx| actix::ActorContext::stop(ctx)));
    }
}

impl Handler<Deliver> for ShimActor {
    type Result = ();

    fn handle(&mut self, Deliver(frame): Deliver, _: &mut Self::Context) {
        self.outbox.push(frame);
    }
}

impl FrameSink for Recipient<Deliver> {
    fn push(&self, frame: ToShim) -> bool {
        self.try_send(Deliver(frame)).is_ok()
    }
}

/// What serves a connection.
struct ShimConnection {
    queue: Addr<QueueActor>,
    outbox: Rc<FrameOutbox>,
    frames: Recipient<Deliver>,
}

impl ShimConnection {
    async fn serve(self, incoming: quinn::Incoming) {
        let Ok(connecting) = incoming.accept() else { return };
        let greeting = async {
            let connection = connecting.await.ok()?;
            let (send, receive) = connection.accept_bi().await.ok()?;
            let (writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
            let hello = reader.receive_known::<ToQueue>().await;
            Some((connection, writer, reader, hello))
        };
        let Ok(Some((connection, writer, reader, hello))) =
            tokio::time::timeout(HELLO_WITHIN, greeting).await
        else {
            return pass(&self.queue, NoteRefused { nonsense: false }).await;
        };
        match hello {
            Ok(Some(ToQueue::Hello(hello))) => {
                self.join(connection, writer, reader, hello).await;
            }
            Ok(_) | Err(_) => {
                pass(&self.queue, NoteRefused { nonsense: true }).await;
                close_with_farewell(connection, writer, SessionEnd::Nonsense, false).await;
            }
        }
    }

    async fn join(
        self,
        connection: quinn::Connection,
        mut writer: FrameWriter,
        reader: FrameReader,
        hello: ShimHello,
    ) {
        let pid = hello.pid;
        let (end, ended) = oneshot::channel();
        let port = ShimPort { frames: Box::new(self.frames.clone()), end };
        let joined: Joined = match self.queue.send(Join { hello, port }).await {
            Ok(joined) => joined,
            Err(_) => Err(Farewell { why: SessionEnd::Stopping, again: true }),
        };
        match joined {
            Ok(OpenedSession { session, welcome, owner }) => {
                if writer.send(&ToShim::Welcome(welcome)).await.is_ok() {
                    let outbox = Rc::clone(&self.outbox);
                    let writing = write_frames(connection, writer, outbox);
                    let uid = owner.map_or_else(|| geteuid().as_raw(), |owner| owner.uid);
                    let process = SessionProcess { session, pid, uid };
                    tokio::join!(self.pass_reports(process, reader, ended), writing);
                } else {
                    pass(&self.queue, Leave { session, why: SessionEnd::Gone }).await;
                }
            }
            Err(Farewell { why, again }) => {
                tracing::info!(?why, pid, "a process was refused a session with the kernel queue");
                pass(&self.queue, NoteRefused { nonsense: false }).await;
                close_with_farewell(connection, writer, why, again).await;
            }
        }
    }

    /// Passes on what the process reports, until its session ends.
    async fn pass_reports(
        &self,
        process: SessionProcess,
        reader: FrameReader,
        ended: oneshot::Receiver<SessionEnd>,
    ) {
        let SessionProcess { session, pid, .. } = process;
        let watched = WatchedProcess::watch(pid);
        let why = tokio::select! {
            // The queue's answers come first: their end follows from them.
            biased;
            // A queue that was lost to a bug gives no reason. It is back at once.
            why = ended => why.unwrap_or(SessionEnd::Stopping),
            // The process is dead, so its unread records are worthless.
            () = watched.ended() => SessionEnd::Gone,
            () = self.outbox.closed() => self.outbox.end().unwrap_or(SessionEnd::Gone),
            why = self.read_records(process, reader) => why,
        };
        pass(&self.queue, Leave { session, why }).await;
        // The waiting frames are sent, and the farewell.
        self.outbox.close(why);
    }

    /// Reads records. One frame at a time waits for the queue, so that the others wait in the shim.
    async fn read_records(&self, process: SessionProcess, mut reader: FrameReader) -> SessionEnd {
        let SessionProcess { session, pid, uid } = process;
        // Ordinary again at the session's end.
        let mut raised: Option<SessionPriority> = None;
        loop {
            match reader.receive_known::<ToQueue>().await {
                Ok(Some(ToQueue::Records(records))) if records.len() <= RECORDS_MAX => {
                    let goes_on = self.queue.send(TakeRecords { session, records }).await;
                    if !goes_on.unwrap_or(false) {
                        return SessionEnd::Gone;
                    }
                }
                Ok(Some(ToQueue::SessionThread { thread })) if raised.is_none() => {
                    let priority = raise_priority(NamedThread { pid, thread, uid });
                    if !matches!(priority, SessionPriority::Ordinary) {
                        pass(&self.queue, NoteRaised { session }).await;
                    }
                    raised = Some(priority);
                }
                // A hello or a thread again, or more records than a frame may have.
                Ok(Some(
                    ToQueue::Hello(_) | ToQueue::Records(_) | ToQueue::SessionThread { .. },
                ))
                | Err(LinkError::Decode(_) | LinkError::Encode(_)) => {
                    pass(&self.queue, NoteRefused { nonsense: true }).await;
                    return SessionEnd::Nonsense;
                }
                Ok(None) | Err(LinkError::Broken(_)) => return SessionEnd::Gone,
            }
        }
    }
}

/// The process at the other end of a session.
#[derive(Clone, Copy)]
struct SessionProcess {
    session: SessionId,
    /// By its own word.
    pid: u32,
    /// The account of its attempt.
    uid: u32,
}

/// The priority of a session's thread.
enum SessionPriority {
    /// Raised until this is dropped.
    Raised {
        /// Restores the former priority.
        _until: RaisedThread,
    },
    /// The program was started with another priority on purpose.
    Own,
    /// It can't be raised.
    Ordinary,
}

/// Raises the priority of a session's thread. Without that, launches of this process wait longer on a busy machine.
fn raise_priority(named: NamedThread) -> SessionPriority {
    match RaisedThread::raise(named) {
        Ok(Some(until)) => SessionPriority::Raised { _until: until },
        Ok(None) => SessionPriority::Own,
        Err(error) => {
            tracing::info!(%error, pid = named.pid, "the thread of a session has ordinary priority");
            SessionPriority::Ordinary
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
