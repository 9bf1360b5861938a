use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::*;

fn kind(model: &str, part: u16) -> SliceKind {
    SliceKind { model: model.to_owned(), profile: format!("p{part}"), part }
}

fn trained(runs: &[(u16, u64)]) -> Empirical {
    let mut empirical = Empirical::default();
    for (part, secs) in runs {
        empirical.learn("t", &kind("a", *part), Millis::from_secs(*secs));
    }
    empirical
}

#[test]
fn a_task_without_runs_is_not_predicted() {
    assert_eq!(Empirical::default().predict("t", &kind("a", 1_000)), None);
    assert_eq!(trained(&[(500, 60)]).predict("other", &kind("a", 500)), None);
}

#[test]
fn many_runs_give_quantiles_and_few_runs_a_wide_interval() {
    let many: Vec<_> = (10..=20).map(|secs| (500, secs)).collect();
    let known = trained(&many).predict("t", &kind("a", 500)).unwrap();
    let secs = [known.low, known.expected, known.high].map(|time| time.get() / 1_000);
    assert_eq!(secs, [11, 15, 19]);
    assert_eq!((known.basis, known.runs), (Basis::SameSlice, 11));

    let one = trained(&[(500, 60)]).predict("t", &kind("a", 500)).unwrap();
    let secs = [one.low, one.expected, one.high].map(|time| time.get() / 1_000);
    assert_eq!(secs, [30, 60, 120]);

    let equal = trained(&[(500, 60); 4]).predict("t", &kind("a", 500)).unwrap();
    assert_eq!((equal.low, equal.high), (one.low, one.high));
}

#[test]
fn an_outlier_does_not_change_the_expected_time() {
    let mut runs = vec![(500, 60); 8];
    runs.push((500, 86_400));

    let known = trained(&runs).predict("t", &kind("a", 500)).unwrap();

    assert_eq!(known.expected, Millis::from_secs(60));
}

#[test]
fn a_larger_slice_is_not_predicted_to_be_faster_and_a_smaller_one_is_slower() {
    let seen = trained(&[(500, 60)]);

    let larger = seen.predict("t", &kind("a", 1_000)).unwrap();
    let smaller = seen.predict("t", &kind("a", 250)).unwrap();

    assert_eq!(larger.expected, Millis::from_secs(60));
    assert_eq!(larger.low, Millis::from_secs(15), "a quarter: it might be twice as fast");
    assert_eq!(smaller.expected, Millis::from_secs(120));
    assert_eq!((larger.basis, smaller.basis), (Basis::OtherSlice, Basis::OtherSlice));
}

#[test]
fn runs_on_another_model_give_a_wider_interval() {
    let other = trained(&[(500, 60)]).predict("t", &kind("b", 500)).unwrap();

    assert_eq!((other.basis, other.expected), (Basis::OtherModel, Millis::from_secs(60)));
    assert_eq!((other.low, other.high), (Millis::from_secs(15), Millis::from_secs(240)));
}

/// Tasks that take `secs` on a whole "a", and on a whole "b" so many thousandths of that.
fn on_both_models(tasks: &[(u64, u64)]) -> Empirical {
    let mut empirical = Empirical::default();
    for (task, (secs, ratio)) in tasks.iter().enumerate() {
        let task = format!("task {task}");
        empirical.learn(&task, &kind("a", 1_000), Millis::from_secs(*secs));
        empirical.learn(&task, &kind("b", 1_000), Millis::new(secs * ratio));
    }
    empirical
}

