//! Gangs: all members or none, whatever the policy.

pub(crate) mod properties;
mod quota;

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::mig::Profile;
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{GangMember, GangShape, JobId, Millis};
use tessera_placement::gangs::PATIENCE;
use tessera_placement::policy::NAMES;
use tessera_placement::{
    Account, ClusterView, Decision, GangFeasibility, GpuView, InstanceState, InstanceView,
    JobFacts, JobPlacement, JobTable, Knowledge, Predictor, QueuedJob, RunTime, WaitReason,
    by_name, decide_round, gang_could_ever_fit,
};

use crate::build;

/// Every job takes its remaining time on any slice, or is stopped by its limit.
#[derive(Default)]
struct Left {
    times: BTreeMap<JobId, Millis>,
    limits: BTreeMap<JobId, Millis>,
    /// When all running jobs began.
    began: Option<Millis>,
}

impl Left {
    fn by_job<const N: usize>(secs: [(u64, u64); N]) -> BTreeMap<JobId, Millis> {
        secs.map(|(job, secs)| (JobId::from_number(job), Millis::from_secs(secs))).into()
    }
}

impl JobTable for Left {
    fn facts(&self, job: JobId) -> JobFacts {
        JobFacts {
            done: self.times.get(&job).map(|_| 0),
            since: self.began.filter(|_| job.number() >= 90),
            limit: self.limits.get(&job).copied(),
            ..JobFacts::default()
        }
    }

    fn account(&self, _: JobId) -> Option<Account> {
        None
    }
}

impl Predictor for Left {
    fn predict_run(&self, job: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
        self.times.get(&job).copied().map(RunTime::measured)
    }
}

/// Distributes the GPUs of a cluster over nodes with this many each.
fn dealt(cluster: ClusterView, each: u32) -> ClusterView {
    let gpus = cluster.gpus.into_iter().map(|gpu| GpuView {
        node: format!("n{}", gpu.index / each).parse().unwrap(),
        index: gpu.index % each,
        ..gpu
    });
    gpus.collect::<Vec<_>>().into()
}

/// The jobs of a gang, numbered from `first`.
fn gang(first: u64, (nodes, per_node): (u32, u32), gpu: &GpuRequest) -> Vec<QueuedJob> {
    let shape = GangShape::new(nodes, per_node).unwrap();
    let gang = JobId::from_number(first);
    (0..shape.members())
        .map(|rank| QueuedJob {
            id: JobId::from_number(first + u64::from(rank)),
            gpu: gpu.clone(),
            share: None,
            auto: None,
            online: false,
            user: "ada".into(),
            queue_rank: QueueRank::default(),
            submitted: Millis::new(first),
            gang: Some(GangMember { gang, shape, rank }),
            place: None,
        })
        .collect()
}

fn decided(policy: &str, cluster: &ClusterView, queue: &[QueuedJob], now: Millis) -> Vec<Decision> {
    let policy = by_name(policy).unwrap();
    let known = Left::default();
    decide_round(&*policy, cluster, Knowledge::of(&known), &mut queue.iter(), now, 256)
}

fn places(decisions: &[Decision]) -> BTreeMap<JobId, JobPlacement> {
    let start = |decision: &Decision| match decision {
        Decision::Start { job, place, .. } => Some((*job, place.clone())),
        _ => None,
    };
    decisions.iter().filter_map(start).collect()
}

fn started(decisions: &[Decision]) -> Vec<u64> {
    places(decisions).keys().map(|job| job.number()).collect()
}

fn waits(decisions: &[Decision], job: u64) -> (WaitReason, String, String) {
    let wait = |decision: &Decision| match decision {
        Decision::Wait { job: of, reason, why } if of.number() == job => {
            Some((*reason, why.summary.clone(), why.would_start_if.clone().unwrap_or_default()))
        }
        _ => None,
    };
    decisions.iter().find_map(wait).expect("its wait is explained")
}

fn empty(gpus: u32, each: u32) -> ClusterView {
    dealt(build::cluster((0..gpus).map(|_| build::gpu("a100-40gb", &[]))), each)
}

fn full(job: u64) -> GpuView {
    let mut gpu = build::gpu("a100-40gb", &[]);
    let mig = gpu.mig.clone().unwrap();
    let whole = mig.geometry.largest().unwrap();
    gpu.instances = vec![InstanceView {
        slot: Some(tessera_model::mig::Slot { start: whole.starts[0], profile: whole.id }),
        memory: whole.memory,
        state: InstanceState::Taken { job: JobId::from_number(job) },
    }];
    gpu
}

