//! Laws of `tessera`: no job waits forever, no job becomes late because it is moved, and no deadline is missed that
//! whole GPUs meet.

use std::sync::Mutex;

use proptest::prelude::*;
use tessera_lab_policies::EarliestDeadline;
use tessera_model::{Bytes, Millis};
use tessera_placement::policy::Tessera;
use tessera_placement::preemption::{PreemptionMode, PreemptionRules};
use tessera_placement::{
    ClusterView, Decision, GpuView, InstanceState, Knowledge, Policy, QueuedJob,
};
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::metrics::RunOutcome;
use tessera_simulator::cluster::overheads::{
    MigrationCost, Overheads, RepartitionTime, RunTimeKnowledge,
};
use tessera_simulator::cluster::workload;
use tessera_simulator::cluster::{SimulationSetup, run};

const PATIENCE_S: u64 = 900;

fn impatient() -> Tessera {
    Tessera { patience: Millis::from_secs(PATIENCE_S), ..Tessera::default() }
}

fn simulated(
    jobs: &[SimulatedJob],
    gpus: &str,
    policy: &dyn Policy,
    overheads: Overheads,
) -> RunOutcome {
    let fleet = GpuFleet::parse(gpus).unwrap();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy,
        overheads,
        round_ms: 0,
        seed: 1,
        plot: true,
    };
    run(setup, &mut |_| {}).unwrap()
}

