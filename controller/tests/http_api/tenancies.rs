//! The database itself refuses to give away more of a shared slice than there is, even if a faulty
//! controller requests it.

use sqlx::PgPool;

use super::rig::Rig;
use super::seed::Seed;

const GIB: i64 = 1 << 30;

/// Opens a tenancy on one memory slice.
async fn tenancy(pool: &PgPool, slot: i16, sm: i32, bytes: i64) -> Result<(), String> {
    let statement = "INSERT INTO attempt_slots
        (gpu, slot, start, sharer, size, sharers, sm_percent, memory_bytes, capacity_bytes)
        VALUES ('GPU-1', $1, $1, 'ada', 1, 1, $2, $3, $4)";
    let requested = sqlx::query(statement).bind(slot).bind(sm).bind(bytes).bind(10 * GIB);
    constraint(requested.execute(pool).await)
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
async fn no_compute_instance_has_two_live_attempts_and_none_is_shared_with_sharers() {
    let rig = Rig::start().await;
    let (pool, seed) = (&rig.pool, Seed(&rig.pool));
    seed.node().await;
    for job in [1, 2] {
        seed.submission(job, 1, None, "ada").await;
    }
    let (one, two) = (seed.running(1, 1).await, seed.running(2, 1).await);
    let place = "UPDATE attempts SET start = 0, share_bytes = 1, compute_start = $2,
        compute_slices = $3 WHERE attempt = $1";
    let take = async |attempt, start: Option<i16>, slices: i16| {
        let requested = sqlx::query(place).bind(attempt).bind(start).bind(slices);
        constraint(requested.execute(pool).await)
    };
    take(one, Some(2), 1).await.unwrap();

    assert_eq!(take(two, Some(2), 1).await.unwrap_err(), "attempts_one_a_compute_instance");
    assert_eq!(take(two, None, 1).await.unwrap_err(), "attempts_compute");
    take(two, Some(0), 2).await.unwrap();
    // Compute instances give no percentages away, and stand in no kernel queue.
    tenancy(pool, 0, 50, GIB).await.unwrap();
    let compute = |extra: &str| {
        format!("UPDATE attempt_slots SET compute = true{extra} WHERE gpu = 'GPU-1' AND slot = 0")
    };
    for extra in ["", ", sm_percent = 0, kernel = true"] {
        let done = constraint(sqlx::query(sqlx::AssertSqlSafe(compute(extra))).execute(pool).await);
        assert_eq!(done.unwrap_err(), "attempt_slots_compute");
    }
    let done = sqlx::query(sqlx::AssertSqlSafe(compute(", sm_percent = 0"))).execute(pool).await;
    constraint(done).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_slice_has_two_tenancies_or_a_sharer_next_to_an_exclusive_attempt() {
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
    let both = "UPDATE attempt_slots SET sharer = 'bob' WHERE slot = 1";
    let both = constraint(sqlx::query(both).execute(pool).await);
    assert_eq!(both.unwrap_err(), "attempt_slots_one_kind");
}
