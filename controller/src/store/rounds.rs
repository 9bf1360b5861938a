//! Recorded placement rounds: written with the leader's round, removed a chain at a time.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use sqlx::PgConnection;
use tessera_placement::record::RoundRecord;

use super::columns::{RowRef, bigint};
use super::{StoreError, leader};

const TABLE: &str = "placement_rounds";

/// Longest text of one record that is read: far more than that of the largest cluster, so that a
/// damaged row can't fill the memory.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Longer than any database has existed: a thousand years.
const FOREVER_SECS: f64 = 3.2e10;

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRecord {
    number: i64,
    digest: [u8; 32],
    body: Vec<u8>,
}

impl SealedRecord {
    pub(super) const fn number(&self) -> i64 {
        self.number
    }

    pub(super) fn digest(&self) -> &[u8] {
        &self.digest
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Makes a record ready to be stored. A whole one takes some milliseconds and more on a large
/// cluster: on its own thread, so that leases are renewed meanwhile.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if it can't be written as text.
pub(super) async fn seal_record(record: &Arc<RoundRecord>) -> Result<SealedRecord, StoreError> {
    if record.number > 0 {
        return packed(record);
    }
    let whole = Arc::clone(record);
    let sealed = tokio::task::spawn_blocking(move || packed(&whole)).await;
    sealed.unwrap_or_else(|_| packed(record))
}

fn packed(record: &RoundRecord) -> Result<SealedRecord, StoreError> {
    let number = bigint(record.number);
    let row = RowRef::new(TABLE, format!("record {number} of a chain"));
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    let text = serde_json::to_vec(record).map_err(row.corrupt::<serde_json::Error>("body"))?;
    packed.write_all(&text).map_err(row.corrupt::<std::io::Error>("body"))?;
    let body = packed.finish().map_err(row.corrupt::<std::io::Error>("body"))?;
    Ok(SealedRecord { number, digest: record.digest(), body })
}

/// Returns the text of a stored record.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if the row was damaged.
pub(super) fn record_text(round: i64, body: &[u8]) -> Result<String, StoreError> {
    let mut text = String::new();
    let read = ZlibDecoder::new(body).take(TEXT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(RowRef::new(TABLE, round).corrupt::<std::io::Error>("body"))?;
    Ok(text)
}

/// Removes the oldest chain, if its last round is older than `keep_secs`, or if all rounds
/// together take more than `bytes_max`; the chain that is being written stays. Returns how many
/// rounds were removed.
///
/// # Errors
///
/// [`StoreError::Deposed`]; [`StoreError::Unavailable`].
pub async fn remove_oldest_chain(
    connection: &mut PgConnection,
    epoch: u64,
    keep_secs: Option<f64>,
    bytes_max: i64,
) -> Result<u64, StoreError> {
    let action = "remove old rounds of the placement";
    let mut transaction = leader::begin_guarded(connection, epoch).await?;
    let removed = sqlx::query!(
        r#"
        WITH second AS (
            SELECT round, at FROM placement_rounds WHERE number = 0 ORDER BY round OFFSET 1 LIMIT 1)
        DELETE FROM placement_rounds AS r
         USING second
         WHERE r.round < second.round
           AND (second.at < now() - make_interval(secs => $1)
                OR (SELECT sum(bytes) FROM placement_rounds) > $2)
        "#,
        // No row is as old as what is kept forever.
        keep_secs.unwrap_or(FOREVER_SECS),
        bytes_max,
    )
    .execute(&mut *transaction)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(removed.rows_affected())
}
