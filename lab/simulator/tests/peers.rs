//! The reference policies of other schedulers: what their papers guarantee.

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;
use tessera_lab_policies::{Backfill, ElasticFlow, ROUND};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::{ClusterView, Decision, Knowledge, Policy, QueuedJob};
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::SimulatedJob;
use tessera_simulator::cluster::metrics::RunOutcome;
use tessera_simulator::cluster::overheads::{Overheads, RepartitionTime, RunTimeKnowledge};
use tessera_simulator::cluster::workload::{self, elsewhere};
use tessera_simulator::cluster::{SimulationSetup, policy, run};

/// Times are exact: neither cuts nor starts take any.
fn exact() -> Overheads {
    Overheads { cutting: RepartitionTime::Free, start_up_ms: Some(0), ..Overheads::default() }
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

fn unmovable(name: &str, seed: u64) -> Vec<SimulatedJob> {
    let mut jobs = workload::built_in(name, seed).unwrap().jobs;
    workload::limit_movable(&mut jobs, 0, seed);
    jobs
}

/// Keeps the latest start, in milliseconds, that a policy stated for each job: its reservation.
#[derive(Debug)]
struct Promises {
    policy: Backfill,
    stated: Mutex<BTreeMap<JobId, u64>>,
}

impl Policy for Promises {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn needs_run_times(&self) -> bool {
        self.policy.needs_run_times()
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        let decided = self.policy.decide_with(cluster, knowledge, queue, now, starts_max);
        let mut stated = self.stated.lock().unwrap();
        for decision in &decided {
            let Decision::Wait { job, why, .. } = decision else { continue };
            let rest = why.summary.strip_prefix("its reservation begins in ");
            let Some(rest) = rest.and_then(|rest| rest.strip_suffix(" s")) else { continue };
            let start = now.get() + rest.parse::<u64>().unwrap() * 1_000;
            let known = stated.entry(*job).or_insert(start);
            *known = start.min(*known);
        }
        drop(stated);
        decided
    }
}

fn late(policy: Backfill, jobs: &[SimulatedJob]) -> (usize, Vec<(u64, u64, u64)>) {
    let watched = Promises { policy, stated: Mutex::default() };
    let done = simulated(jobs, "2xa100-40gb", &watched, exact());
    assert_eq!(done.out_of_memory, 0, "times are not exact where jobs run out of memory");
    let stated = watched.stated.into_inner().unwrap();
    let late = stated.iter().filter_map(|(job, promised)| {
        let started = done.jobs[usize::try_from(job.number()).unwrap() - 1].start_ms;
        // Progress is known in millionths.
        (started > promised + 1_000).then_some((job.number(), *promised, started))
    });
    (stated.len(), late.collect())
}

#[test]
fn many_jobs_have_reservations_in_the_workloads_of_these_tests() {
    let jobs = unmovable("fragments:jobs=60,gap=60", 3);
    assert!(late(Backfill::EASY, &jobs).0 >= 5);
    assert!(late(Backfill::CONSERVATIVE, &jobs).0 >= 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn no_job_starts_after_a_reservation_that_was_stated_where_times_are_exact(
        seed in 0_u64..1_000,
        workload in prop::sample::select(vec![
            "poisson:jobs=50,gap=60", "bursts:jobs=50,gap=100", "fragments:jobs=60,gap=60",
        ]),
        policy in prop::sample::select(vec![Backfill::EASY, Backfill::CONSERVATIVE]),
    ) {
        let (_, late) = late(policy, &unmovable(workload, seed));
        prop_assert!(late.is_empty(), "{}: job, stated, started: {:?}", policy.name(), late);
    }

    #[test]
    fn jobs_that_cannot_be_moved_are_stopped_by_no_reference(
        seed in 0_u64..1_000,
        name in prop::sample::select(vec!["easy", "conservative", "gavel", "hadar", "elastic-flow"]),
        times in prop::sample::select(vec![RunTimeKnowledge::Known, RunTimeKnowledge::Unknown]),
    ) {
        let cluster = "2xa100-40gb,2xa30-24gb";
        let mut jobs = unmovable("poisson:jobs=40,gap=60", seed);
        elsewhere::fill(&mut jobs, &GpuFleet::parse(cluster).unwrap().models());
        let decides = policy(name).unwrap();
        let done = simulated(&jobs, cluster, decides.as_ref(), Overheads { times, ..Overheads::default() });
        prop_assert_eq!((done.moves, done.preemptions), (0, 0));
    }
}

/// A job of these minutes on any slice that has the memory.
fn lasting(minutes: u64, mib: u64, submit_ms: u64) -> SimulatedJob {
    let job = workload::built_in("poisson:jobs=1,gap=0", 1).unwrap().jobs.remove(0);
    let memory = Bytes::from_mib(mib);
    SimulatedJob {
        times: [("*".to_owned(), [(1, minutes * 60_000)].into())].into(),
        requested: memory,
        memory_at_start: memory,
        memory_at_end: memory,
        restore_ms: None,
        iterations: None,
        submit_ms,
        ..job
    }
}

#[test]
fn a_short_job_fills_the_gap_before_a_reservation_and_one_without_a_known_time_does_not() {
    // Half of the GPU is in use for an hour; then a job needs all of it, and a short one comes last.
    let jobs = [lasting(60, 18_000, 0), lasting(60, 30_000, 1_000), lasting(10, 4_000, 2_000)];
    for policy in [Backfill::EASY, Backfill::CONSERVATIVE] {
        let starts = |times| {
            let done = simulated(&jobs, "a100-40gb", &policy, Overheads { times, ..exact() });
            done.jobs.iter().map(|job| job.start_ms / 1_000).collect::<Vec<u64>>()
        };
        assert_eq!(starts(RunTimeKnowledge::Known), [0, 3_600, 2]);
        assert_eq!(starts(RunTimeKnowledge::Unknown), [0, 3_600, 7_200]);
    }
}

#[test]
fn gavel_shares_one_gpu_between_equal_jobs_in_rounds_and_an_unmovable_job_keeps_it() {
    let length = 10 * ROUND.get();
    let mut jobs = [(); 3].map(|()| SimulatedJob { restore_ms: Some(0), ..lasting(60, 4_000, 0) });
    let gavel = policy("gavel").unwrap();
    let shared = simulated(&jobs, "a100-40gb", gavel.as_ref(), exact());
    // In every three rounds, each job has one.
    let ends: Vec<u64> = shared.jobs.iter().map(|job| job.end_ms).collect();
    assert!(ends.iter().all(|end| *end > 3 * length - 4 * ROUND.get()), "{ends:?}");
    assert!(shared.moves >= 20, "{} moves", shared.moves);

    for job in &mut jobs {
        job.restore_ms = None;
    }
    let kept = simulated(&jobs, "a100-40gb", gavel.as_ref(), exact());
    let mut ends: Vec<u64> = kept.jobs.iter().map(|job| job.end_ms).collect();
    ends.sort_unstable();
    assert_eq!(ends, [length, 2 * length, 3 * length]);
}

#[test]
fn elastic_flow_meets_every_deadline_that_it_admitted_and_refuses_what_would_break_one() {
    // One GPU, three jobs of a whole GPU each. Two of them can end in time; the third came last and is late.
    let hour = 3_600_000;
    let mut jobs = [0, 1, 2].map(|place| SimulatedJob {
        deadline_ms: Some(2 * hour + 60_000),
        ..lasting(60, 30_000, place * 1_000)
    });
    // The last is due first, so by deadline alone it would go before the second.
    jobs[2].deadline_ms = Some(2 * hour + 30_000);
    let done = simulated(&jobs, "a100-40gb", &ElasticFlow, exact());
    let in_time: Vec<Option<bool>> = done.jobs.iter().map(|job| job.in_time).collect();
    assert_eq!(in_time, [Some(true), Some(true), Some(false)]);
}
