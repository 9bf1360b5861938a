//! GPUs that are partitioned, merged and partitioned again while other jobs on them keep running.

use std::process::Command;
use std::time::Duration;

use tessera_api_types::{InstanceDetails, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

fn hold(profile: &str) -> SubmitRequest {
    SubmitRequest {
        gpu_profile: Some(profile.into()),
        grace_secs: Some(1),
        ..command(["sleep", "600"])
    }
}

fn instances(cluster: &Cluster) -> Vec<InstanceDetails> {
    cluster.gpus().items.remove(0).instances
}

/// Makes an instance without the agent's knowledge.
fn cut(cluster: &Cluster, profile: u32) {
    let cut = Command::new(programs().path("tessera-test-job"))
        .arg("cut")
        .arg(&programs().nvml)
        .args(["0", &profile.to_string()])
        .env("TESSERA_SIM_NODE", cluster.hardware(0))
        .output()
        .unwrap();
    assert!(cut.status.success(), "{}", String::from_utf8_lossy(&cut.stderr));
}

fn end(cluster: &Cluster, job: u64) {
    cluster.act(job, "cancel");
    cluster.wait_job(job, SOON, "cancelled");
}

#[test]
fn slices_are_made_merged_and_split_around_a_running_neighbour() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let neighbour = cluster.submit(&hold("3g.20gb")).job_id;
    let neighbours_slice = cluster.wait_job(neighbour, SOON, "running").job.slice.unwrap();

    // Create: two small ones next to it.
    let small: Vec<u64> = (0..2).map(|_| cluster.submit(&hold("1g.5gb")).job_id).collect();
    for &job in &small {
        cluster.wait_job(job, SOON, "running");
    }
    let used: Vec<_> = instances(&cluster).into_iter().filter(|i| i.state == "taken").collect();
    assert_eq!(used.len(), 3, "{used:#?}");

    // Merge: a large one in their place.
    for &job in &small {
        end(&cluster, job);
    }
    let large = cluster.submit(&hold("3g.20gb")).job_id;
    assert_eq!(cluster.wait_job(large, SOON, "running").job.profile.as_deref(), Some("3g.20gb"));

    // Split: small ones in its place again.
    end(&cluster, large);
    for _ in 0..2 {
        let job = cluster.submit(&hold("2g.10gb")).job_id;
        let running = wait::within_time(Duration::from_secs(5), || {
            (cluster.job(job).job.state == "running").then_some(())
        });
        if running.is_none() {
            // 3g at 0 or at 4 leaves space for one 2g.10gb only next to its empty half.
            assert_eq!(cluster.job(job).job.state, "queued");
        }
    }

    let layouts = cluster.layouts().items;
    let steps: Vec<&String> = layouts.iter().flat_map(|change| &change.steps).collect();
    assert!(steps.iter().any(|step| step.starts_with("create 1g.5gb@")), "{steps:?}");
    assert!(steps.iter().any(|step| step.starts_with("destroy 1g.5gb@")), "{steps:?}");
    assert!(steps.iter().any(|step| step.starts_with("create 3g.20gb@")), "{steps:?}");
    assert!(steps.iter().any(|step| step.starts_with("destroy 3g.20gb@")), "{steps:?}");
    assert!(layouts.iter().all(|change| change.state == "done"), "{layouts:#?}");
    assert!(layouts.iter().all(|change| change.job_id.is_some() && change.decision.is_some()));
    // The neighbour was never touched.
    let still = cluster.job(neighbour).job;
    assert_eq!((still.state.as_str(), still.attempts), ("running", 1));
    assert_eq!(still.slice, Some(neighbours_slice));
}

#[test]
fn a_gpu_with_mig_off_is_one_slice_for_one_job() {
    let cluster = Plan::new().whole_gpu_node("n1", "a100-40gb").start();
    let whole = SubmitRequest { gpu_whole: true, ..command(["sleep", "600"]) };
    let first = cluster.submit(&whole).job_id;
    let running = cluster.wait_job(first, SOON, "running").job;
    let second = cluster.submit(&command(["true"])).job_id;

    assert!(running.slice.unwrap().starts_with("GPU-"));
    assert_eq!(running.profile.as_deref(), Some("whole GPU"));
    assert_eq!(cluster.gpus().items[0].mig, "off");
    wait::until(SOON, "a reason to wait", || cluster.job(second).job.reason);
    end(&cluster, first);
    cluster.wait_job(second, SOON, "succeeded");
}

#[test]
fn an_agent_adopts_the_instances_that_it_finds() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    cluster.agents[0].kill();
    // NVML's index of 3g.20gb, then of 1g.5gb.
    for profile in [2, 0] {
        cut(&cluster, profile);
    }
    cluster.agents[0].start();
    cluster.wait_ready();

    let found: Vec<String> = wait::until(SOON, "two instances", || {
        let found = instances(&cluster);
        (found.len() == 2).then(|| found.into_iter().map(|i| i.profile).collect())
    });
    assert!(found.contains(&"3g.20gb".to_owned()) && found.contains(&"1g.5gb".to_owned()));
    let before = instances(&cluster);
    let job = cluster.submit(&hold("3g.20gb")).job_id;
    let running = cluster.wait_job(job, SOON, "running").job;

    let adopted = before.iter().find(|instance| instance.profile == "3g.20gb").unwrap();
    assert_eq!(running.slice, adopted.slice, "it uses the existing instances");
    assert!(cluster.layouts().items.is_empty(), "nothing had to be changed");
}

#[test]
fn whole_gpus_are_placed_one_after_the_other_by_the_exclusive_policy() {
    let cluster = Plan::new().node("n1", "a30-24gb").policy("exclusive").start();

    let jobs: Vec<u64> =
        (0..3).map(|_| cluster.submit(&command(["sleep", "0.3"])).job_id).collect();

    let mut last = None;
    for job in jobs {
        let done = cluster.wait_job(job, SOON, "succeeded").job;
        assert_eq!(done.profile.as_deref(), Some("4g.24gb"));
        assert!(last < done.started_at, "in the order of their submit, one at a time");
        last = done.ended_at;
    }
}

#[test]
fn a_fixed_layout_stays_as_it_is_under_the_static_policy() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").policy("static").start();
    cluster.agents[0].kill();
    for profile in [2, 0] {
        cut(&cluster, profile);
    }
    cluster.agents[0].start();
    cluster.wait_ready();

    let jobs: Vec<u64> = (0..6).map(|_| cluster.submit(&command(["true"])).job_id).collect();
    for job in jobs {
        cluster.wait_job(job, SOON, "succeeded");
    }

    assert!(cluster.layouts().items.is_empty(), "{:#?}", cluster.layouts());
    assert_eq!(instances(&cluster).len(), 2);
}
