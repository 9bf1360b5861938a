//! Jobs that wait for other jobs.

use super::*;
use crate::round::Round;
use tessera_model::dependency::{
    Condition, Dependency, DependencyFacts, DependencyKind, DependencyQuestion, JobRange,
};

fn on(kind: DependencyKind, first: u64, jobs: u32) -> Condition {
    let on = Some(JobRange { first: JobId::from_number(first), jobs });
    Condition { kind, on, name: first.to_string(), delay: Millis::ZERO, shift: 0, members: 1 }
}

fn ends(first: u64, jobs: u32) -> DependencyQuestion {
    DependencyQuestion::Ends(JobRange { first: JobId::from_number(first), jobs })
}

fn waits_for(number: u64, conditions: Vec<Condition>, cancel_if_never: bool) -> SubmittedJob {
    let dependency = Some(Dependency { any: false, cancel_if_never, conditions });
    let spec = JobSpec { dependency, gpu: GpuRequest::Whole, ..spec("bob", None) };
    SubmittedJob::new(JobId::from_number(number), &spec, None, 0)
}

fn step(cluster: &mut ClusterState, inputs: Vec<Input>, now: Millis) -> Round {
    cluster.step(inputs, now, &mut Uuid::now_v7)
}

fn known(question: DependencyQuestion, unfinished: u32, unsuccessful: u32) -> Input {
    let facts = DependencyFacts::Ends { unfinished, unsuccessful };
    Input::Dependencies(vec![(question, facts)])
}

fn reserved(round: &Round) -> Vec<u64> {
    round.jobs.reservations.iter().map(|reserved| reserved.job.number()).collect()
}

fn reasons(round: &Round) -> Vec<(u64, &'static str)> {
    round.jobs.waits.iter().map(|wait| (wait.job.number(), wait.reason)).collect()
}

#[test]
fn a_job_whose_dependency_is_not_met_is_not_placed_until_it_is() {
    let mut cluster = cluster(1, &[], Vec::new(), Accounts::default());
    let job = waits_for(7, vec![on(DependencyKind::AfterOk, 3, 2)], false);

    let first = step(&mut cluster, vec![Input::Submitted(vec![job])], START);
    assert_eq!((reserved(&first), first.questions), (vec![], vec![ends(3, 2)]));

    let waits = step(&mut cluster, vec![known(ends(3, 2), 1, 0)], START);
    assert_eq!((reserved(&waits), reasons(&waits)), (vec![], vec![(7, "dependency")]));
    let why = explain(&cluster, 7);
    assert_eq!(why.reason, "dependency");
    assert!(why.why.summary.contains("--dependency afterok:3"), "{}", why.why.summary);

    let met = step(&mut cluster, vec![known(ends(3, 2), 0, 0)], START);
    assert_eq!(reserved(&met), [7]);
}

#[test]
fn a_job_that_can_never_start_is_explained_or_cancelled_as_its_user_requested() {
    let mut cluster = cluster(2, &[], Vec::new(), Accounts::default());
    let jobs = vec![
        waits_for(7, vec![on(DependencyKind::AfterOk, 3, 1)], false),
        waits_for(8, vec![on(DependencyKind::AfterOk, 3, 1)], true),
    ];
    step(&mut cluster, vec![Input::Submitted(jobs)], START);

    let never = step(&mut cluster, vec![known(ends(3, 1), 0, 1)], START);

    assert_eq!(reserved(&never), [0_u64; 0]);
    assert_eq!(reasons(&never), [(7, "dependency_never_satisfied")]);
    let given_up: Vec<_> =
        never.jobs.commands.iter().map(|c| (c.job.number(), c.change.to())).collect();
    assert_eq!(given_up, [(8, Some(JobState::Cancelled))]);
    assert_eq!(explain(&cluster, 7).reason, "dependency_never_satisfied");
}

#[test]
fn the_end_of_a_job_repeats_the_query_about_it() {
    let mut cluster = cluster(2, &[(3, 0, "7g.40gb", None)], Vec::new(), Accounts::default());
    let of_array = waits_for(7, vec![on(DependencyKind::AfterAny, 2, 4)], false);
    let of_other = waits_for(9, vec![on(DependencyKind::AfterAny, 40, 4)], false);
    step(&mut cluster, vec![Input::Submitted(vec![of_array, of_other])], START);
    step(&mut cluster, vec![known(ends(2, 4), 1, 0), known(ends(40, 4), 1, 0)], START);
    let mut round = Round::default();
    let attempt = AttemptId::from_uuid(Uuid::from_u128(3));
    let mut changes = cluster.attempt_changes(&mut round);
    changes.end_without_exit(attempt, tessera_model::life::Outcome::Succeeded, "it is done");

    cluster.queue.dependencies.note_changes(&round.jobs);

    assert_eq!(cluster.queue.dependencies.take_questions(), [ends(2, 4)]);
}

