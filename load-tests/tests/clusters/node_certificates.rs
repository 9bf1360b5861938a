//! Nodes join by a token, renew their certificates while jobs run, lose access by revocation, and
//! follow a new authority.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::{done, refused};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// Timeout for waits that depend on a certificate's lifetime.
const AFTER_A_WHILE: Duration = Duration::from_secs(120);

fn json(cluster: &Cluster, words: &[&str]) -> Value {
    let words = [&["--json"], words].concat();
    serde_json::from_str(&done(cluster, &words)).expect("JSON")
}

/// Invites a node, and returns its token.
fn invite(cluster: &Cluster, name: &str, valid: &str) -> String {
    let invited = json(cluster, &["node", "invite", name, "--valid", valid]);
    let token = invited["token"].as_str().expect("a token").to_owned();
    let authority = invited["authority"].as_str().expect("a fingerprint");
    assert!(token.ends_with(authority), "{invited}");
    assert!(invited["command"].as_str().is_some_and(|text| text.contains(&token)), "{invited}");
    token
}

fn join(cluster: &Cluster, token: &str, data: &Path, more: &[&str]) -> Output {
    Command::new(programs().path("tessera-agent"))
        .args(["join", token, "--controller", &cluster.quic().to_string(), "--data"])
        .arg(data)
        .args(more)
        .output()
        .expect("the agent runs")
}

#[track_caller]
fn joined(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn not_joined(output: &Output, because: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(because), "{text}");
}

/// An account of an agent's own, which needs no name here.
const AGENT: u32 = 64_010;

/// The certificates of a node: serial numbers and authorities, newest first.
fn certificates(cluster: &Cluster, node: &str) -> Vec<(String, String)> {
    let list = json(cluster, &["node", "certificates", node]);
    let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().expect("a list");
    items.iter().map(|item| (text(item, "serial"), text(item, "authority"))).collect()
}

fn state(cluster: &Cluster, node: &str) -> Option<String> {
    cluster.nodes().into_iter().find(|found| found.name == node).map(|found| found.state)
}

#[track_caller]
fn wait_available(cluster: &Cluster, node: &str) {
    wait::until(SOON, "the node is available", || {
        (state(cluster, node).as_deref() == Some("available")).then_some(())
    });
}

fn copy_folder(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// A job that runs until the file is there.
fn waits_for(marker: &Path) -> String {
    format!("while [ ! -e {} ]; do sleep 0.05; done", marker.display())
}

#[test]
fn root_joins_for_an_agent_with_its_own_account() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root becomes the agent's account");
        return;
    }
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    // Other accounts reach it, as they reach the data folder of a package.
    let machine = tempfile::tempdir().unwrap();
    fs::set_permissions(machine.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let data = machine.path().join("agent");
    fs::create_dir(&data).unwrap();
    chown(&data, Some(AGENT), Some(AGENT)).unwrap();

    joined(&join(&cluster, &invite(&cluster, "n9", "15m"), &data, &[]));

    let identity = data.join("identity");
    for file in ["", "key.pem", "cert.pem", "ca.pem", "controller"] {
        let found = identity.join(file).metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (AGENT, AGENT), "{file}");
    }
    // A folder of its account's that is a link leads root nowhere.
    let (trap, target) = (machine.path().join("trap"), machine.path().join("etc"));
    fs::create_dir(&trap).unwrap();
    fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&target, trap.join("identity")).unwrap();
    chown(&trap, Some(AGENT), Some(AGENT)).unwrap();
    not_joined(&join(&cluster, &invite(&cluster, "n8", "15m"), &trap, &[]), "ermission denied");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn a_machine_joins_only_by_a_token_and_only_once() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();
    cluster.agents[0].kill();
    let data = cluster.agent_data(0);
    fs::remove_dir_all(&data).unwrap();
    let token = invite(&cluster, "n9", "15m");

    let mut other = token.clone();
    let last = if other.pop() == Some('0') { '1' } else { '0' };
    other.push(last);
    not_joined(&join(&cluster, &other, &data, &[]), "is its authority the one in the token");
    not_joined(&join(&cluster, &token[..token.len() - 1], &data, &[]), "no whole token");
    joined(&join(&cluster, &token, &data, &[]));

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let identity = data.join("identity");
    assert_eq!(mode(&identity), 0o700);
    for file in ["key.pem", "cert.pem", "ca.pem"] {
        assert_eq!(mode(&identity.join(file)), 0o600, "{file}");
    }
    assert!(!identity.join("join.key").exists());
    not_joined(&join(&cluster, &token, &data, &[]), "--replace");
    let elsewhere = cluster.scratch().join("thief");
    not_joined(&join(&cluster, &token, &elsewhere, &[]), "another machine has used this token");
    assert!(!elsewhere.join("identity/cert.pem").exists());
    let late = invite(&cluster, "n8", "1s");
    thread::sleep(Duration::from_millis(1_200));
    not_joined(&join(&cluster, &late, &elsewhere, &[]), "this token has expired");

    // Its next start needs no setting for the controller's address.
    assert_eq!(
        fs::read_to_string(identity.join("controller")).unwrap().trim(),
        cluster.quic().to_string()
    );

    // It serves as the node of its invitation.
    cluster.agents[0].start();
    wait_available(&cluster, "n9");
    let job = cluster.submit(&script("true")).job_id;
    let ended = cluster.wait_job(job, SOON, "succeeded");
    assert_eq!(ended.job.node.as_deref(), Some("n9"));

    // All of it is in the audit log.
    let entries = wait::until(SOON, "the entries of joining", || {
        let page = json(&cluster, &["audit", "--limit", "50"]);
        let entries: Vec<(String, u64)> = page["items"]
            .as_array()?
            .iter()
            .filter(|entry| entry["action"] == "JOIN")
            .map(|entry| {
                let object = entry["object"].as_str().unwrap_or_default().to_owned();
                (object, entry["status"].as_u64().unwrap_or_default())
            })
            .collect();
        (entries.len() >= 3).then_some(entries)
    });
    let entry = |object: &str, status| (object.to_owned(), status);
    assert_eq!(entries, [entry("node n8", 403), entry("node n9", 403), entry("node n9", 201)]);
}

