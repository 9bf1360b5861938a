//! The rules of the co-execution study (Villarrubia et al., arXiv 2604.22430) come out of the
//! contention model, within 0.1 of what is printed.

use tessera_placement::Demand;
use tessera_sim::cluster::contention::{
    POWER_UNDER_MIG, Sharer, over_pcie, power_under_mps, time_slicing, under_mig, under_mps,
};

/// Name, seconds alone, SM and memory utilisation in percent, power in watts (tables 2 and 5).
type Row = (&'static str, f64, f64, f64, f64, f64);

/// Alone on an A30, medium; the fifth column is energy in joules.
const MEDIUM: [Row; 10] = [
    ("Sort", 5.16, 36.62, 24.60, 321.62, 62.33),
    ("GUPS", 4.81, 17.31, 17.72, 337.18, 70.10),
    ("KMeans", 5.31, 36.92, 23.92, 304.52, 57.35),
    ("SRAD", 6.04, 38.14, 24.08, 367.29, 60.81),
    ("GeMM", 5.74, 78.42, 7.87, 543.18, 94.63),
    ("LavaMD", 6.21, 34.41, 0.61, 531.51, 85.59),
    ("ResNet50", 5.36, 65.42, 25.10, 540.11, 100.77),
    ("BERT", 5.30, 45.74, 10.76, 526.95, 99.42),
    ("Enformer", 5.98, 81.23, 44.70, 599.21, 100.20),
    ("PosEGNN", 5.11, 34.98, 12.47, 333.42, 65.25),
];

const SMALL: [Row; 8] = [
    ("Sort", 2.84, 12.20, 9.42, 140.36, 49.42),
    ("GUPS", 1.11, 7.18, 12.11, 52.28, 47.10),
    ("KMeans", 0.53, 6.07, 8.22, 24.00, 45.28),
    ("SRAD", 2.12, 8.87, 6.44, 92.12, 43.45),
    ("GeMM", 2.54, 35.24, 1.20, 187.88, 73.97),
    ("LavaMD", 0.24, 5.09, 0.51, 10.20, 42.50),
    ("ResNet18", 2.16, 10.11, 2.21, 124.21, 57.50),
    ("DistilBERT", 1.82, 12.52, 3.39, 83.56, 45.91),
];

const MEMORY_BOUND: [&str; 4] = ["Sort", "GUPS", "KMeans", "SRAD"];

fn row(table: &[Row], name: &str) -> Row {
    *table.iter().find(|row| row.0 == name).unwrap()
}

fn demand(row: Row) -> Demand {
    let thousandths = |percent: f64| {
        let text = format!("{:.0}", percent * 10.0);
        text.parse().unwrap()
    };
    Demand { sm: thousandths(row.2), memory: thousandths(row.3) }
}

/// Slow-downs of jobs that share a whole GPU under MPS with these caps.
fn mps(rows: &[Row], caps: &[u8]) -> Vec<f64> {
    let sharers: Vec<Sharer> = rows
        .iter()
        .zip(caps)
        .map(|(row, cap)| Sharer { demand: Some(demand(*row)), cap: *cap })
        .collect();
    under_mps(&sharers, 4, 4).into_iter().map(ratio).collect()
}

fn ratio(thousandths: u64) -> f64 {
    f64::from(u32::try_from(thousandths).unwrap()) / 1_000.0
}

fn half(row: Row) -> f64 {
    ratio(under_mig(demand(row), 2, 4))
}

/// Time of both together over one after the other.
fn t_rel(rows: [Row; 2], slowed: &[f64]) -> f64 {
    let together = (rows[0].1 * slowed[0]).max(rows[1].1 * slowed[1]);
    together / (rows[0].1 + rows[1].1)
}

fn gini(a: f64, b: f64) -> f64 {
    // Of what is lost, as the study has it: nothing lost by both is even.
    let (a, b) = (a - 1.0, b - 1.0);
    (a - b).abs() / (2.0 * (a + b)).max(0.001)
}

#[test]
fn memory_bound_jobs_lose_more_under_mps_than_by_taking_turns_and_less_on_halves() {
    let turns = ratio(time_slicing(2));
    assert!((1.9..2.0).contains(&turns));
    for a in MEMORY_BOUND {
        for b in MEMORY_BOUND {
            let rows = [row(&MEDIUM, a), row(&MEDIUM, b)];
            let slowed = mps(&rows, &[100, 100]);
            assert!(slowed.iter().all(|s| (2.0..=2.65).contains(s)), "{a}, {b}: {slowed:?}");
            assert!(slowed.iter().all(|s| *s > turns), "{a}, {b}: turns are better");
        }
        let half = half(row(&MEDIUM, a));
        assert!((1.5..2.0).contains(&half), "{a} on a half: {half}");
    }
}

#[test]
fn other_pairs_do_better_under_mps_than_on_halves_and_far_better_than_in_turns() {
    for (a, b) in
        [("SRAD", "LavaMD"), ("Sort", "LavaMD"), ("LavaMD", "LavaMD"), ("KMeans", "LavaMD")]
    {
        let rows = [row(&MEDIUM, a), row(&MEDIUM, b)];
        let shared = t_rel(rows, &mps(&rows, &[100, 100]));
        let halves = t_rel(rows, &rows.map(half));
        assert!(
            shared < halves && halves < 0.97,
            "{a}, {b}: {shared} under MPS, {halves} on halves"
        );
    }
}

#[test]
fn gemm_starves_its_partner_under_mps_and_itself_on_a_half_and_caps_mend_it() {
    let gemm = row(&MEDIUM, "GeMM");
    for partner in ["Sort", "LavaMD", "KMeans", "SRAD", "GUPS"] {
        let rows = [gemm, row(&MEDIUM, partner)];
        let shared = mps(&rows, &[100, 100]);
        assert!(shared[1] > 2.0, "{partner}: {shared:?}");
        assert!(half(gemm) > 2.0);
        let capped = mps(&rows, &[70, 30]);
        assert!(capped.iter().all(|s| *s < 1.8), "{partner}: {capped:?}");
        let halves = gini(half(gemm), half(rows[1]));
        assert!(gini(shared[0], shared[1]) > halves, "{partner}");
    }
}

#[test]
fn caps_that_give_all_multiprocessors_out_beat_caps_that_do_not_fit_the_demand() {
    let rows = [row(&MEDIUM, "GeMM"), row(&MEDIUM, "LavaMD")];
    let worst = |caps: [u8; 2]| mps(&rows, &caps).into_iter().fold(0.0, f64::max);
    assert!(worst([70, 30]) < worst([30, 70]));
    assert!(worst([60, 40]) < worst([100, 100]));
}

#[test]
fn what_is_printed_of_pairs_comes_out_within_a_tenth() {
    let pair = |a, b| [row(&MEDIUM, a), row(&MEDIUM, b)];
    for (a, b, printed) in
        [("SRAD", "LavaMD", 0.68), ("Sort", "Sort", 1.3), ("Enformer", "Enformer", 1.3)]
    {
        let rows = pair(a, b);
        let found = t_rel(rows, &mps(&rows, &[100, 100]));
        assert!((found - printed).abs() <= 0.1, "{a}, {b}: {found} against {printed}");
    }
    let rows = pair("Sort", "GUPS");
    let found = t_rel(rows, &rows.map(half));
    assert!((found - 0.9).abs() <= 0.1, "Sort, GUPS on halves: {found}");
}

#[test]
fn two_small_copies_gain_much_and_four_gain_little() {
    for small in SMALL.into_iter().filter(|row| row.0 != "GeMM") {
        for (copies, printed) in [(2, 0.6), (4, 0.8)] {
            let slowed = mps(&vec![small; copies], &vec![100; copies])[0];
            let found = slowed / f64::from(u32::try_from(copies).unwrap());
            assert!((found - printed).abs() <= 0.1, "{copies} of {}: {found}", small.0);
        }
    }
    let medium = row(&MEDIUM, "Sort");
    assert!(mps(&[medium; 4], &[100; 4])[0] / 4.0 > 1.0, "four medium copies lose");
}

#[test]
fn energy_is_power_times_time_in_every_printed_row() {
    for row in MEDIUM.into_iter().chain(SMALL) {
        let off = (row.1 * row.5 / row.4 - 1.0).abs();
        assert!(off < 0.005, "{}: {off}", row.0);
    }
    // 50.05 W in four rows of small jobs with two digits of seconds: 0.5 % is their rounding.
}

#[test]
fn energy_follows_power_and_time_as_printed() {
    let rows = [row(&MEDIUM, "SRAD"), row(&MEDIUM, "LavaMD")];
    let sharers = |rows: &[Row]| -> Vec<Sharer> {
        rows.iter().map(|row| Sharer { demand: Some(demand(*row)), cap: 100 }).collect()
    };
    let power = ratio(power_under_mps(&sharers(&rows)));
    assert!((power - 1.07).abs() < 0.05);
    assert!(power * t_rel(rows, &mps(&rows, &[100, 100])) < 0.8, "27 % of energy saved");
    let contended = [row(&MEDIUM, "Sort"); 2];
    let power = ratio(power_under_mps(&sharers(&contended)));
    assert!((power - 1.15).abs() < 0.05);
    let energy = power * t_rel(contended, &mps(&contended, &[100, 100]));
    assert!((1.35..1.55).contains(&energy), "{energy}");
    assert_eq!(POWER_UNDER_MIG, 1_150);
}

#[test]
fn needleman_wunsch_is_slowed_by_the_bus_as_migm_measured() {
    // Seven at once, half of whose time is transfers: 2.238 times slower (MIGM).
    let slowed = over_pcie(&[496; 7]);
    assert!((ratio(slowed[0]) - 2.238).abs() < 0.05, "{slowed:?}");
    assert_eq!(over_pcie(&[496, 0]), [1_000, 1_000], "a bus that isn't full slows nobody");
}
