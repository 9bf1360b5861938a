//! What is foretold of jobs: learned from what ran, kept over restarts, shown with its outcome.

use std::process::Command;

use tessera_api::types::{Explain, JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

const GIB: u64 = 1 << 30;

fn epoch(secs: &str) -> SubmitRequest {
    SubmitRequest {
        user: Some("ada".into()),
        task_key: Some("epoch".into()),
        gpu_memory_bytes: Some(8 * GIB),
        ..script(&format!("sleep {secs}"))
    }
}

fn ran(cluster: &Cluster, request: &SubmitRequest) -> JobDetail {
    let job = cluster.submit(request).job_id;
    cluster.wait_job(job, SOON, "succeeded")
}

fn tessera(cluster: &Cluster, words: &[&str]) -> String {
    let url = format!("http://{}", cluster.http());
    let told = Command::new(programs().path("tessera"))
        .args(["--url", &url])
        .args(words)
        .output()
        .unwrap();
    assert!(told.status.success(), "{told:?}");
    String::from_utf8(told.stdout).unwrap()
}

#[test]
fn a_task_that_ran_is_foretold_with_an_interval_and_its_outcome_is_kept() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let first = ran(&cluster, &epoch("0.4"));
    assert_eq!(first.attempt_list[0].prediction, None, "nothing was known");

    let second = ran(&cluster, &epoch("0.4"));
    let known = second.attempt_list[0].prediction.clone().unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("same_slice", 1));
    assert!(known.low_secs <= known.expected_secs && known.expected_secs <= known.high_secs);
    assert!((0.3..3.0).contains(&known.expected_secs), "{known:?}");
    assert!(known.ran_secs.is_some_and(|ran| ran >= 0.4), "{known:?}");

    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    let on_another = SubmitRequest { gpu_memory_bytes: Some(15 * GIB), ..epoch("0.4") };
    let third = ran(&cluster, &on_another);
    let known = third.attempt_list[0].prediction.clone().unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("other_slice", 2), "the store remembers");
    let limited =
        SubmitRequest { task_key: Some("new".into()), time_limit_secs: Some(600), ..epoch("0.1") };
    let limited = ran(&cluster, &limited);
    let known = limited.attempt_list[0].prediction.clone().unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("time_limit", 0));
    assert!((known.high_secs - 600.0).abs() < 1e-9);

    let shown = tessera(&cluster, &["show", &second.job.id.to_string()]);
    assert!(shown.contains("by 1 earlier run on such slices; it took"), "{shown}");
    let explained = tessera(&cluster, &["explain", &third.job.id.to_string()]);
    assert!(explained.contains("by 2 earlier runs on other slices of such GPUs"), "{explained}");
    wait::until(SOON, "the outcomes are counted", || {
        let metrics = cluster.call("GET", "/metrics", None).expect(200).text();
        let counted = |basis: &str| {
            let sum: u64 = metrics
                .lines()
                .filter(|l| l.starts_with("tessera_predictions_total") && l.contains(basis))
                .filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok())
                .sum();
            sum == 1
        };
        (counted("other_slice") && counted("time_limit")).then_some(())
    });
}

#[test]
fn a_waiting_job_is_told_how_long_it_will_take() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    ran(&cluster, &epoch("0.4"));
    let whole = SubmitRequest { gpu_whole: true, ..script("sleep 600") };
    let holder = cluster.submit(&whole).job_id;
    cluster.wait_job(holder, SOON, "running");
    let waits = cluster.submit(&epoch("0.4")).job_id;

    let explain: Explain = wait::until(SOON, "it is explained", || {
        let path = format!("/v1/jobs/{waits}/explain");
        let explain: Explain = cluster.call("GET", &path, None).expect(200).json();
        explain.reason.is_some().then_some(explain)
    });

    let known = explain.prediction.unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("same_slice", 1));
    assert_eq!(known.ran_secs, None);
}
