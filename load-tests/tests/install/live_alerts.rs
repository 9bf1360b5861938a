//! Each alert fires in a real Prometheus that scrapes a running cluster, once its condition is true there.
//!
//! The rules are those of the package, but their conditions have to hold for a shorter time.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Database, Plan, SOON, script};
use tessera_load_tests::console::done;
use tessera_load_tests::daemon::Daemon;
use tessera_load_tests::programs::programs;
use tessera_load_tests::{http, learning, ports, wait};

use super::tools::{have, long, read, root, run, skip};

/// How long an alert may take to fire after its condition holds: rates and counters need scrapes.
const FIRES_WITHIN: Duration = Duration::from_secs(45);

/// How long an agent may take until it calls an instance stuck.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(120);

/// A cluster with one node, and a Prometheus that evaluates the rules twice a second.
struct Rig {
    cluster: Cluster,
    prometheus: Daemon,
    address: SocketAddr,
    fired: BTreeSet<String>,
    folder: TempDir,
}

impl Rig {
    fn new() -> Self {
        let agent = ports::free();
        let cluster = Plan::new()
            .node("n1", "a100-40gb")
            .lease_secs(8)
            // Certificates that expire too soon for the alert, and not before this test's end.
            .env("TESSERA_NODE_CERTIFICATES", "1d")
            .env("TESSERA_LEARN_EVERY", "1")
            .database(Database::External)
            .env("TESSERA_AGENT_HTTP", agent.to_string())
            .start();
        let folder = tempfile::tempdir().unwrap();
        let address = ports::free();
        let token = folder.path().join("token");
        fs::write(&token, cluster.token_for("prometheus", "metrics")).unwrap();
        let rules = folder.path().join("rules.yml");
        fs::write(&rules, hurried(&read("packaging/observe/prometheus/rules/tessera.yml")))
            .unwrap();
        let settings = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n\
             rule_files: [{}]\n\
             scrape_configs:\n\
             - job_name: tessera-controller\n  authorization: {{credentials_file: {}}}\n  \
             static_configs: [{{targets: [\"{}\"]}}]\n\
             - job_name: tessera-agent\n  authorization: {{credentials_file: {}}}\n  \
             static_configs: [{{targets: [\"{agent}\"]}}]\n",
            rules.display(),
            token.display(),
            cluster.http(),
            cluster.agent_data(0).join("metrics-token").display(),
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, settings).unwrap();
        let data = folder.path().join("data").display().to_string();
        let mut prometheus = Daemon::new("prometheus", "/usr/bin/prometheus".into(), folder.path())
            .args(["--config.file".to_owned(), file.display().to_string()])
            .args(["--storage.tsdb.path".to_owned(), data])
            .args(["--web.listen-address".to_owned(), address.to_string()]);
        prometheus.start();
        Self { cluster, prometheus, address, fired: BTreeSet::new(), folder }
    }

    fn fires(&mut self, alert: &str) {
        fires(self.address, &mut self.fired, alert);
    }

    /// A scrape may take as long as a controller takes to answer whose database does not.
    fn scrape_patiently(&mut self) {
        let file = self.folder.path().join("prometheus.yml");
        let settings = fs::read_to_string(&file).unwrap();
        let patient = settings.replace("scrape_interval: 500ms", "scrape_interval: 5s");
        fs::write(&file, patient).unwrap();
        self.prometheus.stop();
        self.prometheus.start();
    }

    fn faults(&self, list: &str) {
        let folder = self.cluster.hardware(0);
        fs::write(folder.join("faults.new"), list).unwrap();
        fs::rename(folder.join("faults.new"), folder.join("faults")).unwrap();
    }

    fn submit(&self, profile: &str, line: &str) -> u64 {
        let request = SubmitRequest { gpu_profile: Some(profile.into()), ..script(line) };
        self.cluster.submit(&request).job_id
    }

    fn cancel_all(&self) {
        done(&self.cluster, &["cancel", "--state", "active"]);
        wait::until(SOON, "all jobs end", || {
            let jobs = self.cluster.all_jobs();
            let is_over = |state: &str| tessera_load_tests::cluster::is_final(state);
            jobs.iter().all(|job| is_over(&job.state)).then_some(())
        });
    }
}

/// Waits until an alert fires, and adds it to those that did.
fn fires(prometheus: SocketAddr, fired: &mut BTreeSet<String>, alert: &str) {
    let found = wait::within_time(FIRES_WITHIN, || {
        let path = "/api/v1/alerts";
        // Prometheus is still starting, unless the status is 200.
        let answer = http::request(prometheus, "GET", path, &[], None).ok()?;
        let answer: Value = (answer.status == 200).then(|| answer.json())?;
        let alerts = answer["data"]["alerts"].as_array()?.clone();
        let is_it =
            |found: &Value| found["labels"]["alertname"] == alert && found["state"] == "firing";
        alerts.iter().find(|found| is_it(found)).cloned()
    });
    let Some(found) = found else {
        // The others are tried, too, so that the last message names all alerts that did not fire.
        eprintln!("{alert} did not fire");
        return;
    };
    let summary = found["annotations"]["summary"].as_str().unwrap();
    assert!(!summary.contains("{{") && !summary.contains("error"), "{summary}");
    eprintln!("{alert}: {summary}");
    fired.insert(alert.to_owned());
}

/// Returns the rules with two seconds in place of each time that a condition has to hold.
fn hurried(rules: &str) -> String {
    let lines = rules.lines().map(|line| match line.trim_start().starts_with("for: ") {
        true => "        for: 2s".to_owned(),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn alerts_fire_on_a_running_cluster_whose_condition_is_true() {
    if !long("conditions of alerts are made true one after the other")
        || !have("prometheus", "alerts do not fire (Debian package prometheus)")
    {
        return;
    }
    let mut rig = Rig::new();

    a_model_becomes_inaccurate(&mut rig);
    the_database_is_slow(&mut rig);
    a_certificate_expires(&mut rig);
    little_is_reachable(&mut rig);
    mps_fails_again_and_again(&mut rig);
    an_instance_is_stuck(&mut rig);
    a_gpu_is_quarantined(&mut rig);
    predictions_drift(&mut rig);
    a_layout_plan_is_stuck(&mut rig);
    the_disk_fills(&mut rig);
    a_node_falls_silent(&mut rig);
    the_lease_is_not_renewed(&mut rig);
    the_database_is_gone(&mut rig);
    rig.cluster.controller.kill();
    rig.fires("TesseraControllerDown");
    rig.prometheus.stop();

    let rules = read("packaging/observe/prometheus/rules/tessera.yml");
    let all = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let left: BTreeSet<_> = all.filter(|alert| !rig.fired.contains(*alert)).collect();
    // A small disk is made by root only.
    let excepted = match rustix::process::geteuid().is_root() {
        true => BTreeSet::new(),
        false => BTreeSet::from(["TesseraDiskAlmostFull"]),
    };
    assert_eq!(left, excepted, "these did not fire");
}

/// Jobs take twice as long as a model predicts that was learned from a history.
fn a_model_becomes_inaccurate(rig: &mut Rig) {
    let first = rig.cluster.submit(&learning::seed_task()).job_id;
    rig.cluster.wait_job(first, SOON, "succeeded");
    learning::add_runs_of_slices(rig.cluster.database.as_ref().unwrap());
    // A leader reads the history when it begins.
    rig.cluster.controller.kill();
    rig.cluster.controller.start();
    rig.cluster.wait_ready();
    wait::until(SOON, "a model is learned", || {
        let predictions: Value =
            rig.cluster.call("GET", "/v1/predictions", None).expect(200).json();
        (predictions["model"]["trusted"] == true).then_some(())
    });
    let late = (1..=4).map(|number| rig.cluster.submit(&learning::late_task(number)).job_id);
    for job in late.collect::<Vec<_>>() {
        rig.cluster.wait_job(job, FIRES_WITHIN, "succeeded");
    }
    rig.fires("TesseraPredictorNotTrusted");
}

/// Another program locks the row of the lease again and again.
fn the_database_is_slow(rig: &mut Rig) {
    let database = rig.cluster.database.as_ref().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            database.sql(
                "DO $$ BEGIN
                     FOR i IN 1..60 LOOP
                         PERFORM FROM leader FOR UPDATE;
                         PERFORM pg_sleep(0.6);
                         COMMIT;
                     END LOOP;
                 END $$",
            );
        });
        fires(rig.address, &mut rig.fired, "TesseraDatabaseSlow");
    });
}

/// The node joins again, and gets a certificate for one day.
fn a_certificate_expires(rig: &mut Rig) {
    let invited = done(&rig.cluster, &["--json", "node", "invite", "n1"]);
    let invited: Value = serde_json::from_str(&invited).unwrap();
    rig.cluster.agents[0].kill();
    let mut join = Command::new(programs().path("tessera-agent"));
    join.args(["join", invited["token"].as_str().unwrap(), "--replace", "--controller"])
        .arg(rig.cluster.quic().to_string())
        .arg("--data")
        .arg(rig.cluster.agent_data(0));
    run(&mut join);
    rig.cluster.agents[0].start();
    rig.cluster.wait_ready();
    rig.fires("TesseraCertificateExpires");
}

/// Clients of MPS touch memory that isn't there.
fn mps_fails_again_and_again(rig: &mut Rig) {
    let program = programs().path("tessera-sim-client").display().to_string();
    for round in 0..4 {
        let fault = rig.cluster.scratch().join(format!("fault-{round}")).display().to_string();
        let request = SubmitRequest {
            share: Some("mps".into()),
            sm_percent: Some(50),
            gpu_memory_bytes: Some(4 << 30),
            ..script(&format!("exec {program} --mps --fault-when {fault}"))
        };
        let job = rig.cluster.submit(&request).job_id;
        wait::until(FIRES_WITHIN, "the job is a client of MPS", || {
            let is_running = rig.cluster.job(job).job.state == "running";
            (is_running && rig.cluster.logs(job).contains("shares ")).then_some(())
        });
        fs::write(&fault, "").unwrap();
        rig.cluster.wait_job(job, FIRES_WITHIN, "failed");
    }
    rig.fires("TesseraMpsRestartLoop");
}

/// Something holds an instance open, so that the driver refuses to destroy it.
fn an_instance_is_stuck(rig: &mut Rig) {
    done(&rig.cluster, &["gpus", "layout", "apply", "n1:0", "1g.5gb"]);
    rig.faults("call=nvmlGpuInstanceDestroy code=19\n");
    done(&rig.cluster, &["gpus", "layout", "apply", "n1:0", "empty", "--no-wait"]);
    wait::until(GIVES_UP_WITHIN, "the agent tried for a minute", || {
        let gpus = rig.cluster.gpus();
        let mut instances = gpus.items.iter().flat_map(|gpu| &gpu.instances);
        instances.any(|instance| instance.state == "stuck").then_some(())
    });
    rig.fires("TesseraInstanceStuck");
    rig.faults("");
    done(&rig.cluster, &["clear", "n1:0"]);
}

fn little_is_reachable(rig: &mut Rig) {
    for _ in 0..8 {
        rig.submit("1g.5gb", "sleep 600");
    }
    rig.fires("TesseraReachabilityLow");
    rig.cancel_all();
}

fn a_gpu_is_quarantined(rig: &mut Rig) {
    done(&rig.cluster, &["quarantine", "n1:0", "--reason", "for the alert"]);
    rig.fires("TesseraGpuQuarantined");
    done(&rig.cluster, &["clear", "n1:0"]);
}

/// Tasks whose first runs are short, and all others long.
fn predictions_drift(rig: &mut Rig) {
    let run = |task: usize, line: &str| {
        let key = format!("drift-{task}");
        let request = SubmitRequest {
            task_key: Some(key),
            gpu_profile: Some("1g.5gb".into()),
            ..script(line)
        };
        rig.cluster.submit(&request).job_id
    };
    let wait_all = |jobs: Vec<u64>| {
        for job in jobs {
            rig.cluster.wait_job(job, FIRES_WITHIN, "succeeded");
        }
    };
    wait_all((0..60).map(|job| run(job % 30, "sleep 0.02")).collect());
    wait_all((0..90).map(|job| run(job % 30, "sleep 0.7")).collect());
    rig.fires("TesseraPredictionDrift");
}

fn a_layout_plan_is_stuck(rig: &mut Rig) {
    rig.faults("call=nvmlDeviceCreateGpuInstanceWithPlacement delay_ms=15000 times=1\n");
    let job = rig.submit("3g.20gb", "true");
    rig.fires("TesseraRepartitionStuck");
    rig.cluster.wait_job(job, FIRES_WITHIN, "succeeded");
    rig.faults("");
}

/// A small disk in place of the data folder's, nearly full.
fn the_disk_fills(rig: &mut Rig) {
    let data = rig.cluster.controller_data();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=20m", "tmpfs"]).arg(&data).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip("this account may not mount a disk: TesseraDiskAlmostFull does not fire");
        return;
    }
    fs::write(data.join("filler"), vec![1; 19 << 20]).unwrap();
    rig.fires("TesseraDiskAlmostFull");
    assert!(Command::new("umount").arg(&data).status().unwrap().success());
}

fn a_node_falls_silent(rig: &mut Rig) {
    rig.cluster.agents[0].kill();
    rig.fires("TesseraNodeSilent");
    rig.fires("TesseraNodesLost");
}

/// The database refuses to write, as after a wrong failover.
fn the_lease_is_not_renewed(rig: &mut Rig) {
    let database = rig.cluster.database.as_ref().unwrap();
    for statement in
        ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"]
    {
        database.sql(statement);
    }
    rig.fires("TesseraLeaseNotRenewed");
}

fn the_database_is_gone(rig: &mut Rig) {
    rig.scrape_patiently();
    rig.cluster.database.as_mut().unwrap().kill();
    rig.fires("TesseraNotReady");
}

#[test]
fn a_shorter_time_is_all_that_differs_from_the_rules_of_the_package() {
    let rules = fs::read_to_string(root().join("packaging/observe/prometheus/rules/tessera.yml"));
    let rules = rules.unwrap();

    let hurried = hurried(&rules);

    let differ = rules.lines().zip(hurried.lines()).filter(|(one, other)| one != other);
    assert!(differ.clone().count() > 10);
    assert!(differ.into_iter().all(|(one, _)| one.trim().starts_with("for: ")));
}
