//! How a machine gets a certificate: the request with its new key, the token of an invitation, and the trust
//! in an authority that is known by its fingerprint only.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair, PublicKeyData as _};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::kernel_identity::{Fingerprint, from_hex, sha256, to_hex};
use crate::tls::{self, JOIN_ALPN, TlsError};

/// What every invitation begins with, so that scanners of repositories recognise it.
const PREFIX: &str = "tsr_join_";
/// Letters of an invitation's public part.
const ID_LETTERS: usize = 8;

/// A new key, and the request for a certificate that proves its possession.
#[derive(Clone)]
pub struct KeyRequest {
    key: String,
    request: Vec<u8>,
}

impl fmt::Debug for KeyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not reach a log.
        f.debug_struct("KeyRequest").finish_non_exhaustive()
    }
}

impl KeyRequest {
    /// Makes a new key and its request.
    ///
    /// # Errors
    ///
    /// [`TlsError::Issue`] if the system gives no randomness.
    pub fn new() -> Result<Self, TlsError> {
        Self::with(&KeyPair::generate()?)
    }

    /// Makes the request of a key (PEM) that exists.
    ///
    /// # Errors
    ///
    /// [`TlsError::Malformed`]: the text is no private key.
    pub fn of(key: &str) -> Result<Self, TlsError> {
        let key = KeyPair::from_pem(key).map_err(|_| tls::malformed("the key", "private key"))?;
        Self::with(&key)
    }

    fn with(key: &KeyPair) -> Result<Self, TlsError> {
        // The controller decides what the certificate contains: nothing is requested.
        let request = CertificateParams::default().serialize_request(key)?;
        Ok(Self { key: key.serialize_pem(), request: request.der().to_vec() })
    }

    /// Returns the private key (PEM).
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the request (PKCS #10, DER).
    pub fn request(&self) -> &[u8] {
        &self.request
    }
}

/// The key in a request for a certificate, whose possession the request proves.
#[derive(Debug)]
pub struct RequestedKey(CertificateSigningRequestParams);

impl RequestedKey {
    /// Reads a request (PKCS #10, DER) and checks its signature. Whatever else it requests is ignored.
    ///
    /// # Errors
    ///
    /// [`TlsError::Malformed`].
    pub fn read(request: &[u8]) -> Result<Self, TlsError> {
        CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map(Self)
            .map_err(|_| {
                tls::malformed("the request", "certificate request with a valid signature")
            })
    }

    /// Returns the SHA-256 of the key.
    pub fn digest(&self) -> [u8; 32] {
        sha256(&self.0.public_key.subject_public_key_info())
    }

    pub(crate) const fn public_key(&self) -> &rcgen::PublicKey {
        &self.0.public_key
    }
}

/// The token of an invitation: it lets one machine join under one name.
#[derive(Clone, PartialEq, Eq)]
pub struct InvitationToken {
    text: String,
    authority: Fingerprint,
}

/// The text is not the token of an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no whole token of an invitation: copy all of what `tessera node invite` printed")]
pub struct BadInvitation;

impl fmt::Debug for InvitationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not reach a log.
        f.debug_tuple("InvitationToken").field(&self.id()).finish()
    }
}

impl InvitationToken {
    /// Makes a token for a controller whose authority has this fingerprint.
    ///
    /// # Errors
    ///
    /// [`TlsError::Issue`] if the system gives no randomness.
    pub fn new(authority: Fingerprint) -> Result<Self, TlsError> {
        let mut random = [0; ID_LETTERS + 32];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random)
            .map_err(|_| TlsError::Issue(rcgen::Error::RingUnspecified))?;
        let (id, secret) = random.split_at(ID_LETTERS);
        // Lower case and digits: people read ids aloud.
        let letters = b"0123456789abcdefghijklmnopqrstuv";
        let id: String =
            id.iter().map(|byte| char::from(letters[usize::from(byte % 32)])).collect();
        let secret = to_hex(&sha256(secret));
        let text = format!("{PREFIX}{id}_{secret}_{}", to_hex(&authority.0));
        Ok(Self { text, authority })
    }

    /// Returns the text, which is shown once.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the public part.
    pub fn id(&self) -> &str {
        self.text.strip_prefix(PREFIX).and_then(|rest| rest.get(..ID_LETTERS)).unwrap_or_default()
    }

    /// Returns what a controller keeps of it.
    pub fn hash(&self) -> [u8; 32] {
        sha256(self.text.as_bytes())
    }

    /// Returns the fingerprint of the authority that the joining machine trusts.
    pub const fn authority(&self) -> Fingerprint {
        self.authority
    }
}

