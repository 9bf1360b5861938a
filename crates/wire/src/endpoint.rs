//! A controller's side of the network: opened so that agents learn at once of its death.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use crate::tls::{Identity, TlsError};

/// An endpoint that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The identity can't be used.
    #[error(transparent)]
    Identity(#[from] TlsError),
    /// The address is taken, or not this machine's.
    #[error("can't listen on {address} (QUIC)")]
    Address {
        /// The address that can't be used.
        address: SocketAddr,
        /// What the system reported.
        #[source]
        cause: io::Error,
    },
}

/// Opens a controller's endpoint.
///
/// The secret by which peers accept that their connection is gone (RFC 9000, section 10.3) comes
/// from the private key. So a controller that was killed and started again answers their next
/// packet with a reset, and they connect again at once, instead of waiting for the silence to last.
///
/// # Errors
///
/// [`ListenError`].
pub fn listen(identity: &Identity, address: SocketAddr) -> Result<quinn::Endpoint, ListenError> {
    let refused = |cause| ListenError::Address { address, cause };
    let socket = UdpSocket::bind(address).map_err(refused)?;
    open(identity.server()?, identity.secret(), socket).map_err(refused)
}

/// Opens a controller's endpoint with other settings of TLS than its identity's own. The identity only gives
/// the secret of resets.
///
/// # Errors
///
/// [`ListenError`].
pub fn listen_with(
    identity: &Identity,
    server: quinn::ServerConfig,
    address: SocketAddr,
) -> Result<quinn::Endpoint, ListenError> {
    let refused = |cause| ListenError::Address { address, cause };
    let socket = UdpSocket::bind(address).map_err(refused)?;
    open(server, identity.secret(), socket).map_err(refused)
}

/// Opens an endpoint whose resets a later process with the same secret can send.
pub(crate) fn open(
    server: quinn::ServerConfig,
    secret: &[u8],
    socket: UdpSocket,
) -> io::Result<quinn::Endpoint> {
    let seed = [&b"tessera stateless reset"[..], secret].concat();
    let seed = ring::digest::digest(&ring::digest::SHA256, &seed);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, seed.as_ref());
    let mut config = quinn::EndpointConfig::new(Arc::new(key));
    // The default generator disowns the numbers that the former process gave out, and would keep
    // silent about them.
    config.cid_generator(|| Box::new(quinn_proto::RandomConnectionIdGenerator::default()));
    quinn::Endpoint::new(config, Some(server), socket, Arc::new(quinn::TokioRuntime))
}
