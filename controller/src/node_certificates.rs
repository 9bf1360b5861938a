//! Nodes' certificates: who may join, what is issued and renewed, what was revoked, and the authority that
//! signs, with its replacement.
//!
//! A connection costs a lookup in memory. The database reports each revocation, so that a revoked
//! node is disconnected within a moment, by whichever controller it was revoked.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use tessera_api_types::NodeCertificateView;
use tessera_frames::certificates::{CertificateAnswer, INVITATION_BYTES_MAX, REQUEST_BYTES_MAX};
use tessera_model::{NodeId, NodeIdentity, NodeName};
use tessera_wire::authority::{AuthorityFacts, ClusterAuthority, IssuedCertificate, RotateError};
use tessera_wire::joining::{BadInvitation, InvitationToken, RequestedKey};
use tessera_wire::tls::{Identity, LeafFacts, TlsError};
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::audit::AuditLog;
use crate::principal::AuditRecord;
use crate::process_metrics;
use crate::store::node_certificates::{
    self as store, CertificateChanges, CertificateOrigin, NewInvitation, Redemption,
};
use crate::store::{Pool, StoreError, acquire};

/// How often revocations are read without a notice, should one have been lost.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How long to wait after the database did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often the controller renews its own certificates.
const OWN_EVERY: Duration = Duration::from_secs(86_400);
/// How long to wait after they could not be made.
const OWN_RETRY_AFTER: Duration = Duration::from_secs(60);

/// What nodes' certificates are made with.
pub struct CertificateParts {
    /// The authority; `None` if its key is not here.
    pub authority: Option<ClusterAuthority>,
    /// How long a node's certificate lasts.
    pub lasts: Duration,
    /// The names of the REST API.
    pub rest_names: Vec<String>,
    /// The address for agents, as the command for joining names it.
    pub address: String,
    /// What is issued and refused is recorded there.
    pub audit: AuditLog,
    /// Connections to the database.
    pub pool: Pool,
    /// The runtime that owns them.
    pub runtime: Handle,
}

/// Issues, renews and revokes nodes' certificates. Cheap to clone.
#[derive(Clone)]
pub struct NodeCertificates(Arc<Inner>);

impl fmt::Debug for NodeCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCertificates").finish_non_exhaustive()
    }
}

struct Inner {
    parts: CertificateParts,
    authority: RwLock<Option<ClusterAuthority>>,
    restricted: RwLock<HashMap<NodeId, HashSet<String>>>,
    /// Rises with every revocation and every change of the authority.
    revision: watch::Sender<u64>,
    /// Rises with every change of the authority.
    authority_revision: watch::Sender<u64>,
}

