use proptest::prelude::*;

use super::fit::{ErrorTable, fit, rows_of_copies};
use super::public::{PARVAGPU, read_mps_rows};
use super::*;
use crate::colocation::SharingClient;
use crate::number::count;

fn rows() -> Vec<fit::CopiesRow<'static>> {
    rows_of_copies(&read_mps_rows(PARVAGPU).unwrap())
}

fn sharer(load: u16, cap: u8) -> MpsSharer {
    MpsSharer { load, cap, is_memory_bound: false }
}

#[test]
fn a_fit_to_the_public_measurements_gives_the_published_model() {
    assert_eq!(fit(&rows()), ContentionModel::A100);
}

#[test]
fn nine_of_ten_speeds_of_unseen_tasks_models_and_families_are_in_their_intervals() {
    let rows = rows();
    let table = ErrorTable::new(&rows);
    for group in [HeldOutGroup::Task, HeldOutGroup::Model, HeldOutGroup::Family] {
        let found = evaluate_held_out(&table, group, None);

        assert_eq!(found.rows, 1_327);
        assert!((0.87..=0.93).contains(&found.covered), "{group:?}: {found:?}");
        assert!(found.median <= 0.05 && found.p90 <= 0.18, "{group:?}: {found:?}");
    }
}

#[test]
fn margins_of_half_the_width_would_hold_too_few_speeds() {
    let narrow = ContentionModel::A100.margins.map(|margin| f64::from(margin) / 2_000.0);
    let rows = rows();
    let held = rows.iter().filter(|row| {
        let (residual, regime) = row.residual(&ContentionModel::A100).unwrap();
        residual.abs() <= narrow[regime]
    });
    let part = count(held.count()) / count(rows.len());
    assert!(part < 0.80, "{part}");
}

#[test]
fn a_fit_to_other_speeds_gives_another_model() {
    let mut rows = rows();
    for row in &mut rows {
        // As if nothing slowed any job.
        row.speed = 1.0;
    }
    let fitted = fit(&rows);
    assert_ne!(fitted.exponent, ContentionModel::A100.exponent);
}

#[test]
fn a_job_alone_on_all_of_the_instance_has_its_speed_and_a_percentage_slows_it() {
    let speed = |sharers: &[MpsSharer]| ContentionModel::A100.speeds(sharers)[0];
    let alone = speed(&[sharer(700, 100)]);
    assert_eq!((alone.low, alone.value, alone.high), (1_000, 1_000, 1_000));
    let half = speed(&[sharer(1_000, 50)]);
    assert_eq!(half.value, 500);
    assert!(half.low < 500 && half.high > 500, "{half:?}");
    assert!(speed(&[sharer(300, 50)]).value > 950);
    assert_eq!(ContentionModel::A100.speeds(&[]), Vec::new());
}

#[test]
fn jobs_that_fill_an_instance_take_as_long_as_one_after_the_other_and_light_ones_do_not() {
    let pair = |load| ContentionModel::A100.speeds(&[sharer(load, 100); 2])[0].value;
    assert_eq!(pair(1_000), 500);
    assert!(pair(300) > 930, "{}", pair(300));
    assert!(pair(100) > 990, "{}", pair(100));
}

#[test]
fn two_memory_bound_jobs_slow_each_other_whatever_their_loads() {
    let bound = MpsSharer { load: 300, cap: 50, is_memory_bound: true };
    let both = ContentionModel::A100.speeds(&[bound, bound]);
    assert!(both[0].value <= 500, "{both:?}");
    let with_light = ContentionModel::A100.speeds(&[bound, sharer(300, 50)]);
    assert!(with_light[0].value > 900, "{with_light:?}");
}

#[test]
fn other_gpus_get_the_same_speeds_with_wider_intervals() {
    let (fitted, here) = ContentionModel::of_gpu("NVIDIA A100-SXM4-40GB");
    let (other, there) = ContentionModel::of_gpu("h100-80gb-sxm");

    assert_eq!((here, there), (ContentionBasis::Fitted, ContentionBasis::Transferred));
    assert_eq!(ContentionModel::of_gpu("a100-80gb"), (fitted, here));
    assert_eq!(ContentionModel::of_gpu("NVIDIA A30").1, ContentionBasis::Transferred);
    let pair = [sharer(600, 100); 2];
    let (one, wide) = (fitted.speeds(&pair)[0], other.speeds(&pair)[0]);
    assert_eq!(one.value, wide.value);
    assert!(wide.low < one.low && wide.high > one.high, "{one:?} {wide:?}");
    assert_ne!(fitted.fingerprint(), other.fingerprint());
}

