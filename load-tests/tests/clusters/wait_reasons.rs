//! Why a job waits, in all the places that state it.

use std::process::Command;
use std::time::Duration;

use tessera_api_types::{GangRequest, JobPage, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// Runs a program of the command against a cluster, and returns what it prints.
fn printed(cluster: &Cluster, program: &str, words: &[&str]) -> String {
    let links = cluster.scratch().join("links");
    if !links.exists() {
        let links = links.display().to_string();
        let mut make = Command::new(programs().path("tessera"));
        assert!(make.args(["slurm-links", &links]).output().unwrap().status.success());
    }
    let path = match program {
        "tessera" => programs().path("tessera").clone(),
        link => links.join(link),
    };
    let mut called = Command::new(path);
    called.args(words).env("TESSERA_URL", cluster.url()).env("TESSERA_TOKEN", cluster.token());
    let output = called.output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until a job has this reason, and checks that every place states it.
fn check_reason(cluster: &Cluster, job: u64, reason: &str, of_slurm: &str) {
    let in_queue = match reason {
        "node_unavailable" => "NodeUnavailable",
        _ => of_slurm,
    };
    let shown = || cluster.job(job).job.reason;
    wait::until(Duration::from_secs(60), &format!("reason {reason}, not {:?}", shown()), || {
        (shown().as_deref() == Some(reason)).then_some(())
    });
    let number = job.to_string();
    let listed: JobPage = cluster.call("GET", "/v1/jobs", None).expect(200).json();
    let own = listed.items.iter().find(|item| item.id == job).unwrap();
    assert_eq!(own.reason.as_deref(), Some(reason), "GET /v1/jobs");
    let explained = cluster.explain(job);
    assert_eq!(explained.reason.as_deref(), Some(reason), "{explained:?}");
    let queue = printed(cluster, "tessera", &["queue"]);
    // A gang is one line for all of its members.
    let is_own = |line: &&str| {
        let first = line.split_whitespace().next().unwrap_or_default();
        first.split('_').next() == Some(number.as_str())
    };
    let line = queue.lines().find(is_own);
    assert!(
        line.is_some_and(|line| line.contains(&format!("({in_queue})"))),
        "tessera queue: {queue}"
    );
    // A long list has the reasons of the leader's memory, and named jobs those of the database.
    let all = printed(cluster, "squeue", &["-h", "-r", "-o", "%i %r %R"]);
    let expected = format!("{number} {of_slurm} ({of_slurm})");
    assert!(all.lines().any(|line| line == expected), "squeue: {all}");
    let named = printed(cluster, "squeue", &["-h", "-r", "-o", "%i %r %R", "-j", &number]);
    assert_eq!(named.trim(), expected);
}

#[test]
fn a_job_behind_full_gpus_waits_for_resources_in_every_place_that_states_reasons() {
    let cluster = Plan::new().whole_gpu_node("n1", "a30-24gb").start();
    let whole = SubmitRequest { gpu_whole: true, ..command(["sleep", "600"]) };
    let first = cluster.submit(&whole).job_id;
    cluster.wait_job(first, SOON, "running");

    let second = cluster.submit(&whole).job_id;

    check_reason(&cluster, second, "resources", "Resources");
    cluster.act(first, "cancel").expect(200);
    cluster.wait_job(second, SOON, "running");
}

#[test]
fn a_job_and_a_gang_behind_full_gpus_wait_for_resources_while_another_node_is_lost() {
    let mut cluster = Plan::new()
        .whole_gpu_node("n1", "a30-24gb,a30-24gb")
        .whole_gpu_node("n2", "a30-24gb")
        .start();
    let whole = SubmitRequest { gpu_whole: true, ..command(["sleep", "600"]) };
    let running: Vec<u64> = (0..3).map(|_| cluster.submit(&whole).job_id).collect();
    for job in &running {
        cluster.wait_job(*job, SOON, "running");
    }
    let is_there = |job: &&u64| cluster.job(**job).job.node.as_deref() == Some("n2");
    let lost = *running.iter().find(is_there).unwrap();
    cluster.act(lost, "cancel").expect(200);
    cluster.wait_job(lost, SOON, "cancelled");
    cluster.agents[1].kill();
    wait::until(Duration::from_secs(60), "the loss of n2", || {
        cluster
            .nodes()
            .iter()
            .any(|node| node.name == "n2" && node.state != "available")
            .then_some(())
    });

    let one = cluster.submit(&whole).job_id;
    check_reason(&cluster, one, "resources", "Resources");
    cluster.act(one, "cancel").expect(200);
    let gang = Some(GangRequest { nodes: 1, gpus_per_node: 2 });
    let pair = SubmitRequest { gang, ..whole.clone() };
    let pair = cluster.submit(&pair).job_id;
    check_reason(&cluster, pair, "resources", "Resources");

    // Once the other node is the only one that could hold it, that is the reason.
    cluster.act(pair, "cancel").expect(200);
    let there = SubmitRequest { nodelist: Some("n2".to_owned()), ..whole };
    let there = cluster.submit(&there).job_id;
    check_reason(&cluster, there, "node_unavailable", "ReqNodeNotAvail");
}
