//! Faults of drivers and GPUs, from a user's point of view. Rows G7, G10 and G12 of
//! docs/reliability.md.

use std::time::{Duration, Instant};

use tessera_api_types::{GpuDetails, LayoutApplied, LayoutPlan, LayoutRequest, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::wait;

/// How long a slow driver takes to destroy an instance.
const SLOW_MS: u64 = 8_000;
/// The API doesn't wait for drivers; a busy machine is slow too.
const PROMPT: Duration = Duration::from_secs(2);

fn faults(cluster: &Cluster, lines: &str) {
    let folder = cluster.hardware(0);
    let new_file = folder.join("faults.new");
    std::fs::write(&new_file, lines).unwrap();
    std::fs::rename(new_file, folder.join("faults")).unwrap();
}

fn small(program: &[&str]) -> SubmitRequest {
    SubmitRequest { gpu_profile: Some("1g.5gb".into()), ..command(program.iter().copied()) }
}

fn gpu(cluster: &Cluster, index: u32) -> GpuDetails {
    let mut gpus = cluster.gpus().items.into_iter();
    gpus.find(|gpu| gpu.index == index).expect("the node has it")
}

/// Orders a layout by hand, and returns its plan.
fn order(cluster: &Cluster, gpu: &str, layout: &str) -> String {
    let request = LayoutRequest { layout: layout.into(), by: "ops".into(), ..Default::default() };
    let body = serde_json::to_vec(&request).unwrap();
    let path = format!("/v1/gpus/{gpu}/layout");
    let applied: LayoutApplied = cluster.call("POST", &path, Some(&body)).expect(202).json();
    applied.plan.unwrap()
}

fn change(cluster: &Cluster, plan: &str) -> LayoutPlan {
    cluster.call("GET", &format!("/v1/layouts/{plan}"), None).expect(200).json()
}

fn ended(cluster: &Cluster, plan: &str) -> LayoutPlan {
    wait::until(SOON, "the change is over", || {
        Some(change(cluster, plan)).filter(|change| change.ended_at.is_some())
    })
}

#[test]
fn g7_plans_avoid_a_placement_that_only_the_driver_refuses_and_leave_no_remains() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    faults(&cluster, "call=nvmlDeviceCreateGpuInstanceWithPlacement times=1 code=23\n");

    let job = cluster.submit(&small(&["true"])).job_id;
    let done = cluster.wait_job(job, Duration::from_secs(60), "succeeded");

    assert_eq!(done.attempt_list[0].state, "not_started", "{done:#?}");
    let changes = cluster.layouts().items;
    let failed = changes.iter().find(|change| change.state == "failed").expect("one failed");
    assert!(failed.detail.as_ref().unwrap().contains("insufficient resources"), "{failed:?}");
    let made = changes.iter().find(|change| change.state == "done").expect("the next one");
    assert_ne!(made.steps, failed.steps, "another placement is tried");
    let standing = gpu(&cluster, 0).instances;
    assert!(standing.len() == 1 && standing[0].slice.is_some(), "{standing:?}");
    assert_eq!(done.retries_left, cluster.job(job).retries_left);
}

#[test]
fn g10_a_slow_driver_delays_only_its_own_gpu() {
    let cluster = Plan::new().node("n1", "a100-40gb,a100-40gb").start();
    for gpu in ["n1:0", "n1:1"] {
        let plan = order(&cluster, gpu, "1g.5gb");
        assert_eq!(ended(&cluster, &plan).state, "done");
    }
    faults(&cluster, &format!("call=nvmlGpuInstanceDestroy delay_ms={SLOW_MS}\n"));
    let began = Instant::now();
    let plan = order(&cluster, "n1:0", "empty");

    let job = cluster.submit(&small(&["true"])).job_id;
    cluster.wait_job(job, SOON, "succeeded");
    let mut slowest = Duration::ZERO;
    for path in ["/v1/jobs", "/v1/gpus", "/v1/nodes", "/v1/layouts", "/metrics"] {
        let requested = Instant::now();
        cluster.call("GET", path, None).expect(200);
        slowest = slowest.max(requested.elapsed());
    }

    assert_eq!(change(&cluster, &plan).ended_at, None, "after {:?}", began.elapsed());
    assert!(slowest < PROMPT, "{slowest:?}");
    assert!(cluster.nodes().iter().all(|node| node.state == "available"));
    let done =
        wait::until(SOON + Duration::from_millis(SLOW_MS), "the slow change is over", || {
            Some(change(&cluster, &plan)).filter(|change| change.ended_at.is_some())
        });
    assert_eq!(done.state, "done", "{done:?}");
    assert!(began.elapsed() >= Duration::from_millis(SLOW_MS));
}

#[test]
fn g12_a_gpu_with_three_different_faults_in_a_day_is_quarantined_until_it_is_cleared() {
    let cluster = Plan::new().node("n1", "a100-40gb,a100-40gb").start();
    for code in [999, 14] {
        let call = "nvmlDeviceCreateGpuInstanceWithPlacement";
        faults(&cluster, &format!("call={call} gpu=0 times=1 code={code}\n"));
        let plan = order(&cluster, "n1:0", "1g.5gb");
        let failed = ended(&cluster, &plan);
        assert_eq!(failed.state, "failed", "{failed:?}");
        assert!(gpu(&cluster, 0).quarantined.is_none(), "not yet");
    }

    // A contained memory error is the third.
    faults(&cluster, "gpu=0 xid=94\n");
    let quarantined = wait::until(SOON, "it is set aside", || gpu(&cluster, 0).quarantined);

    let reason = quarantined.reason.unwrap_or_default();
    assert!(reason.contains("failed 3 times in a day"), "{reason}");
    for _ in 0..2 {
        let whole = SubmitRequest { gpu_profile: Some("7g.40gb".into()), ..command(["true"]) };
        let done = cluster.wait_job(cluster.submit(&whole).job_id, SOON, "succeeded");
        assert_eq!(done.job.gpu.as_ref(), Some(&gpu(&cluster, 1).id), "the other card");
    }
    faults(&cluster, "");
    let body = br#"{"by":"ops"}"#;
    cluster.call("POST", "/v1/gpus/n1:0/clear", Some(body)).expect(200);
    wait::until(SOON, "it is in use again", || {
        gpu(&cluster, 0).quarantined.is_none().then_some(())
    });
}