#[test]
fn a_cancelled_job_repeats_the_query_about_it() {
    let mut cluster = cluster(1, &[], Vec::new(), Accounts::default());
    let job = waits_for(7, vec![on(DependencyKind::AfterAny, 5, 1)], false);
    step(&mut cluster, vec![Input::Submitted(vec![job])], START);
    step(&mut cluster, vec![known(ends(5, 1), 1, 0)], START);
    let jobs = vec![JobId::from_number(5)];
    let cancel = Input::Command { token: 1, command: crate::commands::JobCommand::Cancel, jobs };

    let round = step(&mut cluster, vec![cancel], START);

    assert_eq!(round.questions, [ends(5, 1)]);
}

#[test]
fn a_dropped_job_does_not_answer_the_commands_of_users() {
    let mut cluster = cluster(1, &[], Vec::new(), Accounts::default());
    let job = waits_for(8, vec![on(DependencyKind::AfterOk, 3, 1)], true);
    step(&mut cluster, vec![Input::Submitted(vec![job])], START);
    let jobs = vec![JobId::from_number(99)];
    let cancel = Input::Command { token: 1, command: crate::commands::JobCommand::Cancel, jobs };

    let round = step(&mut cluster, vec![known(ends(3, 1), 0, 1), cancel], START);

    let findings = crate::rows::findings::CommitFindings {
        moved: vec![None, Some(JobState::Cancelled)],
        ..Default::default()
    };
    let answers = round.complete_answers(&findings);
    assert_eq!(answers, [(1, vec![crate::commands::CommandResult::NotFound])]);
}

#[test]
fn a_delay_counts_from_the_start_on_the_wall_clock() {
    let mut cluster = cluster(1, &[], Vec::new(), Accounts::default());
    let ahead = Millis::from_secs(1_000_000);
    cluster.set_wall_clock(START, START.plus(ahead));
    let later = Condition { delay: Millis::from_secs(60), ..on(DependencyKind::After, 3, 1) };
    let job = waits_for(7, vec![later], false);
    step(&mut cluster, vec![Input::Submitted(vec![job])], START);
    let question = DependencyQuestion::Starts(JobRange { first: JobId::from_number(3), jobs: 1 });
    let facts = DependencyFacts::Starts { waiting: 0, last: START.plus(ahead) };

    let waits = step(&mut cluster, vec![Input::Dependencies(vec![(question, facts)])], START);
    let soon = START.plus(Millis::from_secs(59));
    let early = step(&mut cluster, vec![Input::Tick], soon);
    let met = step(&mut cluster, vec![Input::Tick], soon.plus(Millis::from_secs(2)));

    assert_eq!((reserved(&waits), reserved(&early)), (vec![], vec![]));
    assert_eq!(reserved(&met), [7]);
}

#[test]
fn jobs_of_one_name_wait_for_the_newest_earlier_one_that_has_not_ended() {
    let mut cluster = cluster(1, &[], Vec::new(), Accounts::default());
    let single =
        Condition { kind: DependencyKind::Singleton, on: None, ..on(DependencyKind::After, 1, 1) };
    let job = waits_for(7, vec![single], false);
    let question = DependencyQuestion::Earlier(JobId::from_number(7));

    let first = step(&mut cluster, vec![Input::Submitted(vec![job])], START);
    assert_eq!(first.questions, [question]);
    let earlier = DependencyFacts::Earlier(Some(JobId::from_number(4)));
    step(&mut cluster, vec![Input::Dependencies(vec![(question, earlier)])], START);
    let jobs = vec![JobId::from_number(4)];
    let cancel = Input::Command { token: 1, command: crate::commands::JobCommand::Cancel, jobs };
    let again = step(&mut cluster, vec![cancel], START);
    assert_eq!(again.questions, [question]);
    let none = DependencyFacts::Earlier(None);
    let met = step(&mut cluster, vec![Input::Dependencies(vec![(question, none)])], START);

    assert_eq!(reserved(&met), [7]);
}
