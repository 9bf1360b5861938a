//! How busy jobs keep the multiprocessors, derived from measurements: the model of contention is
//! solved for the demand.
//!
//! Neither table separates multiprocessors and memory bandwidth, so that the whole slow-down is
//! attributed to the multiprocessors.

use std::collections::BTreeMap;
use tessera_model::number::clamped;

use tessera_placement::Demand;

use super::traces::measured_pairs;
use crate::cluster::contention::{CO_RUNNERS, MISSING_MULTIPROCESSORS, MULTIPROCESSORS};
use crate::cluster::number::whole;

/// The maximum that a job is assumed to keep busy: above it the model of contention has equal
/// results, since it limits slow-downs.
const BUSY_MAX: f64 = 0.95;

/// Returns the demand with which two equal jobs that share a whole GPU without caps slow each other
/// this much.
pub(super) fn of_a_pair(slowed: f64) -> Demand {
    let odds = ((slowed - 1.0 - CO_RUNNERS) / MULTIPROCESSORS).max(0.0);
    demand(odds / (1.0 + odds))
}

/// Returns the demand with which a job loses as much on slices as by its speeds there, on average
/// over the sizes that were measured. A speed is 1 on the whole GPU of seven slices.
pub(super) fn of_slices(speeds: &[(u8, f64)]) -> Option<Demand> {
    let each: Vec<f64> = speeds
        .iter()
        .filter(|(slices, speed)| *slices < 7 && *speed > 0.0)
        .map(|(slices, speed)| {
            let missing = 7.0 / f64::from(*slices) - 1.0;
            ((1.0 / speed - 1.0) / missing / MISSING_MULTIPROCESSORS).max(0.0)
        })
        .collect();
    let count = u32::try_from(each.len()).ok().filter(|count| *count > 0)?;
    Some(demand(each.iter().sum::<f64>() / f64::from(count)))
}

fn demand(busy: f64) -> Demand {
    let sm = clamped(whole(busy.min(BUSY_MAX) * 1_000.0));
    Demand { sm, memory: 0 }
}

/// How two processes of a model slow each other on a whole A100-80GB, by batch, as ParvaGPU measured.
pub(super) struct MeasuredPairs(BTreeMap<(String, u32), f64>);

impl MeasuredPairs {
    pub(super) fn measured() -> Self {
        Self(measured_pairs())
    }

    /// Returns the demand of a model at a batch, or at the largest below that ran twice at once.
    pub(super) fn demand(&self, model: &str, batch: u32) -> Option<Demand> {
        let of = |range| self.0.range::<(String, u32), _>(range);
        let upto = of((model.to_owned(), 0)..=(model.to_owned(), batch)).next_back();
        upto.map(|(_, slowed)| of_a_pair(*slowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::contention::{ContentionSharer, under_mig, under_mps};
    use crate::cluster::number::float;

    #[test]
    fn a_demand_gives_back_the_slow_down_that_it_was_read_from() {
        for slowed in [1.1, 1.3, 1.8, 1.95] {
            let sharer = ContentionSharer { demand: Some(of_a_pair(slowed)), cap: 100 };
            let modelled = float(under_mps(&[sharer, sharer], 7, 7)[0]) / 1_000.0;
            assert!((modelled - slowed).abs() < 0.02, "{modelled} for {slowed}");
        }
        for speed in [0.54, 0.75, 1.0] {
            let demand = of_slices(&[(3, speed)]).unwrap();
            let modelled = float(under_mig(demand, 3, 7)) / 1_000.0;
            assert!((modelled - 1.0 / speed).abs() < 0.02, "{modelled} for {speed}");
        }
    }

    #[test]
    fn large_batches_fill_the_gpu_and_small_ones_do_not() {
        let pairs = MeasuredPairs::measured();
        let busy = |model, batch| pairs.demand(model, batch).unwrap().sm;
        assert!(busy("resnet50", 128) > 650, "{}", busy("resnet50", 128));
        assert!(busy("mobilenetv2", 1) < 100, "{}", busy("mobilenetv2", 1));
        assert_eq!(busy("vgg16", 256), busy("vgg16", 128), "the largest that ran twice at once");
        assert!(pairs.demand("alexnet", 1).is_none());
    }
}
