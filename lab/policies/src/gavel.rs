//! `gavel`: max-min fairness over the speeds of jobs on the models of a mixed cluster, on whole GPUs.
//!
//! Source: Narayanan et al., *Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads*, OSDI
//! 2020, §4.1 (the policy) and §5 (rounds and priorities), and the authors' public program.
//!
//! - A linear program chooses the part `x` of its time that each job has on each GPU model. It maximises the least
//!   `Σ speed · x` over all jobs, each relative to an equal part of every model. A job is in one place at a time, and
//!   a model has no more GPUs than it has.
//! - Rounds take six minutes. A round serves pairs of a job and a model by `x` over the part of its time that the job has
//!   received there, the largest first. Pairs that have received nothing come before all others, by `x`.
//!
//! Where it had to choose: of all solutions with the same least job, the one with nearly the largest sum is taken. The
//! received part is counted from the submit; the program counts it from its last solution on, and carries over what is
//! missing. GPUs that no pair with a part uses go to the fastest job that is left. All jobs have the same weight.
//! Jobs have one GPU each, and no two jobs share one. [`crate::rounds`] has the rest.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettingsBuilder, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus,
};

use tessera_model::Millis;

use tessera_placement::Policy;
use tessera_placement::decision::Decision;
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

use crate::rounds::{self, ROUND, RoundInput, real};

const NAME: &str = "gavel";

/// The policy `gavel`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gavel;

/// How much the mean counts next to the least: only to choose between solutions with the same least.
const MEAN_WEIGHT: f64 = 1e-4;

/// A smaller part of a job's time counts as none: the solver's solutions are not exact.
const PART_MIN: f64 = 1e-5;

impl Policy for Gavel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn round_interval(&self) -> Option<Millis> {
        Some(ROUND)
    }

    fn decide_with(
        &self,
        cluster: &ClusterView,
        knowledge: Knowledge<'_>,
        queue: &mut dyn Iterator<Item = &QueuedJob>,
        now: Millis,
        starts_max: usize,
    ) -> Vec<Decision> {
        rounds::decide(NAME, cluster, knowledge, queue, (now, starts_max), &choose)
    }
}

/// Returns which job gets a GPU of which model in this round.
fn choose(input: &RoundInput) -> Vec<(usize, usize)> {
    let speeds: Vec<Vec<Option<f64>>> = input.jobs.iter().map(|job| job.speeds.clone()).collect();
    let gpus: Vec<f64> = input.gpus.iter().map(|gpus| real(*gpus)).collect();
    let parts = max_min_parts(&speeds, &gpus);
    let part = |job: usize, model: usize| parts.as_ref().map_or(0.0, |parts| parts[job][model]);
    // Pairs without received time come first, by their part.
    let priority = |(job, model): (usize, usize)| {
        let received = input.jobs[job].received[model] / input.jobs[job].age;
        match received > 0.0 {
            true => (0, part(job, model) / received),
            false => (1, part(job, model)),
        }
    };
    let mut served: Vec<((u8, f64), (usize, usize))> = input
        .pairs()
        .filter(|(job, model)| part(*job, *model) > PART_MIN)
        .map(|pair| (priority(pair), pair))
        .collect();
    served.sort_by(|(a, pair), (b, other)| {
        b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then(pair.cmp(other))
    });
    let mut chosen = Vec::new();
    input.give_out(served.into_iter().map(|(_, pair)| pair), &mut chosen);
    let relative = |(job, model): (usize, usize)| {
        let speeds = input.jobs[job].speeds.iter().flatten();
        let fastest = speeds.copied().fold(f64::MIN_POSITIVE, f64::max);
        input.jobs[job].speeds[model].unwrap_or(0.0) / fastest
    };
    let mut left: Vec<(usize, usize)> = input.pairs().collect();
    left.sort_by(|a, b| relative(*b).total_cmp(&relative(*a)).then(a.cmp(b)));
    input.give_out(left, &mut chosen);
    chosen
}

/// Returns the part of its time that each job has on each model, for the largest least speed; `None` if the solver
/// finds no solution.
///
/// `speeds` has each job's speed by model, `None` where it doesn't run. `gpus` is the number of GPUs by model. Speeds are
/// compared relative to an equal part of all GPUs.
pub(crate) fn max_min_parts(speeds: &[Vec<Option<f64>>], gpus: &[f64]) -> Option<Vec<Vec<f64>>> {
    let mut unknowns: Vec<(usize, usize, f64)> = Vec::new();
    for (job, of_job) in speeds.iter().enumerate() {
        let equal = equal_part_speed(of_job, gpus, speeds.len());
        if equal <= 0.0 {
            continue;
        }
        for (model, speed) in of_job.iter().enumerate() {
            unknowns.extend(speed.map(|speed| (job, model, speed / equal)));
        }
    }
    if unknowns.is_empty() {
        return Some(vec![vec![0.0; gpus.len()]; speeds.len()]);
    }
    // The last unknown is the least relative speed.
    let least = unknowns.len();
    let mut rows = Rows::default();
    for job in 0..speeds.len() {
        let of_job = || unknowns.iter().enumerate().filter(move |(_, (of, ..))| *of == job);
        if of_job().next().is_none() {
            continue;
        }
        rows.at_most(of_job().map(|(at, _)| (at, 1.0)), 1.0);
        let reached = of_job().map(|(at, (.., speed))| (at, -speed));
        rows.at_most(reached.chain([(least, 1.0)]), 0.0);
    }
    for (model, gpus) in gpus.iter().enumerate() {
        let on_model = unknowns.iter().enumerate().filter(|(_, (_, of, _))| *of == model);
        rows.at_most(on_model.map(|(at, _)| (at, 1.0)), *gpus);
    }
    for unknown in 0..=least {
        rows.at_most([(unknown, -1.0)], 0.0);
    }
    let count = real(speeds.len().max(1));
    let aim = unknowns.iter().map(|(.., speed)| -MEAN_WEIGHT * speed / count);
    let aim: Vec<f64> = aim.chain([-1.0]).collect();
    let solution = rows.minimise(&aim)?;
    let mut parts = vec![vec![0.0; gpus.len()]; speeds.len()];
    for ((job, model, _), part) in unknowns.iter().zip(&solution) {
        parts[*job][*model] = part.clamp(0.0, 1.0);
    }
    Some(parts)
}

