//! Personal tokens: their form, and those that are valid now, in memory.
//!
//! A request costs a hash and a look-up, and no statement. The database reports each change of a token, so
//! that a revoked one is refused within a moment. While the database is away nothing can be revoked, and
//! the tokens that were valid stay so.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use ring::rand::SecureRandom as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tessera_api_types::TokenView;
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::principal::Role;
use crate::store::tokens::{self as store, LiveToken, NewToken, TokenChanges};
use crate::store::{Connection, Pool, StoreError, acquire};

/// What every token begins with, so that scanners of repositories recognise it.
const PREFIX: &str = "tsr_";
/// Letters of a token's public part.
const ID_LETTERS: usize = 8;
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Letters of the secret: 62^43 is above 2^256.
const SECRET_LETTERS: usize = 43;
/// Letters of the checksum, which separates typing errors from attacks.
const CHECK_LETTERS: usize = 6;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// How often the tokens are read without a notice, should one have been lost.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How long to wait after the database did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A token as its user holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest must not reach a log.
        write!(f, "Secret({})", id_of(&self.0).unwrap_or("?"))
    }
}

impl Secret {
    /// Creates a new token.
    ///
    /// # Errors
    ///
    /// The system gives no randomness.
    pub fn new(role: Role) -> Result<Self, ring::error::Unspecified> {
        let mut random = [0; ID_LETTERS + SECRET_BYTES];
        ring::rand::SystemRandom::new().fill(&mut random)?;
        let (id, secret) = random.split_at(ID_LETTERS);
        // Lower case and digits: people read ids aloud.
        let id = id
            .iter()
            .map(|byte| char::from(b"0123456789abcdefghijklmnopqrstuv"[usize::from(byte % 32)]));
        let id: String = id.collect();
        let body = format!("{PREFIX}{role}_{id}_{}", base62(secret, SECRET_LETTERS));
        let check = check_of(&body);
        Ok(Self(body + &check))
    }

    /// Returns the text, which is shown once.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the public part.
    pub fn id(&self) -> &str {
        id_of(&self.0).unwrap_or_default()
    }

    /// Returns what is kept of it.
    pub fn hash(&self) -> [u8; 32] {
        hash(&self.0)
    }
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn id_of(text: &str) -> Option<&str> {
    let mut parts = text.strip_prefix(PREFIX)?.split('_');
    let (_role, id, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = rest.len() == SECRET_LETTERS + CHECK_LETTERS && parts.next().is_none();
    (whole && id.len() == ID_LETTERS && rest.is_ascii()).then_some(id)
}

fn is_whole(text: &str) -> bool {
    id_of(text).is_some() && {
        let (body, check) = text.split_at(text.len() - CHECK_LETTERS);
        check_of(body) == check
    }
}

fn check_of(body: &str) -> String {
    base62(&crc32fast::hash(body.as_bytes()).to_be_bytes(), CHECK_LETTERS)
}

/// Writes a number with this many digits: the last ones if it is longer.
fn base62(number: &[u8], letters: usize) -> String {
    let mut number = number.to_vec();
    let mut digits = Vec::with_capacity(letters);
    for _ in 0..letters {
        let mut rest = 0_u32;
        for byte in &mut number {
            let value = rest * 256 + u32::from(*byte);
            *byte = u8::try_from(value / 62).expect("the rest is below 62");
            rest = value % 62;
        }
        digits.push(char::from(DIGITS[usize::try_from(rest).expect("a digit is below 62")]));
    }
    digits.iter().rev().collect()
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// Its form or its checksum is wrong: it was cut or mistyped.
    #[error("the token is not a whole Tessera token")]
    Broken,
    /// Which tokens are valid has not been read yet.
    #[error("the tokens have not been read from the database yet")]
    Unread,
    /// It is unknown, revoked or expired.
    #[error("the token is not valid: it is unknown, was revoked, or has expired")]
    Invalid,
}

/// What a valid token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenProof {
    /// The token in the data folder.
    Bootstrap,
    /// A personal token.
    Personal {
        /// Number of the token, without its secret.
        id: Arc<str>,
        /// The user that it belongs to.
        user: Arc<str>,
        /// The highest role that it may have.
        role: Role,
        /// Whether an administrator granted this role, whatever role its user has.
        granted: bool,
    },
}

#[derive(Clone, Debug)]
struct Known {
    id: Arc<str>,
    user: Arc<str>,
    role: Role,
    granted: bool,
    hash: [u8; 32],
    expires_at: OffsetDateTime,
}

/// The tokens that are valid now. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ValidTokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bootstrap: Option<[u8; 32]>,
    known: RwLock<HashMap<String, Known>>,
    /// Whether they were read since the start.
    is_read: AtomicBool,
    used: Mutex<HashMap<String, OffsetDateTime>>,
    /// Raised whenever they were read.
    reads: watch::Sender<()>,
    pool: Pool,
    runtime: Handle,
}

