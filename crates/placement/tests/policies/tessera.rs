//! `tessera`: accounts, priorities and overdue jobs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::policy::Tessera;
use tessera_placement::{
    Account, ClusterView, CoRunner, Decision, Demand, GpuView, InstanceState, JobFacts, JobTable,
    Knowledge, Policy, Predictor, QueuedJob, RunTime, SearchBudget, SharedPart,
};

use crate::build::{a100, cluster, gib, queue, taken};

/// Jobs that scale with their slice, by number: minutes on a whole GPU, and their account.
#[derive(Clone, Debug, Default)]
struct KnownFacts {
    minutes: BTreeMap<u64, u64>,
    accounts: BTreeMap<u64, Account>,
    since: BTreeMap<u64, u64>,
    /// Jobs that need a whole GPU.
    whole: Vec<u64>,
    /// Jobs that need at least half of a GPU.
    half: Vec<u64>,
    /// Jobs that are equally fast on any slice.
    flat: Vec<u64>,
    /// Seconds that a migration costs; if `None`, no job can be migrated.
    price_s: Option<u64>,
    /// Jobs with little memory, in GiB, that don't slow another job of the same user.
    shares: BTreeMap<u64, u64>,
    /// The number of searches after which the time for improving placements is over; `None` means
    /// no limit.
    time_for: Option<usize>,
}

impl KnownFacts {
    fn time(&self, job: JobId, profile: &Profile) -> Option<Millis> {
        let minutes = self.minutes.get(&job.number()).copied().unwrap_or(10);
        let of = |jobs: &[u64]| jobs.contains(&job.number());
        let least = if of(&self.whole) { 7 } else { 3 };
        let runs = profile.compute_slices >= least || !(of(&self.whole) || of(&self.half));
        let slices = if self.flat.contains(&job.number()) { 7 } else { profile.compute_slices };
        runs.then_some(Millis::new(minutes * 60_000 * 7 / u64::from(slices)))
    }
}

impl JobTable for KnownFacts {
    fn facts(&self, job: JobId) -> JobFacts {
        let shares = self.shares.get(&job.number());
        let co_runner =
            |gib: &u64| CoRunner { user: "ada".into(), memory: Bytes::from_mib(1_024 * gib) };
        JobFacts {
            done: Some(0),
            since: self.since.get(&job.number()).copied().map(Millis::new),
            migration_price: self.price_s.map(Millis::from_secs),
            demand: shares.map(|_| Demand { sm: 100, memory: 10 }),
            co_runner: shares.map(co_runner),
            ..JobFacts::default()
        }
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.accounts.get(&job.number()).cloned()
    }
}

impl Predictor for KnownFacts {
    fn predict_run(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<RunTime> {
        self.time(job, profile).map(RunTime::measured)
    }

    fn predict_shared_run(
        &self,
        job: JobId,
        shared: SharedPart<'_>,
        _: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        matches!(shared, SharedPart::Mps { .. }).then(|| self.time(job, profile))?
    }
}

impl SearchBudget for KnownFacts {
    fn allows(&self, searches: usize) -> bool {
        self.time_for.is_none_or(|most| searches < most)
    }
}

/// Returns what policies may know.
fn known(facts_known: &KnownFacts) -> Knowledge<'_> {
    Knowledge::of(facts_known).within(facts_known)
}

fn account(name: &str, hours: u64, quota: Option<u32>) -> Account {
    let used = Millis::from_secs(3_600 * hours);
    Account { name: name.into(), shares: 1, used, quota, member: None }
}

fn decide(
    facts_known: &KnownFacts,
    cluster: &ClusterView,
    queue: &[QueuedJob],
    now: Millis,
) -> Vec<Decision> {
    Tessera::default().decide_with(cluster, known(facts_known), &mut queue.iter(), now, usize::MAX)
}

