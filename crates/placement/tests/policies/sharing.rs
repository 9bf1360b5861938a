//! Jobs that share slices: which they join, which they start, and what is never allowed.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_model::share::{KernelShare, MpsShare, SharingMode, SliceShare};
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{Bytes, JobId};
use tessera_placement::policy::NAMES;
use tessera_placement::{
    ClusterView, Decision, Feasibility, GpuView, InstanceState, KernelLengths, KernelSharer,
    QueuedJob, SharingRequest, Tenancy, could_ever_fit,
};

use crate::arbitrary;
use crate::build::{
    IDLE, a30, a100, cluster, decide, gib, mib, queue, sharing, short, taken, unpartitioned, why,
};
use crate::hardware::Hardware;

fn shared(user: &str, parts: &[(u64, u8, u64)]) -> InstanceState {
    let part = |(job, sm, gib): &(u64, u8, u64)| {
        let memory = Bytes::from_mib(gib * 1024);
        let share = match (*sm).try_into() {
            Ok(sm) => SliceShare::Mps(MpsShare { sm, memory }),
            // Without a percentage, the job shares kernel by kernel.
            Err(_) => SliceShare::Kernel(KernelShare { memory }),
        };
        (JobId::from_number(*job), share)
    };
    let sharers = parts.iter().map(part).collect();
    InstanceState::Shared(Tenancy::of(user.into(), sharers))
}

/// Jobs of `ada` that each request half of a slice and this memory.
fn halves(requests: impl IntoIterator<Item = GpuRequest>) -> Vec<QueuedJob> {
    let mut jobs = queue(requests);
    for number in 1..=jobs.len() {
        sharing(&mut jobs, number, "ada", 50);
    }
    jobs
}

fn decided(policy: &str, cluster: &ClusterView, jobs: &[QueuedJob]) -> Vec<String> {
    short(cluster, &decide(policy, cluster, jobs))
}

#[test]
fn two_half_slice_jobs_start_one_slice_on_which_both_fit() {
    let cluster = cluster([a100(&[])]);

    // 4 GiB and half the multiprocessors: 2 times 4 GiB fit 2g.10gb, the tightest that holds both.
    let two = decided("scheme-b", &cluster, &halves([gib(4), gib(4)]));

    assert_eq!(two, ["1: +2g.10gb@4 2g.10gb@4 on 0", "2: 2g.10gb@4 on 0"]);
}

#[test]
fn a_third_sharing_job_that_does_not_fit_gets_its_own_slice() {
    let cluster = cluster([a100(&[])]);

    let three = decided("scheme-b", &cluster, &halves([gib(4), gib(4), gib(2)]));

    assert_eq!(three[2], "3: +1g.5gb@6 1g.5gb@6 on 0");
}

#[test]
fn users_are_never_mixed_and_exclusive_jobs_never_joined() {
    let cluster = cluster([a30(&[
        ("2g.12gb", 0, shared("bob", &[(901, 10, 1)])),
        ("2g.12gb", 2, taken(900)),
    ])]);
    for policy in NAMES {
        let decisions = decide(policy, &cluster, &halves([gib(1)]));

        assert_eq!(short(&cluster, &decisions), ["1: resources"], "{policy}");
    }
}

#[test]
fn nothing_runs_next_to_a_job_that_a_fault_of_unknown_cause_ended() {
    let mut jobs = halves([gib(1), gib(1), gib(1)]);
    jobs[1].share.as_mut().unwrap().apart = true;
    for policy in ["scheme-b", "tessera"] {
        let cluster = cluster([a100(&[])]);
        let decisions = decide(policy, &cluster, &jobs);
        let placed = |number: usize| match &decisions[number - 1] {
            Decision::Start { place, .. } => place.slot.unwrap(),
            other => panic!("{other:?}"),
        };
        assert_ne!(placed(2), placed(1), "{policy}");
        assert_ne!(placed(3), placed(2), "{policy}");
        let text = &why(&decisions[1]).summary;
        assert!(text.contains("it is not known. So it runs alone"), "{policy}: {text}");
    }
}

