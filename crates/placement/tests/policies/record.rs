//! Rounds that are recorded, read, and decided again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use tessera_model::mig::Profile;
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::policy::{NAMES, with_settings};
use tessera_placement::record::{
    BadRecord, CHAIN_MAX, CHAIN_SPAN, FORMAT, RecordedDecision, ReplayedRound, RoundInput,
    RoundRecord, RoundRecorder, RoundReplay,
};
use tessera_placement::{
    Account, ClusterView, Decision, GpuView, JobFacts, JobTable, Knowledge, Policy, Predictor,
    QueuedJob, RunTime, SearchBudget, SliceLimit, by_name, decide_round,
};

use crate::arbitrary;
use crate::build::{a100, cluster, gib, queue, taken};
use crate::gangs::properties::mixed;

/// Answers that differ by job, profile and round; nothing is known about every third job.
#[derive(Clone, Copy, Debug)]
struct Guess {
    round: u64,
}

impl Guess {
    const fn knows(self, job: JobId) -> bool {
        !job.number().is_multiple_of(3)
    }
}

impl JobTable for Guess {
    fn facts(&self, job: JobId) -> JobFacts {
        let part = u32::try_from(self.round % 10).unwrap() * 90_000;
        let (known, runs) = (self.knows(job), job.number() >= 1_000);
        let limit = Millis::from_secs(job.number() % 9 * 100);
        JobFacts {
            done: known.then_some(if runs { part } else { 0 }),
            since: runs.then_some(Millis::from_secs(1)),
            limit: (job.number() % 4 == 1).then_some(limit),
            migration_price: (known && !job.number().is_multiple_of(5))
                .then_some(Millis::from_secs(self.round)),
            memory: job.number().is_multiple_of(2).then_some(Bytes::from_mib(9_000)),
            online: job.number().is_multiple_of(4),
            ..JobFacts::default()
        }
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let (user, number) = owner(job);
        let lab = number == 2;
        Some(Account {
            name: if lab { "account lab" } else { user }.into(),
            shares: number + 1,
            used: Millis::from_secs(u64::from(number + 1) * self.round * 60),
            quota: (number > 0).then_some(number * 9),
            member: lab.then(|| SliceLimit { name: user.into(), slices: 11 }),
        })
    }
}

impl Predictor for Guess {
    fn predict_run(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<RunTime> {
        let slices = u64::from(profile.compute_slices);
        let time = Millis::from_secs(10 + job.number() % 7 * 100 / slices);
        let is_measured = (job.number() + slices).is_multiple_of(2);
        let latest = Millis::new(time.get() * (1 + job.number() % 3));
        self.knows(job).then_some(RunTime { time, latest, is_measured })
    }
}

impl SearchBudget for Guess {
    fn allows(&self, searches: usize) -> bool {
        searches < 5 * usize::try_from(self.round).unwrap()
    }
}

/// The account of a job.
fn owner(job: JobId) -> (&'static str, u32) {
    [("ada", 0), ("bob", 1), ("cyd", 2)][usize::try_from(job.number() % 3).unwrap()]
}

/// One round: the cluster, the queue, the time, and whether it has a result.
type Round = (ClusterView, Vec<QueuedJob>, Millis, bool);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let queue = prop_oneof![2 => arbitrary::queue(), 1 => mixed()];
    let round = (arbitrary::cluster(), queue, prop::bool::weighted(0.8));
    // Half of each cluster and queue is unchanged from the round before, and must not be recorded
    // again.
    prop::collection::vec((round, any::<bool>(), any::<bool>()), 1..6).prop_map(|rounds| {
        let mut past: Option<(ClusterView, Vec<QueuedJob>)> = None;
        let mut all = Vec::new();
        for (at, ((mut cluster, mut jobs, kept), same_gpus, same_jobs)) in (1..).zip(rounds) {
            if let Some((gpus, queue)) = past {
                let half = gpus.gpus.len() / 2;
                if same_gpus {
                    cluster.gpus.splice(..half.min(cluster.gpus.len()), gpus.gpus[..half].to_vec());
                    cluster.gpus.sort_by_key(|gpu| gpu.index);
                    cluster.gpus.dedup_by_key(|gpu| gpu.index);
                }
                if same_jobs {
                    jobs = queue.into_iter().step_by(2).collect();
                }
            }
            jobs.iter_mut().for_each(|job| job.user = owner(job.id).0.into());
            past = Some((cluster.clone(), jobs.clone()));
            all.push((cluster, jobs, Millis::from_secs(at), kept));
        }
        all
    })
}

/// Decides and records a round like a controller.
fn decide(
    recorder: &mut RoundRecorder,
    policy: &dyn Policy,
    (cluster, queue, now, kept): &Round,
) -> (Vec<Decision>, Option<RoundRecord>) {
    let guess = Guess { round: now.get() / 1_000 };
    let queue: Vec<&QueuedJob> = queue.iter().collect();
    let knowledge = Knowledge::of(&guess).within(&guess);
    let answers = recorder.record_answers(knowledge, cluster, *now);
    let mut shown = queue.iter().copied();
    let decisions = decide_round(policy, cluster, answers.knowledge(), &mut shown, *now, 16);
    let plainly = decide_round(policy, cluster, knowledge, &mut queue.iter().copied(), *now, 16);
    assert_eq!(decisions, plainly, "recording changes nothing");
    let input = RoundInput { cluster, queue: &queue, now: *now, starts_max: 16 };
    let pending = recorder.prepare_record(policy, input, answers, &decisions);
    (decisions, kept.then(|| recorder.keep_record(pending)))
}

