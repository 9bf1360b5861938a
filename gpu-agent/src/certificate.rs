//! The node's certificate: renewed over the connection to the controller long before it expires, with a new key
//! each time, and replaced on the disk before it is used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tessera_frames::certificates::{CertificateAnswer, CertificateRequest};
use tessera_model::NodeIdentity;
use tessera_model::backoff::{Backoff, FailureCount};
use tessera_wire::joining::KeyRequest;
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tessera_wire::tls::{CertificateExpiry, Identity, LeafFacts, TlsError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::sys::clock;

/// How long the controller may take to sign a certificate.
const SIGNED_WITHIN: Duration = Duration::from_secs(30);
/// Pauses after a renewal that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600));
/// Longest sleep until the next renewal: the wall clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// The node's identity as it is now. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeCertificate {
    folder: PathBuf,
    node: NodeIdentity,
    /// How much later or earlier than others this agent renews, in thousandths of the certificate's time.
    spread: i64,
    now: Arc<watch::Sender<Identity>>,
}

/// Why a conversation about certificates ended.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the thread that writes files is gone")]
    Stopping,
    #[error("the controller issued a certificate of another node")]
    OtherNode,
}

impl NodeCertificate {
    /// Loads the identity in a folder.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: there is none, or it is not a node's.
    #[expect(
        clippy::disallowed_methods,
        reason = "the agents of a cluster must not renew their certificates at the same time"
    )]
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        let identity = Identity::load(folder)?;
        let node = identity.node()?;
        // Refused now, not at the first connection.
        identity.client()?;
        let spread = rand::rng().random_range(-100..=100);
        let now = Arc::new(watch::Sender::new(identity));
        Ok(Self { folder: folder.to_owned(), node, spread, now })
    }

    /// Returns the node that it belongs to.
    pub const fn node(&self) -> &NodeIdentity {
        &self.node
    }

    /// Returns the agent's side of the mutual TLS, for the next connection.
    ///
    /// # Errors
    ///
    /// [`TlsError`]: the identity can't be used.
    pub fn client(&self) -> Result<quinn::ClientConfig, TlsError> {
        self.now.borrow().client()
    }

    /// Returns when it and its authority expire.
    ///
    /// # Errors
    ///
    /// [`TlsError::Malformed`].
    pub fn expiry(&self) -> Result<CertificateExpiry, TlsError> {
        self.now.borrow().expiry()
    }

    /// Returns whether it has expired, so that no controller accepts it.
    pub fn has_expired(&self) -> bool {
        self.facts().is_ok_and(|facts| facts.expires <= clock::unix_secs())
    }

    fn facts(&self) -> Result<LeafFacts, TlsError> {
        self.now.borrow().facts()
    }

    fn present(&self) -> Identity {
        self.now.borrow().clone()
    }

    /// Replaces the identity on the disk, and then in memory.
    async fn replace(&self, identity: Identity) -> Result<(), Trouble> {
        if identity.node()? != self.node {
            return Err(Trouble::OtherNode);
        }
        let (folder, written) = (self.folder.clone(), identity.clone());
        let writing = tokio::task::spawn_blocking(move || written.replace(&folder));
        writing.await.map_err(|_| Trouble::Stopping)??;
        self.now.send_replace(identity);
        Ok(())
    }
}

/// Keeps the certificate fresh while a connection lives. Ends with the connection.
pub async fn keep_fresh(connection: &quinn::Connection, certificate: &NodeCertificate) {
    let mut failures = FailureCount::new(BACKOFF);
    loop {
        let Err(trouble) = renew_until_closed(connection, certificate, &mut failures).await else {
            return;
        };
        if connection.close_reason().is_some() {
            return;
        }
        tracing::warn!(%trouble, "the conversation about certificates failed");
        sleep(failures.count_failure()).await;
    }
}

/// The state of the stream about certificates.
#[derive(Default)]
struct Renewal {
    /// The request that was sent, and when its answer is overdue.
    sent: Option<(KeyRequest, Instant)>,
    /// The controller requests it, whatever the certificate's remaining time.
    is_requested: bool,
    /// Not before this, after a failure.
    pause: Option<Instant>,
}