#[test]
fn a_task_of_one_model_is_predicted_on_another_by_the_ratio_of_five_other_tasks() {
    let mut known = on_both_models(&[(60, 400), (600, 500), (30, 300), (90, 450), (7, 400)]);
    known.learn("t", &kind("a", 1_000), Millis::from_secs(100));
    known.learn("u", &kind("b", 1_000), Millis::from_secs(100));

    let faster = known.predict("t", &kind("b", 1_000)).unwrap();
    let slower = known.predict("u", &kind("a", 1_000)).unwrap();

    assert_eq!((faster.basis, faster.expected), (Basis::ComparedModels, Millis::from_secs(40)));
    assert_eq!((slower.basis, slower.expected), (Basis::ComparedModels, Millis::from_secs(250)));
    assert!(
        faster.low < Millis::from_secs(20) && faster.high > Millis::from_secs(80),
        "{faster:?}"
    );
    assert!(faster.basis.is_measured());
    let elsewhere = known.predict("t", &kind("b", 500)).unwrap();
    assert_eq!(elsewhere.basis, Basis::OtherModel, "no task compares with half of b");
}

#[test]
fn four_tasks_are_too_few_to_compare_models() {
    let mut known = on_both_models(&[(60, 400), (600, 500), (30, 300), (90, 450)]);
    known.learn("t", &kind("a", 1_000), Millis::from_secs(100));

    assert_eq!(known.predict("t", &kind("b", 1_000)).unwrap().basis, Basis::OtherModel);
}

#[test]
fn many_runs_of_one_task_count_once_in_a_comparison() {
    let mut known = on_both_models(&[(60, 400), (60, 400), (60, 400), (60, 400), (60, 9_000)]);
    for _ in 0..40 {
        known.learn("task 4", &kind("b", 1_000), Millis::from_secs(540));
    }
    known.learn("t", &kind("a", 1_000), Millis::from_secs(100));

    let predicted = known.predict("t", &kind("b", 1_000)).unwrap();

    assert_eq!(predicted.expected, Millis::from_secs(40));
}

#[test]
fn own_runs_on_a_model_are_used_before_a_comparison() {
    let mut known = on_both_models(&[(60, 400); 5]);
    known.learn("t", &kind("a", 1_000), Millis::from_secs(100));
    known.learn("t", &kind("b", 500), Millis::from_secs(70));

    let predicted = known.predict("t", &kind("b", 1_000)).unwrap();

    assert_eq!((predicted.basis, predicted.expected), (Basis::OtherSlice, Millis::from_secs(70)));
}

#[test]
fn eight_of_ten_times_on_another_model_lie_in_the_interval() {
    let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut draw = |from: u64, to: u64| from + rng.next_u64() % (to - from);
    let (mut inside, mut all) = (0, 0);
    for _ in 0..40 {
        // Tasks differ in how much faster the other model is: 1.5 to 3 times.
        let tasks: Vec<(u64, u64)> =
            (0..draw(5, 40)).map(|_| (draw(20, 2_000), draw(333, 667))).collect();
        let mut known = on_both_models(&tasks);
        for _ in 0..20 {
            let (secs, ratio) = (draw(20, 2_000), draw(333, 667));
            known.learn("t", &kind("a", 1_000), Millis::from_secs(secs));
            let predicted = known.predict("t", &kind("b", 1_000)).unwrap();
            known.tasks.remove("t");
            assert_eq!(predicted.basis, Basis::ComparedModels);
            inside += u32::from(predicted.covers(Millis::new(secs * ratio)));
            all += 1;
        }
    }
    assert!(inside * 10 >= all * 8, "{inside} of {all}");
}

#[test]
fn the_task_with_the_oldest_last_run_is_removed_first() {
    let mut empirical = Empirical::default();
    for task in 0..=TASKS_MAX {
        empirical.learn(&task.to_string(), &kind("a", 1), Millis::new(1));
    }

    assert_eq!(empirical.tasks.len(), TASKS_MAX);
    assert_eq!(empirical.predict("0", &kind("a", 1)), None);
    assert!(empirical.predict("1", &kind("a", 1)).is_some());
}

