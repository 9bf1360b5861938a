//! Keeping the leader's lease: renews it, and says until when this controller may trust itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tessera_model::{ControllerId, Millis};
use tokio::sync::watch;

use crate::clock;
use crate::ports::Readiness;
use crate::store::leader::{self, Election, RENEW_EVERY, TRUST_MARGIN};
use crate::store::{self, Pool, StoreError};

/// Until when this controller may act as the leader, on its boot clock.
#[derive(Clone, Debug)]
pub struct Trust(Arc<AtomicU64>);

impl Trust {
    /// No rival can exist: the only controller, by its data folder's lock and the agents' word.
    pub fn unlimited() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Rivals may exist: trust ends with the lease.
    pub fn leased() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    /// Whether node leases may be granted at `now` (rule F3).
    pub fn holds(&self, now: Millis) -> bool {
        now.get() < self.0.load(Ordering::Acquire)
    }

    /// Counts from the **start** of the attempt that succeeded.
    fn extend(&self, begun: Millis) {
        if self.0.load(Ordering::Acquire) == u64::MAX {
            return;
        }
        let ttl = Duration::from_secs_f64(leader::TTL_SECS) - TRUST_MARGIN;
        let ttl = Millis::new(u64::try_from(ttl.as_millis()).unwrap_or(0));
        self.0.store(begun.plus(ttl).get(), Ordering::Release);
    }
}

/// How long to wait before the next attempt to lead.
const ELECT_EVERY: Duration = Duration::from_secs(1);

/// Waits until this controller leads, and returns its epoch.
///
/// # Errors
///
/// [`StoreError::Corrupt`]: a person must look.
pub async fn lead(
    pool: &Pool,
    me: ControllerId,
    trust: &Trust,
    seen: u64,
    readiness: &watch::Sender<Readiness>,
) -> Result<u64, StoreError> {
    loop {
        let begun = clock::boot();
        let reason = match elect_once(pool, me, seen).await {
            Ok(Election::Won { epoch }) => {
                trust.extend(begun);
                return Ok(epoch);
            }
            Ok(Election::Waits { leader, seconds_left }) => {
                format!("{leader} leads; its lease runs {seconds_left:.0} s more")
            }
            Err(error @ StoreError::Corrupt { .. }) => return Err(error),
            Err(error) => format!("the database doesn't answer: {}", super::intake::Chain(&error)),
        };
        tracing::info!(reason, "waiting to lead");
        readiness.send_replace(Readiness::NotReady { reason });
        tokio::time::sleep(ELECT_EVERY).await;
    }
}

async fn elect_once(pool: &Pool, me: ControllerId, seen: u64) -> Result<Election, StoreError> {
    let mut connection = store::acquire(pool).await?;
    leader::elect(&mut connection, me, seen).await
}

/// Renews the lease until it is lost to another controller; `epoch` tells which one is held.
pub async fn keep(pool: Pool, me: ControllerId, trust: Trust, epoch: watch::Receiver<u64>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let begun = clock::boot();
        let held = *epoch.borrow();
        let renewed = match store::acquire(&pool).await {
            Ok(mut connection) => leader::renew(&mut connection, me, held).await,
            Err(error) => Err(error),
        };
        match renewed {
            Ok(()) => trust.extend(begun),
            // A newer epoch of our own may have been won meanwhile.
            Err(StoreError::Deposed { .. }) if *epoch.borrow() != held => {}
            Err(error @ StoreError::Deposed { .. }) => {
                tracing::error!(error = %super::intake::Chain(&error), "another controller leads");
                return;
            }
            Err(error) => {
                tracing::warn!(error = %super::intake::Chain(&error), "lease not renewed");
            }
        }
    }
}
