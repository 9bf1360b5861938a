//! `tessera` with the knowledge that a controller has.

mod quota;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::{
    Account, ClusterView, Decision, GpuView, InstanceState, JobFacts, JobTable, Knowledge,
    Predictor, QueuedJob, Reshape, RunTime, WaitReason, by_name,
};

use crate::arbitrary;
use crate::build::{IDLE, a100, cluster, gib, queue, short, taken};
use crate::hardware::Hardware;

/// What is known about jobs: seconds on a compute slice, and whether they may be migrated.
#[derive(Clone, Debug, Default)]
struct KnownFacts {
    times: BTreeMap<JobId, u64>,
    movable: BTreeSet<JobId>,
    begun: BTreeSet<JobId>,
    /// Jobs that are predicted to be equally fast on every slice.
    flat: BTreeSet<JobId>,
    /// The compute slices of the slices on which they ran before; if empty, they ran on all.
    seen_on: BTreeSet<u8>,
    /// The account of each job, and the quota of each account in compute slices.
    accounts: BTreeMap<JobId, (&'static str, u32)>,
}

impl KnownFacts {
    fn of(jobs: &[(u64, u64)]) -> Self {
        let id = |number: &u64| JobId::from_number(*number);
        Self {
            times: jobs.iter().map(|(job, secs)| (id(job), *secs)).collect(),
            movable: jobs.iter().map(|(job, _)| id(job)).collect(),
            ..Self::default()
        }
    }
}

impl JobTable for KnownFacts {
    fn facts(&self, job: JobId) -> JobFacts {
        JobFacts {
            done: self.times.get(&job).map(|_| u32::from(self.begun.contains(&job))),
            migration_price: self.movable.contains(&job).then_some(Millis::from_secs(30)),
            ..JobFacts::default()
        }
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let (name, quota) = self.accounts.get(&job)?;
        let (name, used) = ((*name).into(), Millis::ZERO);
        Some(Account { name, shares: 1, used, quota: Some(*quota), member: None })
    }
}

impl Predictor for KnownFacts {
    fn predict_run(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<RunTime> {
        let secs = self.times.get(&job)?;
        let slices = if self.flat.contains(&job) { 1 } else { u64::from(profile.compute_slices) };
        let seen = self.seen_on.is_empty() || self.seen_on.contains(&profile.compute_slices);
        let time = Millis::from_secs(secs / slices);
        Some(RunTime { time, latest: time, is_measured: seen })
    }
}

fn decide(cluster: &ClusterView, facts_known: &KnownFacts, queue: &[QueuedJob]) -> Vec<Decision> {
    by_name("tessera").unwrap().decide_with(
        cluster,
        Knowledge::of(facts_known),
        &mut queue.iter(),
        Millis::from_secs(10),
        usize::MAX,
    )
}

fn reshapes(decisions: &[Decision]) -> Vec<&Reshape> {
    decisions.iter().filter_map(reshaped).collect()
}

fn reshaped(decision: &Decision) -> Option<&Reshape> {
    match decision {
        Decision::Reshape { reshape, .. } => Some(reshape),
        Decision::Start { .. } | Decision::Wait { .. } | Decision::Preempt { .. } => None,
    }
}

fn profiles(cluster: &ClusterView, reshape: &Reshape) -> BTreeMap<u64, String> {
    let gpu = cluster.gpus.iter().find(|gpu| gpu.id == reshape.gpu).unwrap();
    let geometry = &gpu.mig.as_ref().unwrap().geometry;
    let name =
        |slot: tessera_model::mig::Slot| geometry.profile(slot.profile).unwrap().name.to_string();
    reshape
        .placements
        .iter()
        .map(|placed| (placed.job.number(), name(placed.slot.unwrap())))
        .collect()
}

#[test]
fn a_migratable_job_that_scales_gets_a_larger_slice_while_no_other_job_needs_it() {
    let view = cluster([a100(&[])]);

    let decided = decide(&view, &KnownFacts::of(&[(1, 7_000)]), &queue([gib(4)]));

    let all = reshapes(&decided);
    assert_eq!(profiles(&view, all[0])[&1], "7g.40gb");
}

#[test]
fn of_slices_with_equal_measured_times_a_job_gets_the_smallest() {
    let view = cluster([a100(&[])]);
    let facts_known = KnownFacts { flat: build_set([1]), ..KnownFacts::of(&[(1, 7_000)]) };

    let decided = decide(&view, &facts_known, &queue([gib(4)]));

    assert_eq!(profiles(&view, reshapes(&decided)[0])[&1], "1g.5gb");
}

#[test]
fn of_slices_with_equal_guessed_times_a_job_gets_the_largest_that_no_job_needs() {
    let view = cluster([a100(&[])]);
    let facts_known = KnownFacts {
        flat: build_set([1, 2]),
        seen_on: [1].into(),
        ..KnownFacts::of(&[(1, 7_000), (2, 7_000)])
    };

    let alone = decide(&view, &facts_known, &queue([gib(4)]));
    let both = decide(&view, &facts_known, &queue([gib(4), gib(4)]));

    assert_eq!(profiles(&view, reshapes(&alone)[0])[&1], "7g.40gb");
    let placements = profiles(&view, reshapes(&both)[0]);
    let mut placements: Vec<_> = placements.values().map(String::as_str).collect();
    placements.sort_unstable();
    assert_eq!(placements, ["3g.20gb", "4g.20gb"], "a guess takes no slice from another job");
}

/// Decides about a job that runs on a small slice, never ran elsewhere, and has this remaining
/// time.
fn decide_with_left(view: &ClusterView, secs: u64) -> Vec<Decision> {
    let facts_known = KnownFacts {
        flat: build_set([1]),
        seen_on: [1].into(),
        begun: build_set([1]),
        ..KnownFacts::of(&[(1, secs)])
    };
    decide(view, &facts_known, &[])
}

#[test]
fn a_job_that_ends_soon_is_not_stopped_for_slices_without_runs_of_its_task() {
    let view = cluster([a100(&[("1g.5gb", 0, taken(1))])]);

    assert_eq!(reshapes(&decide_with_left(&view, 40)), Vec::<&Reshape>::new());
}

#[test]
fn a_job_with_much_time_left_gets_and_keeps_idle_slices_without_runs_of_its_task() {
    let small = cluster([a100(&[("1g.5gb", 0, taken(1))])]);
    let large = cluster([a100(&[("7g.40gb", 0, taken(1))])]);

    let (grows, stays) = (decide_with_left(&small, 7_000), decide_with_left(&large, 7_000));

    assert_eq!(profiles(&small, reshapes(&grows)[0])[&1], "7g.40gb");
    assert_eq!(reshapes(&stays), Vec::<&Reshape>::new());
}

/// A cluster on which job 99 has run for these seconds of 10,000, and no job waits.
fn decide_after(ran: u64, view: &ClusterView, known: &UnknownTimes) -> Vec<Decision> {
    let known = UnknownTimes { since: Millis::from_secs(10_000 - ran), ..known.clone() };
    let now = Millis::from_secs(10_000);
    let policy = by_name("tessera").unwrap();
    policy.decide_with(view, Knowledge::of(&known), &mut [].iter(), now, usize::MAX)
}

/// The only running job.
const RUNNING: JobId = JobId::from_number(99);

/// Jobs with unknown run times.
#[derive(Clone, Debug)]
struct UnknownTimes {
    since: Millis,
    /// The migration time of jobs that can be migrated.
    price: Option<Millis>,
    memory: Option<Bytes>,
}

impl UnknownTimes {
    const MOVABLE: Self = Self {
        since: Millis::ZERO,
        price: Some(Millis::from_secs(30)),
        memory: Some(Bytes::from_mib(4_096)),
    };
}

impl JobTable for UnknownTimes {
    fn facts(&self, job: JobId) -> JobFacts {
        JobFacts {
            since: (job == RUNNING).then_some(self.since),
            migration_price: self.price,
            memory: self.memory,
            ..JobFacts::default()
        }
    }

