//! Rows as the controller writes them, made by hand.

use serde_json::{Value, json};
use sqlx::PgPool;
use tessera_api_types::SubmitRequest;
use uuid::Uuid;

/// The node that all seeded attempts run on.
pub const NODE: Uuid = Uuid::from_u128(0xa);
pub const GPU: &str = "GPU-00000000-0000-4000-8000-000000000001";

/// Fills a database with what the tests need.
pub struct Seed<'a>(pub &'a PgPool);

impl Seed<'_> {
    /// Writes one submit; its jobs are queued.
    pub async fn submission(&self, first: i64, tasks: i32, array_first: Option<i32>, user: &str) {
        let request = SubmitRequest {
            name: Some(format!("job of {user}")),
            user: Some(user.to_owned()),
            command: Some(vec!["/bin/sleep".into(), "1 minute".into()]),
            gpu_profile: Some("1g.5gb".into()),
            time_limit_secs: Some(60),
            max_retries: Some(3),
            env: [("MODEL".to_owned(), "resnet".to_owned())].into(),
            ..SubmitRequest::default()
        };
        let spec = serde_json::to_value(request.into_spec().unwrap()).unwrap();
        self.run(
            sqlx::query(
                "INSERT INTO submissions (first_job, tasks, array_first, job_name, user_name, spec)
                 VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(first)
            .bind(tasks)
            .bind(array_first)
            .bind(format!("job of {user}"))
            .bind(user)
            .bind(spec),
        )
        .await;
        self.run(
            sqlx::query(
                "INSERT INTO jobs (job, submission, state)
                 SELECT $1 + i, $1, 'queued' FROM generate_series(0, $2 - 1) AS i",
            )
            .bind(first)
            .bind(tasks),
        )
        .await;
    }

    /// Moves a job without an attempt.
    pub async fn state(&self, job: i64, state: &str) {
        self.run(
            sqlx::query(
                "UPDATE jobs SET state = $2, ended_at = CASE WHEN $2 = ANY
                    ('{succeeded,failed,cancelled,timed_out}') THEN now() END WHERE job = $1",
            )
            .bind(job)
            .bind(state),
        )
        .await;
    }

    /// Writes a node with one GPU.
    pub async fn node(&self) {
        self.run(
            sqlx::query(
                "INSERT INTO nodes (node, name, boot, agent_version, cores, memory_bytes)
                 VALUES ($1, 'node-1', $1, '0.1.0', 8, 1 << 30)",
            )
            .bind(NODE),
        )
        .await;
        let report = json!({ "mig": { "On": { "geometry": { "profiles": [
            { "id": 19, "name": "1g.5gb", "memory_slices": 1 }
        ] } } } });
        self.run(
            sqlx::query("INSERT INTO gpus (gpu, node, gpu_index, report) VALUES ($1, $2, 0, $3)")
                .bind(GPU)
                .bind(NODE)
                .bind(report),
        )
        .await;
    }

    /// Gives a job a running attempt; returns its id.
    pub async fn running(&self, job: i64, number: i32) -> Uuid {
        let (attempt, decision) = (Uuid::now_v7(), Uuid::now_v7());
        self.decision(decision, job, "start", None, Some(19)).await;
        self.run(
            sqlx::query(
                "INSERT INTO attempts (attempt, job, number, state, node, generation, gpu,
                    gpu_index, start, profile_id, profile, slice, decision, started_at)
                 VALUES ($1, $2, $3, 'running', $4, 1, $5, 0, 2, 19, '1g.5gb', 'MIG-7', $6, now())",
            )
            .bind(attempt)
            .bind(job)
            .bind(number)
            .bind(NODE)
            .bind(GPU)
            .bind(decision),
        )
        .await;
        self.run(
            sqlx::query(
                "UPDATE jobs SET state = 'running', attempt = $2, last_attempt = $2, attempts = $3
                  WHERE job = $1",
            )
            .bind(job)
            .bind(attempt)
            .bind(number),
        )
        .await;
        attempt
    }

    /// Ends a job's running attempt.
    pub async fn ended(&self, job: i64, attempt: Uuid, outcome: &str, to: &str) {
        self.run(
            sqlx::query(
                "UPDATE attempts SET live = false, state = $2, ended_at = now(), exit_code = '1:0',
                    user_ms = 1500, system_ms = 250, max_rss = 4096, energy_mj = 1250,
                    peak_gpu_memory = 77 WHERE attempt = $1",
            )
            .bind(attempt)
            .bind(outcome),
        )
        .await;
        self.run(
            sqlx::query(
                "UPDATE jobs SET state = $2, attempt = NULL, charged = charged + 1,
                    restart_reason = CASE WHEN $2 = 'queued' THEN $3 END,
                    ended_at = CASE WHEN $2 <> 'queued' THEN now() END WHERE job = $1",
            )
            .bind(job)
            .bind(to)
            .bind(outcome),
        )
        .await;
    }

    /// Records a decision; a start with a step if a profile is given.
    pub async fn decision(
        &self,
        id: Uuid,
        job: i64,
        outcome: &str,
        reason: Option<&str>,
        profile: Option<u32>,
    ) {
        let place: Option<Value> = profile.map(|profile| {
            let slot = json!({ "start": 2, "profile": profile });
            json!({ "gpu": GPU, "slot": slot, "steps": [{ "Create": slot }] })
        });
        let why = json!({
            "policy": "scheme-b", "summary": format!("{outcome} because"),
            "would_start_if": null, "candidates_left_out": 2,
            "candidates": [{
                "gpu": GPU, "node": "node-1", "gpu_index": 0, "profile": "1g.5gb", "start": 2,
                "memory": 4096, "chosen": true, "verdict": "chosen", "reachability_after": 9,
            }],
        });
        self.run(
            sqlx::query(
                "INSERT INTO decisions (decision, job, outcome, reason, policy, epoch, placement, explanation)
                 VALUES ($1, $2, $3, $4, 'scheme-b', 1, $5, $6)",
            )
            .bind(id)
            .bind(job)
            .bind(outcome)
            .bind(reason)
            .bind(place)
            .bind(why),
        )
        .await;
    }

    pub async fn event(&self, job: i64, state: &str, text: &str) {
        self.run(
            sqlx::query("INSERT INTO job_events (job, state, text) VALUES ($1, $2, $3)")
                .bind(job)
                .bind(state)
                .bind(text),
        )
        .await;
    }

    pub async fn run(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) {
        query.execute(self.0).await.unwrap();
    }
}
