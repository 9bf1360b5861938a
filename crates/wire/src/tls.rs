//! The cluster's certificates: one authority, one leaf a controller and a node, mutual TLS 1.3.
//!
//! A node's identity is the URI in its certificate, `spiffe://tessera/node/<uuid>`; its name is
//! the common name. Nothing in a frame can change either.

use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tessera_model::{NodeId, NodeIdentity};
use time::OffsetDateTime;

use crate::kernel_identity::{sha256, to_hex};
use crate::replace::{finish_replacing, replace_together};

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"tessera-agent/1";
/// The name in a controller's certificate, which agents require.
pub const CONTROLLER_NAME: &str = "controller.tessera";
const NODE_URI: &str = "spiffe://tessera/node/";
const CONTROLLER_URI: &str = "spiffe://tessera/controller";

/// The protocol's name for machines that join.
pub const JOIN_ALPN: &[u8] = b"tessera-join/1";
/// How long a node's certificate lasts by default: agents renew it over the wire.
pub const NODE_LASTS: Duration = Duration::from_secs(14 * 86_400);

/// Clocks may differ by this much before a fresh certificate is refused.
pub(crate) const BACKDATED: time::Duration = time::Duration::minutes(5);
const AUTHORITY_LASTS: time::Duration = time::Duration::days(3_650);
/// A controller's certificate on disk, for the time in which the authority's key is not there.
const LEAF_LASTS: time::Duration = time::Duration::days(365);

/// Silence after which a connection counts as broken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Well below the idle timeout, so that one lost packet breaks nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// Streams that a peer may hold open at once: the control stream, readers of output, and interactive sessions with
/// their forwarded connections.
const STREAMS_MAX: u32 = 512;
/// Data that a peer may have under way on one stream: 16 frames.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Handshakes that wait to be looked at.
const HANDSHAKES_MAX: usize = 64;
/// Data of such handshakes that is kept: some packets of each.
const HANDSHAKE_BYTES_MAX: u64 = 1024 * 1024;
/// The files of an identity: the key is written first, and without the others it counts as not
/// written.
const IDENTITY_FILES: [&str; 3] = ["key.pem", "cert.pem", "ca.pem"];

/// A certificate authority, certificate or key that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of the identity folder is missing or unreadable.
    #[error("can't read {path}")]
    Read {
        /// The file.
        path: String,
        /// What the system reported.
        #[source]
        cause: std::io::Error,
    },
    /// A file could not be written.
    #[error("can't write {path}")]
    Write {
        /// The file.
        path: String,
        /// What the system reported.
        #[source]
        cause: std::io::Error,
    },
    /// A file holds something else than it should.
    #[error("{path} is no {expected}")]
    Malformed {
        /// The file.
        path: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A certificate could not be made.
    #[error("can't make a certificate")]
    Issue(#[from] rcgen::Error),
    /// The TLS library refused the certificate or key.
    #[error("the certificate or key can't be used")]
    Refused(#[from] rustls::Error),
    /// A peer's certificate names no node of a cluster.
    #[error("the peer's certificate names no node")]
    NoNode,
}

/// The cluster's authority, which signs every certificate.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key and its authority, all as PEM text.
#[derive(Clone)]
pub struct Identity {
    authority: String,
    certificate: String,
    key: String,
}

/// When an identity stops to be accepted, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateExpiry {
    /// Of the certificate itself.
    pub own: i64,
    /// Of the authority's certificate.
    pub authority: i64,
}

fn expiry_of(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not reach a log.
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority.
    ///
    /// # Errors
    ///
    /// [`TlsError::Issue`] if the system gives no randomness.
    pub fn create(now: OffsetDateTime) -> Result<Self, TlsError> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        // Two authorities of one cluster must not share a name: some libraries look an issuer up by it.
        let mark = to_hex(&sha256(key.public_key_raw()));
        params.distinguished_name = common_name(&format!("Tessera cluster {}", &mark[..8]));
        params.not_before = now - BACKDATED;
        params.not_after = now + AUTHORITY_LASTS;
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, key)? })
    }

    /// Returns its certificate and its key as PEM text.
    pub(crate) fn texts(&self) -> (String, String) {
        (self.issuer.pem(), self.issuer.key().serialize_pem())
    }

    /// Writes the authority to `ca.pem` and `ca.key` in a folder.
    ///
    /// # Errors
    ///
    /// [`TlsError::Write`].
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        write_private(&folder.join("ca.key"), self.issuer.key().serialize_pem().as_bytes())?;
        write_private(&folder.join("ca.pem"), self.issuer.pem().as_bytes())
    }

    /// Signs a controller's certificate.
    ///
    /// # Errors
    ///
    /// [`TlsError::Issue`].
    pub fn controller(&self, now: OffsetDateTime) -> Result<Identity, TlsError> {
        issue(controller_params()?, (now, LEAF_LASTS), &self.issuer, self.issuer.pem())
    }
}

