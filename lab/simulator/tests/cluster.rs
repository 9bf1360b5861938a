//! Properties of every run of the cluster simulator, whatever the policy.

use proptest::prelude::*;
use tessera_model::Millis;
use tessera_model::mig::{Profile, Slot};
use tessera_placement::power::PowerCap;
use tessera_placement::{
    ClusterView, Decision, Knowledge, PlacedJob, Policy, QueuedJob, Reshape, StayingJobs,
};
use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::metrics::{JobOutcome, RunOutcome, Summary};
use tessera_simulator::cluster::overheads::{Overheads, RepartitionTime, RunTimeKnowledge};
use tessera_simulator::cluster::workload::{self, file};
use tessera_simulator::cluster::{SimulationError, SimulationSetup, policy, run};

/// Policies that give each slice to one job at a time, and never wait forever.
const ONE_JOB_A_SLICE: [&str; 12] = [
    "exclusive",
    "scheme-a",
    "scheme-b",
    "miso",
    "oracle",
    "dyna-p",
    "tessera",
    "easy",
    "conservative",
    "gavel",
    "hadar",
    "elastic-flow",
];

fn simulated(
    jobs: &[SimulatedJob],
    gpus: &str,
    name: &str,
    overheads: Overheads,
) -> Result<RunOutcome, SimulationError> {
    let fleet = GpuFleet::parse(gpus).unwrap();
    let policy = policy(name).unwrap();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy: policy.as_ref(),
        overheads,
        round_ms: 0,
        seed: 1,
        plot: true,
    };
    run(setup, &mut |_| {})
}

fn built_in(name: &str, seed: u64) -> Vec<SimulatedJob> {
    workload::built_in(name, seed).unwrap().jobs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_job_ends_once_and_no_bound_is_broken(
        seed in 0_u64..1_000,
        kind in prop::sample::select(vec!["poisson", "bursts", "fragments"]),
        gap in 5_u64..60,
        name in prop::sample::select(ONE_JOB_A_SLICE.to_vec()),
    ) {
        let jobs = built_in(&format!("{kind}:jobs=40,gap={gap}"), seed);
        let outcome = simulated(&jobs, "2xa100-40gb", name, Overheads::default()).unwrap();
        let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
        let bounds = WorkloadBounds::new(&jobs, &fleet, &Overheads::default());

        let summary = Summary::new(&outcome, &bounds);
        prop_assert_eq!(outcome.jobs.len(), jobs.len());
        for (job, done) in jobs.iter().zip(&outcome.jobs) {
            let least = job.fastest(&["a100-40gb"]).unwrap() + job.start_up_ms;
            prop_assert!(done.end_ms >= done.submit_ms + least, "{:?}", done);
        }
        prop_assert!(summary.makespan_over_bound >= 0.999, "{:?}", summary);
        prop_assert!(summary.jct_over_bound >= 0.999, "{:?}", summary);
    }

    #[test]
    fn no_job_runs_past_its_limit_and_bounds_hold_for_what_is_cut_off(
        seed in 0_u64..1_000,
        percent in 20_u64..150,
        name in prop::sample::select(ONE_JOB_A_SLICE.to_vec()),
    ) {
        let mut jobs = built_in("bursts:jobs=30,gap=20", seed);
        for job in jobs.iter_mut().step_by(2) {
            job.limit_ms = Some(job.fastest(&["a100-40gb"]).unwrap() * percent / 100 + 1);
        }
        let outcome = simulated(&jobs, "2xa100-40gb", name, Overheads::default()).unwrap();
        let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
        let bounds = WorkloadBounds::new(&jobs, &fleet, &Overheads::default());

        let summary = Summary::new(&outcome, &bounds);
        prop_assert!(summary.makespan_over_bound >= 0.999, "{:?}", summary);
        prop_assert!(summary.jct_over_bound >= 0.999, "{:?}", summary);
        for segment in &outcome.segments {
            let limit = jobs[usize::try_from(segment.job).unwrap() - 1].limit_ms;
            // An instance is created before the job begins, and a trial of miso precedes its slice.
            let cutting = outcome.cutting_ms;
            let lasted = segment.to_ms - segment.from_ms;
            prop_assert!(limit.is_none_or(|limit| lasted <= limit + cutting), "{:?}", segment);
        }
        let mut limited = outcome.jobs.iter().zip(&jobs).filter(|(done, _)| done.timed_out);
        prop_assert!(limited.all(|(_, job)| job.limit_ms.is_some()));
        // No size is faster than the fastest, so a limit below its time is not kept in one placement.
        let ended = |done: &JobOutcome| done.timed_out || done.moves > 0 || done.preemptions > 0;
        let mut cut_off = outcome.jobs.iter().zip(&jobs).filter(|(_, job)| job.limit_ms.is_some());
        prop_assert!(percent >= 100 || cut_off.all(|(done, _)| ended(done)));
    }

    #[test]
    fn no_two_jobs_have_one_slice_at_one_time(
        seed in 0_u64..1_000,
        name in prop::sample::select(ONE_JOB_A_SLICE.to_vec()),
    ) {
        // A trial of miso is shared by design.
        prop_assume!(name != "miso");
        let jobs = built_in("bursts:jobs=30,gap=20", seed);
        let outcome = simulated(&jobs, "2xa100-40gb", name, Overheads::default()).unwrap();
        for (place, a) in outcome.segments.iter().enumerate() {
            for b in &outcome.segments[place + 1..] {
                let together = a.from_ms < b.to_ms && b.from_ms < a.to_ms;
                let overlap = a.start < b.start + b.slices && b.start < a.start + a.slices;
                prop_assert!(!(a.gpu == b.gpu && together && overlap), "{:?} and {:?}", a, b);
            }
        }
    }
}

