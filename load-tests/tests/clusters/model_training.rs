//! Models that a running controller trains on its history: they are versioned, used, compared with outcomes,
//! and no longer used where they are inaccurate.

use std::process::Command;

use tessera_api_types::{JobDetail, PredictionReport, SubmitRequest};
use tessera_kernel_queue::{Dims, KernelId, Nanos, TaskProfile};
use tessera_load_tests::cluster::{Cluster, Database, Plan, SOON};
use tessera_load_tests::learning::{self, task};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

const GIB: u64 = 1 << 30;

/// A cluster that checks every second whether there is something to learn. It has run one job on a whole GPU,
/// and the rows of other jobs are copies of its rows.
struct Rig {
    cluster: Cluster,
}

impl Rig {
    fn start() -> Self {
        let cluster = Plan::new()
            .policy("tessera")
            .env("TESSERA_LEARN_EVERY", "1")
            .database(Database::External)
            .node("n1", "a100-40gb,a100-40gb")
            .start();
        let rig = Self { cluster };
        rig.runs(&learning::seed_task());
        rig
    }

    fn runs(&self, request: &SubmitRequest) -> JobDetail {
        let job = self.cluster.submit(request).job_id;
        self.cluster.wait_job(job, SOON, "succeeded")
    }

    fn sql(&self, statement: &str) {
        self.cluster.database.as_ref().unwrap().sql(statement);
    }

    /// Adds a history of eighty tasks. Each ran alone in 100 s, without co-runners under MPS in 100 s, and twice with
    /// another one in so many seconds.
    fn seed_colocations(&self, shared_secs: u32) {
        self.sql(&format!(
            "WITH runs AS (
             SELECT gen_random_uuid() AS attempt, task, kind,
                    now() - make_interval(hours => task, secs => CASE kind WHEN 2 THEN 900 ELSE 300 END)
                        AS began,
                    make_interval(secs => CASE WHEN kind < 3 THEN 100 ELSE {shared_secs} END) AS ran
               FROM generate_series(1, 80) AS task CROSS JOIN generate_series(1, 4) AS kind
         ), a AS (
             INSERT INTO attempts (attempt, job, number, state, node, generation, gpu, gpu_index,
                                   start, profile, decision, live, started_at, ended_at, sm_percent,
                                   share_bytes)
             SELECT r.attempt, 1000000 + r.task * 10 + r.kind, 1, 'succeeded', b.node, 1, b.gpu, 0,
                    CASE WHEN r.kind = 1 THEN 6 ELSE 0 END, '2g.10gb', b.decision, false, r.began,
                    r.began + r.ran, CASE WHEN r.kind > 1 THEN 50 END,
                    CASE WHEN r.kind > 1 THEN 1073741824 END
               FROM runs AS r CROSS JOIN attempts AS b
         ), j AS (
             INSERT INTO jobs (job, submission, state, ended_at)
             SELECT 1000000 + r.task * 10 + r.kind, j.submission, 'succeeded', now()
               FROM runs AS r CROSS JOIN jobs AS j
         ), p AS (
             INSERT INTO predictions (attempt, task, gpu_model, profile, compute_permille, whole, ran_ms, ended_at)
             SELECT r.attempt, replace(p.task, 'seed', 'task' || r.task), p.gpu_model, '2g.10gb', 285,
                    true, 100000, now()
               FROM runs AS r CROSS JOIN predictions AS p
              WHERE r.kind = 1
         )
         INSERT INTO colocations (attempt, task, gpu_model, profile, compute_permille, sm_percent,
                                  online, corunners)
         SELECT r.attempt, replace(p.task, 'seed', 'task' || r.task), p.gpu_model, '2g.10gb', 285, 50,
                false, 0
           FROM runs AS r CROSS JOIN predictions AS p
          WHERE r.kind > 1",
        ));
    }

    /// Adds the profile of a task whose kernels run for two fifths of its time.
    fn seed_profile(&self, task: &str) {
        let mut profile = TaskProfile::default();
        let dims = Dims([64, 1, 1]);
        let step = profile.intern(&KernelId::new("step", dims, dims).unwrap()).unwrap();
        let kernel = profile.kernel_mut(step).unwrap();
        for _ in 0..20 {
            kernel.took.add(Nanos::new(4_000_000));
            kernel.gap.add(Nanos::new(6_000_000));
        }
        profile.close_measuring();
        let text = serde_json::to_string(&profile).unwrap();
        self.sql(&format!(
            "INSERT INTO kernel_profiles (task_key, profile, kernels, measured)
             VALUES ('{task}', convert_to('{text}', 'UTF8'), 1, true)"
        ));
    }

    fn predictions(&self) -> PredictionReport {
        self.cluster.call("GET", "/v1/predictions", None).expect(200).json()
    }

    fn run_command(&self, words: &[&str]) -> String {
        let url = self.cluster.url();
        let reported = Command::new(programs().path("tessera"))
            .args(["--url", &url])
            .args(words)
            .output()
            .unwrap();
        assert!(reported.status.success(), "{reported:?}");
        String::from_utf8(reported.stdout).unwrap()
    }

    /// Waits until a series has a value.
    fn shows(&self, series: &str) {
        wait::until(SOON, series, || {
            let metrics = self.cluster.call("GET", "/metrics", None).expect(200).text();
            metrics.lines().any(|line| line == series).then_some(())
        });
    }
}

