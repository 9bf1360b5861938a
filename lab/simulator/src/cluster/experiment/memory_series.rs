//! Families of memory series: what programs' memory looks like over their iterations.

use crate::cluster::number::{count, float, whole};
use tessera_predict::random::SeededRng;

/// The memory of the slice, in the unit of the series.
pub(super) const CAPACITY: f64 = 10.0;

/// The maximum of a series that does not outgrow the slice, including its noise.
const TOP: f64 = 9.0;

/// A kind of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Even growth that fills the slice at a given iteration of a given number, as in a published
    /// series.
    Published {
        name: &'static str,
        full: u64,
        of: u64,
        by: u64,
    },
    /// Even growth that fills the slice somewhere between 30 and 90 % of the iterations.
    Linear,
    /// Growth with an exponent from 0.85 to 1.15.
    Curved,
    Flat,
    /// The optimizer's first step allocates its state.
    OptimizerStep,
    WarmUp,
    Saturation,
    Sawtooth,
    EvaluationPeaks,
    Fragmentation,
}

/// MIGM §5: the slice is full at `full` of `of` iterations, and the growth was reported by iteration `by`.
pub(super) const PUBLISHED: [Family; 4] = [
    Family::Published { name: "Qwen2-7B", full: 94, of: 130, by: 6 },
    Family::Published { name: "Llama-3 3B", full: 72, of: 100, by: 6 },
    Family::Published { name: "FLAN-T5 training", full: 41, of: 60, by: 31 },
    Family::Published { name: "FLAN-T5", full: 27, of: 60, by: 21 },
];

pub(super) const GROWING: [Family; 6] =
    [PUBLISHED[0], PUBLISHED[1], PUBLISHED[2], PUBLISHED[3], Family::Linear, Family::Curved];

pub(super) const FITTING: [Family; 7] = [
    Family::Flat,
    Family::OptimizerStep,
    Family::WarmUp,
    Family::Saturation,
    Family::Sawtooth,
    Family::EvaluationPeaks,
    Family::Fragmentation,
];

impl Family {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Published { name, .. } => name,
            Self::Linear => "even growth",
            Self::Curved => "curved growth",
            Self::Flat => "flat",
            Self::OptimizerStep => "optimizer's first step",
            Self::WarmUp => "warm-up",
            Self::Saturation => "saturation",
            Self::Sawtooth => "sawtooth",
            Self::EvaluationPeaks => "evaluation peaks",
            Self::Fragmentation => "fragmentation",
        }
    }

    /// Returns whether it is linear throughout.
    pub(super) const fn is_even(self) -> bool {
        matches!(self, Self::Published { .. } | Self::Linear)
    }
}

/// One series.
pub(super) struct MemorySeries {
    /// What is observed, from the first iteration on.
    pub(super) values: Vec<f64>,
    /// The last value without noise.
    pub(super) end: f64,
}

/// Draws a series; `noise` is the largest deviation of a value, as a part of the level.
pub(super) fn draw(family: Family, iterations: u64, noise: f64, seed: u64) -> MemorySeries {
    let mut rng = SeededRng::named(seed, family.name());
    let level = shape(family, float(iterations), TOP / (1.0 + noise), &mut rng);
    let trend: Vec<f64> = (1..=iterations).map(|t| level(float(t))).collect();
    let end = trend.last().copied().unwrap_or(0.0);
    let values = trend.iter().map(|v| v * (1.0 + noise * (2.0 * rng.unit() - 1.0))).collect();
    MemorySeries { values, end }
}

fn between(rng: &mut SeededRng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.unit()
}

/// Returns the level of a series at each iteration of `n`.
fn shape(family: Family, n: f64, top: f64, rng: &mut SeededRng) -> Box<dyn Fn(f64) -> f64> {
    let even = |full: f64| -> Box<dyn Fn(f64) -> f64> { Box::new(move |t| 4.0 + 6.0 / full * t) };
    match family {
        Family::Published { full, of, .. } => even(n * float(full) / float(of)),
        Family::Linear => even(n * between(rng, 0.3, 0.9)),
        Family::Curved => {
            let (exponent, end) = (between(rng, 0.85, 1.15), between(rng, 11.0, 14.0));
            Box::new(move |t| 4.0 + (end - 4.0) * (t / n).powf(exponent))
        }
        Family::Flat => {
            let level = between(rng, 4.0, top);
            Box::new(move |_| level)
        }
        Family::OptimizerStep => {
            let (before, after) = (between(rng, 2.0, 4.0), between(rng, 6.0, top));
            let at = between(rng, 1.0, 9.0).floor();
            Box::new(move |t| if t <= at { before } else { after })
        }
        Family::WarmUp => {
            let (from, to) = (between(rng, 2.0, 4.0), between(rng, 6.0, top));
            let takes = between(rng, 3.0, 10.0).floor();
            Box::new(move |t| from + (to - from) * (t / takes).min(1.0))
        }
        Family::Saturation => {
            let (from, to) = (between(rng, 2.0, 5.0), between(rng, 7.0, top));
            let constant = between(rng, 0.05, 0.3) * n;
            Box::new(move |t| to - (to - from) * (-t / constant).exp())
        }
        Family::Sawtooth => {
            let (from, to) = (between(rng, 4.0, 6.0), between(rng, 7.0, top));
            let period = (between(rng, 0.2, 0.5) * n).floor();
            let phase = (rng.unit() * period).floor();
            Box::new(move |t| from + (to - from) * ((t + phase) % period) / period)
        }
        Family::EvaluationPeaks => {
            let level = between(rng, 4.0, 7.0);
            let peak = between(rng, level + 0.5, top);
            let (period, lasts) = (between(rng, 7.0, 30.0).floor(), between(rng, 1.0, 4.0).floor());
            Box::new(move |t| if t % period < lasts { peak } else { level })
        }
        Family::Fragmentation => {
            let (from, to) = (between(rng, 4.0, 6.0), between(rng, 7.0, top));
            // Blocks are added one by one, at growing intervals.
            let blocks = 20.0;
            Box::new(move |t| {
                let part = (1.0 + t).ln() / (1.0 + n).ln();
                from + (to - from) * (part * blocks).floor() / blocks
            })
        }
    }
}

/// Returns the number of the iteration at this part of all iterations, at least 1.
pub(super) fn tenth(iterations: u64) -> usize {
    tessera_model::number::index(whole(float(iterations) / 10.0)).max(1)
}

/// Returns one count as a percentage of another.
pub(super) fn percent(part: usize, of: usize) -> f64 {
    100.0 * count(part) / count(of.max(1))
}
