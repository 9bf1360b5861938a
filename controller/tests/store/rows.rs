//! The store on a real PostgreSQL: rows of older schemas, corrupt rows, and every column of a
//! reservation.

use crate::seed::{GPU, NODE, Seed};
use std::collections::BTreeSet;

use serde_json::{Value, json};
use sqlx::migrate::Migrate as _;
use sqlx::{Connection as _, PgConnection};
use tessera_control::rows::transitions::Reservation;
use tessera_controller::store::predictions::{ModelSubject, count_samples, read_outcomes};
use tessera_controller::store::transitions::Placements;
use tessera_controller::store::{
    StoreError, admin_overrides, colocations, connect, predictions, snapshot, transitions,
};
use tessera_model::mig::{PlanStep, ProfileId, Slot};
use tessera_model::share::{MpsShare, SliceShare, SmPercent};
use tessera_model::sizing::SizeSource;
use tessera_model::{AttemptId, Bytes, DecisionId, JobId, Millis, NodeId};
use tessera_placement::{
    Basis, Explanation, JobPlacement, MpsClient, Prediction, SharingRequest, SliceKind,
};
use uuid::Uuid;

/// The migration that renamed tables, columns and values.
const STANDARD_WORDS: i64 = 18;
const GIB: u64 = 1 << 30;

/// Rows of every renamed table under the schema before [`STANDARD_WORDS`].
const OLD_ROWS: &str = r#"
    UPDATE leader SET epoch = 5, generation_floor = 7, set_back_epoch = 3;
    INSERT INTO nodes (node, name, boot, agent_version, cores, memory_bytes)
    VALUES ('00000000-0000-0000-0000-00000000000a', 'node-1',
            '00000000-0000-0000-0000-00000000000a', '0.1.0', 8, 1 << 30);
    INSERT INTO operator_words (word, node, by_user, reason, said_at)
    VALUES ('drained', '00000000-0000-0000-0000-00000000000a', 'ada', 'fans', '2026-01-01');
    INSERT INTO layout_changes (plan, gpu, node, layout_gen, state, steps, steps_text,
                                requested_by, wanted)
    VALUES ('00000000-0000-0000-0000-00000000000b', 'GPU-00000000-0000-4000-8000-000000000001',
            '00000000-0000-0000-0000-00000000000a', 4, 'ordered', '[]', '{}', 'ada',
            '[{"start": 2, "profile": 19}]');
    INSERT INTO jobs (job, submission, state) VALUES (1, 1, 'queued');
    INSERT INTO decisions (decision, job, outcome, policy, epoch, place, why)
    VALUES ('00000000-0000-0000-0000-00000000000c', 1, 'move', 'tessera', 5,
            '{"gpu": "GPU-1"}', '{"summary": "cheaper"}');
    INSERT INTO attempts (attempt, job, number, live, state, node, generation, gpu, gpu_index,
                          profile, decision, started_at, ended_at, peak_gpu_memory)
    SELECT ('00000000-0000-0000-0000-0000000000f' || n)::uuid, 1, n, false, 'succeeded',
           '00000000-0000-0000-0000-00000000000a', 1, 'GPU-00000000-0000-4000-8000-000000000001',
           0, '1g.5gb', gen_random_uuid(), '2026-01-01', '2026-01-02', 700
      FROM generate_series(1, 2) AS n;
    INSERT INTO predictions (attempt, task, gpu_model, profile, part, whole, basis, runs, low_ms,
                             expected_ms, high_ms, ran_ms, ended_at, model, aside_ms, moved_ms,
                             memory_runs, memory_low, memory_floor, memory_high, memory_cautious,
                             memory_at)
    VALUES ('00000000-0000-0000-0000-0000000000f1', 'ada:train', 'A100', '1g.5gb', 142, true,
            'learned', 3, 10, 20, 30, 25, now(), 99, 11, 12, 4, 500, 600, 800, false, now());
    INSERT INTO companies (attempt, task, gpu_model, profile, part, sm_percent, online, busy, others,
                           low, speed, high, model, came, beside, came_at)
    VALUES ('00000000-0000-0000-0000-0000000000f2', 'ada:train', 'A100', '1g.5gb', 142, 50, true,
            300, 1, 700, 800, 900, 77, 850, 1000, now());
    INSERT INTO predictors (fingerprint, learner, rows, held_out_rows, held_out_error, covered, about)
    VALUES (77, 'random forest', 9, 3, 0.1, 0.9, 'company');