/// The jobs that get placements, with their compute slices.
fn placed(cluster: &ClusterView, decisions: &[Decision]) -> BTreeMap<u64, u32> {
    let mut placed = BTreeMap::new();
    for decision in decisions {
        let (on, jobs) = match decision {
            Decision::Reshape { reshape, .. } => {
                let jobs = reshape.placements.iter().map(|placed| (placed.job, placed.slot));
                (&reshape.gpu, jobs.collect())
            }
            Decision::Start { job, place, .. } => (&place.gpu, vec![(*job, place.slot)]),
            Decision::Wait { .. } | Decision::Preempt { .. } => continue,
        };
        let gpu = cluster.gpus.iter().find(|gpu| gpu.id == *on).unwrap();
        for (job, slot) in jobs {
            let profile = slot.and_then(|s| gpu.mig.as_ref()?.geometry.profile(s.profile)).unwrap();
            placed.insert(job.number(), u32::from(profile.compute_slices));
        }
    }
    placed
}

#[test]
fn of_two_accounts_the_one_that_used_less_is_served_first() {
    // Each needs the whole GPU, and the first was submitted first.
    let cluster = cluster([a100(&[])]);
    let mut jobs = queue([gib(30), gib(30)]);
    (jobs[0].user, jobs[1].user) = ("busy".into(), "idle".into());
    let accounts = [(1, account("busy", 90, None)), (2, account("idle", 10, None))].into();
    let facts_known = KnownFacts { accounts, whole: vec![1, 2], ..KnownFacts::default() };
    let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(10));
    assert_eq!(placed(&cluster, &decisions).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn of_two_jobs_the_one_of_higher_priority_is_served_first() {
    let cluster = cluster([a100(&[])]);
    let mut jobs = queue([gib(30), gib(30)]);
    jobs[1].queue_rank.priority = 0_u8.try_into().unwrap();
    let facts_known = KnownFacts { whole: vec![1, 2], ..KnownFacts::default() };
    let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(10));
    assert_eq!(placed(&cluster, &decisions).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn of_two_jobs_of_a_priority_the_one_with_the_smaller_nice_value_is_served_first() {
    let cluster = cluster([a100(&[])]);
    let mut jobs = queue([gib(30), gib(30)]);
    jobs[0].queue_rank.nice = 100.try_into().unwrap();
    let facts_known = KnownFacts { whole: vec![1, 2], ..KnownFacts::default() };
    let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(10));
    assert_eq!(placed(&cluster, &decisions).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_gpu_is_reserved_for_the_oldest_job_once_it_has_waited_too_long() {
    // Both GPUs have a job and free space. No whole GPU is free for job 1; job 2 fits.
    let cluster = cluster([a100(&[("3g.20gb", 4, taken(8))]), a100(&[("3g.20gb", 4, taken(9))])]);
    let jobs = queue([gib(30), gib(4)]);
    let mut facts_known =
        KnownFacts { since: [(8, 100), (9, 500)].into(), ..KnownFacts::default() };
    facts_known.minutes = [(1, 30), (2, 1)].into();
    facts_known.whole = vec![1];
    facts_known.price_s = Some(10);
    let decide = |now| {
        let policy =
            Tessera { patience: Millis::from_secs(3_600), effort: 0, ..Tessera::default() };
        policy.decide_with(&cluster, known(&facts_known), &mut jobs.iter(), now, usize::MAX)
    };
    let gpus = |decisions: &[Decision]| -> Vec<String> {
        let of = |decision: &Decision| match decision {
            Decision::Reshape { reshape, .. } => Some(reshape.gpu.to_string()),
            Decision::Wait { .. } | Decision::Start { .. } | Decision::Preempt { .. } => None,
        };
        decisions.iter().filter_map(of).collect()
    };

    let early = decide(Millis::from_secs(10));
    let late = decide(Millis::from_secs(3_700));

    assert_eq!(gpus(&early), ["GPU-0"]);
    // No job has arrived on GPU 0 since job 8: it is reserved, and job 2 is placed on the other
    // GPU.
    assert_eq!(gpus(&late), ["GPU-1"]);
    let why = late.iter().find_map(|decision| match decision {
        Decision::Wait { job, why, .. } if job.number() == 1 => Some(why.clone()),
        _ => None,
    });
    let why = why.unwrap();
    assert!(why.summary.contains("GPU 0 of node a is reserved for it"), "{why:?}");
    assert_eq!(why.would_start_if.as_deref(), Some("job 8 ends"));
}

#[test]
fn a_job_gets_the_gpu_whose_jobs_move_to_idle_slices() {
    // Job 1 needs all of a GPU; jobs 8 and 9 have space for each other.
    let cluster = cluster([a100(&[("3g.20gb", 4, taken(8))]), a100(&[("3g.20gb", 4, taken(9))])]);
    let jobs = queue([gib(30)]);
    let since = [(8, 100), (9, 500)].into();
    let minutes = [(1, 30), (8, 60), (9, 60)].into();
    let facts_known =
        KnownFacts { since, minutes, whole: vec![1], price_s: Some(10), ..KnownFacts::default() };
    let decide = |facts_known: &KnownFacts, effort| {
        let policy = Tessera { effort, ..Tessera::default() };
        let decisions = policy.decide_with(
            &cluster,
            known(facts_known),
            &mut jobs.iter(),
            Millis::new(1_000),
            usize::MAX,
        );
        placed(&cluster, &decisions)
    };

    let found = decide(&facts_known, Tessera::default().effort);

    assert_eq!(found.get(&1), Some(&7), "{found:?}");
    assert!(found.contains_key(&8) && found.contains_key(&9), "no job is moved away: {found:?}");
    assert!(decide(&facts_known, 0).is_empty(), "without effort, no space is freed");
    let pinned = KnownFacts { price_s: None, ..facts_known.clone() };
    assert!(decide(&pinned, 500).is_empty(), "a job that would lose its work stays");
    let dear = KnownFacts { price_s: Some(40_000), ..facts_known };
    assert!(decide(&dear, 500).is_empty(), "a move that costs more than it gains is not made");
}

#[test]
fn of_two_jobs_of_equal_length_the_one_that_leaves_space_is_served_first() {
    let cluster = cluster([a100(&[])]);
    let jobs = queue([gib(30), gib(4)]);
    let price_s = Some(10);
    let facts_known =
        KnownFacts { whole: vec![1], flat: vec![2], price_s, ..KnownFacts::default() };
    let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(10));
    assert_eq!(placed(&cluster, &decisions).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn jobs_swap_places_if_that_raises_the_scores_of_both_gpus() {
    // Two short jobs are on one GPU and two long jobs on the other: each time one job has the
    // smaller half.
    let halves = |a, b| a100(&[("4g.20gb", 0, taken(a)), ("3g.20gb", 4, taken(b))]);
    let cluster = cluster([halves(6, 7), halves(8, 9)]);
    let minutes = [(6, 4), (7, 4), (8, 400), (9, 400)].into();
    let since = [(6, 100), (7, 100), (8, 100), (9, 100)].into();
    let half = vec![6, 7, 8, 9];
    let facts_known =
        KnownFacts { minutes, since, half, price_s: Some(1), ..KnownFacts::default() };
    let decide = |facts_known: &KnownFacts, effort| {
        let policy = Tessera { effort, ..Tessera::default() };
        let mut nobody = std::iter::empty();
        policy.decide_with(
            &cluster,
            known(facts_known),
            &mut nobody,
            Millis::new(1_000),
            usize::MAX,
        )
    };

    let decisions = decide(&facts_known, Tessera::default().effort);

    let slices = placed(&cluster, &decisions);
    assert_eq!(slices, [(6, 4), (7, 4), (8, 3), (9, 3)].into(), "{decisions:?}");
    assert!(decide(&facts_known, 0).is_empty(), "without effort, no exchange is made");
    let hurried = KnownFacts { time_for: Some(0), ..facts_known.clone() };
    assert!(decide(&hurried, 500).is_empty(), "without time, no exchange is made");
    let pinned = KnownFacts { price_s: None, ..facts_known.clone() };
    assert!(decide(&pinned, 500).is_empty(), "a job that would lose its work stays");
    let dear = KnownFacts { price_s: Some(200), ..facts_known };
    assert!(decide(&dear, 500).is_empty(), "two moves that cost more than they gain");
}

#[test]
fn the_longest_job_gets_a_larger_slice_once_no_more_jobs_arrive() {
    let cluster = cluster([a100(&[("4g.20gb", 0, taken(8)), ("3g.20gb", 4, taken(9))])]);
    let minutes = [(8, 100), (9, 400)].into();
    let since = [(8, 100), (9, 100)].into();
    let facts_known = KnownFacts { minutes, since, price_s: Some(5), ..KnownFacts::default() };
    let slices_of_longest = |now: u64| {
        let decisions = decide(&facts_known, &cluster, &[], Millis::from_secs(60 * now));
        placed(&cluster, &decisions).get(&9).copied().unwrap_or(3)
    };

    // Both together take 500 minutes of a whole GPU: a fifth of that has to pass.
    assert_eq!(slices_of_longest(1), 3);
    assert_eq!(slices_of_longest(101), 4);
    // A job has just arrived.
    let facts_known =
        KnownFacts { since: [(8, 60_000 * 100), (9, 100)].into(), ..facts_known.clone() };
    let decisions = decide(&facts_known, &cluster, &[], Millis::from_secs(60 * 101));
    assert!(decisions.is_empty(), "{decisions:?}");
}

proptest! {
    /// All changes of a round are made together: a moved job has left its old GPU before.
    #[test]
    fn a_round_moves_jobs_without_losing_one(
        minutes in prop::collection::vec(1_u64..400, 24),
        whole in prop::collection::vec(1_u64..10, 0..4),
        small in prop::collection::vec(0_u8..7, 2..5),
        price_s in 1_u64..200,
    ) {
        let mut next = 10;
        let mut sits: BTreeMap<u64, usize> = BTreeMap::new();
        let mut gpus = Vec::new();
        for (at, mask) in small.iter().enumerate() {
            let mut standing = Vec::new();
            for start in [0_u8, 2, 4] {
                if mask & (1 << (start / 2)) != 0 {
                    standing.push(("2g.10gb", start, taken(next)));
                    sits.insert(next, at);
                    next += 1;
                }
            }
            gpus.push(a100(&standing));
        }
        let cluster = cluster(gpus);
        let since = sits.keys().map(|job| (*job, 100)).collect();
        let minutes = (1..).zip(minutes).collect();
        let facts_known = KnownFacts { minutes, since, whole: whole.clone(), price_s: Some(price_s), ..KnownFacts::default() };
        let jobs = queue((1..10).map(|job| if whole.contains(&job) { gib(30) } else { gib(3) }));

        let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(1_000));

        let mut after = sits.clone();
        let reshapes = || decisions.iter().filter_map(|decision| match decision {
            Decision::Reshape { reshape, .. } => Some(reshape),
            Decision::Start { .. } | Decision::Wait { .. } | Decision::Preempt { .. } => None,
        });
        let place = |id: &tessera_model::GpuId| cluster.gpus.iter().position(|gpu| gpu.id == *id).unwrap();
        let reshaped: Vec<usize> = reshapes().map(|reshape| place(&reshape.gpu)).collect();
        after.retain(|_, gpu| !reshaped.contains(gpu));
        for reshape in reshapes() {
            for placed in &reshape.placements {
                let twice = after.insert(placed.job.number(), place(&reshape.gpu));
                prop_assert_eq!(twice, None, "{:?} is placed twice", placed.job);
            }
        }
        let distinct: std::collections::BTreeSet<&usize> = reshaped.iter().collect();
        prop_assert_eq!(distinct.len(), reshaped.len(), "a GPU is changed twice");
        prop_assert!(sits.keys().all(|job| after.contains_key(job)), "{sits:?} became {after:?}");
    }

    #[test]
    fn no_account_takes_more_than_its_quota(
        jobs in prop::collection::vec((0_usize..3, 1_u64..200), 1..20),
        quotas in prop::collection::vec(prop::option::of(1_u32..12), 3),
        gpus in 1_usize..4,
    ) {
        let standing = [("1g.5gb", 6, taken(100)), ("2g.10gb", 2, taken(101))];
        let cluster = cluster((0..gpus).map(|at| if at == 0 { a100(&standing) } else { a100(&[]) }));
        let mut waiting = queue(jobs.iter().map(|_| gib(3)));
        let names = ["a", "b", "c"];
        for (job, (owner, _)) in waiting.iter_mut().zip(&jobs) {
            job.user = names[*owner].into();
        }
        let of = |number: usize| account(names[number], 1, quotas[number]);
        let running = [(100, of(0)), (101, of(1))].into();
        let mut facts_known = KnownFacts { accounts: running, ..KnownFacts::default() };
        for (number, (owner, minutes)) in (1..).zip(&jobs) {
            facts_known.accounts.insert(number, of(*owner));
            facts_known.minutes.insert(number, *minutes);
        }

        let decisions = decide(&facts_known, &cluster, &waiting, Millis::new(100));

        let mut has = placed(&cluster, &decisions);
        has.entry(100).or_insert(1);
        has.entry(101).or_insert(2);
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        for (job, slices) in &has {
            *held.entry(&facts_known.accounts[job].name).or_default() += slices;
        }
        for (number, quota) in quotas.iter().enumerate() {
            // Jobs that run already may exceed a quota.
            let least = [1, 2, 0][number];
            let held = held.get(names[number]).copied().unwrap_or(0);
            prop_assert!(quota.is_none_or(|quota| held <= quota.max(least)), "{} {:?}", held, quota);
        }
    }
}

#[test]
fn a_slice_that_two_jobs_share_counts_once_towards_their_quota() {
    // Each needs half of a GPU, of which the account may hold one.
    let jobs = queue([gib(6), gib(6)]);
    let decided = |quota: u32| {
        let quota = account("lab", 1, Some(quota));
        let facts_known = KnownFacts {
            accounts: [(1, quota.clone()), (2, quota)].into(),
            half: vec![1, 2],
            shares: [(1, 6), (2, 6)].into(),
            price_s: Some(10),
            ..KnownFacts::default()
        };
        let cluster = cluster([a100(&[])]);
        let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(5));
        let placements = decisions.into_iter().flat_map(|decision| match decision {
            Decision::Reshape { reshape, .. } => reshape.placements,
            Decision::Start { .. } | Decision::Wait { .. } | Decision::Preempt { .. } => Vec::new(),
        });
        placements.map(|placed| (placed.job.number(), placed.slot)).collect::<Vec<_>>()
    };
    let [(_, slot), (_, other)] = decided(4)[..] else { panic!("{:?}", decided(4)) };
    assert_eq!(slot, other, "one slice of four for both");
    assert_eq!(decided(2), [], "nobody fits");
}

#[test]
fn a_job_whose_account_is_at_its_quota_gets_that_reason() {
    let cluster = cluster([a100(&[("2g.10gb", 4, taken(9))])]);
    let jobs = queue([gib(3)]);
    let quota = account("lab", 1, Some(2));
    let facts_known =
        KnownFacts { accounts: [(1, quota.clone()), (9, quota)].into(), ..KnownFacts::default() };
    let decisions = decide(&facts_known, &cluster, &jobs, Millis::new(5));
    let Some(Decision::Wait { why, .. }) = decisions.first() else { panic!("{decisions:?}") };
    assert!(why.summary.contains("hold 2 of their limit of 2 compute slices"), "{}", why.summary);
    let idle = InstanceState::Idle;
    assert!(cluster.gpus[0].instances.iter().all(|i| i.state != idle));
}
