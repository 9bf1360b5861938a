//! What the placer does with the database, outside of its own thread.

use super::RELOAD_PAUSE;
use crate::actors::intake::Chain;
use crate::actors::leadership::LeaderCandidate;
use crate::memory::StoreMemory;
use crate::notifications::Outbox;
use crate::store::commit;
use crate::store::snapshot;
use crate::store::{self, ConnectOptions, Connection, StoreError, leader};
use tessera_control::Round;
use tessera_control::rollback::DatabaseRollback;
use tessera_control::rows::findings::CommitFindings;
use tessera_control::rows::snapshot::StoreSnapshot;

/// Commits a round, on the connection of the last one if that is still there.
pub(super) async fn commit_on(
    kept: Option<Connection>,
    options: &ConnectOptions,
    memory: &StoreMemory,
    round: &Round,
    policy: &str,
    epoch: u64,
    outbox: &Outbox,
) -> Result<(Connection, CommitFindings), StoreError> {
    let mut connection = match kept {
        Some(connection) => connection,
        None => {
            let mut fresh = store::connect(options).await?;
            leader::check_lineage(&mut fresh, memory.known()).await?;
            fresh
        }
    };
    let rules = outbox.rules();
    let findings = commit::commit_round(&mut connection, round, policy, epoch, rules).await?;
    if findings.has_notifications {
        outbox.wake();
    }
    Ok((connection, findings))
}

/// Returns the rollback that an error shows: without one, the epoch never decreases.
pub(super) fn rollback_of(error: &StoreError) -> Option<DatabaseRollback> {
    match *error {
        StoreError::RolledBack { how } => Some(how),
        StoreError::Deposed { ours, newest } if newest < ours => {
            Some(DatabaseRollback::EarlierEpoch { known: ours, found: newest })
        }
        _ => None,
    }
}

/// Reads the snapshot as soon as the database responds. After a rollback, the controller is elected
/// under a new epoch first.
pub(super) async fn read_until_it_works(
    candidate: &LeaderCandidate,
    epoch: u64,
    mut rollback: Option<DatabaseRollback>,
) -> Result<(u64, StoreSnapshot), StoreError> {
    loop {
        match read_once(candidate, epoch, rollback).await {
            Err(StoreError::Unavailable { action, cause }) => {
                tracing::warn!(action, error = %Chain(&cause), "the database does not respond");
                tokio::time::sleep(RELOAD_PAUSE).await;
            }
            Err(StoreError::RolledBack { how }) => rollback = rollback.or(Some(how)),
            result => return result,
        }
    }
}

async fn read_once(
    candidate: &LeaderCandidate,
    epoch: u64,
    rollback: Option<DatabaseRollback>,
) -> Result<(u64, StoreSnapshot), StoreError> {
    let mut connection = store::acquire(&candidate.pool).await?;
    let epoch = match rollback {
        None => {
            leader::check_lineage(&mut connection, candidate.memory.known()).await?;
            epoch
        }
        Some(_) => match candidate.elect(&mut connection, rollback).await? {
            leader::Election::Won { epoch, .. } => epoch,
            leader::Election::Waits { .. } => {
                return Err(StoreError::Deposed { ours: epoch, newest: epoch + 1 });
            }
        },
    };
    Ok((epoch, snapshot::read_snapshot(&mut connection).await?))
}
