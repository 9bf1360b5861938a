//! Two programs of equal priority: the driver's time slices against alternation by the queue.

use serde_json::{Value, json};
use tessera_kernel_queue::{Nanos, QueueRules};
use tessera_simulator::kernel_device::experiment::PairBench;
use tessera_simulator::kernel_device::{PAIRS, ProgramPair, SharingOutcome, SharingPolicy};

use super::pairs::{DRIVER_SLICE, SWITCH, thousandths};

/// By how much device time one may be ahead, in milliseconds.
const LENGTHS: [u64; 3] = [5, 20, 50];

/// Both programs of each pair run without a pause, at the same priority. Progress is a program's mean task time alone
/// over that next to the other.
pub fn sharing(tasks: usize, seed: u64) -> Value {
    // Neither has a gap.
    let busy = ProgramPair { letter: '-', high: PAIRS[0].low, low: PAIRS[5].low };
    let rows = PAIRS.iter().chain([&busy]).map(|pair| {
        let turned = ProgramPair { letter: pair.letter, high: pair.low, low: pair.high };
        let alone = [*pair, turned].map(|pair| {
            PairBench::new(&pair, 50, tasks, seed).both(SharingPolicy::Alone).programs[0].mean()
        });
        let bench =
            PairBench::new(pair, 50, tasks, seed).with_switch(SWITCH).with_equal_priorities();
        let slices = SharingPolicy::Slices(DRIVER_SLICE);
        let mut row = json!({
            "pair": pair.letter,
            "programs": [pair.high.name, pair.low.name],
            "time_slices": shown(&bench.both(slices), alone),
        });
        for length in LENGTHS {
            // Between equals a switch costs both the same, so fills need no budget.
            for (name, fill_cost_thousandths) in [("", 1_000), ("_and_the_budget_of_fills", 30)] {
                let alternate_after = Some(Nanos::from_millis(length));
                let rules =
                    QueueRules { alternate_after, fill_cost_thousandths, ..QueueRules::default() };
                let policy = SharingPolicy::QueueOverSlices(rules, DRIVER_SLICE);
                row[format!("alternating_after_{length}_ms{name}")] =
                    shown(&bench.both(policy), alone);
            }
        }
        row
    });
    rows.collect()
}

fn shown(outcome: &SharingOutcome, alone: [f64; 2]) -> Value {
    let progress = |at: usize| {
        let mean = outcome.programs[at].mean();
        if mean > 0.0 { alone[at] / mean } else { 0.0 }
    };
    let [first, second] = [0, 1].map(progress);
    let lasted = outcome.end.get().max(1);
    let busy = outcome.programs[0].busy.plus(outcome.programs[1].busy);
    json!({
        "progress": [thousandths(first), thousandths(second)],
        "sum": thousandths(first + second),
        "fairness": thousandths(first.min(second) / first.max(second).max(f64::MIN_POSITIVE)),
        "busy_thousandths": busy.get() * 1_000 / lasted,
        "switches_per_sec": outcome.switches * 1_000_000_000 / lasted,
    })
}
