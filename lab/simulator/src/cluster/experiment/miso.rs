//! MISO against its authors' own program, run in virtual time on the same arrivals.

use super::{ExperimentTrial, Finding, Proof, SEEDS, near, over, runs};
use crate::cluster::calibration::mean;
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
const MOVES: &str = "over 100 seeds static-promote is 1.4 % low and the spread of ten is 3 %: \
                     random variation. MISO is 5.9 % low there too, its mean JCT 2.0 %: moves at \
                     30 s cost it less than in its authors' program. No reason was found (its \
                     controller's pauses in trials change nothing)";

/// The results, seed by seed.
#[derive(Clone, Default)]
struct SeedResults {
    jct_s: Vec<f64>,
    makespan_s: Vec<f64>,
    jct_bound_s: Vec<f64>,
    makespan_bound_s: Vec<f64>,
}

fn all(policy: &str, layout: &str, overheads: Overheads) -> SeedResults {
    let mut all = SeedResults::default();
    for seed in 1..=SEEDS {
        let jobs = built_in("miso", seed).map(|workload| workload.jobs).unwrap_or_default();
        let trial = ExperimentTrial {
            overheads,
            layout,
            round_ms: 10_000,
            seed,
            ..ExperimentTrial::new(&jobs, CLUSTER, policy)
        };
        let Some(done) = runs(&trial) else { return SeedResults::default() };
        all.jct_s.push(done.jct_mean_s);
        all.makespan_s.push(done.makespan_s);
        all.jct_bound_s.push(done.bound_jct_mean_s);
        all.makespan_bound_s.push(done.bound_makespan_s);
    }
    all
}

fn table(id: &'static str, moving: &str, printed: &[Printed]) -> Vec<Finding> {
    let Ok(overheads) = Overheads::parse(moving) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut jct = Vec::new();
    for (policy, layout, jct_s, makespan_s) in printed {
        let found = all(policy, layout, overheads);
        let what = |figure: &str| {
            format!("{policy} {layout}, moves {moving}: {figure} of the authors' program, s")
        };
        let row = |figure: &str, authors: f64, ours: &[f64], bounds: &[f64]| {
            near(id, what(figure), Proof::Exact, authors, mean(ours), 0.03 * authors)
                .known(MOVES)
                .over_seeds(ours)
                .ratio(mean(ours) / mean(bounds))
        };
        findings.push(row("mean JCT", *jct_s, &found.jct_s, &found.jct_bound_s));
        findings.push(row("makespan", *makespan_s, &found.makespan_s, &found.makespan_bound_s));
        jct.push(found.jct_s);
    }
    if let [whole, four, two, _, miso] = &jct[..] {
        let authors = |at: usize| printed[4].2 / printed[at].2;
        let (best, fixed) = if mean(four) < mean(two) { (1, four) } else { (2, two) };
        let row = |what: &str, expected, theirs: &[f64]| {
            let found = mean(miso) / mean(theirs);
            near(id, format!("moves {moving}: {what}"), Proof::Exact, expected, found, 0.03)
                .over_seeds(&over(miso, theirs))
        };
        findings.push(row("MISO's JCT over the whole GPU's", authors(0), whole));
        findings.push(row("over the best static's", authors(best), fixed));
        let ours = all("tessera", "", overheads);
        let what = format!("moves {moving}: tessera's JCT over MISO's");
        let found = mean(&ours.jct_s) / mean(miso);
        findings.push(
            Finding::at_most(id, what, Proof::Exact, 1.0, found)
                .over_seeds(&over(&ours.jct_s, miso))
                .ratio(mean(&ours.jct_s) / mean(&ours.jct_bound_s)),
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
