//! The kernel plane of one GPU, as the rest of the agent sees it: a thread that accepts orders.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tessera_model::{AttemptId, GpuId};
use tokio::sync::{mpsc, oneshot};

use super::actors::system;
use super::errors::StartError;
use super::parts::{PlaneParts, PlaneShared};
use super::{KernelOrder, ORDERS_MAX};

/// The running plane of one GPU.
#[derive(Debug)]
pub struct GpuPlane {
    /// Where its shims connect.
    pub address: SocketAddr,
    /// Takes its orders.
    pub orders: mpsc::Sender<KernelOrder>,
    /// Takes the attempts that are over. Each one was admitted, so their number is limited by that.
    pub ends: mpsc::UnboundedSender<AttemptId>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl GpuPlane {
    /// Starts the thread of a GPU, on its previous port if that is free.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(gpu: &GpuId, shared: &PlaneShared) -> Result<Self, StartError> {
        let (orders, received_orders) = mpsc::channel(ORDERS_MAX);
        let (ends, received_ends) = mpsc::unbounded_channel();
        let (stop, stopping) = oneshot::channel();
        let parts = PlaneParts {
            gpu: gpu.clone(),
            settings: shared.settings.clone(),
            identity: Arc::clone(&shared.identity),
            orders: received_orders,
            ends: received_ends,
            events: shared.events.clone(),
            numbers: shared.numbers.clone(),
            stopping,
        };
        let (ready, started) = std::sync::mpsc::channel();
        let builder = std::thread::Builder::new().name("kernel-queue".to_owned());
        let thread = builder.spawn(move || system::run(parts, &ready))?;
        let address = started.recv().map_err(io::Error::other)??;
        tracing::info!(%gpu, %address, "the kernel queues of a GPU are listening");
        Ok(Self { address, orders, ends, stop, thread })
    }

    /// Has the thread end all sessions, so that no shim waits for an answer. Returns the ending thread.
    pub fn stop(self) -> JoinHandle<()> {
        let _ = self.stop.send(());
        self.thread
    }
}