/// A policy that looks at everything in every round.
#[derive(Debug)]
struct Afresh(Box<dyn Policy>);

impl Policy for Afresh {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn moves(&self) -> bool {
        self.0.moves()
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        self.0.decide_with(cluster, knowledge, queue, now, starts_max)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_session_decides_what_a_look_at_everything_would(
        seed in 0_u64..1_000,
        kind in prop::sample::select(vec!["poisson", "bursts", "fragments"]),
        gap in 2_u64..60,
        round_ms in prop::sample::select(vec![0_u64, 10_000]),
        gpus in prop::sample::select(vec!["3xa100-40gb", "a100-40gb,2xa100-40gb"]),
        name in prop::sample::select(vec!["tessera", "miso", "oracle", "miger", "mmk"]),
        users in 1_usize..4,
        online in 2_usize..9,
    ) {
        let mut jobs = built_in(&format!("{kind}:jobs=80,gap={gap}"), seed);
        for (place, job) in jobs.iter_mut().enumerate() {
            // Jobs that miger keeps where they are, some of them with a deadline.
            if place % online == 0 {
                job.class = JobClass::Online;
                job.deadline_ms = (place % 2 == 0).then_some(job.submit_ms + 2_000_000);
            }
            job.user = format!("user {}", place % users);
            job.priority = u8::try_from(place % 3).unwrap() + 4;
        }
        let fleet = GpuFleet::parse(gpus).unwrap();
        let kept = policy(name).unwrap();
        let afresh = Afresh(policy(name).unwrap());
        let by = |policy: &dyn Policy| {
            let overheads = Overheads::default();
            let setup =
                SimulationSetup { jobs: &jobs, fleet: &fleet, policy, overheads, round_ms, seed, plot: false };
            run(setup, &mut |_| {}).unwrap()
        };
        let (kept, afresh) = (by(kept.as_ref()), by(&afresh));
        prop_assert_eq!(kept.jobs, afresh.jobs);
        prop_assert_eq!(kept.millijoules, afresh.millijoules);
    }
}

#[test]
fn the_same_run_comes_out_bit_for_bit() {
    let jobs = built_in("poisson:jobs=60,gap=30", 5);
    for name in ["tessera", "miso", "scheme-b"] {
        let once = simulated(&jobs, "3xa100-40gb", name, Overheads::default()).unwrap();
        let again = simulated(&jobs, "3xa100-40gb", name, Overheads::default()).unwrap();
        assert_eq!(once.jobs, again.jobs, "{name}");
        assert_eq!(once.millijoules, again.millijoules, "{name}");
    }
}

#[test]
fn a_job_that_outgrows_its_slice_starts_again_on_a_larger_one() {
    let line = r#"{"submit_s": 0, "memory_mib": 4000, "memory_start_mib": 2000,
        "memory_end_mib": 9000, "times_s": {"*": {"1": 140, "2": 70, "7": 20}}}"#;
    let jobs = file::read("w.jsonl", &line.replace('\n', "")).unwrap().jobs;