impl FromStr for InvitationToken {
    type Err = BadInvitation;

    fn from_str(text: &str) -> Result<Self, BadInvitation> {
        let mut parts = text.strip_prefix(PREFIX).ok_or(BadInvitation)?.split('_');
        let (id, secret, authority, end) = (parts.next(), parts.next(), parts.next(), parts.next());
        let (Some(id), Some(secret), Some(authority), None) = (id, secret, authority, end) else {
            return Err(BadInvitation);
        };
        let letter = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
        if id.len() != ID_LETTERS || !id.bytes().all(letter) {
            return Err(BadInvitation);
        }
        from_hex(secret).map_err(|_| BadInvitation)?;
        let authority = Fingerprint(from_hex(authority).map_err(|_| BadInvitation)?);
        Ok(Self { text: text.to_owned(), authority })
    }
}

/// Returns the settings of a machine that joins: it has no certificate yet, and trusts a controller whose
/// certificate is of the authority with this fingerprint.
///
/// # Errors
///
/// [`TlsError`]: the cryptography refuses its own settings.
pub fn joining_client(authority: Fingerprint) -> Result<quinn::ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(PinnedAuthority { authority, provider: Arc::clone(&provider) });
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    tls.alpn_protocols = vec![JOIN_ALPN.to_vec()];
    let quic = QuicClientConfig::try_from(tls).map_err(tls::refused)?;
    let mut client = quinn::ClientConfig::new(Arc::new(quic));
    client.transport_config(tls::transport());
    Ok(client)
}

/// Trusts what one authority signed. The authority's certificate comes with the handshake, and is known by
/// its fingerprint.
#[derive(Debug)]
struct PinnedAuthority {
    authority: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = chain.iter().find(|certificate| sha256(certificate) == self.authority.0);
        let pinned = pinned.ok_or(CertificateError::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|cause| rustls::Error::General(cause.to_string()))?;
        verifier.verify_server_cert(certificate, &[], name, ocsp, now)
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
    fn an_invitation_is_read_as_it_was_written_and_no_cut_one_is() {
        let token = InvitationToken::new(Fingerprint([7; 32])).unwrap();

        let read: InvitationToken = token.text().parse().unwrap();

        assert_eq!((read.id(), read.authority()), (token.id(), Fingerprint([7; 32])));
        assert_eq!(read.hash(), token.hash());
        for cut in 0..token.text().len() {
            assert!(token.text()[..cut].parse::<InvitationToken>().is_err(), "{cut} letters");
        }
        assert!(!format!("{token:?}").contains(&token.text()[20..60]));
    }

    #[test]
    fn a_request_proves_the_possession_of_its_key() {
        let made = KeyRequest::new().unwrap();
        let again = KeyRequest::of(made.key()).unwrap();

        let own = RequestedKey::read(made.request()).unwrap().digest();

        assert_eq!(own, RequestedKey::read(again.request()).unwrap().digest());
        for index in 0..made.request().len() {
            let mut changed = made.request().to_vec();
            changed[index] ^= 1;
            // The name of the signature's algorithm is not signed: no change of it proves another key.
            let read = RequestedKey::read(&changed);
            assert!(read.is_err() || read.is_ok_and(|read| read.digest() == own), "byte {index}");
        }
    }
}
