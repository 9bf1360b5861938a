//! Jobs under `--policy scheme-b` on a real controller: slices of exactly the needed size, and a
//! strict order.

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::wait;

const GIB: u64 = 1 << 30;

/// A job that holds the given memory until a file of this name exists in the folder.
fn until(cluster: &Cluster, gib: u64, file: &str) -> SubmitRequest {
    let folder = cluster.scratch().display().to_string();
    SubmitRequest {
        gpu_memory_bytes: Some(gib * GIB),
        env: [("FOLDER".to_owned(), folder)].into(),
        ..script(&format!("while [ ! -e $FOLDER/{file} ]; do sleep 0.1; done"))
    }
}

#[test]
fn slices_are_created_in_the_needed_size_and_no_job_overtakes_a_waiting_one() {
    let cluster = Plan::new().policy("scheme-b").node("n1", "a100-40gb").start();
    let small = cluster.submit(&until(&cluster, 4, "go")).job_id;
    let large = cluster.submit(&until(&cluster, 18, "go")).job_id;
    cluster.wait_job(small, 3 * SOON, "running");
    cluster.wait_job(large, 3 * SOON, "running");

    let profile = |job: u64| cluster.job(job).attempt_list[0].profile.clone();
    assert_eq!(profile(small), "1g.5gb");
    assert!(profile(large).ends_with("g.20gb"), "{}", profile(large));

    // A job of 30 GiB has no space next to them; the small one after it has space, but waits anyway.
    let second = cluster.submit(&until(&cluster, 30, "go")).job_id;
    let third = cluster.submit(&until(&cluster, 4, "go")).job_id;
    let explained = wait::until(SOON, "its reason", || {
        let explained = cluster.explain(third);
        (explained.reason.as_deref() == Some("priority")).then_some(explained)
    });
    assert_eq!(explained.jobs_ahead, Some(1));
    assert!(explained.summary.contains(&format!("job {second}")), "{explained:?}");
    assert_eq!(cluster.explain(second).reason.as_deref(), Some("resources"));
    assert_eq!(cluster.job(third).job.state, "queued");

    cluster.act(second, "cancel").expect(200);
    cluster.wait_job(third, 3 * SOON, "running");
    std::fs::write(cluster.scratch().join("go"), "").unwrap();
    for job in [small, large, third] {
        assert_eq!(cluster.wait_end(job, 3 * SOON).job.state, "succeeded");
    }
}
