//! FIKIT's three scenarios with its ten pairs.

use serde_json::{Value, json};
use tessera_kernel_queue::{GapPredictor, Nanos, QueueRules};
use tessera_simulator::kernel_device::experiment::{PairBench, PairComparison, SLICE};
use tessera_simulator::kernel_device::{PAIRS, SharingPolicy};

const SECOND: Nanos = Nanos::from_millis(1_000);

/// The time of a context switch and of a time slice, as on an H200 with driver 580 (docs/benchmarks.md).
pub const SWITCH: Nanos = Nanos::from_micros(150);
pub const DRIVER_SLICE: Nanos = Nanos::from_millis(2);

pub fn thousandths(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Context switches take no time on the model's device.
pub fn plain() -> QueueRules {
    QueueRules::default().without_switches()
}

/// The compared variants: ours, ours with the paper's predictor, the paper's, and both without
/// early stop.
fn ways() -> [(&'static str, QueueRules); 5] {
    let paper = QueueRules::paper();
    [
        ("ours", plain()),
        ("ours_with_mean_gaps", QueueRules { predictor: GapPredictor::Mean, ..plain() }),
        ("ours_without_early_stop", QueueRules { early_stop: false, ..plain() }),
        ("fikit", paper),
        ("fikit_without_early_stop", QueueRules { early_stop: false, ..paper }),
    ]
}

/// Both programs run without a pause.
pub fn sharing(gap_noise: u64, tasks: usize, seed: u64) -> Value {
    let rows = PAIRS.iter().map(|pair| {
        let bench = PairBench::new(pair, gap_noise, tasks, seed);
        let alone = bench.both(SharingPolicy::Alone).programs[0].mean();
        let slices = bench.both(SharingPolicy::Slices(SLICE)).programs[0].mean();
        let mut row = json!({
            "pair": pair.letter,
            "high": pair.high.name,
            "low": pair.low.name,
            "alone_ms": thousandths(alone / 1e6),
            "time_slices_ratio": thousandths(slices / alone),
        });
        for (name, rules) in ways() {
            row[name] = shown(&bench.compare(rules));
        }
        row
    });
    rows.collect()
}

fn shown(result: &PairComparison) -> Value {
    let counters = &result.ours.counters;
    json!({
        "high_ratio": thousandths(result.high_ratio),
        "of_omniscient": thousandths(result.fill_ratio),
        "of_omniscient_without_epsilon": thousandths(result.fill_ratio_of_all),
        "omniscient_busy": thousandths(result.ideal_fraction),
        "longest_wait_behind_low_us": thousandths(result.behind_max_us),
        "longest_low_kernel_us": thousandths(result.longest_low_us),
        "gaps_seen": counters.gaps_seen,
        "gaps_filled": counters.gaps_filled,
        "early_stops": counters.early_stops,
        "overshoots": counters.overshoots,
        "kernels": counters.filled_kernels,
        "grants": counters.grants,
        "aged": counters.aged,
    })
}

/// Both programs run without a pause, on a device whose context switches take time.
pub fn with_switches(gap_noise: u64, tasks: usize, seed: u64) -> Value {
    let rows = PAIRS.iter().map(|pair| {
        let bench = PairBench::new(pair, gap_noise, tasks, seed).with_switch(SWITCH);
        let result =
            bench.compare_with_switches(QueueRules { switch: SWITCH, ..QueueRules::default() });
        json!({
            "pair": pair.letter,
            "high_ratio": thousandths(result.high_ratio),
            "fills": result.fills,
            "of_omniscient": thousandths(result.of_omniscient),
            "of_omniscient_at_the_same_cost": thousandths(result.of_omniscient_at_the_same_cost),
            "of_omniscient_in_as_many_gaps": thousandths(result.of_omniscient_in_as_many_gaps),
        })
    });
    rows.collect()
}

/// The high program without a pause, a low task every second.
pub fn steady(tasks: usize, seed: u64) -> Value {
    let rows = PAIRS.iter().map(|pair| {
        let bench = PairBench::new(pair, 50, tasks, seed);
        let low = |rules| {
            let outcome = bench.low_every(SharingPolicy::Queue(rules), SECOND);
            let low = &outcome.programs[1];
            json!({
                "low_tasks": low.tasks.len(),
                "low_mean_ms": thousandths(low.mean() / 1e6),
                "low_variation": (!low.tasks.is_empty()).then(|| thousandths(low.variation())),
            })
        };
        json!({
            "pair": pair.letter,
            "ours": low(plain()),
            "fikit": low(QueueRules::paper()),
        })
    });
    rows.collect()
}

/// The low program without a pause, a high task every second.
pub fn preempting(tasks: usize, seed: u64) -> Value {
    let rows = PAIRS.iter().map(|pair| {
        let bench = PairBench::new(pair, 50, tasks, seed);
        let high = |policy| bench.high_every(policy, SECOND).programs[0].mean();
        let alone = high(SharingPolicy::Alone);
        let ours = bench.high_every(SharingPolicy::Queue(plain()), SECOND);
        let busy = ours.programs[1].busy.get() / 1_000;
        json!({
            "pair": pair.letter,
            "time_slices_ratio": thousandths(high(SharingPolicy::Slices(SLICE)) / alone),
            "ours_ratio": thousandths(ours.programs[0].mean() / alone),
            "ours_low_busy_percent": busy * 100 / (ours.end.get() / 1_000).max(1),
        })
    });
    rows.collect()
}
