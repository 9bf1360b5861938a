//! OpenID Connect: tokens that an issuer signed prove a name and a role, for as long as the issuer chose.
//!
//! A token is checked here, by the issuer's public keys. They are fetched in the background and at most once
//! a minute, so neither a token nor an issuer that fails holds up anybody else.

mod keys;
mod signatures;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::bail;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation, decode, decode_header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as TurnMutex, Semaphore};
use tokio::time::{Instant, timeout};

use self::keys::{Key, KeyChoice, KeyFetchError, KeyRing};
use self::signatures::ALGORITHMS;
use self::source::KeySource;
use crate::outgoing::checked_url;
use crate::principal::{Principal, Role, is_user_name};

pub use self::keys::KeyPace;

/// How far clocks may differ, in seconds.
const LEEWAY_SECS: u64 = 30;
/// Longest token: above those with hundreds of groups, below the limit of a request's head.
const TOKEN_MAX: usize = 16 << 10;
/// How long a token waits for its issuer's keys.
const WAIT_FOR_KEYS: Duration = Duration::from_secs(5);
/// Tokens that wait for keys at once: an issuer that hangs must not hold every connection.
const WAITING_MAX: usize = 64;
/// How long a fetch may take in all.
const FETCH_WITHIN: Duration = Duration::from_secs(10);

/// The issuer of tokens: table `oidc` of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OidcSettings {
    /// The issuer, exactly as its tokens name it (`iss`).
    pub issuer: String,
    /// The service that tokens must be made for (`aud`).
    pub audience: String,
    /// The claim that holds the name of the user's account. Users must not be able to choose it themselves.
    pub user_claim: String,
    /// The claim that holds the user's groups; dots lead into objects, as in `realm_access.roles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<String>,
    /// A file with the issuer's keys (JWKS). Without it they are fetched from the issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<PathBuf>,
    /// The authorities that sign the issuer's certificate (PEM); by default those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The roles of groups. A user in none of them has the role user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, Role>,
}

impl OidcSettings {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Names the setting that is wrong and what was expected.
    pub fn check(&self) -> anyhow::Result<()> {
        checked_url(&self.issuer).map_err(|error| error.context("oidc.issuer"))?;
        for (key, value) in [("audience", &self.audience), ("user-claim", &self.user_claim)] {
            if value.trim().is_empty() {
                bail!("oidc.{key} is empty: write the value in the issuer's tokens");
            }
        }
        if !self.roles.is_empty() && self.groups_claim.is_none() {
            bail!("oidc.roles needs oidc.groups-claim: the claim that holds the groups");
        }
        Ok(())
    }

    /// Returns what a token may do by the groups that it names.
    fn role(&self, claims: &Value) -> Role {
        let groups = self.groups_claim.as_deref().and_then(|path| claim(claims, path));
        let named: Vec<&str> = match groups {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let roles = named.into_iter().filter_map(|group| self.roles.get(group));
        // A user who may only read metrics has a group for that, and no other one.
        roles.copied().max().unwrap_or(Role::User)
    }
}

/// Returns a claim by its name, or by a path of names: names themselves may hold dots.
fn claim<'v>(claims: &'v Value, path: &str) -> Option<&'v Value> {
    if let Some(found) = claims.get(path) {
        return Some(found);
    }
    path.match_indices('.').find_map(|(dot, _)| {
        let inner = claims.get(&path[..dot])?;
        claim(inner, &path[dot + 1..])
    })
}

/// What a token of the issuer proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedProof {
    /// The name that the issuer gives the user.
    pub user: Arc<str>,
    /// The role, by the groups that the token names.
    pub role: Role,
    /// The issuer's own name of the user.
    pub subject: Arc<str>,
    /// Until when it is valid here.
    pub expires_at: OffsetDateTime,
}

/// Why a token of the issuer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssuerRefusal {
    /// It is not valid here.
    #[error("the token of the issuer is refused: {reason}")]
    Invalid {
        /// Why the proof is refused.
        reason: String,
    },
    /// It can't be checked now: the issuer's keys are missing.
    #[error("the keys of the token's issuer are not available: {reason}")]
    Unavailable {
        /// Why the issuer's keys can't be read.
        reason: String,
    },
}

/// The issuer whose tokens are valid. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Issuer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: OidcSettings,
    source: KeySource,
    pace: KeyPace,
    ring: Mutex<KeyRing>,
    /// Held while keys are fetched: nobody fetches twice at once.
    turn: TurnMutex<()>,
    waiting: Semaphore,
    runtime: Handle,
}

/// Returns whether a bearer token has the form of an issuer's: three parts with dots between them. Personal
/// tokens have none.
pub fn has_form(token: &str) -> bool {
    token.split('.').count() == 3
}

