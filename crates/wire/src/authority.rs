//! A controller's authority: what it signs, and how it is replaced while nodes are connected.
//!
//! While it is replaced, both authorities are trusted. The new one signs nodes' certificates at once, so
//! that each connected node has one soon. The controller itself shows agents a certificate of the former
//! authority until the end of that time, since a node that was away knows no other.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, Issuer, KeyPair, KeyUsagePurpose, SerialNumber};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tessera_model::NodeIdentity;
use time::OffsetDateTime;

use crate::joining::RequestedKey;
use crate::kernel_identity::{Fingerprint, sha256};
use crate::replace::{finish_replacing, replace_together};
use crate::tls::{
    ALPN, Authority, BACKDATED, Identity, JOIN_ALPN, LeafFacts, TlsError, controller_params, issue,
    malformed, node_params, quic_server, read, read_issuer, refused, rest_params, roots_of,
};

/// How long the controller's own certificates last. They are renewed at each start, and each day.
const CONTROLLER_LASTS: time::Duration = time::Duration::days(14);
/// The files of the authority: the key is written first.
const AUTHORITY_FILES: [&str; 2] = ["ca.key", "ca.pem"];
/// The folder of the former authority while both are trusted.
const FORMER: &str = "former";
/// The files in that folder: its certificate, the controller's certificate of it, and its end.
const FORMER_FILES: [&str; 4] = ["until", "key.pem", "cert.pem", "ca.pem"];

/// The authority of a cluster as its controller holds it.
pub struct ClusterAuthority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    fingerprint: Fingerprint,
    /// Its name, as it stands in the certificates that it signed.
    name: String,
    expires: i64,
    former: Option<FormerAuthority>,
}

impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not reach a log.
        f.debug_struct("ClusterAuthority")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// An authority that was replaced, and is trusted for some time more.
struct FormerAuthority {
    certificate: String,
    fingerprint: Fingerprint,
    /// When its trust ends, in seconds since 1970.
    until: i64,
    /// The controller's last certificate of it.
    controller: Identity,
}

/// A certificate that was issued to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate (PEM).
    pub certificate: String,
    /// What distinguishes it.
    pub facts: LeafFacts,
}

/// The authorities of a cluster, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityFacts {
    /// The one that signs.
    pub fingerprint: Fingerprint,
    /// When it expires, in seconds since 1970.
    pub expires: i64,
    /// The former one while it is trusted, and when its trust ends.
    pub former: Option<(Fingerprint, i64)>,
    /// All that are trusted (PEM), the newest first.
    pub certificates: String,
}

impl ClusterAuthority {
    /// Opens the authority in a folder; `None` if its key is not there, so that nothing can be signed.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: a file can't be read, or does not hold what it should.
    pub fn open(folder: &Path) -> Result<Option<Self>, TlsError> {
        finish_replacing(folder, &AUTHORITY_FILES)?;
        if !folder.join("ca.key").exists() {
            return Ok(None);
        }
        let (issuer, certificates) = read_issuer(folder)?;
        let certificate = first_certificate(&certificates)?;
        let former = FormerAuthority::open(&folder.join(FORMER))?;
        let mut authority = Self {
            folder: folder.to_owned(),
            issuer,
            fingerprint: certificate.fingerprint,
            name: certificate.name,
            expires: certificate.expires,
            certificate: certificate.text,
            former,
        };
        // A replacement that a crash ended before the new authority was written never happened.
        if authority.former.as_ref().is_some_and(|f| f.fingerprint == authority.fingerprint) {
            authority.forget_former()?;
        }
        Ok(Some(authority))
    }

    /// Describes the authorities.
    pub fn facts(&self) -> AuthorityFacts {
        AuthorityFacts {
            fingerprint: self.fingerprint,
            expires: self.expires,
            former: self.former.as_ref().map(|former| (former.fingerprint, former.until)),
            certificates: self.trusted(),
        }
    }

    /// Returns its name, as it stands in the certificates that it signed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all authorities to trust (PEM), the newest first.
    pub fn trusted(&self) -> String {
        match &self.former {
            None => self.certificate.clone(),
            Some(former) => format!("{}{}", self.certificate, former.certificate),
        }
    }

