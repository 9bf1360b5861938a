//! Jobs whose users restrict them to nodes or models of GPUs, next to jobs that may run everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::place::PlaceFilter;
use tessera_model::spec::{GpuRequest, Priority, QueueRank};
use tessera_model::{GangMember, GangShape, JobId, Millis};
use tessera_placement::{
    Account, ClusterView, Decision, GpuView, InstanceState, JobFacts, JobTable, Knowledge,
    Predictor, QueuedJob, RunTime, WaitReason, by_name, decide_round,
};

use crate::arbitrary;
use crate::build::{a30, a100, cluster, gib, queue, short, taken, why};

const NOW: Millis = Millis::from_secs(1_000);

/// Seconds on one compute slice, which jobs may be moved, and where running jobs may run.
#[derive(Clone, Debug, Default)]
struct Known {
    times: BTreeMap<JobId, u64>,
    movable: BTreeSet<JobId>,
    running: BTreeSet<JobId>,
    places: BTreeMap<JobId, Arc<PlaceFilter>>,
    quota: Option<u32>,
    /// Jobs that need a whole A100.
    whole: BTreeSet<JobId>,
}

impl Known {
    fn movable(jobs: &[(u64, u64)], running: &[u64]) -> Self {
        let id = |number: &u64| JobId::from_number(*number);
        Self {
            times: jobs.iter().map(|(job, secs)| (id(job), *secs)).collect(),
            movable: jobs.iter().map(|(job, _)| id(job)).collect(),
            running: running.iter().map(id).collect(),
            ..Self::default()
        }
    }
}

impl JobTable for Known {
    fn facts(&self, job: JobId) -> JobFacts {
        JobFacts {
            done: self.times.get(&job).map(|_| u32::from(self.running.contains(&job))),
            since: self.running.contains(&job).then_some(Millis::from_secs(1)),
            migration_price: self.movable.contains(&job).then_some(Millis::from_secs(3)),
            ..JobFacts::default()
        }
    }

    fn place(&self, job: JobId) -> Option<Arc<PlaceFilter>> {
        self.places.get(&job).cloned()
    }

    fn restricted(&self) -> Vec<JobId> {
        self.places.keys().copied().collect()
    }

    fn account(&self, _: JobId) -> Option<Account> {
        let quota = Some(self.quota?);
        Some(Account { name: "ada".into(), shares: 1, used: Millis::ZERO, quota, member: None })
    }
}

