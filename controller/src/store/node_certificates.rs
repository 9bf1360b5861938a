//! Invitations of nodes, their certificates, and what was revoked of them.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;
use sqlx::postgres::PgListener;
use tessera_api_types::NodeCertificateView;
use tessera_model::{NodeId, NodeIdentity, NodeName};
use time::OffsetDateTime;

use super::columns::RowRef;
use super::{Pool, StoreError};

/// Invitations that may be open at once.
pub const OPEN_MAX: i64 = 1_000;
/// Maximum number of certificates in one listing.
const LISTED_MAX: i64 = 1_000;

/// An invitation to be made.
#[derive(Clone, Debug)]
pub struct NewInvitation {
    /// The token's public part.
    pub id: String,
    /// The id that the node gets if its name has none yet.
    pub fresh: NodeId,
    /// The node's name.
    pub name: NodeName,
    /// SHA-256 of the whole token.
    pub secret_hash: [u8; 32],
    /// Who made it.
    pub created_by: String,
    /// How long it is valid, in seconds.
    pub valid_secs: f64,
}

/// Makes an invitation, and returns its end; `None` if too many are open. A name that a node had before keeps
/// its id. Old rows are removed.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn insert_invitation(
    at: &mut PgConnection,
    new: &NewInvitation,
) -> Result<Option<OffsetDateTime>, StoreError> {
    let action = "invite a node";
    sqlx::query!("DELETE FROM node_invitations WHERE expires_at < now() - interval '30 days'")
        .execute(&mut *at)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    sqlx::query_scalar!(
        r#"
        INSERT INTO node_invitations (id, node, node_name, secret_hash, created_by, expires_at)
        SELECT $1,
               COALESCE(
                   (SELECT node FROM nodes WHERE name = $2),
                   (SELECT node FROM node_certificates WHERE node_name = $2
                     ORDER BY issued_at DESC LIMIT 1),
                   (SELECT node FROM node_invitations WHERE node_name = $2
                     ORDER BY created_at DESC LIMIT 1),
                   $3),
               $2, $4, $5, now() + make_interval(secs => $6)
         WHERE (SELECT count(*) FROM node_invitations
                 WHERE used_at IS NULL AND expires_at > now()) < $7
        RETURNING expires_at
        "#,
        new.id,
        new.name.as_str(),
        new.fresh.as_uuid(),
        &new.secret_hash[..],
        new.created_by,
        new.valid_secs,
        OPEN_MAX,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to(action))
}

/// How an invitation was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redemption {
    /// The machine may join as this node.
    Accepted(NodeIdentity),
    /// Another machine used it before.
    Used(String),
    /// It has expired.
    Expired(String),
    /// There is none with this token.
    Unknown,
}