/// Returns a job's speed if all jobs had an equal part of every model, and at most all of their time.
fn equal_part_speed(speeds: &[Option<f64>], gpus: &[f64], jobs: usize) -> f64 {
    let divisor = real(jobs).max(gpus.iter().sum());
    speeds
        .iter()
        .zip(gpus)
        .map(|(speed, gpus)| speed.unwrap_or(0.0) * gpus / divisor.max(1.0))
        .sum()
}

/// The rows of a linear program: each sum is at most its limit.
#[derive(Default)]
struct Rows {
    rows: Vec<usize>,
    columns: Vec<usize>,
    factors: Vec<f64>,
    limits: Vec<f64>,
}

impl Rows {
    fn at_most(&mut self, sum: impl IntoIterator<Item = (usize, f64)>, limit: f64) {
        for (unknown, factor) in sum {
            self.rows.push(self.limits.len());
            self.columns.push(unknown);
            self.factors.push(factor);
        }
        self.limits.push(limit);
    }

    fn minimise(self, aim: &[f64]) -> Option<Vec<f64>> {
        let (rows, unknowns) = (self.limits.len(), aim.len());
        let matrix =
            CscMatrix::new_from_triplets(rows, unknowns, self.rows, self.columns, self.factors);
        let square = CscMatrix::zeros((unknowns, unknowns));
        let settings = DefaultSettingsBuilder::default().verbose(false).build().ok()?;
        let cones = [NonnegativeConeT(rows)];
        let mut solver =
            DefaultSolver::new(&square, aim, &matrix, &self.limits, &cones, settings).ok()?;
        solver.solve();
        let solved =
            matches!(solver.solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved);
        solved.then_some(solver.solution.x)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXACT: f64 = 1e-4;

    #[test]
    fn a_job_that_gains_more_from_the_fast_model_has_more_of_its_time_there() {
        // One fast and one slow GPU. The first job is four times as fast on the fast one, the second as fast on both.
        let parts =
            max_min_parts(&[vec![Some(4.0), Some(1.0)], vec![Some(1.0), Some(1.0)]], &[1.0, 1.0])
                .unwrap();
        assert!(parts[0][0] > 0.99 && parts[1][1] > 0.99, "{parts:?}");
    }

    #[test]
    fn equal_jobs_have_equal_parts_and_no_gpu_is_left_idle() {
        let parts =
            max_min_parts(&[vec![Some(1.0)], vec![Some(5.0)], vec![Some(2.0)]], &[2.0]).unwrap();
        for part in &parts {
            assert!((part[0] - 2.0 / 3.0).abs() < EXACT, "{parts:?}");
        }
    }

    proptest! {
        /// The constraints of the program hold, and every job is at least as fast as with an equal part of all GPUs,
        /// which is a solution.
        #[test]
        fn no_gpu_and_no_job_is_given_twice_and_no_job_is_below_its_equal_part(
            speeds in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.8, 0.1_f64..10.0), 3), 1..25),
            gpus in prop::collection::vec(1_u32..6, 3),
        ) {
            let gpus: Vec<f64> = gpus.into_iter().map(f64::from).collect();
            let parts = max_min_parts(&speeds, &gpus).unwrap();
            for (model, gpus) in gpus.iter().enumerate() {
                let given: f64 = parts.iter().map(|part| part[model]).sum();
                prop_assert!(given <= gpus + EXACT, "{} of {}", given, gpus);
            }
            for (job, part) in parts.iter().enumerate() {
                prop_assert!(part.iter().sum::<f64>() <= 1.0 + EXACT);
                let runs = |model: usize| speeds[job][model].is_some() || part[model] == 0.0;
                prop_assert!((0..gpus.len()).all(runs));
                let speed: f64 = speeds[job].iter().zip(part).map(|(speed, part)| speed.unwrap_or(0.0) * part).sum();
                let equal = equal_part_speed(&speeds[job], &gpus, speeds.len());
                prop_assert!(speed >= equal * (1.0 - 0.01) - EXACT, "{} below {}", speed, equal);
            }
        }
    }
}
