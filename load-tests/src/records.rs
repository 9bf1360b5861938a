//! Recorded results of benchmarks, and the comparison of a new run with them.

use std::fmt;

use serde_json::Value;

/// By how much a figure may be worse than the recorded one: runs on one machine differ by less.
pub const TOLERANCE: f64 = 0.10;

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Rates and ratios of ours to another's.
    Higher,
    /// Times and sizes.
    Lower,
}

/// One figure of a result, or several of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// A JSON pointer in which `*` stands for each element of a list or an object.
    pub pointer: &'static str,
    /// The direction in which it improves.
    pub better: Better,
}

/// A benchmark that can be repeated.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    /// Its name: the record is `load-tests/results/NAME.json`.
    pub name: &'static str,
    /// The program in `load-tests/drivers/src/bin` or `load-tests/src/bin`, if its name is another one.
    pub program: Option<&'static str>,
    /// Whether it needs real-time priority (`chrt -f 10`): at true times, a wake-up takes as long as many gaps.
    pub is_real_time: bool,
    /// The options with which the record was made.
    pub options: &'static [&'static str],
    /// Whether the program prints one JSON object a line instead of writing `--out`.
    pub prints_lines: bool,
    /// The option that names a Python with the package `hyperqueue`, where it is compared with.
    pub takes_hyperqueue: bool,
    /// The figures that are compared.
    pub figures: &'static [Figure],
}

const fn higher(pointer: &'static str) -> Figure {
    Figure { pointer, better: Better::Higher }
}

const fn lower(pointer: &'static str) -> Figure {
    Figure { pointer, better: Better::Lower }
}

const PLAIN: Benchmark = Benchmark {
    name: "",
    program: None,
    is_real_time: false,
    options: &[],
    prints_lines: false,
    takes_hyperqueue: false,
    figures: &[],
};

