//! The configuration program: what no MIG-only schedule beats that also knows that a job is on one
//! slice at a time.
//!
//! Time is cut at the releases. In each interval a GPU stands so long in each layout, and a job is
//! so long on each size; a size holds no more jobs than there are such slices, a job is in one
//! place at a time, and each job gets done. Any schedule gives such numbers, so that the least end
//! of the last interval bounds every makespan. Releases are rounded down to [`INTERVALS`] of
//! them, which can only lower the bound.

use microlp::{
    ComparisonOp, LinearExpr, OptimizationDirection, Problem, SolutionStatus, SolveOutcome,
    Variable,
};

use super::Market;
use crate::cluster::fleet::Fleet;
use crate::cluster::job::Job;
use crate::cluster::number::seconds;

/// Most intervals.
const INTERVALS: usize = 16;

/// Most unknowns of a program that is solved: some seconds.
const UNKNOWNS_MAX: usize = 3_000;

/// What rounding in the solver may cost.
const SAFE: f64 = 1.0 - 1e-6;

/// Returns the bound in seconds; nothing where the program would be too large, or has no solution.
pub fn makespan(jobs: &[Job], fleet: &Fleet) -> Option<f64> {
    let market = Market::new(fleet);
    let mut releases: Vec<u64> = jobs.iter().map(|job| job.submit_ms).collect();
    releases.sort_unstable();
    releases.dedup();
    let stride = releases.len().div_ceil(INTERVALS).max(1);
    let starts: Vec<u64> = releases.into_iter().step_by(stride).collect();
    if jobs.len() * market.sizes.len() * starts.len() > UNKNOWNS_MAX {
        return None;
    }
    Program::of(&market, jobs, &starts).solve()
}

struct Program {
    problem: Problem,
    /// The length of the last interval, which is to be least.
    last: Variable,
    last_start_s: f64,
}

impl Program {
    fn of(market: &Market, jobs: &[Job], starts: &[u64]) -> Self {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let last = problem.add_var(1.0, (0.0, f64::INFINITY));
        let length = |k: usize| {
            let next = starts.get(k + 1)?;
            Some(seconds(next - starts[k]))
        };
        let mut done: Vec<LinearExpr> = jobs.iter().map(|_| LinearExpr::empty()).collect();
        let tables: Vec<_> = jobs.iter().map(|job| market.times(job)).collect();
        for (k, start) in starts.iter().enumerate() {
            let mut held: Vec<LinearExpr> =
                market.sizes.iter().map(|_| LinearExpr::empty()).collect();
            for (job, (known, times)) in jobs.iter().zip(&tables).enumerate() {
                let released = starts.iter().rposition(|s| *s <= known.submit_ms).unwrap_or(0);
                if starts[released] > *start {
                    continue;
                }
                let mut somewhere = LinearExpr::empty();
                for (size, time) in times.iter().enumerate() {
                    let Some(time) = time.filter(|time| *time > 0.0) else { continue };
                    let on = problem.add_var(0.0, (0.0, f64::INFINITY));
                    done[job].add(on, 1.0 / time);
                    held[size].add(on, 1.0);
                    somewhere.add(on, 1.0);
                }
                within(&mut problem, somewhere, length(k), last, 1.0);
            }
            for (gpus, layouts) in &market.models {
                let mut standing = LinearExpr::empty();
                for counts in layouts {
                    let stands = problem.add_var(0.0, (0.0, f64::INFINITY));
                    standing.add(stands, 1.0);
                    for (held, count) in held.iter_mut().zip(counts).filter(|(_, n)| **n > 0.0) {
                        held.add(stands, -count);
                    }
                }
                within(&mut problem, standing, length(k), last, *gpus);
            }
            for held in held {
                problem.add_constraint(held, ComparisonOp::Le, 0.0);
            }
        }
        for done in done {
            problem.add_constraint(done, ComparisonOp::Eq, 1.0);
        }
        let last_start_s = starts.last().map_or(0.0, |start| seconds(*start));
        Self { problem, last, last_start_s }
    }

    fn solve(self) -> Option<f64> {
        let SolveOutcome::Solution(solved) = self.problem.solve().ok()? else { return None };
        // Only an optimum bounds what others can do.
        let optimal = solved.status() == SolutionStatus::Optimal;
        optimal.then(|| (self.last_start_s + solved.var_value(self.last)) * SAFE)
    }
}

/// Says that a sum is at most so many times the length of an interval: of the last one, that of
/// the unknown.
fn within(
    problem: &mut Problem,
    mut sum: LinearExpr,
    length: Option<f64>,
    last: Variable,
    times: f64,
) {
    match length {
        Some(length) => problem.add_constraint(sum, ComparisonOp::Le, times * length),
        None => {
            sum.add(last, -times);
            problem.add_constraint(sum, ComparisonOp::Le, 0.0);
        }
    }
}
