//! The published results are reproduced, and reports need no other files.

use tessera_simulator::cluster::bounds::WorkloadBounds;
use tessera_simulator::cluster::fleet::GpuFleet;
use tessera_simulator::cluster::metrics::Summary;
use tessera_simulator::cluster::overheads::Overheads;
use tessera_simulator::cluster::{SimulationSetup, experiment, policy, report, run, workload};

#[test]
fn every_experiment_holds_or_states_why_not() {
    let mut short = 0;
    let mut all = 0;
    for name in experiment::names().filter(|name| !experiment::is_long(name)) {
        let findings = experiment::of(name).unwrap();
        assert!(!findings.is_empty(), "{name} finds nothing");
        for finding in findings {
            assert!(finding.holds || finding.short.is_some(), "{finding:?}");
            assert!(finding.over_bound.is_none_or(|ratio| ratio >= 0.999), "{finding:?}");
            all += 1;
            short += usize::from(!finding.holds);
        }
    }
    assert!(all > 100, "{all} comparisons");
    // A shortfall more is a change for the worse, and is to be looked at. Two are there since losses under MPS are
    // measured: MMK's gain, and MIGER's. Seven are rows that were not compared before: X3, X6 with a cooldown, X10 with cuts,
    // MIGER over MISO (2), and the forest's own error (2). Two are X6's deadlines, since a plan on whole GPUs decides there.
    assert!(short <= 25, "{short} of {all} fall short");
    assert!(experiment::of("X99").is_none());
}

#[test]
fn what_the_papers_print_to_the_digit_comes_out_but_for_five_rows_that_say_why_not() {
    for number in 1..=13 {
        let findings = experiment::of(&format!("X{number}")).unwrap();
        assert!(findings.iter().all(|one| one.holds || is_short(one)), "{findings:?}");
    }
}

/// Rows that are known to miss what is printed. The paper does not explain a time in X10. `oracle` in X3 is of another study,
/// and the jobs of X6 are shorter than the migration cooldown, and planned on whole GPUs.
fn is_short(finding: &experiment::Finding) -> bool {
    [
        ("X10", "the same, with the measured times of cuts"),
        ("X3", "oracle finds a partition as good as the table's best, s"),
        ("X6", "figure 7 under tessera as controllers run it: makespan, s (optimum 250)"),
        ("X6", "figure 7 under tessera as controllers run it: deadlines missed"),
        ("X6", "figure 7 under tessera without a migration cooldown: deadlines missed"),
    ]
    .contains(&(finding.id, finding.what.as_str()))
        && finding.short.is_some()
}

#[test]
fn a_report_needs_no_network_and_shows_every_job() {
    let jobs = workload::built_in("poisson:jobs=20,gap=30", 1).unwrap().jobs;
    let fleet = GpuFleet::parse("a100-40gb").unwrap();
    let decides = policy("tessera").unwrap();
    let overheads = Overheads::default();
    let setup = SimulationSetup {
        jobs: &jobs,
        fleet: &fleet,
        policy: decides.as_ref(),
        overheads,
        round_ms: 0,
        seed: 1,
        plot: true,
    };
    let outcome = run(setup, &mut |_| {}).unwrap();
    let summary = Summary::new(&outcome, &WorkloadBounds::new(&jobs, &fleet, &overheads));

    let page = report::render_page("a <title>", &[(outcome, summary)]).unwrap();

    assert!(page.contains("a &lt;title&gt;"), "text is escaped");
    // The only address is the name of SVG, which no browser loads.
    let addresses = page.matches("http").count();
    assert_eq!(addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    assert!(!page.contains("<script") && !page.contains("url("), "nothing is loaded");
    assert!(
        (1..=20).all(|job| page.contains(&format!("<title>job {job} on GPU 0, memory slices")))
    );
    assert!(page.contains("<title>instance on GPU 0, memory slices"), "slices are drawn, too");
    let drawing_of = |plot: &str| {
        let (_, behind) = page.split_once(plot).unwrap_or_else(|| panic!("no plot of {plot}"));
        &behind[..behind.find("</svg>").unwrap()]
    };
    for bars in ["Makespan", "System throughput", "Energy of all GPUs"] {
        // The first one is the background.
        assert!(drawing_of(bars).matches("<rect").count() >= 2, "no bar of {bars}");
    }
    for (curve, axis) in [
        ("Time from submit to end", "time from submit to end (s)"),
        ("Compute slices that jobs have, over time", "% of all compute slices"),
        ("(fragmentation), over time", "% of all compute slices"),
        ("Jobs that are done, of all, over time", "% of all jobs"),
        ("Jobs that wait, over time", "jobs"),
        ("Power of all GPUs, over time", "kW"),
    ] {
        let drawing = drawing_of(curve);
        // The longest line is the curve: axes, ticks and the legend have two or three points.
        let lines = drawing.split("points=\"").skip(1);
        let longest = lines.map(|line| line[..line.find('"').unwrap()].matches(',').count()).max();
        assert!(longest > Some(5), "no curve of {curve}: {drawing}");
        assert!(
            drawing.contains(axis) && drawing.contains("tessera"),
            "no axis, no legend: {curve}"
        );
    }
    assert!(drawing_of("Who was where under tessera").contains("<rect"));
}
