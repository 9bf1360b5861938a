//! Personal tokens. Only the hash of a secret is kept.

use sqlx::PgConnection;
use sqlx::postgres::PgListener;
use tessera_api_types::TokenView;
use time::OffsetDateTime;

use super::columns::RowRef;
use super::{Pool, StoreError};
use crate::principal::{Role, UnknownRole};

/// Tokens of one user that may be valid at once.
pub const LIVE_MAX: i64 = 100;
/// Maximum number of tokens in one listing.
const LISTED_MAX: i64 = 1_000;

/// A token to be made.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its public part.
    pub id: String,
    /// What its user calls it.
    pub name: String,
    /// The user that it belongs to.
    pub user: String,
    /// What it may do.
    pub role: Role,
    /// SHA-256 of the whole token.
    pub secret_hash: [u8; 32],
    /// Who made it.
    pub created_by: String,
    /// How long it is valid, in seconds.
    pub valid_secs: f64,
}

/// A token that can be used now.
#[derive(Clone, Debug)]
pub struct LiveToken {
    /// Its public part.
    pub id: String,
    /// The user that it belongs to.
    pub user: String,
    /// What it may do.
    pub role: Role,
    /// SHA-256 of the whole token.
    pub secret_hash: [u8; 32],
    /// Whether an administrator granted this role, whatever role its user has.
    pub granted: bool,
    /// When it ends.
    pub expires_at: OffsetDateTime,
}

/// Makes a token; `None` if its user has too many.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn insert(
    at: &mut PgConnection,
    new: &NewToken,
) -> Result<Option<TokenView>, StoreError> {
    sqlx::query_as!(
        TokenView,
        r#"
        INSERT INTO api_tokens (id, token_name, user_name, role, secret_hash, created_by, expires_at)
        SELECT $1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7)
         WHERE (SELECT count(*) FROM api_tokens
                 WHERE user_name = $3 AND revoked_at IS NULL AND expires_at > now()) < $8
        RETURNING id, token_name AS name, user_name AS user, role, created_by, created_at, expires_at,
                  last_used_at, revoked_at
        "#,
        new.id,
        new.name,
        new.user,
        new.role.word(),
        &new.secret_hash[..],
        new.created_by,
        new.valid_secs,
        LIVE_MAX,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("make a token"))
}

/// Revokes a token; `None` if there is none with this id, of this user if one is given. One that is
/// revoked already stays as it is.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn revoke(
    at: &mut PgConnection,
    id: &str,
    user: Option<&str>,
    by: &str,
) -> Result<Option<TokenView>, StoreError> {
    sqlx::query_as!(
        TokenView,
        r#"
        UPDATE api_tokens
           SET revoked_at = COALESCE(revoked_at, now()), revoked_by = COALESCE(revoked_by, $3)
         WHERE id = $1 AND ($2::text IS NULL OR user_name = $2)
        RETURNING id, token_name AS name, user_name AS user, role, created_by, created_at, expires_at,
                  last_used_at, revoked_at
        "#,
        id,
        user,
        by,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("revoke a token"))
}

/// Lists tokens, newest first: of one user, or of all users.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn list(at: &mut PgConnection, user: Option<&str>) -> Result<Vec<TokenView>, StoreError> {
    sqlx::query_as!(
        TokenView,
        r#"
        SELECT id, token_name AS name, user_name AS user, role, created_by, created_at, expires_at,
               last_used_at, revoked_at
          FROM api_tokens
         WHERE $1::text IS NULL OR user_name = $1
         ORDER BY created_at DESC, id
         LIMIT $2
        "#,
        user,
        LISTED_MAX,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list tokens"))
}

/// Reads every token that can be used.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a row can't be understood.
pub async fn read_live(at: &mut PgConnection) -> Result<Vec<LiveToken>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT id, user_name, role, secret_hash, created_by, expires_at
          FROM api_tokens
         WHERE revoked_at IS NULL AND expires_at > now()
        "#
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read the tokens"))?;
    rows.into_iter()
        .map(|found| {
            let row = RowRef::new("api_tokens", &found.id);
            let hash = found.secret_hash.as_slice().try_into();
            Ok(LiveToken {
                role: found.role.parse().map_err(row.corrupt::<UnknownRole>("role"))?,
                secret_hash: hash
                    .map_err(row.corrupt::<std::array::TryFromSliceError>("secret_hash"))?,
                granted: found.created_by != found.user_name,
                user: found.user_name,
                expires_at: found.expires_at,
                id: found.id.clone(),
            })
        })
        .collect()
}

/// Records when tokens were last used.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record_uses(
    at: &mut PgConnection,
    ids: &[String],
    times: &[OffsetDateTime],
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"
        UPDATE api_tokens AS t SET last_used_at = GREATEST(t.last_used_at, u.used)
          FROM UNNEST($1::text[], $2::timestamptz[]) AS u (id, used)
         WHERE t.id = u.id
        "#,
        ids,
        times,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to("record when tokens were used"))
    .map(drop)
}

/// Notices when tokens are made or revoked, by whichever controller.
#[derive(Debug)]
pub struct TokenChanges(PgListener);

impl TokenChanges {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn listen(pool: &Pool) -> Result<Self, StoreError> {
        let action = "listen for changes of tokens";
        let mut listener =
            PgListener::connect_with(pool).await.map_err(StoreError::while_trying_to(action))?;
        listener.listen("tessera_tokens").await.map_err(StoreError::while_trying_to(action))?;
        Ok(Self(listener))
    }

    /// Waits for the next change, or for the return of a connection that was lost: then there may have
    /// been any number.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`]: listen again.
    pub async fn next(&mut self) -> Result<(), StoreError> {
        self.0
            .try_recv()
            .await
            .map_err(StoreError::while_trying_to("listen for changes of tokens"))
            .map(drop)
    }
}
