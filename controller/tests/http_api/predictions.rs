//! How good predictions are, and the model that is trained from the store's history.

use std::time::Duration;

use serde_json::json;
use tessera_api_types::PredictionReport;
use tessera_control::answers::ModelStatus;
use tessera_controller::actors::trainer;
use tessera_controller::ports::ToPlacer;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::rig::Rig;
use super::seed::Seed;

/// Slices of an A100: name, part in thousandths, and how much longer a task takes there, in percent.
const SLICES: [(&str, i32, i64); 4] =
    [("7g.40gb", 1_000, 100), ("4g.20gb", 571, 132), ("2g.10gb", 285, 187), ("1g.5gb", 142, 265)];
const TASKS: i32 = 60;

/// Writes the history of tasks that ran once on each kind of slice, each predicted too short.
async fn history(rig: &Rig) {
    let seed = Seed(&rig.pool);
    let many = TASKS * i32::try_from(SLICES.len()).unwrap();
    seed.submission(1, many, Some(0), "ada").await;
    seed.node().await;
    let first = seed.running(1, 1).await;
    seed.ended(1, first, "succeeded", "succeeded").await;
    let slices = json!(SLICES.map(|(name, part, percent)| json!([name, part, percent])));
    seed.run(
        sqlx::query(
            "WITH slices AS (
                 SELECT place, s ->> 0 AS profile, (s ->> 1)::smallint AS part,
                        (s ->> 2)::bigint AS percent
                   FROM jsonb_array_elements($1) WITH ORDINALITY AS e (s, place)
             ), runs AS (
                 SELECT (task - 1) * 4 + place AS job, task, profile, part,
                        (600000 + task * 7000) * percent / 100 AS ran
                   FROM generate_series(1, $2) AS task CROSS JOIN slices
             ), a AS (
                 INSERT INTO attempts (attempt, job, number, state, node, generation, gpu, gpu_index,
                                       profile, decision, live, ended_at)
                 SELECT gen_random_uuid(), r.job, 2, 'succeeded', b.node, 1, b.gpu, 0, r.profile,
                        b.decision, false, now()
                   FROM runs AS r CROSS JOIN attempts AS b
                 RETURNING attempt, job
             )
             INSERT INTO predictions (attempt, task, gpu_model, profile, compute_permille, whole, basis, runs,
                                      low_ms, expected_ms, high_ms, ran_ms, ended_at)
             SELECT a.attempt, 'task' || r.task, 'a100', r.profile, r.part, true, 'other_slice', 1,
                    r.ran / 4, r.ran / 2, r.ran, r.ran, now()
               FROM a JOIN runs AS r USING (job)",
        )
        .bind(slices)
        .bind(TASKS),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_trained_from_what_ran_and_shown_with_its_error_on_unseen_tasks() {
    let mut rig = Rig::start().await;
    history(&rig).await;
    let (reports, mut received) = mpsc::channel(4);
    let options = (*rig.pool.connect_options()).clone();

    trainer::start_slice_trainer(&Handle::current(), options, reports, Duration::from_millis(10));

    let model = match received.recv().await {
        Some(ToPlacer::UseRunTimeModel { model, accurate }) => {
            assert!(accurate.is_empty(), "no prediction is of this model yet: {accurate:?}");
            model
        }
        other => panic!("{other:?}"),
    };
    let fingerprint = model.fingerprint();
    rig.answer_placer(move |question| match question {
        ToPlacer::DescribeModels { reply } => {
            reply
                .send(ModelStatus {
                    slices: Some((fingerprint, true)),
                    colocation: None,
                    low_confidence_tasks: 2,
                })
                .unwrap();
        }
        other => panic!("{other:?}"),
    });
    let reported: PredictionReport = rig.get("/v1/predictions").await.json().await.unwrap();
    let model = reported.model.unwrap();
    assert_eq!(model.version, format!("{fingerprint:016x}"));
    assert_eq!((model.learner.as_str(), model.trusted), ("gradient-boosted trees", true));
    assert!(model.rows > 500 && model.held_out_rows > 30, "{model:?}");
    assert!((0.0..0.1).contains(&model.held_out_error), "{model:?}");
    let [outcomes] = &reported.outcomes[..] else { panic!("{:?}", reported.outcomes) };
    assert_eq!((outcomes.basis.as_str(), outcomes.outcomes), ("other_slice", 240));
    assert_eq!(outcomes.within, 240);
    assert_eq!((reported.memory.outcomes, reported.memory.low_confidence_tasks), (0, 2));
    assert!((outcomes.median_error - 1.0).abs() < 0.01, "{outcomes:?}");
    tokio::time::timeout(Duration::from_millis(200), received.recv())
        .await
        .expect_err("without new runs nothing is trained again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_controller_gets_the_outcomes_of_the_models_predictions() {
    let rig = Rig::start().await;
    history(&rig).await;
    let options = (*rig.pool.connect_options()).clone();
    let next_model = async || {
        let (reports, mut received) = mpsc::channel(4);
        let every = Duration::from_millis(10);
        trainer::start_slice_trainer(&Handle::current(), options.clone(), reports, every);
        match received.recv().await {
            Some(ToPlacer::UseRunTimeModel { model, accurate }) => (model.fingerprint(), accurate),
            other => panic!("{other:?}"),
        }
    };
    let (fingerprint, _) = next_model().await;
    // Four of its predictions were too long, and four were accurate.
    Seed(&rig.pool)
        .run(
            sqlx::query(
                "UPDATE predictions SET model = $1, basis = 'learned',
                        low_ms = CASE WHEN task = 'task7' THEN ran_ms + 1 ELSE 0 END,
                        expected_ms = ran_ms + 1, high_ms = ran_ms + 1
                  WHERE task IN ('task7', 'task8')",
            )
            .bind(fingerprint.cast_signed()),
        )
        .await;

    let (again, mut accurate) = next_model().await;

    assert_eq!(again, fingerprint, "equal runs teach the same");
    accurate.sort_unstable();
    assert_eq!(accurate, [false, false, false, false, true, true, true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_history_there_is_neither_a_model_nor_an_outcome() {
    let mut rig = Rig::start().await;
    rig.answer_placer(|question| match question {
        ToPlacer::DescribeModels { reply } => reply.send(ModelStatus::default()).unwrap(),
        other => panic!("{other:?}"),
    });

    let reported: PredictionReport = rig.get("/v1/predictions").await.json().await.unwrap();

    assert_eq!(reported, PredictionReport::default());
}
