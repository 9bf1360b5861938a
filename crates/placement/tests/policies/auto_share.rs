//! Jobs whose sharing the controller decides (`--share auto`).

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::share::{SliceShare, SmPercent};
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::record::{RoundInput, RoundRecorder, RoundReplay};
use tessera_placement::{
    Account, ClusterView, Decision, GpuView, InstanceState, JobFacts, JobPlacement, JobTable,
    KernelLengths, KernelSharer, Knowledge, MpsClient, Predictor, QueuedJob, RunTime,
    SharingRequest, SpeedBasis, SpeedRange, Tenancy, by_name, decide_round,
};

use crate::build::{cluster, gib, queue, short, taken, unpartitioned, why};

/// The knowledge in a test: facts, run times, and the speed of every job under MPS.
#[derive(Clone, Debug, Default)]
struct Known {
    facts: BTreeMap<JobId, JobFacts>,
    times: BTreeMap<JobId, Millis>,
    together: Option<SpeedRange>,
    /// A job without co-runners, with its percentage.
    capped: u32,
}

impl JobTable for Known {
    fn facts(&self, job: JobId) -> JobFacts {
        self.facts.get(&job).cloned().unwrap_or_default()
    }

    fn account(&self, _: JobId) -> Option<Account> {
        None
    }
}

impl Predictor for Known {
    fn predict_run(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
        None
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        _: &GpuView,
        _: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        assert_eq!(basis, SpeedBasis::WholeInstance, "a pair is compared with all of the slice");
        let alone = SpeedRange::without_interval(self.capped);
        let range = if clients.len() > 1 { self.together? } else { alone };
        Some(vec![range; clients.len()])
    }

    fn predict_rest_alone(&self, job: JobId, _: &GpuView, _: Option<&Profile>) -> Option<Millis> {
        self.times.get(&job).copied()
    }
}

/// Speeds with a certain benefit, for jobs that take equally long.
fn sure(jobs: u64) -> Known {
    let times = (1..=jobs).map(|job| (JobId::from_number(job), Millis::from_secs(100)));
    let together = Some(SpeedRange { low: 700, expected: 800, high: 900 });
    Known { times: times.collect(), together, capped: 900, ..Known::default() }
}

fn auto(job: QueuedJob, priority: u8, busy: impl Into<Option<u16>>) -> QueuedJob {
    let priority = Priority::try_from(priority).unwrap();
    // Its gaps are long enough to be filled for the most part.
    let lengths = KernelLengths { typical_gap_us: 12_000, ..KernelLengths::UNKNOWN };
    let known = KernelSharer { lengths, ..KernelSharer::new(priority, false, busy.into()) };
    QueuedJob { auto: Some(known), queue_rank: priority.into(), ..job }
}

/// Two jobs of 4 GiB each, with kernels on the device for these thousandths of their time.
fn two(first: impl Into<Option<u16>>, second: impl Into<Option<u16>>) -> Vec<QueuedJob> {
    let [one, other] = <[QueuedJob; 2]>::try_from(queue([gib(4), gib(4)])).unwrap();
    vec![auto(one, 5, first), auto(other, 5, second)]
}

/// One GPU with MIG off, whose node shares only under MPS.
fn one_gpu() -> ClusterView {
    cluster([GpuView { kernel: false, ..unpartitioned(24_000, InstanceState::Idle) }])
}

/// One GPU with MIG off, whose node shares only kernel by kernel.
fn kernel_gpu() -> ClusterView {
    cluster([GpuView { mps: false, ..unpartitioned(24_000, InstanceState::Idle) }])
}

fn decide(cluster: &ClusterView, known: &Known, queue: &[QueuedJob]) -> Vec<Decision> {
    let policy = by_name("tessera").unwrap();
    let knowledge = Knowledge::of(known);
    decide_round(policy.as_ref(), cluster, knowledge, &mut queue.iter(), Millis::ZERO, 64)
}

fn place_of(decisions: &[Decision], number: u64) -> Option<&JobPlacement> {
    decisions.iter().find_map(|decision| match decision {
        Decision::Start { job, place, .. } => (job.number() == number).then_some(place),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    })
}

fn reason(decisions: &[Decision], number: u64) -> String {
    let of = |decision: &&Decision| match decision {
        Decision::Start { job, .. } | Decision::Wait { job, .. } => job.number() == number,
        Decision::Reshape { .. } | Decision::Preempt { .. } => false,
    };
    decisions.iter().find(of).map(|found| why(found).summary.clone()).unwrap_or_default()
}