/// Returns the content of a controller's certificate.
pub(crate) fn controller_params() -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(vec![CONTROLLER_NAME.to_owned()])?;
    params.subject_alt_names.push(SanType::URI(CONTROLLER_URI.try_into()?));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.distinguished_name = common_name(CONTROLLER_NAME);
    Ok(params)
}

/// Returns the content of a node's certificate.
pub(crate) fn node_params(node: &NodeIdentity) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::default();
    let uri = format!("{NODE_URI}{}", node.id.as_uuid());
    params.subject_alt_names.push(SanType::URI(uri.as_str().try_into()?));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.distinguished_name = common_name(node.name.as_str());
    Ok(params)
}

/// Returns the content of the certificate of a controller's REST API for these names.
pub(crate) fn rest_params(names: &[String]) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(names)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Not the authority's own name: some libraries then take the leaf for self-signed.
    params.distinguished_name = common_name("Tessera REST API");
    Ok(params)
}

/// Reads the authority in a folder, to sign with it.
pub(crate) fn read_issuer(folder: &Path) -> Result<(Issuer<'static, KeyPair>, String), TlsError> {
    let certificate = read(&folder.join("ca.pem"))?;
    let key_path = folder.join("ca.key");
    let key = KeyPair::from_pem(&read(&key_path)?).map_err(|_| TlsError::Malformed {
        path: key_path.display().to_string(),
        expected: "private key",
    })?;
    // The first one signs; others are also trusted for a while.
    Ok((Issuer::from_ca_cert_pem(&certificate, key)?, certificate))
}

/// Signs a node's certificate with the authority in a folder.
///
/// # Errors
///
/// [`TlsError`]: the folder holds no authority, or no certificate could be made.
pub fn issue_node(
    authority: &Path,
    node: &NodeIdentity,
    now: OffsetDateTime,
) -> Result<Identity, TlsError> {
    let (issuer, authorities) = read_issuer(authority)?;
    let lasts = time::Duration::try_from(NODE_LASTS).unwrap_or(LEAF_LASTS);
    issue(node_params(node)?, (now, lasts), &issuer, authorities)
}

/// Reads a certificate chain and its key for a controller's REST API.
///
/// # Errors
///
/// [`TlsError`]: a file can't be read, or does not hold what it should.
pub fn rest_identity_from_files(certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
    let identity =
        Identity { authority: String::new(), certificate: read(certificate)?, key: read(key)? };
    if identity.chain()?.is_empty() {
        return Err(TlsError::Malformed {
            path: certificate.display().to_string(),
            expected: "certificate chain",
        });
    }
    Ok(identity)
}