#[test]
fn a_gang_over_two_nodes_gets_its_groups_on_one_node_each() {
    let cluster = empty(6, 3);
    let queue = gang(1, (2, 2), &GpuRequest::Whole);

    let places = places(&decided("scheme-b", &cluster, &queue, Millis::ZERO));

    let node = |job: u64| {
        let place = &places[&JobId::from_number(job)];
        cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap().node.to_string()
    };
    assert_eq!([1, 2, 3, 4].map(node), ["n0", "n0", "n1", "n1"]);
    let gpus: BTreeSet<_> = places.values().map(|place| place.gpu.clone()).collect();
    assert_eq!(gpus.len(), 4, "each member has its own GPU");
}

#[test]
fn nodes_with_the_fewest_gpus_to_spare_are_taken() {
    let mut cluster = empty(6, 4);
    cluster.gpus.iter_mut().for_each(|gpu| gpu.model = "a".to_owned());

    let places =
        places(&decided("scheme-b", &cluster, &gang(1, (1, 2), &GpuRequest::Whole), Millis::ZERO));

    let on = |place: &JobPlacement| {
        cluster.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap().node.clone()
    };
    assert!(places.values().all(|place| on(place).as_str() == "n1"), "{places:?}");
}

#[test]
fn the_explanation_of_a_waiting_gang_has_the_free_gpus_and_the_jobs_in_the_way() {
    let cluster = dealt(
        build::cluster([
            full(90),
            build::gpu("a100-40gb", &[]),
            build::gpu("a100-40gb", &[]),
            full(91),
        ]),
        2,
    );

    let decided = decided("scheme-b", &cluster, &gang(1, (2, 2), &GpuRequest::Whole), Millis::ZERO);

    let (reason, summary, would) = waits(&decided, 4);
    assert_eq!(reason, WaitReason::Resources);
    assert!(
        summary.contains("2 of 4 places are free now (1 on node n0 and 1 on node n1)"),
        "{summary}"
    );
    assert!(would.contains("jobs 90 and 91 end"), "{would}");
}

#[test]
fn small_jobs_leave_alone_what_is_reserved_for_a_due_gang() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    queue.extend(
        build::queue([build::gib(4)])
            .into_iter()
            .map(|job| QueuedJob { id: JobId::from_number(10), ..job }),
    );

    for policy in NAMES {
        let decided = decided(policy, &cluster, &queue, Millis::ZERO);

        assert_eq!(places(&decided), BTreeMap::new(), "{policy}");
        let (reason, summary, _) = waits(&decided, 10);
        assert_eq!(reason, WaitReason::Resources, "{policy}: {summary}");
        // Under the other policies the layout of the taken GPU can change later.
        let is_reported = *policy == "static" || summary.contains("reserved for gang 1");
        assert!(is_reported, "{policy}: {summary}");
    }
}

#[test]
fn a_job_that_is_predicted_to_end_before_a_gang_could_start_may_use_reserved_gpus() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    let small = build::queue([build::gib(4), build::gib(4)]);
    queue.extend(
        small
            .into_iter()
            .zip([10, 11])
            .map(|(job, number)| QueuedJob { id: JobId::from_number(number), ..job }),
    );
    let known = Left { times: Left::by_job([(90, 600), (10, 500), (11, 700)]), ..Left::default() };
    let policy = by_name("scheme-b").unwrap();

    let decided = decide_round(
        &*policy,
        &cluster,
        Knowledge::of(&known),
        &mut queue.iter(),
        Millis::ZERO,
        256,
    );

    assert_eq!(started(&decided), [10]);
}