#[test]
fn several_machines_are_invited_by_one_command() {
    let cluster = Plan::new().start();

    let shown = done(&cluster, &["node", "invite", "n7", "n8"]);
    let listed = json(&cluster, &["node", "invite", "n7", "n8", "--valid", "2h"]);

    assert_eq!(shown.matches("tessera-agent join ").count(), 2, "{shown}");
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["node"]).collect();
    assert_eq!(names, ["n7", "n8"]);
}

#[test]
fn a_certificate_is_renewed_without_affecting_a_running_job() {
    let mut cluster =
        Plan::new().node("n1", "a30-24gb").env("TESSERA_NODE_CERTIFICATES", "30s").start();
    cluster.agents[0].kill();
    let data = cluster.agent_data(0);
    let token = invite(&cluster, "n1", "15m");
    joined(&join(&cluster, &token, &data, &["--replace"]));
    let first_ends = Instant::now() + Duration::from_secs(31);
    cluster.agents[0].start();
    wait_available(&cluster, "n1");
    let marker = cluster.scratch().join("go");
    let job = cluster.submit(&script(&waits_for(&marker))).job_id;
    let running = cluster.wait_job(job, SOON, "running");
    let held = |cluster: &Cluster| certificates(cluster, "n1").len();
    let before = held(&cluster);

    wait::until(AFTER_A_WHILE, "another certificate, and the end of the first one", || {
        (held(&cluster) > before && Instant::now() > first_ends).then_some(())
    });

    let output = cluster.agents[0].output();
    assert!(output.contains("the node's certificate was renewed"), "{output}");
    let begun = output.rfind("starting").unwrap_or_default();
    assert!(!output[begun..].contains("disconnected"), "one connection for all certificates");
    assert_eq!(state(&cluster, "n1").as_deref(), Some("available"));
    // The new one is on the disk.
    cluster.agents[0].kill();
    cluster.agents[0].start();
    wait_available(&cluster, "n1");
    fs::write(&marker, "").unwrap();
    let ended = cluster.wait_job(job, SOON, "succeeded");
    assert_eq!(ended.attempt_list.len(), running.attempt_list.len());
}

