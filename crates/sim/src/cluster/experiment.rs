//! Rows of the papers that anybody can rerun: what is printed there beside what comes out here.

use tessera_model::mig::{StateSpace, catalog, cost};

use super::bounds::Bounds;
use super::fleet::Fleet;
use super::job::Job;
use super::metrics::Summary;
use super::number::{count, float, rounded, seconds};
use super::overheads::{Cutting, Overheads};
use super::workload::{built_in, papers};
use super::{Setup, policy, run};

/// How much a comparison proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Proof {
    /// The paper prints enough to check digits.
    Exact,
    /// One parameter was fitted on one printed number; this is another.
    Calibrated,
    /// The paper's inputs are not public: a stand-in, so only ratios and orders mean something.
    Proxy,
}

/// One expected number beside what came out.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    /// Which experiment.
    pub id: &'static str,
    /// What is compared.
    pub what: String,
    /// What is printed.
    pub expected: f64,
    /// What came out.
    pub found: f64,
    /// How far they may be apart.
    pub tolerance: f64,
    /// Whether less than expected is as good.
    pub at_most: bool,
    /// How much it proves.
    pub proof: Proof,
    /// Whether it came out.
    pub holds: bool,
}

/// The experiments, by the names that [`of`] takes.
pub const NAMES: [&str; 11] =
    ["X1", "X2", "X3", "X5", "X6", "X7", "X8", "X9", "X10", "MISO", "MMK-IV"];

/// Seeds of the experiments that need several.
const SEEDS: u64 = 10;

/// Runs one experiment; `None` if there is none of that name.
pub fn of(name: &str) -> Option<Vec<Finding>> {
    Some(match name {
        "X1" => layouts(),
        "X2" => reachability(),
        "X3" => trio(),
        "X5" => cuts(),
        "X6" => figure_7(),
        "X7" => vec![gain("X7", "migm-hm2", 6.20, 0.01, Proof::Exact)],
        "X8" => vec![gain("X8", "migm-hm3", 5.37, 0.05, Proof::Exact)],
        "X9" => vec![
            gain("X9", "migm-hm4", 1.70, 0.03, Proof::Exact),
            gain("X9", "migm-ml3", 1.24, 0.03, Proof::Exact),
        ],
        "X10" => needleman_wunsch(),
        "MISO" => miso(),
        "MMK-IV" => super::predictors::findings(),
        _ => return None,
    })
}

fn exact(
    id: &'static str,
    what: impl Into<String>,
    expected: f64,
    found: f64,
    tolerance: f64,
) -> Finding {
    let holds = (found - expected).abs() <= tolerance + 1e-9;
    let what = what.into();
    Finding {
        id,
        what,
        expected,
        found: rounded(found),
        tolerance,
        at_most: false,
        proof: Proof::Exact,
        holds,
    }
}

fn layouts() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, full, states) in [("a100-40gb", 19.0, 298.0), ("a30-24gb", 5.0, 26.0)] {
        let Some(model) = catalog::models().get(key) else { continue };
        let geometry = model.geometry();
        let space = StateSpace::new(&geometry, Some(&geometry.plain()));
        let counts = space.ok().and_then(|space| space.counts());
        let (found_full, found_states) = counts.map_or((0, 0), |c| (c.full, c.states));
        findings.push(exact("X1", format!("full layouts, {key}"), full, count(found_full), 0.0));
        findings.push(exact("X1", format!("states, {key}"), states, count(found_states), 0.0));
    }
    findings
}

fn reachability() -> Vec<Finding> {
    let Some(model) = catalog::models().get("a100-40gb") else { return Vec::new() };
    let geometry = model.geometry();
    let Ok(space) = StateSpace::offering(&geometry, &geometry.plain()) else { return Vec::new() };
    let smallest = geometry.profiles.iter().find(|p| p.name.as_str() == "1g.5gb");
    let Some(smallest) = smallest else { return Vec::new() };
    let ways = space.placements(tessera_model::mig::State::EMPTY, smallest.id);
    let finding = |(slot, reach): (tessera_model::mig::Slot, usize)| {
        let expected = if slot.start == 6 { 12.0 } else { 6.0 };
        exact(
            "X2",
            format!("R after a first 1g on slice {}", slot.start),
            expected,
            count(reach),
            0.0,
        )
    };
    ways.into_iter().map(finding).collect()
}

fn trio() -> Vec<Finding> {
    let Ok(workload) = built_in("coexec-trio", 1) else { return Vec::new() };
    let time = |job: usize, slices: u8| {
        workload.jobs[job].time("a100-40gb", slices).map_or(f64::INFINITY, seconds)
    };
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let best = |sizes: [u8; 3]| {
        let of = |order: &[usize; 3]| {
            order.iter().zip(sizes).map(|(job, size)| time(*job, size)).fold(0.0, f64::max)
        };
        orders.iter().map(of).fold(f64::INFINITY, f64::min)
    };
    let sequential =
        summary(&workload.jobs, "a100-40gb", "exclusive").map_or(0.0, |s| s.makespan_s);
    vec![
        exact("X3", "one after the other, s", 8.39, sequential, 0.01),
        exact("X3", "on 4, 2 and 1 slices, s", 4.65, best([4, 2, 1]), 0.01),
        exact("X3", "on 3, 2 and 2 slices, s", 4.58, best([3, 2, 2]), 0.01),
    ]
}

