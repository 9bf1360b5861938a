//! `tessera`: accounts, priorities and jobs that have waited too long.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::{JobId, Millis};
use tessera_placement::policy::Tessera;
use tessera_placement::{
    Account, ClusterView, Decision, Demand, Forecast, GpuView, InstanceState, Policy, QueuedJob,
};

use crate::build::{a100, cluster, gib, queue, taken};

/// Jobs that scale with their slice, by number: minutes on a whole GPU, and whose they are.
#[derive(Clone, Debug, Default)]
struct Told {
    minutes: BTreeMap<u64, u64>,
    accounts: BTreeMap<u64, Account>,
    since: BTreeMap<u64, u64>,
    /// Those that run on nothing less than a whole GPU.
    whole: Vec<u64>,
}

impl Forecast for Told {
    fn time(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<Millis> {
        let minutes = self.minutes.get(&job.number()).copied().unwrap_or(10);
        let runs = profile.compute_slices == 7 || !self.whole.contains(&job.number());
        runs.then_some(Millis::new(minutes * 60_000 * 7 / u64::from(profile.compute_slices)))
    }

    fn done(&self, _: JobId) -> Option<u32> {
        Some(0)
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        Some(Millis::new(self.since.get(&job.number()).copied().unwrap_or(0)))
    }

    fn move_price(&self, _: JobId) -> Option<Millis> {
        None
    }

    fn deadline(&self, _: JobId) -> Option<Millis> {
        None
    }

    fn online(&self, _: JobId) -> bool {
        false
    }

    fn demand(&self, _: JobId) -> Option<Demand> {
        None
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.accounts.get(&job.number()).cloned()
    }
}

fn account(name: &str, hours: u64, quota: Option<u32>) -> Account {
    Account { name: name.into(), shares: 1, used: Millis::from_secs(3_600 * hours), quota }
}

fn decide(told: &Told, cluster: &ClusterView, queue: &[QueuedJob], now: Millis) -> Vec<Decision> {
    Tessera::default().decide_with(cluster, told, &mut queue.iter(), now, usize::MAX)
}

/// The jobs that are given seats, with their compute slices.
fn seated(cluster: &ClusterView, decisions: &[Decision]) -> BTreeMap<u64, u32> {
    let mut seated = BTreeMap::new();
    for decision in decisions {
        let Decision::Reshape { reshape, .. } = decision else { continue };
        let gpu = cluster.gpus.iter().find(|gpu| gpu.id == reshape.gpu).unwrap();
        for seat in &reshape.seats {
            let slot = seat.slot.unwrap();
            let profile = gpu.mig.as_ref().unwrap().geometry.profile(slot.profile).unwrap();
            seated.insert(seat.job.number(), u32::from(profile.compute_slices));
        }
    }
    seated
}

#[test]
fn of_two_accounts_the_one_that_had_less_is_served_first() {
    // Each needs the whole GPU, and the first came first.
    let cluster = cluster([a100(&[])]);
    let jobs = queue([gib(30), gib(30)]);
    let accounts = [(1, account("busy", 90, None)), (2, account("idle", 10, None))].into();
    let told = Told { accounts, whole: vec![1, 2], ..Told::default() };
    let decisions = decide(&told, &cluster, &jobs, Millis::new(10));
    assert_eq!(seated(&cluster, &decisions).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn of_two_jobs_the_one_of_higher_priority_is_served_first() {
    let cluster = cluster([a100(&[])]);
    let mut jobs = queue([gib(30), gib(30)]);
    jobs[1].priority = 0_u8.try_into().unwrap();
    let told = Told { whole: vec![1, 2], ..Told::default() };
    let decisions = decide(&told, &cluster, &jobs, Millis::new(10));
    assert_eq!(seated(&cluster, &decisions).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_gpu_is_kept_for_the_oldest_job_once_it_has_waited_too_long() {
    // Both GPUs have a job and room. The whole GPU that job 1 needs is nowhere; job 2 fits.
    let cluster = cluster([a100(&[("3g.20gb", 4, taken(8))]), a100(&[("3g.20gb", 4, taken(9))])]);
    let jobs = queue([gib(30), gib(4)]);
    let mut told = Told { since: [(8, 100), (9, 500)].into(), ..Told::default() };
    told.minutes = [(1, 30), (2, 1)].into();
    told.whole = vec![1];
    let decide = |now| {
        let policy = Tessera { patience: Millis::from_secs(3_600), ..Tessera::default() };
        policy.decide_with(&cluster, &told, &mut jobs.iter(), now, usize::MAX)
    };
    let gpus = |decisions: &[Decision]| -> Vec<String> {
        let of = |decision: &Decision| match decision {
            Decision::Reshape { reshape, .. } => Some(reshape.gpu.to_string()),
            Decision::Wait { .. } | Decision::Start { .. } => None,
        };
        decisions.iter().filter_map(of).collect()
    };

    let early = decide(Millis::from_secs(10));
    let late = decide(Millis::from_secs(3_700));

    assert_eq!(gpus(&early), ["GPU-0"]);
    // Nobody has come to GPU 0 since job 8: it is kept, and job 2 goes to the other.
    assert_eq!(gpus(&late), ["GPU-1"]);
    let why = late.iter().find_map(|decision| match decision {
        Decision::Wait { job, why, .. } if job.number() == 1 => Some(why.clone()),
        _ => None,
    });
    let why = why.unwrap();
    assert!(why.summary.contains("GPU 0 of node a is kept free"), "{why:?}");
    assert_eq!(why.would_start_if.as_deref(), Some("job 8 ends"));
}

proptest! {
    #[test]
    fn no_account_takes_more_than_its_quota(
        jobs in prop::collection::vec((0_usize..3, 1_u64..200), 1..20),
        quotas in prop::collection::vec(prop::option::of(1_u32..12), 3),
        gpus in 1_usize..4,
    ) {
        let standing = [("1g.5gb", 6, taken(100)), ("2g.10gb", 2, taken(101))];
        let cluster = cluster((0..gpus).map(|at| if at == 0 { a100(&standing) } else { a100(&[]) }));
        let waiting = queue(jobs.iter().map(|_| gib(3)));
        let names = ["a", "b", "c"];
        let of = |number: usize| account(names[number], 1, quotas[number]);
        let running = [(100, of(0)), (101, of(1))].into();
        let mut told = Told { accounts: running, ..Told::default() };
        for (number, (owner, minutes)) in (1..).zip(&jobs) {
            told.accounts.insert(number, of(*owner));
            told.minutes.insert(number, *minutes);
        }

        let decisions = decide(&told, &cluster, &waiting, Millis::new(100));

        let mut has = seated(&cluster, &decisions);
        has.entry(100).or_insert(1);
        has.entry(101).or_insert(2);
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        for (job, slices) in &has {
            *held.entry(&told.accounts[job].name).or_default() += slices;
        }
        for (number, quota) in quotas.iter().enumerate() {
            // What runs already is nobody's fault.
            let least = [1, 2, 0][number];
            let held = held.get(names[number]).copied().unwrap_or(0);
            prop_assert!(quota.is_none_or(|quota| held <= quota.max(least)), "{} {:?}", held, quota);
        }
    }
}

#[test]
fn a_job_whose_account_is_at_its_quota_is_told_so() {
    let cluster = cluster([a100(&[("2g.10gb", 4, taken(9))])]);
    let jobs = queue([gib(3)]);
    let quota = account("lab", 1, Some(2));
    let told = Told { accounts: [(1, quota.clone()), (9, quota)].into(), ..Told::default() };
    let decisions = decide(&told, &cluster, &jobs, Millis::new(5));
    let Some(Decision::Wait { why, .. }) = decisions.first() else { panic!("{decisions:?}") };
    assert!(why.summary.contains("hold 2 of the 2 compute slices"), "{}", why.summary);
    let idle = InstanceState::Idle;
    assert!(cluster.gpus[0].instances.iter().all(|i| i.state != idle));
}