impl ValidTokens {
    /// Opens them over a pool whose connections are to live on `runtime`, and keeps them up to date until
    /// they are dropped. `bootstrap` is the token in the data folder.
    pub fn open(pool: Pool, runtime: Handle, bootstrap: Option<&str>) -> Self {
        let registry = Self(Arc::new(Inner {
            bootstrap: bootstrap.map(hash),
            known: RwLock::default(),
            is_read: AtomicBool::new(false),
            used: Mutex::default(),
            reads: watch::Sender::default(),
            pool,
            runtime: runtime.clone(),
        }));
        runtime.spawn(keep(Arc::downgrade(&registry.0)));
        registry
    }

    /// Returns what a token proves.
    ///
    /// # Errors
    ///
    /// [`TokenRefusal`].
    pub fn check(&self, text: &str, now: OffsetDateTime) -> Result<TokenProof, TokenRefusal> {
        let given = hash(text);
        if self.0.bootstrap.is_some_and(|known| bool::from(known.ct_eq(&given))) {
            return Ok(TokenProof::Bootstrap);
        }
        if !is_whole(text) {
            return Err(TokenRefusal::Broken);
        }
        let id = id_of(text).ok_or(TokenRefusal::Broken)?;
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(id);
        // An unknown id is compared, too, so that the time taken doesn't show which ids exist.
        let expected = found.map_or([0; 32], |found| found.hash);
        let equal = bool::from(expected.ct_eq(&given));
        let found = found.filter(|found| equal && found.expires_at > now);
        let is_read = self.0.is_read.load(Ordering::Acquire);
        let refusal = if is_read { TokenRefusal::Invalid } else { TokenRefusal::Unread };
        let found = found.ok_or(refusal)?;
        self.note_use(id, now);
        Ok(TokenProof::Personal {
            id: Arc::clone(&found.id),
            user: Arc::clone(&found.user),
            role: found.role,
            granted: found.granted,
        })
    }

    /// Waits until a personal token is not valid any more: it was revoked, or has expired.
    #[expect(clippy::disallowed_methods, reason = "whether a token has expired, at the edge")]
    pub async fn until_invalid(self, id: Arc<str>) {
        let mut reads = self.0.reads.subscribe();
        while let Some(left) = self.left(&id, OffsetDateTime::now_utc()) {
            // Tokens are read again within this time, and the wall clock may be set meanwhile.
            if let Ok(Err(_)) = timeout(left.min(READ_EVERY), reads.changed()).await {
                return;
            }
        }
    }

    /// Returns how long a token is still valid; `None` if it is not.
    fn left(&self, id: &str, now: OffsetDateTime) -> Option<Duration> {
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        let left = known.get(id)?.expires_at - now;
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }

    /// Makes a token; `None` if its user has too many. It is valid when this returns.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn insert(&self, new: NewToken) -> Result<Option<TokenView>, StoreError> {
        let inner = Arc::clone(&self.0);
        self.run(async move {
            let mut at = acquire(&inner.pool).await?;
            let made = store::insert(&mut at, &new).await?;
            inner.read(&mut at).await?;
            Ok(made)
        })
        .await
    }

    /// Revokes a token, of one user if one is given; `None` if there is no such token. It is refused when
    /// this returns.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn revoke(
        &self,
        id: String,
        user: Option<String>,
        by: String,
    ) -> Result<Option<TokenView>, StoreError> {
        let inner = Arc::clone(&self.0);
        self.run(async move {
            let mut at = acquire(&inner.pool).await?;
            let revoked = store::revoke(&mut at, &id, user.as_deref(), &by).await?;
            inner.read(&mut at).await?;
            Ok(revoked)
        })
        .await
    }

    /// Lists tokens, newest first: of one user, or of all users.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn list(&self, user: Option<String>) -> Result<Vec<TokenView>, StoreError> {
        let inner = Arc::clone(&self.0);
        self.run(async move {
            let mut at = acquire(&inner.pool).await?;
            store::list(&mut at, user.as_deref()).await
        })
        .await
    }

    /// Runs in its own task, on the runtime that owns the connections: a request that is dropped
    /// leaves no statement half done.
    async fn run<T: Send + 'static>(
        &self,
        statement: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        // A task ends without an answer only when its runtime shuts down.
        self.0.runtime.spawn(statement).await.unwrap_or_else(|_| Err(StoreError::stopping()))
    }

    fn note_use(&self, id: &str, now: OffsetDateTime) {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        match used.get_mut(id) {
            Some(at) => *at = now,
            None => drop(used.insert(id.to_owned(), now)),
        }
    }
}

