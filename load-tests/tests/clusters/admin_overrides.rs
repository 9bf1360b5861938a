//! Administrative overrides and commands of operators, with real processes: layouts by hand around running jobs, drains,
//! quarantines, pins, crashes in the middle, and the doctor.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tessera_api_types::{
    GpuAvailabilityView, InstanceDetails, LayoutApplied, LayoutPlan, LayoutPlans, LayoutRequest,
    SubmitRequest,
};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::console::{done, refused, tessera};
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

fn layout(cluster: &Cluster) -> Vec<String> {
    instances(cluster).iter().map(|i| format!("{}@{}", i.profile, i.start)).collect()
}

fn change(cluster: &Cluster, plan: &str) -> Option<LayoutPlan> {
    let answer = cluster.try_call("GET", &format!("/v1/layouts/{plan}"), None).ok()?;
    (answer.status == 200).then(|| answer.json())
}

/// Makes the simulated driver misbehave.
fn faults(cluster: &Cluster, lines: &str) {
    let folder = cluster.hardware(0);
    fs::write(folder.join("faults.new"), lines).unwrap();
    fs::rename(folder.join("faults.new"), folder.join("faults")).unwrap();
}

/// Orders a layout without waiting for it.
fn order(cluster: &Cluster, layout: &str) -> String {
    let request = LayoutRequest {
        layout: layout.to_owned(),
        by: "ada".to_owned(),
        ..LayoutRequest::default()
    };
    let body = serde_json::to_vec(&request).unwrap();
    let answer = cluster.call("POST", "/v1/gpus/n1:0/layout", Some(&body)).expect(202);
    answer.json::<LayoutApplied>().plan.unwrap()
}

#[test]
fn a_gpu_is_partitioned_by_hand_around_a_running_job_and_no_busy_instance_is_touched() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let job = cluster.submit(&hold("3g.20gb")).job_id;
    let slice = cluster.wait_job(job, SOON, "running").job.slice.unwrap();
    let start = instances(&cluster)[0].start;

    // A preview lists the steps, and changes nothing.
    let plan = done(&cluster, &["gpus", "layout", "plan", "n1:0", "3g.20gb,2g.10gb,1g.5gb"]);
    assert!(plan.contains("create 2g.10gb@") && plan.contains("expected to take 0.23 s"), "{plan}");
    assert!(plan.contains(&format!("kept: 3g.20gb@{start}")), "{plan}");
    assert_eq!(instances(&cluster).len(), 1);

    // Split, then merge, while the job runs.
    let applied = done(&cluster, &["gpus", "layout", "apply", "n1:0", "3g.20gb,2g.10gb,1g.5gb"]);
    assert!(applied.contains("the layout is in place"), "{applied}");
    assert_eq!(layout(&cluster).len(), 3);
    let again = done(&cluster, &["gpus", "layout", "apply", "n1:0", "3g.20gb,2g.10gb,1g.5gb"]);
    assert!(again.contains("exists already"), "{again}");
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "2x3g.20gb", "--reason", "big one"]);
    let merged = layout(&cluster);
    assert!(merged.iter().all(|name| name.starts_with("3g.20gb@")), "{merged:?}");
    assert_eq!(merged.len(), 2);
    let changes = cluster.layouts().items;
    assert_eq!(changes[0].requested_by.as_deref(), Some("ada"));
    assert_eq!(changes[0].reason.as_deref(), Some("big one"));
    assert!(changes.iter().all(|change| change.state == "done"), "{changes:#?}");

    // The reverse: the job prevents it and is named, and nothing changes.
    let message = refused(&cluster, &["gpus", "layout", "apply", "n1:0", "7g.40gb"]);
    assert!(message.contains(&format!("in use by job {job}")), "{message}");
    assert!(message.contains("a layout that keeps 3g.20gb@"), "{message}");
    let message = refused(&cluster, &["gpus", "layout", "plan", "n1:0", "9x1g.5gb"]);
    assert!(message.contains("7x 1g.5gb"), "{message}");
    assert_eq!(layout(&cluster), merged);
    assert_eq!(cluster.layouts().items.len(), changes.len());

    let availability = done(&cluster, &["gpus", "layout", "availability", "n1:0"]);
    assert!(availability.contains(&format!("job {job} on 3g.20gb@")), "{availability}");
    let show = done(&cluster, &["gpus", "layout", "show", "n1:0"]);
    assert!(show.contains("│3g.20gb") && show.contains("idle"), "{show}");
    let unknown = refused(&cluster, &["gpus", "layout", "show", "n1:7"]);
    assert!(unknown.contains("that node has n1:0"), "{unknown}");
    let still = cluster.job(job).job;
    assert_eq!((still.state.as_str(), still.attempts), ("running", 1));
    assert_eq!(still.slice, Some(slice));
}