/// A job of `ada` that shares kernel by kernel, with 1 GiB.
fn kernel_sharing(number: u64, sharer: KernelSharer) -> QueuedJob {
    let mut jobs = queue((0..number).map(|_| gib(1)));
    let mut job = jobs.pop().unwrap();
    let share = SliceShare::Kernel(KernelShare { memory: Bytes::from_mib(1_024) });
    job.share =
        Some(SharingRequest { kernel_sharer: Some(sharer), ..SharingRequest::new("ada", share) });
    job
}

fn kernel_sharer(priority: u8, online: bool, busy: impl Into<Option<u16>>) -> KernelSharer {
    // Its gaps are long enough to be filled for the most part.
    let lengths = KernelLengths { typical_gap_us: 12_000, ..KernelLengths::UNKNOWN };
    let priority = Priority::try_from(priority).unwrap();
    KernelSharer { lengths, ..KernelSharer::new(priority, online, busy.into()) }
}

#[test]
fn kernel_level_sharing_fills_the_gaps_of_a_service_and_slows_no_service() {
    let service = kernel_sharing(1, kernel_sharer(0, true, 300));
    let busy = kernel_sharing(2, kernel_sharer(5, false, 950));
    let filler = kernel_sharing(3, kernel_sharer(5, false, 1_000));
    let second = kernel_sharing(4, kernel_sharer(0, true, 300));
    let unknown = kernel_sharing(5, kernel_sharer(5, false, None));
    let jobs = [service, busy, filler, second, unknown];
    for policy in ["scheme-b", "tessera"] {
        let cluster = cluster([a100(&[])]);
        let decisions = decide(policy, &cluster, &jobs);
        let placed = |number: usize| match &decisions[number - 1] {
            Decision::Start { place, .. } => place.slot.unwrap(),
            other => panic!("{other:?}"),
        };
        // The offline job fills the service's gaps. The next job finds no gaps left, and a second
        // service would slow it. Nothing is known about the last job.
        assert_eq!(placed(2), placed(1), "{policy}");
        assert_ne!(placed(3), placed(1), "{policy}");
        assert_eq!(placed(4), placed(3), "{policy}");
        let text = |number: usize| why(&decisions[number - 1]).summary.clone();
        assert!(text(2).contains("adds 47 %"), "{policy}: {}", text(2));
        assert!(text(3).contains("doesn't join jobs 1, 2"), "{policy}: {}", text(3));
        assert!(text(5).contains("is not known"), "{policy}: {}", text(5));
    }
}

/// Two jobs of `ada` on one A100 that share kernel by kernel, and why the second waits or what it joined.
fn summary_of_pair(first: KernelSharer, second: KernelSharer) -> String {
    let state = |number: u64, sharer: KernelSharer| {
        let sharer = kernel_sharing(number, sharer).share.unwrap();
        InstanceState::Shared(Tenancy::begun(JobId::from_number(number), &sharer))
    };
    let cluster = cluster([a100(&[("7g.40gb", 0, state(901, first))])]);
    let decisions = decide("scheme-b", &cluster, &[kernel_sharing(1, second)]);
    why(&decisions[0]).summary.clone()
}

#[test]
fn a_job_that_would_add_little_gets_the_co_runner_and_the_gain_explained() {
    let summary = summary_of_pair(kernel_sharer(5, false, 950), kernel_sharer(5, false, 950));

    let (_, words) = summary.split_once("it doesn't join job 901: that would add ").unwrap();
    let (percent, rest) = words.split_once(" % of the throughput of a job alone").unwrap();
    assert!(percent.parse::<u32>().unwrap() < 30, "{summary}");
    assert!(!rest.contains("online job"), "{summary}");
}

