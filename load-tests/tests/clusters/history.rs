//! Recorded rounds of a real controller, decided again by the command.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;
use time::OffsetDateTime;

const GIB: u64 = 1 << 30;

fn simulate(cluster: &Cluster, words: &[&str]) -> Output {
    let url = cluster.url();
    let tessera = programs().path("tessera");
    Command::new(tessera).args(["--url", &url, "simulate"]).args(words).output().unwrap()
}

/// Decides the last hour again; returns the exit code and the output.
fn checked(cluster: &Cluster, policy: &str, more: &[&str]) -> (Option<i32>, Value) {
    let words = ["--since", "1h", "--check", "--json", "--policy", policy];
    let simulated = simulate(cluster, &[&words[..], more].concat());
    let check = serde_json::from_slice(&simulated.stdout);
    (simulated.status.code(), check.unwrap_or_else(|_| panic!("{simulated:?}")))
}

fn of(user: &str, gib: u64, text: &str) -> SubmitRequest {
    SubmitRequest { user: Some(user.into()), gpu_memory_bytes: Some(gib * GIB), ..script(text) }
}

/// A job of a task that runs often, and that can be moved.
fn movable(text: &str) -> SubmitRequest {
    SubmitRequest {
        task_key: Some("train".into()),
        checkpoint_signal: Some("USR1".into()),
        ..of("ada", 4, text)
    }
}

/// Jobs of all kinds: sizes, profiles, whole GPUs, priorities, tasks that can be migrated, and failures
/// that are tried again. Some can never run, and some are cancelled while they wait.
fn mixed(cluster: &Cluster) {
    cluster.wait_job(cluster.submit(&movable("true")).job_id, SOON, "succeeded");
    let mut jobs = Vec::new();
    let mut submit = |request: &SubmitRequest| jobs.push(cluster.submit(request).job_id);
    for gib in [3, 9, 18, 5, 4, 30, 2, 12] {
        submit(&of("ada", gib, "sleep 0.3"));
    }
    submit(&movable("sleep 0.5"));
    submit(&movable("sleep 0.2"));
    let bobs = SubmitRequest { gpu_memory_bytes: None, ..of("bob", 0, "sleep 0.2") };
    submit(&SubmitRequest { gpu_profile: Some("2g.10gb".into()), ..bobs.clone() });
    submit(&SubmitRequest { gpu_whole: true, ..bobs });
    submit(&SubmitRequest {
        priority: Some(1),
        time_limit_secs: Some(600),
        deadline: Some(OffsetDateTime::from_unix_timestamp(4_000_000_000).unwrap()),
        ..of("bob", 10, "sleep 0.2")
    });
    submit(&SubmitRequest { max_retries: Some(1), ..of("bob", 6, "exit 3") });
    for job in &jobs {
        cluster.wait_end(*job, 4 * SOON);
    }
}

fn replays(policy: &str) -> Cluster {
    let mut cluster =
        Plan::new().policy(policy).node("n1", "a100-40gb").node("n2", "a30-24gb").start();
    mixed(&cluster);
    // Another leader begins another chain. A job whose task is known is weighed if it is alone.
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    let last = cluster.submit(&movable("true")).job_id;
    cluster.wait_job(last, SOON, "succeeded");

    let (code, check) = checked(&cluster, "live", &[]);

    assert_eq!((code, &check["first_difference"]), (Some(0), &Value::Null), "{check}");
    assert_eq!(check["rounds"], check["equal"], "{check}");
    assert!(check["rounds"].as_u64() > Some(8), "{check}");
    assert!(check["decisions"].as_u64() > Some(15), "{check}");
    assert_eq!(check["decided_by"][0]["policy"], policy, "{check}");
    cluster
}

