//! How much of a GPU jobs use, derived from measurements: the model of the public measurements is solved for the load.
//!
//! Neither table separates multiprocessors and memory bandwidth, so that the whole load is attributed to the
//! multiprocessors.

use std::collections::BTreeMap;

use tessera_placement::Demand;
use tessera_predict::contention::{ContentionModel, load_of_pair, load_of_speeds};

use super::traces::measured_pairs;
/// Returns the demand with which two equal jobs that share a whole GPU without caps slow each other
/// this much.
pub(super) fn of_a_pair(slowed: f64) -> Demand {
    Demand { sm: load_of_pair(&ContentionModel::A100, slowed), memory: 0 }
}

/// Returns the demand that follows from a job's speeds on slices and on the whole GPU of seven slices.
pub(super) fn of_slices(speeds: &[(u8, f64)]) -> Option<Demand> {
    Some(Demand { sm: load_of_speeds(&ContentionModel::A100, speeds, 7)?, memory: 0 })
}

/// How two processes of a model slow each other on a whole A100-80GB, by batch, as ParvaGPU measured.
pub(super) struct MeasuredPairs(BTreeMap<(String, u32), f64>);

/// Returns the smaller of two demands: a small loss in a pair may be noise, and one on slices too.
pub(super) fn least(pair: Option<Demand>, slices: Option<Demand>) -> Option<Demand> {
    [pair, slices].into_iter().flatten().min_by_key(|demand| demand.sm)
}

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
    use tessera_predict::contention::MpsSharer;

    #[test]
    fn a_demand_gives_back_the_slow_down_that_it_was_read_from() {
        for slowed in [1.1, 1.3, 1.8, 1.95] {
            let load = of_a_pair(slowed).sm;
            let sharer = MpsSharer { load, cap: 100, is_memory_bound: false };
            let speed = ContentionModel::A100.speeds(&[sharer, sharer])[0].value;
            let modelled = 1_000.0 / f64::from(u32::try_from(speed).unwrap());
            assert!((modelled - slowed).abs() < 0.02, "{modelled} for {slowed}");
        }
    }

    #[test]
    fn a_job_that_is_slow_on_slices_has_a_large_demand() {
        let linear = [(1, 1.0 / 7.0), (2, 2.0 / 7.0), (7, 1.0)];
        assert_eq!(of_slices(&linear).unwrap().sm, 1_000);
        assert!(of_slices(&[(1, 1.0), (2, 1.0), (7, 1.0)]).unwrap().sm < 150);
        assert!(of_slices(&[(7, 1.0)]).is_none(), "one size says nothing");
    }

    #[test]
    fn large_batches_fill_the_gpu_and_small_ones_do_not() {
        let pairs = MeasuredPairs::measured();
        let busy = |model, batch| pairs.demand(model, batch).unwrap().sm;
        assert!(busy("resnet50", 128) > 650, "{}", busy("resnet50", 128));
        assert!(busy("mobilenetv2", 1) < 250, "{}", busy("mobilenetv2", 1));
        assert_eq!(busy("vgg16", 256), busy("vgg16", 128), "the largest that ran twice at once");
        assert!(pairs.demand("alexnet", 1).is_none());
    }
}
