//! The co-execution study: its trio, its asymmetric pair, its rules and its power.

use tessera_model::mig::cost;

use super::{Finding, Proof, makespan, near, overheads_free};
use crate::cluster::bounds::config;
use crate::cluster::calibration::{
    CalibrationRow, MEDIUM, MEMORY_BOUND, SMALL, mean, medium, shared, t_rel,
};
use crate::cluster::contention::{
    ContentionSharer, power_alone_milliwatts, time_slicing, under_mps,
};
use crate::cluster::fleet::GpuFleet;
use crate::cluster::number::{count, float, seconds};
use crate::cluster::workload::built_in;

/// X3: table 3.
pub(super) fn trio() -> Vec<Finding> {
    let Ok(workload) = built_in("coexec-trio", 1) else { return Vec::new() };
    let sequential = makespan(&workload.jobs, "a100-40gb", "exclusive").unwrap_or(0.0);
    let fleet = GpuFleet::parse("a100-40gb").ok();
    let bound = fleet.and_then(|fleet| config::makespan(&workload.jobs, &fleet, &overheads_free()));
    let bound = bound.unwrap_or(0.0);
    let ends =
        |policy: &str| makespan(&workload.jobs, "a100-40gb", policy).unwrap_or(f64::INFINITY);
    // The best partition of the table, 3-2-2, is one that a policy has to find.
    let finds = |policy: &str| {
        let what = format!("{policy} finds a partition as good as the table's best, s");
        Finding::at_most("X3", what, Proof::Exact, BEST_S, ends(policy)).over(bound)
    };
    vec![
        near("X3", "one after the other, s", Proof::Exact, 8.39, sequential, 0.01).over(bound),
        finds("oracle").known(THROUGHPUT),
        finds("tessera"),
        near("X3", "configuration bound, s", Proof::Exact, 4.207, bound, 0.01),
    ]
}

/// The best partition of the table, which is printed as 4.58 s.
const BEST_S: f64 = 4.585;

/// Why `oracle` does not find the best partition of three jobs.
const THROUGHPUT: &str =
    "MISO's rule is the largest throughput at each time, whatever remains for the end";

/// X4: table 4, the rule that fixed parts hurt asymmetric jobs.
pub(super) fn asymmetric() -> Vec<Finding> {
    let Ok(workload) = built_in("coexec-pair", 1) else { return Vec::new() };
    let jobs = &workload.jobs;
    let simulated = |policy, layout| {
        super::makespan_cut(jobs, "a30-24gb", policy, layout).unwrap_or(f64::INFINITY)
    };
    // Half of the multiprocessors each, as in the study.
    let sharers: Vec<ContentionSharer> =
        jobs.iter().map(|job| ContentionSharer { demand: job.demand, cap: 50 }).collect();
    let alone = jobs.iter().filter_map(|job| job.time("a30-24gb", 4)).map(seconds);
    let slowed = under_mps(&sharers, 4, 4).into_iter().map(|slowed| float(slowed) / 1_000.0);
    let shared = alone.zip(slowed).map(|(alone, slowed)| alone * slowed).fold(0.0, f64::max);
    let ways = [
        ("one after the other", simulated("exclusive", ""), 87.68),
        ("on halves", simulated("static", "2g.12gb,2g.12gb"), 92.24),
        ("under MPS", shared, 61.45),
    ];
    let mut findings = Vec::new();
    let mut best: Option<(f64, usize)> = None;
    for (place, (what, found, printed)) in ways.into_iter().enumerate() {
        if best.is_none_or(|(known, _)| found < known) {
            best = Some((found, place));
        }
        let what = format!("HotSpot and Raytracing {what}, s");
        findings.push(near(
            "X4",
            what,
            Proof::CalibratedOnTheseRows,
            printed,
            found,
            0.03 * printed,
        ));
    }
    let chosen = best.map_or(0.0, |(_, place)| count(place));
    let what = "the fastest of the three (0 in turn, 1 halves, 2 MPS)";
    findings.push(near("X4", what, Proof::CalibratedOnTheseRows, 2.0, chosen, 0.0));
    findings
}