#[test]
fn rounds_of_scheme_b_are_decided_again_equally_and_static_decides_differently() {
    let cluster = replays("scheme-b");

    let (code, check) = checked(&cluster, "static", &[]);
    assert_eq!(code, Some(1), "{check}");
    let first = &check["first_difference"];
    assert!(first["recorded"].as_str().unwrap().starts_with("it starts on"), "{check}");
    let simulated = simulate(&cluster, &["--since", "1h", "--check", "--policy", "static"]);
    let simulated = String::from_utf8(simulated.stdout).unwrap();
    println!("{simulated}");
    assert!(simulated.contains("rounds differ; the first is round"), "{simulated}");
    assert!(
        simulated.contains("recorded: it starts on") && simulated.contains("now:      it"),
        "{simulated}"
    );

    let refused = |words: &[&str], code: i32, hint: &str| {
        let simulated = simulate(&cluster, words);
        let error = String::from_utf8(simulated.stderr).unwrap();
        assert_eq!(simulated.status.code(), Some(code), "{error}");
        assert!(error.contains(hint), "{error}");
    };
    refused(
        &["--since", "1h", "--check", "--policy", "miso"],
        2,
        "live (the policy that decided the rounds) or",
    );
    refused(&["--since", "0s", "--check", "--policy", "live"], 2, "is empty");
    let past = ["--since", "9d", "--until", "8d", "--check", "--policy", "live"];
    refused(&past, 1, "--keep-rounds");
    let set = ["--since", "1h", "--check", "--policy", "live", "--set", "thrift=1"];
    refused(&set, 2, "nothing can be set");
}

#[test]
fn rounds_of_tessera_are_decided_again_equally_and_another_setting_is_found() {
    let cluster = replays("tessera");
    // Two jobs wait for the same slice. The one with the better priority starts first, unless both
    // have waited for long.
    let gate = cluster.scratch().join("open");
    let until_open = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let holder = cluster.submit(&of("ada", 30, &until_open)).job_id;
    cluster.wait_job(holder, SOON, "running");
    let older = cluster.submit(&of("ada", 30, "true")).job_id;
    let better = SubmitRequest { priority: Some(1), ..of("ada", 30, "true") };
    let better = cluster.submit(&better).job_id;
    fs::write(&gate, "").unwrap();
    cluster.wait_job(better, SOON, "succeeded");
    cluster.wait_job(older, SOON, "succeeded");

    let (code, check) = checked(&cluster, "live", &["--set", "patience=0"]);

    assert_eq!(code, Some(1), "{check}");
    assert!(check["equal"].as_u64() < check["rounds"].as_u64(), "{check}");
    let (code, check) = checked(&cluster, "tessera", &[]);
    assert_eq!(code, Some(0), "its defaults are what decided: {check}");
}

#[test]
fn rounds_of_exclusive_are_decided_again_equally_and_old_rounds_are_removed() {
    let cluster = Plan::new()
        .policy("exclusive")
        .env("TESSERA_KEEP_ROUNDS", "1s")
        .node("n1", "a100-40gb")
        .start();
    let job = cluster.submit(&of("ada", 4, "true")).job_id;
    cluster.wait_job(job, SOON, "succeeded");

    let (code, check) = checked(&cluster, "live", &[]);
    assert_eq!((code, &check["rounds"]), (Some(0), &check["equal"]), "{check}");

    let mut cluster = cluster;
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    let job = cluster.submit(&of("ada", 4, "true")).job_id;
    cluster.wait_job(job, SOON, "succeeded");
    wait::until(SOON, "the first leader's rounds are removed", || {
        let page = cluster.call("GET", "/v1/placement-rounds", None).expect(200);
        let page: Value = page.json();
        let items = page["items"].as_array()?;
        let first = items.first()?;
        (first["epoch"].as_u64() > Some(1) && first["number"] == 0).then_some(())
    });
}

