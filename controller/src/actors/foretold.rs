//! How good predictions were, for Prometheus.

use std::sync::LazyLock;

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use tessera_placement::Basis;

use crate::core::foresight::Outcomes;
use crate::http::metrics;
use crate::ports::Learned;
use crate::store::moves::Ended;

/// Histogram: by what part of itself an expected run time was off, by `basis`.
const ERROR: &str = "tessera_prediction_error_ratio";
/// Counter: predictions that came to their outcome, by `basis` and whether it lay `within` the
/// interval.
const OUTCOMES: &str = "tessera_predictions_total";
/// Counter: memory that was foretold of runs, by whether what they had lay `within` the interval.
const MEMORY: &str = "tessera_memory_predictions_total";
/// Counter: speeds that were foretold of jobs beside others, by whether they lay `within` the interval.
const COMPANY: &str = "tessera_company_predictions_total";
/// Gauge: whether the word of a model counts, by what it is `about`; 0 where it is off by too much or what
/// came of it spoke against it, no series before there is one.
const BELIEVED: &str = "tessera_predictor_believed";
/// Gauge: tasks that are given cautious memory, since their runs stopped to keep to what was foretold.
const DOUBTED: &str = "tessera_doubted_tasks";
/// From a prediction that is as good as the clock to one that is off tenfold.
const RATIOS: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0];

struct Counters {
    error: HistogramVec,
    outcomes: IntCounterVec,
    memory: IntCounterVec,
    company: IntCounterVec,
    believed: IntGaugeVec,
    doubted: IntGauge,
}

static COUNTERS: LazyLock<Counters> = LazyLock::new(|| {
    let about = "By what part of itself an expected run time was off.";
    let error = HistogramOpts::new(ERROR, about).buckets(RATIOS.to_vec());
    let error = HistogramVec::new(error, &["basis"]).expect("a constant name and label");
    let counter = |name, about, labels: &[&str]| {
        IntCounterVec::new(Opts::new(name, about), labels).expect("a constant name and label")
    };
    let outcomes =
        counter(OUTCOMES, "Predicted runs that came to their end.", &["basis", "within"]);
    let memory =
        counter(MEMORY, "Runs of which it was foretold what memory they have.", &["within"]);
    let company = counter(
        COMPANY,
        "Runs of which it was foretold how fast they are beside others.",
        &["within"],
    );
    let about = Opts::new(BELIEVED, "Whether the word of a model counts.");
    let believed = IntGaugeVec::new(about, &["about"]).expect("a constant name and label");
    let doubted = IntGauge::new(DOUBTED, "Tasks that are given cautious memory.")
        .expect("a constant name and label");
    let all: [Box<dyn Collector>; 6] = [
        Box::new(error.clone()),
        Box::new(outcomes.clone()),
        Box::new(memory.clone()),
        Box::new(company.clone()),
        Box::new(believed.clone()),
        Box::new(doubted.clone()),
    ];
    for series in all {
        metrics::registry().register(series).expect("a name that is used once");
    }
    Counters { error, outcomes, memory, company, believed, doubted }
});

/// Shows every series from the start, at zero.
pub fn start() {
    for basis in Basis::ALL {
        COUNTERS.error.with_label_values(&[basis.word()]);
        for within in ["yes", "no"] {
            COUNTERS.outcomes.with_label_values(&[basis.word(), within]).inc_by(0);
        }
    }
    count_memory(Outcomes::default());
    count_company(Outcomes::default());
}

/// Shows what is believed now.
pub fn show(learned: &Learned) {
    for (about, model) in [("slices", learned.slices), ("company", learned.company)] {
        if let Some((_, believed)) = model {
            COUNTERS.believed.with_label_values(&[about]).set(i64::from(believed));
        }
    }
    COUNTERS.doubted.set(i64::try_from(learned.doubted_tasks).unwrap_or(i64::MAX));
}

/// Counts what came of memory that was foretold.
pub fn count_memory(came: Outcomes) {
    add(&COUNTERS.memory, came);
}

/// Counts what came of speeds that were foretold of jobs beside others.
pub fn count_company(came: Outcomes) {
    add(&COUNTERS.company, came);
}

fn add(counter: &IntCounterVec, came: Outcomes) {
    for (within, more) in [("yes", came.within), ("no", came.outside)] {
        counter.with_label_values(&[within]).inc_by(more);
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
