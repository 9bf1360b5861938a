//! Measurements over time: reports of nodes, combined on demand. Nothing of them is in the database.

use tessera_api_types::{ClusterSeries, GpuSeries, JobSeries};
use tessera_controller::figures::FigureCache;
use tessera_controller::ports::ToPlacer;
use tessera_frames::cluster::{AttemptFigures, GpuFigures};
use tessera_model::{AttemptId, Bytes, JobId, Millis};

use super::cluster::node;
use super::rig::{Rig, problem};
use super::seed::Seed;

const NEW_YEAR: Millis = Millis::from_secs(1_767_225_600);

/// A node's report of its GPU, with one attempt on it.
pub fn figures(gpu: &str, secs: u64, attempt: AttemptId) -> GpuFigures {
    GpuFigures {
        gpu: gpu.parse().unwrap(),
        at_unix: NEW_YEAR.plus(Millis::from_secs(secs)),
        memory_used: Some(Bytes::from_mib(1_000)),
        power_mw: Some(100_000),
        activity: Some(500),
        attempts_mj: secs * 40_000,
        other_mj: secs * 10_000,
        idle_mj: secs * 50_000,
        slices: Vec::new(),
        attempts: vec![AttemptFigures {
            memory_peak: None,
            idle_since: None,
            attempt,
            job: JobId::from_number(1),
            memory_used: Some(Bytes::from_mib(secs + 1)),
            activity: Some(250),
            energy_mj: Some(secs * 40_000),
        }],
    }
}

fn show_reports(board: &FigureCache, attempt: AttemptId) {
    let name = "node-1".parse().unwrap();
    // Every 5 s for five minutes, with a hole of one minute.
    for secs in (0..=300).step_by(5).filter(|secs| !(100..160).contains(secs)) {
        board.show(&name, figures("GPU-1", secs, attempt));
    }
}

async fn rig() -> (Rig, AttemptId) {
    let mut rig = Rig::start().await;
    rig.answer_placer(|question| match question {
        ToPlacer::DescribeNodes { reply } => reply.send(vec![node("node-1", "GPU-1")]).unwrap(),
        other => panic!("{other:?}"),
    });
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    let attempt = AttemptId::from_uuid(seed.running(1, 1).await);
    show_reports(&rig.figures, attempt);
    (rig, attempt)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpus_figures_have_as_many_points_as_were_requested() {
    let (rig, attempt) = rig().await;

    let fine: GpuSeries = rig.get("/v1/gpus/GPU-1/series?points=720").await.json().await.unwrap();
    let coarse: GpuSeries = rig.get("/v1/gpus/GPU-1/series?points=10").await.json().await.unwrap();
    let newest: GpuSeries =
        rig.get("/v1/gpus/GPU-1/series?since_secs=20").await.json().await.unwrap();

    assert_eq!((fine.step_secs, fine.points.len()), (5, 49));
    assert!(coarse.points.len() <= 10 && coarse.step_secs >= 30, "{coarse:?}");
    assert_eq!(newest.points.len(), 4);
    let last = fine.points.last().unwrap();
    assert_eq!(last.power_watts, Some(100.0));
    assert_eq!(last.activity, Some(0.5));
    // The parts of a card's energy add up.
    assert_eq!(last.energy_joules, Some(30_000.0));
    // The hole is no point, and no zero.
    let gaps = fine.points.windows(2).filter(|pair| (pair[1].at - pair[0].at).whole_seconds() > 5);
    assert_eq!(gaps.count(), 1);
    assert_eq!(fine.jobs.len(), 1);
    assert_eq!((fine.jobs[0].job_id, &fine.jobs[0].attempt), (1, &attempt.to_string()));
    let all: ClusterSeries = rig.get("/v1/series?points=720").await.json().await.unwrap();
    assert_eq!(all.items, [fine]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_figures_are_its_attempts_and_its_power_follows_from_its_energy() {
    let (rig, attempt) = rig().await;

    let job: JobSeries = rig.get("/v1/jobs/1/series?points=720").await.json().await.unwrap();

    assert_eq!((job.job_id, job.attempts.len()), (1, 1));
    let own = &job.attempts[0];
    assert_eq!((own.number, &own.id), (1, &attempt.to_string()));
    assert_eq!(own.points.len(), 49);
    assert_eq!(own.points[0].power_watts, None);
    assert_eq!(own.points[1].power_watts, Some(40.0));
    let after_the_hole = own.points.iter().filter(|point| point.power_watts.is_none()).count();
    assert_eq!(after_the_hole, 2, "the first point and the one after the hole");
    assert_eq!(own.points.last().unwrap().memory_max_bytes, Some(301 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_reported_has_no_points_and_bad_queries_get_what_is_expected() {
    let (rig, _) = rig().await;
    Seed(&rig.pool).submission(2, 1, None, "ada").await;

    let waiting: JobSeries = rig.get("/v1/jobs/2/series").await.json().await.unwrap();
    assert!(waiting.attempts.is_empty());
    problem(rig.get("/v1/jobs/99/series").await, 404, "not-found").await;
    problem(rig.get("/v1/gpus/GPU-9/series").await, 404, "not-found").await;
    let bad = problem(rig.get("/v1/gpus/GPU-1/series?points=721").await, 400, "bad-field").await;
    assert_eq!(bad.expected.as_deref(), Some("1 to 720"));
    problem(rig.get("/v1/series?points=0").await, 400, "bad-field").await;
    problem(rig.get("/v1/series?since_secs=0").await, 400, "bad-field").await;
    problem(rig.get("/v1/series?since=5").await, 400, "unknown-field").await;
}