impl Issuer {
    /// Opens an issuer, whose keys are fetched on `runtime`.
    ///
    /// # Errors
    ///
    /// If a setting is wrong. An issuer that does not respond is not an error.
    pub fn open(settings: OidcSettings, pace: KeyPace, runtime: Handle) -> anyhow::Result<Self> {
        settings.check()?;
        signatures::install();
        let source = KeySource::open(&settings)?;
        let issuer = Self(Arc::new(Inner {
            settings,
            source,
            pace,
            ring: Mutex::default(),
            turn: TurnMutex::default(),
            waiting: Semaphore::new(WAITING_MAX),
            runtime,
        }));
        // The first user need not wait for the keys.
        drop(issuer.fetch());
        Ok(issuer)
    }

    /// Returns what a token proves.
    ///
    /// # Errors
    ///
    /// [`IssuerRefusal`].
    pub async fn check(&self, token: &str) -> Result<IssuedProof, IssuerRefusal> {
        let header = header_of(token)?;
        let key = self.key_for(&header).await?;
        let claims = self.claims(token, &key)?;
        self.proof(&claims)
    }

    async fn key_for(&self, header: &Header) -> Result<Box<Key>, IssuerRefusal> {
        match self.choose(header) {
            KeyChoice::Use { key, stale } => {
                if stale {
                    drop(self.fetch());
                }
                Ok(key)
            }
            KeyChoice::Unknown | KeyChoice::Unavailable { .. } if !self.is_fetching() => {
                self.settled(header)
            }
            _ => {
                let unavailable =
                    |reason: &str| IssuerRefusal::Unavailable { reason: reason.into() };
                let _place = self
                    .0
                    .waiting
                    .try_acquire()
                    .map_err(|_| unavailable("too many tokens wait for them"))?;
                // It goes on if this request ends.
                if timeout(WAIT_FOR_KEYS, self.fetch()).await.is_err() {
                    return Err(unavailable("the issuer does not respond"));
                }
                self.settled(header)
            }
        }
    }

    /// Returns the key for a token once there is nothing to wait for.
    fn settled(&self, header: &Header) -> Result<Box<Key>, IssuerRefusal> {
        match self.choose(header) {
            KeyChoice::Use { key, .. } => Ok(key),
            KeyChoice::Unavailable { problem } => {
                Err(IssuerRefusal::Unavailable { reason: problem })
            }
            KeyChoice::Fetch | KeyChoice::Unknown => match self.ring().problem() {
                Some(problem) => Err(IssuerRefusal::Unavailable { reason: problem.to_owned() }),
                None => {
                    Err(invalid("the issuer has no key with the id and algorithm that it names"))
                }
            },
        }
    }

    fn choose(&self, header: &Header) -> KeyChoice {
        self.ring().choose(header, &self.0.pace, Instant::now())
    }

    fn is_fetching(&self) -> bool {
        self.0.turn.try_lock().is_err()
    }

    /// Fetches the keys, unless somebody just did.
    fn fetch(&self) -> tokio::task::JoinHandle<()> {
        let issuer = self.clone();
        self.0.runtime.spawn(async move {
            let _turn = issuer.0.turn.lock().await;
            if !issuer.ring().is_due(&issuer.0.pace, Instant::now()) {
                return;
            }
            issuer.ring().begin(Instant::now());
            let fetched = match timeout(FETCH_WITHIN, issuer.0.source.fetch()).await {
                Ok(fetched) => fetched.map_err(KeyFetchError::Source),
                Err(_) => Err(KeyFetchError::Late),
            };
            if let Err(problem) = &fetched {
                let issuer = &issuer.0.settings.issuer;
                tracing::warn!(issuer, %problem, "the issuer's keys could not be fetched");
            }
            issuer.ring().end(fetched, Instant::now());
        })
    }

    fn claims(&self, token: &str, key: &Key) -> Result<Value, IssuerRefusal> {
        let settings = &self.0.settings;
        let mut terms = Validation::default();
        terms.algorithms.clone_from(&key.algorithms);
        terms.leeway = LEEWAY_SECS;
        terms.validate_nbf = true;
        terms.set_audience(&[&settings.audience]);
        terms.set_issuer(&[&settings.issuer]);
        terms.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let decoded = decode::<Value>(token, &key.key, &terms).map_err(|error| {
            invalid(match error.kind() {
                ErrorKind::ExpiredSignature => "it has expired",
                ErrorKind::ImmatureSignature => "it is not valid yet",
                ErrorKind::InvalidIssuer => "another issuer made it",
                ErrorKind::InvalidAudience => "it was made for another service",
                ErrorKind::InvalidSignature => "its signature is wrong",
                ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => {
                    "one of the claims exp, iss, aud and sub is missing or malformed"
                }
                _ => "it is malformed",
            })
        })?;
        // The standard has no list of issuers here.
        if decoded.claims["iss"].as_str() != Some(&*settings.issuer) {
            return Err(invalid("another issuer made it"));
        }
        Ok(decoded.claims)
    }

