//! Training samples from migrated jobs, and predictions for overdue ones.

use tessera_placement::{Basis, Estimator as _, SliceKind};

use super::*;
use crate::predictions::JobCheckpoint;
use crate::predictions::RunSample;

fn kind(profile: &str) -> SliceKind {
    let part = match profile {
        "7g.40gb" => 1_000,
        "2g.10gb" => 285,
        _ => 142,
    };
    SliceKind { model: "a100-40gb".to_owned(), profile: profile.to_owned(), part }
}

fn task() -> String {
    TaskFacts::of(&spec(Some("USR1"))).task
}

fn samples(profile: &str, secs: &[u64]) -> Vec<RunSample> {
    let sample =
        |secs: &u64| RunSample { task: task(), on: kind(profile), ran: Millis::from_secs(*secs) };
    secs.iter().map(sample).collect()
}

fn ended_after(number: u64, outcome: Outcome, secs: u64) -> Input {
    let mut record = crate::rows::transitions::record_without_exit(outcome, String::new());
    record.started_unix = Millis::from_secs(1);
    record.ended_unix = Millis::from_secs(1 + secs);
    let report = AttemptReport {
        attempt: attempt(number),
        job: job(number),
        status: AttemptStatus::Ended(record),
    };
    frame(ToController::Attempt(report))
}

/// A job that has run for 900 s on 2g.10gb, of a task that took this long there.
fn known(secs: &[u64], change: impl FnOnce(&mut StoreSnapshot)) -> Rig {
    Rig::with(&[(1, slot("2g.10gb", 4), Some("USR1"))], |snapshot| {
        snapshot.runs = samples("2g.10gb", secs);
        change(snapshot);
    })
}

fn ends_in(rig: &Rig) -> Option<u64> {
    let live = rig.cluster.attempts.live.values().next().unwrap();
    rig.cluster.predictions.ends_in(live, START).map(|left| left.get() / 1_000)
}

#[test]
fn the_slice_of_an_overdue_job_is_not_planned_for_others() {
    assert_eq!(ends_in(&known(&[2_000; 9], |_| {})), Some(1_100));
    let overdue = known(&[300; 9], |_| {});
    assert_eq!(ends_in(&overdue), None, "nothing says when");
    let live = overdue.cluster.attempts.live.values().next().unwrap();
    let done = overdue.cluster.predictions.progress(live, Millis::from_secs(900));
    assert_eq!(done, 500_000, "twice its time is as likely as not");
}

#[test]
fn work_before_a_checkpoint_counts_as_run_time() {
    let checkpoint =
        JobCheckpoint { job: job(1), on: kind("7g.40gb"), ran: Millis::from_secs(200) };
    let rig = known(&[2_000; 9], |snapshot| {
        snapshot.runs.extend(samples("7g.40gb", &[500; 9]));
        snapshot.checkpoints = vec![checkpoint];
    });

    // 200 s of 500 s on the earlier slice equal 800 s of 2,000 s on this one.
    assert_eq!(ends_in(&rig), Some(300));
}

#[test]
fn the_training_sample_of_a_resumed_job_is_the_sum_of_its_runs() {
    let checkpoint =
        JobCheckpoint { job: job(1), on: kind("2g.10gb"), ran: Millis::from_secs(700) };
    let mut rig = known(&[], |snapshot| snapshot.checkpoints = vec![checkpoint]);

    let round = rig.step(vec![ended_after(1, Outcome::Succeeded, 950)], Millis::from_secs(5));

    assert_eq!(round.jobs.ended[0].run_times.useful, Some(Millis::from_secs(1_650)));
    let learned = rig.cluster.predictions.estimator.predict(&task(), &kind("2g.10gb")).unwrap();
    assert_eq!((learned.expected, learned.basis), (Millis::from_secs(1_650), Basis::SameSlice));
}

#[test]
fn a_sum_that_is_mostly_a_guess_is_not_a_training_sample() {
    let checkpoint =
        JobCheckpoint { job: job(1), on: kind("7g.40gb"), ran: Millis::from_secs(5_000) };
    let mut rig = known(&[2_000; 9], |snapshot| snapshot.checkpoints = vec![checkpoint]);

    let round = rig.step(vec![ended_after(1, Outcome::Succeeded, 950)], Millis::from_secs(5));

    assert_eq!(round.jobs.ended[0].run_times.useful, None);
    assert_eq!(round.jobs.ended[0].run_times.ran, Some(Millis::from_secs(950)));
}

#[test]
fn measured_move_times_outlive_the_controller() {
    let mut rig = known(&[2_000; 9], |snapshot| {
        snapshot.migrations = vec![(task(), Millis::from_secs(4)); 9];
    });

    let (asked, _) = rig.decide(to_the_left(), Millis::from_secs(3));

    let why = &asked.jobs.migrations[0].why.summary;
    assert!(why.contains("expected to cost 4 s"), "{why}");
}

#[test]
fn an_attempts_checkpoint_is_stored_with_it() {
    let mut rig = known(&[2_000; 9], |_| {});
    rig.decide(to_the_left(), Millis::from_secs(3));

    let round = rig.step(vec![ended_after(1, Outcome::Preempted, 903)], Millis::from_secs(5));

    assert_eq!(round.jobs.ended[0].run_times.checkpointed, Some(Millis::from_secs(903)));
    assert_eq!(round.jobs.ended[0].done, 451_500);
    let predicted = round.jobs.reservations[0].run_prediction.as_ref().unwrap();
    assert!(!predicted.whole, "its work is not the whole job's");
}