    /// Signs the certificate of a node, which lasts for `lasts` from `now` on.
    ///
    /// # Errors
    ///
    /// [`TlsError::Issue`].
    pub fn sign_node(
        &self,
        key: &RequestedKey,
        node: &NodeIdentity,
        (now, lasts): (OffsetDateTime, Duration),
    ) -> Result<IssuedCertificate, TlsError> {
        let mut params = node_params(node)?;
        let lasts = time::Duration::try_from(lasts).unwrap_or(CONTROLLER_LASTS);
        params.not_before = now - BACKDATED;
        // No certificate outlives its authority.
        let end = OffsetDateTime::from_unix_timestamp(self.expires).unwrap_or(now + lasts);
        params.not_after = (now + lasts).min(end);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(new_serial()?);
        let certificate = params.signed_by(key.public_key(), &self.issuer)?;
        let facts = LeafFacts::of(certificate.der())
            .ok_or_else(|| malformed("the new certificate", "certificate"))?;
        Ok(IssuedCertificate { certificate: certificate.pem(), facts })
    }

    /// Returns the controller's side of QUIC at a time: nodes with a certificate of a trusted authority, and
    /// machines that join and have none. A peer without a certificate can do nothing but join. Also returns when
    /// the certificate that agents see expires, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn server(&self, now: OffsetDateTime) -> Result<(quinn::ServerConfig, i64), TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let fresh = self.sign_controller(controller_params()?, now)?;
        let mut joining = fresh.certified(&provider)?;
        // Who joins knows the authority by its fingerprint only.
        joining.cert.push(
            CertificateDer::from_pem_slice(self.certificate.as_bytes())
                .map_err(|_| malformed("ca.pem", "certificate"))?,
        );
        let shown = self.former.as_ref().map_or(&fresh, |former| &former.controller);
        let (agents, expires) = (shown.certified(&provider)?, shown.facts()?.expires);
        let verifier = WebPkiClientVerifier::builder_with_provider(
            roots_of(&self.trusted())?,
            Arc::clone(&provider),
        )
        .allow_unauthenticated()
        .build()
        .map_err(refused)?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(ByProtocol {
                agents: Arc::new(agents),
                joining: Arc::new(joining),
            }));
        tls.alpn_protocols = vec![ALPN.to_vec(), JOIN_ALPN.to_vec()];
        Ok((quic_server(tls)?, expires))
    }

    /// Returns a certificate of the REST API for these names. While two authorities are trusted, it is of the
    /// former one: clients that were not notified yet know no other.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: a name can't stand in a certificate.
    pub fn sign_rest(&self, names: &[String], now: OffsetDateTime) -> Result<Identity, TlsError> {
        match &self.former {
            Some(former) => Ok(former.controller.clone()),
            None => self.sign_controller(rest_params(names)?, now),
        }
    }

    fn sign_controller(
        &self,
        params: CertificateParams,
        now: OffsetDateTime,
    ) -> Result<Identity, TlsError> {
        issue(params, (now, CONTROLLER_LASTS), &self.issuer, self.trusted())
    }

    /// Replaces the authority by a new one, and trusts the present one until `until`. Its key is destroyed.
    /// The names are those of the REST API.
    ///
    /// # Errors
    ///
    /// [`RotateError`]: a replacement is under way already, or the folder can't be written.
    pub fn rotate(
        &mut self,
        names: &[String],
        now: OffsetDateTime,
        until: OffsetDateTime,
    ) -> Result<(), RotateError> {
        if let Some(former) = &self.former {
            return Err(RotateError::UnderWay { until: former.until });
        }
        // The controller needs no more of the present authority than a certificate that lasts long enough.
        let lasts = until - now + CONTROLLER_LASTS;
        let mut params = controller_params()?;
        params.subject_alt_names.extend(rest_params(names)?.subject_alt_names);
        let controller = issue(params, (now, lasts), &self.issuer, self.certificate.clone())?;
        let former = FormerAuthority {
            certificate: self.certificate.clone(),
            fingerprint: self.fingerprint,
            until: until.unix_timestamp(),
            controller,
        };
        let (certificate, key) = Authority::create(now)?.texts();
        former.save(&self.folder.join(FORMER))?;
        let trusted = format!("{certificate}{}", self.certificate);
        let [key_file, certificate_file] = AUTHORITY_FILES;
        replace_together(&self.folder, &[(key_file, &key), (certificate_file, &trusted)])?;
        let read = first_certificate(&certificate)?;
        let (issuer, _) = read_issuer(&self.folder)?;
        self.issuer = issuer;
        self.certificate = read.text;
        self.fingerprint = read.fingerprint;
        self.name = read.name;
        self.expires = read.expires;
        self.former = Some(former);
        Ok(())
    }

    /// Ends the trust in the former authority once its time is over. Returns whether it ended now.
    ///
    /// # Errors
    ///
    /// [`TlsError::Write`].
    pub fn end_former(&mut self, now: OffsetDateTime) -> Result<bool, TlsError> {
        let over = self.former.as_ref().is_some_and(|f| f.until <= now.unix_timestamp());
        if over {
            self.forget_former()?;
        }
        Ok(over)
    }

    fn forget_former(&mut self) -> Result<(), TlsError> {
        let [key_file, certificate_file] = AUTHORITY_FILES;
        let key = read(&self.folder.join(key_file))?;
        let files = [(key_file, key.as_str()), (certificate_file, self.certificate.as_str())];
        replace_together(&self.folder, &files)?;
        let folder = self.folder.join(FORMER);
        match fs::remove_dir_all(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                return Err(TlsError::Write { path: folder.display().to_string(), cause });
            }
        }
        self.former = None;
        Ok(())
    }
}

