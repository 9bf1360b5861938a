//! The connection to the controller: made, kept, and made again. Knows frames, not what they
//! mean.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use rand::Rng as _;
use tessera_frames::cluster::ToAgent;
use tessera_model::backoff::{Backoff, FailureCount};
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tessera_wire::tls::{CONTROLLER_NAME, TlsError};
use tokio::sync::{mpsc, watch};

use crate::calls::CallListener;
use crate::certificate::{self, NodeCertificate};
use crate::logs;
use crate::messages::{LinkEvent, NodeInput};
use crate::outputs::OutputKeeper;

/// Pauses after a failed connection, before they are spread at random.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// How long the end of a connection may take.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_millis(200);
/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Frames that may wait for the network: every attempt's and GPU's report fits. If they don't, the
/// session is restarted with an inventory.
const QUEUE: usize = 16 * 1024;
/// Maximum number of frames in one write.
const WRITE_MAX: usize = 256;

/// Where the controller is.
#[derive(Clone, Debug)]
pub struct ControllerAddress {
    /// `host:port`; the host may be a name.
    pub address: String,
    /// The node's certificate, which changes while the agent runs.
    pub certificate: NodeCertificate,
    /// The data folder, for readers of output.
    pub data: PathBuf,
    /// The program that opens users' files as the users.
    pub launch: PathBuf,
    /// Knows what was removed of it.
    pub outputs: OutputKeeper,
    /// Where processes of jobs call; `None` if the socket could not be made.
    pub calls: Option<CallListener>,
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no address found")]
    Resolve(#[source] std::io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("no socket")]
    Socket(#[source] std::io::Error),
    #[error("can't connect")]
    Refused(#[from] quinn::ConnectError),
    #[error(transparent)]
    Broken(#[from] quinn::ConnectionError),
    #[error("the node's certificate can't be used")]
    Certificate(#[from] TlsError),
    #[error("no answer")]
    Timeout,
}

/// Keeps a connection to the controller until it is to stop. It then closes the connection in order, so
/// that the controller need not probe it before it welcomes a successor.
#[expect(
    clippy::disallowed_methods,
    reason = "the agents of a cluster must not repeat their connections at the same time"
)]
pub async fn run(
    controller: ControllerAddress,
    node: mpsc::Sender<NodeInput>,
    mut stop: watch::Receiver<bool>,
) {
    let mut failures = FailureCount::new(BACKOFF);
    let mut silent = false;
    while !node.is_closed() {
        match tokio::time::timeout(CONNECT_WITHIN, connect(&controller)).await {
            Ok(Ok((endpoint, connection))) => {
                tracing::info!(controller = controller.address, "connected");
                silent = false;
                let stopped = tokio::select! {
                    received = serve(&connection, &controller, &node) => {
                        if received {
                            failures.reset();
                        }
                        false
                    }
                    // An end by the other side is an end, too.
                    _ = stop.wait_for(|stop| *stop) => true,
                };
                // Why the controller ended it, if it did: a revoked certificate, for example.
                let reason = connection.close_reason().map(|reason| reason.to_string());
                connection.close(0_u32.into(), b"bye");
                // The peer should learn of the end now, not by silence.
                let _ = tokio::time::timeout(CLOSE_WITHIN, endpoint.wait_idle()).await;
                if stopped {
                    return;
                }
                tracing::warn!(controller = controller.address, reason, "disconnected");
                remark_expiry(&controller);
            }
            Ok(Err(error)) => log_failure(&controller, &error, &mut silent),
            Err(_) => log_failure(&controller, &ConnectError::Timeout, &mut silent),
        }
        let jitter = rand::rng().random_range(0.5..1.0);
        tokio::time::sleep(failures.count_failure().mul_f64(jitter)).await;
    }
}

/// Reports once, not every ten seconds, that the controller can't be reached.
fn log_failure(controller: &ControllerAddress, error: &ConnectError, silent: &mut bool) {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let address = &controller.address;
    if *silent {
        tracing::debug!(controller = address, %error, cause, "the controller can't be reached");
    } else {
        tracing::warn!(controller = address, %error, cause, "the controller can't be reached");
        remark_expiry(controller);
    }
    *silent = true;
}

/// A certificate that has expired is refused with an alert of TLS, which does not explain what to
/// do.
fn remark_expiry(controller: &ControllerAddress) {
    if controller.certificate.has_expired() {
        let node = &controller.certificate.node().name;
        tracing::error!(
            "the node's certificate has expired: run `tessera node invite {node}`, and the command that it \
             prints here with --replace"
        );
    }
}

async fn connect(
    controller: &ControllerAddress,
) -> Result<(quinn::Endpoint, quinn::Connection), ConnectError> {
    let mut last = ConnectError::NoAddress;
    let found = tokio::net::lookup_host(&controller.address).await;
    for address in found.map_err(ConnectError::Resolve)? {
        match connect_to(controller, address).await {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect_to(
    controller: &ControllerAddress,
    address: SocketAddr,
) -> Result<(quinn::Endpoint, quinn::Connection), ConnectError> {
    let endpoint = quinn::Endpoint::client(local_for(address)).map_err(ConnectError::Socket)?;
    let tls = controller.certificate.client()?;
    let connection = endpoint.connect_with(tls, address, CONTROLLER_NAME)?.await?;
    Ok((endpoint, connection))
}

/// Returns the address from which another one is reached: any of the same kind.
pub(crate) fn local_for(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Serves one connection; returns whether the controller ever reported anything.
async fn serve(
    connection: &quinn::Connection,
    controller: &ControllerAddress,
    node: &mpsc::Sender<NodeInput>,
) -> bool {
    let Ok((sender, receiver)) = connection.open_bi().await else { return false };
    let (port, frames) = mpsc::channel(QUEUE);
    let local = address_towards(connection.remote_address());
    if node.send(NodeInput::Link(LinkEvent::Up { port, local })).await.is_err() {
        return false;
    }
    let mut received = false;
    let ended = tokio::select! {
        ended = read(FrameReader::new(receiver), node, &mut received) => ended,
        ended = write(FrameWriter::new(sender), frames) => ended,
        () = logs::serve(connection, controller, node) => Ok(()),
        () = certificate::keep_fresh(connection, &controller.certificate) => Ok(()),
        () = carry_calls(connection, controller, node) => Ok(()),
    };
    if let Err(error) = ended {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(%error, cause, "the session ended");
    }
    // Fails only when the agent itself is going down.
    let _ = node.send(NodeInput::Link(LinkEvent::Down)).await;
    received
}

async fn carry_calls(
    connection: &quinn::Connection,
    controller: &ControllerAddress,
    node: &mpsc::Sender<NodeInput>,
) {
    match &controller.calls {
        Some(calls) => calls.serve(connection, node).await,
        None => std::future::pending().await,
    }
}

/// Returns the address by which this machine talks to another one. Nothing is sent: the kernel
/// consults its routes.
fn address_towards(remote: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(remote).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

async fn read(
    mut reader: FrameReader,
    node: &mpsc::Sender<NodeInput>,
    received: &mut bool,
) -> Result<(), LinkError> {
    while let Some(frame) = reader.receive::<ToAgent>().await? {
        *received = *received || matches!(frame, ToAgent::Welcome(_));
        if node.send(NodeInput::Link(LinkEvent::Frame(frame))).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn write(
    mut writer: FrameWriter,
    mut frames: mpsc::Receiver<tessera_frames::cluster::ToController>,
) -> Result<(), LinkError> {
    let mut batch = Vec::with_capacity(WRITE_MAX);
    while frames.recv_many(&mut batch, WRITE_MAX).await > 0 {
        for frame in batch.drain(..) {
            writer.queue(&frame)?;
        }
        writer.flush().await?;
    }
    writer.finish();
    Ok(())
}
