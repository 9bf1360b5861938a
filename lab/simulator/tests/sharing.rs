//! Properties of policies that put several jobs onto one slice.

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;
use tessera_model::mig::Slot;
use tessera_model::{Bytes, Millis};
use tessera_placement::policy::Tessera;
use tessera_placement::{ClusterView, Decision, Demand, Knowledge, Policy, QueuedJob};
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::metrics::RunOutcome;
use tessera_simulator::cluster::overheads::{
    KernelSharingModel, Overheads, RunTimeKnowledge, SimulatedSharing,
};
use tessera_simulator::cluster::{SimulationSetup, policy, run, workload};

/// A policy whose every decision is checked.
#[derive(Debug)]
struct Checked {
    policy: Box<dyn Policy>,
    wrong: Mutex<Vec<String>>,
}

impl Policy for Checked {
    fn name(&self) -> &'static str {
        self.policy.name()
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
        for decision in &decisions {
            let Decision::Reshape { reshape, .. } = decision else { continue };
            let gpu = cluster.gpus.iter().find(|gpu| gpu.id == reshape.gpu).unwrap();
            let mut given: BTreeMap<Slot, (u32, u64)> = BTreeMap::new();
            for placed in &reshape.placements {
                let part = given.entry(placed.slot.unwrap()).or_default();
                part.0 += placed.sm.map_or(100, |sm| u32::from(sm.get()));
                part.1 += knowledge.jobs.facts(placed.job).co_runner.unwrap().memory.get();
            }
            for (slot, (percent, bytes)) in given {
                let profile = gpu.mig.as_ref().unwrap().geometry.profile(slot.profile).unwrap();
                if percent > 100 || bytes > profile.memory.get() {
                    let placements = &reshape.placements;
                    self.wrong
                        .lock()
                        .unwrap()
                        .push(format!("{percent} % of {slot:?}: {placements:?}"));
                }
            }
        }
        decisions
    }
}

/// Jobs of both classes, some of whose demands are known, and some of which can't be moved.
fn mixed(seed: u64, jobs: u64, gap: u64) -> Vec<SimulatedJob> {
    let mut jobs =
        workload::built_in(&format!("poisson:jobs={jobs},gap={gap}"), seed).unwrap().jobs;
    for (place, job) in jobs.iter_mut().enumerate() {
        let draw = u64::try_from(place).unwrap().wrapping_mul(seed.wrapping_mul(31) + 7) % 60;
        if draw.is_multiple_of(3) {
            job.class = JobClass::Online;
        }
        if draw < 40 {
            let part = u16::try_from(draw).unwrap();
            job.demand = Some(Demand { sm: 100 + 20 * part, memory: 400 - 10 * part });
        }
        if draw.is_multiple_of(7) {
            job.restore_ms = None;
        }
        job.requested = Bytes::from_mib(1_000 + draw * 200);
        (job.memory_at_start, job.memory_at_end) = (job.requested, job.requested);
    }
    jobs
}

fn checked(name: &str, jobs: &[SimulatedJob]) -> Result<RunOutcome, String> {
    let decides = Checked { policy: policy(name).unwrap(), wrong: Mutex::default() };
    let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy: &decides,
        overheads: Overheads::default(),
        round_ms: 0,
        seed: 1,
        plot: false,
    };
    let outcome = run(setup, &mut |_| {}).map_err(|refused| refused.to_string())?;
    let wrong = decides.wrong.into_inner().unwrap();
    if wrong.is_empty() { Ok(outcome) } else { Err(format!("{wrong:?}")) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn no_slice_is_given_away_twice_and_every_job_ends(
        seed in 1_u64..1_000,
        gap in 10_u64..120,
        name in prop::sample::select(vec!["mmk", "miger", "tessera"]),
    ) {
        let jobs = mixed(seed, 40, gap);
        let outcome = checked(name, &jobs);
        prop_assert!(outcome.is_ok(), "{name}: {outcome:?}");
    }

    #[test]
    fn who_serves_answers_or_would_lose_its_work_is_never_stopped(
        seed in 1_u64..1_000,
        name in prop::sample::select(vec!["mmk", "miger"]),
    ) {
        let jobs = mixed(seed, 40, 40);
        let outcome = checked(name, &jobs).unwrap();
        for (job, done) in jobs.iter().zip(&outcome.jobs) {
            let stays = job.class == JobClass::Online || job.restore_ms.is_none();
            prop_assert!(!stays || (done.moves, done.preemptions) == (0, 0), "{:?}", done);
        }
    }
}

#[test]
fn mmk_shares_where_slices_would_leave_multiprocessors_idle() {
    // Their memory lets two of them have slices, and three have the whole GPU.
    let line = |number: u64| {
        format!(
            r#"{{"submit_s": {number}, "memory_mib": 12000, "restore_s": 1, "sm_percent": 10,
                "bandwidth_percent": 2, "times_s": {{"*": {{"3": 150, "7": 100}}}}}}"#
        )
        .replace('\n', "")
    };
    let text: Vec<String> = (0..10).map(line).collect();
    let jobs = workload::file::read("w.jsonl", &text.join("\n")).unwrap().jobs;
    let one = |name: &str| {
        let fleet = GpuFleet::parse("a100-40gb").unwrap();
        let decides = policy(name).unwrap();
        let setup = SimulationSetup {
            jobs: &jobs,
            fleet: &fleet,
            policy: decides.as_ref(),
            overheads: Overheads::default(),
            round_ms: 0,
            seed: 1,
            plot: false,
        };
        run(setup, &mut |_| {}).unwrap().makespan_ms
    };
    assert!(one("mmk") < one("miso"), "{} {}", one("mmk"), one("miso"));
}