fn cuts() -> Vec<Finding> {
    let four = float(cost::creation(1).get() * 4) / 1_000.0;
    let halves = cost::destruction().get() + 2 * cost::creation(2).get();
    vec![
        exact("X5", "1-1-1-1 from scratch, s", 0.44, four, 0.0),
        exact("X5", "4-3 to 2-2-3, of which the 3 runs on, s", 0.34, seconds(halves), 0.0),
    ]
}

fn figure_7() -> Vec<Finding> {
    let Ok(workload) = built_in("dyna-p-fig7", 1) else { return Vec::new() };
    let mut findings = Vec::new();
    for name in ["dyna-p", "tessera"] {
        let Some(done) = summary(&workload.jobs, "a30-24gb", name) else { continue };
        let late = count(done.deadlines_missed);
        for (what, expected, found) in
            [("makespan, s", 285.0, done.makespan_s), ("deadlines missed", 1.0, late)]
        {
            let mut finding =
                exact("X6", format!("figure 7 under {name}: {what}"), expected, found, 0.0);
            finding.at_most = true;
            finding.holds = found <= expected;
            findings.push(finding);
        }
    }
    findings
}

fn gain(id: &'static str, mix: &str, expected: f64, tolerance: f64, proof: Proof) -> Finding {
    let jobs = built_in(mix, 1).map(|workload| workload.jobs).unwrap_or_default();
    let alone = summary(&jobs, "a100-40gb", "exclusive").map_or(0.0, |s| s.makespan_s);
    let cut = summary(&jobs, "a100-40gb", "scheme-a").map_or(f64::INFINITY, |s| s.makespan_s);
    let what = format!("{mix}: scheme A over one after the other");
    Finding { proof, ..exact(id, what, expected, alone / cut, tolerance) }
}

fn needleman_wunsch() -> Vec<Finding> {
    // Half of its time is transfers (fitted on the slow-down of seven at once, 2.238).
    let job = Job { transfer: 496, ..papers::plain("nw", 4_000, &[(1, 10_000), (7, 10_000)]) };
    let jobs = vec![job; 21];
    let alone = summary(&jobs, "a100-40gb", "exclusive").map_or(0.0, |s| s.makespan_s);
    let cut = summary(&jobs, "a100-40gb", "scheme-a").map_or(f64::INFINITY, |s| s.makespan_s);
    let what = "Needleman-Wunsch, 21 jobs: gain of seven slices on one bus";
    vec![Finding { proof: Proof::Calibrated, ..exact("X10", what, 3.13, alone / cut, 0.02) }]
}

/// The authors' program in virtual time: policy, mean JCT and makespan in seconds over ten seeds.
const MISO_PROGRAM: [(&str, f64, f64); 3] =
    [("exclusive", 2468.91, 12212.0), ("miso", 1041.683, 10424.3), ("oracle", 1032.948, 10303.2)];

fn miso() -> Vec<Finding> {
    let mut findings = Vec::new();
    let Ok(fleet) = Fleet::parse("8xa100-40gb") else { return findings };
    for (name, jct, makespan) in MISO_PROGRAM {
        let Ok(decides) = policy(name) else { continue };
        let (mut jct_s, mut makespan_s) = (0.0, 0.0);
        for seed in 1..=SEEDS {
            let jobs = built_in("miso", seed).map(|workload| workload.jobs).unwrap_or_default();
            let setup = Setup {
                jobs: &jobs,
                fleet: &fleet,
                policy: decides.as_ref(),
                overheads: Overheads::default(),
                round_ms: 10_000,
                seed,
                plot: false,
            };
            let Ok(done) = run(setup, &mut |_| {}) else { continue };
            let done = Summary::new(&done, &Bounds { makespan_s: 1.0, jct_mean_s: 1.0 });
            jct_s += done.jct_mean_s / float(SEEDS);
            makespan_s += done.makespan_s / float(SEEDS);
        }
        let what = |figure: &str| format!("{name} against its authors' program: {figure}, s");
        findings.push(exact("MISO", what("mean JCT"), jct, jct_s, 0.03 * jct));
        findings.push(exact("MISO", what("makespan"), makespan, makespan_s, 0.03 * makespan));
    }
    findings
}

fn summary(jobs: &[Job], gpus: &str, name: &str) -> Option<Summary> {
    let fleet = Fleet::parse(gpus).ok()?;
    let decides = policy(name).ok()?;
    let overheads = Overheads { cutting: Cutting::Free, ..Overheads::default() };
    let setup = Setup {
        jobs,
        fleet: &fleet,
        policy: decides.as_ref(),
        overheads,
        round_ms: 0,
        seed: 1,
        plot: false,
    };
    let outcome = run(setup, &mut |_| {}).ok()?;
    Some(Summary::new(&outcome, &Bounds::new(jobs, &fleet, &overheads)))
}