#[test]
fn time_limits_name_the_jobs_that_must_end_before_a_gang_could_start() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    let small = build::queue([build::gib(4), build::gib(4), build::gib(4), build::gib(4)]);
    queue.extend(
        small
            .into_iter()
            .zip(10..)
            .map(|(job, number)| QueuedJob { id: JobId::from_number(number), ..job }),
    );
    // Job 90 has 600 s left. Nothing is known about job 12, and job 13 is stopped before it would
    // end.
    let known = Left {
        times: Left::by_job([(13, 5_000)]),
        limits: Left::by_job([(90, 1_000), (10, 600), (11, 601), (13, 500)]),
        began: Some(Millis::from_secs(100)),
    };
    let policy = by_name("scheme-b").unwrap();

    let now = Millis::from_secs(500);
    let decided =
        decide_round(&*policy, &cluster, Knowledge::of(&known), &mut queue.iter(), now, 256);

    assert_eq!(started(&decided), [10, 13]);
    let (_, _, would) = waits(&decided, 1);
    assert_eq!(would, "job 90 ends (in 600 s at the latest, by time limits)");
    let (_, _, would) = waits(&decided, 12);
    assert_eq!(would, "gang 1 starts, or the job has a time limit (--time) that ends before that");
}

#[test]
fn a_prediction_that_is_sooner_than_the_limit_gives_the_expected_start_of_a_gang() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    let queue = gang(1, (1, 2), &GpuRequest::Whole);
    let known = Left {
        times: Left::by_job([(90, 300)]),
        limits: Left::by_job([(90, 900)]),
        began: Some(Millis::ZERO),
    };
    let policy = by_name("scheme-b").unwrap();

    let decided = decide_round(
        &*policy,
        &cluster,
        Knowledge::of(&known),
        &mut queue.iter(),
        Millis::ZERO,
        256,
    );

    assert_eq!(waits(&decided, 1).2, "job 90 ends (expected in 300 s)");
}

#[test]
fn a_gang_overtakes_no_job_until_it_has_waited_long_enough() {
    let mut cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90), full(91)]), 3);
    cluster.gpus.push(GpuView {
        id: "GPU-9".parse().unwrap(),
        node: "n9".parse().unwrap(),
        ..build::gpu("a100-40gb", &[])
    });
    let mut queue = build::queue([GpuRequest::Whole, GpuRequest::Whole, GpuRequest::Whole]);
    queue.extend(gang(4, (2, 1), &GpuRequest::Whole));

    let before = decided("scheme-b", &cluster, &queue, Millis::ZERO);
    let after = decided("scheme-b", &cluster, &queue, PATIENCE.plus(Millis::new(10)));

    assert_eq!(waits(&before, 4).0, WaitReason::Priority);
    let started: Vec<u64> = places(&after).keys().map(|job| job.number()).collect();
    assert_eq!(started, [4, 5]);
}

#[test]
fn a_gang_waits_behind_a_job_that_has_waited_much_longer() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    let mut queue = build::queue([GpuRequest::Whole, GpuRequest::Whole]);
    queue.extend(gang(4, (1, 2), &GpuRequest::Unknown));
    let late = PATIENCE.plus(Millis::from_secs(60));
    queue.iter_mut().filter(|job| job.gang.is_some()).for_each(|job| job.submitted = late);

    let decided = decided("scheme-b", &cluster, &queue, late.plus(PATIENCE).plus(PATIENCE));

    assert_eq!(waits(&decided, 4).0, WaitReason::Priority);
}

#[test]
fn a_gang_behind_a_job_gets_the_job_and_the_time_of_its_wait_explained() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    let mut queue = build::queue([GpuRequest::Whole, GpuRequest::Whole]);
    queue.extend(gang(3, (1, 2), &GpuRequest::Whole));

    let decided = decided("scheme-b", &cluster, &queue, Millis::ZERO);

    // Job 1 starts; job 2 waits for a GPU.
    let (reason, summary, would) = waits(&decided, 3);
    assert_eq!(reason, WaitReason::Priority);
    assert!(
        summary.ends_with("requested, and job 2, which is ahead in the queue, still waits"),
        "{summary}"
    );
    assert_eq!(
        would,
        "job 2 starts, or the gang has waited 300 s and no job ahead of it is older by more than that"
    );
}

#[test]
fn a_gang_behind_a_gang_gets_the_reservation_and_its_own_need_explained() {
    let cluster = dealt(
        build::cluster([
            build::gpu("a100-40gb", &[]),
            full(90),
            build::gpu("a100-40gb", &[]),
            full(91),
        ]),
        2,
    );
    for (shape, needs) in [
        ((1, 2), "gang 1 starts, and 2 GPUs of one node have capacity at the same time"),
        ((2, 1), "gang 1 starts, and 2 nodes have capacity on one GPU each at the same time"),
        ((2, 2), "gang 1 starts, and 2 nodes have capacity on 2 GPUs each at the same time"),
    ] {
        let mut queue = gang(1, (2, 2), &GpuRequest::Whole);
        queue.extend(gang(5, shape, &build::gib(30)));

        let decided = decided("scheme-b", &cluster, &queue, Millis::ZERO);

        let (_, first, _) = waits(&decided, 1);
        assert!(first.contains("reserved for it: GPU 0 of node n0"), "{first}");
        let (_, summary, would) = waits(&decided, 5);
        let kept = "; GPUs are reserved for gang 1, which is ahead in the queue";
        assert!(summary.ends_with(kept), "{shape:?}: {summary}");
        assert_eq!(would, needs);
    }
}