#[test]
fn a_job_that_would_slow_a_service_gets_the_slow_down_and_the_remedy_explained() {
    let summary = summary_of_pair(kernel_sharer(5, true, 300), kernel_sharer(5, false, 900));
    let slowed = "it doesn't join job 901: job 901, an online job, would take ";
    let (_, words) = summary.split_once(slowed).unwrap_or_else(|| panic!("{summary}"));
    let (percent, rest) = words.split_once(" % longer; ").unwrap();
    assert!((5..100).contains(&percent.parse::<u32>().unwrap()), "{summary}");
    assert!(rest.starts_with("with a better priority its kernels would go first"), "{summary}");

    // The new job itself is an online job, of the same priority as a busy job.
    let summary = summary_of_pair(kernel_sharer(5, false, 900), kernel_sharer(5, true, 300));
    assert!(summary.contains("it doesn't join job 901: it, an online job"), "{summary}");
}

#[test]
fn a_job_whose_kernels_fit_into_no_gap_is_refused_the_slice_and_told_why() {
    let holder = KernelSharer {
        lengths: KernelLengths { half_us: 2_000, gap_us: 8_250, ..KernelLengths::UNKNOWN },
        ..kernel_sharer(0, true, 300)
    };
    let filler = KernelSharer {
        lengths: KernelLengths { half_us: 200_000, gap_us: 100, ..KernelLengths::UNKNOWN },
        ..kernel_sharer(5, false, 900)
    };

    let summary = summary_of_pair(holder, filler);

    let words = "it doesn't join job 901: no gap of job 901 is longer than 8.2 ms. Most of the kernel time of it is \
                 in kernels or graphs of 200.0 ms and more. These would only run by age, in 2 % of the time";
    assert!(summary.contains(words), "{summary}");
    // The other way round, the job that is there is the filler.
    let summary = summary_of_pair(filler, holder);
    let words = "no gap of it is longer than 8.2 ms. Most of the kernel time of job 901 is in kernels or graphs";
    assert!(summary.contains(words), "{summary}");
}

#[test]
fn a_job_in_exclusive_mode_joins_offline_jobs_as_requested_and_no_service() {
    let alone = KernelSharer { exclusive: true, ..kernel_sharer(5, false, 900) };

    let summary = summary_of_pair(kernel_sharer(5, false, 900), alone);
    let words = "as its user requested: with share = kernel:exclusive they run one after another";
    assert!(summary.contains(words), "{summary}");
    let summary = summary_of_pair(kernel_sharer(0, true, 100), alone);
    assert!(summary.contains("requested share = kernel:exclusive"), "{summary}");
}

#[test]
fn a_joining_job_gets_the_co_runners_and_its_gain_explained() {
    let summary = summary_of_pair(kernel_sharer(0, true, 300), kernel_sharer(5, false, 900));
    let joined = "; job 901 of ada has 1 GiB of it under kernel-level sharing, where it adds ";
    assert!(summary.contains(joined), "{summary}");

    let summary = summary_of_pair(kernel_sharer(0, true, None), kernel_sharer(5, false, 900));
    let expected =
        "under kernel-level sharing, as its user requested: how busy these jobs are is not known";
    assert!(summary.contains(expected), "{summary}");
}

#[test]
fn the_tightest_shared_slice_with_capacity_is_joined_before_anything_idle() {
    let cluster = cluster([
        a100(&[("1g.5gb", 0, IDLE), ("3g.20gb", 4, shared("ada", &[(901, 20, 4)]))]),
        a100(&[("2g.10gb", 0, shared("ada", &[(902, 20, 4)])), ("2g.10gb", 2, IDLE)]),
    ]);
    for policy in ["static", "scheme-b"] {
        let decisions = decide(policy, &cluster, &halves([gib(4)]));

        assert_eq!(short(&cluster, &decisions), ["1: 2g.10gb@0 on 1"], "{policy}");
        assert_eq!(
            why(&decisions[0]).summary,
            "4 GiB and 50 % of a slice requested: 2g.10gb at slices 0-1 of GPU 1 of node a (9.62 GiB) \
             is shared and has free capacity; 1 other place was considered; job 902 of ada has 20 % and 4 GiB \
             of it"
        );
    }
}

