//! How jobs that share an instance under MPS slow each other: a model with two parameters, fitted on public
//! measurements.
//!
//! A job's *load* is the part of an instance's throughput that it uses when it is alone there. The rest of its time
//! is work of its host, which overlaps with the device's. In units of its time alone, the device works for the load
//! `f`, and the host for `h`, with `h^p + f^p = 1`. Next to co-runners the device serves the sum `D` of all loads
//! meanwhile, so the job takes `(h^p + D^p)^(1/p)`. A percentage `c` makes its own part of that `f / c`. If all
//! percentages add up to at most 100 %, each job has its own multiprocessors, and only its percentage slows it.
//!
//! Nothing here depends on bandwidth, as MIG's slices have it in proportion to their multiprocessors: a load counts
//! whichever of them is scarce. One rule is not fitted: two jobs that each use a fifth of a GPU's bandwidth or more
//! count as if each filled the instance. It is rule 1 of Villarrubia et al. (arXiv 2604.22430), and holds on the study's
//! A100 too. The public measurements have no such pair.
//!
//! [`ContentionModel::A100`] is fitted on ParvaGPU's measurements ([`public`]) by [`fit()`](fit::fit). Each prediction
//! has an interval for nine of ten tasks that the fit has not seen.

mod evaluate;
pub mod fit;
mod load;
pub mod public;

use serde::{Deserialize, Serialize};
use tessera_model::number::clamped;

pub use evaluate::{HeldOutGroup, HeldOutSpeeds, evaluate_held_out};
pub use load::{load_of_pair, load_of_speeds};

use crate::colocation::SharingClient;
use crate::number::{float, hash, whole};
use crate::outcome::{PredictedQuantity, Prediction, PredictionSource};

/// Loads at which another margin begins, in thousandths: jobs that hardly contend, and those that fill the instance.
/// Chosen: between them errors are largest, since a load is known from speeds on other slices only.
const REGIMES: [u16; 2] = [200, 850];

/// The part of a whole GPU's bandwidth from which rule 1 holds, in thousandths.
///
/// Source: the study; its memory-bound jobs use 18 to 25 % alone (table 2, "about 20 %" in the text).
pub const MEMORY_BOUND: u16 = 200;

/// One of the jobs that share an instance under MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MpsSharer {
    /// The part of the instance's throughput that it uses alone, in thousandths.
    pub load: u16,
    /// Its percentage of the instance's multiprocessors; 100 without a limit.
    pub cap: u8,
    /// Whether it uses a fifth of a GPU's bandwidth or more ([`MEMORY_BOUND`]).
    pub is_memory_bound: bool,
}

/// What a model's predictions for a GPU are based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentionBasis {
    /// Measurements on GPUs of its model.
    Fitted,
    /// The fit on the A100, with wider intervals: no public measurement of another model that has MIG was found.
    Transferred,
}

/// By how much intervals are wider on other GPUs. Chosen: the three pairs on an A30 of which the study prints times are
/// in such intervals (`tessera experiment CONTENTION`), and not all of them in the A100's.
const TRANSFERRED: u16 = 2;

/// A fitted model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentionModel {
    /// The exponent `p`, in hundredths: how far the work of host and device overlaps.
    pub exponent: u16,
    /// The load of a job that is as fast on the smallest slice as on the next one, in thousandths. Its
    /// speeds show only that the load lies between 0 and 1.
    pub unseen_load: u16,
    /// Half of the interval of a speed's logarithm, in thousandths, by the regime of the job's load.
    pub margins: [u16; 3],
}

impl ContentionModel {
    /// Fitted by [`fit::fit`] on all rows of [`public::PARVAGPU`]. A test fits it again, as does `tessera experiment
    /// CONTENTION`.
    pub const A100: Self = Self { exponent: 325, unseen_load: 630, margins: [66, 215, 114] };

    /// Returns the model for a GPU by the name of its board or its key in the catalogue, such as `a100-40gb`. An A800
    /// is an A100 with slower links.
    pub fn of_gpu(name: &str) -> (Self, ContentionBasis) {
        let name = name.to_ascii_lowercase();
        if name.contains("a100") || name.contains("a800") {
            return (Self::A100, ContentionBasis::Fitted);
        }
        let margins = Self::A100.margins.map(|margin| margin * TRANSFERRED);
        (Self { margins, ..Self::A100 }, ContentionBasis::Transferred)
    }