    fn account(&self, _: JobId) -> Option<Account> {
        None
    }
}

impl Predictor for UnknownTimes {
    fn predict_run(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
        None
    }
}

#[test]
fn a_job_of_unknown_length_that_has_run_for_long_gets_slices_that_no_job_needs() {
    let view = cluster([a100(&[("1g.5gb", 0, taken(99))])]);

    let early = decide_after(20, &view, &UnknownTimes::MOVABLE);
    let late = decide_after(3_600, &view, &UnknownTimes::MOVABLE);

    assert_eq!(reshapes(&early), Vec::<&Reshape>::new(), "a move would cost more than it gains");
    assert_eq!(profiles(&view, reshapes(&late)[0])[&99], "7g.40gb");
}

#[test]
fn a_job_of_unknown_length_stays_if_it_can_not_be_moved_or_requests_its_very_size() {
    let view = cluster([a100(&[("1g.5gb", 0, taken(99))])]);
    let stiff = UnknownTimes { price: None, ..UnknownTimes::MOVABLE };
    let exact = UnknownTimes { memory: None, ..UnknownTimes::MOVABLE };

    for known in [stiff, exact] {
        let decided = decide_after(3_600, &view, &known);
        assert_eq!(reshapes(&decided), Vec::<&Reshape>::new(), "{known:?}");
    }
}

#[test]
fn a_job_of_unknown_length_is_never_moved_to_a_slice_with_too_little_memory() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(99))])]);
    let known = UnknownTimes { memory: Some(Bytes::from_mib(15_000)), ..UnknownTimes::MOVABLE };
    let now = Millis::from_secs(10_000);
    let mut jobs = queue([gib(4)]);
    jobs[0].submitted = now;
    let policy = by_name("tessera").unwrap();

    let decided = policy.decide_with(&view, Knowledge::of(&known), &mut jobs.iter(), now, 9);

    // Job 99 frees space for the waiting job, and keeps a slice that is large enough.
    let placements = profiles(&view, reshapes(&decided)[0]);
    assert!(["3g.20gb", "4g.20gb"].contains(&placements[&99].as_str()), "{placements:?}");
}

