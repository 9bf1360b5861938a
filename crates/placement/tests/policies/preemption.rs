//! Online jobs that send offline jobs back to the queue.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tessera_model::spec::GpuRequest;
use tessera_model::{GangMember, GangShape, JobId, Millis};
use tessera_placement::policy::NAMES;
use tessera_placement::preemption::{
    Preemption, PreemptionMode, PreemptionPrice, PreemptionRules, Protection, RunningJob,
};
use tessera_placement::{
    Account, ClusterView, Decision, InstanceState, JobFacts, JobTable, Knowledge, KnownJobs,
    QueuedJob, Unknown, Unlimited, by_name, decide_round,
};

use crate::build::{IDLE, a30, a100, cluster, gib, named, queue, short, taken, unpartitioned};

const NOW: Millis = Millis::from_secs(10_000);

fn id(number: u64) -> JobId {
    JobId::from_number(number)
}

fn secs(secs: u64) -> Millis {
    Millis::from_secs(secs)
}

/// A job that writes a checkpoint: a stop loses this many seconds.
fn saves(secs: u64) -> PreemptionPrice {
    PreemptionPrice { fixed: Millis::from_secs(secs), lost_since: None, gang: None }
}

/// A job without a checkpoint that began so many seconds ago.
fn begins_again(secs: u64) -> PreemptionPrice {
    let lost_since = Some(NOW.minus(Millis::from_secs(secs)));
    PreemptionPrice { fixed: Millis::from_secs(1), lost_since, gang: None }
}

fn known(prices: &[(u64, PreemptionPrice)]) -> KnownJobs {
    let preemption_prices = prices.iter().map(|(job, price)| (id(*job), *price)).collect();
    KnownJobs { preemption_prices, ..KnownJobs::default() }
}

fn online(requests: impl IntoIterator<Item = GpuRequest>) -> Vec<QueuedJob> {
    let mut jobs = queue(requests);
    jobs.iter_mut().for_each(|job| job.online = true);
    jobs
}

fn decided(
    policy: &str,
    view: &ClusterView,
    jobs: &KnownJobs,
    queue: &[QueuedJob],
) -> Vec<Decision> {
    let knowledge = Knowledge { jobs, predictor: &Unknown, budget: &Unlimited };
    let policy = by_name(policy).unwrap();
    decide_round(policy.as_ref(), view, knowledge, &mut queue.iter(), NOW, usize::MAX)
}

fn preemptions(decisions: &[Decision]) -> Vec<&Preemption> {
    let found = decisions.iter().filter_map(|decision| match decision {
        Decision::Preempt { preemption, .. } => Some(&**preemption),
        _ => None,
    });
    found.collect()
}

#[test]
fn an_online_job_takes_the_place_on_which_the_least_work_is_lost() {
    let full = |first| a100(&[("4g.20gb", 0, taken(first)), ("3g.20gb", 4, taken(first + 1))]);
    let view = cluster([full(11), full(21)]);
    let jobs = known(&[(11, saves(60)), (12, saves(50)), (21, saves(20)), (22, saves(40))]);

    for policy in NAMES.iter().filter(|name| **name != "exclusive") {
        let decisions = decided(policy, &view, &jobs, &online([gib(15)]));

        let [found] = preemptions(&decisions)[..] else { panic!("{policy}: {decisions:?}") };
        assert_eq!((found.job, &found.sent_back[..]), (id(1), &[id(21)][..]), "{policy}");
        assert_eq!(found.loss, secs(20), "{policy}");
    }
}

#[test]
fn a_gpu_without_mig_is_taken_as_a_whole() {
    let view = cluster([unpartitioned(40_000, taken(11))]);
    let jobs = known(&[(11, saves(30))]);

    let decisions = decided("tessera", &view, &jobs, &online([gib(4)]));

    assert_eq!(short(&view, &decisions), ["1: whole on 0 without 11"]);
}

#[test]
fn jobs_that_save_their_work_go_before_those_that_begin_again() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(11))]), a100(&[("7g.40gb", 0, taken(21))])]);
    let jobs = known(&[(11, begins_again(5)), (21, saves(900))]);

    let decisions = decided("tessera", &view, &jobs, &online([GpuRequest::Whole]));

    assert_eq!(preemptions(&decisions)[0].sent_back, [id(21)]);
}