impl Predictor for Known {
    fn predict_run(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<RunTime> {
        let secs = self.times.get(&job)?;
        if self.whole.contains(&job) && profile.compute_slices < 7 {
            return None;
        }
        Some(RunTime::measured(Millis::from_secs(secs / u64::from(profile.compute_slices).max(1))))
    }
}

fn decide(view: &ClusterView, known: &Known, jobs: &[QueuedJob]) -> Vec<Decision> {
    let policy = by_name("tessera").unwrap();
    decide_round(&*policy, view, Knowledge::of(known), &mut jobs.iter(), NOW, 256)
}

fn on_nodes(names: &[&str]) -> Arc<PlaceFilter> {
    let nodes = names.iter().map(|name| name.parse().unwrap()).collect();
    Arc::new(PlaceFilter { nodes, ..PlaceFilter::default() })
}

fn of_model(model: &str) -> Arc<PlaceFilter> {
    Arc::new(PlaceFilter { model: Some(model.to_owned()), ..PlaceFilter::default() })
}

/// GPUs with one on each of the nodes `n0`, `n1`, and so on.
fn one_on_each(gpus: impl IntoIterator<Item = GpuView>) -> ClusterView {
    let deal = |gpu: GpuView| GpuView { node: format!("n{}", gpu.index).parse().unwrap(), ..gpu };
    cluster(gpus).gpus.into_iter().map(deal).collect::<Vec<_>>().into()
}

/// A GPU with a job on its first slice, and six free ones.
fn nearly_free(job: u64) -> GpuView {
    a100(&[("1g.5gb", 0, taken(job))])
}

fn full(job: u64) -> GpuView {
    a100(&[("7g.40gb", 0, taken(job))])
}

fn rank(priority: u8) -> QueueRank {
    let priority = Priority::try_from(priority).unwrap();
    QueueRank { priority, ..QueueRank::default() }
}

fn jobs_of(requests: impl IntoIterator<Item = GpuRequest>) -> Vec<QueuedJob> {
    let mut jobs = queue(requests);
    jobs.iter_mut().for_each(|job| job.submitted = NOW);
    jobs
}

fn starts(decided: &[Decision]) -> BTreeMap<u64, String> {
    let start = |decision: &Decision| match decision {
        Decision::Start { job, place, .. } => Some((job.number(), place.gpu.to_string())),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    };
    decided.iter().filter_map(start).collect()
}

/// Returns where each job goes that a round starts, moves or keeps on a GPU that it reshapes.
fn goes_to(view: &ClusterView, decided: &[Decision]) -> BTreeMap<u64, String> {
    let node = |gpu: &tessera_model::GpuId| {
        view.gpus.iter().find(|view| view.id == *gpu).unwrap().node.to_string()
    };
    let places = decided.iter().flat_map(|decision| match decision {
        Decision::Start { job, place, .. } => vec![(job.number(), node(&place.gpu))],
        Decision::Reshape { reshape, .. } => {
            let to = node(&reshape.gpu);
            reshape.placements.iter().map(|on| (on.job.number(), to.clone())).collect()
        }
        Decision::Wait { .. } | Decision::Preempt { .. } => Vec::new(),
    });
    places.collect()
}

#[test]
fn a_job_that_may_run_everywhere_takes_no_slice_that_is_reserved_for_a_restricted_one() {
    let view = one_on_each([nearly_free(100), full(101)]);
    let mut jobs = jobs_of([gib(30), gib(4)]);
    jobs[0].place = Some(on_nodes(&["n0"]));
    jobs[0].queue_rank = rank(0);

    let decided = decide(&view, &Known::default(), &jobs);

    assert_eq!(short(&view, &decided), ["1: resources", "2: priority"]);
    assert!(why(&decided[1]).summary.contains("is reserved for job 1"), "{decided:?}");
}

#[test]
fn jobs_of_better_priority_come_first_whatever_their_restrictions_are() {
    let three_left = a100(&[("4g.20gb", 0, taken(100)), ("1g.5gb", 4, taken(101))]);
    let view = one_on_each([three_left]);
    let mut jobs = jobs_of([gib(4), gib(4), gib(4), gib(4)]);
    for (job, priority) in jobs.iter_mut().zip([1, 2, 2, 3]) {
        job.queue_rank = rank(priority);
    }
    // The last job has the same restriction as the first one.
    jobs[0].place = Some(on_nodes(&["n0"]));
    jobs[3].place = Some(on_nodes(&["n0"]));

    let decided = decide(&view, &Known::default(), &jobs);

    let started: Vec<u64> = starts(&decided).into_keys().collect();
    assert_eq!(started.len(), 2, "{:?}", short(&view, &decided));
    assert!(!started.contains(&4), "{:?}", short(&view, &decided));
    assert!(started.contains(&1), "{:?}", short(&view, &decided));
}

#[test]
fn a_running_job_is_moved_only_where_its_user_lets_it_run() {
    // The small job leaves its GPU to the large one, if it may.
    let view = one_on_each([nearly_free(90), a100(&[])]);
    let mut jobs = jobs_of([GpuRequest::Whole]);
    jobs[0].place = Some(on_nodes(&["n0"]));
    let free = Known {
        whole: [JobId::from_number(1)].into(),
        ..Known::movable(&[(1, 7_000), (90, 70_000)], &[90])
    };
    let bound =
        Known { places: [(JobId::from_number(90), on_nodes(&["n0"]))].into(), ..free.clone() };

    let moved = decide(&view, &free, &jobs);
    let kept = decide(&view, &bound, &jobs);

    assert_eq!(goes_to(&view, &moved).get(&90).map(String::as_str), Some("n1"), "{moved:?}");
    assert_ne!(goes_to(&view, &kept).get(&90).map(String::as_str), Some("n1"), "{kept:?}");
}

#[test]
fn a_restricted_job_that_runs_still_grows_on_the_gpus_that_it_may_use() {
    let view = one_on_each([nearly_free(90), full(91)]);
    let known = Known {
        places: [(JobId::from_number(90), on_nodes(&["n0"]))].into(),
        ..Known::movable(&[(90, 70_000)], &[90])
    };

    let decided = decide(&view, &known, &[]);

    assert_eq!(goes_to(&view, &decided).get(&90).map(String::as_str), Some("n0"), "{decided:?}");
}

#[test]
fn a_job_that_runs_elsewhere_than_its_user_lets_it_stays_there() {
    let view = one_on_each([nearly_free(90), a100(&[])]);
    let known = Known {
        places: [(JobId::from_number(90), on_nodes(&["n7"]))].into(),
        ..Known::movable(&[(90, 70_000)], &[90])
    };

    let decided = decide(&view, &known, &[]);

    for reshape in decided.iter().filter(|one| matches!(one, Decision::Reshape { .. })) {
        assert!(goes_to(&view, std::slice::from_ref(reshape)).contains_key(&90), "{decided:?}");
    }
}

#[test]
fn a_job_that_names_a_model_takes_no_gpu_of_another_one() {
    let view = one_on_each([a30(&[]), a100(&[])]);
    let mut jobs = jobs_of([gib(4), gib(4)]);
    jobs[0].place = Some(of_model("a100"));
    jobs[1].place = Some(of_model("a30"));

    for known in [Known::default(), Known::movable(&[(1, 700), (2, 700)], &[])] {
        let decided = decide(&view, &known, &jobs);

        let expected = [(1, "n1".to_owned()), (2, "n0".to_owned())].into();
        assert_eq!(goes_to(&view, &decided), expected, "{decided:?}");
    }
}

#[test]
fn a_quota_counts_what_its_jobs_hold_outside_of_a_jobs_restriction() {
    let view = one_on_each([full(90), a100(&[])]);
    let mut jobs = jobs_of([gib(4)]);
    jobs[0].place = Some(on_nodes(&["n1"]));
    let known = |slices| Known { quota: Some(slices), ..Known::default() };

    assert_eq!(starts(&decide(&view, &known(8), &jobs)).len(), 1);
    let decided = decide(&view, &known(7), &jobs);

    assert!(starts(&decided).is_empty(), "{decided:?}");
    assert!(why(&decided[0]).summary.contains("limit"), "{decided:?}");
}

#[test]
fn a_gang_takes_only_gpus_that_it_may_use_and_others_keep_theirs() {
    let view = one_on_each([a100(&[]), a100(&[]), a100(&[])]);
    let shape = GangShape::new(2, 1).unwrap();
    let mut jobs = jobs_of([GpuRequest::Whole, GpuRequest::Whole, gib(30)]);
    for (rank, job) in (0..).zip(&mut jobs[..2]) {
        job.gang = Some(GangMember { gang: JobId::from_number(1), shape, rank });
        job.place = Some(on_nodes(&["n0", "n2"]));
    }

    let decided = decide(&view, &Known::default(), &jobs);

    let expected = [(1, "n0"), (2, "n2"), (3, "n1")].map(|(job, node)| (job, node.to_owned()));
    assert_eq!(goes_to(&view, &decided), expected.into(), "{decided:?}");
}

#[test]
fn a_job_that_excludes_every_gpu_waits_and_its_explanation_names_the_restriction() {
    let view = one_on_each([a100(&[])]);
    let mut jobs = jobs_of([gib(4), gib(4)]);
    jobs[0].place = Some(on_nodes(&["n9"]));

    let decided = decide(&view, &Known::default(), &jobs);

    assert_eq!(starts(&decided).into_keys().collect::<Vec<_>>(), [2]);
    let wait = decided.iter().find(|one| matches!(one, Decision::Wait { .. })).unwrap();
    assert!(matches!(wait, Decision::Wait { reason: WaitReason::BadConstraints, .. }), "{wait:?}");
    assert!(why(wait).summary.contains("nodes n9"), "{wait:?}");
}

#[test]
fn with_a_restriction_for_each_of_many_nodes_every_job_gets_its_node_and_nobody_is_moved_off_it() {
    const NODES: u64 = 40;
    let view = one_on_each((0..NODES).map(|node| nearly_free(1_000 + node)));
    let mut jobs = jobs_of((0..NODES).map(|_| gib(4)));
    for (node, job) in jobs.iter_mut().enumerate() {
        job.place = Some(on_nodes(&[&format!("n{node}")]));
    }
    let running: Vec<u64> = (1_000..1_000 + NODES).collect();
    let times: Vec<(u64, u64)> = running.iter().map(|job| (*job, 70_000)).collect();
    let places = running
        .iter()
        .map(|job| (JobId::from_number(*job), on_nodes(&[&format!("n{}", job - 1_000)])));
    let known = Known { places: places.collect(), ..Known::movable(&times, &running) };

    let decided = decide(&view, &known, &jobs);

    for (job, node) in goes_to(&view, &decided) {
        let own = if job < 1_000 { job - 1 } else { job - 1_000 };
        assert_eq!(node, format!("n{own}"), "job {job}");
    }
    assert_eq!(starts(&decided).len(), 40);
}

fn filter() -> impl Strategy<Value = Option<Arc<PlaceFilter>>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(of_model("a100"))),
        1 => prop::sample::subsequence(vec!["n0", "n1", "n2", "n3"], 1..4)
            .prop_map(|nodes| Some(on_nodes(&nodes))),
        1 => Just(Some(Arc::new(PlaceFilter {
            exclude: ["n0".parse().unwrap()].into(),
            ..PlaceFilter::default()
        }))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever is known of the jobs, and whichever can be moved.
    #[test]
    fn no_decision_places_a_job_where_its_user_does_not_let_it_run(
        (gpus, requests) in (arbitrary::cluster(), arbitrary::queue()),
        filters in prop::collection::vec(filter(), 40),
        others in prop::collection::vec(filter(), 64),
        (knows, moves) in (any::<u64>(), any::<u64>()),
    ) {
        let view = one_on_each(gpus.gpus);
        let mut jobs = requests;
        for (job, place) in jobs.iter_mut().zip(&filters) {
            job.place.clone_from(place);
        }
        let alone = view.gpus.iter().flat_map(|gpu| gpu.instances.iter().map(move |on| (gpu, on)));
        let running: Vec<(&GpuView, JobId)> = alone
            .filter_map(|(gpu, on)| match on.state {
                InstanceState::Taken { job } => Some((gpu, job)),
                _ => None,
            })
            .collect();
        let bit = |set: u64, job: JobId| set >> (job.number() % 64) & 1 == 1;
        let all = jobs.iter().map(|job| job.id).chain(running.iter().map(|(_, job)| *job));
        let all: BTreeSet<JobId> = all.collect();
        let mut known = Known {
            times: all.iter().filter(|job| bit(knows, **job)).map(|job| (*job, 700)).collect(),
            movable: all.iter().copied().filter(|job| bit(moves, *job)).collect(),
            running: running.iter().map(|(_, job)| *job).collect(),
            ..Known::default()
        };
        for ((_, job), place) in running.iter().zip(&others) {
            known.places.extend(place.clone().map(|place| (*job, place)));
        }

        let decided = decide(&view, &known, &jobs);

        let model = |node: &str| {
            view.gpus.iter().find(|gpu| gpu.node.to_string() == node).unwrap().model.clone()
        };
        let home = |job: u64| running.iter().find(|(_, on)| on.number() == job).map(|(gpu, _)| *gpu);
        for (job, node) in goes_to(&view, &decided) {
            let waiting = jobs.iter().find(|queued| queued.id.number() == job);
            let place = match waiting {
                Some(queued) => queued.place.clone(),
                None => known.places.get(&JobId::from_number(job)).cloned(),
            };
            let allows = |place: &PlaceFilter, node: &str| {
                place.allows(&node.parse().unwrap(), &model(node))
            };
            let Some(place) = place else { continue };
            // One that runs elsewhere already may stay, and be moved.
            let is_astray = waiting.is_none()
                && home(job).is_some_and(|gpu| !allows(&place, &gpu.node.to_string()));
            prop_assert!(is_astray || allows(&place, &node), "job {} goes to {}", job, node);
        }
    }

    #[test]
    fn a_restriction_that_excludes_nothing_changes_nothing(
        (gpus, jobs) in (arbitrary::cluster(), arbitrary::queue()), which in any::<u64>(),
    ) {
        let view = one_on_each(gpus.gpus);
        let mut restricted = jobs.clone();
        let every = Arc::new(PlaceFilter {
            exclude: ["elsewhere".parse().unwrap()].into(),
            ..PlaceFilter::default()
        });
        for job in restricted.iter_mut().filter(|job| which >> (job.id.number() % 64) & 1 == 1) {
            job.place = Some(Arc::clone(&every));
        }

        let plain = decide(&view, &Known::default(), &jobs);
        let same = decide(&view, &Known::default(), &restricted);

        prop_assert_eq!(goes_to(&view, &plain), goes_to(&view, &same));
    }
}
