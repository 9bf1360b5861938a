//! How accurate predictions were, for Prometheus.

use std::sync::LazyLock;
use tessera_model::number::clamped;

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use tessera_placement::Basis;
use tessera_telemetry::names::metric;

use crate::http::metrics;
use crate::store::predictions::ModelSubject;
use tessera_control::answers::ModelStatus;
use tessera_control::predictions::OutcomeCounts;
use tessera_control::rows::growth::GrowthRow;
use tessera_control::rows::idle::{IdleDecision, IdleRow};
use tessera_control::rows::preemptions::{PreemptionOutcome, PreemptionRow};
use tessera_control::rows::transitions::EndedAttempt;
use tessera_model::Millis;
use tessera_model::sizing::GrowthOutcome;

/// From an error of 2 % to one of ten times the prediction.
const RATIOS: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0];

/// A job is requested to leave.
const REQUESTED: &str = "requested";
/// A job that was sent back runs again.
const RESUMED: &str = "resumed";

/// All values of `outcome`.
const PREEMPTION_OUTCOMES: [&str; 4] =
    [REQUESTED, PreemptionOutcome::SentBack.word(), PreemptionOutcome::Ended.word(), RESUMED];

struct Counters {
    error: HistogramVec,
    outcomes: IntCounterVec,
    memory: IntCounterVec,
    colocation: IntCounterVec,
    deadlines: IntCounterVec,
    growths: IntCounterVec,
    growth_events: IntCounterVec,
    idle: IntCounterVec,
    preemptions: IntCounterVec,
    trusted: IntGaugeVec,
    low_confidence: IntGauge,
}

static COUNTERS: LazyLock<Counters> = LazyLock::new(|| {
    let help = "Error of predicted run times, as a ratio of the prediction.";
    let error = HistogramOpts::new(metric::PREDICTION_ERROR, help).buckets(RATIOS.to_vec());
    let error = HistogramVec::new(error, &["basis"]).expect("a constant name and label");
    let counter = |name, help, labels: &[&str]| {
        IntCounterVec::new(Opts::new(name, help), labels).expect("a constant name and label")
    };
    let outcomes =
        counter(metric::PREDICTIONS, "Predicted run times with an outcome.", &["basis", "within"]);
    let memory =
        counter(metric::MEMORY_PREDICTIONS, "Predicted memory with an outcome.", &["within"]);
    let colocation = counter(
        metric::COLOCATION_PREDICTIONS,
        "Predicted speeds of co-located jobs with an outcome.",
        &["within"],
    );
    let deadlines = counter(
        metric::DEADLINES,
        "Jobs with a deadline that ended, and whether they met it.",
        &["outcome"],
    );
    let growths = counter(
        metric::MEMORY_GROWTHS,
        "Predictions that a running job exceeds its slice, with an outcome.",
        &["outcome"],
    );
    let growth_events = counter(
        metric::MEMORY_GROWTH_EVENTS,
        "Running jobs that were reported to exceed their slices, or moved for it.",
        &["what"],
    );
    let idle = counter(
        metric::IDLE_JOBS,
        "Jobs whose GPUs did nothing for their idle timeout, or half of it.",
        &["what"],
    );
    let preemptions = counter(
        metric::PREEMPTIONS,
        "Offline jobs that are sent back to the queue for online jobs.",
        &["outcome"],
    );
    let help = Opts::new(metric::PREDICTOR_TRUSTED, "Whether a model is trusted.");
    let trusted = IntGaugeVec::new(help, &["subject"]).expect("a constant name and label");
    let low_confidence =
        IntGauge::new(metric::LOW_CONFIDENCE_TASKS, "Tasks that get cautious memory estimates.")
            .expect("a constant name and label");
    let all: [Box<dyn Collector>; 11] = [
        Box::new(error.clone()),
        Box::new(outcomes.clone()),
        Box::new(memory.clone()),
        Box::new(colocation.clone()),
        Box::new(deadlines.clone()),
        Box::new(growths.clone()),
        Box::new(growth_events.clone()),
        Box::new(idle.clone()),
        Box::new(preemptions.clone()),
        Box::new(trusted.clone()),
        Box::new(low_confidence.clone()),
    ];
    for series in all {
        metrics::registry().register(series).expect("a name that is used once");
    }
    Counters {
        error,
        outcomes,
        memory,
        colocation,
        deadlines,
        growths,
        growth_events,
        idle,
        preemptions,
        trusted,
        low_confidence,
    }
});

