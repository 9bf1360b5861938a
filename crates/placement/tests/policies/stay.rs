//! `tessera`: jobs that stay where they start. Their size, their order, and which jobs may pass others.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tessera_model::mig::Profile;
use tessera_model::share::{MpsShare, SliceShare};
use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::{
    Account, ClusterView, Decision, GpuView, InstanceState, JobFacts, JobTable, Knowledge,
    Predictor, QueuedJob, RunTime, SharingRequest, Tenancy, WaitReason, by_name, decide_round,
};

use crate::arbitrary;
use crate::build::{
    IDLE, a100, changing, cluster, gib, gpu, named, queue, short, taken, unpartitioned, why,
};
use crate::hardware::Hardware;

const NOW: Millis = Millis::from_secs(100_000);

/// What is known about jobs that can't be migrated.
#[derive(Clone, Debug, Default)]
struct KnownFacts {
    /// Seconds on a whole A100; on a slice the time grows in proportion as the slice is smaller.
    times: BTreeMap<u64, u64>,
    /// The compute slices on which the job's task ran. On larger slices it is guessed to be no faster.
    seen: BTreeMap<u64, u8>,
    /// How many times as long one run in ten takes.
    latest: BTreeMap<u64, u64>,
    /// Time limits in seconds.
    limits: BTreeMap<u64, u64>,
    /// When jobs began, in seconds before now.
    ran: BTreeMap<u64, u64>,
    /// How long they had waited then, in seconds.
    waited: BTreeMap<u64, u64>,
    /// Seconds from now to deadlines.
    deadlines: BTreeMap<u64, u64>,
    /// Usage of users in hours.
    used: BTreeMap<&'static str, u64>,
    users: BTreeMap<u64, &'static str>,
    /// The multiprocessors that first kernels needed in earlier attempts.
    multiprocessors: BTreeMap<u64, u16>,
    /// How many more jobs wait than are listed.
    unlisted: usize,
}

impl JobTable for KnownFacts {
    fn facts(&self, job: JobId) -> JobFacts {
        let job = job.number();
        let ran = self.ran.get(&job).copied().map(Millis::from_secs);
        let waited = Millis::from_secs(self.waited.get(&job).copied().unwrap_or(0));
        let time = self.times.get(&job).map(|secs| secs * 1_000);
        let done = time.map(|ms| {
            let done = ran.unwrap_or_default().get() * 1_000_000 / ms.max(1);
            u32::try_from(done.min(999_999)).unwrap()
        });
        JobFacts {
            done,
            since: ran.map(|ran| NOW.minus(ran)),
            submitted: ran.map(|ran| NOW.minus(ran.plus(waited))),
            limit: self.limits.get(&job).copied().map(Millis::from_secs),
            multiprocessors: self.multiprocessors.get(&job).copied(),
            deadline: self.deadlines.get(&job).map(|secs| NOW.plus(Millis::from_secs(*secs))),
            ..JobFacts::default()
        }
    }

    fn unlisted(&self) -> usize {
        self.unlisted
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let user = self.users.get(&job.number())?;
        let used = Millis::from_secs(3_600 * self.used.get(user).copied().unwrap_or(0));
        Some(Account { name: (*user).into(), shares: 1, used, quota: None, member: None })
    }
}