#[test]
fn each_of_several_equal_gangs_gets_the_remaining_places_explained() {
    let gpus = || [build::gpu("a100-40gb", &[]), full(90), build::gpu("a100-40gb", &[]), full(91)];
    let cluster = dealt(build::cluster(gpus()), 2);
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    queue.extend(gang(3, (1, 2), &GpuRequest::Whole));
    queue.extend(gang(5, (1, 2), &GpuRequest::Whole));

    // `static` has no slices here.
    for policy in NAMES.iter().filter(|policy| **policy != "static") {
        let decided = decided(policy, &cluster, &queue, Millis::ZERO);

        let (_, first, _) = waits(&decided, 1);
        assert!(first.contains("1 of 2 places are free now"), "{policy}: {first}");
        for job in [3, 4, 5, 6] {
            let (reason, summary, would) = waits(&decided, job);
            assert_eq!(reason, WaitReason::Resources, "{policy}");
            assert!(summary.contains("1 of 2 places are free now (1 on node n1)"), "{summary}");
            assert!(
                summary.ends_with("reserved for gang 1, which is ahead in the queue"),
                "{summary}"
            );
            assert_eq!(
                would,
                "gang 1 starts, and 2 GPUs of one node have capacity at the same time"
            );
        }
    }
}

#[test]
fn equal_gangs_that_are_not_due_name_the_one_ahead_of_them() {
    let cluster = dealt(build::cluster([build::gpu("a100-40gb", &[]), full(90)]), 2);
    // It starts, so it holds up no job; the gangs behind it are not first in the queue.
    let mut queue = build::queue([build::gib(4)]);
    queue.extend(gang(2, (1, 2), &GpuRequest::Whole));
    queue.extend(gang(4, (1, 2), &GpuRequest::Whole));

    let decided = decided("scheme-b", &cluster, &queue, Millis::ZERO);

    let (reason, summary, would) = waits(&decided, 5);
    assert_eq!(reason, WaitReason::Resources);
    assert!(
        summary.ends_with("gang 2, which is ahead in the queue, requests the same"),
        "{summary}"
    );
    assert_eq!(would, "gang 2 starts, and 2 GPUs of one node have capacity at the same time");
}

#[test]
fn a_gang_that_the_nodes_can_never_place_needs_more_nodes() {
    let cluster = empty(2, 2);
    let mut queue = gang(1, (2, 2), &GpuRequest::Whole);
    queue.extend(gang(5, (2, 2), &GpuRequest::Whole));

    let decided = decided("scheme-b", &cluster, &queue, Millis::ZERO);

    for job in [1, 5] {
        let (reason, summary, would) = waits(&decided, job);
        assert_eq!(reason, WaitReason::BadConstraints);
        assert!(summary.ends_with("too few suitable GPUs"), "{summary}");
        assert_eq!(would, "nodes with more suitable GPUs join");
    }
}

#[test]
fn an_incomplete_gang_is_not_considered() {
    let mut queue = gang(1, (1, 2), &GpuRequest::Whole);
    queue.pop();

    assert_eq!(decided("scheme-b", &empty(4, 4), &queue, Millis::ZERO), []);
}

#[test]
fn an_impossible_gang_is_refused_with_a_shape_that_fits() {
    let cluster = empty(8, 4);
    let fits = |nodes, per_node| {
        gang_could_ever_fit(&cluster, &GpuRequest::Whole, GangShape::new(nodes, per_node).unwrap())
    };

    assert_eq!(fits(2, 4), GangFeasibility::Yes);
    assert_eq!(
        fits(1, 8),
        GangFeasibility::Never { on_one_node: 4, nodes: 0, instead: GangShape::new(2, 4).ok() }
    );
    assert_eq!(fits(3, 4), GangFeasibility::Never { on_one_node: 4, nodes: 2, instead: None });
}
