//! Deadlines on a running cluster: what is predicted, which job starts first, and what is refused.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use time::OffsetDateTime;

fn of_task(text: &str) -> SubmitRequest {
    SubmitRequest { task_key: Some("train".to_owned()), gpu_whole: true, ..script(text) }
}

fn due_in(secs: u64, request: SubmitRequest) -> SubmitRequest {
    let deadline = Some(OffsetDateTime::now_utc() + Duration::from_secs(secs));
    SubmitRequest { deadline, ..request }
}

fn refusal(cluster: &Cluster, request: &SubmitRequest, status: u16) -> String {
    let response = cluster.try_submit(request, None).unwrap();
    assert_eq!(response.status, status, "{}", response.text());
    response.text()
}

#[test]
fn a_deadline_is_predicted_and_preferred_to_older_jobs_and_refused_if_it_would_be_missed() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();

    // Nothing is known about a task that never ran, and its job is accepted anyway.
    let first = due_in(600, SubmitRequest { late: Some("refuse".into()), ..of_task("sleep 3") });
    let first = cluster.submit(&first);
    let deadline = first.deadline.unwrap();
    assert_eq!(deadline.probability_percent, None, "{deadline:?}");
    assert!(deadline.text.contains("nothing is known about its run time"), "{}", deadline.text);
    cluster.wait_job(first.job_id, SOON, "succeeded");

    // It took three seconds, so ten minutes are enough, and two seconds are not.
    let likely = cluster.submit(&due_in(600, of_task("true"))).deadline.unwrap();
    assert!(likely.probability_percent > Some(90), "{likely:?}");
    assert!(likely.text.starts_with("it will be met with a probability of 9"), "{}", likely.text);
    let late = SubmitRequest { late: Some("refuse".to_owned()), ..of_task("sleep 3") };
    let refused = refusal(&cluster, &due_in(2, late), 422);
    assert!(refused.contains("would probably be missed"), "{refused}");
    assert!(refused.contains("\"field\":\"deadline\""), "{refused}");
    let epoch = Some(OffsetDateTime::UNIX_EPOCH);
    let over = refusal(&cluster, &SubmitRequest { deadline: epoch, ..script("true") }, 400);
    assert!(over.contains("is over"), "{over}");
    let alone = SubmitRequest { late: Some("refuse".into()), ..script("true") };
    let alone = refusal(&cluster, &alone, 400);
    assert!(alone.contains("none is given"), "{alone}");

    // Both wait for the same GPU. The job with the deadline starts first, although it was submitted
    // later.
    let gate = cluster.scratch().join("open");
    let until_open = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let holder = cluster.submit(&SubmitRequest { gpu_whole: true, ..script(&until_open) }).job_id;
    cluster.wait_job(holder, 2 * SOON, "running");
    let older = cluster.submit(&of_task("true")).job_id;
    let due = cluster.submit(&due_in(60, of_task("true"))).job_id;
    let explained = cluster.explain(due).deadline.expect("its deadline");
    assert_eq!(explained.probability_percent, None, "the holder's end is not known: {explained:?}");
    fs::write(&gate, "").unwrap();
    let due = cluster.wait_job(due, 2 * SOON, "succeeded");
    let older = cluster.wait_job(older, 2 * SOON, "succeeded");
    assert!(due.job.started_at < older.job.started_at, "{due:?} {older:?}");
    assert!(due.job.ended_at < due.deadline, "{due:?}");

    let shown = tessera(&cluster, &["show", &due.job.id.to_string()]);
    assert!(shown.contains("(met)"), "{shown}");

    // A late job runs, and is counted as one that missed its deadline.
    let late = cluster.submit(&due_in(1, of_task("sleep 2"))).job_id;
    cluster.wait_job(late, 2 * SOON, "succeeded");
    let metrics = cluster.call("GET", "/metrics", None).expect(200).text();
    for line in [
        "tessera_job_deadlines_total{outcome=\"met\"} 3",
        "tessera_job_deadlines_total{outcome=\"missed\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

fn tessera(cluster: &Cluster, words: &[&str]) -> String {
    let url = cluster.url();
    let mut command = Command::new(programs().path("tessera"));
    let output = command.args(["--url", &url]).args(words).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reported}");
    format!("{}{reported}", String::from_utf8_lossy(&output.stdout))
}

#[test]
fn the_command_takes_deadlines_as_slurm_writes_them_and_prints_the_probability() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();

    let words = ["submit", "--deadline", "now+2hours", "--time", "30", "--", "true"];
    let submitted = tessera(&cluster, &words);

    assert!(submitted.contains("Submitted batch job 1\n"), "{submitted}");
    assert!(submitted.contains("it will be met with a probability of 100 %"), "{submitted}");
    assert!(submitted.contains("by its time limit alone"), "{submitted}");
    let job = cluster.wait_end(1, SOON);
    assert!(job.job.ended_at < job.deadline, "{job:?}");
}

#[test]
fn a_deadline_can_be_set_later_and_removed() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    // A deadline counts from the time on that is a hundred run times before it.
    let first = cluster.submit(&of_task("sleep 1")).job_id;
    cluster.wait_job(first, SOON, "succeeded");
    let gate = cluster.scratch().join("open");
    let until_open = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let holder = cluster.submit(&SubmitRequest { gpu_whole: true, ..script(&until_open) }).job_id;
    cluster.wait_job(holder, 2 * SOON, "running");
    let older = cluster.submit(&of_task("sleep 1")).job_id;
    let due = cluster.submit(&of_task("sleep 1")).job_id;

    tessera(&cluster, &["update", &due.to_string(), "--deadline", "now+1minutes"]);

    assert!(cluster.explain(due).deadline.is_some(), "{:?}", cluster.explain(due));
    tessera(&cluster, &["update", &older.to_string(), "--deadline", "now+1minutes"]);
    tessera(&cluster, &["update", &older.to_string(), "--deadline", "none"]);
    assert_eq!(cluster.explain(older).deadline, None);
    fs::write(&gate, "").unwrap();
    let due = cluster.wait_job(due, 2 * SOON, "succeeded");
    let older = cluster.wait_job(older, 2 * SOON, "succeeded");
    assert!(due.job.started_at < older.job.started_at, "{due:?} {older:?}");
    assert!(due.job.ended_at < due.deadline, "{due:?}");
    assert_eq!(older.deadline, None);
}