"#;

/// Applies the migrations before one, and returns the connection to the new database.
async fn database_before(version: i64, name: &str) -> PgConnection {
    let options = crate::database::fresh().await;
    let mut admin = PgConnection::connect_with(&options).await.unwrap();
    let create = format!("CREATE DATABASE {name} TEMPLATE template0");
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut admin).await.unwrap();
    let mut connection = PgConnection::connect_with(&options.database(name)).await.unwrap();
    let table = &connect::MIGRATOR.table_name;
    connection.ensure_migrations_table(table).await.unwrap();
    for migration in connect::MIGRATOR.iter().filter(|migration| migration.version < version) {
        connection.apply(table, migration).await.unwrap();
    }
    connection
}

#[tokio::test]
async fn rows_under_the_old_names_are_read_under_the_new_ones() {
    let mut old = database_before(STANDARD_WORDS, "old_names").await;
    sqlx::raw_sql(OLD_ROWS).execute(&mut old).await.unwrap();

    connect::MIGRATOR.run(&mut old).await.unwrap();

    let read = snapshot::read_snapshot(&mut old).await.unwrap();
    assert_eq!(read.generation_min, 7);
    assert_eq!(read.plans.len(), 1);
    assert_eq!(read.migrations, [("ada:train".to_owned(), Millis::new(12))]);
    assert_eq!(read.checkpoints.iter().map(|kept| kept.ran.get()).collect::<Vec<_>>(), [11]);
    assert_eq!(read.runs.iter().map(|run| run.ran.get()).collect::<Vec<_>>(), [25]);
    // The memory of that attempt was not recorded then, so nothing is learned from it.
    assert_eq!(read.memory_samples.len(), 0);
    let overrides = admin_overrides::read_overrides(&mut old).await.unwrap();
    assert_eq!(overrides[0].to_string(), "drained (fans, by ada)");
    assert_eq!(read_outcomes(&mut old, 99).await.unwrap(), [true]);
    assert_eq!(colocations::read_outcomes(&mut old, 77).await.unwrap(), [true]);
    let runs = colocations::read_shared_runs(&mut old).await.unwrap();
    assert_eq!((runs[0].client.busy, runs[0].on.part), (Some(300), 142));
    let values: (String, String, i64) = sqlx::query_as(
        "SELECT (SELECT outcome FROM decisions), (SELECT subject FROM predictors),
                (SELECT rollback_epoch FROM leader)",
    )
    .fetch_one(&mut old)
    .await
    .unwrap();
    assert_eq!(values, ("migrate".to_owned(), ModelSubject::Colocation.name().to_owned(), 3));
    assert_eq!(count_samples(&mut old).await.unwrap().runs_since(Default::default()), 1);
}

#[tokio::test]
async fn a_corrupt_row_is_named_with_its_column_and_never_read_as_zero() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options.clone(), 1);
    let seed = Seed(&pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    let attempt = seed.running(1, 1).await;
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    for (statement, table, key, column) in [
        ("UPDATE nodes SET cores = -1", "nodes", NODE.to_string(), "cores"),
        (
            "UPDATE nodes SET cores = 8; DELETE FROM gpus; UPDATE attempts SET gpu_index = -2; UPDATE attempts SET generation = -2",
            "attempts",
            attempt.to_string(),
            "generation",
        ),
        (
            "UPDATE attempts SET generation = 1; UPDATE jobs SET charged = -3",
            "jobs",
            "1".to_owned(),
            "charged",
        ),
    ] {
        sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
        // The seed's report has only what the API's reads look at.
        sqlx::raw_sql("DELETE FROM gpus").execute(&mut connection).await.unwrap();

        let error = snapshot::read_snapshot(&mut connection).await.unwrap_err();

        match &error {
            StoreError::Corrupt { table: t, key: k, column: c, .. } => {
                assert_eq!((*t, k.as_str(), *c), (table, key.as_str(), column), "{error}");
            }
            other => panic!("{statement}: {other}"),
        }
        let text = error.to_string();
        assert!(text.contains(table) && text.contains(column), "{text}");
    }
}

