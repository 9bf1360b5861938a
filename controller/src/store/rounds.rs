//! Recorded rounds of the placement: written in their own transactions, removed a chain at a time.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use sqlx::{Connection as _, PgConnection};
use tessera_placement::record::Record;

use super::{StoreError, leader};

/// Longest text of one record that is read: far more than that of the largest cluster, so that a
/// damaged row can't fill the memory.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Longer than any database has been there: a thousand years.
const FOREVER_SECS: f64 = 3.2e10;

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    number: i64,
    digest: [u8; 32],
    body: Vec<u8>,
}

/// Makes a record ready to be stored. A whole one takes some milliseconds and more on a large
/// cluster: on a thread of its own, so that leases are renewed meanwhile.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if it can't be written as text.
pub(super) async fn seal(record: &Arc<Record>) -> Result<Sealed, StoreError> {
    if record.number > 0 {
        return packed(record);
    }
    let whole = Arc::clone(record);
    let sealed = tokio::task::spawn_blocking(move || packed(&whole)).await;
    sealed.unwrap_or_else(|_| packed(record))
}

fn packed(record: &Record) -> Result<Sealed, StoreError> {
    let number = i64::try_from(record.number).unwrap_or(i64::MAX);
    let bad = |problem: String| StoreError::Corrupt {
        table: "placement_rounds",
        row: format!("record {number} of a chain"),
        problem,
    };
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    let text = serde_json::to_vec(record).map_err(|problem| bad(problem.to_string()))?;
    packed.write_all(&text).map_err(|problem| bad(problem.to_string()))?;
    let body = packed.finish().map_err(|problem| bad(problem.to_string()))?;
    Ok(Sealed { number, digest: record.digest(), body })
}

/// Returns the text of a stored record.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if the row was damaged.
pub(super) fn unsealed(round: i64, body: &[u8]) -> Result<String, StoreError> {
    let mut text = String::new();
    let read = ZlibDecoder::new(body).take(TEXT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|problem| StoreError::Corrupt {
        table: "placement_rounds",
        row: round.to_string(),
        problem: problem.to_string(),
    })?;
    Ok(text)
}

/// Adds a record to the leader's transaction.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub(super) async fn record(
    connection: &mut PgConnection,
    sealed: &Sealed,
    epoch: u64,
) -> Result<(), StoreError> {
    let Sealed { number, digest, body } = sealed;
    sqlx::query!(
        r#"
        INSERT INTO placement_rounds (epoch, number, digest, bytes, body)
        VALUES ($1, $2, $3, length($4::bytea), $4::bytea)
        "#,
        i64::try_from(epoch).unwrap_or(i64::MAX),
        number,
        &digest[..],
        body,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to("record a round"))?;
    Ok(())
}

/// Removes the oldest chain, if its last round is older than `keep_secs`, or if all rounds
/// together take more than `bytes_max`; the chain that is being written stays. Returns how many
/// rounds are gone.
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
    let mut transaction = connection.begin().await.map_err(StoreError::while_trying_to(action))?;
    leader::guard(&mut transaction, epoch).await?;
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
        // What is to stay for ever is as old as nothing is.
        keep_secs.unwrap_or(FOREVER_SECS),
        bytes_max,
    )
    .execute(&mut *transaction)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    transaction.commit().await.map_err(StoreError::while_trying_to(action))?;
    Ok(removed.rows_affected())
}
