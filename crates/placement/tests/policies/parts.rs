//! Jobs that name compute instances: their placements, waits and limits.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_model::mig::Slot;
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::share::{ComputeShare, SharingMode, SliceShare};
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::policy::NAMES;
use tessera_placement::{
    Account, AdminOverride, ClosureKind, ClusterView, ComputeInstancesView, Decision, Feasibility,
    GpuClosure, GpuView, InstanceState, JobFacts, JobTable, Knowledge, QueuedJob, Tenancy,
    WaitReason, by_name, compute_instances, could_ever_fit, decide_round,
};

use crate::build::{IDLE, a30, a100, away, cluster, decide, queue, short, unpartitioned, why};

fn cut(parts: &[(u8, u8)]) -> Cut {
    let slot = |(start, slices): &(u8, u8)| ComputeSlot { start: *start, slices: *slices };
    parts.iter().map(slot).collect::<Vec<_>>().try_into().unwrap()
}

/// A GPU instance with these compute instances, and `user`'s jobs on the first slices of some.
fn cut_instance(parts: &[(u8, u8)], user: &str, jobs: &[(u64, u8)]) -> InstanceState {
    let cut = cut(parts);
    let part = |(job, start): &(u64, u8)| {
        let slot = cut.iter().find(|slot| slot.start == *start).unwrap();
        (JobId::from_number(*job), SliceShare::Compute(ComputeShare { slot, memory: Bytes::ZERO }))
    };
    let sharers: Vec<_> = jobs.iter().map(part).collect();
    let tenancy = (!sharers.is_empty()).then(|| Tenancy::of(user.into(), sharers));
    InstanceState::Cut(ComputeInstancesView { cut, tenancy })
}

/// The compute instance that each job got.
type Taken = Vec<(JobId, ComputeSlot)>;

const THIRDS: &[(u8, u8)] = &[(0, 1), (1, 1), (2, 1)];

fn compute_queue(jobs: &[(&str, &str)]) -> Vec<QueuedJob> {
    let mut jobs_requesting =
        queue(jobs.iter().map(|(name, _)| GpuRequest::Compute(name.parse().unwrap())));
    for (job, (_, user)) in jobs_requesting.iter_mut().zip(jobs) {
        job.user = (*user).into();
    }
    jobs_requesting
}

fn place_jobs(cluster: &ClusterView, jobs: &[QueuedJob]) -> Vec<Decision> {
    compute_instances::place_compute_jobs(cluster, &mut jobs.iter(), 100).decisions
}

/// `1: 3g.20gb@0/2 on 0` for a placement on compute slice 2.
fn in_short(cluster: &ClusterView, jobs: &[QueuedJob]) -> Vec<String> {
    let decisions = place_jobs(cluster, jobs);
    let part = |decision: &Decision| match decision {
        Decision::Start { place, .. } => format!("/{}", place.part.unwrap().start),
        _ => String::new(),
    };
    let words = short(cluster, &decisions);
    words.iter().zip(&decisions).map(|(text, decision)| text.clone() + &part(decision)).collect()
}

#[test]
fn a_gpu_instance_is_filled_up_before_the_next_one_is_taken() {
    let cluster = cluster([a100(&[
        ("3g.20gb", 0, cut_instance(THIRDS, "", &[])),
        ("3g.20gb", 4, cut_instance(THIRDS, "ada", &[(90, 1)])),
    ])]);

    let jobs = compute_queue(&[("1c.3g.20gb", "ada"); 4]);

    assert_eq!(
        in_short(&cluster, &jobs),
        [
            "1: 3g.20gb@4 on 0/0",
            "2: 3g.20gb@4 on 0/2",
            "3: 3g.20gb@0 on 0/0",
            "4: 3g.20gb@0 on 0/1"
        ]
    );
}

#[test]
fn the_explanation_names_the_co_runners_and_the_counted_memory() {
    let cluster = cluster([a100(&[("3g.20gb", 0, cut_instance(THIRDS, "ada", &[(90, 0)]))])]);

    let decisions = place_jobs(&cluster, &compute_queue(&[("1c.3g.20gb", "ada")]));

    let why = why(&decisions[0]);
    assert_eq!(
        why.summary,
        "1c.3g.20gb requested: it gets compute slice 1 of 3g.20gb at slices 0-3 of GPU 0 of node a; \
         6.5 GiB of the 19.5 GiB of memory are counted for it, but co-runners can use all of it; \
         its co-runner is job 90 of ada"
    );
    assert_eq!(why.candidates[0].profile, "1c.3g.20gb");
}

