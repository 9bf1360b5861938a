//! The alert rules: their metrics exist, each has a section in the guide and a test that fires it.

use std::fs;
use std::process::Command;

use super::tools::{have, known_metrics, metrics_in, read, root, run};

const RULES: &str = "packaging/observe/prometheus/rules/tessera.yml";
const TESTS: &str = "packaging/observe/prometheus/tests.yml";

fn alerts() -> Vec<String> {
    let names = read(RULES);
    let names = names.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

#[test]
fn every_metric_in_an_alert_exists() {
    let known = known_metrics();
    let unknown: Vec<_> = metrics_in(&read(RULES)).difference(&known).cloned().collect();

    assert!(alerts().len() >= 15, "{:?}", alerts());
    assert!(unknown.is_empty(), "not in crates/telemetry/src/names.rs: {unknown:?}");
}

#[test]
fn every_alert_has_a_section_in_the_guide_and_a_test_that_fires_it() {
    let (guide, rules, tests) = (read("docs/alerts.md"), read(RULES), read(TESTS));
    for alert in alerts() {
        let anchor = alert.to_lowercase();
        assert!(guide.contains(&format!("\n## {alert}\n")), "docs/alerts.md has no {alert}");
        assert!(rules.contains(&format!("runbook: docs/alerts.md#{anchor}\n")), "{alert}");
        let fires = tests.split("alertname: ").any(|test| {
            test.lines().next() == Some(alert.as_str()) && test.contains("- exp_labels:")
        });
        assert!(fires, "no test in {TESTS} fires {alert}");
    }
    let sections = guide.lines().filter_map(|line| line.strip_prefix("## "));
    for section in sections {
        assert!(alerts().iter().any(|alert| alert == section), "{section} is no alert");
    }
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_on_its_condition() {
    if !have("promtool", "alert rules are not checked (Debian package prometheus)") {
        return;
    }
    let folder = root().join("packaging/observe/prometheus");
    run(Command::new("promtool")
        .args(["check", "rules", "rules/tessera.yml"])
        .current_dir(&folder));
    run(Command::new("promtool").args(["test", "rules", "tests.yml"]).current_dir(&folder));

    // A rule that is never true must be found.
    let broken = tempfile::tempdir().unwrap();
    fs::create_dir(broken.path().join("rules")).unwrap();
    let rules = read(RULES).replace("max(tessera_ready) == 0", "max(tessera_ready) == 2");
    fs::write(broken.path().join("rules/tessera.yml"), rules).unwrap();
    fs::write(broken.path().join("tests.yml"), read(TESTS)).unwrap();
    let tested = Command::new("promtool")
        .args(["test", "rules", "tests.yml"])
        .current_dir(broken.path())
        .output()
        .unwrap();
    assert!(!tested.status.success(), "the tests accept a rule that never fires");
}

#[test]
fn promtool_accepts_the_examples_of_prometheus_settings() {
    if !have("promtool", "examples are not checked (Debian package prometheus)") {
        return;
    }
    for file in ["prometheus.yml", "prometheus-tour.yml"] {
        let path = root().join("packaging/observe/prometheus").join(file);
        run(Command::new("promtool").args(["check", "config", "--syntax-only"]).arg(path));
    }
}
