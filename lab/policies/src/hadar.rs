//! `hadar`: jobs get the GPU models on which their utility exceeds the price most, on whole GPUs of a mixed cluster.
//!
//! Source: Sultana et al., *Hadar*, IPDPS 2024 (arXiv 2503.10918), of which the abstract was read. Its primal-dual rule
//! is known. In each round, the price of a GPU model is `U_min (U_max / U_min)^(used / GPUs)`. Both factors bound the
//! utility of a job there. A job takes the allocation with the largest utility minus cost, if that is positive.
//!
//! Where it had to choose, since the paper's details were not available:
//!
//! - A utility is one over the time from a job's submit to its end, if it runs there from now on. `hadar-throughput`
//!   multiplies it by the job's shortest run time: its effective throughput. On the seeds 12 to 14 the former has means
//!   that are a third shorter than those of `gavel`, and the latter has shorter total durations. If a run time is
//!   not known, a job is expected to run as long again as it has, and at least for one round.
//! - Bounds are those of the utilities of the jobs that compete in the round.
//! - The pair of a job and a model with the largest difference is served first, and prices are adjusted after each.
//!   The paper chooses between jobs by dynamic programming.
//! - GPUs that are left since no difference is positive go to the jobs with the largest utility, so none idles while a
//!   job waits that it could run.
//!
//! Rounds take six minutes, as in Gavel, whose simulator the paper extends. [`crate::rounds`] has the rest.

use tessera_model::Millis;

use tessera_placement::Policy;
use tessera_placement::decision::Decision;
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, QueuedJob};

use crate::rounds::{self, ROUND, RoundInput, RoundJob, real};

/// The policies `hadar` and `hadar-throughput`.
#[derive(Clone, Copy, Debug)]
pub struct Hadar {
    name: &'static str,
    utility: Utility,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Utility {
    Completion,
    Throughput,
}

impl Hadar {
    /// A job that ends sooner has a larger utility.
    pub const HADAR: Self = Self { name: "hadar", utility: Utility::Completion };
    /// A job with a larger effective throughput has a larger utility.
    pub const THROUGHPUT: Self = Self { name: "hadar-throughput", utility: Utility::Throughput };
}

impl Policy for Hadar {
    fn name(&self) -> &'static str {
        self.name
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
        let choose = |input: &RoundInput| choose(input, self.utility);
        rounds::decide(self.name, cluster, knowledge, queue, (now, starts_max), &choose)
    }
}

/// Returns which job gets a GPU of which model in this round.
fn choose(input: &RoundInput, utility: Utility) -> Vec<(usize, usize)> {
    let utilities: Vec<Vec<f64>> =
        input.jobs.iter().map(|job| utilities_of(job, utility)).collect();
    let prices: Vec<PriceCurve> = (0..input.gpus.len())
        .map(|model| PriceCurve::of(&utilities, model, input.gpus[model]))
        .collect();
    let mut used: Vec<usize> =
        input.gpus.iter().zip(&input.free).map(|(gpus, free)| gpus.saturating_sub(*free)).collect();
    let mut chosen = Vec::new();
    let mut open: Vec<(usize, usize)> = input.pairs().collect();
    loop {
        let margin = |(job, model): &(usize, usize)| {
            utilities[*job][*model] - prices[*model].at(used[*model])
        };
        let best = open
            .iter()
            .filter(|(_, model)| used[*model] < input.gpus[*model])
            .map(|pair| (margin(pair), *pair))
            .filter(|(margin, _)| *margin > 0.0)
            .max_by(|(a, pair), (b, other)| a.total_cmp(b).then(other.cmp(pair)));
        let Some((_, (job, model))) = best else { break };
        used[model] += 1;
        chosen.push((job, model));
        open.retain(|(other, _)| *other != job);
    }
    let by_utility = |(job, model): &(usize, usize)| utilities[*job][*model];
    open.sort_by(|a, b| by_utility(b).total_cmp(&by_utility(a)).then(a.cmp(b)));
    input.give_out(open, &mut chosen);
    chosen
}

/// Returns a job's utility on each model; zero where it doesn't run.
fn utilities_of(job: &RoundJob, utility: Utility) -> Vec<f64> {
    let ran: f64 = job.received.iter().sum();
    let fastest = job.speeds.iter().flatten().copied().fold(f64::MIN_POSITIVE, f64::max);
    // How long it would run from now on, on the fastest model.
    let rest = job.rests.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let rest = if rest.is_finite() { rest } else { ran.max(ROUND.duration().as_secs_f64()) };
    let score = match utility {
        Utility::Completion => 1.0,
        Utility::Throughput if job.rests.iter().any(Option::is_some) => 1.0 / fastest,
        Utility::Throughput => ran + rest,
    };
    let on = |speed: &Option<f64>| {
        let Some(speed) = speed else { return 0.0 };
        score / (job.age + rest * fastest / speed).max(0.001)
    };
    job.speeds.iter().map(on).collect()
}

/// The price of a GPU of one model, by how many are in use.
struct PriceCurve {
    least: f64,
    most: f64,
    gpus: f64,
}

impl PriceCurve {
    fn of(utilities: &[Vec<f64>], model: usize, gpus: usize) -> Self {
        let runs = || utilities.iter().map(|of_job| of_job[model]).filter(|utility| *utility > 0.0);
        let least = runs().fold(f64::INFINITY, f64::min);
        let most = runs().fold(0.0, f64::max);
        // So far below every utility that the first GPU is never refused.
        let least = if least.is_finite() { least / 4.0 } else { 1.0 };
        Self { least, most: most.max(least), gpus: real(gpus.max(1)) }
    }

    fn at(&self, used: usize) -> f64 {
        self.least * (self.most / self.least).powf(real(used) / self.gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_grow_with_use_from_below_the_least_utility_to_the_largest() {
        let prices = PriceCurve::of(&[vec![0.2], vec![0.8], vec![0.0]], 0, 4);
        assert!(prices.at(0) < 0.2);
        assert!((1..=4).all(|used| prices.at(used) > prices.at(used - 1)));
        assert!((prices.at(4) - 0.8).abs() < 1e-9);
    }
}
