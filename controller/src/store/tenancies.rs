//! The memory slices of shared instances: one row each, with what its sharers have together.
//!
//! Sharers come and go by adding to and taking from sums that the table's checks keep within 100
//! percent of the multiprocessors and the instance's memory. The primary key keeps a tenancy
//! apart from exclusive attempts, and the conditions here from other users' tenancies.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::StoreError;
use super::moves::{Ended, Reservation};

/// What the sharers of one batch add to one instance.
#[derive(Debug, Default)]
struct Addition {
    size: usize,
    sharers: i32,
    sm_percent: i32,
    memory_bytes: i64,
    capacity_bytes: i64,
    kernel: bool,
    compute: bool,
    slots: Vec<u8>,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Adds up the sharers of a batch: a statement can't change a row twice.
fn additions(batch: &[Reservation]) -> BTreeMap<(String, i16, String), Addition> {
    let mut all: BTreeMap<_, Addition> = BTreeMap::new();
    for reservation in batch {
        let Some(sharer) = &reservation.share else { continue };
        let start = reservation.place.slot.map_or(0, |slot| i16::from(slot.start));
        let key = (reservation.place.gpu.as_str().to_owned(), start, sharer.user.to_string());
        let sum = all.entry(key).or_default();
        sum.size = reservation.slots.len();
        sum.slots.clone_from(&reservation.slots);
        sum.sharers += 1;
        sum.sm_percent += i32::try_from(sharer.share.sm_percent()).unwrap_or(i32::MAX);
        sum.memory_bytes = sum.memory_bytes.saturating_add(signed(sharer.share.memory().get()));
        sum.kernel = sharer.share.is_kernel();
        sum.compute = sharer.share.compute().is_some();
        sum.capacity_bytes = signed(reservation.capacity.get());
    }
    all
}

/// Takes the sharers of a batch in, on instances that nobody has or that jobs of their user
/// share.
///
/// # Errors
///
/// [`StoreError::Moved`] if an instance is another user's, or stands otherwise;
/// [`StoreError::Unavailable`] also if a constraint found no room, or an exclusive attempt there.
pub(super) async fn join(
    connection: &mut PgConnection,
    batch: &[Reservation],
) -> Result<(), StoreError> {
    let additions = additions(batch);
    if additions.is_empty() {
        return Ok(());
    }
    let action = "let sharers in";
    let rows =
        || additions.iter().flat_map(|(key, sum)| sum.slots.iter().map(move |s| (key, sum, s)));
    let gpus: Vec<_> = rows().map(|((gpu, ..), ..)| gpu.clone()).collect();
    let slots: Vec<_> = rows().map(|(.., slot)| i16::from(*slot)).collect();
    let starts: Vec<_> = rows().map(|((_, start, _), ..)| *start).collect();
    let tenants: Vec<_> = rows().map(|((.., user), ..)| user.clone()).collect();
    let sizes: Vec<_> =
        rows().map(|(_, sum, _)| i16::try_from(sum.size).unwrap_or(i16::MAX)).collect();
    let sharers: Vec<_> = rows().map(|(_, sum, _)| sum.sharers).collect();
    let sms: Vec<_> = rows().map(|(_, sum, _)| sum.sm_percent).collect();
    let bytes: Vec<_> = rows().map(|(_, sum, _)| sum.memory_bytes).collect();
    let capacities: Vec<_> = rows().map(|(_, sum, _)| sum.capacity_bytes).collect();
    let kernels: Vec<_> = rows().map(|(_, sum, _)| sum.kernel).collect();
    let computes: Vec<_> = rows().map(|(_, sum, _)| sum.compute).collect();
    let changed = sqlx::query!(
        r#"
        INSERT INTO attempt_slots AS held (gpu, slot, start, tenant, size, sharers, sm_percent,
                                           memory_bytes, capacity_bytes, kernel, compute)
        SELECT u.gpu, u.slot, u.start, u.tenant, u.size, u.sharers, u.sm_percent, u.memory_bytes,
               u.capacity_bytes, u.kernel, u.compute
          FROM UNNEST($1::text[], $2::smallint[], $3::smallint[], $4::text[], $5::smallint[],
                      $6::integer[], $7::integer[], $8::bigint[], $9::bigint[], $10::boolean[],
                      $11::boolean[])
            AS u (gpu, slot, start, tenant, size, sharers, sm_percent, memory_bytes,
                  capacity_bytes, kernel, compute)
        ON CONFLICT (gpu, slot) DO UPDATE
           SET sharers = held.sharers + EXCLUDED.sharers,
               sm_percent = held.sm_percent + EXCLUDED.sm_percent,
               memory_bytes = held.memory_bytes + EXCLUDED.memory_bytes
         WHERE held.tenant = EXCLUDED.tenant AND held.start = EXCLUDED.start
           AND held.size = EXCLUDED.size AND held.capacity_bytes = EXCLUDED.capacity_bytes
           AND held.kernel = EXCLUDED.kernel AND held.compute = EXCLUDED.compute
        "#,
        &gpus,
        &slots,
        &starts,
        &tenants,
        &sizes,
        &sharers,
        &sms,
        &bytes,
        &capacities,
        &kernels,
        &computes,
    )
    .execute(connection)
    .await
    .map_err(StoreError::while_trying_to(action))?;
    StoreError::check_moved(action, slots.len(), changed.rows_affected())
}

/// Lets the sharers of a batch of ends go, and gives instances back that nobody shares any more.
///
/// # Errors
///
/// [`StoreError::Unavailable`], also if more would be given back than was taken.
pub(super) async fn leave(
    connection: &mut PgConnection,
    batch: &[Ended],
) -> Result<(), StoreError> {
    let attempts: Vec<_> = batch.iter().filter(|e| e.shared).map(|e| e.attempt.as_uuid()).collect();
    if attempts.is_empty() {
        return Ok(());
    }
    let action = "let sharers go";
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
         WHERE held.gpu = gone.gpu AND held.start = gone.start AND held.tenant IS NOT NULL
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