/// So many jobs at once that keep little of a GPU busy, and hardly need one slice of it.
fn light(count: u64, bandwidth: u64) -> Vec<SimulatedJob> {
    let line = |_| {
        format!(
            r#"{{"submit_s": 0, "memory_mib": 2000, "restore_s": 1, "sm_percent": 5,
                "bandwidth_percent": {bandwidth}, "times_s": {{"*": {{"1": 110, "7": 100}}}}}}"#
        )
        .replace('\n', "")
    };
    let text: Vec<String> = (0..count).map(line).collect();
    workload::file::read("w.jsonl", &text.join("\n")).unwrap().jobs
}

fn makespan_ms(jobs: &[SimulatedJob], policy: &Tessera) -> u64 {
    let fleet = GpuFleet::parse("a100-40gb").unwrap();
    let overheads = Overheads::default();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy,
        overheads,
        round_ms: 0,
        seed: 1,
        plot: false,
    };
    run(setup, &mut |_| {}).unwrap().makespan_ms
}

#[test]
fn tessera_shares_slices_where_that_is_predicted_to_pay_and_only_there() {
    let alone = Tessera { together: f64::INFINITY, ..Tessera::default() };
    // Little of the multiprocessors and of the bandwidth: two get on well on a seventh.
    let calm = light(14, 1);
    let (shared, apart) = (makespan_ms(&calm, &Tessera::default()), makespan_ms(&calm, &alone));
    assert!(shared * 10 < apart * 9, "{shared} ms together, {apart} ms apart");
    // Bound by bandwidth: never under MPS (the study's first rule).
    let loud = light(14, 20);
    assert_eq!(makespan_ms(&loud, &Tessera::default()), makespan_ms(&loud, &alone));
}

#[test]
fn time_slices_take_slightly_less_than_as_many_times_as_long_as_there_are_jobs() {
    let job = workload::papers::plain("busy", 4_000, &[(1, 100_000)]);
    let decides = policy("time-slicing").unwrap();
    for (jobs, least, most) in [(1, 1.0, 1.01), (2, 1.9, 2.0), (3, 2.8, 3.0), (4, 3.8, 4.0)] {
        let jobs = vec![job.clone(); jobs];
        let setup = SimulationSetup {
            jobs: &jobs,
            fleet: &GpuFleet::parse("a100-40gb").unwrap(),
            policy: decides.as_ref(),
            overheads: Overheads::default(),
            round_ms: 0,
            seed: 1,
            plot: false,
        };
        let done = run(setup, &mut |_| {}).unwrap();
        let times = f64::from(u32::try_from(done.makespan_ms).unwrap()) / 100_000.0;
        assert!((least..most).contains(&times), "{} jobs: {times}", jobs.len());
        // Three at once, the fourth after them.
        let at_once = done.jobs.iter().filter(|job| job.start_ms == done.jobs[0].start_ms).count();
        assert_eq!(at_once, jobs.len().min(3));
    }
}

/// Runs light jobs under `tessera`, with the kernel queue itself in virtual time.
fn run_light(
    jobs: &[SimulatedJob],
    sharing: SimulatedSharing,
    times: RunTimeKnowledge,
) -> RunOutcome {
    let kernel_sharing = KernelSharingModel::Queue;
    let overheads = Overheads { sharing, times, kernel_sharing, ..Overheads::default() };
    let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
    let policy = policy("tessera").unwrap();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy: policy.as_ref(),
        overheads,
        round_ms: 0,
        seed: 1,
        plot: false,
    };
    run(setup, &mut |_| {}).unwrap()
}

#[test]
fn where_nothing_is_known_auto_does_exactly_what_exclusive_does() {
    for seed in 601..=605 {
        let mut jobs = workload::built_in("light:jobs=60,gap=60", seed).unwrap().jobs;
        jobs.iter_mut().for_each(|job| job.busy = None);
        for times in [RunTimeKnowledge::Unknown, RunTimeKnowledge::Learned] {
            let auto = run_light(&jobs, SimulatedSharing::Auto, times);
            let exclusive = run_light(&jobs, SimulatedSharing::Exclusive, times);

            assert_eq!(auto.jobs, exclusive.jobs, "seed {seed}, {times:?}");
        }
    }
}

#[test]
fn auto_gains_on_average_where_jobs_are_light_and_slices_are_short() {
    let mut sums = [0, 0];
    for seed in 601..=605 {
        let jobs = workload::built_in("light:jobs=60,gap=60", seed).unwrap().jobs;
        for (at, sharing) in
            [SimulatedSharing::Auto, SimulatedSharing::Exclusive].into_iter().enumerate()
        {
            let done = run_light(&jobs, sharing, RunTimeKnowledge::Learned);
            assert_eq!(done.jobs.len(), jobs.len());
            sums[at] += done.jobs.iter().map(|job| job.end_ms - job.submit_ms).sum::<u64>();
        }
    }
    assert!(sums[0] < sums[1], "{sums:?}");
}
