//! Histories from which a controller learns without running them: rows of one job's run, copied.

use tessera_api_types::SubmitRequest;

use crate::cluster::script;
use crate::postgres::Postgres;

/// Describes a job of a task.
pub fn task(key: &str, text: &str) -> SubmitRequest {
    SubmitRequest { user: Some("ada".into()), task_key: Some(key.into()), ..script(text) }
}

/// Describes the only job that must have run before rows are copied.
pub fn seed_task() -> SubmitRequest {
    SubmitRequest { gpu_profile: Some("7g.40gb".into()), ..task("seed", "true") }
}

/// Adds sixty tasks on four sizes, all slower by the same factors, and eight more that never ran on 2g.10gb.
pub fn add_runs_of_slices(database: &Postgres) {
    database.sql(
        "WITH slices (profile, part, percent) AS (
             VALUES ('7g.40gb', 1000, 100), ('4g.20gb', 571, 132), ('2g.10gb', 285, 187),
                    ('1g.5gb', 142, 265)
         ), runs AS (
             SELECT gen_random_uuid() AS attempt, 1 + row_number() OVER () AS number, s.profile, s.part,
                    CASE WHEN task <= 60 THEN 'task' || task ELSE 'late' || task - 60 END AS key,
                    CASE WHEN task <= 60 THEN 600000 + task * 7000 ELSE 1000 END * s.percent / 100
                        AS ran
               FROM generate_series(1, 68) AS task CROSS JOIN slices AS s
              WHERE task <= 60 OR s.profile <> '2g.10gb'
         ), a AS (
             INSERT INTO attempts (attempt, job, number, state, node, generation, gpu, gpu_index,
                                   profile, decision, live, ended_at)
             SELECT r.attempt, b.job, r.number, 'succeeded', b.node, 1, b.gpu, 0, r.profile,
                    b.decision, false, now()
               FROM runs AS r CROSS JOIN attempts AS b
         )
         INSERT INTO predictions (attempt, task, gpu_model, profile, compute_permille, whole, ran_ms, ended_at)
         SELECT r.attempt, replace(p.task, 'seed', r.key), p.gpu_model, r.profile, r.part, true, r.ran,
                now()
           FROM runs AS r CROSS JOIN predictions AS p",
    );
}

/// Describes a job of one of the eight tasks, on the size on which it never ran. It takes twice as long as is learned.
pub fn late_task(number: u32) -> SubmitRequest {
    SubmitRequest {
        gpu_profile: Some("2g.10gb".into()),
        ..task(&format!("late{number}"), "sleep 4")
    }
}