#[test]
fn users_are_never_mixed_on_a_gpu_instance_and_a_waiting_one_is_served() {
    let one = cluster([a100(&[("3g.20gb", 0, cut_instance(THIRDS, "ada", &[(90, 0)]))])]);

    let jobs =
        compute_queue(&[("1c.3g.20gb", "bob"), ("1c.3g.20gb", "ada"), ("1c.4g.20gb", "ada")]);
    let decisions = place_jobs(&one, &jobs);

    assert_eq!(short(&one, &decisions), ["1: resources", "3: mig_fragmentation"]);
    let why = why(&decisions[0]);
    assert!(why.summary.contains("1 of 1 GPU instances with such parts are in use by other users"));
    assert_eq!(why.would_start_if.as_deref(), Some("job 90 ends"));
    assert_eq!(why.candidates[0].verdict, "other_user");
}

#[test]
fn a_wait_names_the_job_or_the_operator_action_that_would_end_it() {
    let full = cut_instance(THIRDS, "ada", &[(90, 0), (91, 1), (92, 2)]);
    let closed = AdminOverride {
        closed: Some(GpuClosure {
            how: ClosureKind::Drained,
            words: "node a is drained".into(),
            until: "node a is undrained".into(),
        }),
        pinned: None,
    };
    let there = a100(&[("3g.20gb", 0, cut_instance(THIRDS, "", &[]))]);
    let drained = GpuView { available: false, operator: closed, ..there.clone() };
    for (gpus, reason, until) in [
        (vec![a100(&[("3g.20gb", 0, full)])], "resources", "job 90, 91 or 92 ends"),
        (vec![a100(&[("3g.20gb", 0, IDLE)])], "mig_fragmentation", "gpus layout apply GPU-0"),
        (vec![drained], "node_drained", "node a is undrained"),
        (vec![away(there)], "node_unavailable", "GPU 0 of node a becomes available"),
        (vec![a30(&[])], "bad_constraints", "a GPU that offers 3g.20gb joins"),
        (vec![unpartitioned(40_960, IDLE)], "bad_constraints", "a GPU that offers 3g.20gb joins"),
        (vec![], "node_unavailable", "a node with a GPU joins"),
    ] {
        let cluster = cluster(gpus);

        let decisions = place_jobs(&cluster, &compute_queue(&[("1c.3g.20gb", "ada")]));

        assert_eq!(short(&cluster, &decisions), [format!("1: {reason}")]);
        let would = why(&decisions[0]).would_start_if.clone().unwrap();
        assert!(would.contains(until), "{reason}: {would}");
    }
}

#[test]
fn no_policy_uses_or_destroys_a_divided_gpu_instance() {
    let cluster =
        cluster([a100(&[("3g.20gb", 0, cut_instance(THIRDS, "", &[])), ("4g.20gb", 4, IDLE)])]);
    for policy in NAMES {
        for ask in ["1g.5gb", "3g.20gb", "7g.40gb"] {
            let jobs = queue([GpuRequest::Profile(ask.parse().unwrap())]);
            for decision in decide(policy, &cluster, &jobs) {
                let Decision::Start { place, .. } = decision else { continue };
                let of = |slot: Slot| slot.start == 0;
                assert!(place.slot.is_none_or(|slot| !of(slot)), "{policy}: {place:?}");
                assert!(place.steps.iter().all(|step| !of(step.slot())), "{policy}: {place:?}");
            }
        }
    }
}

#[test]
fn compute_instances_count_with_their_whole_gpu_instance_under_quotas() {
    /// Every user may hold three compute slices.
    struct Three;
    impl JobTable for Three {
        fn facts(&self, _: JobId) -> JobFacts {
            JobFacts::default()
        }

        fn account(&self, _: JobId) -> Option<Account> {
            let (name, used) = ("ada".into(), Millis::ZERO);
            Some(Account { name, shares: 1, used, quota: Some(3), member: None })
        }
    }
    let view = cluster([
        a100(&[("3g.20gb", 0, cut_instance(THIRDS, "", &[]))]),
        a100(&[("3g.20gb", 0, cut_instance(THIRDS, "", &[]))]),
    ]);
    let mut jobs = compute_queue(&[("1c.3g.20gb", "ada"); 5]);
    jobs[4].gpu = GpuRequest::Unknown;
    let policy = by_name("tessera").unwrap();
    let known = Knowledge { jobs: &Three, ..Knowledge::NONE };

    let decided = decide_round(&*policy, &view, known, &mut jobs.iter(), Millis::ZERO, 100);

    let started = decided.iter().filter(|d| matches!(d, Decision::Start { .. })).count();
    assert_eq!(started, 3, "three on one GPU instance, and none on the other: {decided:?}");
    let quota = |d: &&Decision| matches!(d, Decision::Wait { reason: WaitReason::Quota, .. });
    assert_eq!(decided.iter().filter(quota).count(), 2, "{decided:?}");
}

