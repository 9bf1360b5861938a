//! The database is rolled back to an earlier state while jobs run (rule F14).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tessera_api_types::{JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Database, Plan, SOON, script};
use tessera_load_tests::locks;
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;
use time::OffsetDateTime;

/// Holds a lock on the whole GPU for the time that a file states when the job starts.
fn submit_whole_gpu(cluster: &Cluster, key: &str) -> u64 {
    let program = programs().path("tessera-test-job").display().to_string();
    let folder = cluster.scratch().display().to_string();
    let text = format!("exec {program} lock {folder} {key} $(cat {folder}/millis)");
    cluster.submit(&SubmitRequest { gpu_profile: Some("4g.24gb".into()), ..script(&text) }).job_id
}

fn jobs_last(cluster: &Cluster, millis: u32) {
    std::fs::write(cluster.scratch().join("millis"), millis.to_string()).unwrap();
}

fn wait_held(cluster: &Cluster, job: u64) -> JobDetail {
    wait::until(SOON, "a job that is held back", || {
        let response = cluster.try_call("GET", &format!("/v1/jobs/{job}"), None).ok()?;
        let found: JobDetail = (response.status == 200).then(|| response.json())?;
        (found.job.reason.as_deref() == Some("placement_held")).then_some(found)
    })
}

fn generation(cluster: &Cluster) -> u64 {
    cluster.nodes()[0].generation
}

/// Copies or moves a folder with its owners, which only `cp` and `mv` do by themselves.
fn tool(arguments: [&str; 2], from: &Path, to: &Path) {
    let done = Command::new(arguments[0]).arg(arguments[1]).arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

fn assert_never_doubled(cluster: &Cluster) {
    for (key, runs) in locks::read(&cluster.scratch()).unwrap() {
        assert_eq!(runs.doubled, 0, "{key} ran twice at once: {runs:?}");
        assert!(runs.stopped >= 1, "{key} never completed: {runs:?}");
    }
}

/// L + D of [`Plan::lease_secs`] 8.
const HOLD: Duration = Duration::from_secs(10);

#[test]
fn a_restored_copy_of_the_database_is_detected_once_and_no_attempt_runs_twice() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").lease_secs(8).start();
    jobs_last(&cluster, 60_000);
    let first = submit_whole_gpu(&cluster, "first");
    let second = submit_whole_gpu(&cluster, "second");
    cluster.wait_job(first, SOON, "running");
    let before = generation(&cluster);

    // A cold backup; afterwards one job ends, another starts, and a third is accepted.
    cluster.controller.stop();
    let data = cluster.controller_data().join("pg").join("data");
    let backup = data.with_extension("backup");
    tool(["cp", "-a"], &data, &backup);
    cluster.controller.start();
    cluster.wait_ready();
    cluster.act(first, "cancel");
    cluster.wait_job(second, SOON, "running");
    let third = submit_whole_gpu(&cluster, "third");
    cluster.controller.stop();

    std::fs::remove_dir_all(&data).unwrap();
    tool(["mv", "-T"], &backup, &data);
    jobs_last(&cluster, 50);
    let restored = OffsetDateTime::now_utc();
    cluster.controller.start();
    cluster.wait_serving();
    let fourth = submit_whole_gpu(&cluster, "fourth");
    let held = wait_held(&cluster, second);
    cluster.wait_ready();
    let leapt = generation(&cluster);

    let output = cluster.controller.output();
    assert!(output.contains("the database was rolled back"), "{output}");
    assert!(held.job.reason_text.is_some_and(|text| text.contains("rolled back")));
    assert!(leapt > before + 1_000, "generations leap: {before} {leapt}");
    let lost = cluster.call("GET", &format!("/v1/jobs/{third}"), None);
    assert_eq!(lost.status, 404, "its number means no other job");
    assert!(fourth > third + 1_000, "{third} {fourth}");

    // A restart keeps all of it, and repeats nothing.
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    assert_eq!(generation(&cluster), leapt, "they leap once");
    for job in [first, second, fourth] {
        let done = cluster.wait_job(job, HOLD + SOON, "succeeded");
        let started = done.attempt_list.last().and_then(|a| a.started_at).unwrap();
        assert!(started - restored >= HOLD, "placed only {} after", started - restored);
    }
    assert_never_doubled(&cluster);
}

#[test]
fn a_running_controller_detects_a_promoted_backup() {
    let mut cluster =
        Plan::new().node("n1", "a30-24gb").lease_secs(4).database(Database::External).start();
    jobs_last(&cluster, 60_000);
    let queued_then = submit_whole_gpu(&cluster, "queued-then");
    cluster.wait_job(queued_then, SOON, "running");
    let backup = cluster.database.as_ref().unwrap().back_up();
    let accepted_since = submit_whole_gpu(&cluster, "accepted-since");
    let before = generation(&cluster);

    jobs_last(&cluster, 50);
    cluster.database.as_mut().unwrap().fall_back_to(&backup);
    // Accepted only after the reconciliation: its number is then beyond all assigned ones.
    let since = wait::until(SOON, "an accepted submit", || {
        let folder = cluster.scratch().display().to_string();
        let program = programs().path("tessera-test-job").display().to_string();
        let text = format!("exec {program} lock {folder} since 50");
        let answer = cluster.try_submit(&script(&text), None).ok()?;
        (answer.status < 300).then(|| answer.json::<tessera_api_types::SubmitResponse>().job_id)
    });

    assert!(since > accepted_since + 1_000, "{since}");
    for job in [queued_then, since] {
        cluster.wait_job(job, SOON, "succeeded");
    }
    cluster.wait_ready();
    assert!(generation(&cluster) > before + 1_000);
    let output = cluster.controller.output();
    assert!(output.contains("timeline 2"), "{output}");
    assert!(cluster.controller.is_running(), "it recovered by itself");
    assert!(locks::read(&cluster.scratch()).unwrap().values().all(|runs| runs.doubled == 0));
}