#[test]
fn a_job_without_a_slice_joins_a_starting_one_if_the_benefit_is_certain() {
    let (cluster, queue) = (one_gpu(), two(400, 400));

    let decided = decide(&cluster, &sure(2), &queue);

    assert_eq!(short(&cluster, &decided), ["1: whole on 0", "2: whole on 0"]);
    let shares: Vec<SliceShare> =
        (1..=2).map(|job| place_of(&decided, job).unwrap().share.unwrap()).collect();
    assert_eq!(shares.iter().map(|share| share.sm_percent()).sum::<u32>(), 100);
    assert_eq!(shares[1].memory(), Bytes::from_mib(4 * 1024));
    let words = "it gets no slice for itself now; by share = auto it shares the slice with job 1 under MPS \
                 with 50 % of the multiprocessors: it runs at 80 % of its speed alone (70 to 90 %), job 1 \
                 at 80 % of its speed alone (70 to 90 %), so that both do at least 140 % of one job alone";
    assert_eq!(reason(&decided, 2), words);
    assert!(reason(&decided, 1).contains("it shares the slice with job 2 under MPS"));
}

#[test]
fn no_job_shares_while_a_slice_is_free_for_each() {
    let two_gpus = ClusterView::from([one_gpu().gpus, one_gpu().gpus].concat());
    let cluster = cluster(two_gpus.gpus);

    let decided = decide(&cluster, &sure(2), &two(400, 400));

    assert_eq!(short(&cluster, &decided), ["1: whole on 0", "2: whole on 1"]);
    assert!((1..=2).all(|job| place_of(&decided, job).unwrap().share.is_none()));
    assert!(reason(&decided, 1).ends_with("since no job that waits may join it"));
}

#[test]
fn each_rule_that_refuses_a_pair_is_named_with_its_figures() {
    let limit = |known: Known, seconds| {
        let limited = JobFacts { limit: Some(Millis::from_secs(seconds)), ..JobFacts::default() };
        Known { facts: [(JobId::from_number(1), limited)].into(), ..known }
    };
    let speeds = |low, expected| Known {
        together: Some(SpeedRange { low, expected, high: 1_000 }),
        ..sure(2)
    };
    let due = JobFacts { deadline: Some(Millis::from_secs(9)), ..JobFacts::default() };
    let due = Known { facts: [(JobId::from_number(2), due)].into(), ..sure(2) };
    let long = Millis::from_secs(100_000);
    let lasts = Known {
        times: [(JobId::from_number(1), long), (JobId::from_number(2), Millis::from_secs(10))]
            .into(),
        capped: 700,
        ..sure(2)
    };
    for (known, queue, words) in [
        (
            sure(2),
            two(None, 400),
            "how busy the task of job 1 is was never measured; one run of it with --share kernel",
        ),
        (
            sure(2),
            two(400, None),
            "the task of this job is was never measured; one run of it with --share kernel",
        ),
        (sure(2), two(500, 900), "both may be bound by memory bandwidth (rule 1)"),
        (Known::default(), two(400, 400), "no trusted model predicts their speeds"),
        (
            Known { times: BTreeMap::new(), ..sure(2) },
            two(400, 400),
            "the run time of job 1 is not known",
        ),
        (limit(sure(2), 120), two(400, 400), "job 1 might not end within its time limit"),
        (due, two(400, 400), "this job has a deadline"),
        (
            speeds(400, 900),
            two(400, 400),
            "job 1 might run at 40 % of its speed, and at least 50 % are required",
        ),
        (speeds(520, 900), two(400, 400), "both together might do only 104 % of one job alone"),
        (speeds(600, 640), two(400, 400), "both together might do only 120 % of one job alone"),
        (lasts, two(400, 400), "both might end later than one after the other"),
    ] {
        let cluster = one_gpu();
        let decided = decide(&cluster, &known, &queue);

        assert_eq!(short(&cluster, &decided), ["1: whole on 0", "2: resources"], "{words}");
        assert!(reason(&decided, 2).contains(words), "{}", reason(&decided, 2));
    }
    let fits = limit(sure(2), 150);
    assert!(place_of(&decide(&one_gpu(), &fits, &two(400, 400)), 2).is_some());
}

