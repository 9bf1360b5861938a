//! The keys of an issuer: which of them checks a token, and when they are fetched again.

use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Header};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::signatures::ALGORITHMS;

/// Keys of one issuer that are kept: ten times what issuers have.
const KEYS_MAX: usize = 100;

/// A key that checks tokens.
#[derive(Clone, Debug)]
pub(super) struct Key {
    id: Option<String>,
    /// The algorithms that it may be used for; never a symmetric one.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// The keys of an issuer. Those that check nothing here are left out.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet(Vec<Key>);

/// A set of keys as issuers publish it (RFC 7517).
#[derive(Debug, Deserialize)]
pub(super) struct PublishedKeys {
    /// One by one, since a key of a new kind must not hide the others.
    keys: Vec<Value>,
}

impl From<PublishedKeys> for KeySet {
    fn from(set: PublishedKeys) -> Self {
        let known = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        Self(known.filter_map(|key| usable(&key)).take(KEYS_MAX).collect())
    }
}

fn usable(jwk: &Jwk) -> Option<Key> {
    if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature)
    {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    if key.family() == AlgorithmFamily::Hmac {
        return None;
    }
    let mut algorithms: Vec<Algorithm> =
        ALGORITHMS.into_iter().filter(|algorithm| algorithm.family() == key.family()).collect();
    // A key for one algorithm is for no other one.
    if let Some(named) = jwk.common.key_algorithm {
        algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == named);
    }
    (!algorithms.is_empty()).then(|| Key { id: jwk.common.key_id.clone(), algorithms, key })
}

impl KeySet {
    /// Returns whether no key of the issuer can be used.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key that a token names. A token that names none is checked by the only one that fits.
    fn find(&self, header: &Header) -> Option<&Key> {
        let mut fitting = self.0.iter().filter(|key| key.algorithms.contains(&header.alg));
        match &header.kid {
            Some(id) => fitting.find(|key| key.id.as_ref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }
}

/// How often keys are fetched, and how long they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPace {
    /// The shortest time between two fetches, whatever tokens name.
    pub between: Duration,
    /// Keys of this age are fetched again, so that withdrawn keys are no longer used.
    pub refresh_after: Duration,
    /// How long keys are used while the issuer does not respond.
    pub usable_for: Duration,
}

impl Default for KeyPace {
    fn default() -> Self {
        Self {
            between: Duration::from_secs(60),
            refresh_after: Duration::from_secs(600),
            usable_for: Duration::from_secs(86_400),
        }
    }
}

/// What to do with a token.
#[derive(Clone, Debug)]
pub(super) enum KeyChoice {
    /// Check it by this key; `stale` if the keys should be fetched again in the meantime.
    Use { key: Box<Key>, stale: bool },
    /// Fetch the keys first.
    Fetch,
    /// The issuer has no such key.
    Unknown,
    /// The keys could not be fetched.
    Unavailable { problem: String },
}

/// Why an issuer's keys were not fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyFetchError {
    /// The issuer, or the file of its keys, gave none.
    #[error("{0:#}")]
    Source(anyhow::Error),
    /// There was no answer in time.
    #[error("the issuer does not respond")]
    Late,
}

/// The keys as they were last fetched.
#[derive(Debug, Default)]
pub(super) struct KeyRing {
    fetched: Option<(KeySet, Instant)>,
    attempted: Option<Instant>,
    problem: Option<String>,
}

impl KeyRing {
    /// Decides by which key a token is checked, or what has to be done before.
    pub(super) fn choose(&self, header: &Header, pace: &KeyPace, now: Instant) -> KeyChoice {
        let due = self.is_due(pace, now);
        let age = |at: Instant| now.saturating_duration_since(at);
        let usable = self.fetched.as_ref().filter(|(_, at)| age(*at) < pace.usable_for);
        if let Some((keys, at)) = usable
            && let Some(key) = keys.find(header)
        {
            let stale = due && age(*at) >= pace.refresh_after;
            return KeyChoice::Use { key: Box::new(key.clone()), stale };
        }
        if due {
            return KeyChoice::Fetch;
        }
        match (&self.problem, usable) {
            (Some(problem), _) => KeyChoice::Unavailable { problem: problem.clone() },
            (None, Some(_)) => KeyChoice::Unknown,
            (None, None) => KeyChoice::Unavailable { problem: "they are being fetched".to_owned() },
        }
    }

