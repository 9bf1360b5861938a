//! The leader's lease: elections, renewals, and until when this controller may act as the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Recipient;
use tessera_model::{ControllerId, Millis};
use tokio::sync::watch;

use crate::clock;
use crate::memory::StoreMemory;
use crate::ports::Readiness;
use crate::process_metrics;
use crate::store::leader::{self, Claim, Election, RENEW_EVERY, TRUST_MARGIN};
use crate::store::{self, Connection, Pool, StoreError};
use tessera_control::rollback::{DatabaseRollback, Remembered};

/// Until when this controller may act as the leader, on its boot clock.
#[derive(Clone, Debug)]
pub struct Trust(Arc<AtomicU64>);

impl Trust {
    /// For the only controller, by its data folder's lock and its settings: no other one can lead.
    pub fn unlimited() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// For one of several controllers: trust ends with the lease.
    pub fn leased() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    /// Returns whether node leases may be granted at `now` (rule F3).
    pub fn holds(&self, now: Millis) -> bool {
        now.get() < self.0.load(Ordering::Acquire)
    }

    /// Counts from the **start** of the attempt that succeeded.
    fn extend(&self, begun: Millis) {
        if self.0.load(Ordering::Acquire) == u64::MAX {
            return;
        }
        let ttl = Duration::from_secs_f64(leader::TTL_SECS) - TRUST_MARGIN;
        let ttl = u64::try_from(ttl.as_millis()).expect("a lease lasts some seconds");
        let ttl = Millis::new(ttl);
        self.0.store(begun.plus(ttl).get(), Ordering::Release);
    }
}

/// How long to wait before the next attempt to lead.
const ELECT_EVERY: Duration = Duration::from_secs(1);

/// A rollback of the database was found while this controller leads.
#[derive(Clone, Copy, Debug, actix::Message)]
#[rtype(result = "()")]
pub struct StoreRolledBack(pub DatabaseRollback);

/// What a controller needs to stand for election.
#[derive(Clone, Debug)]
pub struct LeaderCandidate {
    /// This controller.
    pub controller: ControllerId,
    /// Connections for elections and renewals.
    pub pool: Pool,
    /// The record of the store.
    pub memory: Arc<StoreMemory>,
    /// Until when this controller may trust itself.
    pub trust: Trust,
    /// How long after a renewal it gives a node up.
    pub lease: Millis,
}

impl LeaderCandidate {
    /// Waits until this controller leads, and returns its epoch.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`]: an administrator must look.
    pub async fn lead(&self, readiness: &watch::Sender<Readiness>) -> Result<u64, StoreError> {
        loop {
            let begun = clock::boot();
            let reason = match self.elect_once().await {
                Ok(Election::Won { epoch, .. }) => {
                    self.trust.extend(begun);
                    return Ok(epoch);
                }
                Ok(Election::Waits { leader, seconds_left }) => {
                    format!("{leader} leads; its lease runs {seconds_left:.0} s more")
                }
                Err(error @ StoreError::Corrupt { .. }) => return Err(error),
                Err(error) => {
                    format!("the database does not respond: {}", super::intake::Chain(&error))
                }
            };
            tracing::info!(reason, "waiting to lead");
            readiness.send_replace(Readiness::NotReady { reason });
            tokio::time::sleep(ELECT_EVERY).await;
        }
    }

    async fn elect_once(&self) -> Result<Election, StoreError> {
        let mut connection = store::acquire(&self.pool).await?;
        self.elect(&mut connection, None).await
    }

    /// Stands for election; `rolled_back` is the rollback that was found, if any.
    ///
    /// # Errors
    ///
    /// As [`leader::elect_leader`].
    pub async fn elect(
        &self,
        connection: &mut Connection,
        rolled_back: Option<DatabaseRollback>,
    ) -> Result<Election, StoreError> {
        let claim = Claim {
            controller: self.controller,
            remembered: self.memory.known(),
            rolled_back,
            lease: self.lease,
        };
        let election = leader::elect_leader(connection, &claim).await?;
        if let Election::Won { epoch, remember, rolled_back } = election {
            if let Some(how) = rolled_back {
                let hold_secs = self.lease.get() / 1_000;
                tracing::error!(
                    %how, epoch, hold_secs,
                    "the database was rolled back: every node starts over, and nothing is placed meanwhile"
                );
            }
            self.remember(remember).await;
        }
        Ok(election)
    }

    /// Renews the lease until another controller has it. `epoch` is the epoch that this one leads under.
    pub async fn keep(self, epoch: watch::Receiver<u64>, placer: Recipient<StoreRolledBack>) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let begun = clock::boot();
            let held = *epoch.borrow();
            let renewed = self.renew(held).await;
            process_metrics::count_renewal(renewed.is_ok(), clock::boot().minus(begun));
            match renewed {
                Ok(()) => self.trust.extend(begun),
                Err(StoreError::RolledBack { how }) => {
                    // If the mailbox is full, the next renewal sends it again.
                    let _ = placer.try_send(StoreRolledBack(how));
                }
                // A newer epoch of our own may have been won meanwhile.
                Err(StoreError::Deposed { .. }) if *epoch.borrow() != held => {}
                Err(error @ StoreError::Deposed { .. }) => {
                    let error = super::intake::Chain(&error);
                    tracing::error!(%error, "another controller leads");
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = %super::intake::Chain(&error), "the leader's lease was not renewed");
                }
            }
        }
    }

    async fn renew(&self, held: u64) -> Result<(), StoreError> {
        let mut connection = store::acquire(&self.pool).await?;
        let now = leader::check_lineage(&mut connection, self.memory.known()).await?;
        leader::renew_lease(&mut connection, self.controller, held).await?;
        self.remember(now.remembered_under(held)).await;
        Ok(())
    }

    /// Writes on another thread: a slow disk must not delay the placer.
    async fn remember(&self, fresh: Remembered) {
        let memory = Arc::clone(&self.memory);
        // Fails only while the runtime ends.
        let _ = tokio::task::spawn_blocking(move || memory.remember(fresh)).await;
    }
}
