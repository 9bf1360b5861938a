//! Bounds of all schedules that give each slice to one job at a time.
//!
//! The bounds hold for any MIG-only schedule, even if partitioning costs nothing; they don't hold
//! if jobs share a slice. The proofs are in `docs/policies.md`.
//!
//! - **Critical path.** No job ends before it was submitted, started up and ran alone on its best
//!   instance.
//! - **Priced work.** Give each instance size a price such that no layout costs more than its
//!   GPU. A job's work is the cheapest way to run it; a GPU does at most its price of work per
//!   second. Any such prices prove a bound; a search over prices makes it tight.
//! - **Configuration program** ([`config`]), for workloads of up to some hundred jobs.

pub mod config;

use std::borrow::Cow;
use std::collections::BTreeMap;

use tessera_placement::GpuView;

use super::fleet::GpuFleet;
use super::job::SimulatedJob;
use super::number::{count, seconds};
use super::overheads::Overheads;

/// Maximum number of rounds of the search for prices. Chosen: it converges long before. Any prices
/// give a bound, so this and the next constant affect only how tight it is.
const ROUNDS_MAX: usize = 40;

/// With more jobs than this, the search for prices considers only every n-th; the bound counts all.
/// Chosen, so that a bound for a million jobs takes no longer than their simulation.
const SEARCHED_MAX: usize = 4_000;

/// The number of times after which the released work is priced separately. Chosen: each one needs a
/// pass over all jobs, and each gives a valid bound.
const CUTS: usize = 64;

/// Lower bounds of one workload on one cluster, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadBounds {
    /// No policy ends all jobs earlier than this many seconds after the first arrival.
    pub makespan_s: f64,
    /// Of the mean time from submit to end.
    pub jct_mean_s: f64,
}

impl WorkloadBounds {
    /// Computes both bounds.
    pub fn new(jobs: &[SimulatedJob], fleet: &GpuFleet, overheads: &Overheads) -> Self {
        let jobs = &*within_limits(jobs, overheads);
        let market = SlicePrices::new(fleet);
        let table: Vec<Vec<Option<f64>>> = jobs.iter().map(|job| market.times(job)).collect();
        let stride = jobs.len().div_ceil(SEARCHED_MAX).max(1);
        let sample: Vec<Vec<Option<f64>>> = table.iter().step_by(stride).cloned().collect();
        let prices = market.search(&sample);
        let speed = market.value(&prices);
        let work: Vec<f64> = table.iter().map(|times| cheapest(&prices, times) / speed).collect();
        let submits: Vec<f64> = jobs.iter().map(|job| seconds(job.submit_ms)).collect();
        let alone: Vec<f64> = jobs
            .iter()
            .zip(&table)
            .map(|(job, times)| {
                let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                let limit = job.limit_ms.map_or(f64::INFINITY, seconds);
                (best + seconds(overheads.start_ms(job))).min(limit)
            })
            .collect();
        let critical = submits.iter().zip(&alone).map(|(r, t)| r + t).fold(0.0, f64::max);
        let lonely = alone.iter().sum::<f64>() / count(jobs.len().max(1));
        Self {
            makespan_s: critical
                .max(released_work(&submits, &work))
                .max(config::makespan(jobs, fleet, overheads).unwrap_or(0.0)),
            jct_mean_s: lonely.max(shortest_first(&submits, &work)),
        }
    }
}

/// Returns jobs whose times with their starts are no longer than their limits. A job that ends at its limit had a slice
/// for that long, whichever, so that bounds of the shorter jobs hold.
fn within_limits<'j>(jobs: &'j [SimulatedJob], overheads: &Overheads) -> Cow<'j, [SimulatedJob]> {
    if jobs.iter().all(|job| job.limit_ms.is_none()) {
        return Cow::Borrowed(jobs);
    }
    let mut jobs = jobs.to_vec();
    for job in &mut jobs {
        let Some(limit) = job.limit_ms else { continue };
        let works = limit.saturating_sub(overheads.start_ms(job)).max(1);
        job.times.values_mut().flat_map(BTreeMap::values_mut).for_each(|ms| *ms = works.min(*ms));
    }
    Cow::Owned(jobs)
}

