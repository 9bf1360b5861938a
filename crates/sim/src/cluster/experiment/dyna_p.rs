//! Dyna-P: its figure, its 50 jobs, its scale study.

use super::{Finding, Proof, Trial, near, overheads_free, runs};
use crate::cluster::job::Job;
use crate::cluster::metrics::Summary;
use crate::cluster::number::count;
use crate::cluster::overheads::Overheads;
use crate::cluster::workload::built_in;

const CLUSTER: &str = "2xa30-24gb";
const STACON: &str = "2g.12gb,1g.6gb,1g.6gb";

fn jobs(name: &str) -> Vec<Job> {
    built_in(name, 1).map(|workload| workload.jobs).unwrap_or_default()
}

/// X6: figure 7.
pub(super) fn figure_7() -> Vec<Finding> {
    let jobs = jobs("dyna-p-fig7");
    let mut findings = Vec::new();
    for policy in ["dyna-p", "tessera"] {
        let trial = Trial { overheads: overheads_free(), ..Trial::new(&jobs, "a30-24gb", policy) };
        let Some(done) = runs(&trial) else { continue };
        let what = format!("figure 7 under {policy}: makespan, s (optimum 250)");
        findings.push(
            Finding::at_most("X6", what, Proof::Exact, 285.0, done.makespan_s)
                .ratio(done.makespan_s / 250.0),
        );
        let late = count(done.deadlines_missed);
        let what = format!("figure 7 under {policy}: deadlines missed");
        findings.push(Finding::at_most("X6", what, Proof::Exact, 1.0, late));
    }
    findings
}

/// Why the fixed layout isn't as far behind as in the paper.
const PASSING: &str = "our static lets jobs pass a head that fits no idle slice, and so keeps its \
                       slices at work; how the paper's baseline orders jobs is not printed";

/// 4a: 50 jobs on two A30. What is compared as MISO knows the speeds, as in the paper: `oracle`.
pub(super) fn fifty() -> Vec<Finding> {
    let all = jobs("dyna-p-50");
    let done = |policy: &str| runs(&Trial::new(&all, CLUSTER, policy));
    let (Some(dyna_p), Some(miso), Some(whole)) =
        (done("dyna-p"), done("oracle"), done("exclusive"))
    else {
        return Vec::new();
    };
    // Jobs that no partition of the fixed layout holds fail there.
    let held: Vec<Job> =
        all.iter().filter(|job| job.time("a30-24gb", 2).is_some()).cloned().collect();
    let fixed = runs(&Trial { layout: STACON, ..Trial::new(&held, CLUSTER, "static") });
    let Some(fixed) = fixed else { return Vec::new() };
    let proxy = |what: &str, expected, found, tolerance| {
        near("DYNA-P-A", what, Proof::Proxy, expected, found, tolerance).known(PASSING)
    };
    let over = dyna_p.makespan_over_bound;
    let failed = all.len() - held.len();
    let fixed_jct = fixed.jct_mean_s;
    // The paper counts those that fail as done at once.
    let counted = fixed_jct * count(held.len()) / count(all.len());
    vec![
        proxy("makespan over StaCon's", 0.61, dyna_p.makespan_s / fixed.makespan_s, 0.10)
            .ratio(over),
        proxy("makespan over MISO's (profiled)", 0.879, dyna_p.makespan_s / miso.makespan_s, 0.10)
            .ratio(over),
        proxy("JCT over StaCon's", 0.668, dyna_p.jct_mean_s / fixed_jct, 0.10)
            .ratio(dyna_p.jct_over_bound),
        proxy(
            &format!("JCT over StaCon's, its {failed} that fail counted as 0"),
            0.668,
            dyna_p.jct_mean_s / counted,
            0.10,
        ),
        proxy("STP over StaCon's", 1.147, dyna_p.system_throughput / fixed.system_throughput, 0.10),
        Finding::at_least(
            "DYNA-P-A",
            "makespan over the whole GPU's (no MIG-only schedule is below 0.70)",
            Proof::Proxy,
            0.70,
            dyna_p.makespan_s / whole.makespan_s,
        ),
    ]
    .into_iter()
    .chain(with_errors(&all, &dyna_p, &miso))
    .collect()
}

