//! How good predictions were, for Prometheus.

use std::sync::LazyLock;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};
use tessera_placement::Basis;

use crate::http::metrics;
use crate::store::moves::Ended;

/// Histogram: by what part of itself an expected run time was off, by `basis`.
const ERROR: &str = "tessera_prediction_error_ratio";
/// Counter: predictions that came to their outcome, by `basis` and whether it lay `within` the
/// interval.
const OUTCOMES: &str = "tessera_predictions_total";
/// From a prediction that is as good as the clock to one that is off tenfold.
const RATIOS: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0];

struct Counters {
    error: HistogramVec,
    outcomes: IntCounterVec,
}

static COUNTERS: LazyLock<Counters> = LazyLock::new(|| {
    let about = "By what part of itself an expected run time was off.";
    let error = HistogramOpts::new(ERROR, about).buckets(RATIOS.to_vec());
    let error = HistogramVec::new(error, &["basis"]).expect("a constant name and label");
    let about = Opts::new(OUTCOMES, "Predicted runs that came to their end.");
    let outcomes = IntCounterVec::new(about, &["basis", "within"]).expect("constants");
    let registry = metrics::registry();
    registry.register(Box::new(error.clone())).expect("a name that is used once");
    registry.register(Box::new(outcomes.clone())).expect("a name that is used once");
    Counters { error, outcomes }
});

/// Shows every series from the start, at zero.
pub fn start() {
    for basis in Basis::ALL {
        COUNTERS.error.with_label_values(&[basis.word()]);
        for within in ["yes", "no"] {
            COUNTERS.outcomes.with_label_values(&[basis.word(), within]).inc_by(0);
        }
    }
}

/// Counts what came of the predictions of a committed round.
pub fn count(ended: &[Ended]) {
    for (known, ran) in ended.iter().filter_map(|end| Some((end.foretold?, end.lasted.ran?))) {
        let basis = known.basis.word();
        let within = if known.covers(ran) { "yes" } else { "no" };
        COUNTERS.outcomes.with_label_values(&[basis, within]).inc();
        let thousandths = u32::try_from(known.error(ran)).unwrap_or(u32::MAX);
        COUNTERS.error.with_label_values(&[basis]).observe(f64::from(thousandths) / 1_000.0);
    }
}