/// Exports every series from the start, at zero.
pub fn register_series() {
    for basis in Basis::ALL {
        COUNTERS.error.with_label_values(&[basis.word()]);
        for within in ["yes", "no"] {
            COUNTERS.outcomes.with_label_values(&[basis.word(), within]).inc_by(0);
        }
    }
    for outcome in GrowthOutcome::ALL {
        COUNTERS.growths.with_label_values(&[outcome.word()]).inc_by(0);
    }
    for outcome in ["met", "missed"] {
        COUNTERS.deadlines.with_label_values(&[outcome]).inc_by(0);
    }
    for what in ["reported", "moved"] {
        COUNTERS.growth_events.with_label_values(&[what]).inc_by(0);
    }
    for decision in IdleDecision::ALL {
        COUNTERS.idle.with_label_values(&[decision.word()]).inc_by(0);
    }
    for outcome in PREEMPTION_OUTCOMES {
        COUNTERS.preemptions.with_label_values(&[outcome]).inc_by(0);
    }
    count_memory_outcomes(OutcomeCounts::default());
    count_colocation_outcomes(OutcomeCounts::default());
}

/// Exports which models are trusted now.
pub fn export_trust(models: &ModelStatus) {
    let subjects =
        [(ModelSubject::Slices, models.slices), (ModelSubject::Colocation, models.colocation)];
    for (subject, model) in subjects {
        if let Some((_, trusted)) = model {
            COUNTERS.trusted.with_label_values(&[subject.name()]).set(i64::from(trusted));
        }
    }
    COUNTERS.low_confidence.set(metrics::gauge_value(models.low_confidence_tasks as u64));
}

/// Counts outcomes of memory predictions.
pub fn count_memory_outcomes(outcomes: OutcomeCounts) {
    add_outcomes(&COUNTERS.memory, outcomes);
}

/// Counts what a committed round has of predicted growths.
pub fn count_growths(growths: &[GrowthRow]) {
    for growth in growths {
        if let Some(outcome) = growth.outcome {
            COUNTERS.growths.with_label_values(&[outcome.word()]).inc();
        }
        let events = [("reported", growth.is_first), ("moved", growth.at_least.is_some())];
        for (what, _) in events.into_iter().filter(|(_, is)| *is) {
            COUNTERS.growth_events.with_label_values(&[what]).inc();
        }
    }
}

/// Counts what a committed round decided about idle jobs.
pub fn count_idle(decided: &[IdleRow]) {
    for row in decided {
        COUNTERS.idle.with_label_values(&[row.decision.word()]).inc();
    }
}

/// Counts the pre-emptions of a committed round.
pub fn count_preemptions(rows: &[PreemptionRow]) {
    for row in rows {
        let outcome = match row {
            PreemptionRow::Requested(_) => REQUESTED,
            PreemptionRow::Ended { outcome, .. } => outcome.word(),
            PreemptionRow::Resumed { .. } => RESUMED,
        };
        COUNTERS.preemptions.with_label_values(&[outcome]).inc();
    }
}

/// Counts outcomes of predicted speeds of co-located jobs.
pub fn count_colocation_outcomes(outcomes: OutcomeCounts) {
    add_outcomes(&COUNTERS.colocation, outcomes);
}

fn add_outcomes(counter: &IntCounterVec, outcomes: OutcomeCounts) {
    for (within, more) in [("yes", outcomes.within), ("no", outcomes.outside)] {
        counter.with_label_values(&[within]).inc_by(more);
    }
}

/// Counts the jobs of a committed round that met or missed their deadlines. `now` is in milliseconds since 1970.
pub fn count_deadlines(ended: &[EndedAttempt], now: Millis) {
    for met in ended.iter().filter_map(|end| end.met_deadline(now)) {
        let outcome = if met { "met" } else { "missed" };
        COUNTERS.deadlines.with_label_values(&[outcome]).inc();
    }
}

/// Counts the outcomes of predicted run times in a committed round.
pub fn count_run_outcomes(ended: &[EndedAttempt]) {
    for (known, ran) in
        ended.iter().filter_map(|end| Some((end.run_prediction?, end.run_times.ran?)))
    {
        let basis = known.basis.word();
        let within = if known.covers(ran) { "yes" } else { "no" };
        COUNTERS.outcomes.with_label_values(&[basis, within]).inc();
        let thousandths: u32 = clamped(known.error(ran));
        COUNTERS.error.with_label_values(&[basis]).observe(f64::from(thousandths) / 1_000.0);
    }
}
