//! `--idle-timeout` and `--input` on a whole cluster: what the user of a job reads, and how the job ends.

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// A job that holds a whole GPU with this load until `until` exists, and may be idle for ten seconds.
fn holder(cluster: &Cluster, load: u8, until: &str, action: Option<&str>) -> SubmitRequest {
    let client = programs().path("tessera-sim-client").display().to_string();
    let until = cluster.scratch().join(until).display().to_string();
    let text = format!(
        "{client} --load-percent {load} & until [ -e {until} ]; do sleep 0.1; done; kill $!"
    );
    SubmitRequest {
        idle_timeout_secs: Some(10),
        idle_action: action.map(str::to_owned),
        ..command(["sh", "-c", &text])
    }
}

/// Returns the texts of a job's events about its idle timeout.
fn idle_events(cluster: &Cluster, job: u64) -> Vec<String> {
    let events = cluster.events(job).items.into_iter();
    events.map(|event| event.text).filter(|text| text.contains("--idle-timeout")).collect()
}

#[test]
fn an_idle_job_is_warned_and_ends_or_waits_again_and_a_busy_one_runs_on() {
    let gpus = "a100-40gb,a100-40gb,a100-40gb";
    let cluster = Plan::new().whole_gpu_node("n1", gpus).start();
    let submit =
        |load, until, action| cluster.submit(&holder(&cluster, load, until, action)).job_id;
    let busy = submit(40, "done", None);
    cluster.wait_job(busy, SOON, "running");
    let ended = submit(0, "never", None);
    let requeued = submit(0, "later", Some("requeue"));

    let end = cluster.wait_end(ended, 2 * SOON);

    assert_eq!(end.job.state, "cancelled");
    let events = idle_events(&cluster, ended);
    assert!(events[0].starts_with("warning: its GPU has done nothing for"), "{events:?}");
    assert!(events[1].starts_with("ended, since its GPU did nothing for 1"), "{events:?}");
    assert_eq!(events.len(), 2, "{events:?}");
    wait::until(2 * SOON, "the other one starts again", || {
        let job = cluster.job(requeued);
        (job.attempt_list.len() == 2 && job.job.state == "running").then_some(())
    });
    let events = idle_events(&cluster, requeued);
    assert!(events[1].starts_with("sent back to the queue"), "{events:?}");
    // The busy one started before both.
    assert_eq!(cluster.job(busy).job.state, "running");
    assert!(idle_events(&cluster, busy).is_empty());
    for name in ["done", "later"] {
        std::fs::write(cluster.scratch().join(name), "").unwrap();
    }
    cluster.wait_job(busy, SOON, "succeeded");
    cluster.wait_job(requeued, SOON, "succeeded");
}

#[test]
fn a_job_reads_its_input_from_the_file_that_it_names_and_a_missing_one_is_named() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let file = cluster.scratch().join("input");
    std::fs::write(&file, "to be read\n").unwrap();
    let reader = |file: String| SubmitRequest { input: Some(file), ..command(["cat"]) };

    let read = cluster.submit(&reader(file.display().to_string())).job_id;
    let missing = cluster.submit(&reader("/no/such/file".into())).job_id;
    let nothing = cluster.submit(&command(["cat"])).job_id;

    cluster.wait_job(read, SOON, "succeeded");
    assert_eq!(cluster.logs(read), "to be read\n");
    let failed = cluster.wait_job(missing, SOON, "failed");
    assert_eq!(failed.attempt_list.len(), 1, "another attempt would not help");
    let attempt = &failed.attempt_list[0];
    assert_eq!(attempt.state, "launch_failed");
    assert_eq!(attempt.detail.as_deref(), Some("no such input file: /no/such/file"));
    cluster.wait_job(nothing, SOON, "succeeded");
    assert_eq!(cluster.logs(nothing), "");
}
