//! Jobs of several processes in whole clusters: never a part of one, and none starves.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_lab_policies::find_policy;
use tessera_placement::gangs::PATIENCE;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::SimulatedJob;
use tessera_simulator::cluster::metrics::RunOutcome;
use tessera_simulator::cluster::overheads::Overheads;
use tessera_simulator::cluster::workload::{self, file};
use tessera_simulator::cluster::{SimulationSetup, run};

fn simulated(jobs: &[SimulatedJob], gpus: &str, policy: &str) -> RunOutcome {
    let fleet = GpuFleet::parse(gpus).unwrap();
    let policy = find_policy(policy).unwrap();
    let overheads = Overheads::default();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy: &*policy,
        overheads,
        round_ms: 0,
        seed: 1,
        plot: true,
    };
    run(setup, &mut |_| {}).unwrap_or_else(|refused| panic!("{refused}"))
}

/// Small jobs that never cease, and gangs among them.
fn mixed(seed: u64, small: u64, gap: u64, gangs: &[(u64, u32, u32)]) -> Vec<SimulatedJob> {
    let mut jobs =
        workload::built_in(&format!("fragments:jobs={small},gap={gap}"), seed).unwrap().jobs;
    for (at, nodes, gpus) in gangs {
        let line = format!(
            "{{\"submit_s\": {at}, \"duration_s\": 120, \"nodes\": {nodes}, \"gpus_per_node\": {gpus}, \
             \"memory_mib\": 39000, \"name\": \"gang\"}}"
        );
        jobs.extend(file::read("gang.jsonl", &line).unwrap().jobs);
    }
    jobs.sort_by_key(|job| job.submit_ms);
    jobs
}

/// Returns the outcomes of each gang's members, by its first.
fn gangs(jobs: &[SimulatedJob], outcome: &RunOutcome) -> BTreeMap<usize, Vec<(u64, u64, u64)>> {
    let mut gangs: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for (place, job) in jobs.iter().enumerate() {
        if let Some(placed) = job.gang {
            let first = place - usize::try_from(placed.rank).unwrap();
            let finished = &outcome.jobs[place];
            gangs.entry(first).or_default().push((
                finished.submit_ms,
                finished.start_ms,
                finished.end_ms,
            ));
        }
    }
    gangs
}

#[test]
fn under_each_policy_a_gang_starts_together_and_ends_together() {
    let jobs = mixed(3, 60, 20, &[(30, 1, 4), (60, 2, 2), (90, 1, 2)]);

    for policy in ["exclusive", "scheme-b", "tessera", "scheme-a", "miso", "dyna-p"] {
        let outcome = simulated(&jobs, "16xa100-40gb", policy);

        let gangs = gangs(&jobs, &outcome);
        assert_eq!(gangs.len(), 3, "{policy}");
        for members in gangs.values() {
            let first = members[0];
            assert!(members.iter().all(|other| *other == first), "{policy}: {members:?}");
        }
    }
}

#[test]
fn a_gang_that_no_node_can_hold_is_refused() {
    let line = "{\"submit_s\": 0, \"duration_s\": 9, \"gpus_per_node\": 9}";
    let jobs = file::read("g.jsonl", line).unwrap().jobs;
    let fleet = GpuFleet::parse("16xa100-40gb").unwrap();
    let policy = find_policy("scheme-b").unwrap();
    let overheads = Overheads::default();

    let setup = SimulationSetup {
        jobs: &jobs,
        fleet: &fleet,
        policy: &*policy,
        overheads,
        round_ms: 0,
        seed: 1,
        plot: false,
    };
    let refused = run(setup, &mut |_| {}).unwrap_err().to_string();

    assert!(refused.contains("the most on one node: 8"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn small_jobs_that_never_cease_do_not_starve_a_gang(
        seed in 1_u64..1_000,
        gap in 2_u64..10,
        shape in prop::sample::select(vec![(1_u32, 2_u32), (1, 4), (2, 2), (2, 4)]),
    ) {
        let jobs = mixed(seed, 400, gap, &[(100, shape.0, shape.1)]);
        let outcome = simulated(&jobs, "12xa100-40gb", "scheme-b");
        let stay = outcome.segments.iter().map(|s| s.to_ms - s.from_ms).max().unwrap();

        let members = gangs(&jobs, &outcome).into_values().next().unwrap();
        let (submit, start, _) = members[0];

        // Those that are older by more than the patience go before it: each of the GPUs is free
        // after them at the latest when all have run once.
        let older = jobs.iter().filter(|job| {
            job.gang.is_none() && job.submit_ms + PATIENCE.get() < submit
        });
        let most = submit + PATIENCE.get() + (u64::try_from(older.count()).unwrap() + 9) * (stay + 4_000);
        prop_assert!(start <= most, "it starts {} ms after its bound", start - most);
        let last = outcome.jobs.iter().map(|job| job.start_ms).max().unwrap();
        let behind = outcome.jobs.iter().filter(|job| job.submit_ms > submit && job.start_ms > start);
        prop_assert!(last == start || behind.count() > 0, "it starts only when nobody is left");
        prop_assert!(members.iter().all(|member| *member == members[0]), "{members:?}");
    }
}