    fn proof(&self, claims: &Value) -> Result<IssuedProof, IssuerRefusal> {
        let settings = &self.0.settings;
        let user = claim(claims, &settings.user_claim).and_then(Value::as_str);
        let user = user.ok_or_else(|| {
            invalid(&format!("it has no claim {} with the user's name", settings.user_claim))
        })?;
        if !is_user_name(user) || user == Principal::BOOTSTRAP {
            return Err(invalid(&format!("{user:?} is not the name of a user")));
        }
        let subject = claims["sub"].as_str().unwrap_or_default();
        // The standard allows fractions of seconds.
        let expires = time::Duration::saturating_seconds_f64(claims["exp"].as_f64().unwrap_or(0.0));
        let expires = expires.saturating_add(time::Duration::seconds(LEEWAY_SECS.cast_signed()));
        let expires_at = OffsetDateTime::UNIX_EPOCH.saturating_add(expires);
        Ok(IssuedProof {
            expires_at,
            user: user.into(),
            role: settings.role(claims),
            subject: subject
                .chars()
                .filter(|c| !c.is_control())
                .take(64)
                .collect::<String>()
                .into(),
        })
    }

    fn ring(&self) -> MutexGuard<'_, KeyRing> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a token's header. What it names is only a proposal.
fn header_of(token: &str) -> Result<Header, IssuerRefusal> {
    if token.len() > TOKEN_MAX {
        return Err(invalid("it is too long"));
    }
    // This reader rejects an unknown algorithm, including `none`.
    let header = decode_header(token)
        .map_err(|_| invalid("its header is malformed, or names no known algorithm"))?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(invalid("its algorithm is not one for public keys"));
    }
    if header.crit.is_some() {
        return Err(invalid("it needs extensions that are not supported"));
    }
    Ok(header)
}

fn invalid(reason: &str) -> IssuerRefusal {
    IssuerRefusal::Invalid { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    fn settings() -> OidcSettings {
        OidcSettings {
            issuer: "https://login.example.org".to_owned(),
            audience: "tessera".to_owned(),
            user_claim: "uid".to_owned(),
            groups_claim: Some("realm_access.roles".to_owned()),
            keys: None,
            ca: None,
            roles: [("gpu-ops".to_owned(), Role::Operator), ("watch".to_owned(), Role::Metrics)]
                .into(),
        }
    }

    #[test]
    fn groups_give_roles_and_everybody_else_is_a_user() {
        let role = |claims: Value| settings().role(&claims);

        assert_eq!(role(json!({ "realm_access": { "roles": ["x", "gpu-ops"] } })), Role::Operator);
        assert_eq!(role(json!({ "realm_access.roles": "gpu-ops" })), Role::Operator);
        assert_eq!(role(json!({ "realm_access": { "roles": ["watch"] } })), Role::Metrics);
        for none in [json!({}), json!({ "realm_access": 1 }), json!({ "roles": ["gpu-ops"] })] {
            assert_eq!(role(none.clone()), Role::User, "{none}");
        }
    }

    #[test]
    fn each_wrong_setting_names_what_was_expected() {
        type Break = fn(&mut OidcSettings);
        let cases: [(&str, Break); 4] = [
            ("https://", |s| s.issuer = "http://login.example.org".into()),
            ("oidc.audience", |s| s.audience = " ".into()),
            ("oidc.user-claim", |s| s.user_claim = String::new()),
            ("groups-claim", |s| s.groups_claim = None),
        ];
        assert!(settings().check().is_ok());
        for (hint, break_it) in cases {
            let mut wrong = settings();
            break_it(&mut wrong);

            let error = format!("{:#}", wrong.check().unwrap_err());

            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn headers_that_name_no_public_key_are_refused_before_any_key_is_fetched() {
        for header in
            [r#"{"alg":"none"}"#, r#"{"alg":"HS256"}"#, r#"{"alg":"RS256","crit":["b64"]}"#]
        {
            let token = format!("{}.e30.c2ln", base64(header));
            assert!(header_of(&token).is_err(), "{header}");
        }
        assert!(header_of(&format!("{}.e30.c2ln", base64(r#"{"alg":"RS256"}"#))).is_ok());
        assert!(has_form("a.b.c") && !has_form("tsr_user_a_b"));
    }

    fn base64(text: &str) -> String {
        URL_SAFE_NO_PAD.encode(text)
    }
}
