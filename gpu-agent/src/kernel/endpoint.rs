//! The endpoint's thread.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::thread::JoinHandle;

use tessera_wire::endpoint::ListenError;
use tessera_wire::kernel::identity::KernelIdentity;
use tessera_wire::tls::TlsError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::desk::Desk;
use super::hub::Hub;
use super::timer::Timer;
use super::{Board, EVENTS_MAX, KernelEvent, KernelSettings, ORDERS_MAX, Ports, files, session};

/// Most connections at once: each slice has 64 sessions, a GPU 7 slices, a node 16 GPUs at most
/// (7,168); a quarter of that is a full node's, and bounds what a flood costs.
const CONNECTIONS_MAX: usize = 2_048;

/// Why there is no endpoint: the node then has no kernel tier.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its certificate can't be had.
    #[error("the endpoint's certificate")]
    Identity(#[from] TlsError),
    /// No port of this machine can be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The kernel refuses a thread, a timer or a file.
    #[error("the endpoint's thread")]
    System(#[from] io::Error),
}

/// The endpoint, for as long as this is held.
#[derive(Debug)]
pub struct Endpoint {
    /// The node's way to it.
    pub desk: Desk,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Endpoint {
    /// Says good-bye to every shim, so that none waits for what will not come.
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the endpoint's thread, on the port that it had before if that can be had.
///
/// # Errors
///
/// [`StartError`].
pub fn start(
    settings: KernelSettings,
) -> Result<(Endpoint, mpsc::Receiver<KernelEvent>), StartError> {
    let identity = KernelIdentity::load_or_create(&files::folder(&settings.data))?;
    let fingerprint = identity.fingerprint();
    let (orders, obeyed) = mpsc::channel(ORDERS_MAX);
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let (stop, stopping) = oneshot::channel();
    let board = Board::default();
    let ports = Ports { orders: obeyed, events, board: board.clone() };
    let (ready, started) = std::sync::mpsc::channel();
    let own = settings.clone();
    let thread = std::thread::Builder::new().name("kernel-queue".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        let local = LocalSet::new();
        local.block_on(&runtime, async move {
            let opened = open(&identity, &own)
                .and_then(|(endpoint, address)| Ok((endpoint, address, Timer::new()?)));
            match opened {
                Ok((endpoint, address, timer)) => {
                    let _ = ready.send(Ok(address));
                    run(endpoint, own, ports, Rc::new(timer), stopping).await;
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
    })?;
    let address = started.recv().map_err(io::Error::other)??;
    tracing::info!(%address, shim = %settings.shim.display(), gates = %settings.gates.display(), "the kernel queue listens");
    let desk = Desk { settings, address, fingerprint, orders, board };
    Ok((Endpoint { desk, stop: Some(stop), thread: Some(thread) }, told))
}

fn open(
    identity: &KernelIdentity,
    settings: &KernelSettings,
) -> Result<(quinn::Endpoint, SocketAddr), StartError> {
    let on = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let kept = files::port(&settings.data).and_then(|port| {
        let opened = identity.listen(on(port));
        if let Err(error) = &opened {
            tracing::error!(%error, "the kernel queue's port is gone: jobs that run do without it");
        }
        opened.ok()
    });
    let endpoint = match kept {
        Some(endpoint) => endpoint,
        None => identity.listen(on(0))?,
    };
    let address = endpoint.local_addr()?;
    files::keep_port(&settings.data, address.port())?;
    Ok((endpoint, address))
}

async fn run(
    endpoint: quinn::Endpoint,
    settings: KernelSettings,
    ports: Ports,
    timer: Rc<Timer>,
    mut stopping: oneshot::Receiver<()>,
) {
    let Ports { mut orders, events, board } = ports;
    let hub = Rc::new(RefCell::new(Hub::new(settings, events, board, Rc::clone(&timer))));
    hub.borrow_mut().tick();
    loop {
        tokio::select! {
            // What was ordered before a process connects is known when it does.
            biased;
            _ = &mut stopping => break,
            order = orders.recv() => match order {
                Some(order) => hub.borrow_mut().obey(order),
                None => break,
            },
            () = timer.wait() => hub.borrow_mut().tick(),
            incoming = endpoint.accept() => match incoming {
                Some(incoming) if endpoint.open_connections() < CONNECTIONS_MAX => {
                    tokio::task::spawn_local(session::serve(Rc::clone(&hub), incoming));
                }
                Some(incoming) => {
                    hub.borrow_mut().note_refused(false);
                    incoming.refuse();
                }
                None => break,
            },
        }
    }
    hub.borrow_mut().stop();
    // Sessions write their good-byes; those that can't are cut off.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(300), endpoint.wait_idle()).await;
}
