//! What ended long ago is removed with all that was recorded about it, and nothing else is.

use crate::seed::Seed;
use sqlx::{Connection as _, PgConnection, PgPool};
use tessera_controller::store::{connect, retention, rounds};

const DAY: f64 = 86_400.0;

async fn numbers(pool: &PgPool, what: &'static str) -> Vec<i64> {
    sqlx::query_scalar(sqlx::AssertSqlSafe(what)).fetch_all(pool).await.unwrap()
}

/// Makes a job, or the tasks of an array, end so many days ago.
async fn ended(pool: &PgPool, job: i64, days: i32) {
    let past = "now() - make_interval(days => $2)";
    for statement in [
        format!("UPDATE jobs SET state = 'succeeded', ended_at = {past} WHERE job = $1"),
        format!(
            "UPDATE submissions SET accepted_at = LEAST(accepted_at, {past}) WHERE first_job = $1"
        ),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind(job)
            .bind(days)
            .execute(pool)
            .await
            .unwrap();
    }
}

async fn sweep(connection: &mut PgConnection, keep_secs: f64) -> u64 {
    let (mut removed, mut next) = (0, Some(0));
    while let Some(after) = next {
        let batch = retention::remove_jobs(connection, 0, keep_secs, after).await.unwrap();
        assert!(batch.next.is_none_or(|next| next > after), "it goes on: {batch:?}");
        (removed, next) = (removed + batch.jobs, batch.next);
    }
    removed
}

#[tokio::test]
async fn old_jobs_go_with_all_that_was_recorded_and_the_rest_stays() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options.clone(), 2);
    let seed = Seed(&pool);
    seed.node().await;
    // An old job, an old array of which one task goes on, one that ended, a young job, a live one.
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 3, Some(0), "ada").await;
    seed.submission(5, 3, Some(0), "ada").await;
    seed.submission(8, 1, None, "ada").await;
    seed.submission(9, 1, None, "ada").await;
    seed.running(1, 1).await;
    for job in [2, 3, 5, 6, 7, 8] {
        ended(&pool, job, if job == 8 { 1 } else { 100 }).await;
    }
    sqlx::raw_sql(
        "UPDATE jobs SET state = 'succeeded', attempt = NULL, ended_at = now() - interval '100 d'
          WHERE job = 1;
         UPDATE submissions SET accepted_at = now() - interval '101 d' WHERE first_job IN (1, 2, 5);
         UPDATE attempts SET live = false, state = 'succeeded', ended_at = now() WHERE job = 1;
         INSERT INTO decisions (decision, job, outcome, policy, epoch, explanation)
         SELECT gen_random_uuid(), job, 'wait', 'p', 0, '{}' FROM jobs;
         INSERT INTO job_events (job, state, text) SELECT job, state, 'x' FROM jobs",
    )
    .execute(&pool)
    .await
    .unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();

    assert_eq!(sweep(&mut connection, 90.0 * DAY).await, 4);

    for table in ["jobs", "decisions", "job_events"] {
        let left = match table {
            "jobs" => numbers(&pool, "SELECT job FROM jobs ORDER BY job").await,
            "decisions" => numbers(&pool, "SELECT job FROM decisions ORDER BY job").await,
            _ => numbers(&pool, "SELECT job FROM job_events ORDER BY job").await,
        };
        assert_eq!(left, [2, 3, 4, 8, 9], "{table}");
    }
    assert!(numbers(&pool, "SELECT job FROM attempts").await.is_empty());
    let left = numbers(&pool, "SELECT first_job FROM submissions ORDER BY first_job").await;
    assert_eq!(left, [2, 8, 9]);
    assert_eq!(sweep(&mut connection, 90.0 * DAY).await, 0, "nothing is left to do");
}

#[tokio::test]
async fn a_job_for_which_another_one_waits_is_kept_until_that_one_has_ended() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options.clone(), 2);
    let seed = Seed(&pool);
    // A job, an array, and a job that waits for the first one and for a task of the array.
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 2, Some(0), "ada").await;
    seed.submission(4, 1, None, "ada").await;
    for job in [1, 2, 3] {
        ended(&pool, job, 100).await;
    }
    sqlx::raw_sql(
        "UPDATE submissions SET accepted_at = now() - interval '101 d' WHERE first_job < 4;
         UPDATE submissions SET depends_on = '{1,3}' WHERE first_job = 4",
    )
    .execute(&pool)
    .await
    .unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();

    assert_eq!(sweep(&mut connection, 90.0 * DAY).await, 0);
    ended(&pool, 4, 1).await;
    assert_eq!(sweep(&mut connection, 90.0 * DAY).await, 3);
    assert_eq!(numbers(&pool, "SELECT job FROM jobs").await, [4]);
}

#[tokio::test]
async fn a_long_history_goes_in_batches_and_only_by_the_leader() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options.clone(), 2);
    sqlx::raw_sql(
        "INSERT INTO submissions (first_job, tasks, job_name, user_name, spec, accepted_at)
         SELECT n, 1, 'x', 'ada', '{}', now() - interval '200 d' FROM generate_series(1, 1700) AS n;
         INSERT INTO jobs (job, submission, state, ended_at)
         SELECT n, n, 'failed', now() - interval '100 d' FROM generate_series(1, 1700) AS n",
    )
    .execute(&pool)
    .await
    .unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();

    let stranger = retention::remove_jobs(&mut connection, 7, 90.0 * DAY, 0).await;
    assert!(stranger.unwrap_err().to_string().contains("deposed"));
    let first = retention::remove_jobs(&mut connection, 0, 90.0 * DAY, 0).await.unwrap();
    assert!(first.jobs < 1_700 && first.next.is_some(), "{first:?}");
    assert_eq!(sweep(&mut connection, 90.0 * DAY).await, 1_700 - first.jobs);
    assert!(numbers(&pool, "SELECT job FROM jobs").await.is_empty());
}

#[tokio::test]
async fn recorded_rounds_go_a_chain_at_a_time_by_age_and_by_size_and_the_newest_stays() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options.clone(), 2);
    // Three chains: of 10, 5 and 0 days ago.
    sqlx::raw_sql(
        "INSERT INTO placement_rounds (at, epoch, number, digest, bytes, body)
         SELECT now() - make_interval(days => 10 - 5 * (n / 3)), 0, n % 3,
                decode(repeat('00', 32), 'hex'), 100, decode(repeat('00', 100), 'hex')
           FROM generate_series(0, 8) AS n",
    )
    .execute(&pool)
    .await
    .unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let left = "SELECT round FROM placement_rounds ORDER BY round";
    let mut remove = async |days: Option<f64>, bytes: i64| {
        let secs = days.map(|days| days * DAY);
        rounds::remove_oldest_chain(&mut connection, 0, secs, bytes).await.unwrap()
    };

    assert_eq!(remove(Some(7.0), 10_000).await, 0, "its last round may be five days old");
    assert_eq!(remove(None, 900).await, 0, "nothing is too old, and there is room");
    assert_eq!(remove(Some(4.0), 10_000).await, 3);
    assert_eq!(remove(Some(4.0), 10_000).await, 0);
    assert_eq!(numbers(&pool, left).await, [4, 5, 6, 7, 8, 9]);
    assert_eq!(remove(None, 599).await, 3);
    assert_eq!(remove(Some(0.0), 0).await, 0, "it is being written");
    assert_eq!(numbers(&pool, left).await, [7, 8, 9]);
}