/// Why an authority is not replaced.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The one before it is still trusted: wait for its end.
    #[error("the authority was replaced before, and the former one is still trusted")]
    UnderWay {
        /// When that ends, in seconds since 1970.
        until: i64,
    },
    /// A certificate could not be made or written.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl FormerAuthority {
    fn open(folder: &Path) -> Result<Option<Self>, TlsError> {
        if !folder.exists() {
            return Ok(None);
        }
        finish_replacing(folder, &FORMER_FILES)?;
        let [until_file, ..] = FORMER_FILES;
        let path = folder.join(until_file);
        if !path.exists() {
            // A crash came before the folder was complete, and nothing was replaced.
            return Ok(None);
        }
        let until = read(&path)?.trim().parse().map_err(|_| TlsError::Malformed {
            path: path.display().to_string(),
            expected: "time in seconds since 1970",
        })?;
        let text = read(&folder.join("ca.pem"))?;
        let certificate = first_certificate(&text)?;
        let controller = Identity::from_texts(
            text.clone(),
            read(&folder.join("cert.pem"))?,
            read(&folder.join("key.pem"))?,
        )?;
        let (certificate, fingerprint) = (certificate.text, certificate.fingerprint);
        Ok(Some(Self { certificate, fingerprint, until, controller }))
    }

    fn save(&self, folder: &Path) -> Result<(), TlsError> {
        fs::create_dir_all(folder)
            .map_err(|cause| TlsError::Write { path: folder.display().to_string(), cause })?;
        let [authority, certificate, key] = self.controller.texts();
        let until = format!("{}\n", self.until);
        let [until_file, key_file, certificate_file, authority_file] = FORMER_FILES;
        replace_together(
            folder,
            &[
                (until_file, &until),
                (key_file, key),
                (certificate_file, certificate),
                (authority_file, authority),
            ],
        )
    }
}

/// Chooses the controller's certificate by the protocol that the peer speaks.
#[derive(Debug)]
struct ByProtocol {
    agents: Arc<CertifiedKey>,
    joining: Arc<CertifiedKey>,
}

impl ResolvesServerCert for ByProtocol {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let joins = hello.alpn().is_some_and(|mut names| names.any(|name| name == JOIN_ALPN));
        Some(Arc::clone(if joins { &self.joining } else { &self.agents }))
    }
}

struct ReadCertificate {
    text: String,
    fingerprint: Fingerprint,
    name: String,
    expires: i64,
}

/// Reads the first certificate of a text, which is the newest.
fn first_certificate(text: &str) -> Result<ReadCertificate, TlsError> {
    let bad = || malformed("ca.pem", "certificate");
    let der = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| bad())?;
    let end = "-----END CERTIFICATE-----";
    let at = text.find(end).ok_or_else(bad)?;
    let facts = LeafFacts::of(&der).ok_or_else(bad)?;
    Ok(ReadCertificate {
        text: format!("{}{end}\n", &text[..at]),
        fingerprint: Fingerprint(sha256(&der)),
        // It signed itself.
        name: facts.issuer,
        expires: facts.expires,
    })
}

