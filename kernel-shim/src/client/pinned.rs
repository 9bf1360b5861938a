//! TLS that trusts exactly one certificate: the agent's own, whose digest is in the environment.

use std::sync::Arc;
use std::time::Duration;

use tessera_wire::kernel_identity::{Fingerprint, pinned_client, transport_within_machine};
use tessera_wire::tls::TlsError;

/// Silence after which the connection counts as broken. On one machine no packet is lost, but a busy
/// machine may delay both sides.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1_000);
const KEEP_ALIVE: Duration = Duration::from_millis(250);
/// The initial estimate of a round trip on one machine.
const FIRST_RTT: Duration = Duration::from_millis(5);

/// Returns the client's settings for the endpoint whose certificate has this digest.
pub fn config(digest: [u8; 32]) -> Result<quinn::ClientConfig, TlsError> {
    let mut client = pinned_client(Fingerprint(digest))?;
    let mut transport = transport_within_machine();
    transport
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into().expect("a second is within QUIC's range")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(FIRST_RTT)
        .max_concurrent_bidi_streams(0_u32.into())
        .max_concurrent_uni_streams(0_u32.into());
    client.transport_config(Arc::new(transport));
    Ok(client)
}