#[test]
fn a_waiting_sharer_gets_the_job_whose_end_would_let_it_in() {
    let full = shared("ada", &[(901, 60, 4), (902, 40, 4)]);
    let cluster = cluster([a30(&[("4g.24gb", 0, full)])]);
    for policy in ["static", "scheme-b"] {
        let decisions = decide(policy, &cluster, &halves([gib(4)]));

        assert_eq!(short(&cluster, &decisions), ["1: resources"], "{policy}");
        assert_eq!(why(&decisions[0]).would_start_if.as_deref(), Some("job 901 ends"), "{policy}");
    }
}

#[test]
fn a_whole_gpu_with_mig_off_is_shared_too() {
    let gpu = unpartitioned(24_576, shared("ada", &[(901, 50, 10)]));

    assert_eq!(decided("scheme-b", &cluster([gpu]), &halves([gib(10)])), ["1: whole on 0"]);
}

#[test]
fn exclusive_gives_each_sharer_its_own_gpu() {
    let two = cluster([a100(&[]), a100(&[])]);

    let places = decided("exclusive", &two, &halves([gib(4), gib(4), gib(4)]));

    assert_eq!(
        places,
        ["1: +7g.40gb@0 7g.40gb@0 on 0", "2: +7g.40gb@0 7g.40gb@0 on 1", "3: resources"]
    );
}

#[test]
fn a_sharing_job_is_never_placed_on_a_node_without_mps() {
    let without = || GpuView { mps: false, ..a100(&[("2g.10gb", 0, IDLE)]) };
    let none = cluster([without()]);
    for policy in NAMES {
        let decisions = decide(policy, &none, &halves([gib(4)]));

        assert_eq!(short(&none, &decisions), ["1: bad_constraints"], "{policy}");
        assert!(why(&decisions[0]).summary.contains("nvidia-cuda-mps-control"), "{policy}");
    }
    let share = SharingMode::parse(Some("mps"), None, &gib(4)).unwrap();
    assert_eq!(could_ever_fit(&none, &gib(4), share), Feasibility::NoSharing);
    let both = cluster([without(), a100(&[])]);
    assert_eq!(decided("scheme-b", &both, &halves([gib(4)])), ["1: +2g.10gb@4 2g.10gb@4 on 1"]);
}

#[test]
fn kernel_level_sharing_jobs_join_only_each_other() {
    let standing = cluster([a100(&[
        ("1g.5gb", 0, shared("ada", &[(901, 10, 1)])),
        ("2g.10gb", 2, shared("ada", &[(902, 0, 2)])),
        ("2g.10gb", 4, shared("bob", &[(903, 0, 2)])),
    ])]);
    let mut jobs = queue([gib(2), gib(2)]);
    sharing(&mut jobs, 1, "ada", 0);
    sharing(&mut jobs, 2, "ada", 0);

    assert_eq!(decided("scheme-b", &standing, &jobs), ["1: 2g.10gb@2 on 0", "2: 2g.10gb@2 on 0"]);
    let mut job = queue([gib(2)]);
    sharing(&mut job, 1, "ada", 20);
    assert_eq!(decided("scheme-b", &standing, &job).len(), 1);
    assert!(!decided("scheme-b", &standing, &job)[0].contains("2g.10gb@2 "));
}

#[test]
fn kernel_level_sharers_need_a_node_with_the_shim() {
    let none = cluster([GpuView { kernel: false, ..a100(&[("2g.10gb", 0, IDLE)]) }]);
    let mut jobs = queue([gib(4)]);
    sharing(&mut jobs, 1, "ada", 0);

    let decisions = decide("scheme-b", &none, &jobs);

    assert_eq!(short(&none, &decisions), ["1: bad_constraints"]);
    assert!(why(&decisions[0]).summary.contains("shim"), "{}", why(&decisions[0]).summary);
    let share = SharingMode::parse(Some("kernel"), None, &gib(4)).unwrap();
    assert_eq!(could_ever_fit(&none, &gib(4), share), Feasibility::NoSharing);
}