#[test]
fn no_job_leaves_without_need() {
    // Two jobs are cheaper than the third, but only its slice is large enough.
    let view = cluster([a100(&[
        ("1g.5gb", 0, taken(11)),
        ("1g.5gb", 1, taken(12)),
        ("2g.10gb", 2, taken(13)),
        ("3g.20gb", 4, taken(14)),
    ])]);
    let jobs = known(&[(11, saves(10)), (12, saves(11)), (13, saves(12)), (14, saves(13))]);

    let decisions = decided("tessera", &view, &jobs, &online([named("3g.20gb")]));

    // Slices 0 to 3 would also hold it, at the price of three jobs.
    assert_eq!(short(&view, &decisions), ["1: 3g.20gb@4 on 0 without 14"]);
}

#[test]
fn where_the_job_could_start_nobody_leaves() {
    let view = cluster([
        a100(&[("7g.40gb", 0, taken(11))]),
        a100(&[("4g.20gb", 0, IDLE), ("3g.20gb", 4, taken(12))]),
    ]);
    let jobs = known(&[(11, saves(1)), (12, saves(1))]);

    for policy in NAMES {
        let decisions = decided(policy, &view, &jobs, &online([gib(4)]));
        let is_alone = *policy == "exclusive";
        assert_eq!(preemptions(&decisions).is_empty(), !is_alone, "{policy}: {decisions:?}");
    }
}

#[test]
fn an_offline_job_and_a_gang_send_nobody_back() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(11))])]);
    let jobs = known(&[(11, saves(1))]);
    let offline = decided("tessera", &view, &jobs, &queue([GpuRequest::Whole]));
    assert!(preemptions(&offline).is_empty(), "{offline:?}");

    let shape = GangShape::new(1, 2).unwrap();
    let mut gang = online([GpuRequest::Whole, GpuRequest::Whole]);
    for (rank, job) in gang.iter_mut().enumerate() {
        let rank = u32::try_from(rank).unwrap();
        job.gang = Some(GangMember { gang: id(1), shape, rank });
    }
    let two = cluster([a30(&[("4g.24gb", 0, taken(11))]), a30(&[("4g.24gb", 0, taken(12))])]);
    let jobs = known(&[(11, saves(1)), (12, saves(1))]);
    let decisions = decided("tessera", &two, &jobs, &gang);
    assert!(preemptions(&decisions).is_empty(), "{decisions:?}");
}

#[test]
fn a_gang_leaves_as_a_whole_or_not_at_all() {
    let shape = GangShape::new(1, 2).unwrap();
    let member = |rank| Some(GangMember { gang: id(11), shape, rank });
    let view = cluster([a30(&[("4g.24gb", 0, taken(11))]), a30(&[("4g.24gb", 0, taken(12))])]);
    let price = |rank| PreemptionPrice { gang: member(rank), ..begins_again(10) };
    let jobs = known(&[(11, price(0)), (12, price(1))]);

    let decisions = decided("tessera", &view, &jobs, &online([GpuRequest::Whole]));
    assert_eq!(preemptions(&decisions)[0].sent_back, [id(11), id(12)]);
    assert_eq!(preemptions(&decisions)[0].loss, secs(22));

    // One member must stay.
    let jobs = known(&[(11, price(0))]);
    let decisions = decided("tessera", &view, &jobs, &online([GpuRequest::Whole]));
    assert!(preemptions(&decisions).is_empty(), "{decisions:?}");
}

#[test]
fn two_online_jobs_take_places_of_different_jobs() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(11))]), a100(&[("7g.40gb", 0, taken(21))])]);
    let jobs = known(&[(11, saves(5)), (21, saves(9))]);

    let decisions =
        decided("tessera", &view, &jobs, &online([GpuRequest::Whole, GpuRequest::Whole]));

    let found: Vec<_> = preemptions(&decisions).iter().map(|one| one.sent_back.clone()).collect();
    assert_eq!(found, [[id(11)], [id(21)]]);
}

/// A running job that the default rules send back.
fn usual() -> RunningJob {
    RunningJob {
        online: false,
        saves: true,
        requeueable: true,
        has_deadline: false,
        gang: None,
        began: Some(NOW.minus(secs(60))),
        preempted: 0,
        stop: secs(10),
        restore: secs(20),
        ends_in: None,
    }
}