/// Signs a certificate with a new key that lasts from now on for some time.
pub(crate) fn issue<S: rcgen::SigningKey>(
    mut params: CertificateParams,
    (now, lasts): (OffsetDateTime, time::Duration),
    issuer: &Issuer<'_, S>,
    authority: String,
) -> Result<Identity, TlsError> {
    let key = KeyPair::generate()?;
    params.not_before = now - BACKDATED;
    params.not_after = now + lasts;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = params.signed_by(&key, issuer)?;
    Ok(Identity { authority, certificate: certificate.pem(), key: key.serialize_pem() })
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

impl Identity {
    /// Puts an identity together from PEM texts.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the certificate does not belong to the key, or a text is malformed.
    pub fn from_texts(
        authorities: String,
        certificate: String,
        key: String,
    ) -> Result<Self, TlsError> {
        let identity = Self { authority: authorities, certificate, key };
        identity.roots()?;
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(identity.chain()?, identity.private_key()?, &provider)?;
        Ok(identity)
    }

    /// Writes `ca.pem`, `cert.pem` and `key.pem` into a folder, the key readable by its owner
    /// only. Authorities that are there stay.
    ///
    /// # Errors
    ///
    /// [`TlsError::Write`].
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        write_private(&folder.join("key.pem"), self.key.as_bytes())?;
        write_private(&folder.join("cert.pem"), self.certificate.as_bytes())?;
        let authority = folder.join("ca.pem");
        if authority.exists() {
            Ok(())
        } else {
            write_private(&authority, self.authority.as_bytes())
        }
    }

    /// Replaces the identity in a folder by this one: after a crash either the old one or this one is there.
    ///
    /// # Errors
    ///
    /// [`TlsError::Write`].
    pub fn replace(&self, folder: &Path) -> Result<(), TlsError> {
        let [key, certificate, authorities] = IDENTITY_FILES;
        replace_together(
            folder,
            &[(key, &self.key), (certificate, &self.certificate), (authorities, &self.authority)],
        )
    }

    /// Reads what [`Self::save`] or [`Self::replace`] wrote.
    ///
    /// # Errors
    ///
    /// [`TlsError::Read`].
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        finish_replacing(folder, &IDENTITY_FILES)?;
        Ok(Self {
            authority: read(&folder.join("ca.pem"))?,
            certificate: read(&folder.join("cert.pem"))?,
            key: read(&folder.join("key.pem"))?,
        })
    }

    /// Returns the same identity with other authorities to trust (PEM).
    ///
    /// # Errors
    ///
    /// [`TlsError::Malformed`]: there is none in the text.
    pub fn trusting(&self, authorities: String) -> Result<Self, TlsError> {
        let identity = Self { authority: authorities, ..self.clone() };
        if identity.roots()?.is_empty() {
            return Err(malformed("ca.pem", "certificate"));
        }
        Ok(identity)
    }

    /// Returns the SHA-256 of the authorities' text.
    pub fn authorities_digest(&self) -> [u8; 32] {
        sha256(self.authority.as_bytes())
    }

    /// Returns the serial number and the times of the certificate.
    ///
    /// # Errors
    ///
    /// [`TlsError::Malformed`].
    pub fn facts(&self) -> Result<LeafFacts, TlsError> {
        let chain = self.chain()?;
        let leaf = chain.first().ok_or_else(|| malformed("cert.pem", "certificate"))?;
        LeafFacts::of(leaf).ok_or_else(|| malformed("cert.pem", "certificate"))
    }

    /// Returns a controller's side of the mutual TLS: only nodes of this cluster get in.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the identity can't be used.
    pub fn server(&self) -> Result<quinn::ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            self.roots()?,
            Arc::clone(&provider),
        )
        .build()
        .map_err(refused)?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain()?, self.private_key()?)?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        quic_server(tls)
    }

    /// Returns the REST API's side of TLS: callers prove their names by tokens, not by certificates.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the identity can't be used.
    pub fn rest_server(&self) -> Result<rustls::ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(self.chain()?, self.private_key()?)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(tls)
    }

    /// Returns the REST API's side of TLS, and the way to replace its certificate while it is served.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the identity can't be used.
    pub fn renewable_rest_server(
        &self,
    ) -> Result<(rustls::ServerConfig, RenewableCertificate), TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = Arc::new(RwLock::new(Arc::new(self.certified(&provider)?)));
        let renewable = RenewableCertificate(key);
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(renewable.clone()));
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok((tls, renewable))
    }

    /// Returns an agent's side of the mutual TLS.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the identity can't be used.
    pub fn client(&self) -> Result<quinn::ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(self.chain()?, self.private_key()?)?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let quic = QuicClientConfig::try_from(tls).map_err(refused)?;
        let mut client = quinn::ClientConfig::new(Arc::new(quic));
        client.transport_config(transport());
        Ok(client)
    }

    /// Returns the node that this identity is of.
    ///
    /// # Errors
    ///
    /// [`TlsError::NoNode`] for a controller's identity.
    pub fn node(&self) -> Result<NodeIdentity, TlsError> {
        node_of(self.chain()?.first().ok_or(TlsError::NoNode)?)
    }

    /// Returns when this certificate and its authority's expire, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// [`TlsError::Malformed`].
    pub fn expiry(&self) -> Result<CertificateExpiry, TlsError> {
        let own = self.chain()?;
        let own = own.first().ok_or_else(|| malformed("cert.pem", "certificate"))?;
        let authority = CertificateDer::from_pem_slice(self.authority.as_bytes())
            .map_err(|_| malformed("ca.pem", "certificate"))?;
        Ok(CertificateExpiry {
            own: expiry_of(own).ok_or_else(|| malformed("cert.pem", "certificate"))?,
            authority: expiry_of(&authority).ok_or_else(|| malformed("ca.pem", "certificate"))?,
        })
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, TlsError> {
        roots_of(&self.authority)
    }

    /// Returns the certificate and its key as the TLS library takes them.
    pub(crate) fn certified(
        &self,
        provider: &rustls::crypto::CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        Ok(CertifiedKey::from_der(self.chain()?, self.private_key()?, provider)?)
    }

    /// Returns authorities, certificate and key (PEM).
    pub(crate) fn texts(&self) -> [&str; 3] {
        [&self.authority, &self.certificate, &self.key]
    }

    /// Returns a secret that only the holder of the private key knows, from which others are derived.
    pub(crate) fn secret(&self) -> &[u8] {
        self.key.as_bytes()
    }

    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| malformed("cert.pem", "certificate"))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|_| malformed("key.pem", "private key"))
    }
}