/// Times that are predicted with 15 % error, mean of ten seeds.
fn with_errors(all: &[Job], exact: &Summary, miso: &Summary) -> Vec<Finding> {
    let overheads = Overheads { prediction_error: 150, ..Overheads::default() };
    let seeds = 1..=super::SEEDS;
    let done: Vec<Summary> = seeds
        .filter_map(|seed| runs(&Trial { overheads, seed, ..Trial::new(all, CLUSTER, "dyna-p") }))
        .collect();
    let mean =
        |of: &dyn Fn(&Summary) -> f64| done.iter().map(of).sum::<f64>() / count(done.len().max(1));
    let makespan = mean(&|s| s.makespan_s);
    let more = mean(&|s| f64::from(u32::try_from(s.reconfigurations).unwrap_or(u32::MAX)))
        - f64::from(u32::try_from(exact.reconfigurations).unwrap_or(u32::MAX));
    let grown = 100.0 * (makespan / exact.makespan_s - 1.0);
    let ahead = 100.0 * (1.0 - makespan / miso.makespan_s);
    let proxy = |what: &str, expected, found, tolerance| {
        near("DYNA-P-A", what, Proof::Proxy, expected, found, tolerance)
    };
    vec![
        proxy("15 % error: reconfigurations more", 2.0, more, 5.0),
        proxy("15 % error: makespan grows by, %", 8.09, grown, 5.0),
        proxy(
            "15 % error: still ahead of MISO by, % (printed beside 12.1 without)",
            13.6, ahead, 5.0).known("the proxy's MISO is at 1.17 of the bound: nobody can be 13.6 % ahead of it with errors"),
    ]
}

/// Mean gaps of 4b in milliseconds, from the slowest to the fastest.
const GAPS_MS: [&str; 4] = ["6.8", "5.6", "4.75", "4.0"];

/// 4b: 5,000 jobs on 160 A100, at four rates.
pub(super) fn scale() -> Vec<Finding> {
    let mut growth = Vec::new();
    let mut cuts = Vec::new();
    let mut findings = Vec::new();
    for policy in ["dyna-p", "oracle", "tessera"] {
        let mut ends = Vec::new();
        let mut made = 0;
        for gap in GAPS_MS {
            let jobs = jobs(&format!("dyna-p-5000:gap={gap}"));
            let Some(done) = runs(&Trial::new(&jobs, "160xa100-40gb", policy)) else { continue };
            let what = format!("{policy}, a job every {gap} s: makespan over its bound");
            let over = done.makespan_over_bound;
            findings.push(
                Finding::at_least("DYNA-P-B", what, Proof::Proxy, 1.0, over)
                    .ratio(done.makespan_over_bound),
            );
            ends.push(done.makespan_s);
            made = done.reconfigurations;
        }
        if let (Some(slow), Some(fast)) = (ends.first(), ends.last()) {
            growth.push(slow / fast);
        }
        cuts.push(f64::from(u32::try_from(made).unwrap_or(u32::MAX)));
    }
    if let [dyna_p, miso, ..] = cuts[..] {
        let what = "reconfigurations of Dyna-P over MISO's at the fastest rate";
        findings.push(Finding::at_most("DYNA-P-B", what, Proof::Proxy, 1.0, dyna_p / miso));
    }
    if let [dyna_p, miso, ..] = growth[..] {
        let what = "slowest over fastest makespan, Dyna-P's over MISO's";
        findings.push(Finding::at_most("DYNA-P-B", what, Proof::Proxy, 1.05, dyna_p / miso));
    }
    findings
}
