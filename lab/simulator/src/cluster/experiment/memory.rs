//! The prediction of memory over families of series: intervals, reports, moves.

use tessera_predict::peak::paper::MemoryGrowth;
use tessera_predict::peak::{PeakAdvice, PeakPredictor};

use super::memory_series::{CAPACITY, FITTING, Family, GROWING, PUBLISHED, draw, percent, tenth};
use super::{Finding, Proof};
use crate::cluster::calibration::mean;
use crate::cluster::number::{count, float};

/// Series of each family, noise and length.
const SERIES: u64 = 1_000;

/// The largest deviation of values, as a part of the level.
const NOISES: [f64; 2] = [0.01, 0.03];

const LENGTHS: [u64; 2] = [100, 1_000];

/// How many iterations ahead of a crossing a move begins: a checkpoint of two, and the margin.
const LEAD: f64 = 5.0;

/// The observations of one series.
#[derive(Clone, Copy, Debug, Default)]
struct SeriesOutcome {
    reported: Option<u64>,
    acted: Option<u64>,
    /// When the slice was full, unless the job was moved before.
    full: Option<u64>,
    /// The error of the final value that is predicted at a tenth of the iterations, in percent:
    /// ours, and the paper's.
    off: [f64; 2],
}

/// How often intervals contained the last value, by the number of samples.
struct Coverage {
    covered: Vec<u32>,
}

/// The seeds of an experiment.
#[derive(Clone, Copy, Debug)]
struct SeedRange {
    name: &'static str,
    first: u64,
}

impl SeedRange {
    fn all(self) -> impl Iterator<Item = u64> {
        self.first..self.first + SERIES
    }
}

/// MEMORY: all families.
pub(super) fn series() -> Vec<Finding> {
    over(SeedRange { name: "MEMORY", first: 1 })
}

/// MEMORY-FRESH: the same with seeds on which no setting of the predictor was chosen.
pub(super) fn fresh() -> Vec<Finding> {
    fresh_from(700_001)
}

/// The same with other seeds.
pub(super) fn fresh_from(first: u64) -> Vec<Finding> {
    over(SeedRange { name: "MEMORY-FRESH", first })
}

fn over(seeds: SeedRange) -> Vec<Finding> {
    let mut findings = Vec::new();
    for family in PUBLISHED {
        findings.extend(published(seeds, family));
    }
    findings.extend(coverage(seeds));
    findings.extend(curvature(seeds));
    for family in GROWING {
        findings.push(worst(seeds, family, "surprises, % of the jobs", |one| {
            one.full.is_some() && one.acted.is_none()
        }));
    }
    for family in FITTING {
        findings
            .push(worst(seeds, family, "false moves, % of the jobs", |one| one.acted.is_some()));
    }
    findings
}

/// A published series in its own length: when it is reported.
fn published(seeds: SeedRange, family: Family) -> Vec<Finding> {
    let Family::Published { name, full, of, by } = family else { return Vec::new() };
    let reports: Vec<u64> =
        seeds.all().map(|seed| watch(family, of, 0.01, seed).reported.unwrap_or(of)).collect();
    let late = reports.iter().filter(|at| **at > by).count();
    let at: Vec<f64> = reports.iter().map(|at| float(*at)).collect();
    vec![
        Finding::at_most(
            seeds.name,
            format!("{name}: iteration of the report (full at {full}), mean, noise 1 %"),
            Proof::Proxy,
            float(by),
            mean(&at),
        )
        .over_seeds(&at),
        Finding::at_most(
            seeds.name,
            format!("{name}: reported after iteration {by}, % of the series"),
            Proof::Proxy,
            1.0,
            percent(late, reports.len()),
        ),
    ]
}

/// The least coverage of the 99 % interval over all numbers of samples from 6 on, of even growth.
fn coverage(seeds: SeedRange) -> Vec<Finding> {
    let mut findings = Vec::new();
    for noise in NOISES {
        for length in LENGTHS {
            let mut found = Coverage { covered: Vec::new() };
            for seed in seeds.all() {
                found.take(Family::Linear, length, noise, seed);
            }
            let least = found.covered.iter().copied().min().unwrap_or(0);
            let what = format!(
                "even growth, noise {:.0} %, {length} iterations: least coverage of the 99 % interval at any \
                 n from 6 on, %",
                noise * 100.0
            );
            let least = 100.0 * f64::from(least) / float(SERIES);
            findings.push(Finding::at_least(seeds.name, what, Proof::Proxy, 98.0, least));
        }
    }
    findings
}

