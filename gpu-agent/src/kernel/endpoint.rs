//! The endpoint's thread.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::thread::JoinHandle;

use tessera_wire::endpoint::ListenError;
use tessera_wire::kernel_identity::KernelIdentity;
use tessera_wire::tls::TlsError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::handle::EndpointHandle;
use super::registry::QueueRegistry;
use super::timer::Timer;
use super::{
    EVENTS_MAX, EndpointChannels, KernelEvent, KernelSettings, ORDERS_MAX, SharedNumbers, files,
    priority, session,
};

/// Most connections at once. A node has at most 7,168 sessions: 64 on each of 7 slices of 16 GPUs.
/// A quarter of that serves a full node and bounds the cost of a flood.
const CONNECTIONS_MAX: usize = 2_048;

/// The endpoint cannot start: the node has no kernel tier.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its certificate can't be loaded or created.
    #[error("cannot load or create the endpoint's certificate")]
    Identity(#[from] TlsError),
    /// It cannot listen on any port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A thread, timer or file cannot be created.
    #[error("cannot start the endpoint's thread")]
    System(#[from] io::Error),
}

/// The running endpoint. Dropping this stops it.
#[derive(Debug)]
pub struct Endpoint {
    /// The node's handle of it.
    pub handle: EndpointHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Endpoint {
    /// Ends all sessions, so that no shim waits for an answer.
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the endpoint's thread, on its previous port if that is free.
///
/// # Errors
///
/// [`StartError`].
pub fn start(
    settings: KernelSettings,
) -> Result<(Endpoint, mpsc::Receiver<KernelEvent>), StartError> {
    let identity = KernelIdentity::load_or_create(&files::folder(&settings.data))?;
    let fingerprint = identity.fingerprint();
    let (orders, received_orders) = mpsc::channel(ORDERS_MAX);
    let (events, received_events) = mpsc::channel(EVENTS_MAX);
    let (stop, stopping) = oneshot::channel();
    let numbers = SharedNumbers::default();
    let ports = EndpointChannels { orders: received_orders, events, numbers: numbers.clone() };
    let (ready, started) = std::sync::mpsc::channel();
    let own = settings.clone();
    let thread = std::thread::Builder::new().name("kernel-queue".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        priority::raise();
        let entered = runtime.enter();
        let opened = open_socket(&identity, &own)
            .and_then(|(endpoint, address)| Ok((endpoint, address, Rc::new(Timer::new()?))));
        drop(entered);
        match opened {
            Ok((endpoint, address, timer)) => {
                let _ = ready.send(Ok(address));
                supervise(&runtime, Work { endpoint, settings: own, ports, timer, stopping });
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    let address = started.recv().map_err(io::Error::other)??;
    tracing::info!(%address, shim = %settings.shim.display(), gates = %settings.gates.display(), "the kernel queue is listening");
    let handle = EndpointHandle { settings, address, fingerprint, orders, numbers };
    Ok((Endpoint { handle, stop: Some(stop), thread: Some(thread) }, received_events))
}

fn open_socket(
    identity: &KernelIdentity,
    settings: &KernelSettings,
) -> Result<(quinn::Endpoint, SocketAddr), StartError> {
    let on = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let kept = files::read_port(&settings.data).and_then(|port| {
        let opened = identity.listen(on(port));
        if let Err(error) = &opened {
            tracing::error!(%error, "the kernel queue's previous port is taken: running jobs lose their queue");
        }
        opened.ok()
    });
    let endpoint = match kept {
        Some(endpoint) => endpoint,
        None => identity.listen(on(0))?,
    };
    let address = endpoint.local_addr()?;
    files::write_port(&settings.data, address.port())?;
    Ok((endpoint, address))
}

/// What the thread works with. It outlives a bug in the work.
struct Work {
    endpoint: quinn::Endpoint,
    settings: KernelSettings,
    ports: EndpointChannels,
    timer: Rc<Timer>,
    stopping: oneshot::Receiver<()>,
}

/// Runs the endpoint, and again after a bug ended it: its sessions come back within a second, because shims
/// connect again. A bug in the queue of one slice does not get here ([`QueueRegistry`] catches it).
fn supervise(runtime: &tokio::runtime::Runtime, mut work: Work) {
    let mut restarts = 0;
    loop {
        // Dropped with all connections' tasks.
        let local = LocalSet::new();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            local.block_on(runtime, run(&mut work, restarts));
        }));
        if ended.is_ok() {
            return;
        }
        restarts += 1;
        tracing::error!(restarts, "a bug ended the kernel queue's thread: it starts again");
    }
}

async fn run(work: &mut Work, restarts: u64) {
    let Work { endpoint, settings, ports, timer, stopping } = work;
    let EndpointChannels { orders, events, numbers } = ports;
    let (events, numbers) = (events.clone(), numbers.clone());
    let registry = QueueRegistry::new(settings.clone(), events, numbers, Rc::clone(timer));
    let registry = Rc::new(RefCell::new(registry));
    if restarts > 0 {
        registry.borrow_mut().resume(restarts);
    }
    registry.borrow_mut().tick();
    loop {
        tokio::select! {
            // Orders are handled before connections, so that an admitted process is known.
            biased;
            _ = &mut *stopping => break,
            order = orders.recv() => match order {
                Some(order) => registry.borrow_mut().handle_order(order),
                None => break,
            },
            () = timer.wait() => registry.borrow_mut().tick(),
            incoming = endpoint.accept() => match incoming {
                Some(incoming) if endpoint.open_connections() < CONNECTIONS_MAX => {
                    tokio::task::spawn_local(session::serve(Rc::clone(&registry), incoming));
                }
                Some(incoming) => {
                    registry.borrow_mut().note_refused(false);
                    incoming.refuse();
                }
                None => break,
            },
        }
    }
    registry.borrow_mut().stop();
    // Sessions get a moment to send their last frames.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(300), endpoint.wait_idle()).await;
}
