//! The endpoint of a node: the planes of its GPUs, and what they share.

use std::sync::Arc;

use tessera_wire::kernel_identity::KernelIdentity;
use tokio::sync::mpsc;

use super::errors::StartError;
use super::handle::EndpointHandle;
use super::parts::PlaneShared;
use super::planes::GpuPlanes;
use super::{EVENTS_MAX, KernelEvent, KernelSettings, SharedNumbers, files};

/// The running endpoint. Dropping this stops it.
#[derive(Debug)]
pub struct Endpoint {
    /// The node's handle of it.
    pub handle: EndpointHandle,
}

impl Drop for Endpoint {
    /// Ends all sessions, so that no shim waits for an answer.
    fn drop(&mut self) {
        self.handle.planes.stop();
    }
}

/// Starts the endpoint. The threads of GPUs start when attempts are admitted to them.
///
/// # Errors
///
/// [`StartError`]: the node has no kernel tier.
pub fn start(
    settings: KernelSettings,
) -> Result<(Endpoint, mpsc::Receiver<KernelEvent>), StartError> {
    let identity = Arc::new(KernelIdentity::load_or_create(&files::folder(&settings.data))?);
    let (events, received_events) = mpsc::channel(EVENTS_MAX);
    let numbers = SharedNumbers::default();
    tracing::info!(shim = %settings.shim.display(), gates = %settings.gates.display(), "kernel-level sharing is on");
    let planes = GpuPlanes::new(PlaneShared { settings, identity, events, numbers });
    Ok((Endpoint { handle: EndpointHandle { planes: Arc::new(planes) } }, received_events))
}
