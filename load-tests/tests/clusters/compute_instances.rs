//! GPU instances with several compute instances: partitioned by an operator, a job on each, one
//! fault that ends all, and made whole again; with real processes.

use tessera_api_types::{InstanceDetails, JobView, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::{done, refused};
use tessera_load_tests::wait;

/// A job that prints its device and variables, and keeps running.
fn submit_part(user: &str, name: &str) -> SubmitRequest {
    SubmitRequest {
        gpu_profile: Some(name.to_owned()),
        user: Some(user.to_owned()),
        grace_secs: Some(1),
        ..script(
            "echo \"$CUDA_VISIBLE_DEVICES $TESSERA_GPU_PROFILE $TESSERA_GPU_SM_COUNT\"\n\
             echo \"$TESSERA_GPU_MEMORY_BYTES of $TESSERA_GPU_MEMORY_SHARED_BYTES\"\n\
             sleep 600",
        )
    }
}

fn instance(cluster: &Cluster) -> InstanceDetails {
    let instances = cluster.gpus().items.remove(0).instances;
    instances.into_iter().find(|i| i.profile == "3g.20gb").unwrap()
}

fn output(cluster: &Cluster, job: u64) -> String {
    wait::until(SOON, "the job's output", || {
        let logs = cluster.try_call("GET", &format!("/v1/jobs/{job}/logs"), None).ok()?;
        let text = (logs.status == 200).then(|| logs.text())?;
        (text.lines().count() >= 2).then_some(text)
    })
}

fn running(cluster: &Cluster, job: u64) -> JobView {
    cluster.wait_job(job, SOON, "running").job
}

#[test]
fn two_jobs_run_on_two_compute_instances_of_one_gpu_instance() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let plan = done(&cluster, &["gpus", "layout", "plan", "n1:0", "1c+2c.3g.20gb@0,1g.5gb"]);
    assert!(plan.contains("cut 3g.20gb@0 into 2c+1c"), "{plan}");
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "1c+2c.3g.20gb@0,1g.5gb"]);
    let again = done(&cluster, &["gpus", "layout", "apply", "n1:0", "2c+1c.3g.20gb@0,1g.5gb"]);
    assert!(again.contains("exists already"), "{again}");

    // Each has its own device, and a part of the memory is counted for it.
    let one = cluster.submit(&submit_part("ada", "1c.3g.20gb")).job_id;
    let two = cluster.submit(&submit_part("ada", "2c.3g.20gb")).job_id;
    let (first, second) = (running(&cluster, one), running(&cluster, two));
    assert_eq!(first.profile.as_deref(), Some("1c.3g.20gb"));
    assert_ne!(first.slice, second.slice);
    let there = instance(&cluster);
    assert_eq!((there.state.as_str(), there.slice.as_ref(), there.parts.len()), ("cut", None, 2));
    let part = there.parts.iter().find(|part| part.job_id == Some(one)).unwrap();
    assert_eq!((part.name.as_str(), part.start), ("1c.3g.20gb", 2));
    assert_eq!(part.slice, first.slice);
    let drawn = output(&cluster, one);
    let expected = format!(
        "{} 1c.3g.20gb {}\n{} of {}\n",
        first.slice.as_deref().unwrap(),
        part.sms,
        there.memory_bytes / 3,
        there.memory_bytes,
    );
    assert_eq!(drawn, expected);
    let why = done(&cluster, &["explain", &one.to_string()]);
    assert!(why.contains("co-runners can use all of it"), "{why}");
    let show = done(&cluster, &["gpus"]);
    assert!(show.contains("1c at 2") && show.contains("2c at 0"), "{show}");

    // No other user's job starts on it, and compute instances in use are not replaced.
    let other = cluster.submit(&submit_part("bob", "1c.3g.20gb")).job_id;
    let third = cluster.submit(&submit_part("ada", "2c.3g.20gb")).job_id;
    let reason = |job| wait::until(SOON, "a reason", || cluster.job(job).job.reason);
    assert_eq!(reason(other), "resources");
    assert_eq!(cluster.job(third).job.state, "queued", "it would keep the other from his turn");
    let message = refused(&cluster, &["gpus", "layout", "apply", "n1:0", "3g.20gb@0,1g.5gb"]);
    assert!(message.contains("in use by job"), "{message}");

    // A new agent and a new leader know which job runs where.
    cluster.agents[0].kill();
    cluster.agents[0].start();
    cluster.wait_ready();
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    for job in [one, two] {
        let now = cluster.job(job).job;
        assert_eq!((now.state.as_str(), now.attempts), ("running", 1));
    }
    let there = instance(&cluster);
    assert!(there.parts.iter().all(|part| part.job_id.is_some()), "{there:#?}");

    // When all jobs of one user have ended, the next user's job starts.
    for job in [third, one, two] {
        cluster.act(job, "cancel");
        cluster.wait_job(job, SOON, "cancelled");
    }
    running(&cluster, other);
    cluster.act(other, "cancel");
    cluster.wait_job(other, SOON, "cancelled");
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "3g.20gb@0,1g.5gb"]);
    let there = instance(&cluster);
    assert!(there.parts.is_empty() && there.slice.is_some(), "{there:#?}");
}

#[test]
fn an_invalid_cut_is_refused_with_the_valid_ones() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();

    let message = refused(&cluster, &["gpus", "layout", "plan", "n1:0", "4c.3g.20gb"]);
    assert!(
        message.contains("3g.20gb can't be cut so") && message.contains("[1, 2, 3]"),
        "{message}"
    );
    let message = refused(&cluster, &["gpus", "layout", "plan", "n1:0", "2x1c.3g.20gb"]);
    assert!(message.contains("1c+2c.3g.20gb"), "{message}");
    let message = refused(&cluster, &["submit", "--profile", "9c.3g.20gb", "--wrap", "true"]);
    assert!(message.contains("3g.20gb"), "{message}");
    let cuts = done(&cluster, &["mig", "cuts", "a100-40gb", "3g.20gb"]);
    assert!(cuts.contains("1c.3g.20gb") && cuts.contains("0 1 2"), "{cuts}");
}