#[test]
fn other_jobs_are_left_to_the_policy_in_their_order() {
    let cluster = cluster([a100(&[("3g.20gb", 0, cut_instance(THIRDS, "", &[]))])]);
    let mut jobs = compute_queue(&[("1c.3g.20gb", "ada"); 3]);
    jobs[0].gpu = GpuRequest::Whole;
    jobs[2].gpu = GpuRequest::Unknown;

    let placed = compute_instances::place_compute_jobs(&cluster, &mut jobs.iter(), 100);

    assert_eq!((placed.started, placed.decisions.len()), (1, 1));
    assert_eq!(placed.others, [&jobs[0], &jobs[2]]);
}

#[test]
fn a_compute_instance_that_no_gpu_offers_is_refused() {
    let cluster = cluster([a100(&[]), unpartitioned(40_960, IDLE)]);
    let fits = |name: &str| {
        could_ever_fit(
            &cluster,
            &GpuRequest::Compute(name.parse().unwrap()),
            SharingMode::Exclusive,
        )
    };

    assert_eq!(fits("1c.3g.20gb"), Feasibility::Yes);
    assert!(matches!(fits("4c.3g.20gb"), Feasibility::Never { .. }));
    assert!(matches!(fits("3c.3g.20gb"), Feasibility::Never { .. }), "that is 3g.20gb");
    assert!(matches!(fits("1c.2g.12gb"), Feasibility::Never { .. }));
}

proptest! {
    /// For any division and any request, a compute instance has one job, a GPU instance has one
    /// user, and no job that could start waits at the head.
    #[test]
    fn every_compute_instance_has_one_job_and_every_gpu_instance_one_user(
        cuts in prop::collection::vec((0..3_usize, 0..4_u8), 0..4),
        wants in prop::collection::vec((0..3_usize, 0..3_usize), 0..24),
    ) {
        let kinds: [&[(u8, u8)]; 3] = [THIRDS, &[(0, 2), (2, 1)], &[(0, 3)]];
        let names = ["1c.3g.20gb", "2c.3g.20gb", "1c.4g.20gb"];
        let users = ["ada", "bob", "cy"];
        let gpus = cuts.iter().map(|(kind, taken)| {
            let first = kinds[*kind][0].0;
            let jobs: &[(u64, u8)] = if *taken == 0 { &[(900, first)] } else { &[] };
            a100(&[("3g.20gb", 0, cut_instance(kinds[*kind], "ada", jobs))])
        });
        let cluster = cluster(gpus);
        let jobs: Vec<_> = wants.iter().map(|(name, user)| (names[*name], users[*user])).collect();
        let jobs = compute_queue(&jobs);

        let decisions = place_jobs(&cluster, &jobs);

        let mut placements: BTreeMap<(String, Option<Slot>), Taken> = BTreeMap::new();
        for decision in &decisions {
            let Decision::Start { job, place, .. } = decision else { continue };
            let part = place.part.unwrap();
            let gpu = cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
            let there = gpu.instances.iter().find(|i| i.slot == place.slot).unwrap();
            let InstanceState::Cut(before) = &there.state else { panic!("{there:?}") };
            prop_assert!(before.free().any(|free| free == part), "{part:?} was not free");
            let jobs_requesting = jobs.iter().find(|j| j.id == *job).unwrap();
            if let Some(tenancy) = &before.tenancy {
                prop_assert_eq!(&tenancy.user, &jobs_requesting.user);
            }
            let placed = placements.entry((place.gpu.to_string(), place.slot)).or_default();
            for (other, taken) in placed.iter() {
                prop_assert!(!taken.overlaps(part));
                let other = jobs.iter().find(|j| j.id == *other).unwrap();
                prop_assert_eq!(&other.user, &jobs_requesting.user);
            }
            placed.push((*job, part));
        }
        let again = place_jobs(&cluster, &jobs);
        prop_assert_eq!(short(&cluster, &again), short(&cluster, &decisions), "it is a function");
    }
}
