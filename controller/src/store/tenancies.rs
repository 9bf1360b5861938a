//! The memory slices of shared instances: one row each, with the sums of what its sharers hold.
//!
//! Sharers join and leave by adding to and subtracting from sums. The table's checks keep these within
//! 100 percent of the multiprocessors and the instance's memory. The primary key keeps a tenancy
//! apart from exclusive attempts, and the conditions here from other users' tenancies.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::PgConnection;

use super::columns::{bigint, integer, integer_len, json_text};
use super::{StoreError, change_rows};
use tessera_control::rows::transitions::{EndedAttempt, Reservation};

/// What the sharers of one batch add to one instance.
#[derive(Debug, Default)]
struct Addition {
    sharers: i32,
    sm_percent: i32,
    memory_bytes: i64,
    capacity_bytes: i64,
    kernel: bool,
    compute: bool,
    slots: Vec<u8>,
}

/// Adds up the sharers of a batch: a statement can't change a row twice.
fn additions(batch: &[Reservation]) -> BTreeMap<(String, i16, String), Addition> {
    let mut all: BTreeMap<_, Addition> = BTreeMap::new();
    for reservation in batch {
        let Some(sharer) = &reservation.share else { continue };
        let start = reservation.place.slot.map_or(0, |slot| i16::from(slot.start));
        let key = (reservation.place.gpu.as_str().to_owned(), start, sharer.user.to_string());
        let sum = all.entry(key).or_default();
        sum.slots.clone_from(&reservation.slots);
        sum.sharers += 1;
        sum.sm_percent += integer(sharer.share.sm_percent());
        sum.memory_bytes = sum.memory_bytes.saturating_add(bigint(sharer.share.memory().get()));
        sum.kernel = sharer.share.is_kernel();
        sum.compute = sharer.share.compute().is_some();
        sum.capacity_bytes = bigint(reservation.capacity.get());
    }
    all
}

/// Adds the sharers of a batch to instances that are free or that jobs of the same user share.
///
/// # Errors
///
/// [`StoreError::Conflict`] if an instance is another user's, or is at another position;
/// [`StoreError::Unavailable`] also if a constraint found too little capacity, or an exclusive attempt there.
pub(super) async fn join_tenancies(
    connection: &mut PgConnection,
    batch: &[Reservation],
) -> Result<(), StoreError> {
    let additions = additions(batch);
    if additions.is_empty() {
        return Ok(());
    }
    let action = "add sharers";
    let rows: Vec<_> = additions.iter().flat_map(TenancyRecord::all_of).collect();
    let statement = sqlx::query!(
        r#"
        INSERT INTO attempt_slots AS held (gpu, slot, start, sharer, size, sharers, sm_percent,
                                           memory_bytes, capacity_bytes, kernel, compute)
        SELECT u.gpu, u.slot, u.start, u.sharer, u.size, u.sharers, u.sm_percent, u.memory_bytes,
               u.capacity_bytes, u.kernel, u.compute
          FROM json_to_recordset($1::text::json)
            AS u (gpu text, slot smallint, start smallint, sharer text, size smallint,
                  sharers integer, sm_percent integer, memory_bytes bigint, capacity_bytes bigint,
                  kernel boolean, compute boolean)
        ON CONFLICT (gpu, slot) DO UPDATE
           SET sharers = held.sharers + EXCLUDED.sharers,
               sm_percent = held.sm_percent + EXCLUDED.sm_percent,
               memory_bytes = held.memory_bytes + EXCLUDED.memory_bytes
         WHERE held.sharer = EXCLUDED.sharer AND held.start = EXCLUDED.start
           AND held.size = EXCLUDED.size AND held.capacity_bytes = EXCLUDED.capacity_bytes
           AND held.kernel = EXCLUDED.kernel AND held.compute = EXCLUDED.compute
        "#,
        json_text(&rows),
    );
    change_rows(action, rows.len(), statement.execute(connection)).await
}

/// One memory slice of an instance that sharers join, as the statement reads it.
#[derive(Debug, Serialize)]
struct TenancyRecord<'a> {
    gpu: &'a str,
    slot: u8,
    start: i16,
    sharer: &'a str,
    size: i32,
    sharers: i32,
    sm_percent: i32,
    memory_bytes: i64,
    capacity_bytes: i64,
    kernel: bool,
    compute: bool,
}

impl<'a> TenancyRecord<'a> {
    fn all_of(
        ((gpu, start, sharer), sum): (&'a (String, i16, String), &'a Addition),
    ) -> impl Iterator<Item = Self> {
        sum.slots.iter().map(move |slot| Self {
            gpu,
            slot: *slot,
            start: *start,
            sharer,
            size: integer_len(sum.slots.len()),
            sharers: sum.sharers,
            sm_percent: sum.sm_percent,
            memory_bytes: sum.memory_bytes,
            capacity_bytes: sum.capacity_bytes,
            kernel: sum.kernel,
            compute: sum.compute,
        })
    }
}

/// Removes the sharers of a batch of ends, and frees instances without sharers.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also if more would be given back than was taken.
pub(super) async fn leave_tenancies(
    connection: &mut PgConnection,
    batch: impl Iterator<Item = &EndedAttempt>,
) -> Result<(), StoreError> {
    let attempts: Vec<_> = batch.filter(|e| e.shared).map(|e| e.attempt.as_uuid()).collect();
    if attempts.is_empty() {
        return Ok(());
    }
    let action = "remove sharers";
    sqlx::query!(
        r#"
        WITH gone AS (
            SELECT a.gpu, COALESCE(a.start, 0::smallint) AS start, COUNT(*) AS sharers,
                   COALESCE(SUM(a.sm_percent), 0) AS sm_percent, SUM(a.share_bytes) AS memory_bytes
              FROM attempts AS a
             WHERE a.attempt = ANY($1) AND a.share_bytes IS NOT NULL
             GROUP BY a.gpu, COALESCE(a.start, 0::smallint)
        )
        UPDATE attempt_slots AS held
           SET sharers = held.sharers - gone.sharers,
               sm_percent = held.sm_percent - gone.sm_percent,
               memory_bytes = held.memory_bytes - gone.memory_bytes
          FROM gone
         WHERE held.gpu = gone.gpu AND held.start = gone.start AND held.sharer IS NOT NULL
        "#,
        &attempts,
    )
    .execute(&mut *connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    sqlx::query!(
        r#"
        DELETE FROM attempt_slots AS held
         USING attempts AS a
         WHERE a.attempt = ANY($1) AND held.gpu = a.gpu AND held.sharers = 0
        "#,
        &attempts,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))
    .map(drop)
}
