//! Deadlines: the probability that they are met, before and after a job is accepted.

use super::*;
use crate::answers::DeadlineForecast;
use crate::predictions::RunSample;
use tessera_placement::SliceKind;

/// The lead of the wall clock over the boot clock.
const AHEAD: Millis = Millis::from_secs(1_000_000);

fn due(in_secs: u64, limit_secs: Option<u64>) -> JobSpec {
    let deadline = Some(START.plus(AHEAD).plus(Millis::from_secs(in_secs)));
    JobSpec { gpu: GpuRequest::Whole, deadline, ..spec("bob", limit_secs) }
}

/// One A100 on which ada's jobs run, and on which bob's task took 80 to 120 s.
fn with_history(running: &[Runs]) -> ClusterState {
    let mut cluster = cluster(1, running, Vec::new(), Accounts::default());
    cluster.set_wall_clock(START, START.plus(AHEAD));
    let task = crate::predictions::TaskFacts::of(&spec("bob", None)).task;
    let on =
        SliceKind { model: "a100-40gb".to_owned(), profile: "7g.40gb".to_owned(), part: 1_000 };
    let sample =
        |secs: u64| RunSample { task: task.clone(), on: on.clone(), ran: Millis::from_secs(secs) };
    cluster.predictions.learn_runs(&[80, 90, 95, 100, 105, 110, 120].map(sample));
    cluster
}

fn forecast(cluster: &ClusterState, spec: &JobSpec) -> DeadlineForecast {
    cluster.deadline_query(spec, START).answer(START).unwrap()
}

fn percent(forecast: &DeadlineForecast) -> Option<u64> {
    forecast.probability.map(|probability| probability / 10_000)
}

#[test]
fn the_probability_of_a_job_that_can_start_at_once_is_that_of_its_run_time() {
    let cluster = with_history(&[]);

    let [early, middle, late] = [60, 100, 400].map(|secs| forecast(&cluster, &due(secs, None)));

    assert!(percent(&early) < Some(10), "{early:?}");
    assert_eq!(percent(&middle), Some(50), "{middle:?}");
    assert!(percent(&late) > Some(95), "{late:?}");
    assert_eq!(middle.ends_in, Some(Millis::from_secs(100)));
    assert!(middle.text.contains("at once and to run for 1 min 40 s"), "{}", middle.text);
}

#[test]
fn a_job_that_has_to_wait_has_a_smaller_probability() {
    let free = with_history(&[]);
    let busy = with_history(&[(90, 0, "7g.40gb", None)]);

    let (alone, behind) = (forecast(&free, &due(150, None)), forecast(&busy, &due(150, None)));

    assert!(behind.probability < alone.probability, "{behind:?} {alone:?}");
    assert!(behind.text.contains("to start in 1 min 40 s"), "{}", behind.text);
    assert_eq!(behind.ends_in, Some(Millis::from_secs(200)));
}

#[test]
fn for_a_task_that_never_ran_only_its_time_limit_is_known() {
    let cluster = cluster(1, &[], Vec::new(), Accounts::default());
    let mut cluster = cluster;
    cluster.set_wall_clock(START, START.plus(AHEAD));

    let nothing = forecast(&cluster, &due(100, None));
    let certain = forecast(&cluster, &due(100, Some(90)));
    let either = forecast(&cluster, &due(100, Some(110)));

    assert_eq!(nothing.probability, None);
    assert!(nothing.text.contains("nothing is known about its run time"), "{}", nothing.text);
    assert_eq!(percent(&certain), Some(100), "{certain:?}");
    assert_eq!(either.probability, None, "{either:?}");
}

#[test]
fn a_waiting_job_is_explained_with_its_deadline_and_others_without_one() {
    let running = [(90, 0, "7g.40gb", None)];
    let mut cluster = with_history(&running);
    let job = SubmittedJob::new(JobId::from_number(3), &due(1_000, None), None, 0);
    cluster.step(vec![Input::Submitted(vec![job])], START, &mut Uuid::now_v7);

    let deadline = explain(&cluster, 3).deadline.unwrap();

    assert!(percent(&deadline) > Some(90), "{deadline:?}");
    assert_eq!(deadline.deadline_unix, due(1_000, None).deadline.unwrap());
    let plain = fresh(4, "bob", GpuRequest::Whole);
    cluster.step(vec![Input::Submitted(vec![plain])], START, &mut Uuid::now_v7);
    assert_eq!(explain(&cluster, 4).deadline, None);
}

#[test]
fn a_deadline_that_has_passed_is_missed() {
    let cluster = with_history(&[]);

    let over = forecast(&cluster, &due(0, None));

    assert_eq!((over.probability, over.text.as_str()), (Some(0), "the deadline has passed"));
}