impl Predictor for KnownFacts {
    fn predict_run(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<RunTime> {
        let secs = self.times.get(&job.number())?;
        // A slice is equally fast on every model: four make an A30, and seven an A100 or H100.
        let own = u64::from(profile.compute_slices).max(1);
        let seen = self.seen.get(&job.number()).copied().map(u64::from);
        let time = Millis::from_secs(secs * 7 / own.min(seen.unwrap_or(own)));
        let times = self.latest.get(&job.number()).copied().unwrap_or(1);
        let latest = Millis::new(time.get() * times);
        Some(RunTime { time, latest, is_measured: seen.is_none_or(|seen| seen == own) })
    }
}

fn decide(known: &KnownFacts, cluster: &ClusterView, queue: &[QueuedJob]) -> Vec<Decision> {
    let policy = by_name("tessera").unwrap();
    policy.decide_with(cluster, Knowledge::of(known), &mut queue.iter(), NOW, usize::MAX)
}

fn started(decisions: &[Decision]) -> BTreeSet<u64> {
    let start = |decision: &Decision| match decision {
        Decision::Start { job, .. } => Some(job.number()),
        Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
    };
    decisions.iter().filter_map(start).collect()
}

/// A GPU on which four slices are free, but no whole GPU is.
fn partly_taken(jobs: [u64; 3]) -> GpuView {
    let [a, b, c] = jobs;
    a100(&[("1g.5gb", 0, taken(a)), ("1g.5gb", 1, taken(b)), ("1g.5gb", 2, taken(c))])
}

fn just_now(jobs: &mut [QueuedJob]) {
    for job in jobs {
        job.submitted = NOW;
    }
}

#[test]
fn a_wait_beside_a_free_slice_names_the_job_that_it_is_reserved_for_also_if_another_is_reserved() {
    // While the layout of GPU 0 is being changed, only its idle slice as it is may be taken.
    let empty = changing(a100(&[("7g.40gb", 0, IDLE)]));
    let full = a100(&[("4g.20gb", 0, taken(100)), ("3g.20gb", 4, taken(101))]);
    let view = cluster([empty, full]);
    let mut jobs = queue([named("1g.5gb"), GpuRequest::Whole]);
    just_now(&mut jobs);

    let decided = decide(&KnownFacts::default(), &view, &jobs);

    let [small, large] = decided.as_slice() else { panic!("{decided:?}") };
    let reserved = "1g.5gb at slice 0 of GPU 0 of node a is reserved for it, \
        and is created once the layout has been changed";
    assert!(why(small).summary.ends_with(reserved), "{small:?}");
    assert!(matches!(large, Decision::Wait { reason: WaitReason::Priority, .. }), "{large:?}");
    let summary = &why(large).summary;
    assert!(summary.contains("slice 0 of GPU 0 of node a is reserved for job 1"), "{summary}");
    assert!(summary.contains("GPU 1 of node a is reserved for it; when the jobs"), "{summary}");
}

#[test]
fn a_large_job_at_the_head_holds_up_no_job_that_fits_slices_it_does_not_need() {
    let view = cluster([partly_taken([100, 101, 102]), partly_taken([103, 104, 105])]);
    let mut jobs = queue([gib(30)].into_iter().chain((0..8).map(|_| gib(4))));
    just_now(&mut jobs);

    let decided = decide(&KnownFacts::default(), &view, &jobs);

    // One of the GPUs is reserved for the large job, and the other takes four small ones.
    assert_eq!(started(&decided).len(), 4, "{:?}", short(&view, &decided));
    let large = decided.iter().find_map(|decision| match decision {
        Decision::Wait { job, why, .. } if job.number() == 1 => Some(why.summary.clone()),
        _ => None,
    });
    let large = large.unwrap();
    assert!(large.contains("is reserved for it; when the jobs there end is not known"), "{large}");
    let held = decided
        .iter()
        .find(|decision| matches!(decision, Decision::Wait { job, .. } if job.number() != 1));
    let held = held.unwrap();
    assert!(matches!(held, Decision::Wait { reason: WaitReason::Priority, .. }), "{held:?}");
    assert!(why(held).summary.contains("is reserved for job 1"), "{held:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A controller lists as many of equal tasks as could start in one round, and the number of the others.
    #[test]
    fn tasks_of_an_array_that_are_not_listed_change_nothing_else(
        (before, after) in (prop::collection::vec(1_u64..=40, 0..6), prop::collection::vec(1_u64..=40, 0..6)),
        (tasks, gpus, secs) in (257_u64..700, 1_usize..4, prop::option::of(60_u64..7_200)),
    ) {
        const LISTED: u64 = 256;
        let view = cluster((0..gpus).map(|at| match at {
            0 => partly_taken([9_000, 9_001, 9_002]),
            _ => a100(&[]),
        }));
        let sizes = before.iter().copied().chain((0..tasks).map(|_| 4)).chain(after);
        let mut jobs = queue(sizes.map(gib));
        just_now(&mut jobs);
        let first = u64::try_from(before.len()).unwrap() + 1;
        let last = first + tasks - 1;
        let times = (first..=last).filter_map(|job| Some((job, secs?))).collect();
        let all = KnownFacts { times, ..KnownFacts::default() };

        let of_all = decide_round_of(&all, &view, &jobs);
        let unlisted = usize::try_from(tasks - LISTED).unwrap();
        jobs.retain(|job| !(first + LISTED..=last).contains(&job.id.number()));
        let of_listed = decide_round_of(&KnownFacts { unlisted, ..all }, &view, &jobs);

        let starts = |decided: &[Decision]| -> Vec<_> {
            let start = |one: &Decision| match one {
                Decision::Start { job, place, .. } => Some((*job, place.gpu.clone(), place.slot)),
                Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
            };
            decided.iter().filter_map(start).collect()
        };
        prop_assert_eq!(starts(&of_all), starts(&of_listed));
    }
}

/// Decides a round as a controller does.
fn decide_round_of(known: &KnownFacts, view: &ClusterView, jobs: &[QueuedJob]) -> Vec<Decision> {
    let policy = by_name("tessera").unwrap();
    decide_round(&*policy, view, Knowledge::of(known), &mut jobs.iter(), NOW, 256)
}

#[test]
fn a_job_of_a_task_that_ran_before_starts_on_a_gpu_with_mig_off() {
    let off = unpartitioned(40_960, InstanceState::Idle);
    let view = cluster([a100(&[("7g.40gb", 0, taken(100))]), off]);
    let mut jobs = queue([GpuRequest::Whole]);
    just_now(&mut jobs);
    let known = KnownFacts { times: [(1, 600)].into(), ..KnownFacts::default() };

    let decided = decide(&known, &view, &jobs);

    assert_eq!(started(&decided), BTreeSet::from([1]), "{:?}", short(&view, &decided));
}

#[test]
fn a_job_that_ends_in_time_by_its_limit_fills_the_reserved_slot() {
    let view = cluster([a100(&[("4g.20gb", 0, taken(100))])]);
    let mut jobs = queue([gib(30), gib(4), gib(4)]);
    just_now(&mut jobs);
    let known = KnownFacts {
        limits: [(100, 3_600), (2, 600), (3, 7_200)].into(),
        ran: [(100, 600)].into(),
        ..KnownFacts::default()
    };

    let decided = decide(&known, &view, &jobs);

    // Job 100 ends in 50 minutes at the latest: job 2 is done by then, and job 3 perhaps not.
    assert_eq!(started(&decided), [2].into(), "{:?}", short(&view, &decided));
}

#[test]
fn a_job_fills_a_reserved_slot_if_nine_of_ten_of_its_runs_end_in_time() {
    let view = cluster([a100(&[("4g.20gb", 0, taken(100))])]);
    let mut jobs = queue([gib(30), gib(4), gib(4)]);
    just_now(&mut jobs);
    // On a slice of one seventh, jobs 2 and 3 are expected to take 35 minutes, and job 100 ends in 50.
    let known = KnownFacts {
        times: [(2, 300), (3, 300)].into(),
        latest: [(3, 2)].into(),
        limits: [(100, 3_600)].into(),
        ran: [(100, 600)].into(),
        ..KnownFacts::default()
    };

    let decided = decide(&known, &view, &jobs);

    assert_eq!(started(&decided), [2].into(), "{:?}", short(&view, &decided));
}

#[test]
fn a_user_with_thousands_of_jobs_is_served_no_better_than_one_with_few() {
    // More than a round puts in order, and fewer.
    for of_many in [50, 3_000] {
        let view = cluster([a100(&[])]);
        let mut jobs = queue((0..of_many + 10).map(|_| gib(4)));
        just_now(&mut jobs);
        let mut known = KnownFacts::default();
        for (number, job) in (1..).zip(&mut jobs) {
            let user = if number <= of_many { "many" } else { "few" };
            job.user = user.into();
            known.users.insert(number, user);
            // Shortness must not outweigh the share.
            known.times.insert(number, if number <= of_many { 60 } else { 600 });
        }
        known.used = [("many", 90), ("few", 1)].into();

        let decided = decide(&known, &view, &jobs);

        let of_few = started(&decided).into_iter().filter(|job| *job > of_many).count();
        assert!(of_few > 0, "{:?}", short(&view, &decided));
        assert_eq!(of_few, started(&decided).len(), "{:?}", short(&view, &decided));
    }
}

#[test]
fn a_job_that_has_waited_too_long_is_first_however_many_better_ones_wait() {
    let view = cluster([a100(&[])]);
    let mut jobs = queue((0..3_000).map(|_| GpuRequest::Whole));
    just_now(&mut jobs);
    let last = jobs.last_mut().unwrap();
    last.submitted = NOW.minus(Millis::from_secs(13 * 3_600));
    last.queue_rank = Priority::try_from(9).unwrap().into();
    let last = last.id.number();

    let decided = decide(&KnownFacts::default(), &view, &jobs);

    assert_eq!(started(&decided), [last].into(), "{:?}", short(&view, &decided));
}

#[test]
fn jobs_that_have_waited_too_long_overtake_better_ones_on_a_quarter_of_the_cluster() {
    let busy: Vec<_> = (0..6).map(|at| ("1g.5gb", at, taken(100 + u64::from(at)))).collect();
    let view = cluster([a100(&busy)]);
    let mut jobs = queue([gib(4), gib(4)]);
    jobs[0].submitted = NOW.minus(Millis::from_secs(13 * 3_600));
    jobs[0].queue_rank = Priority::try_from(9).unwrap().into();
    jobs[1].submitted = NOW;
    jobs[1].queue_rank = Priority::try_from(0).unwrap().into();
    // Of six jobs that have run for an hour, the first had waited for so many hours.
    let next = |waited: &[u64]| {
        let waited = (100..).zip(waited).map(|(job, hours)| (job, hours * 3_600)).collect();
        let ran = (100..106).map(|job| (job, 3_600)).collect();
        started(&decide(&KnownFacts { ran, waited, ..KnownFacts::default() }, &view, &jobs))
    };

    assert_eq!(next(&[]), [1].into());
    assert_eq!(next(&[20]), [1].into());
    // Two slices of seven are more than a quarter.
    assert_eq!(next(&[20, 20]), [2].into());
    // Jobs that came after it don't count, nor do those that had not waited too long.
    assert_eq!(next(&[20, 11, 11, 11]), [1].into());
}

#[test]
fn shares_hold_among_jobs_that_have_all_waited_too_long() {
    let view = cluster([a100(&[])]);
    let mut jobs = queue((0..60).map(|_| gib(4)));
    let mut known = KnownFacts::default();
    for (number, job) in (1..).zip(&mut jobs) {
        job.user = if number <= 50 { "much" } else { "little" }.into();
        known.users.insert(number, if number <= 50 { "much" } else { "little" });
        job.submitted = NOW.minus(Millis::from_secs(14 * 3_600 - number));
    }
    known.used = [("much", 90), ("little", 1)].into();

    let decided = decide(&known, &view, &jobs);

    let started = started(&decided);
    assert!(!started.is_empty(), "{:?}", short(&view, &decided));
    assert!(started.iter().all(|job| *job > 50), "{:?}", short(&view, &decided));
}

#[test]
fn jobs_with_deadlines_are_first_and_the_earliest_deadline_before_later_ones() {
    let view = cluster([a100(&[])]);
    let mut jobs = queue([GpuRequest::Whole, GpuRequest::Whole, GpuRequest::Whole]);
    just_now(&mut jobs);
    let known = KnownFacts {
        times: [(1, 100), (2, 100), (3, 100)].into(),
        deadlines: [(2, 900), (3, 300)].into(),
        ..KnownFacts::default()
    };

    assert_eq!(started(&decide(&known, &view, &jobs)), [3].into());
}

/// Returns the compute slices of the jobs that start on an empty A100, and why the last of them does. There are `count`
/// jobs of 100 s, each with a deadline after so many seconds.
fn started_by(count: u64, deadline: impl Fn(u64) -> u64) -> (Vec<u8>, String) {
    let view = cluster([a100(&[])]);
    let mut jobs = queue((0..count).map(|_| gib(4)));
    just_now(&mut jobs);
    let known = KnownFacts {
        times: (1..=count).map(|job| (job, 100)).collect(),
        // Slices have the usual speeds.
        seen: (1..=count).map(|job| (job, 7)).collect(),
        deadlines: (1..=count).map(|job| (job, deadline(job))).collect(),
        ..KnownFacts::default()
    };
    let (mut slices, mut first) = (Vec::new(), String::new());
    for decision in decide(&known, &view, &jobs) {
        if let Decision::Start { place, why, .. } = decision {
            let mig = view.gpus[0].mig.as_ref().unwrap();
            let profile = mig.geometry.profile(place.slot.unwrap().profile).unwrap();
            slices.push(profile.compute_slices);
            first = why.summary;
        }
    }
    (slices, first)
}

#[test]
fn a_job_with_little_slack_gets_a_whole_gpu_while_whole_gpus_meet_all_deadlines() {
    let (slices, why) = started_by(8, |job| 105 * job);

    assert_eq!(slices, [7], "{why}");
    assert!(why.contains("have little slack, so it gets a whole GPU"), "{why}");
}

#[test]
fn jobs_with_deadlines_share_a_gpu_where_whole_gpus_miss_some_deadline_or_leave_much_slack() {
    // Twelve jobs take 1,200 s one after the other.
    for (count, deadline) in [(12, 900), (4, 2_500)] {
        let (slices, why) = started_by(count, |_| deadline);

        assert!(slices.len() > 1 && !slices.contains(&7), "{slices:?}: {why}");
    }
}

/// Running jobs that were submitted at different times, on so many of eight GPUs: more jobs seem to arrive.
fn partly_busy(busy: u64) -> (ClusterView, KnownFacts) {
    let slots = |gpu: u64| (0..7_u8).map(move |slot| (slot, 1_000 + 10 * gpu + u64::from(slot)));
    let full = |gpu: u64| {
        let held: Vec<_> = slots(gpu).map(|(slot, job)| ("1g.5gb", slot, taken(job))).collect();
        a100(&held)
    };
    let view = cluster((0..8).map(|gpu| if gpu < busy { full(gpu) } else { a100(&[]) }));
    let ran = (0..busy).flat_map(slots).map(|(_, job)| (job, 300 * (job - 999))).collect();
    (view, KnownFacts { ran, ..KnownFacts::default() })
}

/// The explanation and the compute slices of the first of so many waiting jobs.
fn first_start((view, known): &(ClusterView, KnownFacts), jobs: Vec<GpuRequest>) -> (String, u8) {
    let mut jobs = queue(jobs);
    just_now(&mut jobs);
    let decided = decide(known, view, &jobs);
    let Decision::Start { place, why, .. } = &decided[0] else {
        panic!("{:?}", short(view, &decided))
    };
    let on = view.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
    let profile = on.mig.as_ref().unwrap().geometry.profile(place.slot.unwrap().profile).unwrap();
    (why.summary.clone(), profile.compute_slices)
}

#[test]
fn a_job_of_unknown_length_gets_half_of_a_gpu_while_there_are_few_jobs() {
    let (why, slices) = first_start(&partly_busy(1), vec![gib(4)]);

    assert!(slices >= 3, "{slices}: {why}");
    assert!(why.contains("so it gets at least 40 % of a GPU if that is free"), "{why}");
}

#[test]
fn a_job_of_unknown_length_gets_a_quarter_of_a_gpu_while_there_are_not_many_jobs() {
    for (busy, waiting) in [(6, 1), (1, 30)] {
        let (why, slices) = first_start(&partly_busy(busy), vec![gib(4); waiting]);

        assert_eq!(slices, 2, "{why}");
        assert!(why.contains("so it gets at least 20 % of a GPU if that is free"), "{why}");
    }
}

/// The compute slices of the only job on so many empty GPUs.
fn slices_of_the_first_job(gpus: usize, request: GpuRequest) -> u8 {
    let view = cluster((0..gpus).map(|_| a100(&[])));
    first_start(&(view, KnownFacts::default()), vec![request]).1
}

#[test]
fn the_next_jobs_of_unknown_length_get_half_of_a_gpu_also_if_there_is_only_one() {
    // A script submitted two more before the second could start.
    let view = cluster([a100(&[("4g.20gb", 0, taken(100))])]);
    let known = KnownFacts { ran: [(100, 1)].into(), ..KnownFacts::default() };

    let scene = (view, known);
    let (why, slices) = first_start(&scene, vec![gib(4); 3]);

    assert_eq!(slices, 3, "{why}");
    assert!(why.contains("so it gets at least 40 % of a GPU if that is free"), "{why}");

    let mut online = queue([gib(4)]);
    online[0].online = true;
    just_now(&mut online);
    let (view, known) = &scene;
    let decided = short(view, &decide(known, view, &online));
    assert!(decided[0].contains("1g.5gb"), "later ones shall begin at once, too: {decided:?}");
}

#[test]
fn the_first_job_of_unknown_length_gets_a_large_slice_unless_there_is_only_one_gpu() {
    assert_eq!(slices_of_the_first_job(1, gib(4)), 1);
    assert!(slices_of_the_first_job(2, gib(4)) >= 3);
    assert!(slices_of_the_first_job(8, gib(4)) >= 3);
}

#[test]
fn a_first_job_that_states_no_memory_begins_on_a_small_slice() {
    assert_eq!(slices_of_the_first_job(8, GpuRequest::Unknown), 1);
}

#[test]
fn a_job_of_unknown_length_gets_a_small_slice_once_many_jobs_run_or_wait() {
    for (busy, waiting) in [(6, 25), (1, 80)] {
        let (why, slices) = first_start(&partly_busy(busy), vec![gib(4); waiting]);

        assert_eq!(slices, 1, "{why}");
        assert!(why.contains("so the size leaves space for others"), "{why}");
    }
}

#[test]
fn a_job_that_does_not_fit_on_the_smallest_slice_gets_half_of_a_gpu_however_many_came_with_it() {
    let empty = (cluster([a100(&[])]), KnownFacts::default());
    let slices = |memory| first_start(&empty, vec![gib(memory); 80]).1;

    assert_eq!(slices(4), 1);
    assert!(slices(8) >= 3, "{}", slices(8));
}

#[test]
fn a_job_of_unknown_length_takes_a_small_slice_if_no_other_is_free() {
    let (mut view, known) = partly_busy(8);
    view.gpus[3].instances.pop();

    assert_eq!(first_start(&(view, known), vec![gib(4)]).1, 1);
}

#[test]
fn while_a_job_that_needs_most_of_a_gpu_waits_no_other_prefers_a_large_slice() {
    let slices = |behind: u64| first_start(&partly_busy(7), vec![gib(4), gib(behind)]).1;

    assert_eq!((slices(4), slices(30)), (2, 1));
}

#[test]
fn of_jobs_of_unknown_length_that_came_together_those_that_need_least_are_first() {
    let view = cluster([a100(&[])]);
    let mut jobs = queue([gib(30)].into_iter().chain((0..20).map(|_| gib(4))));
    just_now(&mut jobs);

    let batch = started(&decide(&KnownFacts::default(), &view, &jobs));
    // Jobs that come one after another: more may follow.
    for (place, job) in (0..).zip(&mut jobs) {
        job.submitted = NOW.minus(Millis::from_secs(2_000 - 100 * place));
    }
    let stream = started(&decide(&KnownFacts::default(), &view, &jobs));
    // The same within seconds, up to now and until as long ago as they took to come.
    let within_seconds = |quiet: u64| {
        let mut jobs = jobs.clone();
        for (place, job) in (0..).zip(&mut jobs) {
            job.submitted = NOW.minus(Millis::from_secs(20 + quiet - place));
        }
        started(&decide(&KnownFacts::default(), &view, &jobs))
    };

    assert!(!batch.contains(&1) && batch.len() > 1, "{batch:?}");
    assert_eq!(stream, [1].into());
    assert_eq!(within_seconds(0), [1].into());
    assert_eq!(within_seconds(20), batch);
}

#[test]
fn among_jobs_of_seconds_one_of_which_nothing_is_known_is_not_served_after_all_others() {
    let view = cluster([a100(&[("4g.20gb", 0, taken(100)), ("2g.10gb", 4, taken(101))])]);
    let mut jobs = queue((0..6).map(|_| gib(4)));
    // Job 1 came first; nothing is known of its task. The others take three seconds each.
    for (place, job) in (0..).zip(&mut jobs) {
        job.submitted = NOW.minus(Millis::from_secs(60 - 10 * place));
    }
    let times = (2..=6).map(|job| (job, 3)).collect();
    let known = KnownFacts { times, ..KnownFacts::default() };

    assert_eq!(started(&decide(&known, &view, &jobs)), [1].into());
}

#[test]
fn times_are_not_planned_with_if_runs_of_the_task_differ_too_much() {
    let view = cluster([a100(&[("4g.20gb", 0, taken(100))])]);
    let mut jobs = queue([gib(30), gib(4)]);
    just_now(&mut jobs);
    // Job 100 ends in 50 minutes at the latest. Job 2 is expected to take 7 minutes; one run in ten takes longer.
    let summary = |latest| {
        let known = KnownFacts {
            times: [(2, 60)].into(),
            latest: [(2, latest)].into(),
            limits: [(100, 3_600)].into(),
            ran: [(100, 600)].into(),
            ..KnownFacts::default()
        };
        let decided = decide(&known, &view, &jobs);
        let of_job = |decision: &&Decision| match decision {
            Decision::Start { job, .. } => job.number() == 2,
            Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => false,
        };
        decided.iter().find(of_job).map(|decision| why(decision).summary.clone())
    };

    assert!(summary(1).unwrap().contains("it is expected to take"));
    // It might still run when the slot is needed for job 1.
    assert_eq!(summary(2), None);

    let only = [queue([gib(4)]).remove(0)];
    let known =
        KnownFacts { times: [(1, 60)].into(), latest: [(1, 2)].into(), ..KnownFacts::default() };
    let decided = decide(&known, &view, &only);
    assert!(why(&decided[0]).summary.contains("its earlier runs differ too much"), "{decided:?}");
}

#[test]
fn of_jobs_of_unknown_length_the_first_and_the_first_that_needs_most_of_a_gpu_have_reservations() {
    let (view, known) = partly_busy(8);
    let mut jobs = queue([gib(4), gib(8), gib(30), gib(30), gib(4)]);
    just_now(&mut jobs);

    let decided = decide(&known, &view, &jobs);

    let has_reservation = |decision: &&Decision| why(decision).summary.contains("reserved for it");
    let with_one: Vec<u64> = decided
        .iter()
        .filter(has_reservation)
        .filter_map(|decision| match decision {
            Decision::Wait { job, .. } => Some(job.number()),
            _ => None,
        })
        .collect();
    assert_eq!(with_one, [1, 3], "{:?}", short(&view, &decided));
}

#[test]
fn a_gpu_with_few_jobs_of_unknown_length_is_kept_for_a_job_that_needs_most_of_one() {
    let one = a100(&[("1g.5gb", 0, taken(103))]);
    let view = cluster([partly_taken([100, 101, 102]), one]);
    // The three have run for longer.
    let ran = [(100, 5_000), (101, 5_000), (102, 5_000), (103, 60)].into();
    let known = KnownFacts { ran, ..KnownFacts::default() };
    let mut jobs = queue([gib(30), gib(4)]);
    just_now(&mut jobs);

    let decided = decide(&known, &view, &jobs);

    let small = decided.iter().find_map(|decision| match decision {
        Decision::Start { place, .. } => Some(&place.gpu),
        _ => None,
    });
    assert_eq!(small, Some(&view.gpus[0].id), "{:?}", short(&view, &decided));
}

#[test]
fn a_job_prefers_slices_with_the_multiprocessors_of_its_first_kernel_while_all_could_have_them() {
    // Of 100 multiprocessors, a slice has 14, two have 28, and three have 42. Of the halves, 4g costs less than 3g.
    for (busy, needed, slices_with_them) in
        [(5, 25, Some(2)), (3, 40, Some(4)), (3, 63, None), (1, 90, Some(7))]
    {
        let (view, known) = partly_busy(busy);
        // More than every job could have changes nothing.
        let without = first_start(&(view.clone(), known.clone()), vec![gib(4)]).1;
        let expected = slices_with_them.unwrap_or(without);
        let known = KnownFacts { multiprocessors: [(1, needed)].into(), ..known };

        let (why, slices) = first_start(&(view, known), vec![gib(4)]);

        assert_eq!(slices, expected, "{busy} GPUs, {needed} multiprocessors: {why}");
        let names_it = why.contains(&format!("its first kernel needs {needed} multiprocessors"));
        assert_eq!(names_it, slices_with_them.is_some(), "{why}");
    }
    let (mut view, known) = partly_busy(8);
    view.gpus[3].instances.pop();
    let known = KnownFacts { multiprocessors: [(1, 25)].into(), ..known };
    assert_eq!(first_start(&(view, known), vec![gib(4)]).1, 1, "too few only slow it down");
}

#[test]
fn a_batch_is_planned_however_long_its_jobs_have_waited() {
    let view = cluster([a100(&[])]);
    let mut jobs = queue((0..40).map(|_| gib(4)));
    for job in &mut jobs {
        job.submitted = NOW.minus(Millis::from_secs(13 * 3_600));
    }
    let times = (1..=40).map(|job| (job, 100 * job)).collect();
    let known = KnownFacts { times, ..KnownFacts::default() };

    let decided = decide(&known, &view, &jobs);

    // Without a plan, eight jobs have reservations.
    let reserved =
        decided.iter().filter(|decision| why(decision).summary.contains("is reserved for it"));
    assert!(reserved.count() > 8, "{:?}", short(&view, &decided));
}

/// A plan for such a batch was once searched without an end, or until the round's budget was used up.
#[test]
fn a_batch_that_fits_no_gpu_of_two_models_is_decided_about() {
    let stuck = a100(&[("1g.5gb", 6, InstanceState::Stuck)]);
    let view = cluster([stuck, gpu("a30-24gb", &[])]);
    let times = (1..=3).map(|job| (job, 100 * job)).collect();
    let known = KnownFacts { times, ..KnownFacts::default() };
    let mut jobs = queue([gib(30), gib(30), gib(4)]);
    just_now(&mut jobs);

    let decided = decide(&known, &view, &jobs);

    let starts = decided.iter().filter(|decision| matches!(decision, Decision::Start { .. }));
    assert_eq!(starts.count(), 1, "{:?}", short(&view, &decided));
}

#[test]
fn a_lone_job_of_known_length_gets_a_whole_gpu() {
    let view = cluster([a100(&[])]);
    let known = KnownFacts { times: [(1, 1_000)].into(), ..KnownFacts::default() };
    let mut jobs = queue([gib(4)]);
    just_now(&mut jobs);

    assert_eq!(short(&view, &decide(&known, &view, &jobs)), ["1: +7g.40gb@0 7g.40gb@0 on 0"]);
}

#[test]
fn jobs_of_known_length_go_to_the_faster_model_whatever_the_order_of_gpus() {
    let (fast, slow) = ("a100-40gb", "a30-24gb");
    for models in [[fast, fast, slow, slow], [slow, slow, fast, fast], [slow, fast, slow, fast]] {
        let view = cluster(models.map(|model| gpu(model, &[])));
        let known = KnownFacts { times: [(1, 100), (2, 100)].into(), ..KnownFacts::default() };
        let mut jobs = queue([gib(10), gib(10)]);
        just_now(&mut jobs);

        for decision in decide(&known, &view, &jobs) {
            let Decision::Start { place, .. } = decision else { panic!("{decision:?}") };
            let on = view.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
            assert_eq!(on.model, fast, "{models:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Otherwise a task would keep the size on which it first ran.
    #[test]
    fn a_lone_job_gets_a_whole_gpu_whichever_slice_its_task_ran_on(
        seconds in 60_u64..100_000,
        slices in prop::sample::select(vec![1_u8, 2, 3, 4, 7]),
    ) {
        let view = cluster([a100(&[])]);
        let known = KnownFacts {
            times: [(1, seconds)].into(),
            seen: [(1, slices)].into(),
            ..KnownFacts::default()
        };
        let mut jobs = queue([gib(4)]);
        just_now(&mut jobs);

        prop_assert_eq!(short(&view, &decide(&known, &view, &jobs)), ["1: +7g.40gb@0 7g.40gb@0 on 0"]);
    }

    #[test]
    fn the_plan_of_a_closed_batch_starts_jobs_where_they_fit_beside_those_that_run(
        times in prop::collection::vec(60_u64..100_000, 1..40),
    ) {
        let busy = a100(&[("3g.20gb", 4, taken(100)), ("1g.5gb", 0, taken(101))]);
        let view = cluster([a100(&[]), busy]);
        let known = KnownFacts {
            times: (1..).zip(times.iter().copied()).chain([(100, 900), (101, 90)]).collect(),
            ran: [(100, 30), (101, 30)].into(),
            ..KnownFacts::default()
        };
        let mut jobs = queue(times.iter().map(|_| gib(4)));
        just_now(&mut jobs);

        let decided = decide(&known, &view, &jobs);

        let mut hardware = Hardware::new(&view);
        for decision in &decided {
            if let Decision::Start { job, place, .. } = decision {
                hardware.start(*job, place);
            }
        }
        prop_assert_eq!(decided.len(), jobs.len());
        prop_assert!(!started(&decided).is_empty(), "{:?}", short(&view, &decided));
    }

    #[test]
    fn whatever_is_known_every_start_can_be_carried_out(
        cluster in arbitrary::cluster(),
        queue in arbitrary::queue(),
        times in prop::collection::btree_map(1_u64..40, 1_u64..100_000, 0..40),
        limits in prop::collection::btree_map(1_u64..40, 1_u64..100_000, 0..40),
        deadlines in prop::collection::btree_map(1_u64..40, 1_u64..100_000, 0..10),
    ) {
        let known = KnownFacts { times, limits, deadlines, ..KnownFacts::default() };
        let mut hardware = Hardware::new(&cluster);
        let mut decided = BTreeSet::new();
        for decision in decide(&known, &cluster, &queue) {
            match decision {
                Decision::Start { job, place, .. } => {
                    hardware.start(job, &place);
                    prop_assert!(decided.insert(job), "{job} is decided twice");
                }
                Decision::Wait { job, .. } => {
                    prop_assert!(decided.insert(job), "{job} is decided twice");
                }
                Decision::Reshape { .. } | Decision::Preempt { .. } => {
                    prop_assert!(false, "nothing can be moved");
                },
            }
        }
    }

    #[test]
    fn the_order_of_gpus_does_not_affect_the_size_of_a_slice(
        models in prop::collection::vec(prop::sample::select(vec!["a100-40gb", "a30-24gb", "h100-80gb-sxm"]), 1..6),
        shift in 0_usize..6,
        times in prop::collection::vec(1_u64..10_000, 1..8),
    ) {
        let mut shifted = models.clone();
        shifted.rotate_left(shift % models.len());
        let known = KnownFacts {
            times: (1..).zip(times.iter().copied()).collect(),
            ..KnownFacts::default()
        };
        let mut jobs = queue(times.iter().map(|_| gib(4)));
        just_now(&mut jobs);
        let sizes = |models: &[&'static str]| {
            let view = cluster(models.iter().map(|model| gpu(model, &[])));
            let mut sizes: Vec<(u64, String, String)> = decide(&known, &view, &jobs)
                .into_iter()
                .filter_map(|decision| match decision {
                    Decision::Start { job, place, .. } => {
                        let on = view.gpus.iter().find(|gpu| gpu.id == place.gpu).unwrap();
                        let profile = on.mig.as_ref().unwrap().geometry.profile(place.slot?.profile)?;
                        Some((job.number(), on.model.clone(), profile.name.to_string()))
                    }
                    Decision::Wait { .. } | Decision::Reshape { .. } | Decision::Preempt { .. } => None,
                })
                .collect();
            sizes.sort();
            sizes
        };
        prop_assert_eq!(sizes(&models), sizes(&shifted));
    }
}

/// Facts that note which jobs they are requested of.
struct Noted<'k>(&'k KnownFacts, RefCell<BTreeSet<JobId>>);

impl JobTable for Noted<'_> {
    fn facts(&self, job: JobId) -> JobFacts {
        self.1.borrow_mut().insert(job);
        self.0.facts(job)
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.0.account(job)
    }
}

impl Predictor for Noted<'_> {
    fn predict_run(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<RunTime> {
        self.0.predict_run(job, gpu, profile)
    }
}

#[test]
fn a_round_reads_the_facts_of_a_few_of_thousands_of_equal_jobs() {
    let view = cluster([a100(&[("1g.5gb", 0, taken(9_000)), ("1g.5gb", 1, InstanceState::Idle)])]);
    let mut jobs = queue((0..5_000).map(|_| named("1g.5gb")));
    just_now(&mut jobs);
    let known = KnownFacts::default();
    let noted = Noted(&known, RefCell::default());

    let policy = by_name("tessera").unwrap();
    let decided =
        policy.decide_with(&view, Knowledge::of(&noted), &mut jobs.iter(), NOW, usize::MAX);

    assert_eq!(started(&decided).len(), 6, "{:?}", short(&view, &decided));
    // Those that are put into the order of service, the first that is weighed, and the one that runs.
    let requested = noted.1.into_inner().len();
    assert!(requested <= 258, "{requested}");
}

proptest! {
    /// Requests and users that follow each other are compared with the last one only: that must not show.
    #[test]
    fn jobs_are_placed_alike_whether_their_users_share_one_text_in_memory(
        cluster in arbitrary::cluster(),
        mut jobs in arbitrary::queue(),
        users in prop::collection::vec(0_usize..3, 40),
        used in prop::collection::vec(0_u64..50, 3),
    ) {
        const NAMES: [&str; 3] = ["ada", "bob", "cyd"];
        let mut known = KnownFacts { used: NAMES.into_iter().zip(used).collect(), ..KnownFacts::default() };
        for (job, user) in jobs.iter_mut().zip(users) {
            job.user = NAMES[user].into();
            known.users.insert(job.id.number(), NAMES[user]);
        }
        let shared = NAMES.map(Arc::<str>::from);
        let mut interned = jobs.clone();
        for job in &mut interned {
            job.user = Arc::clone(shared.iter().find(|user| **user == job.user).unwrap());
        }

        let policy = by_name("tessera").unwrap();
        let decide = |jobs: &[QueuedJob]| {
            decide_round(policy.as_ref(), &cluster, Knowledge::of(&known), &mut jobs.iter(), NOW, usize::MAX)
        };

        prop_assert_eq!(decide(&jobs), decide(&interned));
    }
}

/// Lets a job share half of a slice of 4 GiB for each.
fn half(job: &mut QueuedJob) {
    let memory = Bytes::from_mib(4_096);
    let sm = 50_u8.try_into().unwrap();
    job.share = Some(SharingRequest::new("ada", SliceShare::Mps(MpsShare { sm, memory })));
}

/// A slice with such a job of one user, which another one may join.
fn shared(job: u64) -> InstanceState {
    let memory = Bytes::from_mib(4_096);
    let sm = 50_u8.try_into().unwrap();
    let share = SliceShare::Mps(MpsShare { sm, memory });
    InstanceState::Shared(Tenancy::of("ada".into(), vec![(JobId::from_number(job), share)]))
}

#[test]
fn a_job_that_may_share_takes_a_free_slice_that_no_reservation_needs() {
    // 3g.20gb becomes free at slice 4. Slices 0 to 3 are free, and no 7 compute slices are.
    let view = cluster([a100(&[("3g.20gb", 4, taken(100)), ("1g.5gb", 0, taken(101))])]);
    let mut jobs = queue([named("3g.20gb"), gib(4)]);
    just_now(&mut jobs);
    jobs[0].queue_rank = Priority::try_from(0).unwrap().into();
    half(&mut jobs[1]);
    let known = KnownFacts {
        limits: [(100, 700), (101, 90_000)].into(),
        ran: [(100, 600), (101, 600)].into(),
        ..KnownFacts::default()
    };

    let decided = decide(&known, &view, &jobs);

    assert_eq!(started(&decided), [2].into(), "{:?}", short(&view, &decided));
}

#[test]
fn a_job_that_may_share_joins_no_slice_that_a_reservation_needs_unless_it_ends_in_time() {
    let view = cluster([a100(&[("3g.20gb", 0, shared(100))])]);
    let mut jobs = queue([GpuRequest::Whole, gib(4)]);
    just_now(&mut jobs);
    jobs[0].queue_rank = Priority::try_from(0).unwrap().into();
    half(&mut jobs[1]);
    let known = |limit: Option<u64>| KnownFacts {
        limits: [(100, 3_600)].into_iter().chain(limit.map(|secs| (2, secs))).collect(),
        ran: [(100, 600)].into(),
        ..KnownFacts::default()
    };

    let endless = decide(&known(None), &view, &jobs);
    let quick = decide(&known(Some(600)), &view, &jobs);

    assert!(started(&endless).is_empty(), "{:?}", short(&view, &endless));
    assert_eq!(started(&quick), [2].into(), "{:?}", short(&view, &quick));
}

#[test]
fn a_job_that_may_share_and_has_waited_too_long_gets_a_reservation_like_any_other() {
    let view = cluster([a100(&[("7g.40gb", 0, taken(100))])]);
    let mut jobs = queue([gib(4)]);
    jobs[0].submitted = NOW.minus(Millis::from_secs(13 * 3_600));
    half(&mut jobs[0]);

    let decided = decide(&KnownFacts::default(), &view, &jobs);

    let summary = &why(&decided[0]).summary;
    assert!(summary.contains("is reserved for it"), "{summary}");
}
