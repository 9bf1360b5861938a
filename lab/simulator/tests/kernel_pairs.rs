//! FIKIT's ten pairs in virtual time: what sharing costs the high program and gives the low one.

use tessera_kernel_queue::{GapPredictor, Nanos, QueueRules};
use tessera_simulator::kernel_device::experiment::{PairBench, PairComparison, SwitchComparison};
use tessera_simulator::kernel_device::{PAIRS, PathLatencies, SharingPolicy};

const TASKS: usize = 40;
const SEED: u64 = 7;

/// The model's device changes contexts in no time.
fn plain() -> QueueRules {
    QueueRules::default().without_switches()
}

fn compare(gap_noise: u64, rules: QueueRules) -> Vec<(char, PairComparison)> {
    let of = |pair| PairBench::new(pair, gap_noise, TASKS, SEED).compare(rules);
    PAIRS.iter().map(|pair| (pair.letter, of(pair))).collect()
}

/// The longest that a kernel can be of which the nominal time is given. Four times the 2 % spread
/// are added, and what it takes to start it and to notice its end.
fn longest(nominal_us: f64) -> f64 {
    nominal_us * 1.08 + 5.0
}

#[test]
fn the_high_program_takes_at_most_a_twentieth_longer_than_alone() {
    for (pair, result) in compare(50, plain()) {
        assert!(result.high_ratio <= 1.05, "{pair}: {}", result.high_ratio);
    }
}

#[test]
fn the_low_program_uses_four_fifths_of_what_an_omniscient_filler_would() {
    for (pair, result) in compare(50, plain()) {
        assert!(result.fill_ratio >= 0.8, "{pair}: {}", result.fill_ratio);
    }
}

#[test]
fn a_gap_that_ends_early_costs_at_most_the_one_kernel_in_flight() {
    for predictor in [GapPredictor::Mean, plain().predictor] {
        let results = compare(300, QueueRules { predictor, ..plain() });
        let met: u64 = results.iter().map(|(_, r)| r.ours.programs[0].behind.kernels).sum();
        assert!(met > 1_000, "only {met} gaps ended early with a kernel in flight");
        for (pair, result) in results {
            assert!(
                result.behind_max_us <= longest(result.longest_low_us),
                "{pair}: {} µs, the longest kernel takes {} µs",
                result.behind_max_us,
                result.longest_low_us,
            );
        }
    }
}

#[test]
fn with_noisy_gaps_the_high_program_takes_at_most_a_twelfth_longer() {
    for (pair, result) in compare(300, plain()) {
        assert!(result.high_ratio <= 1.08, "{pair}: {}", result.high_ratio);
    }
}

#[test]
fn without_early_stop_the_high_program_waits_longer() {
    let with = compare(300, QueueRules::paper());
    let without = compare(300, QueueRules { early_stop: false, ..QueueRules::paper() });
    let sum = |results: &[(char, PairComparison)]| {
        results.iter().map(|(_, result)| result.high_ratio).sum::<f64>()
    };

    assert!(sum(&without) > sum(&with) + 0.02, "{} {}", sum(&without), sum(&with));
}

#[test]
fn pairs_of_kernels_predict_noisy_gaps_better_than_means() {
    let means = QueueRules { predictor: GapPredictor::Mean, ..plain() };
    for ((pair, ours), (_, theirs)) in compare(300, plain()).iter().zip(compare(300, means)) {
        assert!(
            ours.fill_ratio > theirs.fill_ratio && ours.high_ratio < theirs.high_ratio + 0.01,
            "{pair}: {} at {}, {} at {}",
            ours.fill_ratio,
            ours.high_ratio,
            theirs.fill_ratio,
            theirs.high_ratio,
        );
    }
}

#[test]
fn low_tasks_in_the_gaps_of_a_busy_program_take_about_the_same_time_each() {
    for pair in &PAIRS {
        let bench = PairBench::new(pair, 50, 30, SEED);
        let outcome = bench.low_every(SharingPolicy::Queue(plain()), Nanos::from_millis(200));
        let variation = outcome.programs[1].variation();
        assert!(variation <= 0.165, "{}: {variation}", pair.letter);
    }
}

#[test]
fn a_run_repeats_to_the_nanosecond() {
    let run = || PairBench::new(&PAIRS[0], 300, 5, SEED).both(SharingPolicy::Queue(plain()));

    assert_eq!(run().programs[0].tasks, run().programs[0].tasks);
    assert_eq!(run().counters, run().counters);
}

/// Messages that wake threads on busy processors. On an idle machine they take a fifth of that.
fn late() -> PathLatencies {
    let message = Nanos::from_micros(100);
    PathLatencies { send: message, grant: message, ..PathLatencies::default() }
}

#[test]
fn grants_ahead_make_up_for_late_messages_at_no_cost_to_the_high_program() {
    let of = |ahead, latencies| {
        let rules = QueueRules { ahead, ..plain() };
        let bench = |pair| PairBench::new(pair, 50, TASKS, SEED).with_latencies(latencies);
        PAIRS.iter().map(|pair| bench(pair).compare(rules)).collect::<Vec<_>>()
    };
    let mean = |results: &[PairComparison]| {
        results.iter().map(|result| result.fill_ratio).sum::<f64>() / 10.0
    };

    let (without, with) = (of(false, late()), of(true, late()));

    assert!(mean(&with) > mean(&without) + 0.04, "{} {}", mean(&with), mean(&without));
    for (pair, (with, without)) in PAIRS.iter().zip(with.iter().zip(&without)) {
        let letter = pair.letter;
        assert!(with.fill_ratio > without.fill_ratio - 0.02, "{letter}: {}", with.fill_ratio);
        assert!(with.high_ratio <= 1.01, "{letter}: {}", with.high_ratio);
    }
    let punctual = PathLatencies::default();
    let (without, with) = (mean(&of(false, punctual)), mean(&of(true, punctual)));
    assert!(with > without - 0.01, "nothing is lost where messages are fast: {with} {without}");
}

#[test]
fn with_recalls_switches_cost_the_high_program_little_and_more_gaps_are_filled() {
    const SWITCH: Nanos = Nanos::from_micros(150);
    let of = |recall| {
        let rules = QueueRules { recall, switch: SWITCH, ..QueueRules::default() };
        let bench = |pair| PairBench::new(pair, 50, TASKS, SEED).with_switch(SWITCH);
        PAIRS.iter().map(|pair| bench(pair).compare_with_switches(rules)).collect::<Vec<_>>()
    };
    let mean = |results: &[SwitchComparison]| {
        results.iter().map(|result| result.high_ratio).sum::<f64>() / 10.0
    };
    let of_omniscient = |results: &[SwitchComparison]| {
        results.iter().map(|result| result.of_omniscient).sum::<f64>() / 10.0
    };

    let (with, without) = (of(true), of(false));
    let (more, less) = (of_omniscient(&with), of_omniscient(&without));
    assert!(more > less + 0.02, "{more} {less}");

    assert!(mean(&without) > mean(&with) + 0.01, "{} {}", mean(&without), mean(&with));
    for (pair, (with, without)) in PAIRS.iter().zip(with.iter().zip(&without)) {
        let letter = pair.letter;
        assert!(with.high_ratio <= 1.01, "{letter}: {}", with.high_ratio);
        assert!(with.fills >= without.fills, "{letter}: {} {}", with.fills, without.fills);
    }
    let fills = |results: &[SwitchComparison]| results.iter().map(|r| r.fills).sum::<u64>();
    assert!(fills(&with) > fills(&without) * 3 / 2, "{} {}", fills(&with), fills(&without));
}