/// Small jobs that never cease while larger ones wait for a whole GPU.
fn crowded(seed: u64, jobs: u64, gap: u64) -> Vec<SimulatedJob> {
    workload::built_in(&format!("fragments:jobs={jobs},gap={gap}"), seed).unwrap().jobs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn no_job_waits_longer_than_patience_and_one_stay_for_each_before_it(
        seed in 1_u64..1_000,
        gap in 4_u64..30,
        gpus in 1_usize..4,
        error in 0_u16..600,
        movable in prop::sample::select(vec![0, 50, 100]),
        times in prop::sample::select(vec![
            RunTimeKnowledge::Known, RunTimeKnowledge::Learned, RunTimeKnowledge::Unknown,
        ]),
    ) {
        let mut jobs = crowded(seed, 120, gap);
        workload::limit_movable(&mut jobs, movable, seed);
        // Predictions that are wrong by more than half must not matter.
        let overheads = Overheads { prediction_error: error, times, ..Overheads::default() };
        let outcome = simulated(&jobs, &format!("{gpus}xa100-40gb"), &impatient(), overheads);
        let stay = outcome.segments.iter().map(|s| s.to_ms - s.from_ms).max().unwrap();
        // A GPU that is being cut is not given away: a cut before and a cut after.
        let stay = stay + 4_000;
        for job in &outcome.jobs {
            let overdue = job.submit_ms + PATIENCE_S * 1_000;
            let before = outcome.jobs.iter().filter(|other| {
                (other.submit_ms, other.job) < (job.submit_ms, job.job) && other.start_ms > overdue
            });
            let most = overdue + (u64::try_from(before.count()).unwrap() + 1) * stay;
            prop_assert!(job.start_ms <= most, "{:?} starts {} ms after its bound", job, job.start_ms - most);
        }
    }

    #[test]
    fn no_job_of_a_low_priority_waits_longer_than_patience_and_two_stays_for_each_older_one(
        seed in 1_u64..1_000,
        gap in 4_u64..30,
        gpus in 1_usize..4,
        low in 2_u64..9,
        movable in prop::sample::select(vec![0, 50, 100]),
        times in prop::sample::select(vec![RunTimeKnowledge::Known, RunTimeKnowledge::Unknown]),
    ) {
        let mut jobs = crowded(seed, 120, gap);
        workload::limit_movable(&mut jobs, movable, seed);
        for (place, job) in (0_u64..).zip(&mut jobs) {
            job.priority = if place % low == 0 { 9 } else { 0 };
        }
        let overheads = Overheads { times, ..Overheads::default() };
        let outcome = simulated(&jobs, &format!("{gpus}xa100-40gb"), &impatient(), overheads);
        let stay = outcome.segments.iter().map(|s| s.to_ms - s.from_ms).max().unwrap();
        let stay = stay + 4_000;
        for job in &outcome.jobs {
            let overdue = job.submit_ms + PATIENCE_S * 1_000;
            let older = outcome.jobs.iter().filter(|other| {
                (other.submit_ms, other.job) < (job.submit_ms, job.job) && other.end_ms > overdue
            });
            let most = overdue + 2 * (u64::try_from(older.count()).unwrap() + 1) * stay;
            prop_assert!(job.start_ms <= most, "{:?} starts {} ms after its bound", job, job.start_ms - most);
        }
    }

    #[test]
    fn no_deadline_that_whole_gpus_meet_is_missed_while_no_more_jobs_arrive(
        seed in 1_u64..1_000_000,
        count in 2_usize..40,
        gpus in prop::sample::select(vec!["a100-40gb", "2xa100-40gb", "4xa100-40gb"]),
        slack in 110_u64..4_000,
        movable in prop::sample::select(vec![0, 50, 100]),
    ) {
        let mut jobs = workload::built_in(&format!("poisson:jobs={count},gap=0"), seed).unwrap().jobs;
        workload::limit_movable(&mut jobs, movable, seed);
        // Times are exact: no start-up, and no cuts of GPUs.
        let cutting = RepartitionTime::Free;
        let overheads = Overheads { cutting, start_up_ms: Some(0), ..Overheads::default() };
        for (place, job) in jobs.iter_mut().enumerate() {
            let alone = job.fastest(&["a100-40gb"]).unwrap();
            let more = slack * (1 + u64::try_from(place % 5).unwrap());
            job.deadline_ms = Some(job.submit_ms + alone * more / 100);
        }
        // Deadlines that whole GPUs miss are extended to when their jobs end there.
        for _ in 0..1_000 {
            let outcome = simulated(&jobs, gpus, &EarliestDeadline, overheads);
            let ended = outcome.jobs.iter().enumerate();
            let late: Vec<_> = ended.filter(|(_, job)| job.in_time == Some(false)).collect();
            if late.is_empty() {
                break;
            }
            for (place, job) in late {
                jobs[place].deadline_ms = Some(job.end_ms + 1_000);
            }
        }
        let by = |policy: &dyn Policy| {
            let outcome = simulated(&jobs, gpus, policy, overheads);
            outcome.jobs.iter().filter(|job| job.in_time == Some(false)).count()
        };
        prop_assume!(by(&EarliestDeadline) == 0);
        // Jobs that have waited too long are served in the order of their age.
        let patience = Millis::from_secs(1_000_000);
        prop_assert_eq!(by(&Tessera { patience, ..Tessera::default() }), 0);
    }

    #[test]
    fn no_job_that_would_be_in_time_becomes_late_by_a_move(
        seed in 1_u64..1_000,
        gap in 10_u64..90,
        slack in 110_u64..600,
        moving_s in prop::option::of(1_u64..90),
    ) {
        let mut jobs =
            workload::built_in(&format!("poisson:jobs=60,gap={gap}"), seed).unwrap().jobs;
        for (place, job) in jobs.iter_mut().enumerate() {
            let alone = job.fastest(&["a100-40gb"]).unwrap();
            let more = slack + u64::try_from(place % 7).unwrap() * 60;
            job.deadline_ms = (place % 4 > 0).then_some(job.submit_ms + alone * more / 100);
        }
        let moving = moving_s.map_or(MigrationCost::Recover, |s| MigrationCost::FixedMs(s * 1_000));
        let watched = Watched { policy: Tessera::default(), late: Mutex::default() };
        let overheads = Overheads { moving, ..Overheads::default() };
        simulated(&jobs, "2xa100-40gb", &watched, overheads);
        let late = watched.late.into_inner().unwrap();
        prop_assert!(late.is_empty(), "{late:?}");
    }
}

