//! How much one caller may use of what all share: requests per second, and places that are held for
//! long.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::connections::SourceKey;
use crate::principal::{Principal, Role, Source};

/// Requests a second of one user, on average: a script that polls each of a thousand jobs twice a second
/// should use `GET /v1/jobs` instead.
const USER_RATE: NonZeroU32 = NonZeroU32::new(500).expect("it is not zero");
/// Requests that one user may make at once.
const USER_BURST: NonZeroU32 = NonZeroU32::new(2_000).expect("it is not zero");
/// Requests a second from one source that prove no name, which are answered and recorded.
const FAILURE_RATE: NonZeroU32 = NonZeroU32::new(5).expect("it is not zero");
/// Such requests at once.
const FAILURE_BURST: NonZeroU32 = NonZeroU32::new(50).expect("it is not zero");
/// Keys that are kept before those that are idle are forgotten: the limits must not fill the memory.
const KEYS_MAX: usize = 10_000;

/// Limits of requests a second.
#[derive(Debug)]
pub(super) struct Rates {
    callers: DefaultKeyedRateLimiter<Arc<str>>,
    failures: DefaultKeyedRateLimiter<SourceKey>,
    /// Entries of the audit log without a name; all that come from no known source are one.
    entries: DefaultKeyedRateLimiter<Option<SourceKey>>,
}

impl Default for Rates {
    fn default() -> Self {
        let quota = |rate, burst| Quota::per_second(rate).allow_burst(burst);
        Self {
            callers: RateLimiter::keyed(quota(USER_RATE, USER_BURST)),
            failures: RateLimiter::keyed(quota(FAILURE_RATE, FAILURE_BURST)),
            entries: RateLimiter::keyed(quota(FAILURE_RATE, FAILURE_BURST)),
        }
    }
}

impl Rates {
    /// Counts a request. Operators are not limited: they must get through when users keep the
    /// controller busy.
    pub(super) fn count(&self, caller: &Principal) -> Result<(), ApiError> {
        if caller.role >= Role::Operator {
            return Ok(());
        }
        if self.callers.len() > KEYS_MAX {
            self.callers.retain_recent();
        }
        self.callers.check_key(&caller.name).map_err(|_| ApiError::RateLimited {
            reason: "this user sends more requests per second than are allowed",
        })
    }

    /// Counts a request that proved no name. After too many of them the source gets only this
    /// error.
    pub(super) fn count_failure(&self, source: Source) -> Result<(), ApiError> {
        if self.failures.len() > KEYS_MAX {
            self.failures.retain_recent();
        }
        self.failures.check_key(&source.into()).map_err(|_| ApiError::RateLimited {
            reason: "too many requests from this source have no valid token",
        })
    }
}

impl Rates {
    /// Returns whether what a source without a name sent is still recorded. Its pages of other sites and wrong tokens
    /// must not fill the audit log.
    pub(super) fn admits_entry(&self, source: Option<Source>) -> bool {
        if self.entries.len() > KEYS_MAX {
            self.entries.retain_recent();
        }
        self.entries.check_key(&source.map(SourceKey::from)).is_ok()
    }
}

/// Places that are held for long, with limits in total and for each caller.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    each: usize,
    taken: Mutex<HashMap<Arc<str>, usize>>,
    full: &'static str,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    places: Arc<Places>,
    caller: Arc<str>,
}

impl Places {
    pub(super) fn new(all: usize, each: usize, full: &'static str) -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(all)), each, taken: Mutex::default(), full })
    }

    /// Takes a place for a caller.
    pub(super) fn take(self: &Arc<Self>, caller: &Principal) -> Result<Place, ApiError> {
        let permit = Arc::clone(&self.all).try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::Overloaded { reason: self.full })?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.entry(Arc::clone(&caller.name)).or_default();
        if *own >= self.each {
            return Err(ApiError::RateLimited {
                reason: "this user has as many of these open as one user may have",
            });
        }
        *own += 1;
        Ok(Place { _permit: permit, places: Arc::clone(self), caller: Arc::clone(&caller.name) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut own) = taken.entry(Arc::clone(&self.caller)) {
            if *own.get() <= 1 {
                own.remove();
            } else {
                *own.get_mut() -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Proof;

    fn caller(name: &str, role: Role) -> Principal {
        Principal {
            name: name.into(),
            role,
            proof: Proof::Socket { uid: 1, pid: None },
            coordinates: Arc::from([]),
        }
    }

    #[test]
    fn one_caller_cannot_take_the_places_of_all() {
        let places = Places::new(3, 2, "all are taken");
        let (ada, bob) = (caller("ada", Role::User), caller("bob", Role::User));
        let first = places.take(&ada).unwrap();
        let _second = places.take(&ada).unwrap();

        assert!(matches!(places.take(&ada), Err(ApiError::RateLimited { .. })));
        let _third = places.take(&bob).unwrap();
        assert!(matches!(places.take(&bob), Err(ApiError::Overloaded { .. })));
        drop(first);
        assert!(places.take(&ada).is_ok());
    }

    #[test]
    fn a_source_without_a_name_fills_no_audit_log_and_others_are_still_recorded() {
        let rates = Rates::default();
        let source = |text: &str| Some(Source::Address(text.parse().unwrap()));
        let recorded = |from| (0..10_000).filter(|_| rates.admits_entry(from)).count();

        let of_one = recorded(source("10.0.0.1:7"));

        assert!((50..10_000).contains(&of_one), "{of_one}");
        assert!(rates.admits_entry(source("10.0.0.2:7")));
    }

    #[test]
    fn a_user_is_limited_and_an_operator_is_not() {
        let rates = Rates::default();
        let (ada, op) = (caller("ada", Role::User), caller("op", Role::Operator));
        let refused = |caller: &Principal| {
            (0..USER_BURST.get() * 2).filter(|_| rates.count(caller).is_err()).count()
        };

        assert!(refused(&ada) > 0);
        assert_eq!(refused(&op), 0);
    }
}