/// A certificate that is replaced while it is served: connections that exist keep the former one.
#[derive(Clone, Debug)]
pub struct RenewableCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl RenewableCertificate {
    /// Replaces it for all connections to come.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the identity can't be used; the former one stays.
    pub fn replace(&self, identity: &Identity) -> Result<(), TlsError> {
        let key = identity.certified(&rustls::crypto::ring::default_provider())?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
        Ok(())
    }
}

impl ResolvesServerCert for RenewableCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Returns the node at the other end of a connection.
///
/// # Errors
///
/// [`TlsError::NoNode`] if its certificate is not a node's.
pub fn peer_node(connection: &quinn::Connection) -> Result<NodeIdentity, TlsError> {
    let chain = connection
        .peer_identity()
        .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(TlsError::NoNode)?;
    node_of(chain.first().ok_or(TlsError::NoNode)?)
}

fn node_of(certificate: &CertificateDer<'_>) -> Result<NodeIdentity, TlsError> {
    use x509_parser::extensions::GeneralName;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|_| TlsError::NoNode)?;
    let names = parsed.subject_alternative_name().ok().flatten().ok_or(TlsError::NoNode)?;
    let id = names
        .value
        .general_names
        .iter()
        .find_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(NODE_URI),
            _ => None,
        })
        .and_then(|uuid| uuid::Uuid::try_parse(uuid).ok())
        .map(NodeId::from_uuid)
        .ok_or(TlsError::NoNode)?;
    let name = parsed
        .subject()
        .iter_common_name()
        .next()
        .and_then(|cn| cn.as_str().ok())
        .and_then(|cn| cn.parse().ok())
        .ok_or(TlsError::NoNode)?;
    Ok(NodeIdentity { id, name })
}