/// Every benchmark with a record, the quick ones first.
pub const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "mig-states",
        figures: &[
            higher("/anew_to_lookup_ratio_p50"),
            lower("/build/p50_ms"),
            lower("/lookup/p50_ns"),
        ],
        ..PLAIN
    },
    Benchmark { name: "live-fair-share", figures: &[lower("/runs/*/largest_deviation")], ..PLAIN },
    Benchmark {
        name: "live-round",
        options: &["--rounds", "30", "--scales", "1"],
        prints_lines: true,
        figures: &[lower("/rows/*/median_ms")],
        ..PLAIN
    },
    Benchmark {
        name: "gang-round",
        options: &["--rounds", "5", "--scales", "1,4,16,50"],
        prints_lines: true,
        figures: &[lower("/rows/*/median_ms")],
        ..PLAIN
    },
    Benchmark {
        name: "idle",
        figures: &[
            lower("/controller_core_percent"),
            lower("/agent_core_percent"),
            lower("/controller_rss_mib"),
            lower("/agent_rss_mib"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "identity-cost",
        figures: &[
            lower("/median/submit_by_token/admission_us"),
            lower("/median/submit_by_users_token/admission_us"),
            lower("/median/queue_by_token/admission_us"),
            lower("/median/queue_by_socket/admission_us"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "launch-cost",
        figures: &[lower("/another_account/p50_ms"), lower("/hidden_processes/p50_ms")],
        ..PLAIN
    },
    Benchmark {
        name: "keystroke",
        figures: &[lower("/over_tcp/p50_ms"), lower("/over_the_unix_socket/p50_ms")],
        ..PLAIN
    },
    Benchmark {
        name: "latency",
        takes_hyperqueue: true,
        figures: &[
            lower("/submit_to_running/p50_ms"),
            lower("/submit_to_done/p50_ms"),
            lower("/running_to_hyperqueue_ratio"),
            lower("/done_to_hyperqueue_ratio"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "submit-rate",
        options: &["--secs", "6", "--rounds", "3"],
        figures: &[
            higher("/median/single_to_bare_ratio"),
            higher("/median/single_per_sec"),
            higher("/median/array_tasks_per_sec"),
            lower("/median/open_loop_p99_ms"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "throughput",
        options: &["--nodes", "1,16"],
        takes_hyperqueue: true,
        figures: &[higher("/clusters/*/jobs_per_sec"), higher("/clusters/*/ratio_to_hyperqueue")],
        ..PLAIN
    },
    Benchmark {
        name: "shim-overhead",
        options: &["--secs", "10"],
        figures: &[
            lower("/passed_on/stub_ns"),
            lower("/passed_on/hook_ns"),
            lower("/holder/every_5_us/p50_ns"),
            lower("/holder/every_3_ms/p50_ns"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "kernel-faults",
        figures: &[
            lower("/queue_killed/longest_pause_then/p50_ms"),
            lower("/queue_killed/both_back_after/p50_ms"),
            lower("/holder_killed/next_launch_after/p50_ms"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "kernel-queue",
        options: &["--tasks", "500"],
        figures: &[
            lower("/pairs_gaps_vary_by_5_percent/*/ours/high_ratio"),
            higher("/pairs_gaps_vary_by_5_percent/*/ours/of_omniscient"),
            lower("/pairs_gaps_vary_by_30_percent/*/ours/high_ratio"),
            higher("/pairs_gaps_vary_by_30_percent/*/ours/of_omniscient"),
            lower("/decisions/*/median_ns"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "layout-storm",
        options: &["--transitions", "10000", "--samples", "400", "--seed", "1"],
        figures: &[
            lower("/agent_ms_over_driver/create/p50_ms"),
            lower("/agent_ms_over_driver/destroy/p50_ms"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "fragmentation",
        figures: &[lower("/figures/*/rules/0/fragmented_percent")],
        ..PLAIN
    },
    Benchmark {
        name: "kernel-pairs",
        // The record was made with tenfold times, and the former cost of a context switch.
        options: &[
            "--stretch",
            "10",
            "--switch-us",
            "100",
            "--tasks",
            "10",
            "--measured",
            "30",
            "--steady",
            "12",
        ],
        figures: &[
            lower("/pairs/*/tessera/high_times_alone"),
            higher("/pairs/*/tessera/low_part_of_omniscient"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "kernel-pairs-true-times",
        program: Some("kernel-pairs"),
        is_real_time: true,
        options: &["--stretch", "1", "--tasks", "120", "--measured", "60"],
        figures: &[
            lower("/pairs/*/tessera/high_times_alone"),
            higher("/pairs/*/tessera/low_part_of_omniscient_at_the_same_cost"),
            higher("/pairs/*/tessera/low_part_of_woken_omniscient"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "kernel-stress",
        is_real_time: true,
        options: &["--tasks", "150"],
        figures: &[lower("/scenes/*/high_times_alone"), higher("/scenes/*/low_part_of_idle")],
        ..PLAIN
    },
    Benchmark {
        name: "take-over",
        program: Some("kernel-stress"),
        is_real_time: true,
        options: &["take-over"],
        figures: &[
            lower("/scenes/*/first_task_times_alone"),
            lower("/scenes/*/thirty_tasks_times_alone"),
            higher("/scenes/*/low_while_expected_of_free"),
        ],
        ..PLAIN
    },
    Benchmark {
        name: "policies",
        figures: &[
            lower("/cases/*/policies/*/jct_mean_s"),
            lower("/cases/*/policies/*/makespan_s"),
        ],
        ..PLAIN
    },
];

impl Benchmark {
    /// Returns the name of its program.
    pub fn program(&self) -> &'static str {
        self.program.unwrap_or(self.name)
    }
}

/// One figure with its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Where it is in the result.
    pub pointer: String,
    /// The recorded value.
    pub recorded: f64,
    /// The value of this run; absent if the run has none.
    pub measured: Option<f64>,
    /// Part by which this run is worse; negative where it is better.
    pub worse_by: f64,
}

impl Comparison {
    /// Returns whether the figure is worse than the tolerance allows, or was not measured.
    pub fn has_fallen(&self) -> bool {
        self.measured.is_none() || self.worse_by > TOLERANCE
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, recorded, measured, worse_by } = self;
        let Some(measured) = measured else {
            return write!(f, "{pointer:<56} {recorded:>12.3} {:>12}", "missing");
        };
        let change = if *worse_by > 0.0 { "worse" } else { "better" };
        let percent = (worse_by * 100.0).abs();
        write!(f, "{pointer:<56} {recorded:>12.3} {measured:>12.3} {percent:>7.1} % {change}")
    }
}

/// Compares a run with the record, figure by figure. Figures without a recorded number are left out.
pub fn compare(recorded: &Value, measured: &Value, figures: &[Figure]) -> Vec<Comparison> {
    let mut compared = Vec::new();
    for figure in figures {
        for pointer in expand(recorded, figure.pointer) {
            let Some(before) = recorded.pointer(&pointer).and_then(Value::as_f64) else { continue };
            let now = counterpart(recorded, measured, &pointer).and_then(Value::as_f64);
            let worse_by = now.map_or(1.0, |now| worse_by(before, now, figure.better));
            compared.push(Comparison { pointer, recorded: before, measured: now, worse_by });
        }
    }
    compared
}

/// The fields that distinguish elements of a list.
const NAMES: [&str; 2] = ["pair", "scene"];

/// Returns what a run has where `pointer` points in the record. Elements with names are found by these: a run may
/// have others as well, or another order.
fn counterpart<'a>(recorded: &Value, measured: &'a Value, pointer: &str) -> Option<&'a Value> {
    let (mut before, mut now) = (recorded, measured);
    for step in pointer.split('/').skip(1) {
        (before, now) = match (before, now) {
            (Value::Array(these), Value::Array(those)) => {
                let index: usize = step.parse().ok()?;
                let this = these.get(index)?;
                let name = |item: &Value| {
                    NAMES.iter().find_map(|name| Some(item.get(name)?.as_str()?.to_owned()))
                };
                let alike = |list: &'a [Value], sought: &str| -> Vec<&'a Value> {
                    list.iter().filter(|item| name(item).as_deref() == Some(sought)).collect()
                };
                let named = name(this).filter(|own| {
                    these.iter().filter(|item| name(item).as_ref() == Some(own)).count() == 1
                });
                match named {
                    Some(own) => match alike(those, &own)[..] {
                        [that] => (this, that),
                        _ => return None,
                    },
                    None => (this, those.get(index)?),
                }
            }
            (Value::Object(_), Value::Object(_)) => (before.get(step)?, now.get(step)?),
            _ => return None,
        };
    }
    Some(now)
}

/// Compares the medians of several runs of two builds. Each side's first run names the figures.
pub fn compare_medians(before: &[Value], now: &[Value], figures: &[Figure]) -> Vec<Comparison> {
    let Some(first) = before.first() else { return Vec::new() };
    let mut compared = Vec::new();
    for figure in figures {
        for pointer in expand(first, figure.pointer) {
            let numbers = |runs: &[Value]| -> Option<f64> {
                median(runs.iter().filter_map(|run| run.pointer(&pointer)?.as_f64()).collect())
            };
            let Some(recorded) = numbers(before) else { continue };
            let measured = numbers(now);
            let worse_by = measured.map_or(1.0, |now| worse_by(recorded, now, figure.better));
            compared.push(Comparison { pointer, recorded, measured, worse_by });
        }
    }
    compared
}

/// Returns the middle number, or the mean of the two in the middle.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let high = numbers.get(numbers.len() / 2)?;
    let low = numbers.get(numbers.len().checked_sub(1)? / 2)?;
    Some(low.midpoint(*high))
}

fn worse_by(before: f64, now: f64, better: Better) -> f64 {
    let change = match better {
        Better::Higher => before - now,
        Better::Lower => now - before,
    };
    if change == 0.0 { 0.0 } else { change / before.abs().max(f64::MIN_POSITIVE) }
}

/// Returns the pointers that a pointer with `*` stands for.
fn expand(value: &Value, pointer: &str) -> Vec<String> {
    let Some((before, after)) = pointer.split_once("/*") else { return vec![pointer.to_owned()] };
    let keys: Vec<String> = match value.pointer(before) {
        Some(Value::Array(items)) => (0..items.len()).map(|index| index.to_string()).collect(),
        Some(Value::Object(fields)) => fields.keys().cloned().collect(),
        _ => Vec::new(),
    };
    let one = |key: &String| expand(value, &format!("{before}/{key}{after}"));
    keys.iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fifth_less_of_a_rate_and_a_fifth_more_of_a_time_are_regressions() {
        let recorded = json!({ "rate": 100.0, "times": [{ "ms": 10.0 }, { "ms": 10.0 }] });
        let measured = json!({ "rate": 80.0, "times": [{ "ms": 12.0 }, { "ms": 10.5 }] });

        let compared = compare(&recorded, &measured, &[higher("/rate"), lower("/times/*/ms")]);

        let fallen: Vec<bool> = compared.iter().map(Comparison::has_fallen).collect();
        assert_eq!(fallen, [true, true, false]);
        assert_eq!(compared[1].pointer, "/times/0/ms");
    }

    #[test]
    fn pairs_and_scenes_are_found_by_their_names() {
        let pair = |pair: &str, ratio: f64| json!({ "pair": pair, "ratio": ratio });
        let recorded = json!({ "pairs": [pair("A", 1.0), pair("F", 2.0), pair("J", 3.0)] });
        let measured = json!({ "pairs": [pair("A", 1.0), pair("B", 9.0), pair("F", 2.0)] });

        let compared = compare(&recorded, &measured, &[lower("/pairs/*/ratio")]);

        let found: Vec<_> = compared.iter().map(|one| (one.recorded, one.measured)).collect();
        assert_eq!(found, [(1.0, Some(1.0)), (2.0, Some(2.0)), (3.0, None)]);

        // Equal names distinguish nothing.
        let twice = json!({ "pairs": [pair("A", 1.0), pair("A", 2.0)] });
        let compared = compare(&twice, &twice, &[lower("/pairs/*/ratio")]);
        assert_eq!(compared[1].measured, Some(2.0));
    }

    #[test]
    fn two_builds_are_compared_by_the_medians_of_their_runs() {
        let runs = |rates: &[f64]| -> Vec<Value> {
            rates.iter().map(|rate| json!({ "rate": rate })).collect()
        };

        let compared = compare_medians(
            &runs(&[100.0, 10.0, 104.0]),
            &runs(&[90.0, 110.0]),
            &[higher("/rate"), higher("/unknown")],
        );

        assert_eq!(compared.len(), 1);
        assert_eq!((compared[0].recorded, compared[0].measured), (100.0, Some(100.0)));
        assert!(!compared[0].has_fallen());
    }

    #[test]
    fn a_figure_without_a_record_is_left_out_and_a_missing_one_is_a_regression() {
        let recorded = json!({ "ours": 1.0, "theirs": null });

        let compared = compare(&recorded, &json!({}), &[higher("/ours"), higher("/theirs")]);

        assert_eq!(compared.len(), 1);
        assert!(compared[0].has_fallen());
    }

    #[test]
    fn every_benchmark_finds_all_of_its_figures_in_its_record() {
        for benchmark in BENCHMARKS {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/results");
            let text = std::fs::read_to_string(format!("{folder}/{}.json", benchmark.name));
            let recorded: Value = serde_json::from_str(&text.unwrap()).unwrap();

            for figure in benchmark.figures {
                let found = compare(&recorded, &recorded, &[*figure]);
                assert!(!found.is_empty(), "{}: {}", benchmark.name, figure.pointer);
            }
        }
    }
}