fn build_set<const N: usize>(jobs: [u64; N]) -> BTreeSet<JobId> {
    jobs.map(JobId::from_number).into()
}

#[test]
fn a_job_of_which_nothing_is_known_gets_the_tightest_slice() {
    let view = cluster([a100(&[])]);

    let decided = decide(&view, &KnownFacts::default(), &queue([gib(4)]));

    assert_eq!(short(&view, &decided), ["1: +1g.5gb@6 1g.5gb@6 on 0"]);
    let Decision::Start { why, .. } = &decided[0] else { panic!("{decided:?}") };
    assert_eq!(why.policy, "tessera");
}

#[test]
fn a_job_that_can_not_be_moved_and_ends_soon_gets_the_slice_on_which_it_is_fastest() {
    let view = cluster([a100(&[])]);
    let facts_known = KnownFacts { movable: BTreeSet::new(), ..KnownFacts::of(&[(1, 7_000)]) };

    let decided = decide(&view, &facts_known, &queue([gib(4)]));

    assert_eq!(short(&view, &decided), ["1: +7g.40gb@0 7g.40gb@0 on 0"]);
}

#[test]
fn a_running_job_is_moved_for_one_that_would_wait() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(9))])]);

    let decided = decide(&view, &KnownFacts::of(&[(9, 70_000)]), &queue([gib(4)]));

    let placements = profiles(&view, reshapes(&decided)[0]);
    assert_eq!((placements[&1].as_str(), placements[&9].as_str()), ("3g.20gb", "4g.20gb"));
}

#[test]
fn a_running_job_that_can_not_be_migrated_is_not_moved() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(9))])]);
    let facts_known = KnownFacts { movable: BTreeSet::new(), ..KnownFacts::of(&[(9, 70_000)]) };

    let decided = decide(&view, &facts_known, &queue([gib(4)]));

    assert_eq!(short(&view, &decided), ["1: resources"]);
}

#[test]
fn no_job_of_lower_priority_gets_the_slice_of_a_waiting_one() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(9))]), a100(&[])]);
    let mut jobs = queue([GpuRequest::Profile("9g.9gb".parse().unwrap()), gib(4)]);
    jobs[0].gpu = GpuRequest::Whole;
    jobs[0].queue_rank.priority = Priority::try_from(0).unwrap();
    let view_full = cluster([a100(&[("7g.40gb", 0, taken(9))]), a100(&[("7g.40gb", 0, taken(8))])]);

    let decided = decide(&view_full, &KnownFacts::of(&[(2, 700)]), &jobs);
    assert_eq!(short(&view_full, &decided), ["1: resources", "2: resources"]);

    let decided = decide(&view, &KnownFacts::of(&[(2, 700)]), &jobs);
    assert!(short(&view, &decided).iter().any(|line| line.contains("7g.40gb@0")), "{decided:?}");
}

