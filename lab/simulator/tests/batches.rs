//! `tessera`: closed batches of jobs that can't be moved, on one A100, compared with the best possible schedule.

use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::job::SimulatedJob;
use tessera_simulator::cluster::metrics::Summary;
use tessera_simulator::cluster::overheads::Overheads;
use tessera_simulator::cluster::{SimulationSetup, policy, run, workload};

/// Memory slices of an A100.
const SLICES: usize = 8;

/// Sizes of an A100-40GB: compute slices, GB of memory, memory slices, and where they may start.
const SIZES: [(u8, u64, usize, &[usize]); 5] = [
    (1, 5, 1, &[0, 1, 2, 3, 4, 5, 6]),
    (2, 10, 2, &[0, 2, 4]),
    (3, 20, 4, &[0, 4]),
    (4, 20, 4, &[0]),
    (7, 40, 8, &[0]),
];

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

/// The least makespan of any schedule, if cuts cost nothing: every order, size and slot is tried.
struct ExactSearch {
    /// Of each job: its time on each size, with the size's place in [`SIZES`].
    options: Vec<Vec<(u64, usize)>>,
    best: u64,
}

impl ExactSearch {
    fn least_ms(jobs: &[SimulatedJob], known_ms: u64) -> u64 {
        let overheads = Overheads::default();
        let options = jobs.iter().map(|job| {
            let on = |size: usize| {
                let (compute, gb, ..) = SIZES[size];
                let fits = job.requested.get() < (gb + 1) * 1_000_000_000;
                let ms = job.time("a100-40gb", compute).filter(|_| fits)?;
                Some((ms + overheads.start_ms(job), size))
            };
            (0..SIZES.len()).filter_map(on).collect()
        });
        let mut search = Self { options: options.collect(), best: known_ms };
        let all = (0..jobs.len()).collect();
        search.extend([0; SLICES], all, 0);
        search.best
    }

    /// Adds one of the jobs that are left, none of them before `last`. `free` is when each memory slice is free.
    fn extend(&mut self, free: [u64; SLICES], left: Vec<usize>, last: u64) {
        if left.is_empty() {
            self.best = self.best.min(free.into_iter().max().unwrap());
            return;
        }
        let area = |job: &usize| {
            let of = |(ms, size): &(u64, usize)| ms * u64::try_from(SIZES[*size].2).unwrap();
            self.options[*job].iter().map(of).min().unwrap()
        };
        let used: u64 = free.iter().map(|at| *at.max(&last)).sum();
        let area = used + left.iter().map(area).sum::<u64>();
        let least = |job: &usize| self.options[*job].iter().map(|(ms, _)| *ms).min().unwrap();
        let longest = left.iter().map(least).max().unwrap();
        if area.div_ceil(8) >= self.best || last + longest >= self.best {
            return;
        }
        for job in &left {
            let rest: Vec<usize> = left.iter().copied().filter(|other| other != job).collect();
            for (ms, size) in self.options[*job].clone() {
                let (_, _, slices, starts) = SIZES[size];
                let mut tried: Vec<[u64; SLICES]> = Vec::new();
                for start in starts {
                    let slot = *start..start + slices;
                    let begin = free[slot.clone()].iter().copied().max().unwrap();
                    let mut next = free;
                    next[slot].fill(begin + ms);
                    if begin >= last && begin + ms < self.best && !tried.contains(&next) {
                        tried.push(next);
                        self.extend(next, rest.clone(), begin);
                    }
                }
            }
        }
    }
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
        let least = ExactSearch::least_ms(&jobs, u64::try_from(millis).unwrap() + 1);
        found / std::time::Duration::from_millis(least).as_secs_f64()
    };

    let ratios: Vec<f64> = (1..=10).map(ratio).collect();

    assert!(ratios.iter().all(|ratio| *ratio > 0.999), "{ratios:?}");
    assert!(mean(ratios.iter().copied()) <= 1.10, "{ratios:?}");
}