/// Why something about certificates was not done.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// This controller can't sign.
    #[error("the key of the cluster's authority is not on this controller's machine")]
    NoAuthority,
    /// The certificate that is to be renewed was revoked.
    #[error("the certificate of this node was revoked")]
    Revoked,
    /// Too many invitations are open.
    #[error("{} invitations are open already", store::OPEN_MAX)]
    TooManyInvitations,
    /// The authority was replaced a short while ago.
    #[error(transparent)]
    Rotate(#[from] RotateError),
    /// A certificate could not be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a node gets no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateRefusal {
    /// What the node sent is longer than it may be.
    #[error("the token or the request is too long")]
    TooLong,
    /// The text is no token.
    #[error(transparent)]
    NoToken(#[from] BadInvitation),
    /// The request can't be read.
    #[error(transparent)]
    NoRequest(#[from] TlsError),
    /// Another machine was first.
    #[error("another machine has used this token already: {AGAIN} {0}")]
    Used(String),
    /// The invitation has ended.
    #[error("this token has expired: {AGAIN} {0}")]
    Expired(String),
    /// No invitation has this token.
    #[error("this token is unknown: {AGAIN} NAME")]
    Unknown,
    /// The database did not answer.
    #[error("{0}: try again")]
    Store(StoreError),
    /// The certificate was not made.
    #[error(transparent)]
    Sign(#[from] CertificateError),
}

/// What to do if a token is not accepted.
const AGAIN: &str = "invite it again: tessera node invite";

/// An invitation that was made.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Its token, which is shown once.
    pub token: InvitationToken,
    /// When it ends.
    pub expires_at: OffsetDateTime,
}

impl NodeCertificates {
    /// Opens them, and keeps what was revoked up to date until they are dropped.
    pub fn open(mut parts: CertificateParts) -> Self {
        let runtime = parts.runtime.clone();
        let authority = RwLock::new(parts.authority.take());
        let all = Self(Arc::new(Inner {
            parts,
            authority,
            restricted: RwLock::default(),
            revision: watch::Sender::new(0),
            authority_revision: watch::Sender::new(0),
        }));
        all.show_expiry();
        runtime.spawn(keep(Arc::downgrade(&all.0)));
        runtime.spawn(end_former(Arc::downgrade(&all.0)));
        all
    }

    /// Reads what was revoked. Before the first reading nothing is known to be: call it before agents connect.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn read(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.0);
        self.run(async move { inner.read().await }).await
    }

    /// Returns whether a node's certificate was revoked.
    pub fn refuses(&self, node: NodeId, serial: &str) -> bool {
        let restricted = self.0.restricted.read().unwrap_or_else(PoisonError::into_inner);
        restricted.get(&node).is_some_and(|accepted| !accepted.contains(serial))
    }

    /// Returns what changes with every revocation and every change of the authority.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.0.revision.subscribe()
    }

    /// Describes the authority.
    ///
    /// # Errors
    ///
    /// [`CertificateError::NoAuthority`].
    pub fn authority(&self) -> Result<AuthorityFacts, CertificateError> {
        self.with_authority(|authority| authority.facts())
    }

    /// Returns the authorities to trust (PEM) and the name of the one that signs; `None` if this controller
    /// has no key of it.
    pub fn trusted(&self) -> Option<(String, String)> {
        self.with_authority(|authority| (authority.trusted(), authority.name().to_owned())).ok()
    }

    /// Records the certificate that a node connected with. Returns whether it may use it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn record(&self, node: &NodeIdentity, leaf: &LeafFacts) -> Result<bool, StoreError> {
        let (inner, node, leaf) = (Arc::clone(&self.0), node.clone(), leaf.clone());
        self.run(async move { inner.record(&node, &leaf, CertificateOrigin::Seen).await }).await
    }

    /// Invites a machine to join as the node with a name.
    ///
    /// # Errors
    ///
    /// [`CertificateError`].
    pub async fn invite(
        &self,
        name: NodeName,
        by: String,
        valid: Duration,
    ) -> Result<Invitation, CertificateError> {
        let token = InvitationToken::new(self.authority()?.fingerprint)?;
        let new = NewInvitation {
            id: token.id().to_owned(),
            fresh: NodeId::from_uuid(Uuid::now_v7()),
            name,
            secret_hash: token.hash(),
            created_by: by,
            valid_secs: valid.as_secs_f64(),
        };
        let inner = Arc::clone(&self.0);
        let made = self.run(async move {
            let mut at = acquire(&inner.parts.pool).await?;
            store::insert_invitation(&mut at, &new).await
        });
        let expires_at = made.await?.ok_or(CertificateError::TooManyInvitations)?;
        Ok(Invitation { token, expires_at })
    }

    /// Returns the command that joins, to be run on the machine.
    pub fn command(&self, token: &InvitationToken) -> String {
        let address = &self.0.parts.address;
        format!("tessera-agent join {} --controller {address}", token.text())
    }

    /// Returns the address for agents, as far as this controller knows it.
    pub fn address(&self) -> &str {
        &self.0.parts.address
    }

    /// Lets a machine join, if its token is one of an open invitation.
    pub async fn join(&self, token: &str, request: &[u8], from: SocketAddr) -> CertificateAnswer {
        let (name, outcome) = self.try_to_join(token, request).await;
        let status = if outcome.is_ok() { 201 } else { 403 };
        self.note("JOIN", name.as_deref(), from.ip(), status);
        outcome.unwrap_or_else(|refusal| CertificateAnswer::Refused { reason: refusal.to_string() })
    }

    async fn try_to_join(
        &self,
        token: &str,
        request: &[u8],
    ) -> (Option<String>, Result<CertificateAnswer, CertificateRefusal>) {
        if token.len() > INVITATION_BYTES_MAX || request.len() > REQUEST_BYTES_MAX {
            return (None, Err(CertificateRefusal::TooLong));
        }
        let token = match token.parse::<InvitationToken>() {
            Ok(token) => token,
            Err(bad) => return (None, Err(bad.into())),
        };
        let key = match RequestedKey::read(request) {
            Ok(key) => key,
            Err(bad) => return (None, Err(bad.into())),
        };
        let (inner, id, digest) = (Arc::clone(&self.0), token.id().to_owned(), key.digest());
        let redeemed = self.run(async move {
            let mut at = acquire(&inner.parts.pool).await?;
            store::redeem(&mut at, (&id, token.hash()), digest).await
        });
        match redeemed.await {
            Ok(Redemption::Accepted(node)) => {
                let name = node.name.to_string();
                (Some(name), self.issue(&node, &key).await.map_err(CertificateRefusal::Sign))
            }
            Ok(Redemption::Used(name)) => (Some(name.clone()), Err(CertificateRefusal::Used(name))),
            Ok(Redemption::Expired(name)) => {
                (Some(name.clone()), Err(CertificateRefusal::Expired(name)))
            }
            Ok(Redemption::Unknown) => (None, Err(CertificateRefusal::Unknown)),
            Err(error) => (None, Err(CertificateRefusal::Store(error))),
        }
    }

    /// Gives a connected node another certificate with a new key, in place of the one with this serial number.
    ///
    /// # Errors
    ///
    /// [`CertificateRefusal`]: the request can't be read, or the certificate can't be made.
    pub async fn renew(
        &self,
        (node, serial): (&NodeIdentity, &str),
        request: &[u8],
        from: SocketAddr,
    ) -> Result<(CertificateAnswer, LeafFacts), CertificateRefusal> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(CertificateRefusal::TooLong);
        }
        let key = RequestedKey::read(request)?;
        let issued = self.sign(node, &key, Some(serial)).await;
        let status = if issued.is_ok() { 201 } else { 503 };
        self.note("RENEW", Some(node.name.as_str()), from.ip(), status);
        let (issued, authorities) = issued?;
        let certificate = issued.certificate;
        Ok((CertificateAnswer::Issued { certificate, authorities }, issued.facts))
    }

    async fn issue(
        &self,
        node: &NodeIdentity,
        key: &RequestedKey,
    ) -> Result<CertificateAnswer, CertificateError> {
        let (issued, authorities) = self.sign(node, key, None).await?;
        Ok(CertificateAnswer::Issued { certificate: issued.certificate, authorities })
    }

    async fn sign(
        &self,
        node: &NodeIdentity,
        key: &RequestedKey,
        renews: Option<&str>,
    ) -> Result<(IssuedCertificate, String), CertificateError> {
        let lasts = (now(), self.0.parts.lasts);
        let (issued, authorities) = self.with_authority(|authority| {
            authority.sign_node(key, node, lasts).map(|issued| (issued, authority.trusted()))
        })??;
        // Recorded first: a certificate that nobody can revoke must not leave the controller.
        let (inner, owner, facts) = (Arc::clone(&self.0), node.clone(), issued.facts.clone());
        let renews = renews.map(str::to_owned);
        let accepted = self.run(async move {
            let origin = renews.as_deref();
            let origin = origin.map_or(CertificateOrigin::Joined, CertificateOrigin::Renewed);
            let accepted = inner.record(&owner, &facts, origin).await?;
            inner.read().await?;
            Ok(accepted)
        });
        if !accepted.await? {
            return Err(CertificateError::Revoked);
        }
        Ok((issued, authorities))
    }

    /// Revokes all certificates of the node with a name. They are refused when this returns. Returns how many
    /// were valid; `None` if there never was such a node.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn revoke(&self, name: NodeName, by: String) -> Result<Option<u64>, StoreError> {
        let inner = Arc::clone(&self.0);
        self.run(async move {
            let revoked = store::revoke(&inner.parts.pool, &name, &by).await?;
            inner.read().await?;
            Ok(revoked.map(|(_, count)| count))
        })
        .await
    }

    /// Lists certificates, newest first: of the node with a name, or all.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn list(&self, name: Option<String>) -> Result<Vec<NodeCertificateView>, StoreError> {
        let inner = Arc::clone(&self.0);
        self.run(async move {
            let mut at = acquire(&inner.parts.pool).await?;
            store::list(&mut at, name.as_deref()).await
        })
        .await
    }

    /// Replaces the authority. The present one is trusted for some time more.
    ///
    /// # Errors
    ///
    /// [`CertificateError`].
    pub async fn rotate(&self, trusted_for: Duration) -> Result<AuthorityFacts, CertificateError> {
        let inner = Arc::clone(&self.0);
        // Files are written and synced: not on a thread that others wait for.
        let rotating = self.0.parts.runtime.spawn_blocking(move || {
            let mut authority = inner.authority.write().unwrap_or_else(PoisonError::into_inner);
            let authority = authority.as_mut().ok_or(CertificateError::NoAuthority)?;
            authority.rotate(&inner.parts.rest_names, now(), now() + trusted_for)?;
            Ok::<_, CertificateError>(authority.facts())
        });
        let facts = rotating.await.unwrap_or_else(|_| Err(StoreError::stopping().into()))?;
        tracing::warn!(
            authority = tessera_wire::kernel_identity::to_hex(&facts.fingerprint.0),
            "the authority was replaced; the former one is trusted for some time more"
        );
        self.0.announce_authority();
        self.show_expiry();
        Ok(facts)
    }

    /// Returns the controller's side of QUIC from now on; `None` if it can't sign its own certificate.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn server(&self) -> Result<Option<quinn::ServerConfig>, TlsError> {
        match self.with_authority(|authority| authority.server(now())) {
            Ok(made) => {
                let (server, expires) = made?;
                process_metrics::show_own(expires);
                Ok(Some(server))
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns a new certificate of the REST API.
    ///
    /// # Errors
    ///
    /// [`CertificateError`].
    pub fn rest(&self) -> Result<Identity, CertificateError> {
        let names = &self.0.parts.rest_names;
        Ok(self.with_authority(|authority| authority.sign_rest(names, now()))??)
    }

    /// Keeps the controller's own certificates fresh: each day, and whenever the authority changes.
    /// Never returns.
    pub async fn keep_own(self, mut renewed: impl FnMut(&Self) -> Result<(), CertificateError>) {
        let mut changes = self.0.authority_revision.subscribe();
        let mut pause = OWN_EVERY;
        loop {
            // A missing sender can't be: this holds one.
            let _ = timeout(pause, changes.changed()).await;
            pause = match renewed(&self) {
                Ok(()) => OWN_EVERY,
                Err(error) => {
                    tracing::error!(%error, "the controller's certificates were not renewed");
                    OWN_RETRY_AFTER
                }
            };
        }
    }

    fn with_authority<T>(
        &self,
        question: impl FnOnce(&ClusterAuthority) -> T,
    ) -> Result<T, CertificateError> {
        let authority = self.0.authority.read().unwrap_or_else(PoisonError::into_inner);
        authority.as_ref().map(question).ok_or(CertificateError::NoAuthority)
    }

    fn show_expiry(&self) {
        if let Ok(facts) = self.authority() {
            process_metrics::show_authority(facts.expires);
        }
    }

    fn note(&self, action: &str, node: Option<&str>, from: IpAddr, status: u16) {
        process_metrics::count_certificate(status < 400);
        // Anybody can send tokens that nobody knows: they are only counted.
        let Some(node) = node else { return };
        self.0.parts.audit.record(AuditRecord {
            principal: None,
            role: None,
            origin: format!("node {node} from {from}"),
            action: action.to_owned(),
            object: format!("node {node}"),
            status,
        });
    }

    /// Runs in its own task, on the runtime that owns the connections: a caller that goes away leaves no
    /// statement half done.
    async fn run<T: Send + 'static>(
        &self,
        statement: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        // A task ends without an answer only when its runtime shuts down.
        self.0.parts.runtime.spawn(statement).await.unwrap_or_else(|_| Err(StoreError::stopping()))
    }
}

