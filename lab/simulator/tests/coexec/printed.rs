//! Figures of the study, and one of MIGM's.

use tessera_simulator::cluster::calibration::{MEDIUM, SMALL, medium, shared, t_rel};
use tessera_simulator::cluster::contention::over_pcie;

use super::{number, on_slices, ratio};

#[test]
fn what_is_printed_of_pairs_comes_out_within_a_tenth() {
    let pair = |a, b| [medium(a).unwrap(), medium(b).unwrap()];
    for (a, b, printed) in
        [("SRAD", "LavaMD", 0.68), ("Sort", "Sort", 1.3), ("Enformer", "Enformer", 1.3)]
    {
        let rows = pair(a, b);
        let found = t_rel(&rows, &shared(&rows, &[100, 100]));
        assert!((found - printed).abs() <= 0.1, "{a}, {b}: {found} against {printed}");
    }
    let rows = pair("Sort", "GUPS");
    let found = t_rel(&rows, &rows.map(|row| on_slices(row, 2)));
    assert!((found - 0.9).abs() <= 0.1, "Sort, GUPS on halves: {found}");
}

#[test]
fn two_small_copies_take_0_6_and_four_0_8_of_one_after_the_other() {
    for small in SMALL.into_iter().filter(|row| row.name != "GeMM") {
        for (copies, printed) in [(2, 0.6), (4, 0.8)] {
            let slowed = shared(&vec![small; copies], &vec![100; copies])[0];
            let found = slowed / number(copies);
            assert!((found - printed).abs() <= 0.1, "{copies} of {}: {found}", small.name);
        }
    }
}

#[test]
fn energy_is_power_times_time_in_every_printed_row() {
    for row in MEDIUM.into_iter().chain(SMALL) {
        let off = (row.seconds * row.watts / row.joules - 1.0).abs();
        assert!(off < 0.005, "{}: {off}", row.name);
    }
    // 50.05 W in four rows of small jobs with two digits of seconds: 0.5 % is their rounding.
}

#[test]
fn needleman_wunsch_is_slowed_by_the_bus_as_migm_measured() {
    // Seven at once, half of whose time is transfers: 2.238 times slower (MIGM).
    let slowed = over_pcie(&[496; 7]);
    assert!((ratio(slowed[0]) - 2.238).abs() < 0.05, "{slowed:?}");
    assert_eq!(over_pcie(&[496, 0]), [1_000, 1_000], "a bus that isn't full slows nobody");
}