    let outcome = simulated(&jobs, "a100-40gb", "scheme-b", free()).unwrap();

    // It outgrows 4,864 MiB of 1g.5gb after 2,864 of 7,000 parts, and runs 70 s on 2g.10gb.
    assert_eq!(outcome.out_of_memory, 1);
    let lost_ms = 140_000 * 2_864 / 7_000;
    assert!(outcome.makespan_ms.abs_diff(70_000 + lost_ms) <= 2, "{}", outcome.makespan_ms);
}

#[test]
fn a_job_that_fits_nowhere_is_refused_before_the_run() {
    let line =
        r#"{"name": "huge", "submit_s": 0, "memory_mib": 90000, "times_s": {"*": {"7": 20}}}"#;
    let jobs = file::read("w.jsonl", line).unwrap().jobs;
    let refused = simulated(&jobs, "a100-40gb", "scheme-b", free()).unwrap_err().to_string();
    assert!(refused.contains("huge"), "{refused}");
}

#[test]
fn the_coexecution_trio_takes_what_the_study_measured() {
    let jobs = built_in("coexec-trio", 1);
    let sequential = simulated(&jobs, "a100-40gb", "exclusive", free()).unwrap();
    assert_eq!(sequential.makespan_ms, 3_680 + 3_750 + 960);
    let fleet = GpuFleet::parse("a100-40gb").unwrap();
    let bounds = WorkloadBounds::new(&jobs, &fleet, &free());
    // The configuration LP, which also knows that a job is on one slice at a time, gives 4.207 s.
    assert!((3.75..=4.208).contains(&bounds.makespan_s), "{bounds:?}");
    let together = simulated(&jobs, "a100-40gb", "tessera", free()).unwrap();
    assert!((4_207..6_000).contains(&together.makespan_ms), "{} ms", together.makespan_ms);
}

#[test]
fn migms_homogeneous_mixes_take_as_many_rounds_as_slices_make() {
    for (mix, gain) in [("migm-hm2", 6.20), ("migm-hm3", 5.37), ("migm-ml3", 1.40)] {
        let jobs = built_in(mix, 1);
        let alone = simulated(&jobs, "a100-40gb", "exclusive", free()).unwrap();
        let cut = simulated(&jobs, "a100-40gb", "scheme-a", free()).unwrap();
        let ms = |outcome: &RunOutcome| f64::from(u32::try_from(outcome.makespan_ms).unwrap());
        let found = ms(&alone) / ms(&cut);
        assert!((found - gain).abs() < 0.03, "{mix}: {found} against {gain}");
    }
}

#[test]
fn tessera_breaks_no_deadline_that_it_could_have_kept_by_leaving_jobs_alone() {
    // Every job has three times its time alone; the GPUs are never full.
    let mut jobs = built_in("poisson:jobs=40,gap=400", 3);
    for job in &mut jobs {
        let alone = job.fastest(&["a100-40gb"]).unwrap();
        job.deadline_ms = Some(job.submit_ms + 3 * alone + 60_000);
    }
    let outcome = simulated(&jobs, "8xa100-40gb", "tessera", Overheads::default()).unwrap();
    assert!(outcome.jobs.iter().all(|job| job.in_time == Some(true)));
}

