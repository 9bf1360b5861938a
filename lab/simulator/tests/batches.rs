//! `tessera`: closed batches of jobs that can't be moved, on one A100, compared with the best possible schedule.

use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::exact_batch;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::SimulatedJob;
use tessera_simulator::cluster::metrics::Summary;
use tessera_simulator::cluster::overheads::Overheads;
use tessera_simulator::cluster::{SimulationSetup, policy, run, workload};

fn batch(jobs: u64, seed: u64) -> Vec<SimulatedJob> {
    let mut jobs = workload::built_in(&format!("poisson:jobs={jobs},gap=0"), seed).unwrap().jobs;
    workload::limit_movable(&mut jobs, 0, seed);
    jobs
}

fn simulate(jobs: &[SimulatedJob], seed: u64) -> Summary {
    let fleet = GpuFleet::parse("a100-40gb").unwrap();
    let overheads = Overheads::default();
    let tessera = policy("tessera").unwrap();
    let setup = SimulationSetup {
        jobs,
        fleet: &fleet,
        policy: tessera.as_ref(),
        overheads,
        round_ms: 0,
        seed,
        plot: false,
    };
    let outcome = run(setup, &mut |_| {}).unwrap();
    Summary::new(&outcome, &WorkloadBounds::new(jobs, &fleet, &overheads))
}

fn mean(of: impl IntoIterator<Item = f64>) -> f64 {
    let all: Vec<f64> = of.into_iter().collect();
    all.iter().sum::<f64>() / f64::from(u32::try_from(all.len()).unwrap())
}

#[test]
fn five_jobs_end_within_a_tenth_of_the_best_possible_schedule_on_average() {
    let ratio = |seed: u64| {
        let jobs = batch(5, seed);
        let found = simulate(&jobs, seed).makespan_s;
        let millis = std::time::Duration::from_secs_f64(found).as_millis();
        let least =
            exact_batch::least_ms(&jobs, &Overheads::default(), u64::try_from(millis).unwrap() + 1);
        found / std::time::Duration::from_millis(least).as_secs_f64()
    };

    let ratios: Vec<f64> = (1..=10).map(ratio).collect();

    assert!(ratios.iter().all(|ratio| *ratio > 0.999), "{ratios:?}");
    assert!(mean(ratios.iter().copied()) <= 1.10, "{ratios:?}");
}