#[test]
fn a_revoked_node_is_disconnected_and_refused_until_it_is_invited_again() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").node("n2", "a30-24gb").start();
    let stolen = cluster.scratch().join("stolen");
    let identity = cluster.agent_data(0).join("identity");
    copy_folder(&identity, &stolen);

    let text = done(&cluster, &["node", "revoke", "n1"]);

    assert!(text.contains("n1 is revoked"), "{text}");
    wait::until(SOON, "the connection is closed with its reason", || {
        cluster.agents[0].output().contains("certificate was revoked").then_some(())
    });
    wait::until(SOON, "the node is gone, and the other one stays", || {
        let gone = state(&cluster, "n1").as_deref() != Some("available");
        (gone && state(&cluster, "n2").as_deref() == Some("available")).then_some(())
    });
    // Neither a restart of the agent nor one of the controller helps.
    cluster.agents[0].kill();
    cluster.controller.stop();
    cluster.controller.start();
    cluster.wait_serving();
    wait_available(&cluster, "n2");
    cluster.agents[0].start();
    wait::until(SOON, "the controller refuses it", || {
        cluster.controller.output().contains("the certificate of n1 was revoked").then_some(())
    });
    assert_ne!(state(&cluster, "n1").as_deref(), Some("available"));
    cluster.agents[0].kill();

    let token = invite(&cluster, "n1", "15m");
    joined(&join(&cluster, &token, &cluster.agent_data(0), &["--replace"]));
    cluster.agents[0].start();
    wait_available(&cluster, "n1");

    // A copy that was stolen before is useless after that, too.
    cluster.agents[0].kill();
    wait::until(SOON, "the node is disconnected", || {
        (state(&cluster, "n1").as_deref() != Some("available")).then_some(())
    });
    copy_folder(&stolen, &identity);
    let refusals = |cluster: &Cluster| {
        cluster.controller.output().matches("the certificate of n1 was revoked").count()
    };
    let before = refusals(&cluster);
    cluster.agents[0].start();
    wait::until(SOON, "the stolen one is refused", || (refusals(&cluster) > before).then_some(()));
    let unknown = refused(&cluster, &["node", "revoke", "n77"]);
    assert!(unknown.contains("there is no node n77"), "{unknown}");
}

#[test]
fn the_authority_is_replaced_while_jobs_run() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").node("n2", "a30-24gb").start();
    let marker = cluster.scratch().join("go");
    let jobs: Vec<u64> =
        (0..2).map(|_| cluster.submit(&script(&waits_for(&marker))).job_id).collect();
    for job in &jobs {
        cluster.wait_job(*job, SOON, "running");
    }
    let old = cluster.scratch().join("old");
    copy_folder(&cluster.agent_data(0).join("identity"), &old);
    // One node is absent meanwhile, and knows only the old authority.
    cluster.agents[1].kill();

    let rotated = json(&cluster, &["authority", "rotate", "--trust-former", "60s"]);

    assert_eq!(rotated["certificates"].as_str().unwrap().matches("BEGIN").count(), 2);
    assert!(rotated["former"]["fingerprint"].is_string(), "{rotated}");
    let again = refused(&cluster, &["authority", "rotate"]);
    assert!(again.contains("still trusted"), "{again}");
    let new_one = |cluster: &Cluster, node: &str| {
        let certificates = certificates(cluster, node);
        let newest = certificates.first().map(|(_, authority)| authority.clone());
        newest.filter(|newest| certificates.iter().any(|(_, authority)| authority != newest))
    };
    let first =
        wait::until(SOON, "the connected node has a new certificate", || new_one(&cluster, "n1"));
    // Also over a restart of the controller.
    cluster.controller.stop();
    cluster.controller.start();
    cluster.wait_serving();
    cluster.agents[1].start();
    let second =
        wait::until(SOON, "the node that was away has one, too", || new_one(&cluster, "n2"));
    assert_eq!(first, second);

    wait::until(AFTER_A_WHILE, "the old authority is no longer trusted", || {
        json(&cluster, &["authority", "show"])["former"].is_null().then_some(())
    });
    // Both connect with their current certificates, and the jobs never ended.
    for agent in &mut cluster.agents {
        agent.kill();
        agent.start();
    }
    wait_available(&cluster, "n1");
    wait_available(&cluster, "n2");
    fs::write(&marker, "").unwrap();
    for job in &jobs {
        assert_eq!(cluster.wait_job(*job, SOON, "succeeded").attempt_list.len(), 1);
    }
    let trusted = fs::read_to_string(cluster.agent_data(0).join("identity/ca.pem")).unwrap();
    assert_eq!(trusted.matches("BEGIN").count(), 1, "the former one is forgotten");

    // A certificate of the old authority is refused.
    cluster.agents[0].kill();
    wait::until(SOON, "the node is disconnected", || {
        (state(&cluster, "n1").as_deref() != Some("available")).then_some(())
    });
    copy_folder(&old, &cluster.agent_data(0).join("identity"));
    let output = cluster.agents[0].output().len();
    cluster.agents[0].start();
    wait::until(SOON, "it can't connect", || {
        cluster.agents[0].output()[output..].contains("can't be reached").then_some(())
    });
    assert_ne!(state(&cluster, "n1").as_deref(), Some("available"));
}
