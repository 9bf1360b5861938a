//! The thread of one GPU: an actix system with the GPU's socket, its queue actor and its shims' actors.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use actix::{Addr, System};

use super::queue::{EndSessions, NoteRefused, Obey, QueueActor, pass};
use super::shim::ShimActor;
use crate::kernel::KernelOrder;
use crate::kernel::errors::StartError;
use crate::kernel::parts::{self, CONNECTIONS_MAX, PlaneParts};
use crate::kernel::priority;
use crate::kernel::queues::QueueContext;
use crate::kernel::timer::Timer;

/// How long sessions have to send their last frames.
const LAST_FRAMES_WITHIN: Duration = Duration::from_millis(300);

/// Runs a GPU's queues on this thread until they are stopped. `ready` learns where they listen.
pub fn run(mut plane: PlaneParts, ready: &Sender<Result<SocketAddr, StartError>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error.into()))),
    };
    priority::raise();
    let system = System::with_tokio_rt(|| runtime);
    let (endpoint, queue) = match system.block_on(open(&plane)) {
        Ok((endpoint, queue, address)) => {
            let _ = ready.send(Ok(address));
            (endpoint, queue)
        }
        Err(error) => return drop(ready.send(Err(error))),
    };
    // A bug in here does not end the actors.
    while catch_unwind(AssertUnwindSafe(|| system.block_on(serve(&mut plane, &endpoint, &queue))))
        .is_err()
    {
        tracing::error!(gpu = %plane.gpu, "a bug ended the loop of a GPU's kernel queues: it starts again");
    }
}

/// Opens the socket and starts the queue actor.
async fn open(
    plane: &PlaneParts,
) -> Result<(quinn::Endpoint, Addr<QueueActor>, SocketAddr), StartError> {
    let (endpoint, address) = parts::open_socket(plane)?;
    let timer = Timer::new().map_err(io::Error::other)?;
    let context = QueueContext {
        gpu: plane.gpu.clone(),
        settings: plane.settings.clone(),
        events: plane.events.clone(),
        numbers: plane.numbers.clone(),
        timer: Rc::new(timer),
    };
    Ok((endpoint, QueueActor::begin(context), address))
}

async fn serve(plane: &mut PlaneParts, endpoint: &quinn::Endpoint, queue: &Addr<QueueActor>) {
    loop {
        tokio::select! {
            // Orders are handled before connections, so that an admitted process is known.
            biased;
            _ = &mut plane.stopping => break,
            order = plane.orders.recv() => match order {
                Some(order) => pass(queue, Obey(order)).await,
                None => break,
            },
            Some(attempt) = plane.ends.recv() => {
                // Its admission may have come since the look at the orders.
                while let Ok(order) = plane.orders.try_recv() {
                    pass(queue, Obey(order)).await;
                }
                pass(queue, Obey(KernelOrder::Ended(attempt))).await;
            }
            incoming = endpoint.accept() => match incoming {
                Some(incoming) if endpoint.open_connections() < CONNECTIONS_MAX => {
                    ShimActor::begin(queue.clone(), incoming);
                }
                Some(incoming) => {
                    pass(queue, NoteRefused { nonsense: false }).await;
                    incoming.refuse();
                }
                None => break,
            },
        }
    }
    pass(queue, EndSessions).await;
    let _ = tokio::time::timeout(LAST_FRAMES_WITHIN, endpoint.wait_idle()).await;
}
