//! What the thread of one GPU works with.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tessera_model::{AttemptId, GpuId};
use tessera_wire::kernel_identity::KernelIdentity;
use tokio::sync::{mpsc, oneshot};

use super::errors::StartError;
use super::{KernelEvent, KernelOrder, KernelSettings, SharedNumbers, files};

/// Most connections of one GPU at once. A GPU has at most 448 sessions: 64 on each of 7 slices.
pub const CONNECTIONS_MAX: usize = 512;

/// What the planes of all GPUs share.
#[derive(Clone, Debug)]
pub struct PlaneShared {
    /// The endpoint's settings.
    pub settings: KernelSettings,
    /// Its certificate.
    pub identity: Arc<KernelIdentity>,
    /// Takes events for the node.
    pub events: mpsc::Sender<KernelEvent>,
    /// Where the numbers are published.
    pub numbers: SharedNumbers,
}

/// What the thread of one GPU works with.
#[derive(Debug)]
pub struct PlaneParts {
    pub gpu: GpuId,
    /// The endpoint's settings.
    pub settings: KernelSettings,
    /// Its certificate.
    pub identity: Arc<KernelIdentity>,
    /// Orders from the node.
    pub orders: mpsc::Receiver<KernelOrder>,
    /// Attempts that are over. An attempt's admission is among the orders before its end is here.
    pub ends: mpsc::UnboundedReceiver<AttemptId>,
    /// Takes events for the node.
    pub events: mpsc::Sender<KernelEvent>,
    /// Where the numbers are published.
    pub numbers: SharedNumbers,
    /// Completes when the thread has to end.
    pub stopping: oneshot::Receiver<()>,
}

/// Opens the socket of a GPU. Must be called within a runtime.
///
/// # Errors
///
/// [`StartError`]: no port is free, or the data folder can't be written.
pub fn open_socket(parts: &PlaneParts) -> Result<(quinn::Endpoint, SocketAddr), StartError> {
    let (identity, data) = (&parts.identity, &parts.settings.data);
    let on = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let kept = files::read_port(data, &parts.gpu).and_then(|port| {
        let opened = identity.listen(on(port));
        if let Err(error) = &opened {
            tracing::error!(%error, gpu = %parts.gpu, "the previous port of a kernel queue is taken: running jobs lose their queue");
        }
        opened.ok()
    });
    let endpoint = match kept {
        Some(endpoint) => endpoint,
        None => identity.listen(on(0))?,
    };
    let address = endpoint.local_addr()?;
    files::write_port(data, &parts.gpu, address.port())?;
    Ok((endpoint, address))
}
