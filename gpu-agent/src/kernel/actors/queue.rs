//! The actor that owns the queues of one GPU.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use actix::{
    Actor, Addr, AsyncContext as _, Context, Handler, MailboxError, Message, MessageResult,
    StreamHandler,
};
use futures_util::stream;
use tessera_frames::kernel::{Farewell, SessionEnd, ShimHello, ShimRecord};
use tessera_kernel_queue::SessionId;

use crate::kernel::KernelOrder;
use crate::kernel::parts::CONNECTIONS_MAX;
use crate::kernel::queues::{GpuQueues, OpenedSession, QueueContext, ShimPort};
use crate::kernel::timer::Timer;

/// Messages that may wait: each connection sends one at a time, and so does the node.
const MAILBOX: usize = CONNECTIONS_MAX + 1;

/// Owns the queues of one GPU's slices, with their gate pages and their timer.
pub struct QueueActor {
    queues: GpuQueues,
    timer: Rc<Timer>,
}

/// A session, or why there is none.
pub type Joined = Result<OpenedSession, Farewell>;

/// A process requests a session.
#[derive(Message)]
#[rtype(result = "Joined")]
pub struct Join {
    /// Its first frame.
    pub hello: ShimHello,
    /// The way to its shim.
    pub port: ShimPort,
}

/// Records of a session. The answer is whether the session goes on.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct TakeRecords {
    pub session: SessionId,
    /// Its records in their order.
    pub records: Vec<ShimRecord>,
}

/// A session ends.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Leave {
    pub session: SessionId,
    /// Why it ends.
    pub why: SessionEnd,
}

/// A connection was refused.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct NoteRefused {
    /// Whether it sent invalid frames.
    pub nonsense: bool,
}

/// The thread of a session has raised priority.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct NoteRaised {
    pub session: SessionId,
}

/// An order from the node.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Obey(pub KernelOrder);

/// The agent stops. Its jobs run on.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct EndSessions;

/// The timer has expired.
struct Expired;

impl QueueActor {
    /// Starts the actor on this thread.
    pub fn begin(context: QueueContext) -> Addr<Self> {
        let timer = Rc::clone(&context.timer);
        Self { queues: GpuQueues::new(context), timer }.start()
    }

    /// Runs code of the queues. If a bug ends it outside of one slice's queue, all queues of the GPU start again.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut GpuQueues) -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut self.queues))).ok();
        if done.is_none() {
            self.queues.start_again();
        }
        done
    }
}

impl Actor for QueueActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let timer = Rc::clone(&self.timer);
        ctx.add_stream(stream::unfold(timer, |timer| async move {
            timer.wait().await;
            Some((Expired, timer))
        }));
        self.guarded(GpuQueues::tick);
    }
}

impl StreamHandler<Expired> for QueueActor {
    fn handle(&mut self, _: Expired, _: &mut Self::Context) {
        self.guarded(GpuQueues::tick);
    }
}

impl Handler<Join> for QueueActor {
    type Result = MessageResult<Join>;

    fn handle(&mut self, Join { hello, port }: Join, _: &mut Self::Context) -> Self::Result {
        let joined = self.guarded(|queues| queues.add_session(&hello, port));
        let lost = Farewell { why: SessionEnd::Stopping, again: true };
        MessageResult(joined.unwrap_or(Err(lost)))
    }
}

impl Handler<TakeRecords> for QueueActor {
    type Result = bool;

    fn handle(&mut self, message: TakeRecords, _: &mut Self::Context) -> bool {
        let TakeRecords { session, records } = message;
        self.guarded(|queues| queues.add_records(session, records)).unwrap_or(false)
    }
}

impl Handler<Leave> for QueueActor {
    type Result = ();

    fn handle(&mut self, Leave { session, why }: Leave, _: &mut Self::Context) {
        self.guarded(|queues| queues.end_session(session, why));
    }
}

impl Handler<NoteRefused> for QueueActor {
    type Result = ();

    fn handle(&mut self, message: NoteRefused, _: &mut Self::Context) {
        self.queues.note_refused(message.nonsense);
    }
}

impl Handler<NoteRaised> for QueueActor {
    type Result = ();

    fn handle(&mut self, NoteRaised { session }: NoteRaised, _: &mut Self::Context) {
        self.guarded(|queues| queues.note_raised(session));
    }
}

impl Handler<Obey> for QueueActor {
    type Result = ();

    fn handle(&mut self, Obey(order): Obey, _: &mut Self::Context) {
        self.guarded(|queues| queues.handle_order(order));
    }
}

impl Handler<EndSessions> for QueueActor {
    type Result = ();

    fn handle(&mut self, _: EndSessions, _: &mut Self::Context) {
        self.guarded(GpuQueues::stop);
    }
}

/// Sends a message that only a stopped actor refuses. Then there is nothing left to do.
pub async fn pass<M>(queue: &Addr<QueueActor>, message: M)
where
    M: Message<Result = ()> + Send + 'static,
    QueueActor: Handler<M>,
{
    let _: Result<(), MailboxError> = queue.send(message).await;
}
