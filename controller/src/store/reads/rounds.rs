//! Recorded rounds of the placement, a page at a time.

use sqlx::PgConnection;
use tessera_api_types::{RecordedRound, RecordedRounds};
use time::OffsetDateTime;

use super::page::PageSize;
use crate::store::columns::RowRef;
use crate::store::{StoreError, rounds};

/// Maximum number of bytes of bodies, as they are stored, on one page: some ten times as many as
/// text.
const PAGE_BYTES_MAX: i64 = 2 << 20;

/// From where on rounds are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// From the beginning of the chain that was being written then; if nothing is that old, from
    /// the oldest round on.
    Time(OffsetDateTime),
    /// After this round.
    Round(i64),
}

/// Lists recorded rounds, oldest first.
pub(super) async fn page(
    at: &mut PgConnection,
    from: From,
    size: PageSize,
) -> Result<RecordedRounds, StoreError> {
    let after = match from {
        From::Round(round) => round,
        From::Time(time) => before_chain_of(at, time).await?,
    };
    let action = "list recorded rounds";
    let mut heads = sqlx::query!(
        r#"
        SELECT round, bytes
          FROM placement_rounds
         WHERE round > $1
         ORDER BY round
         LIMIT $2
        "#,
        after,
        size.rows(),
    )
    .fetch_all(&mut *at)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    let mut more = size.cut(&mut heads);
    let mut sum = 0;
    let fits = heads.iter().take_while(|head| {
        sum += i64::from(head.bytes);
        sum <= PAGE_BYTES_MAX
    });
    // One round at least, however large it is.
    let fits = fits.count().max(1);
    more |= heads.len() > fits;
    heads.truncate(fits);
    let ids: Vec<i64> = heads.iter().map(|head| head.round).collect();
    let items = rows(at, &ids).await?;
    let next_cursor = ids.last().filter(|_| more).map(|last| format!("p{last:x}"));
    let oldest_at = oldest(at).await?;
    Ok(RecordedRounds { items, next_cursor, oldest_at })
}

/// Returns the round before the chain that was being written at a time; 0, if none is that old.
async fn before_chain_of(at: &mut PgConnection, time: OffsetDateTime) -> Result<i64, StoreError> {
    let first = sqlx::query_scalar!(
        r#"
        SELECT round FROM placement_rounds WHERE number = 0 AND at <= $1 ORDER BY at DESC LIMIT 1
        "#,
        time,
    )
    .fetch_optional(at)
    .await
    .map_err(StoreError::while_trying_to("find a recorded round"))?;
    Ok(first.map_or(0, |round| round - 1))
}

async fn oldest(at: &mut PgConnection) -> Result<Option<OffsetDateTime>, StoreError> {
    sqlx::query_scalar!("SELECT at FROM placement_rounds WHERE number = 0 ORDER BY at LIMIT 1")
        .fetch_optional(at)
        .await
        .map_err(StoreError::while_trying_to("find the oldest recorded round"))
}

async fn rows(at: &mut PgConnection, ids: &[i64]) -> Result<Vec<RecordedRound>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT round, at, epoch, number, digest, body
          FROM placement_rounds
         WHERE round = ANY ($1)
         ORDER BY round
        "#,
        ids,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read recorded rounds"))?;
    let rows = rows.into_iter().map(|row| {
        let at = RowRef::new("placement_rounds", row.round);
        let text = rounds::record_text(row.round, &row.body)?;
        Ok(RecordedRound {
            round: at.number("round", row.round)?,
            at: row.at,
            epoch: at.number("epoch", row.epoch)?,
            number: at.number("number", row.number)?,
            digest: row.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            record: serde_json::from_str(&text).map_err(at.corrupt::<serde_json::Error>("body"))?,
        })
    });
    rows.collect()
}