#[test]
fn under_kernel_level_sharing_the_job_of_better_priority_holds_and_the_other_fills() {
    let cluster = kernel_gpu();
    let [one, other] = <[QueuedJob; 2]>::try_from(queue([gib(4), gib(4)])).unwrap();
    let jobs = [auto(one.clone(), 0, 300), auto(other.clone(), 7, 1_000)];

    let decided = decide(&cluster, &Known::default(), &jobs);

    let share = |number| place_of(&decided, number).unwrap().share.unwrap();
    assert!(share(1).is_kernel() && share(2).is_kernel());
    // Next to gaps as short as those of networks, only a job that is hardly busy joins.
    let short = |mut job: QueuedJob| {
        job.auto.as_mut().unwrap().lengths = KernelLengths::UNKNOWN;
        job
    };
    for (busy, joins) in [(1_000, false), (300, false), (100, true)] {
        let jobs = [short(auto(one.clone(), 0, 100)), short(auto(other.clone(), 7, busy))];
        let decided = decide(&cluster, &Known::default(), &jobs);
        assert_eq!(place_of(&decided, 2).is_some(), joins, "{busy}");
    }
    // Always busy jobs of equal priority gain nothing from sharing.
    let equal = [auto(one, 5, 1_000), auto(other, 5, 1_000)];
    let decided = decide(&cluster, &Known::default(), &equal);
    assert!(place_of(&decided, 2).is_none(), "{}", reason(&decided, 2));
}

#[test]
fn a_job_joins_one_that_runs_alone_on_a_shared_slice() {
    let sm = SmPercent::try_from(50).unwrap();
    let memory = Bytes::from_mib(4_096);
    let share = SliceShare::Mps(tessera_model::share::MpsShare { sm, memory });
    let client = MpsClient { online: false, sm, busy: Some(400) };
    let sharer = SharingRequest { client: Some(client), ..SharingRequest::new("ada", share) };
    let mut tenancy = Tenancy::begun(JobId::from_number(901), &sharer);
    let there = |tenancy: &Tenancy| {
        cluster([unpartitioned(24_000, InstanceState::Shared(tenancy.clone()))])
    };
    let jobs = vec![auto(queue([gib(4)]).pop().unwrap(), 5, 400)];

    let decided = decide(&there(&tenancy), &sure(1), &jobs);
    assert_eq!(place_of(&decided, 1).unwrap().share.unwrap().sm_percent(), 50);
    // A pair gets no third job.
    tenancy.add(JobId::from_number(902), &SharingRequest { client: None, ..sharer });
    assert!(place_of(&decide(&there(&tenancy), &sure(1), &jobs), 1).is_none());
    // A job that has its slice to itself is never joined.
    let alone = cluster([unpartitioned(24_000, taken(901))]);
    assert!(place_of(&decide(&alone, &sure(1), &jobs), 1).is_none());
}

#[test]
fn a_recorded_round_in_which_jobs_share_is_decided_again() {
    let (cluster, jobs, known) = (one_gpu(), two(400, 400), sure(2));
    let policy = by_name("tessera").unwrap();
    let mut recorder = RoundRecorder::default();
    let answers = recorder.record_answers(Knowledge::of(&known), &cluster, Millis::ZERO);
    let seen: Vec<&QueuedJob> = jobs.iter().collect();
    let mut next = seen.iter().copied();
    let decided =
        decide_round(policy.as_ref(), &cluster, answers.knowledge(), &mut next, Millis::ZERO, 64);
    let input = RoundInput { cluster: &cluster, queue: &seen, now: Millis::ZERO, starts_max: 64 };
    let pending = recorder.prepare_record(policy.as_ref(), input, answers, &decided);
    let record = recorder.keep_record(pending);
    let stored = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();

    let again = RoundReplay::default().read_record(stored, Some(policy.as_ref())).unwrap();

    assert_eq!(again.decided, Some(decided.clone()));
    assert_eq!(again.recorded, decided);
    assert!(place_of(&decided, 2).unwrap().share.is_some());
}

/// A random job: its user, memory in GiB, how busy it is, its priority, and whether it may share.
type Drawn = (u8, u64, Option<u16>, u8, bool);

fn drawn(number: u64, (user, memory, busy, priority, is_auto): Drawn) -> QueuedJob {
    let mut job = queue([GpuRequest::Memory(Bytes::from_mib(memory * 1_024))]).pop().unwrap();
    job.id = JobId::from_number(number);
    job.user = ["ada", "bob"][usize::from(user % 2)].into();
    let job = auto(job, priority, busy);
    if is_auto { job } else { QueuedJob { auto: None, ..job } }
}