#[test]
fn each_rule_protects_a_job() {
    let rules = PreemptionRules::default();
    let requeue = PreemptionRules {
        online_over_offline: PreemptionMode::Requeue,
        ..PreemptionRules::default()
    };
    let again = RunningJob { preempted: 1, ..usual() };
    let cases: [(PreemptionRules, RunningJob, Protection); 10] = [
        (PreemptionRules::OFF, usual(), Protection::Off),
        (requeue, RunningJob { online: true, ..usual() }, Protection::Class),
        (rules, RunningJob { saves: false, ..usual() }, Protection::NoCheckpoint),
        (rules, RunningJob { requeueable: false, ..usual() }, Protection::NoRequeue),
        (
            requeue,
            RunningJob { requeueable: false, saves: false, ..usual() },
            Protection::NoRequeue,
        ),
        (rules, RunningJob { has_deadline: true, ..usual() }, Protection::Deadline),
        (rules, RunningJob { began: None, ..usual() }, Protection::Starting),
        (rules, RunningJob { preempted: 3, ..usual() }, Protection::SentBackOften),
        (rules, again, Protection::RunsAgain),
        (rules, RunningJob { ends_in: Some(secs(10)), ..usual() }, Protection::EndsSoon),
    ];
    for (rules, job, protection) in cases {
        assert_eq!(rules.price(&job, NOW), Err(protection), "{job:?}");
    }
    assert_eq!(rules.price(&usual(), NOW).unwrap().loss(NOW), secs(30));
    let rested = RunningJob { began: Some(NOW.minus(rules.min_run)), ..again };
    assert!(rules.price(&rested, NOW).is_ok());
    let lost = RunningJob { saves: false, ..usual() };
    assert_eq!(requeue.price(&lost, NOW).unwrap().loss(NOW), secs(90));
}

#[test]
fn an_online_job_waits_for_its_patience_first() {
    let rules = PreemptionRules { patience: secs(30), ..PreemptionRules::default() };
    assert!(!rules.may_preempt(true, secs(29)));
    assert!(rules.may_preempt(true, secs(30)));
    assert!(!rules.may_preempt(false, secs(900)));
    assert!(!PreemptionRules::OFF.may_preempt(true, secs(900)));
}

#[test]
fn a_quota_is_kept() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(11))])]);
    let mut jobs = known(&[(11, saves(1))]);
    let account =
        Account { name: "ada".into(), shares: 1, used: Millis::ZERO, quota: Some(3), member: None };
    jobs.accounts.insert(id(1), account);

    let decisions = decided("tessera", &view, &jobs, &online([GpuRequest::Whole]));
    assert!(preemptions(&decisions).is_empty(), "{decisions:?}");
    let decisions = decided("tessera", &view, &jobs, &online([gib(4)]));
    assert_eq!(preemptions(&decisions).len(), 1, "{decisions:?}");
}

/// Facts that a policy may request only about the right jobs.
#[derive(Debug)]
struct Watchful<'k>(&'k KnownJobs, &'k BTreeSet<JobId>);

impl JobTable for Watchful<'_> {
    fn facts(&self, job: JobId) -> JobFacts {
        self.0.facts(job)
    }

    fn may_preempt(&self, job: JobId) -> bool {
        assert!(self.1.contains(&job), "{job} is not online");
        self.0.may_preempt(job)
    }

    fn preemption_price(&self, job: JobId) -> Option<PreemptionPrice> {
        self.0.preemption_price(job)
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.0.account(job)
    }
}

/// A GPU with jobs, and for each job whether it may be sent back, and what that costs.
type ArbitraryGpu = (usize, Vec<Option<(bool, u64)>>);

fn gpus() -> impl Strategy<Value = Vec<ArbitraryGpu>> {
    let price = proptest::option::weighted(0.6, (any::<bool>(), 0_u64..500));
    prop::collection::vec((0_usize..4, prop::collection::vec(price, 7)), 1..5)
}

