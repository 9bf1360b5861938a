use proptest::prelude::*;
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::{Bytes, JobId};

use super::recovery::AttemptTrace;
use super::testing::{facts, order};
use super::*;
use crate::ledger::AttemptLedger;

const STANDING: LaunchConditions =
    LaunchConditions { generation: 1, leased: true, now_unix: Millis::new(7) };

fn launch(attempts: &mut Attempts, number: u128) -> Vec<AttemptEffect> {
    let order = order(number, 1);
    let facts = facts(&order);
    attempts.launch(Box::new(order), facts, Ok(()), STANDING)
}

fn id(number: u128) -> AttemptId {
    order(number, 1).attempt
}

fn success() -> ExitRecord {
    ExitRecord {
        outcome: Outcome::Succeeded,
        exit: Some(ProgramExit::Code(0)),
        detail: String::new(),
        started_unix: Millis::new(1),
        ended_unix: Millis::new(2),
        user_time: Millis::ZERO,
        system_time: Millis::ZERO,
        max_rss: Bytes::ZERO,
    }
}

fn spawns(effects: &[AttemptEffect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, AttemptEffect::Spawn(_))).count()
}

fn outcome(effects: &[AttemptEffect]) -> Option<Outcome> {
    effects.iter().find_map(|effect| match effect {
        AttemptEffect::Send(ToController::Attempt(AttemptReport {
            status: AttemptStatus::Ended(record),
            ..
        })) => Some(record.outcome),
        AttemptEffect::Record(_, then) => outcome(then),
        _ => None,
    })
}

fn tombstoned(effects: &[AttemptEffect]) -> bool {
    effects.iter().any(|effect| match effect {
        AttemptEffect::Send(ToController::Tombstoned { .. }) => true,
        AttemptEffect::Record(_, then) => tombstoned(then),
        _ => false,
    })
}

fn running(number: u128) -> Attempts {
    let mut attempts = Attempts::default();
    launch(&mut attempts, number);
    attempts.journalled(id(number), STANDING);
    attempts.started(id(number), 99, Millis::new(1));
    attempts
}