fn drawn_job() -> impl Strategy<Value = Drawn> {
    (
        0..2_u8,
        1..16_u64,
        proptest::option::of(0..=1_000_u16),
        0..10_u8,
        proptest::bool::weighted(0.8),
    )
}

/// Decisions without shares and reasons: what jobs with `--share exclusive` get.
fn bare(decisions: &[Decision]) -> Vec<(JobId, Option<JobPlacement>)> {
    let one = |decision: &Decision| match decision {
        Decision::Start { job, place, .. } => Some((*job, Some(place.clone()))),
        Decision::Wait { job, .. } => Some((*job, None)),
        Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    };
    decisions.iter().filter_map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn pairs_are_of_one_user_both_auto_fit_and_have_more_throughput_than_one_job_alone(
        jobs in proptest::collection::vec(drawn_job(), 1..12),
        gpus in 1..4_usize,
        low in 300..900_u32,
        more in 0..200_u32,
        seconds in proptest::collection::vec(1..10_000_u64, 12),
        has_mps: bool,
    ) {
        let queue: Vec<QueuedJob> = (1..).zip(jobs).map(|(n, job)| drawn(n, job)).collect();
        let gpu = || GpuView { mps: has_mps, ..unpartitioned(24_000, InstanceState::Idle) };
        let cluster = cluster((0..gpus).map(|_| gpu()));
        let times = (1..).zip(&seconds).map(|(n, s)| (JobId::from_number(n), Millis::from_secs(*s)));
        let together = Some(SpeedRange { low, expected: low + more, high: 1_000 });
        let known = Known { times: times.collect(), together, capped: 900, ..Known::default() };

        let decided = decide(&cluster, &known, &queue);

        let of = |id: JobId| queue.iter().find(|job| job.id == id).unwrap();
        let mut on: BTreeMap<String, Vec<(&QueuedJob, Option<SliceShare>)>> = BTreeMap::new();
        for decision in &decided {
            let Decision::Start { job, place, .. } = decision else { continue };
            on.entry(place.gpu.to_string()).or_default().push((of(*job), place.share));
        }
        for there in on.values() {
            prop_assert!(there.len() <= 2);
            let [(first, host), (second, joiner)] = there.as_slice() else {
                prop_assert!(there[0].1.is_none(), "alone, it has the slice to itself");
                continue;
            };
            prop_assert_eq!(&first.user, &second.user);
            let both = (first.auto.unwrap(), second.auto.unwrap());
            let busy = (both.0.busy.unwrap(), both.1.busy.unwrap());
            let (host, joiner) = (host.unwrap(), joiner.unwrap());
            prop_assert!(host.goes_with(joiner));
            prop_assert!(host.memory().get() + joiner.memory().get() <= 24_000 << 20);
            if host.sm().is_some() {
                prop_assert!(has_mps && host.sm_percent() + joiner.sm_percent() == 100);
                prop_assert!(busy.0 < 500 || busy.1 < 500, "rule 1: {:?}", busy);
                prop_assert!(2 * low >= 1_100 && 2 * (low + more) >= 1_300);
            }
        }
        // No job starts later or elsewhere than without sharing.
        let exclusive: Vec<QueuedJob> =
            queue.iter().map(|job| QueuedJob { auto: None, ..job.clone() }).collect();
        for (job, place) in bare(&decide(&cluster, &known, &exclusive)) {
            if let Some(place) = place {
                let found = place_of(&decided, job.number()).unwrap();
                prop_assert_eq!(&JobPlacement { share: None, ..found.clone() }, &place);
            }
        }
    }

    #[test]
    fn without_facts_all_decisions_are_those_of_exclusive_jobs(
        jobs in proptest::collection::vec(drawn_job(), 1..12),
        gpus in 1..4_usize,
    ) {
        let unknown = |(user, memory, _, priority, is_auto): Drawn| (user, memory, None, priority, is_auto);
        let queue: Vec<QueuedJob> = (1..).zip(jobs).map(|(n, job)| drawn(n, unknown(job))).collect();
        let exclusive: Vec<QueuedJob> =
            queue.iter().map(|job| QueuedJob { auto: None, ..job.clone() }).collect();
        let cluster = cluster((0..gpus).map(|_| unpartitioned(24_000, InstanceState::Idle)));

        let decided = decide(&cluster, &sure(12), &queue);

        prop_assert_eq!(bare(&decided), bare(&decide(&cluster, &sure(12), &exclusive)));
    }
}