fn layout(kind: usize) -> &'static [(&'static str, u8)] {
    [
        &[("7g.40gb", 0)][..],
        &[("4g.20gb", 0), ("3g.20gb", 4)],
        &[("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3), ("3g.20gb", 4)],
        &[("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2), ("2g.10gb", 4), ("1g.5gb", 6)],
    ][kind]
}

fn request() -> impl Strategy<Value = (GpuRequest, bool)> {
    let kinds =
        prop::sample::select(vec![gib(4), gib(9), gib(18), GpuRequest::Whole, GpuRequest::Unknown]);
    (kinds, any::<bool>())
}

proptest! {
    /// Whatever runs: only jobs that may be sent back are, none without need, and only for online jobs. The place
    /// overlaps nobody who stays. A job for which nobody leaves could not start even then, or could start anyway.
    #[test]
    fn only_those_leave_who_may_and_must(
        gpus in gpus(),
        requests in prop::collection::vec(request(), 1..5),
        policy in prop::sample::select(vec!["tessera", "scheme-b", "static"]),
    ) {
        let mut prices: BTreeMap<JobId, PreemptionPrice> = BTreeMap::new();
        let view = cluster((1_u64..).zip(&gpus).map(|(number, (kind, jobs))| {
            let standing: Vec<_> = (0_u64..)
                .zip(layout(*kind))
                .map(|(place, (profile, start))| {
                    let job = number * 100 + place;
                    let at = usize::try_from(place).unwrap();
                    if let Some((is_saved, secs)) = jobs[at] {
                        let price = if is_saved { saves(secs) } else { begins_again(secs) };
                        prices.insert(id(job), price);
                    }
                    (*profile, *start, taken(job))
                })
                .collect();
            a100(&standing)
        }));
        let mut waiting = queue(requests.iter().map(|(request, _)| request.clone()));
        for (job, (_, is_online)) in waiting.iter_mut().zip(&requests) {
            job.online = *is_online;
        }
        let online: BTreeSet<JobId> =
            waiting.iter().filter(|job| job.online).map(|job| job.id).collect();
        let jobs = KnownJobs { preemption_prices: prices.clone(), ..KnownJobs::default() };
        let watchful = Watchful(&jobs, &online);
        let knowledge = Knowledge { jobs: &watchful, predictor: &Unknown, budget: &Unlimited };
        let policy = by_name(policy).unwrap();

        let decisions =
            decide_round(policy.as_ref(), &view, knowledge, &mut waiting.iter(), NOW, usize::MAX);

        let mut left: BTreeSet<JobId> = BTreeSet::new();
        for found in preemptions(&decisions) {
            prop_assert!(online.contains(&found.job));
            prop_assert!(!found.sent_back.is_empty());
            for job in &found.sent_back {
                prop_assert!(prices.contains_key(job), "{job} must stay");
                prop_assert!(left.insert(*job), "{job} leaves twice");
            }
            let loss: u64 = found.sent_back.iter().map(|job| prices[job].loss(NOW).get()).sum();
            prop_assert_eq!(found.loss.get(), loss);
            // No one of them is left out without the place being lost.
            let gpu = view.gpus.iter().find(|gpu| gpu.id == found.place.gpu).unwrap();
            let request = &waiting.iter().find(|job| job.id == found.job).unwrap();
            let could_start = |gone: &[JobId]| {
                let mut open = gpu.clone();
                for instance in &mut open.instances {
                    if matches!(instance.state, InstanceState::Taken { job } if gone.contains(&job)) {
                        instance.state = InstanceState::Idle;
                    }
                }
                let alone = [(*request).clone()];
                let tight = by_name(if policy.name() == "static" { "static" } else { "scheme-b" });
                let decided =
                    tight.unwrap().decide(&vec![open].into(), &mut alone.iter(), NOW, 1);
                matches!(decided[..], [Decision::Start { .. }])
            };
            prop_assert!(could_start(&found.sent_back));
            for one in &found.sent_back {
                let fewer: Vec<JobId> =
                    found.sent_back.iter().copied().filter(|job| job != one).collect();
                prop_assert!(!could_start(&fewer), "{one} leaves without need: {found:?}");
            }
        }
        // The first online job that waits and could get a place gets one.
        if let Some(first) = waiting.iter().find(|job| job.online) {
            let is_served = decisions.iter().any(|decision| match decision {
                Decision::Start { job, .. } => *job == first.id,
                Decision::Preempt { preemption, .. } => preemption.job == first.id,
                _ => false,
            });
            let all_gone = |gpu: &tessera_placement::GpuView| {
                let mut open = gpu.clone();
                for instance in &mut open.instances {
                    if matches!(instance.state, InstanceState::Taken { job } if prices.contains_key(&job)) {
                        instance.state = InstanceState::Idle;
                    }
                }
                let alone = [first.clone()];
                let tight = by_name(if policy.name() == "static" { "static" } else { "scheme-b" });
                let decided = tight.unwrap().decide(&vec![open].into(), &mut alone.iter(), NOW, 1);
                matches!(decided[..], [Decision::Start { .. }])
            };
            prop_assert_eq!(is_served, view.gpus.iter().any(all_gone), "{:?}", decisions);
        }
    }

    /// A job that is sent back whenever the rules allow it, and starts again at once, loses a bounded part of its
    /// time, and ends.
    #[test]
    fn a_job_is_sent_back_only_so_often_and_not_again_soon(
        most_per_job in 0_u32..5,
        min_run in 0_u64..1_000,
        pauses in prop::collection::vec(1_u64..2_000, 1..60),
    ) {
        let rules = PreemptionRules {
            most_per_job,
            min_run: secs(min_run),
            ..PreemptionRules::default()
        };
        let (mut now, mut began, mut preempted) = (NOW, NOW, 0);
        for pause in pauses {
            now = now.plus(secs(pause));
            let job = RunningJob { began: Some(began), preempted, ..usual() };
            if rules.price(&job, now).is_ok() {
                prop_assert!(preempted == 0 || now.minus(began) >= secs(min_run));
                preempted += 1;
                began = now;
            }
        }
        prop_assert!(preempted <= most_per_job);
    }
}