#[test]
fn a_model_of_slices_is_trained_used_and_given_up_when_it_becomes_inaccurate() {
    let rig = Rig::start();
    learning::add_runs_of_slices(rig.cluster.database.as_ref().unwrap());

    let model = wait::until(SOON, "a model is learned", || rig.predictions().model);

    assert_eq!((model.learner.as_str(), model.trusted), ("gradient-boosted trees", true));
    assert!(model.held_out_rows > 0 && model.held_out_error < 0.1, "{model:?}");
    let reported = rig.run_command(&["predictions"]);
    assert!(
        reported.contains(&model.version) && reported.contains("its mean error was"),
        "{reported}"
    );
    // A new leader also learns the runs of single tasks from the store.
    let mut rig = rig;
    rig.cluster.controller.kill();
    rig.cluster.controller.start();
    rig.cluster.wait_ready();
    wait::until(SOON, "the same model is learned again", || {
        rig.predictions().model.filter(|again| again.version == model.version)
    });

    // Twice as long as predicted, four times.
    let late = learning::late_task;
    let jobs: Vec<u64> = (1..=4).map(|n| rig.cluster.submit(&late(n)).job_id).collect();
    for job in jobs {
        let done = rig.cluster.wait_job(job, SOON, "succeeded");
        let known = done.attempt_list[0].prediction.clone().unwrap();
        assert_eq!(known.basis, "learned", "{known:?}");
        assert!((1.5..2.5).contains(&known.expected_secs), "{known:?}");
        assert!(known.ran_secs.is_some_and(|ran| ran > known.high_secs), "{known:?}");
    }

    let reported = rig.predictions();
    let outcomes = reported.outcomes.iter().find(|of| of.basis == "learned").unwrap();
    assert_eq!((outcomes.outcomes, outcomes.within), (4, 0));
    let model = reported.model.unwrap();
    assert!(!model.trusted, "{model:?}");
    rig.shows("tessera_predictor_trusted{subject=\"slices\"} 0");
    assert!(rig.run_command(&["predictions"]).contains("It is not used now"));
    let fifth = rig.runs(&late(5));
    let known = fifth.attempt_list[0].prediction.clone().unwrap();
    assert_eq!(known.basis, "other_slice", "the cautious rule stands in");
}

