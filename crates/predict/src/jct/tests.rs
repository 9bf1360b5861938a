use super::*;
use crate::random::SeededRng;

const SIZES: [u8; 5] = [1, 2, 3, 4, 7];

/// A task that scales by Amdahl's law: `serial` thousandths of it don't scale.
fn runs(task: &str, whole_ms: u64, serial: u64, sizes: &[u8]) -> Vec<TaskRun> {
    let run = |slices: &u8| {
        let parallel = whole_ms * (1_000 - serial) * 7 / u64::from(*slices) / 1_000;
        TaskRun {
            task: task.to_owned(),
            model: "a100-40gb".to_owned(),
            whole_slices: 7,
            slices: *slices,
            ms: whole_ms * serial / 1_000 + parallel,
            counters: Some(RunCounters {
                sm: u16::try_from(1_000 - serial).unwrap(),
                ..RunCounters::default()
            }),
        }
    };
    sizes.iter().map(run).collect()
}

fn lab(tasks: u64) -> Vec<TaskRun> {
    let mut rng = SeededRng::new(2);
    let mut all = Vec::new();
    for task in 0..tasks {
        let serial = u64::try_from(rng.index_below(900)).unwrap();
        let whole = 10_000 + u64::try_from(rng.index_below(3_000_000)).unwrap();
        all.extend(runs(&format!("task {task}"), whole, serial, &SIZES));
    }
    all
}

#[test]
fn one_run_on_one_size_predicts_the_others_within_a_tenth() {
    let mut history = lab(60);
    history.extend(runs("new", 500_000, 300, &[7]));
    let jct = TimePredictor::learn(&history, 1);
    assert!(jct.ratios().unwrap().held_out.relative < 0.15, "{:?}", jct.ratios());
    for truth in runs("new", 500_000, 300, &[1, 2, 3, 4]) {
        let predicted =
            jct.time("new", "a100-40gb", truth.slices, PredictorTrust::Trusted).unwrap();
        assert_eq!(predicted.source, PredictionSource::Learned);
        assert!(predicted.relative_error(truth.ms) < 0.1, "{truth:?} {predicted:?}");
        assert!(predicted.low <= predicted.value && predicted.value <= predicted.high);
    }
}

#[test]
fn runs_on_the_same_size_have_precedence() {
    let jct = TimePredictor::learn(&runs("mine", 100_000, 0, &[2, 7]), 1);
    let predicted = jct.time("mine", "a100-40gb", 2, PredictorTrust::Trusted).unwrap();
    assert_eq!((predicted.source, predicted.value), (PredictionSource::Measured, 350_000));
    assert!(jct.time("mine", "h100", 2, PredictorTrust::Trusted).is_none());
    assert!(jct.time("yours", "a100-40gb", 2, PredictorTrust::Trusted).is_none());
}

#[test]
fn with_little_history_the_rule_for_slices_is_used() {
    let jct = TimePredictor::learn(&runs("mine", 100_000, 200, &[7]), 1);
    let predicted = jct.time("mine", "a100-40gb", 1, PredictorTrust::Trusted).unwrap();
    assert_eq!(predicted.source, PredictionSource::Scaled);
    assert!(predicted.value > 400_000 && predicted.value <= predicted.high, "{predicted:?}");
}

#[test]
fn without_trust_larger_slices_gain_nothing_and_smaller_ones_cost_their_size() {
    let jct = TimePredictor::learn(&lab(60), 1);
    let history = runs("new", 500_000, 300, &[3]);
    let all: Vec<TaskRun> = lab(60).into_iter().chain(history).collect();
    let jct_new = TimePredictor::learn(&all, 1);
    let base = jct_new.time("new", "a100-40gb", 3, PredictorTrust::Trusted).unwrap().value;
    let smaller = jct_new.time("new", "a100-40gb", 1, PredictorTrust::Alarmed).unwrap();
    let larger = jct_new.time("new", "a100-40gb", 7, PredictorTrust::Alarmed).unwrap();
    assert_eq!((smaller.value, larger.value), (base * 3, base));
    assert_eq!(smaller.source, PredictionSource::Conservative);
    let known = jct.time("task 0", "a100-40gb", 7, PredictorTrust::Alarmed).unwrap();
    assert_eq!(known.value, known.high);
}

proptest::proptest! {
    #[test]
    fn an_interval_contains_its_value_and_ratios_stay_possible(
        whole in 1_000_u64..10_000_000, serial in 0_u64..1_000, from in 0_usize..5, to in 0_usize..5,
    ) {
        let jct = TimePredictor::learn(&runs("any", whole, serial, &[SIZES[from]]), 1);
        for trust in [PredictorTrust::Trusted, PredictorTrust::Alarmed] {
            let base = jct.time("any", "a100-40gb", SIZES[from], PredictorTrust::Trusted).unwrap().value;
            let predicted = jct.time("any", "a100-40gb", SIZES[to], trust).unwrap();
            proptest::prop_assert!(predicted.low <= predicted.value && predicted.value <= predicted.high);
            if to < from {
                proptest::prop_assert!(predicted.value + 1 >= base);
            }
            if to > from {
                proptest::prop_assert!(predicted.value <= base + 1);
            }
        }
    }
}
