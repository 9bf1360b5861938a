//! The power cap on a real controller.

use std::fs;

use tessera_api_types::{PowerReport, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::done;
use tessera_load_tests::wait;

fn power(cluster: &Cluster) -> PowerReport {
    cluster.call("GET", "/v1/power", None).expect(200).json()
}

/// A job on the smallest slice until `go` exists in the folder.
fn small(cluster: &Cluster) -> SubmitRequest {
    let go = cluster.scratch().join("go");
    let line = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    SubmitRequest { gpu_profile: Some("1g.5gb".into()), ..script(&line) }
}

#[test]
fn a_job_that_would_exceed_the_power_cap_waits_until_another_ends_and_a_new_leader_keeps_the_cap() {
    // An A100 with SXM draws up to 60 W idle, and 49 W more for each of its seven slices.
    let mut cluster = Plan::new().node("n1", "a100-40gb").env("TESSERA_POWER_CAP", "130W").start();
    let empty = power(&cluster);
    assert_eq!((empty.cap_watts, empty.idle_watts, empty.expected_watts), (Some(130), 60, 60));
    assert_eq!((empty.full_watts, empty.unknown_models), (400, Vec::<String>::new()));

    let first = cluster.submit(&small(&cluster)).job_id;
    cluster.wait_job(first, SOON, "running");
    let second = cluster.submit(&small(&cluster)).job_id;
    let explained = wait::until(SOON, "the second job waits for power", || {
        let explained = cluster.explain(second);
        (explained.reason.as_deref() == Some("power_cap")).then_some(explained)
    });
    let summary = explained.summary;
    assert!(summary.contains("power cap: the GPUs draw up to 109 of 130 W"), "{summary}");
    let shown = done(&cluster, &["power-cap"]);
    assert!(shown.contains("130 W") && shown.contains("109 W at most"), "{shown}");

    let metrics = cluster.call("GET", "/metrics", None).expect(200).text();
    for line in ["{what=\"cap\"} 130", "{what=\"expected\"} 109", "{what=\"full\"} 400"] {
        assert!(metrics.contains(&format!("tessera_power_watts{line}\n")), "{metrics}");
    }

    cluster.controller.kill();
    cluster.controller.start();
    let after = wait::until(2 * SOON, "the new leader reports the power", || {
        let answer = cluster.try_call("GET", "/v1/power", None).ok()?;
        let report: PowerReport = (answer.status == 200).then(|| answer.json())?;
        (report.expected_watts == 109).then_some(report)
    });
    assert_eq!(after.cap_watts, Some(130));
    assert_eq!(cluster.job(second).job.state, "queued");

    fs::write(cluster.scratch().join("go"), "").unwrap();
    cluster.wait_job(first, 2 * SOON, "succeeded");
    cluster.wait_job(second, 2 * SOON, "succeeded");
}