/// The instance sizes of a cluster, and their numbers in its layouts.
struct SlicePrices {
    /// Model, compute slices and memory of each size.
    sizes: Vec<(&'static str, u8, u64)>,
    /// GPUs of each model with their layouts: how many of each size.
    models: Vec<(f64, Vec<Vec<f64>>)>,
}

impl SlicePrices {
    fn new(fleet: &GpuFleet) -> Self {
        let mut by_model: BTreeMap<&'static str, (f64, &GpuView)> = BTreeMap::new();
        for (key, gpu) in fleet.keys.iter().zip(&fleet.view.gpus) {
            by_model.entry(key).or_insert((0.0, gpu)).0 += 1.0;
        }
        let mut sizes = Vec::new();
        for (key, (_, gpu)) in &by_model {
            for profile in gpu.mig.iter().flat_map(|mig| mig.plain()) {
                sizes.push((*key, profile.compute_slices, profile.memory.get()));
            }
        }
        let layouts = |key: &str, gpu: &GpuView| {
            let Some(mig) = gpu.mig.as_deref() else { return Vec::new() };
            let held = mig.full().iter().map(|layout| {
                let mut counts = vec![0.0; sizes.len()];
                for slot in layout {
                    let Some(profile) = mig.geometry.profile(slot.profile) else { continue };
                    let this = (profile.compute_slices, profile.memory.get());
                    for (place, (model, slices, memory)) in sizes.iter().enumerate() {
                        if *model == key && (*slices, *memory) == this {
                            counts[place] += 1.0;
                        }
                    }
                }
                counts
            });
            let mut held: Vec<Vec<f64>> = held.collect();
            held.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
            held.dedup();
            held
        };
        let models = by_model.iter().map(|(key, (gpus, gpu))| (*gpus, layouts(key, gpu))).collect();
        Self { sizes, models }
    }

    /// Returns a job's time in seconds on each size; nothing where it doesn't run to its end.
    fn times(&self, job: &SimulatedJob) -> Vec<Option<f64>> {
        let needs = job.memory_at_end.max(job.memory_at_start).get();
        let time = |(model, slices, memory): &(&str, u8, u64)| {
            let ms = job.time(model, *slices).filter(|_| *memory >= needs);
            ms.map(seconds)
        };
        self.sizes.iter().map(time).collect()
    }

    /// Returns the most work that the cluster does in a second at these prices.
    fn value(&self, prices: &[f64]) -> f64 {
        let of = |counts: &Vec<f64>| counts.iter().zip(prices).map(|(n, p)| n * p).sum::<f64>();
        let best = |layouts: &[Vec<f64>]| layouts.iter().map(of).fold(0.0, f64::max);
        let sum: f64 = self.models.iter().map(|(gpus, layouts)| gpus * best(layouts)).sum();
        sum.max(f64::MIN_POSITIVE)
    }