impl Inner {
    async fn read(&self) -> Result<(), StoreError> {
        let mut at = acquire(&self.parts.pool).await?;
        let read = store::read_restricted(&mut at).await?;
        drop(at);
        let mut restricted = self.restricted.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *restricted != read;
        *restricted = read;
        drop(restricted);
        if changed {
            self.revision.send_modify(|revision| *revision += 1);
        }
        Ok(())
    }

    async fn record(
        &self,
        node: &NodeIdentity,
        leaf: &LeafFacts,
        origin: CertificateOrigin<'_>,
    ) -> Result<bool, StoreError> {
        let mut at = acquire(&self.parts.pool).await?;
        let row = store::CertificateRow {
            serial: &leaf.serial,
            node,
            issuer: &leaf.issuer,
            issued_at: moment(leaf.issued),
            expires_at: moment(leaf.expires),
            origin,
        };
        store::record(&mut at, row).await
    }

    fn announce_authority(&self) {
        self.authority_revision.send_modify(|revision| *revision += 1);
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Ends the trust in the former authority if its time is over. Returns how long to wait for the next look.
    fn end_former(&self) -> Duration {
        let mut authority = self.authority.write().unwrap_or_else(PoisonError::into_inner);
        let Some(authority) = authority.as_mut() else { return READ_EVERY };
        match authority.end_former(now()) {
            Ok(true) => {
                tracing::warn!("the former authority is no longer trusted");
                self.announce_authority();
            }
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "the former authority could not be removed"),
        }
        let until = authority.facts().former.map(|(_, until)| until - now().unix_timestamp());
        let left = until.and_then(|left| u64::try_from(left).ok()).map(Duration::from_secs);
        left.map_or(READ_EVERY, |left| left.clamp(RETRY_AFTER, READ_EVERY))
    }
}

/// Reads a time in seconds since 1970; those outside of the calendar are shown as the year 1970.
pub(crate) fn moment(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Keeps what was revoked up to date. It listens before it reads, so that no change falls between the two.
async fn keep(all: Weak<Inner>) {
    loop {
        let Some(inner) = all.upgrade() else { return };
        let listening = CertificateChanges::listen(&inner.parts.pool).await;
        drop(inner);
        let done = match listening {
            Ok(changes) => follow(&all, changes).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "revocations stay as they were last read"),
        }
        sleep(RETRY_AFTER).await;
    }
}

async fn follow(all: &Weak<Inner>, mut changes: CertificateChanges) -> Result<(), StoreError> {
    loop {
        let Some(inner) = all.upgrade() else { return Ok(()) };
        inner.read().await?;
        drop(inner);
        if let Ok(changed) = timeout(READ_EVERY, changes.next()).await {
            changed?;
        }
    }
}

/// Ends the trust in a former authority at its time.
async fn end_former(all: Weak<Inner>) {
    loop {
        let Some(inner) = all.upgrade() else { return };
        let mut changes = inner.authority_revision.subscribe();
        let pause = inner.end_former();
        drop(inner);
        let _ = timeout(pause, changes.changed()).await;
    }
}