fn reservation(job: u64) -> Reservation {
    let slot = Slot { start: 2, profile: ProfileId(19) };
    Reservation {
        job: JobId::from_number(job),
        gang: None,
        attempt: AttemptId::from_uuid(Uuid::from_u128(u128::from(job) << 8)),
        number: 1,
        node: NodeId::from_uuid(NODE),
        generation: 1,
        place: JobPlacement {
            gpu: GPU.parse().unwrap(),
            slot: Some(slot),
            steps: vec![PlanStep::Create(slot)],
            part: None,
            share: None,
        },
        gpu_index: 3,
        profile: "1g.5gb".to_owned(),
        slots: vec![2, 3],
        share: None,
        capacity: Bytes::new(8 * GIB),
        slice: Some("MIG-7".parse().unwrap()),
        decision: DecisionId::from_uuid(Uuid::from_u128(u128::from(job))),
        why: Explanation { summary: "it \"fits\"".to_owned(), ..Explanation::default() },
        run_prediction: None,
        colocation: None,
        memory: None,
        gpu_memory: Bytes::new(8 * GIB),
        size_source: SizeSource::Declared,
        waited_for: Vec::new(),
    }
}

fn slice() -> SliceKind {
    SliceKind { model: "A100".to_owned(), profile: "1g.5gb".to_owned(), part: 142 }
}

/// An attempt that has a slice to itself, of which everything is predicted.
fn alone(job: u64) -> Reservation {
    let prediction = Prediction {
        low: Millis::new(10),
        expected: Millis::new(20),
        high: Millis::new(30),
        basis: Basis::Learned,
        runs: 3,
    };
    Reservation {
        run_prediction: Some(tessera_control::predictions::AttemptPrediction {
            task: "ada:train".to_owned(),
            on: slice(),
            whole: true,
            prediction: Some(prediction),
            model: Some(u64::MAX),
        }),
        memory: Some(tessera_predict::memory::MemoryEstimate {
            runs: 4,
            low: Bytes::new(500),
            value: Bytes::new(600),
            high: Bytes::new(800),
            ran_out_of: None,
            cautious: true,
        }),
        ..reservation(job)
    }
}

/// An attempt that shares its slice under MPS, with a predicted speed.
fn shared(job: u64) -> Reservation {
    let sm = SmPercent::try_from(40).unwrap();
    let part = SliceShare::Mps(MpsShare { sm, memory: Bytes::new(2 * GIB) });
    let speed = tessera_control::colocation::PredictedSpeed { low: 700, value: 800, high: 900 };
    let place = JobPlacement {
        slot: Some(Slot { start: 4, profile: ProfileId(19) }),
        ..reservation(job).place
    };
    Reservation {
        place,
        slots: vec![4, 5],
        slice: None,
        share: Some(SharingRequest::new("ada", part)),
        colocation: Some(tessera_control::colocation::ColocationPrediction {
            task: "ada:serve".to_owned(),
            on: slice(),
            client: MpsClient { online: true, sm, busy: Some(300) },
            others: 1,
            speed: Some((speed, 7)),
        }),
        ..reservation(job)
    }
}