#[test]
fn a_controllers_history_is_simulated_under_other_policies_next_to_the_record() {
    let cluster = Plan::new().node("n1", "a100-40gb").node("n2", "a30-24gb").start();
    let refused = |words: &[&str], code: i32, hint: &str| {
        let simulated = simulate(&cluster, words);
        let error = String::from_utf8(simulated.stderr).unwrap();
        assert_eq!(simulated.status.code(), Some(code), "{error}");
        assert!(error.contains(hint), "{error}");
    };
    refused(&["--since", "1h", "--policy", "miso"], 1, "the controller has no jobs at all");
    refused(&["--since", "1h", "--policy", "live"], 2, "live is for --check");
    refused(&["--since", "1h", "--policy", "best"], 2, "oracle");
    mixed(&cluster);
    refused(&["--since", "9d", "--until", "8d", "--policy", "miso"], 1, "--keep-history");
    refused(
        &["--since", "1h", "--policy", "miso", "--user", "eve"],
        1,
        "no job was submitted by eve",
    );

    let saved = cluster.scratch().join("past.jsonl");
    let report = cluster.scratch().join("report");
    let (file, folder) = (saved.display().to_string(), report.display().to_string());
    let past = ["--since", "1h", "--policy", "scheme-b,miso", "--json"];
    let simulated =
        simulate(&cluster, &[&past[..], &["--save", &file, "--report", &folder]].concat());
    assert!(simulated.status.success(), "{simulated:?}");
    let simulated: Value = serde_json::from_slice(&simulated.stdout).unwrap();
    let again = ["--cluster", "a100-40gb,a30-24gb", "--policy", "scheme-b,miso", "--json"];
    let again = simulate(&cluster, &[&[file.as_str()], &again[..]].concat());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();

    assert_eq!(simulated["cluster"], "1xa100-40gb,1xa30-24gb");
    let policies: Vec<&str> = simulated["results"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|r| r["policy"].as_str())
        .collect();
    assert_eq!(policies, ["recorded", "scheme-b", "miso"]);
    let recorded = &simulated["results"][0];
    assert_eq!(recorded["jobs"], 15, "{recorded}");
    assert!(recorded["makespan_s"].as_f64() > Some(0.5), "{recorded}");
    assert!(recorded["reconfigurations"].as_u64() > Some(3), "{recorded}");
    assert_eq!(simulated["results"][1], again["results"][0], "the file is the same workload");
    assert_eq!(simulated["results"][2], again["results"][1], "the file is the same workload");
    let notes = simulated["notes"].to_string();
    assert!(notes.contains("1 jobs failed") && notes.contains("more than once"), "{notes}");
    assert!(notes.contains("1 jobs have time limits"), "{notes}");
    let mut results = simulated["results"].as_array().unwrap().iter();
    assert!(
        results.all(|result| result["deadlines"] == 1 && result["deadlines_missed"] == 0),
        "{simulated}"
    );
    let lines = std::fs::read_to_string(&saved).unwrap();
    assert_eq!(lines.matches("\"time_limit_s\":600.0").count(), 1, "{lines}");
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("Who was where under recorded"), "what happened is drawn, too");
    assert!(report.join("recorded.json").is_file());
    let one = ["--since", "1h", "--policy", "exclusive", "--user", "bob", "--json"];
    let one: Value = serde_json::from_slice(&simulate(&cluster, &one).stdout).unwrap();
    assert_eq!(one["results"][0]["jobs"], 4, "{one}");
    let table = simulate(&cluster, &["--since", "1h", "--policy", "miso"]);
    let table = String::from_utf8(table.stdout).unwrap();
    println!("{table}");
    assert!(table.contains("recorded") && table.contains("Note: "), "{table}");
}

#[test]
fn without_a_token_the_network_gives_no_history() {
    let cluster = Plan::new().start_without_agents_ready();
    cluster.wait_serving();
    let url = format!("http://{}", cluster.http());
    let words = ["--url", &url, "simulate", "--since", "1h", "--check", "--policy", "live"];

    let simulated = Command::new(programs().path("tessera")).args(words).output().unwrap();

    let error = String::from_utf8(simulated.stderr).unwrap();
    assert_eq!(simulated.status.code(), Some(1), "{error}");
    assert!(error.contains("token"), "{error}");
}
