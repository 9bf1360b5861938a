//! MISO against its authors' own program, run in virtual time on the same arrivals.

use super::{Finding, Proof, SEEDS, Trial, near, runs};
use crate::cluster::number::float;
use crate::cluster::overheads::Overheads;
use crate::cluster::workload::built_in;

const CLUSTER: &str = "8xa100-40gb";
const TWO_TWO: &str = "3g.20gb,2g.10gb,2g.10gb";
const FOUR: &str = "4g.20gb,2g.10gb,1g.5gb";

/// The authors' program over ten seeds: policy, layout, mean JCT and makespan in seconds.
type Printed = (&'static str, &'static str, f64, f64);

/// With each model's own time to restore.
const RECOVER: [Printed; 5] = [
    ("exclusive", "", 2468.91, 12212.0),
    ("static-promote", FOUR, 1217.958, 12393.5),
    ("static-promote", TWO_TWO, 1237.877, 13070.6),
    ("oracle", "", 1032.948, 10303.2),
    ("miso", "", 1041.683, 10424.3),
];

/// With 30 s a move.
const THIRTY: [Printed; 5] = [
    ("exclusive", "", 2468.91, 12212.0),
    ("static-promote", FOUR, 1250.688, 13032.2),
    ("static-promote", TWO_TWO, 1249.93, 13396.0),
    ("oracle", "", 1093.605, 10304.2),
    ("miso", "", 1208.13, 11516.8),
];

/// Why some makespans at 30 s a move are off.
const MOVES: &str = "over 100 seeds static-promote is 1.4 % low and the spread of ten is 3 %: chance; miso is \
                     5.9 % low there too, its mean JCT 2.0 %: moves at 30 s cost it less than its authors, for \
                     no reason that was found (its controller's pauses in trials change nothing)";

#[derive(Clone, Copy, Default)]
struct Mean {
    jct_s: f64,
    makespan_s: f64,
    jct_bound_s: f64,
    makespan_bound_s: f64,
}

fn mean(policy: &str, layout: &str, overheads: Overheads) -> Mean {
    let mut mean = Mean::default();
    for seed in 1..=SEEDS {
        let jobs = built_in("miso", seed).map(|workload| workload.jobs).unwrap_or_default();
        let trial = Trial {
            overheads,
            layout,
            round_ms: 10_000,
            seed,
            ..Trial::new(&jobs, CLUSTER, policy)
        };
        let Some(done) = runs(&trial) else { return Mean::default() };
        mean.jct_s += done.jct_mean_s / float(SEEDS);
        mean.makespan_s += done.makespan_s / float(SEEDS);
        mean.jct_bound_s += done.bound_jct_mean_s / float(SEEDS);
        mean.makespan_bound_s += done.bound_makespan_s / float(SEEDS);
    }
    mean
}

fn table(id: &'static str, moving: &str, printed: &[Printed]) -> Vec<Finding> {
    let Ok(overheads) = Overheads::parse(moving) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut jct = Vec::new();
    for (policy, layout, jct_s, makespan_s) in printed {
        let found = mean(policy, layout, overheads);
        let what = |figure: &str| {
            format!("{policy} {layout}, moves {moving}: {figure} of the authors' program, s")
        };
        findings.push(
            near(id, what("mean JCT"), Proof::Exact, *jct_s, found.jct_s, 0.03 * jct_s)
                .known(MOVES)
                .ratio(found.jct_s / found.jct_bound_s),
        );
        let (known, ends) = (*makespan_s, found.makespan_s);
        findings.push(
            near(id, what("makespan"), Proof::Exact, known, ends, 0.03 * known)
                .known(MOVES)
                .ratio(ends / found.makespan_bound_s),
        );
        jct.push(found.jct_s);
    }
    if let [whole, four, two, _, miso] = jct[..] {
        let authors = |at: usize| printed[4].2 / printed[at].2;
        let best = if four < two { 1 } else { 2 };
        let row = |what: &str, expected, found| {
            near(id, format!("moves {moving}: {what}"), Proof::Exact, expected, found, 0.03)
        };
        findings.push(row("MISO's JCT over the whole GPU's", authors(0), miso / whole));
        findings.push(row("over the best static's", authors(best), miso / four.min(two)));
        let ours = mean("tessera", "", overheads);
        let what = format!("moves {moving}: tessera's JCT over MISO's");
        findings.push(
            Finding::at_most(id, what, Proof::Exact, 1.0, ours.jct_s / miso)
                .ratio(ours.jct_s / ours.jct_bound_s),
        );
    }
    findings
}

/// At measured restores.
pub(super) fn recover() -> Vec<Finding> {
    table("MISO", "recover", &RECOVER)
}

/// At 30 s a move.
pub(super) fn thirty() -> Vec<Finding> {
    table("MISO-30", "30s", &THIRTY)
}