    /// Returns whether a fetch may begin.
    pub(super) fn is_due(&self, pace: &KeyPace, now: Instant) -> bool {
        self.attempted.is_none_or(|at| now.saturating_duration_since(at) >= pace.between)
    }

    /// Returns why the last fetch failed, if it did.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Notes that a fetch begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.attempted = Some(now);
    }

    /// Keeps what was fetched, or notes why nothing was. A fetch that failed leaves the keys as they are.
    pub(super) fn end(&mut self, outcome: Result<KeySet, KeyFetchError>, now: Instant) {
        match outcome {
            Ok(keys) => {
                self.fetched = Some((keys, now));
                self.problem = None;
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PACE: KeyPace = KeyPace {
        between: Duration::from_secs(60),
        refresh_after: Duration::from_secs(600),
        usable_for: Duration::from_secs(86_400),
    };

    fn keys(ids: &[&str]) -> KeySet {
        let keys = ids.iter().map(|id| {
            json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "use": "sig",
                    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" })
        });
        let set = json!({ "keys": keys.collect::<Vec<_>>() });
        KeySet::from(serde_json::from_value::<PublishedKeys>(set).unwrap())
    }

    fn header(id: Option<&str>) -> Header {
        Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::EdDSA) }
    }

    fn after(start: Instant, secs: u64) -> Instant {
        start + Duration::from_secs(secs)
    }

    #[test]
    fn an_unknown_key_is_fetched_for_at_most_once_a_minute() {
        let (mut ring, start) = (KeyRing::default(), Instant::now());
        let choice =
            |ring: &KeyRing, id, secs| ring.choose(&header(Some(id)), &PACE, after(start, secs));

        assert!(matches!(choice(&ring, "a", 0), KeyChoice::Fetch));
        ring.begin(start);
        assert!(matches!(choice(&ring, "a", 1), KeyChoice::Unavailable { .. }));
        ring.end(Ok(keys(&["a"])), after(start, 1));
        assert!(matches!(choice(&ring, "a", 2), KeyChoice::Use { stale: false, .. }));
        assert!(matches!(choice(&ring, "b", 59), KeyChoice::Unknown));
        assert!(matches!(choice(&ring, "b", 60), KeyChoice::Fetch));
    }

    #[test]
    fn keys_are_used_for_a_day_while_the_issuer_is_silent() {
        let (mut ring, start) = (KeyRing::default(), Instant::now());
        ring.begin(start);
        ring.end(Ok(keys(&["a"])), start);
        let choice =
            |ring: &KeyRing, secs| ring.choose(&header(Some("a")), &PACE, after(start, secs));

        assert!(matches!(choice(&ring, 600), KeyChoice::Use { stale: true, .. }));
        ring.begin(after(start, 600));
        ring.end(Err(KeyFetchError::Late), after(start, 605));
        assert!(matches!(choice(&ring, 606), KeyChoice::Use { stale: false, .. }));
        let other = ring.choose(&header(Some("b")), &PACE, after(start, 606));
        assert!(matches!(other, KeyChoice::Unavailable { problem } if problem.contains("respond")));
        ring.begin(after(start, 86_399));
        assert!(matches!(choice(&ring, 86_399), KeyChoice::Use { .. }));
        assert!(matches!(choice(&ring, 86_400), KeyChoice::Unavailable { .. }));
    }

    #[test]
    fn a_token_without_the_name_of_a_key_is_checked_by_the_only_one_that_fits() {
        assert!(keys(&["a"]).find(&header(None)).is_some());
        assert!(keys(&["a", "b"]).find(&header(None)).is_none());
    }

    #[test]
    fn secrets_and_keys_for_encryption_are_left_out() {
        let set = json!({ "keys": [
            { "kty": "oct", "kid": "s", "k": "c2VjcmV0" },
            { "kty": "OKP", "crv": "Ed25519", "kid": "e", "use": "enc",
              "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
            { "kty": "new-kind", "kid": "n" },
            { "kty": "RSA", "kid": "r", "alg": "RSA-OAEP-4096", "n": "AQAB", "e": "AQAB" },
            "no key",
        ] });

        assert!(KeySet::from(serde_json::from_value::<PublishedKeys>(set).unwrap()).is_empty());
    }
}