impl Inner {
    /// Reads the valid tokens again.
    async fn read(&self, at: &mut Connection) -> Result<(), StoreError> {
        let live = store::read_live(at).await?;
        let known = live.into_iter().map(|token| (token.id.clone(), Known::from(token))).collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        self.is_read.store(true, Ordering::Release);
        self.reads.send_replace(());
        Ok(())
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let mut at = acquire(&self.pool).await?;
        let used: Vec<_> = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.drain().collect()
        };
        if !used.is_empty() {
            let (ids, times): (Vec<_>, Vec<_>) = used.into_iter().unzip();
            store::record_uses(&mut at, &ids, &times).await?;
        }
        self.read(&mut at).await
    }
}

impl From<LiveToken> for Known {
    fn from(token: LiveToken) -> Self {
        Self {
            id: token.id.into(),
            user: token.user.into(),
            role: token.role,
            granted: token.granted,
            hash: token.secret_hash,
            expires_at: token.expires_at,
        }
    }
}

/// Keeps the tokens up to date. It listens before it reads, so that no change falls between the two.
async fn keep(registry: Weak<Inner>) {
    loop {
        let Some(inner) = registry.upgrade() else { return };
        let listening = TokenChanges::listen(&inner.pool).await;
        drop(inner);
        let done = match listening {
            Ok(changes) => follow(&registry, changes).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => return,
            Err(error) => tracing::warn!(error = %error, "tokens stay as they were last read"),
        }
        sleep(RETRY_AFTER).await;
    }
}

async fn follow(registry: &Weak<Inner>, mut changes: TokenChanges) -> Result<(), StoreError> {
    loop {
        let Some(inner) = registry.upgrade() else { return Ok(()) };
        inner.refresh().await?;
        drop(inner);
        if let Ok(changed) = timeout(READ_EVERY, changes.next()).await {
            changed?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_public_part_a_secret_and_a_checksum() {
        let secret = Secret::new(Role::Operator).unwrap();

        assert!(secret.text().starts_with("tsr_operator_"), "{secret:?}");
        assert_eq!(secret.id().len(), ID_LETTERS);
        assert!(is_whole(secret.text()));
        assert!(!format!("{secret:?}").contains(secret.text().rsplit('_').next().unwrap()));
        assert_ne!(secret, Secret::new(Role::Operator).unwrap());
    }

    #[test]
    fn a_token_that_was_cut_or_mistyped_is_not_whole() {
        let secret = Secret::new(Role::User).unwrap();
        let text = secret.text();

        for cut in 0..text.len() {
            assert!(!is_whole(&text[..cut]), "{cut} letters");
        }
        for place in 0..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[place] = if other[place] == b'x' { b'y' } else { b'x' };
            let other = String::from_utf8(other).unwrap();
            assert!(!is_whole(&other), "letter {place}");
        }
        for odd in ["", "tsr_", "tsr_user", "tsr_user_a_b", "Bearer", "tsr_user_\u{e4}"] {
            assert!(!is_whole(odd), "{odd}");
        }
    }

    #[test]
    fn numbers_are_written_in_62_digits() {
        assert_eq!(base62(&[0], 1), "0");
        assert_eq!(base62(&[61], 2), "0z");
        assert_eq!(base62(&[62], 2), "10");
        assert_eq!(base62(&[0xff; 32], SECRET_LETTERS).len(), SECRET_LETTERS);
    }
}