async fn row(connection: &mut PgConnection, query: &'static str) -> Value {
    let statement = format!("SELECT to_jsonb(r) FROM ({query}) AS r");
    sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn every_column_of_a_reservation_is_written() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options.clone(), 1);
    let seed = Seed(&pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 1, None, "ada").await;
    let mut connection = PgConnection::connect_with(&options).await.unwrap();

    let reservations = [alone(1), shared(2)];
    let placements = Placements { reservations: &reservations, waits: &[], record: None };
    let placed = transitions::record_placements(&mut connection, placements, "tessera", 9).await;
    let launched = placed.unwrap();
    assert_eq!(
        launched.keys().copied().collect::<BTreeSet<_>>(),
        [1, 2].map(JobId::from_number).into()
    );
    assert_eq!(launched[&JobId::from_number(1)].attempts, 1);

    let attempts = row(
        &mut connection,
        "SELECT jsonb_agg(to_jsonb(a) - 'placed_at' ORDER BY job) AS all FROM attempts AS a",
    )
    .await;
    let (first, second) = (&attempts["all"][0], &attempts["all"][1]);
    assert_eq!(first["state"], "starting");
    assert_eq!(
        (&first["start"], &first["profile_id"], &first["gpu_index"]),
        (&json!(2), &json!(19), &json!(3))
    );
    assert_eq!((&first["slice"], &first["generation"]), (&json!("MIG-7"), &json!(1)));
    assert_eq!((&second["state"], &second["sm_percent"]), (&json!("placing"), &json!(40)));
    assert_eq!(second["share_bytes"], json!(2 * GIB));
    let decision = row(
        &mut connection,
        "SELECT outcome, epoch, policy, placement, explanation ->> 'summary' AS summary
           FROM decisions WHERE job = 1",
    )
    .await;
    assert_eq!(decision["summary"], "it \"fits\"");
    assert_eq!((&decision["outcome"], &decision["epoch"]), (&json!("start"), &json!(9)));
    assert_eq!(decision["placement"]["gpu"], GPU);
    let predicted =
        row(&mut connection, "SELECT to_jsonb(p) - 'attempt' AS p FROM predictions AS p").await;
    assert_eq!(
        predicted["p"],
        json!({
            "task": "ada:train", "gpu_model": "A100", "profile": "1g.5gb", "compute_permille": 142,
            "whole": true, "basis": "learned", "runs": 3, "low_ms": 10, "expected_ms": 20,
            "high_ms": 30, "model": -1, "memory_runs": 4, "memory_low": 500,
            "memory_estimate": 600, "memory_high": 800, "memory_cautious": true,
            "ran_ms": null, "ended_at": null, "checkpoint_ms": null, "useful_ms": null,
            "migration_ms": null, "ran_out_of": null, "memory_outcome_at": null,
        })
    );
    let colocated =
        row(&mut connection, "SELECT to_jsonb(c) - 'attempt' AS c FROM colocations AS c").await;
    assert_eq!(
        colocated["c"],
        json!({
            "task": "ada:serve", "gpu_model": "A100", "profile": "1g.5gb", "compute_permille": 142,
            "sm_percent": 40, "online": true, "busy_permille": 300, "corunners": 1,
            "speed_low": 700, "speed_predicted": 800, "speed_high": 900, "model": 7,
            "speed_outcome": null, "corunners_outcome": null, "outcome_at": null,
        })
    );
    let slots = row(
        &mut connection,
        "SELECT jsonb_agg(to_jsonb(s) ORDER BY slot) AS all FROM attempt_slots AS s",
    )
    .await;
    assert_eq!(slots["all"].as_array().unwrap().len(), 4);
    assert_eq!((&slots["all"][0]["slot"], &slots["all"][0]["sharer"]), (&json!(2), &Value::Null));
    let held = &slots["all"][3];
    assert_eq!(
        (&held["sharer"], &held["start"], &held["size"]),
        (&json!("ada"), &json!(4), &json!(2))
    );
    assert_eq!((&held["sharers"], &held["sm_percent"]), (&json!(1), &json!(40)));
    assert_eq!(
        (&held["memory_bytes"], &held["capacity_bytes"]),
        (&json!(2 * GIB), &json!(8 * GIB))
    );
    assert!(predictions::read_run_samples(&mut connection).await.unwrap().is_empty());
}