#[test]
fn a_job_ends_at_its_time_limit_unfinished_and_one_that_is_done_by_then_does_not() {
    let rows = "{\"submit_s\": 0, \"times_s\": {\"*\": {\"7\": 100}}, \"time_limit_s\": 60, \"deadline_s\": 90}\n\
                {\"submit_s\": 0, \"times_s\": {\"*\": {\"7\": 50}}, \"time_limit_s\": 50, \"deadline_s\": 120}\n";
    let jobs = file::read("w.jsonl", rows).unwrap().jobs;
    let outcome = simulated(&jobs, "a100-40gb", "exclusive", free()).unwrap();

    let ends: Vec<_> = outcome.jobs.iter().map(|job| (job.end_ms, job.timed_out)).collect();
    assert_eq!(ends, [(60_000, true), (110_000, false)]);
    let in_time: Vec<_> = outcome.jobs.iter().map(|job| job.in_time).collect();
    assert_eq!(in_time, [Some(false), Some(true)]);
    // 60 of 100 seconds, and 50 of 50.
    assert!((outcome.system_throughput - 1.0).abs() < 0.001, "{}", outcome.system_throughput);
}

#[test]
fn a_gang_ends_as_a_whole_at_its_time_limit() {
    let row = "{\"submit_s\": 0, \"duration_s\": 100, \"time_limit_s\": 30, \"gpus_per_node\": 2}";
    let jobs = file::read("w.jsonl", row).unwrap().jobs;
    let outcome = simulated(&jobs, "2xa100-40gb", "exclusive", free()).unwrap();

    let ends: Vec<_> = outcome.jobs.iter().map(|job| (job.end_ms, job.timed_out)).collect();
    assert_eq!(ends, [(30_000, true); 2]);
}

#[test]
fn policies_that_know_no_run_times_plan_with_time_limits() {
    // The first job has the GPU for 100 s, and the second needs all of it. The third fits before that if its limit is
    // known, and may only run then.
    let rows = |limits: [&str; 2]| {
        format!(
            "{{\"submit_s\": 0, \"times_s\": {{\"*\": {{\"3\": 100}}}}, \"memory_mib\": 18000{}}}\n\
             {{\"submit_s\": 1, \"times_s\": {{\"*\": {{\"7\": 10}}}}, \"memory_mib\": 39000}}\n\
             {{\"submit_s\": 2, \"times_s\": {{\"*\": {{\"3\": 50}}}}, \"memory_mib\": 18000{}}}\n",
            limits[0], limits[1]
        )
    };
    let third_starts = |limits| {
        let jobs = file::read("w.jsonl", &rows(limits)).unwrap().jobs;
        let overheads = Overheads { times: RunTimeKnowledge::Unknown, ..free() };
        simulated(&jobs, "a100-40gb", "easy", overheads).unwrap().jobs[2].start_ms
    };
    let limits = [", \"time_limit_s\": 100", ", \"time_limit_s\": 60"];
    assert_eq!(third_starts(limits), 2_000);
    assert!(third_starts([limits[0], ""]) >= 100_000);
}

#[test]
fn a_job_that_names_a_model_runs_on_no_other_one_also_if_it_can_be_moved() {
    let row = |more: &str| {
        format!(
            "{{\"submit_s\": 0, \"times_s\": {{\"a100-40gb\": {{\"7\": 10}}, \"a30-24gb\": {{\"4\": 40}}}}{more}}}\n"
        )
    };
    let ends = |more: &str, cluster: &str| {
        let jobs = file::read("w.jsonl", &row(more)).unwrap().jobs;
        let done = simulated(&jobs, cluster, "tessera", free())?;
        Ok::<u64, SimulationError>(done.jobs[0].end_ms)
    };
    let both = "a30-24gb,a100-40gb";

    assert_eq!(ends("", both), Ok(10_000));
    assert_eq!(ends(", \"only_model\": \"a30\"", both), Ok(40_000));
    assert_eq!(ends(", \"only_model\": \"a30\", \"restore_s\": 1", both), Ok(40_000));
    let refused = ends(", \"only_model\": \"a30\"", "a100-40gb").unwrap_err().to_string();
    assert!(refused.contains("a GPU of model a30 only; name such a GPU in --cluster"), "{refused}");
}