#[test]
fn the_availability_shows_when_a_busy_gpu_is_expected_to_be_free() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let limited = SubmitRequest { time_limit_secs: Some(900), ..hold("7g.40gb") };
    let job = cluster.submit(&limited).job_id;
    let started = cluster.wait_job(job, SOON, "running").attempt_list[0].started_at.unwrap();

    let path = "/v1/gpus/n1:0/layout/availability";
    let availability: GpuAvailabilityView = cluster.call("GET", path, None).expect(200).json();

    assert!(!availability.profiles.is_empty());
    for profile in &availability.profiles {
        assert_eq!((profile.now, profile.after_idle, profile.first.as_str()), (0, 0, "after_busy"));
        assert_eq!(profile.job_ids, [job]);
        let limit = profile.ready_at.expect("it has a time limit") - started;
        assert!((limit.whole_seconds() - 900).abs() <= 1, "{limit}: {profile:?}");
    }
    let changes = |gpu: &str| -> LayoutPlans {
        cluster.call("GET", &format!("/v1/layouts?gpu={gpu}"), None).expect(200).json()
    };
    let uuid = &cluster.gpus().items[0].id;
    let beginning: String = uuid.chars().take("GPU-".len() + 6).collect();
    assert_eq!(changes(&beginning).items, changes("n1:0").items, "named by its beginning");
    assert_eq!(changes(&beginning).items.len(), 1);
    cluster.act(job, "cancel").expect(200);
}

#[test]
fn a_pinned_layout_stays_and_an_unpinned_one_follows_the_jobs() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "1g.5gb@0,3g.20gb@4", "--pin"]);

    // It fits an existing instance.
    let small = cluster.submit(&hold("1g.5gb")).job_id;
    assert_eq!(cluster.wait_job(small, SOON, "running").job.profile.as_deref(), Some("1g.5gb"));
    let other = cluster.submit(&hold("2g.10gb")).job_id;
    let why = wait::until(SOON, "an explanation", || {
        let why = cluster.explain(other);
        why.summary.contains("pinned").then_some(why)
    });
    assert_eq!(why.reason.as_deref(), Some("mig_fragmentation"));
    assert!(why.summary.contains("the layout of GPU 0 of node n1 is pinned (by ada)"), "{why:?}");
    assert_eq!(layout(&cluster), ["1g.5gb@0", "3g.20gb@4"]);

    done(&cluster, &["gpus", "layout", "unpin", "n1:0"]);
    cluster.wait_job(other, SOON, "running");
    assert_eq!(cluster.job(small).job.attempts, 1);
}

#[test]
fn drains_and_quarantines_hold_over_restarts_until_they_are_cleared() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let running = cluster
        .submit(&SubmitRequest { gpu_profile: Some("1g.5gb".into()), ..command(["sleep", "6"]) });
    cluster.wait_job(running.job_id, SOON, "running");

    done(&cluster, &["drain", "n1", "--reason", "maintenance"]);
    done(&cluster, &["drain", "n1"]);
    let waits = cluster.submit(&command(["true"])).job_id;
    let explained = |cluster: &Cluster| {
        wait::until(SOON, "an explanation", || {
            let why = cluster.explain(waits);
            why.reason.as_deref().is_some_and(|word| word == "node_drained").then_some(why)
        })
    };
    let why = explained(&cluster);
    assert!(why.summary.contains("node n1 is drained (maintenance, by ada)"), "{why:?}");
    assert_eq!(why.would_start_if.as_deref(), Some("node n1 is undrained"));
    let nodes = done(&cluster, &["nodes"]);
    assert!(nodes.contains("available, drained (maintenance, by ada)"), "{nodes}");

    // Another leader keeps the override, and the running job finishes.
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    explained(&cluster);
    let emptied = done(&cluster, &["drain", "n1", "--wait"]);
    assert!(emptied.contains("no job runs on node n1"), "{emptied}");
    assert_eq!(cluster.wait_job(running.job_id, SOON, "succeeded").job.attempts, 1);
    let gpu_only = refused(&cluster, &["undrain", "n1:0"]);
    assert!(gpu_only.contains("node n1 is drained (maintenance, by ada)"), "{gpu_only}");
    done(&cluster, &["undrain", "n1"]);
    cluster.wait_job(waits, SOON, "succeeded");

    // One slice is quarantined: nothing uses it, nothing destroys it.
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "3g.20gb@4"]);
    done(&cluster, &["quarantine", "n1:0/4", "--reason", "odd results"]);
    let message = refused(&cluster, &["gpus", "layout", "apply", "n1:0", "7g.40gb"]);
    assert!(message.contains("3g.20gb@4 is quarantined"), "{message}");
    let elsewhere = cluster.submit(&hold("3g.20gb")).job_id;
    cluster.wait_job(elsewhere, SOON, "running");
    let slices = instances(&cluster);
    assert_eq!(slices.iter().map(|i| i.start).collect::<Vec<_>>(), [0, 4]);
    assert_eq!(slices[1].state, "quarantined");
    done(&cluster, &["clear", "n1:0/3g.20gb@4"]);
    let next = cluster.submit(&hold("3g.20gb")).job_id;
    assert_eq!(cluster.wait_job(next, SOON, "running").job.slice, slices[1].slice);

    // The record of who set each override remains.
    let events = done(&cluster, &["events"]);
    for text in [
        "node n1 is drained (maintenance, by ada)",
        "node n1 is undrained (by ada)",
        "3g.20gb@4 of GPU 0 of node n1 is quarantined (odd results, by ada)",
        "3g.20gb@4 of GPU 0 of node n1 is cleared (by ada)",
    ] {
        assert!(events.contains(text), "{text} is missing from\n{events}");
    }
}