    /// Returns a number that differs between models.
    pub fn fingerprint(&self) -> u64 {
        let numbers = [self.exponent, self.unseen_load].into_iter().chain(self.margins);
        hash(&numbers.flat_map(u16::to_le_bytes).collect::<Vec<u8>>())
    }

    /// Predicts the speed of each job, in thousandths of its speed alone on all of the instance.
    pub fn speeds(&self, sharers: &[MpsSharer]) -> Vec<Prediction> {
        let speed = |at| {
            let value = 1.0 / self.slow_down(sharers, at);
            let margin = match sharers {
                // That is alone on all of the instance by definition.
                [MpsSharer { cap: 100.., .. }] => 0.0,
                _ => float(u64::from(self.margin(sharers[at].load))) / 1_000.0,
            };
            let per_mille = |speed: f64| whole(speed * 1_000.0).clamp(1, 1_000);
            Prediction {
                quantity: PredictedQuantity::SpeedPerMille,
                value: per_mille(value),
                low: per_mille(value * (-margin).exp()),
                high: per_mille(value * margin.exp()),
                source: PredictionSource::Learned,
                model: self.fingerprint(),
            }
        };
        (0..sharers.len()).map(speed).collect()
    }

    /// Returns the margin of a job's speed, in thousandths of its logarithm.
    pub fn margin(&self, load: u16) -> u16 {
        self.margins[regime(load)]
    }

    /// Returns how much longer a job takes than alone on all of the instance.
    fn slow_down(&self, sharers: &[MpsSharer], at: usize) -> f64 {
        let (load, device) = device_load(sharers, at);
        slow_down(float(u64::from(self.exponent)) / 100.0, load, device)
    }
}

/// Predicts the speed of each of several jobs on a part of a GPU, in thousandths, from a controller's knowledge: how
/// busy their kernels keep a GPU. That is the most that they can load it, and their load on a part of it is larger in
/// proportion. A job about which nothing is known counts as one that fills its slice. Speeds are relative to those
/// alone on all of the slice.
pub fn speeds_by_busy(gpu: &str, slice: u16, clients: &[SharingClient]) -> Vec<Prediction> {
    let load = |busy: u16| {
        let load = u32::from(busy) * 1_000 / u32::from(slice.max(1));
        clamped(load.clamp(1, 1_000))
    };
    let sharer = |client: &SharingClient| MpsSharer {
        load: client.busy.map_or(1_000, load),
        cap: client.sm_percent,
        is_memory_bound: false,
    };
    let (model, _) = ContentionModel::of_gpu(gpu);
    model.speeds(&clients.iter().map(sharer).collect::<Vec<_>>())
}

/// Returns a job's load, and the sum of loads with which the device is busy for it.
pub fn device_load(sharers: &[MpsSharer], at: usize) -> (f64, f64) {
    let bound = sharers.iter().filter(|sharer| sharer.is_memory_bound).count() > 1;
    let load = |sharer: &MpsSharer| match bound && sharer.is_memory_bound {
        true => 1.0,
        false => part(sharer.load),
    };
    let me = &sharers[at];
    let mine = load(me);
    let limited = mine / cap(me);
    let caps: u32 = sharers.iter().map(|sharer| u32::from(sharer.cap)).sum();
    if caps <= 100 && !(bound && me.is_memory_bound) {
        return (mine, limited);
    }
    let others = sharers.iter().enumerate().filter(|(other, _)| *other != at);
    let mut others: Vec<f64> = others.map(|(_, other)| load(other).min(cap(other))).collect();
    // Floats are summed in one order, so that the order of the list has no effect.
    others.sort_by(f64::total_cmp);
    (mine, limited.max(mine + others.iter().sum::<f64>()))
}

/// Returns how much longer a job of such a load takes where the device is busy with such a sum of loads.
fn slow_down(exponent: f64, load: f64, device: f64) -> f64 {
    let host = 1.0 - load.powf(exponent);
    (host + device.max(load).powf(exponent)).powf(1.0 / exponent).max(1.0)
}

fn regime(load: u16) -> usize {
    REGIMES.iter().filter(|from| **from <= load).count()
}

fn part(load: u16) -> f64 {
    float(u64::from(load.clamp(1, 1_000))) / 1_000.0
}

fn cap(sharer: &MpsSharer) -> f64 {
    float(u64::from(sharer.cap.clamp(1, 100))) / 100.0
}

#[cfg(test)]
mod tests;