#[test]
fn a_colocation_forest_is_trained_and_keeps_jobs_apart_that_it_predicts_to_slow_each_other() {
    let rig = Rig::start();
    rig.seed_colocations(250);

    let model = wait::until(SOON, "a forest is learned", || rig.predictions().colocation_model);

    assert_eq!((model.learner.as_str(), model.trusted, model.rows), ("random forest", true, 240));
    assert!(model.held_out_error < 0.1, "{model:?}");
    let shares = |key: &str, text: &str| SubmitRequest {
        share: Some("mps".into()),
        sm_percent: Some(50),
        gpu_memory_bytes: Some(4 * GIB),
        ..task(key, text)
    };
    let first = rig.cluster.submit(&shares("one", "sleep 600")).job_id;
    let first = rig.cluster.wait_job(first, SOON, "running");
    let reported = first.attempt_list[0].colocation_prediction.clone().unwrap();
    assert_eq!(reported.co_runners, 0);
    assert!(
        reported.speed > 0.9 && reported.low <= reported.speed && reported.speed <= reported.high,
        "{reported:?}"
    );

    let second = rig.cluster.submit(&shares("task1", "sleep 1")).job_id;
    let second = rig.cluster.wait_job(second, SOON, "succeeded");

    let place = |job: &JobDetail| {
        let attempt = &job.attempt_list[0];
        (attempt.gpu.clone(), attempt.start_slice)
    };
    assert_ne!(place(&first), place(&second), "on its own slice");
    let why = rig.run_command(&["explain", &second.job.id.to_string()]);
    let words = format!("it doesn't join job {}: that would add", first.job.id);
    assert!(why.contains(&words), "{why}");
    // The time of its task alone is known: it was a hundred times as fast.
    let known = wait::until(SOON, "its outcome is known", || {
        let detail = rig.cluster.job(second.job.id);
        detail.attempt_list[0]
            .colocation_prediction
            .clone()
            .filter(|reported| reported.measured.is_some())
    });
    assert_eq!((known.measured, known.co_runners_mean), (Some(1.0), Some(0.0)));
    assert_eq!(rig.predictions().colocation.outcomes, 1);
    rig.shows("tessera_predictor_trusted{subject=\"colocation\"} 1");
    rig.shows("tessera_colocation_predictions_total{within=\"yes\"} 1");
    let shown = rig.run_command(&["show", &second.job.id.to_string()]);
    assert!(shown.contains("of its speed alone, without co-runners; it ran at 100 %"), "{shown}");
    assert!(
        rig.run_command(&["predictions"])
            .contains("of speeds with co-runners under MPS: random forest")
    );
}

#[test]
fn two_auto_jobs_whose_speeds_a_forest_predicts_share_a_slice_under_mps() {
    let mut rig = Rig::start();
    ["ada: task1", "ada: task2"].into_iter().for_each(|task| rig.seed_profile(task));
    rig.seed_colocations(125);
    // A new leader reads at once how busy tasks are.
    rig.cluster.controller.kill();
    rig.cluster.controller.start();
    rig.cluster.wait_ready();
    wait::until(SOON, "a forest is trusted", || {
        rig.predictions().colocation_model.filter(|model| model.trusted)
    });
    // Each needs more than half of a GPU, and both GPUs are in use until they wait.
    let whole = SubmitRequest { gpu_profile: Some("7g.40gb".into()), ..task("long", "sleep 600") };
    let blockers = [(); 2].map(|()| {
        let job = rig.cluster.submit(&whole).job_id;
        rig.cluster.wait_job(job, SOON, "running").job.id
    });
    let auto = |key: &str| SubmitRequest {
        share: Some("auto".into()),
        gpu_memory_bytes: Some(20_000 << 20),
        ..task(key, "echo pipe=$CUDA_MPS_PIPE_DIRECTORY; sleep 3")
    };
    let jobs = ["task1", "task2"].map(|key| rig.cluster.submit(&auto(key)).job_id);
    rig.cluster.act(blockers[0], "cancel");

    let jobs = jobs.map(|job| rig.cluster.wait_job(job, SOON * 3, "succeeded"));
    let attempts = jobs.each_ref().map(|job| &job.attempt_list[0]);
    assert_eq!(attempts[0].slice, attempts[1].slice);
    for (job, attempt) in jobs.iter().zip(attempts) {
        assert_eq!((attempt.share.as_deref(), attempt.sm_percent), (Some("mps"), Some(50)));
        assert!(rig.cluster.logs(job.job.id).contains("pipe=/"), "it is a client of MPS");
        assert!(attempt.colocation_prediction.is_some(), "what comes of it is learned from");
    }
    let why = rig.run_command(&["explain", &jobs[1].job.id.to_string()]);
    assert!(why.contains("under MPS with 50 % of the multiprocessors: it runs at"), "{why}");
    let shown = rig.run_command(&["show", &jobs[1].job.id.to_string()]);
    assert!(shown.contains("may share its slice under MPS, with 50 %"), "{shown}");
}
