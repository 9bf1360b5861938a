//! What callers did: who, from where, what, and with which outcome.
//!
//! Entries are written together, after the response, so that no request waits for them. Each is also a line
//! of the controller's log, so that one that the database did not take is not lost.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::principal::{AuditRecord, Role};
use crate::store::{self, Pool, StoreError};

/// Entries that may wait for the database: beyond it only the log has them.
const WAITING_MAX: usize = 8_192;
/// Maximum number of entries of one statement.
const BATCH_MAX: usize = 512;
/// How long to wait after the database did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest text of a path that is kept, in bytes.
const OBJECT_MAX: usize = 256;

/// Takes entries; cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditLog(mpsc::Sender<AuditRecord>);

impl AuditLog {
    /// Begins to write entries on `runtime`, which the pool's connections are to live on.
    pub fn open(pool: Pool, runtime: &Handle) -> Self {
        let (records, waiting) = mpsc::channel(WAITING_MAX);
        runtime.spawn(write(pool, waiting));
        Self(records)
    }

    /// Records a call.
    pub fn record(&self, mut record: AuditRecord) {
        if record.object.len() > OBJECT_MAX {
            let end = record.object.floor_char_boundary(OBJECT_MAX);
            record.object.truncate(end);
        }
        tracing::info!(
            target: "tessera_controller::audit",
            principal = record.principal.as_deref().unwrap_or("-"),
            role = record.role.map_or("-", Role::word),
            origin = record.origin,
            action = record.action,
            object = record.object,
            status = record.status,
            "audit"
        );
        if self.0.try_send(record).is_err() {
            tracing::error!("an entry of the audit log is only in this log: too many are waiting");
        }
    }
}

async fn write(pool: Pool, mut waiting: mpsc::Receiver<AuditRecord>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        while let Err(error) = insert(&pool, &batch).await {
            tracing::warn!(%error, entries = batch.len(), "audit log not written, it is tried again");
            sleep(RETRY_AFTER).await;
        }
        batch.clear();
    }
}

async fn insert(pool: &Pool, batch: &[AuditRecord]) -> Result<(), StoreError> {
    let mut at = store::acquire(pool).await?;
    store::audit::insert(&mut at, batch).await
}
