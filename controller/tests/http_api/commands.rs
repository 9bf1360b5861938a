//! Commands and waits.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::Method;
use tessera_api_types::{JobExplanation, JobView};
use tessera_control::answers::WaitingExplanation;
use tessera_control::commands::{CommandResult, JobCommand, JobStateChange};
use tessera_controller::ports::ToPlacer;
use tessera_model::JobId;
use tessera_model::life::JobState;
use tessera_placement::Explanation;

use super::rig::{Rig, problem};
use super::seed::Seed;

type Commands = Arc<Mutex<Vec<(JobCommand, Vec<u64>)>>>;

/// Plays a placer that answers every job of a command alike.
fn answer_commands(rig: &mut Rig, result: CommandResult) -> Commands {
    let commands = Commands::default();
    let received = Arc::clone(&commands);
    rig.answer_placer(move |question| {
        let ToPlacer::Command { command, jobs, reply } = question else { panic!("{question:?}") };
        let results = vec![result.clone(); jobs.len()];
        received.lock().unwrap().push((command, jobs.into_iter().map(JobId::number).collect()));
        reply.send(Ok(results)).unwrap();
    });
    commands
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_reaches_the_placer_and_returns_the_job() {
    let mut rig = Rig::start().await;
    Seed(&rig.pool).submission(1, 1, None, "ada").await;
    let commands = answer_commands(&mut rig, CommandResult::Done);

    for verb in ["cancel", "hold", "release"] {
        let answer = rig.post(&format!("/v1/jobs/1/{verb}")).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.json::<JobView>().await.unwrap().id, 1);
    }
    let deleted = rig.request(Method::DELETE, "/v1/jobs/1").send().await.unwrap();
    assert_eq!(deleted.status(), 200);

    use JobCommand::{Cancel, Hold, Release};
    let expected = [Cancel, Hold, Release, Cancel].map(|command| (command, vec![1]));
    assert_eq!(*commands.lock().unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arrays_number_addresses_its_unfinished_tasks() {
    let mut rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(10, 4, Some(0), "ada").await;
    seed.submission(14, 1, None, "ada").await;
    seed.state(11, "succeeded").await;
    let commands = answer_commands(&mut rig, CommandResult::Done);

    assert_eq!(rig.post("/v1/jobs/10/cancel").await.status(), 200);
    assert_eq!(rig.post("/v1/jobs/10_0/cancel").await.status(), 200);
    assert_eq!(rig.post("/v1/jobs/12/cancel").await.status(), 200);

    let received = commands.lock().unwrap().clone();
    let jobs: Vec<_> = received.into_iter().map(|(_, jobs)| jobs).collect();
    assert_eq!(jobs, [vec![10, 12, 13], vec![10], vec![12]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_command_states_what_prevents_it() {
    let mut rig = Rig::start().await;
    Seed(&rig.pool).submission(1, 1, None, "ada").await;
    answer_commands(&mut rig, CommandResult::Refused { state: "running".into() });

    let problem = problem(rig.post("/v1/jobs/1/hold").await, 409, "wrong-state").await;

    assert_eq!(problem.detail, "job 1 is running and can't be held");
    assert!(problem.expected.unwrap().contains("cancel"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_twice_is_harmless() {
    let mut rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    seed.state(1, "cancelled").await;
    answer_commands(&mut rig, CommandResult::Refused { state: "cancelled".into() });

    assert_eq!(rig.post("/v1/jobs/1/cancel").await.status(), 200);
    problem(rig.post("/v1/jobs/1/release").await, 409, "wrong-state").await;
}

#[expect(clippy::disallowed_methods, reason = "a wait must end soon after the job")]
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_job() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    let waiting = tokio::spawn(rig.request(Method::GET, "/v1/jobs/1/wait?timeout_secs=60").send());
    tokio::time::sleep(Duration::from_millis(200)).await;

    seed.state(1, "cancelled").await;
    let began = Instant::now();
    let moved =
        JobStateChange { job: JobId::from_number(1), attempt: None, state: JobState::Cancelled };
    rig.job_changes.send([moved].into()).unwrap();

    let job: JobView = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(job.state, "cancelled");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[expect(clippy::disallowed_methods, reason = "a wait must last as long as requested")]
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_when_its_time_is_up() {
    let rig = Rig::start().await;
    Seed(&rig.pool).submission(1, 2, Some(0), "ada").await;

    for job in ["1", "1_1"] {
        let began = Instant::now();
        let answer = rig.get(&format!("/v1/jobs/{job}/wait?timeout_secs=1")).await;
        assert_eq!(answer.json::<JobView>().await.unwrap().state, "queued");
        assert!(began.elapsed() >= Duration::from_secs(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_an_array_ends_with_its_last_task() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 2, Some(0), "ada").await;
    seed.state(1, "succeeded").await;

    let waited: JobView = rig.get("/v1/jobs/1/wait?timeout_secs=0").await.json().await.unwrap();
    assert_eq!(waited.id, 2);
    seed.state(2, "succeeded").await;
    let waited: JobView = rig.get("/v1/jobs/1/wait").await.json().await.unwrap();
    assert_eq!((waited.id, waited.state.as_str()), (1, "succeeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_is_explained_by_the_placer() {
    let mut rig = Rig::start().await;
    Seed(&rig.pool).submission(1, 1, None, "ada").await;
    rig.answer_placer(|question| {
        let ToPlacer::Explain { job, reply } = question else { panic!("{question:?}") };
        let why = Explanation {
            policy: "scheme-b".into(),
            summary: format!("job {job} waits"),
            would_start_if: Some("job 9 ends".into()),
            ..Explanation::default()
        };
        reply
            .send(Some(WaitingExplanation {
                jobs_ahead: 3,
                reason: "resources",
                why,
                prediction: None,
                memory: None,
                size: (tessera_model::sizing::SizeSource::Declared, None),
                alternatives: Vec::new(),
                expected_start: None,
                deadline: None,
            }))
            .unwrap();
    });

    let explain: JobExplanation = rig.get("/v1/jobs/1/explain").await.json().await.unwrap();

    assert_eq!(explain.summary, "job 1 waits");
    assert_eq!(explain.reason.as_deref(), Some("resources"));
    assert_eq!(explain.jobs_ahead, Some(3));
}