/// Uses an invitation up. The same key may use it again, since the answer may have been lost on the way.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if its row can't be understood.
pub async fn redeem(
    at: &mut PgConnection,
    (id, secret_hash): (&str, [u8; 32]),
    key: [u8; 32],
) -> Result<Redemption, StoreError> {
    let action = "use an invitation up";
    let used = sqlx::query!(
        r#"
        UPDATE node_invitations SET used_at = COALESCE(used_at, now()), used_key = $3
         WHERE id = $1 AND secret_hash = $2 AND expires_at > now()
           AND (used_key IS NULL OR used_key = $3)
        RETURNING node, node_name
        "#,
        id,
        &secret_hash[..],
        &key[..],
    )
    .fetch_optional(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    if let Some(found) = used {
        let row = RowRef::new("node_invitations", id);
        let name = found
            .node_name
            .parse()
            .map_err(row.corrupt::<tessera_model::ids::BadId>("node_name"))?;
        let id = NodeId::from_uuid(found.node);
        return Ok(Redemption::Accepted(NodeIdentity { id, name }));
    }
    let found = sqlx::query!(
        r#"
        SELECT node_name, used_at IS NOT NULL AS "used!"
          FROM node_invitations WHERE id = $1 AND secret_hash = $2
        "#,
        id,
        &secret_hash[..],
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    Ok(match found {
        Some(row) if row.used => Redemption::Used(row.node_name),
        Some(row) => Redemption::Expired(row.node_name),
        None => Redemption::Unknown,
    })
}

/// Why a certificate is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateOrigin<'d> {
    /// A machine joined by an invitation.
    Joined,
    /// A node with the certificate of this serial number renewed it.
    Renewed(&'d str),
    /// A node connected with it.
    Seen,
}

/// A certificate to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct CertificateRow<'d> {
    /// Its serial number.
    pub serial: &'d str,
    /// The node that it was issued to.
    pub node: &'d NodeIdentity,
    /// The authority's name.
    pub issuer: &'d str,
    /// When it was issued.
    pub issued_at: OffsetDateTime,
    /// When it expires.
    pub expires_at: OffsetDateTime,
    /// Why it is recorded.
    pub origin: CertificateOrigin<'d>,
}

/// Records a certificate. Returns whether the node may use it: a revoked certificate renews nothing, and what a
/// revoked node shows is not recorded.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record(at: &mut PgConnection, row: CertificateRow<'_>) -> Result<bool, StoreError> {
    let action = "record a node's certificate";
    let (joined, renewed) = match row.origin {
        CertificateOrigin::Joined => (true, None),
        CertificateOrigin::Renewed(serial) => (false, Some(serial)),
        CertificateOrigin::Seen => (false, None),
    };
    let recorded = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM node_certificates WHERE serial = $1 AND revoked_at IS NULL) AS "known!"
        "#,
        row.serial,
    )
    .fetch_one(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    if recorded {
        return Ok(true);
    }
    // Old rows are removed when new ones are added.
    sqlx::query!("DELETE FROM node_certificates WHERE expires_at < now() - interval '90 days'")
        .execute(&mut *at)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let inserted = sqlx::query!(
        r#"
        INSERT INTO node_certificates (serial, node, node_name, issuer, issued_at, expires_at)
        SELECT $1, $2, $3, $4, $5, $6
         WHERE $7
            OR ($8::text IS NULL AND NOT EXISTS (SELECT FROM node_revocations WHERE node = $2))
            OR EXISTS (SELECT FROM node_certificates WHERE serial = $8 AND revoked_at IS NULL)
        ON CONFLICT DO NOTHING
        "#,
        row.serial,
        row.node.id.as_uuid(),
        row.node.name.as_str(),
        row.issuer,
        row.issued_at,
        row.expires_at,
        joined,
        renewed,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    Ok(inserted.rows_affected() == 1)
}

/// Revokes all certificates of the node with a name, recorded or not, and its open invitations. Returns the
/// node and how many recorded ones there were; `None` if no node ever had the name.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn revoke(
    pool: &Pool,
    name: &NodeName,
    by: &str,
) -> Result<Option<(NodeId, u64)>, StoreError> {
    let action = "revoke a node's certificates";
    let mut at = pool.begin().await.map_err(StoreError::while_trying_to(action))?;
    // Certificates that are being recorded are waited for, and revoked with the others.
    sqlx::query!("LOCK TABLE node_certificates IN SHARE ROW EXCLUSIVE MODE")
        .execute(&mut *at)
        .await
        .map_err(StoreError::while_trying_to(action))?;
    let node = sqlx::query_scalar!(
        r#"
        SELECT COALESCE(
                   (SELECT node FROM nodes WHERE name = $1),
                   (SELECT node FROM node_certificates WHERE node_name = $1
                     ORDER BY issued_at DESC LIMIT 1),
                   (SELECT node FROM node_invitations WHERE node_name = $1
                     ORDER BY created_at DESC LIMIT 1))
        "#,
        name.as_str(),
    )
    .fetch_one(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let Some(node) = node else { return Ok(None) };
    sqlx::query!(
        r#"
        INSERT INTO node_revocations (node, revoked_by) VALUES ($1, $2)
        ON CONFLICT (node) DO UPDATE SET revoked_at = now(), revoked_by = EXCLUDED.revoked_by
        "#,
        node,
        by,
    )
    .execute(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    sqlx::query!(
        "UPDATE node_invitations SET expires_at = now() WHERE node = $1 AND expires_at > now()",
        node,
    )
    .execute(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let revoked = sqlx::query!(
        r#"
        UPDATE node_certificates SET revoked_at = now(), revoked_by = $2
         WHERE node = $1 AND revoked_at IS NULL AND expires_at > now()
        "#,
        node,
        by,
    )
    .execute(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    at.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(Some((NodeId::from_uuid(node), revoked.rows_affected())))
}

/// Lists certificates, newest first: of the node with a name, or all.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn list(
    at: &mut PgConnection,
    name: Option<&str>,
) -> Result<Vec<NodeCertificateView>, StoreError> {
    sqlx::query_as!(
        NodeCertificateView,
        r#"
        SELECT serial, node_name AS node, issuer AS authority, issued_at, expires_at, revoked_at,
               revoked_by
          FROM node_certificates
         WHERE $1::text IS NULL OR node_name = $1
         ORDER BY issued_at DESC, serial
         LIMIT $2
        "#,
        name,
        LISTED_MAX,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list nodes' certificates"))
}

/// Reads the nodes that were ever revoked, each with the serial numbers that are accepted of it.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn read_restricted(
    at: &mut PgConnection,
) -> Result<HashMap<NodeId, HashSet<String>>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT r.node, c.serial AS "serial?"
          FROM node_revocations AS r
          LEFT JOIN node_certificates AS c
            ON c.node = r.node AND c.revoked_at IS NULL AND c.expires_at > now()
        "#
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read what was revoked"))?;
    let mut restricted: HashMap<_, HashSet<_>> = HashMap::new();
    for row in rows {
        restricted.entry(NodeId::from_uuid(row.node)).or_default().extend(row.serial);
    }
    Ok(restricted)
}

/// Notices when certificates are issued or revoked, by whichever controller.
#[derive(Debug)]
pub struct CertificateChanges(PgListener);

impl CertificateChanges {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn listen(pool: &Pool) -> Result<Self, StoreError> {
        let action = "listen for changes of nodes' certificates";
        let mut listener =
            PgListener::connect_with(pool).await.map_err(StoreError::while_trying_to(action))?;
        listener
            .listen("tessera_node_certificates")
            .await
            .map_err(StoreError::while_trying_to(action))?;
        Ok(Self(listener))
    }

    /// Waits for the next change, or for the return of a connection that was lost: then there may have
    /// been any number.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`]: listen again.
    pub async fn next(&mut self) -> Result<(), StoreError> {
        let action = "listen for changes of nodes' certificates";
        self.0.try_recv().await.map_err(StoreError::while_trying_to(action)).map(drop)
    }
}