impl Renewal {
    /// Returns when the next step is due: an answer is given up, or a request sent.
    fn next_step(&self, certificate: &NodeCertificate) -> Result<Instant, TlsError> {
        let now = Instant::now();
        if let Some((_, overdue)) = &self.sent {
            return Ok(*overdue);
        }
        let left = certificate.facts()?.renew_at(certificate.spread) - clock::unix_secs();
        let left = if self.is_requested { 0 } else { left };
        let wait = u64::try_from(left).map_or(Duration::ZERO, Duration::from_secs);
        let due = now + wait.min(LOOK_EVERY);
        Ok(self.pause.map_or(due, |pause| due.max(pause)))
    }

    /// Returns whether a request is to be sent, and not only a long sleep was cut into pieces.
    fn is_due(&self, certificate: &NodeCertificate) -> Result<bool, TlsError> {
        let due = certificate.facts()?.renew_at(certificate.spread) <= clock::unix_secs();
        Ok(self.is_requested || due)
    }
}

async fn renew_until_closed(
    connection: &quinn::Connection,
    certificate: &NodeCertificate,
    failures: &mut FailureCount,
) -> Result<(), Trouble> {
    let (send, receive) = connection.open_bi().await?;
    let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
    let mut renewal = Renewal::default();
    writer.send(&trusts(certificate)?).await?;
    loop {
        let step = renewal.next_step(certificate)?;
        tokio::select! {
            answer = reader.receive::<CertificateAnswer>() => match answer? {
                Some(answer) => {
                    follow(answer, certificate, &mut renewal, failures).await?;
                    writer.send(&trusts(certificate)?).await?;
                }
                None => return Ok(()),
            },
            () = sleep_until(step) => {
                if renewal.sent.take().is_some() {
                    renewal.pause = Some(Instant::now() + failures.count_failure());
                    tracing::warn!("the controller did not answer the request for a certificate");
                } else if renewal.is_due(certificate)? {
                    let request = KeyRequest::new()?;
                    let frame = CertificateRequest::Renew { request: request.request().to_vec() };
                    writer.send(&frame).await?;
                    renewal.sent = Some((request, Instant::now() + SIGNED_WITHIN));
                }
            }
        }
    }
}

/// Reports what the agent trusts and has, which is only what is on its disk.
fn trusts(certificate: &NodeCertificate) -> Result<CertificateRequest, TlsError> {
    let identity = certificate.present();
    let issuer = identity.facts()?.issuer;
    Ok(CertificateRequest::Trusts { authorities: identity.authorities_digest(), issuer })
}

async fn follow(
    answer: CertificateAnswer,
    certificate: &NodeCertificate,
    renewal: &mut Renewal,
    failures: &mut FailureCount,
) -> Result<(), Trouble> {
    match answer {
        CertificateAnswer::Authorities { authorities, renew } => {
            let present = certificate.present();
            let trusting = present.trusting(authorities)?;
            if trusting.authorities_digest() != present.authorities_digest() {
                certificate.replace(trusting).await?;
                tracing::info!("the controller's authorities are trusted from now on");
            }
            renewal.is_requested = renew;
        }
        CertificateAnswer::Issued { certificate: text, authorities } => {
            // An answer that was given up already has no key any more.
            let Some((request, _)) = renewal.sent.take() else { return Ok(()) };
            let fresh = Identity::from_texts(authorities, text, request.key().to_owned())?;
            certificate.replace(fresh).await?;
            failures.reset();
            *renewal = Renewal::default();
            let expires = certificate.facts()?.expires;
            tracing::info!(expires, "the node's certificate was renewed");
        }
        CertificateAnswer::Refused { reason } => {
            renewal.sent = None;
            renewal.pause = Some(Instant::now() + failures.count_failure());
            tracing::warn!(reason, "the node's certificate was not renewed");
        }
    }
    Ok(())
}