#[test]
fn if_no_slice_is_large_enough_the_largest_is_taken() {
    let mut jobs = queue([gib(10)]);
    sharing(&mut jobs, 1, "ada", 10);

    assert_eq!(decided("scheme-b", &cluster([a30(&[])]), &jobs), ["1: +4g.24gb@0 4g.24gb@0 on 0"]);
}

/// Jobs of three users, most of which may share.
fn mixed() -> impl Strategy<Value = Vec<QueuedJob>> {
    let job = (
        1_u64..25_000,
        prop::option::weighted(0.8, (0_u8..3, prop_oneof![Just(0_u8), 1_u8..=100])),
    );
    prop::collection::vec(job, 0..40).prop_map(|jobs| {
        let mut queue = queue(jobs.iter().map(|(memory, _)| mib(*memory)));
        for (number, (_, share)) in (1..).zip(&jobs) {
            if let Some((user, sm)) = share {
                sharing(&mut queue, number, ["ada", "bob", "eve"][usize::from(*user)], *sm);
            }
        }
        queue
    })
}

fn start_all(policy: &str, cluster: &ClusterView, queue: &[QueuedJob]) -> Hardware {
    let mut hardware = Hardware::new(cluster);
    for decision in decide(policy, cluster, queue) {
        let Decision::Start { job, place, .. } = &decision else { continue };
        let request = queue.iter().find(|queued| queued.id == *job).unwrap();
        match &request.share {
            Some(sharer) => hardware.start_sharer(*job, sharer, place),
            None => hardware.start(*job, place),
        }
    }
    hardware
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn sharers_are_of_one_user_and_fit_together(
        cluster in arbitrary::cluster(), queue in mixed(),
    ) {
        for policy in NAMES {
            // The hardware panics where two users meet or a slice is given away twice.
            let after = start_all(policy, &cluster, &queue).cluster;
            // A second round starts from the result of the first one.
            let rest: Vec<_> = queue
                .iter()
                .cloned()
                .map(|job| QueuedJob { id: JobId::from_number(job.id.number() + 500), ..job })
                .collect();
            start_all(policy, &after, &rest);
        }
    }

    #[test]
    fn no_job_starts_a_shared_slice_while_one_of_its_user_has_capacity(
        cluster in arbitrary::cluster(), queue in mixed(),
    ) {
        for policy in ["static", "scheme-b"] {
            let mut hardware = Hardware::new(&cluster);
            for decision in decide(policy, &cluster, &queue) {
                let Decision::Start { job, place, .. } = &decision else { continue };
                let request = queue.iter().find(|queued| queued.id == *job).unwrap();
                let Some(sharer) = &request.share else {
                    hardware.start(*job, place);
                    continue;
                };
                let before = tenancies(&hardware.cluster);
                let has_capacity = before.values().any(|(t, memory, open)| *open && t.has_capacity(sharer, *memory));
                let joined = before.contains_key(&(place.gpu.clone(), place.slot));
                prop_assert_eq!(has_capacity, joined, "{}: {}", policy, job);
                hardware.start_sharer(*job, sharer, place);
            }
        }
    }

    #[test]
    fn sharing_jobs_change_nothing_for_jobs_that_do_not_share(
        cluster in arbitrary::cluster(), queue in arbitrary::queue(),
    ) {
        let gpus = cluster.gpus.iter().cloned().map(|gpu| GpuView { mps: false, ..gpu });
        let blind = ClusterView::new(gpus.collect(), None);
        for policy in NAMES {
            prop_assert_eq!(decide(policy, &cluster, &queue), decide(policy, &blind, &queue));
        }
    }
}

type Slices =
    BTreeMap<(tessera_model::GpuId, Option<tessera_model::mig::Slot>), (Tenancy, Bytes, bool)>;

fn tenancies(cluster: &ClusterView) -> Slices {
    let mut all = Slices::new();
    for gpu in &cluster.gpus {
        for instance in &gpu.instances {
            if let InstanceState::Shared(tenancy) = &instance.state {
                let slice = (tenancy.clone(), instance.memory, gpu.available && gpu.mps);
                all.insert((gpu.id.clone(), instance.slot), slice);
            }
        }
    }
    all
}