#[test]
fn a_job_gets_the_smallest_slice_on_which_it_is_equally_fast() {
    /// It is equally fast on every slice.
    #[derive(Debug)]
    struct Even;
    impl JobTable for Even {
        fn facts(&self, _: JobId) -> JobFacts {
            let migration_price = Some(Millis::from_secs(30));
            JobFacts { done: Some(0), migration_price, ..JobFacts::default() }
        }

        fn account(&self, _: JobId) -> Option<Account> {
            None
        }
    }

    impl Predictor for Even {
        fn predict_run(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
            Some(RunTime::measured(Millis::from_secs(600)))
        }
    }
    let view = cluster([a100(&[("7g.40gb", 0, IDLE)])]);
    let policy = by_name("tessera").unwrap();

    let queue = queue([gib(4)]);
    let decided =
        policy.decide_with(&view, Knowledge::of(&Even), &mut queue.iter(), Millis::ZERO, 9);

    assert_eq!(profiles(&view, reshapes(&decided)[0])[&1], "1g.5gb");
}

/// Jobs in the queue, and running jobs.
fn residents() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..40, 1_000_u64..1_060]
}

/// Nobody runs in two places.
fn numbered(mut cluster: ClusterView) -> ClusterView {
    let instances = cluster.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
    for (number, instance) in (1_000..).zip(instances) {
        if let InstanceState::Taken { job } = &mut instance.state {
            *job = JobId::from_number(number);
        }
    }
    cluster
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn where_nothing_is_known_no_job_waits_beside_a_free_slice_that_no_reservation_needs(
        cluster in arbitrary::cluster(), queue in arbitrary::queue(),
    ) {
        let decided = decide(&cluster, &KnownFacts::default(), &queue);
        let mut hardware = Hardware::new(&cluster);
        for decision in &decided {
            if let Decision::Start { job, place, .. } = decision {
                hardware.start(*job, place);
            }
        }
        let waits = decided.iter().filter_map(|decision| match decision {
            Decision::Wait { job, reason, why } => Some((*job, *reason, why)),
            Decision::Start { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
        });
        for (job, reason, why) in waits {
            let request = &queue.iter().find(|known| known.id == job).unwrap().gpu;
            // A slice is reserved for it, or for a job ahead of it with the same request.
            let reserved = reason == WaitReason::Priority;
            prop_assert!(hardware.places(request).is_empty() || reserved, "{job} {reason:?} {why:?}");
        }
    }

    #[test]
    fn a_job_that_can_not_be_moved_stays_and_no_job_is_placed_twice(
        cluster in arbitrary::cluster(),
        queue in arbitrary::queue(),
        known in prop::collection::btree_map(residents(), 1_u64..100_000, 0..60),
        stiff in prop::collection::btree_set(residents(), 0..30),
    ) {
        let cluster = numbered(cluster);
        let mut facts_known = KnownFacts::of(&known.into_iter().collect::<Vec<_>>());
        facts_known.movable.retain(|job| !stiff.contains(&job.number()));

        let decided = decide(&cluster, &facts_known, &queue);

        let mut named = BTreeSet::new();
        for decision in &decided {
            match decision {
                Decision::Start { job, .. } | Decision::Wait { job, .. } => {
                    prop_assert!(named.insert(*job), "{job} is decided twice");
                }
                Decision::Reshape { reshape, .. } => {
                    let gpu = cluster.gpus.iter().find(|gpu| gpu.id == reshape.gpu).unwrap();
                    prop_assert!(gpu.available && !gpu.changing);
                    for placed in &reshape.placements {
                        prop_assert!(named.insert(placed.job), "{} is decided twice", placed.job);
                        prop_assert!(reshape.layout.contains(&placed.slot.unwrap()));
                    }
                }
                Decision::Preempt { .. } => prop_assert!(false, "no policy does so itself"),
            }
        }
        for gpu in &cluster.gpus {
            for instance in &gpu.instances {
                let InstanceState::Taken { job } = instance.state else { continue };
                let placements = reshapes(&decided).into_iter().flat_map(|r| r.placements.iter().map(move |s| (&r.gpu, s)));
                for (on, placed) in placements.filter(|(_, placed)| placed.job == job) {
                    let stays = *on == gpu.id && placed.slot == instance.slot;
                    prop_assert!(stays || facts_known.movable.contains(&job), "{job} was moved");
                }
            }
        }
    }
}