#[test]
fn a_launch_is_journalled_before_it_is_spawned() {
    let mut attempts = Attempts::default();

    let effects = launch(&mut attempts, 1);

    let [AttemptEffect::Record(JournalRecord::Accepted(written), then)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(written.attempt, id(1));
    assert_eq!(then[..], [AttemptEffect::Journalled(id(1))]);
    assert_eq!(spawns(&attempts.journalled(id(1), STANDING)), 1);
}

#[test]
fn a_repeated_launch_is_only_reported() {
    let mut attempts = running(1);

    let effects = launch(&mut attempts, 1);

    let [AttemptEffect::Send(ToController::Attempt(report))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(matches!(report.status, AttemptStatus::Running { pid: 99, .. }));
}

#[test]
fn a_launch_for_another_generation_or_without_a_lease_or_place_is_refused_for_good() {
    for (standing, place) in [
        (LaunchConditions { generation: 2, ..STANDING }, Ok(())),
        (LaunchConditions { leased: false, ..STANDING }, Ok(())),
        (STANDING, Err(PlacementRefusal::Gone)),
    ] {
        let mut attempts = Attempts::default();
        let order = order(1, 1);
        let facts = facts(&order);

        let effects = attempts.launch(Box::new(order), facts, place, standing);

        assert_eq!(outcome(&effects), Some(Outcome::NotStarted));
        attempts.acknowledged(id(1));
        assert!(
            tombstoned(&launch(&mut attempts, 1)),
            "the end was reported, so it must stay \
                                                        valid"
        );
    }
}

#[test]
fn a_lease_that_expired_while_the_journal_was_written_starts_nothing() {
    let mut attempts = Attempts::default();
    launch(&mut attempts, 1);

    let effects = attempts.journalled(id(1), LaunchConditions { leased: false, ..STANDING });

    assert_eq!(spawns(&effects), 0);
    assert_eq!(outcome(&effects), Some(Outcome::NotStarted));
}

#[test]
fn a_tombstone_refuses_a_later_launch() {
    let mut attempts = Attempts::default();

    assert!(tombstoned(&attempts.revoke(id(1))));

    assert!(tombstoned(&launch(&mut attempts, 1)));
    assert_eq!(attempts.alive_count(), 0);
}

#[test]
fn a_revoked_attempt_that_runs_is_killed_before_the_tombstone_is_reported() {
    let mut attempts = running(1);

    let asked = attempts.revoke(id(1));
    let ended = attempts.ended(id(1), success());

    assert_eq!(asked, [AttemptEffect::Kill(id(1), KillReason::Revoked)]);
    assert!(tombstoned(&ended));
}

#[test]
fn a_stop_that_overtakes_the_journal_prevents_the_start() {
    let mut attempts = Attempts::default();
    launch(&mut attempts, 1);

    attempts.stop(id(1), StopCause::Cancel);
    let effects = attempts.journalled(id(1), STANDING);

    assert_eq!(spawns(&effects), 0);
    assert_eq!(outcome(&effects), Some(Outcome::Cancelled));
}

#[test]
fn an_end_is_reported_until_it_is_acknowledged_and_never_runs_again() {
    let mut attempts = running(1);
    attempts.ended(id(1), success());
    assert_eq!(attempts.reports().len(), 1);

    attempts.acknowledged(id(1));

    assert!(attempts.reports().is_empty());
    assert!(tombstoned(&launch(&mut attempts, 1)));
}

#[test]
fn a_new_generation_kills_the_old_ones_attempts() {
    let mut attempts = running(1);

    let effects = attempts.kill_other_generations(2);

    assert_eq!(effects, [AttemptEffect::Kill(id(1), KillReason::OldGeneration)]);
    assert!(attempts.others_alive(2));
    attempts.ended(id(1), success());
    assert!(!attempts.others_alive(2));
}

#[test]
fn a_full_disk_ends_the_launch_with_its_reason() {
    let mut attempts = Attempts::default();
    launch(&mut attempts, 1);

    let effects = attempts.not_journalled(id(1), "no space left on device", Millis::new(7));

    let AttemptEffect::Send(ToController::Attempt(report)) = &effects[0] else {
        panic!("{effects:?}")
    };
    let AttemptStatus::Ended(record) = &report.status else { panic!("{report:?}") };
    assert_eq!(record.outcome, Outcome::NotStarted);
    assert!(record.detail.contains("no space left on device"));
}

#[test]
fn after_a_restart_each_journalled_attempt_is_reported_by_its_remains_on_disk() {
    let mut ledger = AttemptLedger::default();
    for number in 1..=4 {
        ledger.apply(&JournalRecord::Accepted(facts(&order(number, 1))));
    }
    let held = HeldAttempt {
        attempt: id(1),
        job: JobId::from_number(1),
        generation: 1,
        gpu: order(1, 1).gpu,
        slot: None,
        status: AttemptStatus::Running { pid: 5, started_unix: Millis::new(1) },
    };
    let trace = |attempt| match attempt {
        attempt if attempt == id(2) => AttemptTrace::Ended(success()),
        attempt if attempt == id(3) => AttemptTrace::Begun,
        _ => AttemptTrace::None,
    };

    let (attempts, _) = Attempts::recover(ledger, vec![held], trace, Millis::new(7));

    let reported: Vec<_> = attempts
        .reports()
        .into_iter()
        .map(|frame| match frame {
            ToController::Attempt(AttemptReport {
                status: AttemptStatus::Ended(record), ..
            }) => Some(record.outcome),
            _ => None,
        })
        .collect();
    let expected = [None, Some(Outcome::Succeeded), Some(Outcome::Lost), Some(Outcome::NotStarted)];
    assert_eq!(reported, expected);
    assert_eq!(attempts.alive_count(), 1);
}

proptest! {
    /// For any messages in any order, no attempt is started twice, and none after its tombstone or
    /// its end was reported.
    #[test]
    fn no_attempt_is_started_twice_or_after_its_end_was_reported(
        walk in prop::collection::vec((0..8_u8, 1..4_u128, any::<bool>()), 0..80),
    ) {
        let mut attempts = Attempts::default();
        let mut spawned = std::collections::BTreeMap::<AttemptId, usize>::new();
        let mut over = std::collections::BTreeSet::new();
        for (kind, number, leased) in walk {
            let attempt = id(number);
            let standing = LaunchConditions { leased, ..STANDING };
            let mut effects = match kind {
                0 | 1 => {
                    let order = order(number, 1);
                    let facts = facts(&order);
                    attempts.launch(Box::new(order), facts, Ok(()), standing)
                }
                2 => attempts.journalled(attempt, standing),
                3 => attempts.started(attempt, 9, Millis::ZERO),
                4 => attempts.ended(attempt, success()),
                5 => attempts.revoke(attempt),
                6 => attempts.stop(attempt, StopCause::Preempt),
                _ => attempts.acknowledged(attempt),
            };
            while let Some(effect) = effects.pop() {
                match effect {
                    AttemptEffect::Spawn(order) => {
                        *spawned.entry(order.attempt).or_default() += 1;
                        prop_assert!(!over.contains(&order.attempt), "reported to be over before");
                    }
                    AttemptEffect::Record(_, then) => effects.extend(then),
                    AttemptEffect::Send(ToController::Tombstoned { attempt }) => {
                        over.insert(attempt);
                    }
                    AttemptEffect::Send(ToController::Attempt(report)) => {
                        if matches!(report.status, AttemptStatus::Ended(_)) {
                            over.insert(report.attempt);
                        }
                    }
                    _ => {}
                }
            }
        }
        prop_assert!(spawned.values().all(|times| *times == 1), "{:?}", spawned);
    }
}