#[test]
fn users_of_one_account_share_its_part() {
    // Bob and Cy are one account, so that Ada gets every second slice of time, and not every third.
    let row = |user: &str, account: &str| {
        format!(
            "{{\"submit_s\": 0, \"duration_s\": 100, \"memory_mib\": 39000, \"user\": \"{user}\"{account}}}\n"
        )
    };
    let ends = |account: &str| {
        let four = |user: &str, account: &str| row(user, account).repeat(4);
        let text = four("bob", account) + &four("cy", account) + &four("ada", "");
        let jobs = file::read("w.jsonl", &text).unwrap().jobs;
        let outcome = simulated(&jobs, "a100-40gb", "tessera", free()).unwrap();
        let of_ada = jobs.iter().zip(&outcome.jobs).filter(|(job, _)| job.user == "ada");
        of_ada.map(|(_, done)| done.end_ms).max().unwrap()
    };
    let (apart, together) = (ends(""), ends(", \"account\": \"lab\", \"shares\": 1"));
    assert!(together < apart, "{together} and {apart} ms");
}

fn free() -> Overheads {
    Overheads { cutting: RepartitionTime::Free, ..Overheads::default() }
}

/// Puts the one job onto a seventh, and from a moment on onto the whole GPU.
#[derive(Debug)]
struct Restless {
    from: Millis,
}

impl Policy for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn moves(&self) -> bool {
        true
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        _: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        _: usize,
    ) -> Vec<Decision> {
        let gpu = &cluster.gpus[0];
        let job = tessera_model::JobId::from_number(1);
        let mig = gpu.mig.as_ref().unwrap();
        let placed = |profile: &Profile| Slot { start: profile.starts[0], profile: profile.id };
        let slot = match knowledge.jobs.facts(job).since {
            None => mig.plain().min_by_key(|p| p.compute_slices).map(placed),
            Some(_) if now >= self.from => mig.geometry.largest().map(placed),
            Some(_) => None,
        };
        let Some(slot) = slot.filter(|slot| !gpu.changing && !taken(gpu, *slot)) else {
            return Vec::new();
        };
        let reshape = Reshape {
            gpu: gpu.id.clone(),
            layout: [slot].into(),
            placements: vec![PlacedJob::alone(job, slot)],
            trial: None,
            stayers: StayingJobs::RunOn,
        };
        let why =
            tessera_placement::Explanation { summary: "restless".into(), ..Default::default() };
        vec![Decision::Reshape { reshape, why }]
    }
}

fn taken(gpu: &tessera_placement::GpuView, slot: Slot) -> bool {
    gpu.instances.iter().any(|i| i.slot == Some(slot))
}

#[test]
fn a_job_that_was_launched_pays_for_a_move_though_nothing_of_it_is_done() {
    let small = built_in("miso", 1).into_iter().find(|job| job.time("a100-40gb", 1).is_some());
    let mut jobs = vec![small.unwrap()];
    jobs[0].submit_ms = 0;
    jobs[0].start_up_ms = 20_000;
    let fleet = GpuFleet::parse("a100-40gb").unwrap();
    let overheads = Overheads::parse("30s").unwrap();
    let moved = |policy: &dyn Policy| {
        let setup = SimulationSetup {
            jobs: &jobs,
            fleet: &fleet,
            policy,
            overheads,
            round_ms: 1_000,
            seed: 1,
            plot: false,
        };
        run(setup, &mut |_| {}).unwrap()
    };
    let (stayed, moved) =
        (moved(policy("exclusive").unwrap().as_ref()), moved(&Restless { from: Millis::ZERO }));
    assert_eq!((stayed.moves, moved.moves), (0, 1));
    // Its launch of 20 s is broken off, and it is launched again by what any move costs.
    assert_eq!(moved.moving_ms, 30_000);
    let later = moved.makespan_ms - stayed.makespan_ms;
    assert!((10_000..12_000).contains(&later), "{later} ms");
}