/// A policy whose moves are held against what would have been without them.
#[derive(Debug)]
struct Watched {
    policy: Tessera,
    late: Mutex<Vec<String>>,
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let decisions = self.policy.decide_with(cluster, knowledge, queue, now, starts_max);
        for gpu in &cluster.gpus {
            for instance in &gpu.instances {
                let InstanceState::Taken { job } = instance.state else { continue };
                let Some(deadline) = knowledge.jobs.facts(job).deadline else { continue };
                let left = |gpu: &GpuView, slot: Option<tessera_model::mig::Slot>| {
                    let profile = gpu.mig.as_ref()?.geometry.profile(slot?.profile)?;
                    let all = knowledge.predictor.time_alone(job, gpu, profile)?.get();
                    let done = u64::from(knowledge.jobs.facts(job).done?);
                    Some(all * (1_000_000 - done) / 1_000_000)
                };
                let stays_s = now.get() + left(gpu, instance.slot).unwrap();
                if stays_s > deadline.get() {
                    continue;
                }
                // Where it goes: to a placement, or to none on a GPU that is reshaped.
                let mut goes = None;
                let mut touched = false;
                for decision in &decisions {
                    let Decision::Reshape { reshape, .. } = decision else { continue };
                    touched |= reshape.gpu == gpu.id;
                    if let Some(placed) = reshape.placements.iter().find(|placed| placed.job == job)
                    {
                        let to = cluster.gpus.iter().find(|gpu| gpu.id == reshape.gpu).unwrap();
                        goes = Some((to, placed.slot));
                    }
                }
                let stays = !touched
                    || goes.is_some_and(|(to, slot)| (&to.id, slot) == (&gpu.id, instance.slot));
                let price =
                    knowledge.jobs.facts(job).migration_price.map_or(u64::MAX / 2, Millis::get);
                let kept = goes
                    .and_then(|(gpu, slot)| left(gpu, slot))
                    .is_some_and(|left| now.get() + left + price <= deadline.get());
                if !stays && !kept {
                    self.late.lock().unwrap().push(format!("{job:?} at {now:?}"));
                }
            }
        }
        decisions
    }
}

#[test]
fn no_job_is_moved_within_its_migration_cooldown_which_controllers_share() {
    let jobs = workload::built_in("poisson:jobs=80,gap=40", 5).unwrap().jobs;
    let moves_under = |overheads: Overheads| {
        let outcome = simulated(&jobs, "2xa100-40gb", &Tessera::default(), overheads);
        let mut shortest = u64::MAX;
        for early in &outcome.segments {
            let is_moved = outcome
                .segments
                .iter()
                .any(|late| late.job == early.job && late.from_ms > early.from_ms);
            if is_moved {
                shortest = shortest.min(early.to_ms - early.from_ms);
            }
        }
        (outcome.moves, shortest)
    };
    let (moves, shortest) = moves_under(Overheads::default());
    assert!(moves > 0 && shortest >= 300_000, "{moves} moves, the earliest after {shortest} ms");
    let free = Overheads { migration_cooldown_ms: 0, ..Overheads::default() };
    let (more, shortest) = moves_under(free);
    assert!(more > moves && shortest < 300_000, "{more} moves, the earliest after {shortest} ms");
}

#[test]
fn of_slices_that_do_as_well_the_smaller_is_taken() {
    // Nine tenths of its speed on two slices: the rest of the GPU would only draw power.
    let line =
        r#"{"submit_s": 0, "memory_mib": 3000, "times_s": {"*": {"1": 200, "2": 102, "7": 100}}}"#;
    let jobs = workload::file::read("w.jsonl", line).unwrap().jobs;
    let outcome = simulated(&jobs, "a100-40gb", &Tessera::default(), Overheads::default());
    let spread = Tessera { thrift: 0.0, ..Tessera::default() };
    let more = simulated(&jobs, "a100-40gb", &spread, Overheads::default());
    assert!(
        outcome.millijoules < more.millijoules / 2,
        "{} {}",
        outcome.millijoules,
        more.millijoules
    );
}