/// The certificate at the other end of a connection.
///
/// # Errors
///
/// [`TlsError::NoNode`] if there is none.
pub fn peer_leaf(connection: &quinn::Connection) -> Result<LeafFacts, TlsError> {
    let chain = connection
        .peer_identity()
        .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(TlsError::NoNode)?;
    chain.first().and_then(LeafFacts::of).ok_or(TlsError::NoNode)
}

/// Returns whether the peer speaks the protocol for joining.
pub fn peer_joins(connection: &quinn::Connection) -> bool {
    connection
        .handshake_data()
        .and_then(|any| any.downcast::<quinn::crypto::rustls::HandshakeData>().ok())
        .is_some_and(|data| data.protocol.as_deref() == Some(JOIN_ALPN))
}

/// What distinguishes certificates, and when one is valid, in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafFacts {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// When it was issued.
    pub issued: i64,
    /// When it expires.
    pub expires: i64,
    /// SHA-256 of its public key.
    pub key: [u8; 32],
    /// The name of the authority that signed it.
    pub issuer: String,
}

impl LeafFacts {
    /// Reads them from a certificate; `None` if it is malformed.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let validity = parsed.validity();
        Some(Self {
            serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            issued: validity.not_before.timestamp() + BACKDATED.whole_seconds(),
            expires: validity.not_after.timestamp(),
            key: sha256(parsed.public_key().raw),
            issuer: parsed.issuer().to_string(),
        })
    }

    /// Returns when an agent requests the next certificate: after two thirds of the time that this one lasts.
    /// `spread` shifts that by up to a tenth of the time, in thousandths from -100 to 100, so that the
    /// nodes of a cluster do not do so at once.
    pub fn renew_at(&self, spread: i64) -> i64 {
        let lasts = (self.expires - self.issued).max(0);
        self.issued + lasts * 2 / 3 + lasts * spread.clamp(-100, 100) / 1_000
    }
}

/// A controller's side of QUIC with this TLS.
pub(crate) fn quic_server(mut tls: rustls::ServerConfig) -> Result<quinn::ServerConfig, TlsError> {
    // A resumed session brings its old certificate without a look at it: a revoked node would come back.
    tls.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    let quic = QuicServerConfig::try_from(tls).map_err(refused)?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(quic));
    server.transport_config(transport());
    // More than these many half-open connections are a flood, not a cluster.
    server.max_incoming(HANDSHAKES_MAX);
    server.incoming_buffer_size_total(HANDSHAKE_BYTES_MAX);
    Ok(server)
}

/// Reads the authorities in a text.
pub(crate) fn roots_of(authorities: &str) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(certificate.map_err(|_| malformed("ca.pem", "certificate"))?)?;
    }
    Ok(Arc::new(roots))
}

pub(crate) fn transport() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into().expect("15 s is within QUIC's range")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(STREAMS_MAX.into())
        .max_concurrent_uni_streams(0_u32.into())
        .stream_receive_window(STREAM_WINDOW_BYTES.into());
    Arc::new(transport)
}

pub(crate) fn malformed(path: &str, expected: &'static str) -> TlsError {
    TlsError::Malformed { path: path.to_owned(), expected }
}

pub(crate) fn read(path: &Path) -> Result<String, TlsError> {
    fs::read_to_string(path)
        .map_err(|cause| TlsError::Read { path: path.display().to_string(), cause })
}

/// Returns the error for a part of the settings that the TLS library refused.
pub(crate) fn refused(cause: impl Display) -> TlsError {
    TlsError::Refused(rustls::Error::General(cause.to_string()))
}

/// Writes a file that only its owner can read, and creates its folder.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), TlsError> {
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|cause| TlsError::Write { path: path.display().to_string(), cause })
}
