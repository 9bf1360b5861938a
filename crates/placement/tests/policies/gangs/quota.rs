//! Gangs under quotas: all of their members count.

use proptest::prelude::*;
use tessera_model::share::{MpsShare, SliceShare, SmPercent};
use tessera_placement::{Account, SharingRequest, SliceLimit};

use super::properties::mixed;
use super::*;
use crate::arbitrary;
use crate::build::mib;

/// Accounts with their users, and what each may hold at once.
#[derive(Clone, Debug, Default)]
struct Quotas {
    /// Users by job; running jobs have no user in the view.
    users: BTreeMap<JobId, &'static str>,
    of_users: BTreeMap<&'static str, u32>,
    /// The users of one account, and its quota.
    account: (BTreeSet<&'static str>, Option<u32>),
    /// How long every job takes.
    time: Option<Millis>,
}

impl Quotas {
    fn of(users: &[(u64, &'static str)], quotas: &[(&'static str, u32)]) -> Self {
        let users = users.iter().map(|(job, user)| (JobId::from_number(*job), *user)).collect();
        Self { users, of_users: quotas.iter().copied().collect(), ..Self::default() }
    }

    fn limits(&self, job: JobId) -> Vec<SliceLimit> {
        self.account(job).iter().flat_map(Account::limits).collect()
    }
}

impl JobTable for Quotas {
    fn facts(&self, _: JobId) -> JobFacts {
        JobFacts {
            done: self.time.map(|_| 0),
            migration_price: self.time.map(|_| Millis::from_secs(1)),
            ..JobFacts::default()
        }
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let user = *self.users.get(&job)?;
        let own = self.of_users.get(user).copied();
        let (members, quota) = &self.account;
        let used = Millis::ZERO;
        Some(match members.contains(user) {
            true => {
                let member = own.map(|slices| SliceLimit { name: user.into(), slices });
                Account { name: "account lab".into(), shares: 1, used, quota: *quota, member }
            }
            false => Account { name: user.into(), shares: 1, used, quota: own, member: None },
        })
    }
}

impl Predictor for Quotas {
    fn predict_run(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
        self.time.map(RunTime::measured)
    }
}

fn decide_all(cluster: &ClusterView, queue: &[QueuedJob], quotas: &Quotas) -> Vec<Decision> {
    let policy = by_name("tessera").unwrap();
    let late = PATIENCE.plus(PATIENCE);
    decide_round(&*policy, cluster, Knowledge::of(quotas), &mut queue.iter(), late, 256)
}

/// A gang of two whole GPUs, then a job of another user.
fn gang_and_one() -> Vec<QueuedJob> {
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    let one = build::queue([GpuRequest::Whole]).remove(0);
    queue.push(QueuedJob { id: JobId::from_number(3), user: "bob".into(), ..one });
    queue
}

#[test]
fn a_gang_counts_with_all_of_its_members_and_keeps_nobody_waiting_under_its_quota() {
    let users = [(1, "ada"), (2, "ada"), (3, "bob"), (90, "ada")];
    let mut cluster = empty(4, 4);
    cluster.gpus[0].instances = full(90).instances;

    let held = decide_all(&cluster, &gang_and_one(), &Quotas::of(&users, &[("ada", 20)]));

    assert_eq!(places(&held).keys().map(|job| job.number()).collect::<Vec<_>>(), [3]);
    for member in [1, 2] {
        let (reason, summary, would) = waits(&held, member);
        assert_eq!(reason, WaitReason::Quota);
        assert_eq!(
            summary,
            "jobs of ada hold 7 of their limit of 20 compute slices, and this gang \
             of 2 needs at least 14 more"
        );
        assert_eq!(
            would,
            "jobs of ada that hold 1 compute slice end, or the quota is raised to 21"
        );
    }
    let free = decide_all(&cluster, &gang_and_one(), &Quotas::of(&users, &[("ada", 21)]));
    assert_eq!(places(&free).len(), 3);
}

#[test]
fn no_gpus_are_reserved_for_a_gang_that_waits_for_its_quota() {
    let mut cluster = empty(2, 2);
    cluster.gpus[0].instances = full(90).instances;
    let users = [(1, "ada"), (2, "ada"), (3, "bob")];

    let kept = decide_all(&cluster, &gang_and_one(), &Quotas::of(&users, &[("ada", 14)]));
    assert!(places(&kept).is_empty(), "its two GPUs are kept for the gang");

    let held = decide_all(&cluster, &gang_and_one(), &Quotas::of(&users, &[("ada", 13)]));
    assert_eq!(places(&held).len(), 1);
    let (_, summary, would) = waits(&held, 1);
    assert!(summary.ends_with("14 more: it can never start under this quota"), "{summary}");
    assert_eq!(would, "the quota of ada is raised to 14");
}

#[test]
fn of_a_user_and_an_account_the_tighter_quota_applies_and_is_named() {
    let users = [(1, "ada"), (2, "ada"), (3, "bob"), (90, "bob")];
    let mut quotas = Quotas::of(&users, &[("ada", 21)]);
    quotas.account = (["ada", "bob"].into(), Some(20));
    let mut cluster = empty(4, 4);
    cluster.gpus[0].instances = full(90).instances;

    let held = decide_all(&cluster, &gang_and_one(), &quotas);

    let (reason, summary, _) = waits(&held, 1);
    assert_eq!(reason, WaitReason::Quota);
    assert!(summary.starts_with("jobs of account lab hold 7 of their limit of 20 "), "{summary}");
}

#[test]
fn a_job_that_waits_for_two_quotas_gets_both_and_their_remedy_explained() {
    let users = [(1, "ada"), (2, "ada"), (3, "ada"), (90, "ada"), (91, "bob")];
    let mut cluster = empty(4, 4);
    cluster.gpus[0].instances = full(90).instances;
    cluster.gpus[1].instances = full(91).instances;
    let explained = |ada: u32, lab: u32| {
        let mut quotas = Quotas::of(&users, &[("ada", ada)]);
        quotas.account = (["ada", "bob"].into(), Some(lab));
        let (_, summary, would) = waits(&decide_all(&cluster, &gang_and_one(), &quotas), 1);
        (summary, would)
    };

    let (summary, would) = explained(20, 27);
    assert_eq!(
        summary,
        "jobs of account lab hold 14 of their limit of 27 compute slices, those of ada \
         7 of their limit of 20, and this gang of 2 needs at least 14 more"
    );
    assert_eq!(
        would,
        "jobs of ada that hold 1 compute slice end, or the quotas are raised to 28 and 21"
    );
    let (_, would) = explained(20, 24);
    assert!(
        would.starts_with("jobs of account lab that hold 4 compute slices end, of them 1 of ada,"),
        "{would}"
    );
}

#[test]
fn a_gang_whose_account_has_much_usage_starts_after_other_gangs() {
    /// Ada has nearly all of the recent usage.
    struct Had;
    impl JobTable for Had {
        fn facts(&self, _: JobId) -> JobFacts {
            JobFacts::default()
        }

        fn account(&self, job: JobId) -> Option<Account> {
            let (name, hours) = if job.number() < 5 { ("ada", 99) } else { ("bob", 1) };
            let used = Millis::from_secs(hours * 3_600);
            Some(Account { name: name.into(), shares: 1, used, quota: None, member: None })
        }
    }
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    let mut later = gang(5, (1, 2), &GpuRequest::Whole);
    later.iter_mut().for_each(|job| job.user = "bob".into());
    queue.extend(later);
    let started = |policy: &str| -> Vec<u64> {
        let policy = by_name(policy).unwrap();
        let decided = decide_round(
            &*policy,
            &empty(2, 2),
            Knowledge { jobs: &Had, ..Knowledge::NONE },
            &mut queue.iter(),
            Millis::new(9),
            256,
        );
        places(&decided).keys().map(|job| job.number()).collect()
    };

    assert_eq!(started("tessera"), [5, 6]);
    assert_eq!(started("scheme-b"), [1, 2], "without fair share the order is that of the queue");
}

/// Returns the compute slices of each holder of a limit after the decisions are carried out.
fn held(cluster: &ClusterView, quotas: &Quotas, decided: &[Decision]) -> BTreeMap<String, u32> {
    let slices = |gpu: &GpuView, slot: Option<tessera_model::mig::Slot>| match (&gpu.mig, slot) {
        (Some(mig), Some(slot)) => {
            u32::from(mig.geometry.profile(slot.profile).unwrap().compute_slices)
        }
        _ => 7,
    };
    let mut placements: BTreeMap<
        JobId,
        (tessera_model::GpuId, Option<tessera_model::mig::Slot>, u32),
    > = BTreeMap::new();
    for gpu in &cluster.gpus {
        for instance in &gpu.instances {
            if let InstanceState::Taken { job } = &instance.state {
                placements
                    .insert(*job, (gpu.id.clone(), instance.slot, slices(gpu, instance.slot)));
            }
        }
    }
    let gpu = |id: &tessera_model::GpuId| cluster.gpus.iter().find(|gpu| gpu.id == *id).unwrap();
    for decision in decided {
        match decision {
            Decision::Start { job, place, .. } => {
                let slices = slices(gpu(&place.gpu), place.slot);
                placements.insert(*job, (place.gpu.clone(), place.slot, slices));
            }
            Decision::Reshape { reshape, .. } => {
                for placed in &reshape.placements {
                    let slices = slices(gpu(&reshape.gpu), placed.slot);
                    placements.insert(placed.job, (reshape.gpu.clone(), placed.slot, slices));
                }
            }
            Decision::Wait { .. } | Decision::Preempt { .. } => {}
        }
    }
    let mut held: BTreeMap<String, u32> = BTreeMap::new();
    let mut counted = BTreeSet::new();
    for (job, (gpu, slot, slices)) in placements {
        // A slice that several jobs share counts once.
        if !counted.insert((gpu, slot)) {
            continue;
        }
        for limit in quotas.limits(job) {
            *held.entry(limit.name.to_string()).or_default() += slices;
        }
    }
    held
}

/// Lets some of the jobs outside of gangs share slices.
fn shared(mut queue: Vec<QueuedJob>, which: &BTreeSet<u64>) -> Vec<QueuedJob> {
    for job in queue.iter_mut().filter(|job| job.gang.is_none()) {
        if which.contains(&job.id.number()) {
            job.gpu = mib(4_000);
            let share = MpsShare {
                sm: SmPercent::try_from(30).unwrap(),
                memory: tessera_model::Bytes::from_mib(4_000),
            };
            job.share = Some(SharingRequest::new(job.user.clone(), SliceShare::Mps(share)));
        }
    }
    queue
}

proptest! {
    #[test]
    fn no_user_gets_more_than_a_quota_whatever_is_requested_together(
        cluster in arbitrary::cluster(),
        queue in mixed(),
        each in 1_u32..5,
        of_users in prop::collection::vec(prop::option::of(0_u32..30), 3),
        of_account in prop::option::of(0_u32..40),
        whose in prop::collection::vec(0_usize..3, 60),
        sharers in prop::collection::btree_set(1_u64..60, 0..20),
        known in any::<bool>(),
    ) {
        let mut cluster = dealt(cluster, each);
        let names = ["ada", "bob", "cyd"];
        let mut quotas = Quotas {
            of_users: names.into_iter().zip(&of_users).filter_map(|(n, q)| Some((n, (*q)?))).collect(),
            account: (["ada", "bob"].into(), of_account),
            time: known.then_some(Millis::from_secs(600)),
            ..Quotas::default()
        };
        // No job runs in two places.
        let instances = cluster.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
        for (number, instance) in (1_000..).zip(instances) {
            if let InstanceState::Taken { job } = &mut instance.state {
                *job = JobId::from_number(number);
                let at = usize::try_from(number).unwrap() % whose.len();
                quotas.users.insert(*job, names[whose[at]]);
            }
        }
        let mut queue = queue;
        for job in &mut queue {
            let of = job.gang.map_or(job.id, |member| member.gang);
            let at = usize::try_from(of.number()).unwrap() % whose.len();
            job.user = names[whose[at]].into();
            quotas.users.insert(job.id, names[whose[at]]);
        }
        let queue = shared(queue, &sharers);
        let before = held(&cluster, &quotas, &[]);

        let decided = decide_all(&cluster, &queue, &quotas);

        for (name, holds) in held(&cluster, &quotas, &decided) {
            let limit = match name.as_str() {
                "account lab" => of_account,
                user => quotas.of_users.get(user).copied(),
            };
            let had = before.get(&name).copied().unwrap_or(0);
            let most = limit.unwrap_or(u32::MAX).max(had);
            prop_assert!(holds <= most, "{name} holds {holds} of {limit:?}, had {had}");
        }
    }
}