#[test]
fn a_user_with_few_jobs_is_not_kept_waiting_by_one_with_many() {
    // One floods the cluster; the other comes later, with jobs like the first one's.
    let mut jobs = workload::built_in("poisson:jobs=160,gap=5", 4).unwrap().jobs;
    let mean_wait_s = |jobs: &[SimulatedJob]| {
        let outcome = simulated(jobs, "2xa100-40gb", &Tessera::default(), Overheads::default());
        let few = outcome.jobs.iter().filter(|done| done.job > 100 && done.job % 8 == 0);
        let waits: Vec<u64> = few.map(|done| (done.start_ms - done.submit_ms) / 1_000).collect();
        waits.iter().sum::<u64>() / u64::try_from(waits.len()).unwrap()
    };
    let alike = mean_wait_s(&jobs);
    for (number, job) in (1_u64..).zip(&mut jobs) {
        let few = number > 100 && number.is_multiple_of(8);
        job.user = if few { "few" } else { "many" }.to_owned();
    }
    let fair = mean_wait_s(&jobs);
    assert!(fair * 2 < alike, "{fair} s with separate accounts, {alike} s with one");
}

#[test]
fn a_user_with_long_jobs_gets_what_is_due_next_to_one_with_many_short_ones() {
    let of = |user: &str, count: u64, secs: u64, restore_ms: Option<u64>| -> Vec<SimulatedJob> {
        let like = workload::built_in("poisson:jobs=1,gap=0", 1).unwrap().jobs.remove(0);
        let memory = Bytes::from_mib(4_000);
        // They last half to one and a half times as long, and are as fast on any slice.
        let one = |number: u64| {
            let lasts_ms = secs * (500 + number * 37 % 1_000);
            let times = [1, 2, 3, 4, 7].map(|slices| (slices, lasts_ms));
            SimulatedJob {
                user: user.to_owned(),
                times: [("a100-40gb".to_owned(), times.into())].into(),
                requested: memory,
                memory_at_start: memory,
                memory_at_end: memory,
                start_up_ms: 0,
                restore_ms,
                ..like.clone()
            }
        };
        (0..count).map(one).collect()
    };
    for (times, restore_ms) in [
        (RunTimeKnowledge::Unknown, None),
        (RunTimeKnowledge::Known, None),
        (RunTimeKnowledge::Known, Some(5_000)),
    ] {
        let jobs = [of("short", 1_200, 60, restore_ms), of("long", 60, 1_500, restore_ms)].concat();
        let overheads = Overheads { times, ..Overheads::default() };
        let done = simulated(&jobs, "a100-40gb", &Tessera::default(), overheads);

        // Both have jobs waiting until then.
        let until_ms = 4 * 3_600_000;
        let got = |user: &str| -> u64 {
            let own = jobs.iter().zip(&done.jobs).filter(|(job, _)| job.user == user);
            own.map(|(_, done)| {
                (done.submit_ms + done.jct_ms()).min(until_ms).saturating_sub(done.start_ms)
            })
            .sum()
        };
        let percent = 100 * got("long") / (got("long") + got("short"));
        assert!((45..=60).contains(&percent), "{times:?}, {restore_ms:?}: {percent} %");
    }
}

/// Long offline jobs that fill the cluster, and every fourth job is a short online one.
fn with_services(seed: u64, jobs: u64, gap: u64, movable: u8) -> Vec<SimulatedJob> {
    let name = format!("poisson:jobs={jobs},gap={gap}");
    let mut jobs = workload::built_in(&name, seed).unwrap().jobs;
    workload::limit_movable(&mut jobs, movable, seed);
    for job in jobs.iter_mut().skip(3).step_by(4) {
        job.class = JobClass::Online;
        let shorter = |ms: &mut u64| *ms = (*ms / 10).max(1);
        job.times.values_mut().flat_map(|times| times.values_mut()).for_each(shorter);
    }
    jobs
}