#[test]
fn a_load_follows_from_speeds_alone_or_from_a_pair() {
    let model = ContentionModel::A100;
    let linear: Vec<(u8, f64)> = [1, 2, 3, 4, 7].map(|size| (size, f64::from(size))).to_vec();
    let flat: Vec<(u8, f64)> = [1, 2, 3, 4, 7].map(|size| (size, 5.0)).to_vec();
    assert_eq!(load_of_speeds(&model, &linear, 7), Some(1_000));
    assert_eq!(load_of_speeds(&model, &flat, 1), Some(model.unseen_load));
    assert_eq!(load_of_speeds(&model, &flat, 3), Some(model.unseen_load / 3));
    assert_eq!(load_of_speeds(&model, &flat, 5), None, "it was not measured there");
    assert_eq!(load_of_speeds(&model, &flat[..1], 1), None, "one size says nothing");
    for load in [150, 400, 750, 1_000] {
        let speed = model.speeds(&[sharer(load, 100); 2])[0].value;
        let found = load_of_pair(&model, 1_000.0 / float(speed));
        assert!(found.abs_diff(load) < 25, "{found} for {load}");
    }
}

#[test]
fn busy_kernels_count_for_more_on_a_part_of_a_gpu_and_unknown_ones_fill_it() {
    let client = |busy| SharingClient { online: false, sm_percent: 50, busy };
    let speed = |slice, busy| {
        speeds_by_busy("NVIDIA A100-SXM4-40GB", slice, &[client(busy), client(Some(100))])[0].value
    };
    assert!(speed(1_000, Some(200)) > speed(428, Some(200)));
    assert_eq!(speed(1_000, None), 500);
    assert_eq!(speed(142, Some(400)), 500, "it fills a seventh");
}

fn sharers() -> impl Strategy<Value = Vec<MpsSharer>> {
    let one = (1_u16..=1_000, 1_u8..=100, prop::bool::weighted(0.2));
    let one = one.prop_map(|(load, cap, is_memory_bound)| MpsSharer { load, cap, is_memory_bound });
    prop::collection::vec(one, 1..6)
}

proptest! {
    #[test]
    fn speeds_are_above_zero_and_at_most_alone_and_lie_in_their_intervals(all in sharers()) {
        for found in ContentionModel::A100.speeds(&all) {
            prop_assert!(1 <= found.low && found.low <= found.value);
            prop_assert!(found.value <= found.high && found.high <= 1_000);
        }
    }

    #[test]
    fn the_order_of_co_runners_has_no_effect(all in sharers(), turn in 0_usize..6) {
        let speeds = ContentionModel::A100.speeds(&all);
        let turn = turn % all.len();
        let mut turned = all.clone();
        turned.rotate_left(turn);
        let mut expected = speeds;
        expected.rotate_left(turn);
        prop_assert_eq!(ContentionModel::A100.speeds(&turned), expected);
    }

    #[test]
    fn one_more_co_runner_speeds_nobody_up(all in sharers(), more in sharers()) {
        let before = ContentionModel::A100.speeds(&all);
        let with = [&all[..], &more[..1]].concat();
        let after = ContentionModel::A100.speeds(&with);
        for (before, after) in before.iter().zip(&after) {
            prop_assert!(after.value <= before.value, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_co_runner_that_loads_more_or_may_use_more_speeds_nobody_else_up(
        all in sharers(),
        load in 0_u16..500,
        cap in 0_u8..50,
    ) {
        let before = ContentionModel::A100.speeds(&all);
        let mut heavier = all.clone();
        let last = heavier.last_mut().unwrap();
        last.load = (last.load + load).min(1_000);
        last.cap = (last.cap + cap).min(100);
        let after = ContentionModel::A100.speeds(&heavier);
        for (before, after) in before.iter().zip(&after).take(all.len() - 1) {
            prop_assert!(after.value <= before.value, "{before:?} {after:?}");
        }
    }
}