fn stored(record: &RoundRecord) -> RoundRecord {
    serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap()
}

fn replayed(replay: &mut RoundReplay, record: &RoundRecord, policy: &dyn Policy) -> ReplayedRound {
    replay.read_record(stored(record), Some(policy)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_recorded_round_is_decided_again_identically(
        rounds in rounds(), name in prop::sample::select(NAMES),
    ) {
        let policy = by_name(name).unwrap();
        let (mut recorder, mut replay) = (RoundRecorder::default(), RoundReplay::default());
        for round in &rounds {
            let (decisions, record) = decide(&mut recorder, policy.as_ref(), round);
            let Some(record) = record else { continue };

            let again = replayed(&mut replay, &record, policy.as_ref());

            prop_assert_eq!(&again.recorded, &decisions, "recorded decisions are complete");
            prop_assert_eq!(again.decided.as_ref(), Some(&decisions));
            prop_assert_eq!(again.digest, Some(record.digest()));
            prop_assert_eq!(again.difference(), None);
        }
    }

    #[test]
    fn the_record_of_an_unchanged_round_is_small(
        round in (arbitrary::cluster(), arbitrary::queue()), name in prop::sample::select(NAMES),
    ) {
        let policy = by_name(name).unwrap();
        let mut recorder = RoundRecorder::default();
        let (cluster, queue) = round;
        let round = (cluster, queue, Millis::from_secs(1), true);
        let (_, first) = decide(&mut recorder, policy.as_ref(), &round);
        let (decisions, second) = decide(&mut recorder, policy.as_ref(), &round);

        let (first, second) = (first.unwrap(), second.unwrap());
        prop_assert_eq!((first.number, second.number), (0, 1));
        prop_assert!(second.gpus.is_empty() && second.jobs.is_empty() && second.kinds.is_empty());
        let waits = decisions.iter().filter(|d| matches!(d, Decision::Wait { .. })).count();
        let same = second.decisions.iter().filter(|s| matches!(s, RecordedDecision::Same(_))).count();
        prop_assert_eq!(same, waits);
    }
}

fn busy() -> Round {
    let full = a100(&[("3g.20gb", 0, taken(1_001)), ("3g.20gb", 4, taken(1_002))]);
    let jobs = queue([gib(8), gib(20), gib(4)]);
    (cluster([a100(&[]), full]), jobs, Millis::from_secs(1), true)
}

#[test]
fn a_difference_to_another_policy_is_described() {
    let live = by_name("scheme-b").unwrap();
    let (_, record) = decide(&mut RoundRecorder::default(), live.as_ref(), &busy());

    let again = replayed(
        &mut RoundReplay::default(),
        &record.unwrap(),
        by_name("static").unwrap().as_ref(),
    );

    let found = again.difference().unwrap();
    assert_eq!(found.job, Some(JobId::from_number(1)));
    assert_eq!(found.recorded, "it starts on 2g.10gb of GPU 0 of a@4, after 1 layout steps");
    assert_eq!(found.decided, "it waits: resources");
}

#[test]
fn another_setting_is_found_where_it_changes_a_decision() {
    let live = by_name("tessera").unwrap();
    let (decisions, record) = decide(&mut RoundRecorder::default(), live.as_ref(), &busy());
    let record = record.unwrap();
    assert!(decisions.iter().any(|d| matches!(d, Decision::Reshape { .. })), "{decisions:?}");
    let mut replay = RoundReplay::default();
    replayed(&mut replay, &record, live.as_ref());
    let decides = replay.policy().unwrap().clone();
    assert_eq!(decides.policy, "tessera");
    let restored = with_settings(&decides.policy, &decides.settings).unwrap();
    assert_eq!(restored.settings(), decides.settings);

    let same = replayed(&mut RoundReplay::default(), &record, restored.as_ref());
    let other = with_settings("tessera", &json!({"crowd": 1})).unwrap();
    let changed = replayed(&mut RoundReplay::default(), &record, other.as_ref());

    assert_eq!(same.difference(), None);
    assert_ne!(changed.digest, same.digest);
    assert!(changed.difference().is_some());
}

#[test]
fn settings_that_a_policy_does_not_have_are_refused_by_name() {
    let refused = |name: &str, settings| with_settings(name, &settings).unwrap_err().to_string();

    assert!(refused("tessera", json!({"thirft": 1.0})).contains("thrift"));
    assert!(refused("scheme-b", json!({"thrift": 1.0})).contains("nothing can be set"));
    assert!(refused("best", json!(null)).contains("scheme-b"));
}

#[test]
fn a_chain_with_a_missing_record_is_not_read_further() {
    let policy = by_name("scheme-b").unwrap();
    let mut recorder = RoundRecorder::default();
    let mut next = || decide(&mut recorder, policy.as_ref(), &busy()).1.unwrap();
    let (first, _lost, third) = (next(), next(), next());
    let mut replay = RoundReplay::default();

    assert_eq!(
        RoundReplay::default().read_record(third.clone(), None),
        Err(BadRecord::Gap { expected: 0, found: 2 })
    );
    replay.read_record(first, None).unwrap();
    assert_eq!(replay.read_record(third, None), Err(BadRecord::Gap { expected: 1, found: 2 }));
    let newer = RoundRecord { format: 99, ..next() };
    assert_eq!(replay.read_record(newer, None), Err(BadRecord::Gap { expected: 0, found: 3 }));
}

#[test]
fn a_chain_ends_after_its_time_or_length_or_on_request() {
    let policy = by_name("scheme-b").unwrap();
    let (cluster, jobs, _, _) = busy();
    let mut recorder = RoundRecorder::default();
    let at = |recorder: &mut RoundRecorder, millis: u64| {
        let round = (cluster.clone(), jobs.clone(), Millis::new(millis), true);
        decide(recorder, policy.as_ref(), &round).1.unwrap()
    };
    let span = CHAIN_SPAN.get();

    let numbers = [1, span, span + 1].map(|millis| at(&mut recorder, millis).number);
    assert_eq!(numbers, [0, 1, 0]);
    recorder.begin_new_chain();
    let lengths: Vec<u64> = (0..=CHAIN_MAX).map(|_| at(&mut recorder, 1).number).collect();
    let wanted: Vec<u64> = (0..CHAIN_MAX).chain([0]).collect();
    assert_eq!(lengths, wanted);
    assert!(at(&mut recorder, 1).policy.is_none());
}

#[test]
fn answers_are_recorded_by_question() {
    let known: BTreeMap<JobId, ()> = BTreeMap::from([(JobId::from_number(1), ())]);
    let live = by_name("tessera").unwrap();
    let (_, record) = decide(&mut RoundRecorder::default(), live.as_ref(), &busy());
    let answers = serde_json::to_value(&record.unwrap().answers).unwrap();

    let done = answers["done"].as_array().unwrap();

    assert!(done.iter().any(|entry| entry[0] == json!(known.keys().next().unwrap().number())));
    assert!(answers.get("limits").is_some(), "facts about a job are recorded together");
    assert!(answers.get("demands").is_none(), "what is unknown needs no record");
}

/// Each line has a digest and a record, from before facts had their own type. The explanations have the
/// wording of that time.
const FORMAT_1: &str = include_str!("../fixtures/rounds-format-1.txt");

fn format_1() -> impl Iterator<Item = (&'static str, RoundRecord)> {
    FORMAT_1.lines().map(|line| {
        let (digest, record) = line.split_once(' ').unwrap();
        (digest, serde_json::from_str(record).unwrap())
    })
}

#[test]
fn rounds_of_format_1_are_read_and_decided_by_the_current_policy() {
    let (mut replay, mut rounds, mut reshapes) = (RoundReplay::default(), 0, 0);
    let mut policy = None;
    for (digest, record) in format_1() {
        assert_eq!(record.format, 1);
        if let Some(decides) = &record.policy {
            policy = Some(with_settings(&decides.policy, &decides.settings).unwrap());
        }

        let again = replay.read_record(record, policy.as_deref()).unwrap();

        // `tessera` now places jobs that can't be migrated differently, and shares in another way: a difference
        // names the first job, or the GPU whose new layout differs.
        if let Some(difference) = again.difference() {
            let names_gpu = difference.recorded.starts_with("GPU ");
            assert!(difference.job.is_some() || names_gpu, "round {rounds}: {difference:?}");
        }
        assert_eq!(digest.len(), 64);
        reshapes += again.recorded.iter().filter(|d| matches!(d, Decision::Reshape { .. })).count();
        rounds += 1;
    }
    assert!(rounds >= 10 && reshapes >= 3, "{rounds} rounds with {reshapes} changes of layouts");
}

#[test]
fn texts_of_the_current_format_are_compared() {
    let waits = |recorded: &RecordedDecision| {
        matches!(recorded, RecordedDecision::New(Decision::Wait { .. }))
    };
    let whole =
        |record: &RoundRecord| record.policy.is_some() && record.decisions.iter().any(waits);
    let (_, first) = format_1().find(|(_, record)| whole(record)).unwrap();
    let decides = first.policy.clone().unwrap();
    let policy = with_settings(&decides.policy, &decides.settings).unwrap();
    let mut changed = first;
    changed.format = FORMAT;
    let at = changed.decisions.iter().position(waits).unwrap();
    let RecordedDecision::New(Decision::Wait { why, .. }) = &mut changed.decisions[at] else {
        panic!("{at} is a wait");
    };
    why.summary = "for no reason".to_owned();

    let again = RoundReplay::default().read_record(changed, Some(policy.as_ref())).unwrap();

    assert!(again.difference().is_some());
}
