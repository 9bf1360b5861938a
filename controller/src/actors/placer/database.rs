//! What the placer does with the database, outside of its own thread.

use super::RELOAD_PAUSE;
use crate::actors::intake::Chain;
use crate::actors::leadership::Candidate;
use crate::core::Round;
use crate::core::setback::SetBack;
use crate::memory::StoreMemory;
use crate::store::commit::{self, Findings};
use crate::store::load::{self, Picture};
use crate::store::{self, ConnectOptions, Connection, StoreError, leader};

/// Commits a round, on the connection of the last one if that is still there.
pub(super) async fn commit_on(
    kept: Option<Connection>,
    options: &ConnectOptions,
    memory: &StoreMemory,
    round: &Round,
    policy: &str,
    epoch: u64,
) -> Result<(Connection, Findings), StoreError> {
    let mut connection = match kept {
        Some(connection) => connection,
        None => {
            let mut fresh = store::connect(options).await?;
            leader::recognise(&mut fresh, memory.known()).await?;
            fresh
        }
    };
    let findings = commit::commit(&mut connection, round, policy, epoch).await?;
    Ok((connection, findings))
}

/// How an error tells that the store was set back; the epoch goes back in no other way.
pub(super) fn set_back_by(error: &StoreError) -> Option<SetBack> {
    match *error {
        StoreError::SetBack { how } => Some(how),
        StoreError::Deposed { ours, newest } if newest < ours => {
            Some(SetBack::EarlierEpoch { known: ours, found: newest })
        }
        _ => None,
    }
}

/// Reads the picture as soon as the database answers; where the store was set back, first takes
/// stock under a new epoch.
pub(super) async fn read_until_it_works(
    candidate: &Candidate,
    epoch: u64,
    mut set_back: Option<SetBack>,
) -> Result<(u64, Picture), StoreError> {
    loop {
        match read_once(candidate, epoch, set_back).await {
            Err(StoreError::Unavailable { action, cause }) => {
                tracing::warn!(action, error = %Chain(&cause), "the database doesn't answer");
                tokio::time::sleep(RELOAD_PAUSE).await;
            }
            Err(StoreError::SetBack { how }) => set_back = set_back.or(Some(how)),
            result => return result,
        }
    }
}

async fn read_once(
    candidate: &Candidate,
    epoch: u64,
    set_back: Option<SetBack>,
) -> Result<(u64, Picture), StoreError> {
    let mut connection = store::acquire(&candidate.pool).await?;
    let epoch = match set_back {
        None => {
            leader::recognise(&mut connection, candidate.memory.known()).await?;
            epoch
        }
        Some(_) => match candidate.elect(&mut connection, set_back).await? {
            leader::Election::Won { epoch, .. } => epoch,
            leader::Election::Waits { .. } => {
                return Err(StoreError::Deposed { ours: epoch, newest: epoch + 1 });
            }
        },
    };
    Ok((epoch, load::picture(&mut connection).await?))
}