impl Coverage {
    fn take(&mut self, family: Family, iterations: u64, noise: f64, seed: u64) {
        let series = draw(family, iterations, noise, seed).values;
        let Some((last, before)) = series.split_last() else { return };
        self.covered.resize(before.len().saturating_sub(5), 0);
        let mut predictor = PeakPredictor::default();
        for (place, value) in before.iter().enumerate() {
            predictor.take(count(place + 1), *value);
            let Some(covered) = place.checked_sub(5).and_then(|at| self.covered.get_mut(at)) else {
                continue;
            };
            let forecast = predictor.forecast(float(iterations));
            *covered += u32::from(forecast.is_some_and(|f| f.low <= *last && *last <= f.high));
        }
    }
}

/// The error of the final value, predicted at a tenth of the iterations, for curved growth.
fn curvature(seeds: SeedRange) -> Vec<Finding> {
    let mut findings = Vec::new();
    let [mut ours, mut papers] = [Vec::new(), Vec::new()];
    for noise in NOISES {
        for length in LENGTHS {
            let off: Vec<[f64; 2]> =
                seeds.all().map(|seed| watch(Family::Curved, length, noise, seed).off).collect();
            let [of_ours, of_paper] =
                [0, 1].map(|which| mean(&off.iter().map(|both| both[which]).collect::<Vec<f64>>()));
            let what = format!(
                "curved growth, noise {:.0} %, {length} iterations: error at a tenth of them, mean, % (the \
                 paper's: {of_paper:.1})",
                noise * 100.0
            );
            findings
                .push(Finding::at_most(seeds.name, what, Proof::Proxy, 8.0, of_ours).known(FEW));
            ours.push(of_ours);
            papers.push(of_paper);
        }
    }
    let what = format!(
        "curved growth: the same over all of these (the paper's predictor: {:.1}; the paper prints 14.98)",
        mean(&papers)
    );
    findings.push(Finding::at_most(seeds.name, what, Proof::Proxy, 8.0, mean(&ours)).known(FEW));
    findings
}

/// Why the error is larger with few samples and much noise.
const FEW: &str = "ten samples with such noise do not determine an exponent: the growth in them is a few times \
                   the noise";

/// The largest part of a family's series that satisfy a condition, over noises and lengths.
fn worst(
    seeds: SeedRange,
    family: Family,
    what: &str,
    is_true: impl Fn(&SeriesOutcome) -> bool,
) -> Finding {
    let mut worst = 0.0_f64;
    for noise in NOISES {
        for length in LENGTHS {
            let all = seeds.all().map(|seed| watch(family, length, noise, seed));
            let found = all.filter(|one| is_true(one)).count();
            worst = worst.max(100.0 * count(found) / float(SERIES));
        }
    }
    let what = format!("{}: {what}, the worst of 4 noises and lengths", family.name());
    Finding::at_most(seeds.name, what, Proof::Proxy, 2.0, worst)
}

/// Watches one series until it ends, or until the job is moved or out of memory.
fn watch(family: Family, iterations: u64, noise: f64, seed: u64) -> SeriesOutcome {
    let series = draw(family, iterations, noise, seed);
    let (mut ours, mut paper) = (PeakPredictor::default(), MemoryGrowth::new(0.0));
    let mut seen = SeriesOutcome::default();
    let early = tenth(iterations);
    let length = series.values.len();
    for (place, value) in series.values.iter().enumerate() {
        let at = place as u64 + 1;
        if *value > CAPACITY {
            seen.full = Some(at);
            break;
        }
        ours.take(float(at), *value);
        paper.take(*value, 1.0, length);
        if place + 1 == early {
            let predicted = ours.forecast(float(iterations)).map_or(0.0, |found| found.value);
            let off = |value: f64| 100.0 * (value / series.end - 1.0).abs();
            seen.off = [off(predicted), off(paper.forecast(length))];
        }
        match ours.advise(CAPACITY, LEAD, Some(float(iterations))) {
            PeakAdvice::Wait => {}
            PeakAdvice::Report => seen.reported = seen.reported.or(Some(at)),
            PeakAdvice::Act => {
                (seen.reported, seen.acted) = (seen.reported.or(Some(at)), Some(at));
                break;
            }
        }
    }
    debug_assert!(!family.is_even() || series.end > CAPACITY, "even growth outgrows the slice");
    seen
}
