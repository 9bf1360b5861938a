//! Rounds that are written down, read, and decided again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use tessera_model::mig::Profile;
use tessera_model::{JobId, Millis};
use tessera_placement::policy::{NAMES, with_settings};
use tessera_placement::record::{
    Asked, BadRecord, CHAIN_MAX, CHAIN_SPAN, Record, Recorder, Replayed, Said, Tape,
};
use tessera_placement::{
    Account, ClusterView, Decision, Forecast, GpuView, Limit, Policy, QueuedJob, ask, by_name,
};

use crate::arbitrary;
use crate::build::{a100, cluster, gib, queue, taken};
use crate::gangs::properties::mixed;

/// Answers that differ by job, profile and round; of every third job nothing is known.
#[derive(Clone, Copy, Debug)]
struct Guess {
    round: u64,
}

impl Guess {
    const fn knows(self, job: JobId) -> bool {
        !job.number().is_multiple_of(3)
    }
}

impl Forecast for Guess {
    fn time(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<Millis> {
        let secs = 10 + job.number() % 7 * 100 / u64::from(profile.compute_slices);
        self.knows(job).then_some(Millis::from_secs(secs))
    }

    fn is_measured(&self, job: JobId, _: &GpuView, profile: &Profile) -> bool {
        (job.number() + u64::from(profile.compute_slices)).is_multiple_of(2)
    }

    fn done(&self, job: JobId) -> Option<u32> {
        let part = u32::try_from(self.round % 10).unwrap() * 90_000;
        self.knows(job).then_some(if job.number() >= 1_000 { part } else { 0 })
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        (job.number() >= 1_000).then_some(Millis::from_secs(1))
    }

    fn limit(&self, job: JobId) -> Option<Millis> {
        (job.number() % 4 == 1).then_some(Millis::from_secs(job.number() % 9 * 100))
    }

    fn move_price(&self, job: JobId) -> Option<Millis> {
        (self.knows(job) && !job.number().is_multiple_of(5))
            .then_some(Millis::from_secs(self.round))
    }

    fn online(&self, job: JobId) -> bool {
        job.number().is_multiple_of(4)
    }

    fn go_on(&self, searches: usize) -> bool {
        searches < 5 * usize::try_from(self.round).unwrap()
    }

    tessera_placement::knows_no!(time_in_turns, together, deadline, demand, time_beside, companion);

    fn account(&self, job: JobId) -> Option<Account> {
        let (user, number) = owner(job);
        let lab = number == 2;
        Some(Account {
            name: if lab { "account lab" } else { user }.into(),
            shares: number + 1,
            used: Millis::from_secs(u64::from(number + 1) * self.round * 60),
            quota: (number > 0).then_some(number * 9),
            member: lab.then(|| Limit { name: user.into(), slices: 11 }),
        })
    }
}

/// Whose job it is.
fn owner(job: JobId) -> (&'static str, u32) {
    [("ada", 0), ("bob", 1), ("cyd", 2)][usize::try_from(job.number() % 3).unwrap()]
}

/// One round: what is there, who waits, what time it is, and whether it comes to anything.
type Round = (ClusterView, Vec<QueuedJob>, Millis, bool);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let queue = prop_oneof![2 => arbitrary::queue(), 1 => mixed()];
    let round = (arbitrary::cluster(), queue, prop::bool::weighted(0.8));
    // Half of each cluster and queue is the one before: what stays must not be written again.
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

/// Decides a round and writes it down, as a controller does.
fn decide(
    recorder: &mut Recorder,
    policy: &dyn Policy,
    (cluster, queue, now, kept): &Round,
) -> (Vec<Decision>, Option<Record>) {
    let forecast = Guess { round: now.get() / 1_000 };
    let queue: Vec<&QueuedJob> = queue.iter().collect();
    let heard = recorder.listen(&forecast, cluster, *now);
    let mut shown = queue.iter().copied();
    let decisions = ask(policy, cluster, &heard, &mut shown, *now, 16);
    let plainly = ask(policy, cluster, &forecast, &mut queue.iter().copied(), *now, 16);
    assert_eq!(decisions, plainly, "who listens changes nothing");
    let asked = Asked { cluster, queue: &queue, now: *now, starts_max: 16 };
    let draft = recorder.draft(policy, asked, heard, &decisions);
    (decisions, kept.then(|| recorder.keep(draft)))
}

fn stored(record: &Record) -> Record {
    serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap()
}

fn replayed(tape: &mut Tape, record: &Record, policy: &dyn Policy) -> Replayed {
    tape.read(stored(record), Some(policy)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_recorded_round_is_decided_again_to_the_last_letter(
        rounds in rounds(), name in prop::sample::select(NAMES),
    ) {
        let policy = by_name(name).unwrap();
        let (mut recorder, mut tape) = (Recorder::default(), Tape::default());
        for round in &rounds {
            let (decisions, record) = decide(&mut recorder, policy.as_ref(), round);
            let Some(record) = record else { continue };

            let again = replayed(&mut tape, &record, policy.as_ref());

            prop_assert_eq!(&again.recorded, &decisions, "what was said is kept whole");
            prop_assert_eq!(again.decided.as_ref(), Some(&decisions));
            prop_assert_eq!(again.digest, Some(record.digest()));
            prop_assert_eq!(again.difference(), None);
        }
    }

    #[test]
    fn a_round_like_the_one_before_is_next_to_nothing(
        round in (arbitrary::cluster(), arbitrary::queue()), name in prop::sample::select(NAMES),
    ) {
        let policy = by_name(name).unwrap();
        let mut recorder = Recorder::default();
        let (cluster, queue) = round;
        let round = (cluster, queue, Millis::from_secs(1), true);
        let (_, first) = decide(&mut recorder, policy.as_ref(), &round);
        let (decisions, second) = decide(&mut recorder, policy.as_ref(), &round);

        let (first, second) = (first.unwrap(), second.unwrap());
        prop_assert_eq!((first.number, second.number), (0, 1));
        prop_assert!(second.gpus.is_empty() && second.jobs.is_empty() && second.kinds.is_empty());
        let waits = decisions.iter().filter(|d| matches!(d, Decision::Wait { .. })).count();
        let same = second.said.iter().filter(|s| matches!(s, Said::Same(_))).count();
        prop_assert_eq!(same, waits);
    }
}

fn busy() -> Round {
    let full = a100(&[("3g.20gb", 0, taken(1_001)), ("3g.20gb", 4, taken(1_002))]);
    let jobs = queue([gib(8), gib(20), gib(4)]);
    (cluster([a100(&[]), full]), jobs, Millis::from_secs(1), true)
}

#[test]
fn another_policy_is_found_as_a_difference_in_words() {
    let live = by_name("scheme-b").unwrap();
    let (_, record) = decide(&mut Recorder::default(), live.as_ref(), &busy());

    let again =
        replayed(&mut Tape::default(), &record.unwrap(), by_name("static").unwrap().as_ref());

    let found = again.difference().unwrap();
    assert_eq!(found.job, Some(JobId::from_number(1)));
    assert_eq!(found.recorded, "it starts on 2g.10gb of GPU 0 of a@4, after 1 steps");
    assert_eq!(found.decided, "it waits: resources");
}

#[test]
fn another_setting_is_found_where_it_matters() {
    let live = by_name("tessera").unwrap();
    let (decisions, record) = decide(&mut Recorder::default(), live.as_ref(), &busy());
    let record = record.unwrap();
    assert!(decisions.iter().any(|d| matches!(d, Decision::Reshape { .. })), "{decisions:?}");
    let mut tape = Tape::default();
    replayed(&mut tape, &record, live.as_ref());
    let brain = tape.brain().unwrap().clone();
    assert_eq!(brain.policy, "tessera");
    let restored = with_settings(&brain.policy, &brain.settings).unwrap();
    assert_eq!(restored.settings(), brain.settings);

    let same = replayed(&mut Tape::default(), &record, restored.as_ref());
    let other = with_settings("tessera", &json!({"crowd": 1})).unwrap();
    let changed = replayed(&mut Tape::default(), &record, other.as_ref());

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
fn a_chain_with_a_missing_link_is_not_read_on() {
    let policy = by_name("scheme-b").unwrap();
    let mut recorder = Recorder::default();
    let mut next = || decide(&mut recorder, policy.as_ref(), &busy()).1.unwrap();
    let (first, _lost, third) = (next(), next(), next());
    let mut tape = Tape::default();

    assert_eq!(
        Tape::default().read(third.clone(), None),
        Err(BadRecord::Gap { expected: 0, found: 2 })
    );
    tape.read(first, None).unwrap();
    assert_eq!(tape.read(third, None), Err(BadRecord::Gap { expected: 1, found: 2 }));
    let newer = Record { format: 99, ..next() };
    assert_eq!(tape.read(newer, None), Err(BadRecord::Gap { expected: 0, found: 3 }));
}

#[test]
fn a_chain_ends_after_its_time_its_length_and_when_it_is_forgotten() {
    let policy = by_name("scheme-b").unwrap();
    let (cluster, jobs, _, _) = busy();
    let mut recorder = Recorder::default();
    let at = |recorder: &mut Recorder, millis: u64| {
        let round = (cluster.clone(), jobs.clone(), Millis::new(millis), true);
        decide(recorder, policy.as_ref(), &round).1.unwrap()
    };
    let span = CHAIN_SPAN.get();

    let numbers = [1, span, span + 1].map(|millis| at(&mut recorder, millis).number);
    assert_eq!(numbers, [0, 1, 0]);
    recorder.forget();
    let lengths: Vec<u64> = (0..=CHAIN_MAX).map(|_| at(&mut recorder, 1).number).collect();
    let wanted: Vec<u64> = (0..CHAIN_MAX).chain([0]).collect();
    assert_eq!(lengths, wanted);
    assert!(at(&mut recorder, 1).brain.is_none());
}

#[test]
fn answers_are_kept_by_question() {
    let known: BTreeMap<JobId, ()> = BTreeMap::from([(JobId::from_number(1), ())]);
    let live = by_name("tessera").unwrap();
    let (_, record) = decide(&mut Recorder::default(), live.as_ref(), &busy());
    let told = serde_json::to_value(&record.unwrap().told).unwrap();

    let done = told["done"].as_array().unwrap();

    assert!(done.iter().any(|entry| entry[0] == json!(known.keys().next().unwrap().number())));
    assert!(told.get("companions").is_some(), "asked, and nothing known");
    assert!(told.get("demands").is_none(), "nobody asked that of jobs without companions");
}
