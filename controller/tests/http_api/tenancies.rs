//! The database itself refuses to give more of a shared slice away than there is, whatever a
//! controller gone wrong may ask of it.

use sqlx::PgPool;

use super::rig::Rig;

const GIB: i64 = 1 << 30;

/// Opens a tenancy on one memory slice.
async fn tenancy(pool: &PgPool, slot: i16, sm: i32, bytes: i64) -> Result<(), String> {
    let statement = "INSERT INTO attempt_slots
        (gpu, slot, start, tenant, size, sharers, sm_percent, memory_bytes, capacity_bytes)
        VALUES ('GPU-1', $1, $1, 'ada', 1, 1, $2, $3, $4)";
    let asked = sqlx::query(statement).bind(slot).bind(sm).bind(bytes).bind(10 * GIB);
    constraint(asked.execute(pool).await)
}

/// Lets one more sharer into the tenancy on slot 0, as the store's statement does.
async fn join(pool: &PgPool, sm: i32, bytes: i64) -> Result<(), String> {
    let statement = "UPDATE attempt_slots SET sharers = sharers + 1, sm_percent = sm_percent + $1,
        memory_bytes = memory_bytes + $2 WHERE gpu = 'GPU-1' AND slot = 0";
    constraint(sqlx::query(statement).bind(sm).bind(bytes).execute(pool).await)
}

/// Returns the constraint that a statement broke.
fn constraint<T>(done: Result<T, sqlx::Error>) -> Result<(), String> {
    match done {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(error)) => Err(error.constraint().unwrap_or("?").to_owned()),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_slice_is_given_away_beyond_its_whole_its_memory_or_its_contexts() {
    let rig = Rig::start().await;
    let pool = &rig.pool;
    tenancy(pool, 0, 60, 6 * GIB).await.unwrap();

    assert_eq!(join(pool, 41, GIB).await.unwrap_err(), "attempt_slots_sm_percent_check");
    assert_eq!(join(pool, 10, 5 * GIB).await.unwrap_err(), "attempt_slots_capacity");
    join(pool, 40, 4 * GIB).await.unwrap();

    assert_eq!(join(pool, 1, 0).await.unwrap_err(), "attempt_slots_sm_percent_check");
    assert_eq!(join(pool, 0, 1).await.unwrap_err(), "attempt_slots_capacity");
    for _ in 2..48 {
        join(pool, 0, 0).await.unwrap();
    }
    assert_eq!(join(pool, 0, 0).await.unwrap_err(), "attempt_slots_sharers_check");
    assert_eq!(tenancy(pool, 1, 1, 11 * GIB).await.unwrap_err(), "attempt_slots_capacity");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_slice_has_two_tenancies_or_a_sharer_beside_an_exclusive_attempt() {
    let rig = Rig::start().await;
    let pool = &rig.pool;
    tenancy(pool, 0, 50, GIB).await.unwrap();
    let exclusive = "INSERT INTO attempt_slots (gpu, slot, attempt)
        VALUES ('GPU-1', $1, '00000000-0000-0000-0000-000000000001')";
    let alone = |slot: i16| sqlx::query(exclusive).bind(slot);

    assert_eq!(tenancy(pool, 0, 1, 1).await.unwrap_err(), "attempt_slots_pkey");
    assert_eq!(constraint(alone(0).execute(pool).await).unwrap_err(), "attempt_slots_pkey");
    constraint(alone(1).execute(pool).await).unwrap();
    assert_eq!(tenancy(pool, 1, 1, 1).await.unwrap_err(), "attempt_slots_pkey");
    let both = "UPDATE attempt_slots SET tenant = 'bob' WHERE slot = 1";
    let both = constraint(sqlx::query(both).execute(pool).await);
    assert_eq!(both.unwrap_err(), "attempt_slots_one_kind");
}
