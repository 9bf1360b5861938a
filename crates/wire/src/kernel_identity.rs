//! The identity of a kernel queue's endpoint: its own certificate, which shims pin, and the QUIC settings of both sides.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::endpoint::{ListenError, open};
use crate::tls::{self, TlsError};

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"tessera-kernel/1";
/// The name in the endpoint's certificate. Shims pin the certificate itself.
pub const SERVER_NAME: &str = "kernel-queue.tessera.internal";
const CERTIFICATE_FILE: &str = "endpoint.der";
/// The private key's file.
const KEY_FILE: &str = "endpoint.key";
/// Silence after which a connection counts as broken. A shim sends a record every third of a second,
/// and the end of its process is noticed long before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Data that a shim may have under way: four frames, 20 ms of a program at its fastest.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// A receiver acknowledges at once after so many packets, and fewer within 25 ms. Chosen: ten times
/// as few acknowledgements cost next to nothing.
const UNACKNOWLEDGED_MAX: u32 = 10;
/// The initial estimate of a round trip. Both ends are on one machine.
const INITIAL_RTT: Duration = Duration::from_millis(2);
/// Maximum number of handshakes at once: all processes of a full node start together.
const HANDSHAKES_MAX: usize = 1_024;

/// SHA-256 of an endpoint's certificate, by which shims identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

/// The text is not a fingerprint or token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits")]
pub struct BadHex;

/// Writes 32 bytes as 64 hexadecimal digits.
pub fn to_hex(bytes: &[u8; 32]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads 64 hexadecimal digits.
///
/// # Errors
///
/// [`BadHex`].
pub fn from_hex(text: &str) -> Result<[u8; 32], BadHex> {
    let digits = text.trim().as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BadHex);
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| BadHex)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| BadHex)?;
    }
    Ok(bytes)
}

/// The endpoint's certificate and key.
pub struct KernelIdentity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl std::fmt::Debug for KernelIdentity {
    /// Hides the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KernelIdentity").field(&self.fingerprint()).finish()
    }
}

impl KernelIdentity {
    /// Loads the identity in `folder`, or creates one there. It outlives the agent's process, so that
    /// the shims of running jobs trust the next agent.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the folder can't be written.
    pub fn load_or_create(folder: &Path) -> Result<Self, TlsError> {
        let (certificate, key) = (folder.join(CERTIFICATE_FILE), folder.join(KEY_FILE));
        if let (Ok(certificate), Ok(key)) = (fs::read(&certificate), fs::read(&key)) {
            let identity = Self { certificate: CertificateDer::from(certificate), key };
            if identity.server().is_ok() {
                return Ok(identity);
            }
        }
        let made = rcgen::generate_simple_self_signed(vec![SERVER_NAME.to_owned()])?;
        let identity =
            Self { certificate: made.cert.der().clone(), key: made.signing_key.serialize_der() };
        // The key is first: a certificate without its key is detected and replaced.
        tls::write_private(&key, &identity.key)?;
        tls::write_private(&certificate, &identity.certificate)?;
        Ok(identity)
    }

    /// Returns the fingerprint by which shims identify it.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.certificate)
    }

    /// Opens the endpoint on `address`.
    ///
    /// # Errors
    ///
    /// [`ListenError`].
    pub fn listen(&self, address: SocketAddr) -> Result<quinn::Endpoint, ListenError> {
        let refused = |cause| ListenError::Address { address, cause };
        let socket = UdpSocket::bind(address).map_err(refused)?;
        open(self.server()?, &self.key, socket).map_err(refused)
    }

    fn server(&self) -> Result<quinn::ServerConfig, TlsError> {
        let key = PrivateKeyDer::try_from(self.key.clone()).map_err(tls::refused)?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let quic = QuicServerConfig::try_from(tls).map_err(tls::refused)?;
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(quic));
        server.transport_config(transport());
        server.max_incoming(HANDSHAKES_MAX);
        Ok(server)
    }
}

/// Returns the settings of a shim: it trusts only the certificate with this fingerprint.
///
/// # Errors
///
/// [`TlsError`]: the cryptography refuses its own settings; run without a queue.
pub fn pinned_client(fingerprint: Fingerprint) -> Result<quinn::ClientConfig, TlsError> {
    let provider = provider();
    let verifier = Arc::new(PinnedVerifier { fingerprint, provider: Arc::clone(&provider) });
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let quic = QuicClientConfig::try_from(tls).map_err(tls::refused)?;
    let mut client = quinn::ClientConfig::new(Arc::new(quic));
    client.transport_config(transport());
    Ok(client)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    Fingerprint(sha256(certificate))
}

/// Returns the SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut digits = [0; 32];
    digits.copy_from_slice(digest.as_ref());
    digits
}

/// Returns the QUIC settings that both ends of a session share: packets between them never leave the machine.
///
/// No packet is lost on the way, so few acknowledgements are enough. They were a third of all packets.
pub fn transport_within_machine() -> quinn::TransportConfig {
    let mut acknowledgements = quinn::AckFrequencyConfig::default();
    acknowledgements.ack_eliciting_threshold(UNACKNOWLEDGED_MAX.into());
    let mut congestion = quinn::congestion::CubicConfig::default();
    congestion.initial_window(STREAM_WINDOW_BYTES.into());
    let mut transport = quinn::TransportConfig::default();
    transport
        .ack_frequency_config(Some(acknowledgements))
        .congestion_controller_factory(Arc::new(congestion));
    transport
}

fn transport() -> Arc<quinn::TransportConfig> {
    let mut transport = transport_within_machine();
    transport
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into().expect("3 s is within QUIC's range")))
        .max_concurrent_bidi_streams(1_u32.into())
        .max_concurrent_uni_streams(0_u32.into())
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .initial_rtt(INITIAL_RTT);
    Arc::new(transport)
}

/// Trusts one certificate.
#[derive(Debug)]
struct PinnedVerifier {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if fingerprint(certificate) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_the_same_the_next_time() {
        let folder = tempfile::tempdir().unwrap();

        let first = KernelIdentity::load_or_create(folder.path()).unwrap();
        let second = KernelIdentity::load_or_create(folder.path()).unwrap();

        assert_eq!(first.fingerprint(), second.fingerprint());
        assert!(pinned_client(first.fingerprint()).is_ok());
    }

    #[test]
    fn a_damaged_identity_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let first = KernelIdentity::load_or_create(folder.path()).unwrap();
        fs::write(folder.path().join(KEY_FILE), b"?").unwrap();

        let second = KernelIdentity::load_or_create(folder.path()).unwrap();

        assert_ne!(first.fingerprint(), second.fingerprint());
    }

    #[test]
    fn hexadecimal_digits_read_back_and_nothing_else_does() {
        let bytes = std::array::from_fn(|at| u8::try_from(at * 7).unwrap());
        assert_eq!(from_hex(&to_hex(&bytes)), Ok(bytes));

        for wrong in ["", "ab", &"g".repeat(64), &"é".repeat(32), &"+1".repeat(32)] {
            assert_eq!(from_hex(wrong), Err(BadHex), "{wrong}");
        }
    }
}
