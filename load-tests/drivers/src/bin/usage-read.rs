//! How long a new leader takes to read the usage of users from a store with many attempts. Prints
//! one JSON object.
//!
//! ```text
//! cargo run --release -p tessera-load-drivers --bin usage-read -- --attempts 600000
//! ```
//!
//! The attempts are of jobs of an hour on slices of one to seven sevenths, some of them shared. They are
//! spread evenly over ten half-lives. The store is its own PostgreSQL that forgets nothing, and each
//! reading has its own connection, as a leader has.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tessera_controller::store::connect::MIGRATOR;
use tessera_controller::store::private::PrivatePostgres;
use tessera_controller::store::{connect, recent_usage};
use tessera_load_tests::machine::{self, Spread};
use tessera_model::Millis;

/// Half-life of usage: a week.
const HALF_LIFE: Millis = Millis::from_secs(7 * 86_400);

const SEED: &[&str] = &[
    "INSERT INTO nodes (node, name, boot, agent_version, cores, memory_bytes)
     SELECT md5('node ' || n)::uuid, 'n' || n, md5('boot ' || n)::uuid, 'none', 64, 1
       FROM generate_series(1, 20) AS n",
    "INSERT INTO gpus (gpu, node, gpu_index, report)
     SELECT 'GPU-' || n, md5('node ' || 1 + n % 20)::uuid, n / 20, '{\"memory\": 42949672960}'
       FROM generate_series(1, 160) AS n",
    "INSERT INTO submissions (first_job, tasks, job_name, user_name, spec, accepted_at)
     SELECT n, 1, 'train', 'user' || n % 50, '{}', now()
       FROM generate_series(1, $1) AS n",
    "INSERT INTO jobs (job, submission, state, last_attempt, attempts, ended_at)
     SELECT n, n, 'succeeded', md5('attempt ' || n)::uuid, 1, now()
       FROM generate_series(1, $1) AS n",
    // The first of them is the oldest, as in a table that was written in the order of time.
    "INSERT INTO attempts (attempt, job, number, live, state, node, generation, gpu, gpu_index, start,
                           profile_id, profile, decision, placed_at, started_at, ended_at, sm_percent,
                           share_bytes)
     SELECT md5('attempt ' || n)::uuid, n, 1, false, 'succeeded', md5('node ' || 1 + n % 20)::uuid, 1,
            'GPU-' || 1 + n % 160, n / 20 % 8, 0, 19,
            (ARRAY['1g.5gb', '2g.10gb', '3g.20gb', '7g.40gb'])[1 + n % 4],
            md5('decision ' || n)::uuid, ended - interval '1 hour', ended - interval '1 hour', ended,
            CASE WHEN n % 5 = 0 THEN 50 END, CASE WHEN n % 5 = 0 THEN 2147483648 END
       FROM generate_series(1, $1) AS n,
            LATERAL (SELECT now() - make_interval(secs => 6048000.0 * ($1 - n) / $1) AS ended) AS e",
    // Autovacuum does this within a minute.
    "ANALYZE",
];

#[derive(Debug, Parser)]
struct Options {
    /// Attempts in the store.
    #[arg(long, default_value_t = 600_000)]
    attempts: i64,
    /// Readings.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let folder = tempfile::tempdir()?;
    // Before any other thread starts: it ends with this one.
    let server = PrivatePostgres::start(folder.path(), true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(&server, &options))
}

async fn measure(server: &PrivatePostgres, options: &Options) -> Result<()> {
    let target = server.options();
    let mut connection = PgConnection::connect_with(&target).await?;
    MIGRATOR.run(&mut connection).await?;
    for statement in SEED {
        let seeds = sqlx::query(*statement);
        let seeds = if statement.contains("$1") { seeds.bind(options.attempts) } else { seeds };
        seeds.execute(&mut connection).await?;
    }
    let mut seconds = Vec::new();
    let mut users = 0;
    for _ in 0..options.rounds.max(1) {
        let mut leader = connect(&target).await?;
        let begun = Instant::now();
        users = recent_usage::read_recent_usage(&mut leader, Some(HALF_LIFE)).await?.len();
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let first = seconds[0];
    let spread = Spread::of(seconds);
    let result = json!({
        "what": "a new leader reads what users have had",
        "machine": machine::facts(),
        "attempts": options.attempts,
        "users": users,
        "rounds": options.rounds.max(1),
        "first_s": thousandths(first),
        "median_s": thousandths(spread.at(500)),
        "longest_s": thousandths(spread.at(1_000)),
    });
    machine::report(&result, options.out.as_deref())
}

fn thousandths(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