/// Makes a serial number: 127 random bits, a positive number.
fn new_serial() -> Result<SerialNumber, TlsError> {
    let mut bytes = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| TlsError::Issue(rcgen::Error::RingUnspecified))?;
    // Neither negative nor with a leading zero, so that every program prints the same digits.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::joining::KeyRequest;
    use tessera_model::NodeId;
    use uuid::Uuid;

    const DAY: time::Duration = time::Duration::days(1);

    fn now() -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
    }

    fn rig() -> (tempfile::TempDir, ClusterAuthority) {
        let folder = tempfile::tempdir().unwrap();
        Authority::create(now()).unwrap().save(folder.path()).unwrap();
        let authority = ClusterAuthority::open(folder.path()).unwrap().unwrap();
        (folder, authority)
    }

    fn sign(authority: &ClusterAuthority, lasts: Duration) -> IssuedCertificate {
        let node = NodeIdentity {
            id: NodeId::from_uuid(Uuid::from_u128(3)),
            name: "node-a".parse().unwrap(),
        };
        let key = RequestedKey::read(KeyRequest::new().unwrap().request()).unwrap();
        authority.sign_node(&key, &node, (now(), lasts)).unwrap()
    }

    #[test]
    fn a_nodes_certificate_lasts_as_long_as_it_is_told_and_no_longer_than_its_authority() {
        let (_folder, authority) = rig();

        let short = sign(&authority, Duration::from_secs(86_400)).facts;
        let long = sign(&authority, Duration::from_secs(100 * 365 * 86_400)).facts;

        assert_eq!((short.issued, short.expires), (1_800_000_000, 1_800_086_400));
        assert_eq!(short.renew_at(0), 1_800_057_600);
        assert!(short.renew_at(100) > short.renew_at(0) && short.renew_at(100) < short.expires);
        assert_eq!(long.expires, authority.facts().expires);
        assert_ne!(short.serial, long.serial);
    }

    #[test]
    fn a_replaced_authority_is_trusted_until_its_end_and_survives_restarts() {
        let (folder, mut authority) = rig();
        let old = authority.facts().fingerprint;

        authority.rotate(&[], now(), now() + DAY).unwrap();
        let again = ClusterAuthority::open(folder.path()).unwrap().unwrap();

        for authority in [&authority, &again] {
            let facts = authority.facts();
            assert_eq!(facts.former, Some((old, (now() + DAY).unix_timestamp())));
            assert_ne!(facts.fingerprint, old);
            assert_eq!(facts.certificates.matches("BEGIN").count(), 2);
        }
        let second = authority.rotate(&[], now(), now() + DAY).unwrap_err();
        assert!(matches!(second, RotateError::UnderWay { .. }));
        assert!(!authority.end_former(now() + DAY / 2).unwrap());
        assert!(authority.end_former(now() + DAY).unwrap());
        let after = ClusterAuthority::open(folder.path()).unwrap().unwrap().facts();
        assert_eq!((after.former, after.certificates.matches("BEGIN").count()), (None, 1));
        assert_eq!(after.fingerprint, authority.facts().fingerprint);
    }

    #[test]
    fn a_crash_before_the_new_authority_is_written_leaves_the_old_one_alone() {
        let (folder, authority) = rig();
        let controller = issue(
            controller_params().unwrap(),
            (now(), DAY),
            &authority.issuer,
            authority.certificate.clone(),
        )
        .unwrap();
        let former = FormerAuthority {
            certificate: authority.certificate.clone(),
            fingerprint: authority.fingerprint,
            until: 0,
            controller,
        };
        former.save(&folder.path().join(FORMER)).unwrap();

        let again = ClusterAuthority::open(folder.path()).unwrap().unwrap();

        assert_eq!(again.facts(), authority.facts());
        assert!(!folder.path().join(FORMER).exists());
    }

    #[test]
    fn without_its_key_nothing_is_signed() {
        let (folder, _) = rig();
        fs::remove_file(folder.path().join("ca.key")).unwrap();

        assert!(ClusterAuthority::open(folder.path()).unwrap().is_none());
    }
}