#[test]
fn a_layout_under_way_is_completed_after_the_controller_or_the_agent_is_killed() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let job = cluster.submit(&hold("1g.5gb")).job_id;
    let slice = cluster.wait_job(job, SOON, "running").job.slice;
    let start = instances(&cluster)[0].start;
    let kept = format!("1g.5gb@{start}");
    // Slow enough to be killed in the middle.
    let slow = "call=nvmlDeviceCreateGpuInstanceWithPlacement delay_ms=1500\n";
    faults(&cluster, slow);

    let plan = order(&cluster, &format!("{kept},1g.5gb@0,1g.5gb@1,1g.5gb@2"));
    wait::until(SOON, "the first step", || (instances(&cluster).len() == 2).then_some(()));
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    let ended = wait::until(Duration::from_secs(60), "the end of the plan", || {
        change(&cluster, &plan).filter(|change| change.ended_at.is_some())
    });
    assert_eq!(ended.state, "done", "{ended:?}");
    assert_eq!(layout(&cluster), ["1g.5gb@0", "1g.5gb@1", "1g.5gb@2", kept.as_str()]);

    let plan = order(&cluster, &format!("{kept},2g.10gb@0,2g.10gb@2"));
    wait::until(SOON, "the first steps", || {
        let now = layout(&cluster);
        now.iter().any(|name| name.starts_with("2g.10gb@")).then_some(())
    });
    cluster.agents[0].kill();
    cluster.agents[0].start();
    let ended = wait::until(Duration::from_secs(60), "the end of the plan", || {
        change(&cluster, &plan).filter(|change| change.ended_at.is_some())
    });
    // Completed, or reported with the instances that really exist.
    match ended.state.as_str() {
        "done" => assert_eq!(layout(&cluster), ["2g.10gb@0", "2g.10gb@2", kept.as_str()]),
        _ => {
            let detail = ended.detail.unwrap();
            assert!(detail.contains(&layout(&cluster).join(",")), "{detail}");
        }
    }
    let still = cluster.job(job).job;
    assert_eq!((still.state.as_str(), still.attempts), ("running", 1));
    assert_eq!(still.slice, slice);
}

#[test]
fn an_agent_without_permission_for_mig_starts_and_reports_what_it_may_do() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let sound = done(&cluster, &["doctor", "n1", "--all"]);
    assert!(sound.contains("may create and destroy instances"), "{sound}");

    cluster.agents[0].kill();
    faults(&cluster, "call=nvmlDeviceGetGpuInstances code=4\n");
    cluster.agents[0].start();
    cluster.wait_ready();

    let words = wait::until(SOON, "a line in the log", || {
        let output = cluster.agents[0].output();
        output.contains("may neither partition nor use GPU 0").then_some(output)
    });
    assert!(words.contains("mig_permission"), "{words}");
    let output = tessera(&cluster, &["doctor", "n1", "--json"]);
    assert_eq!(output.status.code(), Some(1), "something blocks");
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = reports[0]["findings"].as_array().unwrap();
    let permission = findings.iter().find(|f| f["check"] == "mig_permission").unwrap();
    assert_eq!(permission["level"], "blocks");
    assert!(permission["remedy"].as_str().unwrap().contains("root"), "{permission}");
    assert!(cluster.agents[0].is_running());

    // The same without a controller, and with a library that isn't there.
    let local = |library: &str| {
        Command::new(programs().path("tessera-agent"))
            .args(["doctor", "--json", "--nvml", library])
            .env("TESSERA_SIM_NODE", cluster.hardware(0))
            .output()
            .unwrap()
    };
    let report: Value =
        serde_json::from_slice(&local(programs().nvml.to_str().unwrap()).stdout).unwrap();
    let same = report["findings"].as_array().unwrap();
    assert!(same.iter().any(|f| f["check"] == "mig_permission" && f["level"] == "blocks"));
    let missing = local("/nowhere/libnvidia-ml.so.1");
    assert_eq!(missing.status.code(), Some(1));
    let text = String::from_utf8(missing.stdout).unwrap();
    assert!(text.contains("was not found"), "{text}");
}
