//! TLS to exactly one certificate: the agent's own, whose digest is in the environment. There is
//! no authority and no name that matters.

use std::sync::Arc;
use std::time::Duration;

use tessera_wire::kernel::identity::{Fingerprint, pinned_client};
use tessera_wire::tls::TlsError;

/// Silence after which the connection counts as broken. On one machine nothing is lost; this is
/// what a busy one may take to let both sides run.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1_000);
const KEEP_ALIVE: Duration = Duration::from_millis(250);
/// What a packet takes there and back before it was measured: on one machine.
const FIRST_RTT: Duration = Duration::from_millis(5);

/// Returns how to connect to the endpoint whose certificate has this digest, with a program's
/// patience.
pub fn config(digest: [u8; 32]) -> Result<quinn::ClientConfig, TlsError> {
    let mut client = pinned_client(Fingerprint(digest))?;
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into().expect("a second is within QUIC's range")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(FIRST_RTT)
        .max_concurrent_bidi_streams(0_u32.into())
        .max_concurrent_uni_streams(0_u32.into());
    client.transport_config(Arc::new(transport));
    Ok(client)
}
