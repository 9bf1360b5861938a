//! A large job at the head of the queue of a real controller, under the default policy.

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};

fn sleeper(user: &str, profile: &str) -> SubmitRequest {
    SubmitRequest {
        user: Some(user.into()),
        gpu_profile: Some(profile.into()),
        ..command(["sleep", "86400"])
    }
}

#[test]
fn a_waiting_large_job_holds_up_no_small_job_of_other_users() {
    let cluster: Cluster = Plan::new().node("n1", "a100-40gb").node("n2", "a100-40gb").start();
    let first = cluster.submit(&sleeper("ada", "7g.40gb")).job_id;
    cluster.wait_job(first, SOON, "running");
    let small = cluster.submit(&sleeper("bob", "1g.5gb")).job_id;
    cluster.wait_job(small, SOON, "running");

    let large = cluster.submit(&sleeper("cyd", "7g.40gb")).job_id;
    let later: Vec<_> = ["dan", "eve", "fay", "gus", "hal"]
        .iter()
        .map(|user| cluster.submit(&sleeper(user, "1g.5gb")).job_id)
        .collect();

    for job in later {
        cluster.wait_job(job, SOON, "running");
    }
    let why = cluster.explain(large);
    assert_eq!(why.state, "queued", "{why:#?}");
    assert!(why.summary.contains("is reserved for it"), "{why:#?}");
    // It starts on the GPU of its reservation.
    cluster.act(first, "cancel").expect(200);
    cluster.wait_job(large, 2 * SOON, "running");
}