    /// Searches for the prices with the tightest bound, one price after another, in decreasing
    /// steps.
    fn search(&self, table: &[Vec<Option<f64>>]) -> Vec<f64> {
        let proves = |prices: &[f64]| {
            let work: f64 = table.iter().map(|times| cheapest(prices, times)).sum();
            work / self.value(prices)
        };
        let mut prices: Vec<f64> = self.sizes.iter().map(|(_, s, _)| f64::from(*s)).collect();
        let mut best = proves(&prices);
        let mut step = 1.6;
        for _ in 0..ROUNDS_MAX {
            let before = best;
            for place in 0..prices.len() {
                for factor in [step, 1.0 / step] {
                    let mut other = prices.clone();
                    other[place] *= factor;
                    let found = proves(&other);
                    if found > best {
                        (prices, best) = (other, found);
                    }
                }
            }
            if best <= before * 1.000_01 {
                step = 1.0 + (step - 1.0) / 2.0;
            }
            if step < 1.001 {
                break;
            }
        }
        prices
    }
}

fn cheapest(prices: &[f64], times: &[Option<f64>]) -> f64 {
    let ways = prices.iter().zip(times).filter_map(|(price, time)| Some(price * (*time)?));
    let least = ways.fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// All work that is released after some time is done after that time.
fn released_work(submits: &[f64], work: &[f64]) -> f64 {
    let mut moments: Vec<f64> = submits.to_vec();
    moments.sort_by(f64::total_cmp);
    let stride = moments.len().div_ceil(CUTS).max(1);
    let after = |moment: &f64| {
        let released = submits.iter().zip(work).filter(|(r, _)| *r >= moment);
        moment + released.map(|(_, w)| w).sum::<f64>()
    };
    moments.iter().step_by(stride).map(after).fold(0.0, f64::max)
}

/// Returns the mean flow time of the shortest-remaining-first schedule of the work on one machine.
/// It is the least of any schedule on it (Schrage 1968), and so of any on the cluster.
fn shortest_first(submits: &[f64], work: &[f64]) -> f64 {
    let mut order: Vec<usize> = (0..submits.len()).collect();
    order.sort_by(|a, b| submits[*a].total_cmp(&submits[*b]));
    let mut left: std::collections::BTreeSet<(ExactWork, usize)> =
        std::collections::BTreeSet::new();
    let (mut now, mut flow) = (0.0_f64, 0.0_f64);
    let mut next = order.into_iter().peekable();
    while next.peek().is_some() || !left.is_empty() {
        let until = next.peek().map_or(f64::INFINITY, |job| submits[*job]);
        match left.pop_first() {
            Some((ExactWork(rest), job)) if now + rest <= until => {
                now += rest;
                flow += now - submits[job];
            }
            Some((ExactWork(rest), job)) => {
                left.insert((ExactWork(rest - (until - now)), job));
                now = until;
            }
            None => now = now.max(until),
        }
        while let Some(job) = next.next_if(|job| submits[*job] <= now) {
            left.insert((ExactWork(work[job]), job));
        }
    }
    flow / count(submits.len().max(1))
}

/// A real number that can be ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ExactWork(f64);

impl Eq for ExactWork {}

impl PartialOrd for ExactWork {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExactWork {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::job::tests::job;

    #[test]
    fn jobs_that_gain_nothing_by_slices_are_bound_by_their_number() {
        let fleet = GpuFleet::parse("2xa100-40gb").unwrap();
        let fast = SimulatedJob {
            times: BTreeMap::from([("*".into(), BTreeMap::from([(7, 10_000)]))]),
            ..job()
        };
        let jobs = vec![fast; 6];
        let bounds = WorkloadBounds::new(&jobs, &fleet, &Overheads::default());
        assert!((bounds.makespan_s - 30.0).abs() < 0.01, "{bounds:?}");
        // Two at a time: 10, 10, 20, 20, 30, 30; one machine of twice the speed: 5, 10, … 30.
        assert!((bounds.jct_mean_s - 17.5).abs() < 0.01, "{bounds:?}");
    }

    #[test]
    fn one_job_is_bound_by_its_best_instance() {
        let fleet = GpuFleet::parse("a100-40gb").unwrap();
        let late = SimulatedJob { submit_ms: 5_000, start_up_ms: 1_000, ..job() };
        let bounds = WorkloadBounds::new(&[late], &fleet, &Overheads::default());
        assert_eq!(bounds, WorkloadBounds { makespan_s: 16.0, jct_mean_s: 11.0 });
    }

    #[test]
    fn the_shortest_job_is_served_first() {
        assert_eq!(shortest_first(&[0.0, 1.0], &[10.0, 1.0]), (11.0 + 1.0) / 2.0);
    }
}