/// X5: table 6.
pub(super) fn cuts() -> Vec<Finding> {
    let four = float(cost::creation(1).get() * 4) / 1_000.0;
    let halves = cost::destruction().get() + 2 * cost::creation(2).get();
    let exact = |what: &str, expected, found| near("X5", what, Proof::Exact, expected, found, 0.0);
    vec![
        exact("1-1-1-1 from scratch, s", 0.44, four),
        exact("4-3 to 2-2-3, of which the 3 runs on, s", 0.34, seconds(halves)),
    ]
}

/// X13: power times time is energy in every row of tables 2 and 5. The share of multiprocessors that a job keeps busy
/// predicts its power: fitted on the medium jobs, and compared with the small ones.
pub(super) fn power() -> Vec<Finding> {
    let off = MEDIUM.iter().chain(&SMALL).map(|row| {
        let energy = row.seconds * row.watts;
        100.0 * (energy / row.joules - 1.0).abs()
    });
    let worst = off.fold(0.0, f64::max);
    let predicted = |row: &CalibrationRow| float(power_alone_milliwatts(row.demand())) / 1_000.0;
    let errors: Vec<f64> =
        SMALL.iter().map(|row| 100.0 * (predicted(row) / row.watts - 1.0).abs()).collect();
    vec![
        Finding::at_most("X13", "18 rows: power by time off energy, %", Proof::Exact, 0.5, worst),
        Finding::at_most(
            "X13",
            "power of the 8 small jobs by their multiprocessors, fitted on the 10 medium ones, mean error, %",
            Proof::CalibratedElsewhere,
            15.0,
            mean(&errors),
        ),
    ]
}

/// The rules of sections 4 to 6 under the model of contention.
pub(super) fn rules() -> Vec<Finding> {
    let row = |what: String, proof, expected, found, tolerance| {
        near("COEXEC", what, proof, expected, found, tolerance)
    };
    let (fitted, predicted) = (Proof::CalibratedOnTheseRows, Proof::CalibratedElsewhere);
    let two = |a: &str, b: &str| [a, b].iter().filter_map(|name| medium(name)).collect::<Vec<_>>();
    let mut pairs = Vec::new();
    let mut halves = Vec::new();
    for a in MEMORY_BOUND {
        halves.extend(medium(a).map(|row| row.on_a_half()));
        for b in MEMORY_BOUND {
            pairs.extend(shared(&two(a, b), &[100, 100]));
        }
    }
    let time_sliced = float(time_slicing(2)) / 1_000.0;
    let mut findings = vec![
        row("memory-bound pairs under MPS, slow-down".into(), predicted, 2.25, mean(&pairs), 0.35),
        row("memory-bound jobs on halves, slow-down".into(), fitted, 1.75, mean(&halves), 0.25),
        row("two time-sliced jobs, slow-down".into(), fitted, 1.95, time_sliced, 0.05),
    ];
    for (a, b, proof, printed) in [
        ("SRAD", "LavaMD", fitted, 0.68),
        ("Sort", "Sort", fitted, 1.3),
        ("Enformer", "Enformer", predicted, 1.3),
    ] {
        let found = t_rel(&two(a, b), &shared(&two(a, b), &[100, 100]));
        findings.push(row(format!("{a} with {b} under MPS, T_rel"), proof, printed, found, 0.1));
    }
    let rows = two("Sort", "GUPS");
    let cut: Vec<f64> = rows.iter().map(|row| row.on_a_half()).collect();
    let halves = t_rel(&rows, &cut);
    findings.push(row("Sort and GUPS on halves, T_rel".into(), predicted, 0.9, halves, 0.1));
    let partner = shared(&two("GeMM", "Sort"), &[100, 100]).last().copied().unwrap_or(0.0);
    let gemm = medium("GeMM").map_or(0.0, |row| row.on_a_half());
    for (what, found) in [("GeMM's partner under MPS", partner), ("GeMM on a half", gemm)] {
        let what = format!("{what}, slow-down");
        findings.push(Finding::at_least("COEXEC", what, fitted, 2.0, found));
    }
    let small: Vec<_> = SMALL.into_iter().filter(|row| row.name != "GeMM").collect();
    for (copies, printed) in [(2, 0.6), (4, 0.8)] {
        let of = |row: &_| shared(&vec![*row; copies], &vec![100; copies])[0] / count(copies);
        let found: Vec<f64> = small.iter().map(of).collect();
        let what = format!("{copies} small copies under MPS, T_rel");
        findings.push(row(what, fitted, printed, mean(&found), 0.1));
    }
    findings
}