#[test]
fn a_run_that_exceeds_its_expected_time_is_expected_to_continue() {
    let runs: Vec<_> = (1..=32).map(|_| (500, 60)).chain([(500, 120); 4]).collect();
    let known = trained(&runs).predict("t", &kind("a", 500)).unwrap();
    let left = |secs: u64| known.after(Millis::from_secs(secs)).expected.get().div_ceil(1_000);

    assert_eq!(left(0), 60);
    assert!((30..=35).contains(&left(30)), "{}", left(30));
    assert_eq!(left(120), 120, "longer than any earlier run: as long again");
    assert_eq!(left(3_600), 3_600);
}

#[test]
fn a_time_limit_predicts_only_when_a_run_ends_at_the_latest() {
    let known = Prediction::by_limit(Millis::from_secs(100)).after(Millis::from_secs(70));

    assert_eq!((known.low, known.expected), (Millis::ZERO, Millis::from_secs(30)));
}

proptest! {
    #[test]
    fn an_interval_holds_its_expectation_and_more_compute_never_costs_time(
        runs in prop::collection::vec((1_u16..=1_000, 1_u64..100_000), 1..60),
        parts in prop::collection::vec(1_u16..=1_000, 2..8),
        model in prop::sample::select(&["a", "b"][..]),
    ) {
        let seen = trained(&runs);
        let mut parts = parts;
        parts.sort_unstable();
        for part in &parts {
            let known = seen.predict("t", &kind(model, *part)).unwrap();
            prop_assert!(known.low <= known.expected && known.expected <= known.high);
        }
        // Among slices that were never seen: measured runs may have any order.
        let unseen = parts.iter().filter(|p| runs.iter().all(|(seen, _)| seen != *p));
        let one = runs.iter().all(|(seen, _)| *seen == runs[0].0);
        let times: Vec<_> =
            unseen.map(|p| seen.predict("t", &kind(model, *p)).unwrap().expected).collect();
        prop_assert!(!one || times.is_sorted_by(|a, b| a >= b), "{times:?}");
    }

    #[test]
    fn the_remaining_time_never_exceeds_the_prediction_or_the_limit(
        secs in 1_u64..1_000_000, ran in 0_u64..1_000_000, limit in 1_u64..1_000_000,
    ) {
        let known = trained(&[(500, secs)]).predict("t", &kind("a", 500)).unwrap();
        let limit = Millis::from_secs(limit);
        let less = known.after(Millis::from_secs(ran)).within(Some(limit));
        prop_assert!(less.expected <= limit && less.high <= limit);
        prop_assert!(less.low <= less.expected && less.expected <= less.high);
    }

    #[test]
    fn the_remaining_time_is_never_zero_and_keeps_its_order(
        runs in prop::collection::vec(1_u64..100_000, 1..12), ran in 0_u64..10_000_000,
    ) {
        let runs: Vec<_> = runs.into_iter().map(|secs| (500, secs)).collect();
        let known = trained(&runs).predict("t", &kind("a", 500)).unwrap();
        let left = known.after(Millis::new(ran));
        prop_assert!(left.low <= left.expected && left.expected <= left.high, "{left:?}");
        prop_assert!(left.expected > Millis::ZERO);
        // A run that exceeds the upper end is expected to last as long again.
        prop_assert!(Millis::new(ran) < known.high || left.expected == Millis::new(ran));
    }

    #[test]
    fn the_longer_a_run_has_lasted_the_later_it_is_expected_to_end(
        runs in prop::collection::vec(1_u64..100_000, 1..12),
        ran in 0_u64..1_000_000_000, more in 0_u64..1_000_000_000,
    ) {
        let runs: Vec<_> = runs.into_iter().map(|secs| (500, secs)).collect();
        let known = trained(&runs).predict("t", &kind("a", 500)).unwrap();
        let over = |ran: u64| ran + known.after(Millis::new(ran)).expected.get();
        // Probabilities are rounded to one millionth.
        let step = known.high.get() / 10_000 + 2;
        prop_assert!(over(ran) <= over(ran + more) + step);
    }
}