fn under(rules: PreemptionRules, times: RunTimeKnowledge) -> Overheads {
    Overheads { preemption: rules, times, ..Overheads::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// No online job is ever sent back, each offline job is only so often, and all of them end. What they lose is no
    /// more than that many restarts, if all can be continued.
    #[test]
    fn offline_jobs_are_sent_back_a_bounded_number_of_times_and_all_end(
        seed in 1_u64..1_000,
        gap in 5_u64..40,
        gpus in 1_usize..4,
        movable in prop::sample::select(vec![0_u8, 50, 100]),
        mode in prop::sample::select(vec![PreemptionMode::Checkpoint, PreemptionMode::Requeue]),
        most_per_job in 1_u32..4,
        min_run in prop::sample::select(vec![0_u64, 300]),
        times in prop::sample::select(vec![
            RunTimeKnowledge::Known, RunTimeKnowledge::Learned, RunTimeKnowledge::Unknown,
        ]),
    ) {
        let jobs = with_services(seed, 80, gap, movable);
        let rules = PreemptionRules {
            online_over_offline: mode,
            most_per_job,
            min_run: Millis::from_secs(min_run),
            patience: Millis::ZERO,
        };
        let fleet = format!("{gpus}xa100-40gb");
        let outcome = simulated(&jobs, &fleet, &Tessera::default(), under(rules, times));
        for (job, of) in outcome.jobs.iter().zip(&jobs) {
            let most = if job.online { 0 } else { most_per_job };
            prop_assert!(job.preemptions <= most, "{job:?}");
            let may_leave = of.restore_ms.is_some() || mode == PreemptionMode::Requeue;
            prop_assert!(may_leave || job.preemptions == 0, "{job:?} has no checkpoint");
        }
        if movable == 100 {
            let restarts: u64 = outcome.jobs.iter().zip(&jobs).map(|(job, of)| {
                let restart = of.restore_ms.unwrap_or(0).max(of.start_up_ms);
                // Co-runners may have slowed its current step.
                u64::from(job.preemptions) * (restart + 3 * of.step_ms())
            }).sum();
            prop_assert!(outcome.sent_back_ms.unwrap() <= restarts, "{:?} {restarts}", outcome.sent_back_ms);
        }
    }
}

#[test]
fn on_a_full_cluster_online_jobs_start_at_once_and_offline_jobs_lose_little() {
    let jobs = with_services(7, 120, 40, 100);
    let waits = |rules| {
        let overheads = under(rules, RunTimeKnowledge::Unknown);
        let outcome = simulated(&jobs, "2xa100-40gb", &Tessera::default(), overheads);
        let online = outcome.jobs.iter().filter(|job| job.online);
        let mut waits: Vec<u64> = online.map(|job| job.start_ms - job.submit_ms).collect();
        waits.sort_unstable();
        (waits[waits.len() * 95 / 100], outcome.makespan_ms, outcome.sent_back_ms.unwrap())
    };
    let (before, without, nothing) = waits(PreemptionRules::OFF);
    let (after, with, lost) = waits(PreemptionRules::default());

    assert_eq!(nothing, 0);
    assert!(after * 10 < before, "p95 of {after} ms instead of {before} ms");
    assert!(
        lost > 0 && with < without + without / 20,
        "{with} ms instead of {without} ms, {lost} ms lost"
    );
}

#[test]
fn a_batch_that_a_script_submits_one_by_one_takes_hardly_longer_than_at_once() {
    const SEEDS: u64 = 20;
    let overheads = Overheads { times: RunTimeKnowledge::Unknown, ..Overheads::default() };
    // The first job does not know that others follow: the fewer there are, the more that matters. On the only GPU it gets
    // the smallest slice.
    let (one, two) = ("a100-40gb", "a100-40gb,a100-40gb");
    let one_gpu = [(one, 5, 135), (one, 10, 120), (one, 20, 110)];
    let two_gpus = [(two, 5, 140), (two, 10, 130), (two, 20, 115)];
    for (gpus, jobs, at_most) in one_gpu.into_iter().chain(two_gpus) {
        let makespan = |seed: u64, gap_ms: u64| {
            let named = format!("poisson:jobs={jobs},gap=0");
            let mut batch = workload::built_in(&named, seed).unwrap().jobs;
            workload::limit_movable(&mut batch, 0, seed);
            for (place, job) in (0..).zip(&mut batch) {
                job.submit_ms = place * gap_ms;
            }
            let done = simulated(&batch, gpus, &Tessera::default(), overheads);
            done.jobs.iter().map(|job| job.end_ms).max().unwrap()
        };
        let all = |gap_ms| (1..=SEEDS).map(|seed| makespan(seed, gap_ms)).sum::<u64>();

        let (at_once, one_by_one) = (all(0), all(50));

        assert!(
            one_by_one * 100 < at_once * at_most,
            "{jobs} jobs on {gpus}: {one_by_one} ms, at once {at_once} ms"
        );
    }
}