#[test]
fn who_is_moved_amid_an_iteration_does_it_again() {
    let fleet = GpuFleet::parse("a100-40gb").unwrap();
    let ends = |iterations: Option<u64>| {
        let whole = workload::papers::plain("steps", 4_000, &[(1, 100_000), (7, 100_000)]);
        let jobs = [SimulatedJob { restore_ms: Some(0), iterations, ..whole }];
        let setup = SimulationSetup {
            jobs: &jobs,
            fleet: &fleet,
            policy: &Restless { from: Millis::from_secs(25) },
            overheads: Overheads::default(),
            round_ms: 25_000,
            seed: 1,
            plot: false,
        };
        let done = run(setup, &mut |_| {}).unwrap();
        assert_eq!(done.moves, 1);
        done.makespan_ms
    };
    // The first cut takes 0.11 s and the second, at 25 s, 0.245 s: of 100 s 24.89 s are done then. Of
    // ten steps two are checkpointed, of two none, of a hundred 24.
    assert_eq!(ends(None), 25_000 + 245 + 100_000 - 24_890);
    assert_eq!(ends(Some(10)), 25_000 + 245 + 80_000);
    assert_eq!(ends(Some(2)), 25_000 + 245 + 100_000);
    assert_eq!(ends(Some(100)), 25_000 + 245 + 76_000);
}

#[test]
fn who_looks_at_memory_alone_is_refused_gpus_for_which_a_job_has_no_times_and_others_go_around_them()
 {
    let line = |name: &str, model: &str| {
        format!(
            "{{\"name\": \"{name}\", \"submit_s\": 0, \"memory_mib\": 4000, \
             \"times_s\": {{\"{model}\": {{\"1\": 30, \"2\": 20, \"4\": 12}}}}}}\n"
        )
    };
    let text = line("here", "a100-40gb") + &line("there", "a30-24gb");
    let jobs = file::read("w.jsonl", &text).unwrap().jobs;
    let on = |name: &str| simulated(&jobs, "a100-40gb,a30-24gb", name, Overheads::default());

    for name in ["exclusive", "scheme-a", "scheme-b", "time-slicing", "mps-only"] {
        let refused = on(name).unwrap_err();
        assert!(matches!(refused, SimulationError::NoTimes { job: 1, .. }), "{name}: {refused}");
        let text = refused.to_string();
        assert!(text.contains("(here) on a30-24gb") && text.contains(name), "{text}");
    }
    for name in ["miso", "miger", "mmk", "oracle", "dyna-p", "tessera"] {
        let makespan_ms = on(name).unwrap().jobs.iter().map(|job| job.end_ms).max().unwrap();
        assert!(makespan_ms < 200_000, "{name}: {makespan_ms} ms");
    }
}

#[test]
fn under_a_power_cap_jobs_run_one_after_another_that_would_exceed_it_together() {
    let job = |_| workload::papers::plain("steps", 4_000, &[(1, 60_000), (7, 60_000)]);
    let jobs: Vec<SimulatedJob> = (0..3).map(job).collect();
    let makespan = |watts: Option<u64>, name: &str| {
        let cap = watts.map(|watts| PowerCap { watts });
        let fleet = GpuFleet::parse("a100-40gb").unwrap().with_power_cap(cap);
        let policy = policy(name).unwrap();
        let setup = SimulationSetup {
            jobs: &jobs,
            fleet: &fleet,
            policy: policy.as_ref(),
            overheads: Overheads::default(),
            round_ms: 0,
            seed: 1,
            plot: false,
        };
        run(setup, &mut |_| {}).map(|outcome| outcome.makespan_ms)
    };

    // The GPU draws 78 W idle, and 46 W more for each slice in use.
    let one_by_one = makespan(Some(130), "scheme-b").unwrap();
    assert!((180_000..190_000).contains(&one_by_one), "{one_by_one} ms");
    assert!(makespan(None, "scheme-b").unwrap() < 70_000);

    let error = makespan(Some(100), "scheme-b").unwrap_err();
    assert!(error.to_string().contains("power_cap"), "{error}");
}
