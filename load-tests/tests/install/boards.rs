//! The Grafana boards: they satisfy the required parts of its schema, their metrics exist, and a real
//! Prometheus answers their queries.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Plan, SOON, command, script};
use tessera_load_tests::daemon::Daemon;
use tessera_load_tests::programs::programs;
use tessera_load_tests::recordings::player;
use tessera_load_tests::{console, http, ports, wait};

use super::tools::{have, known_metrics, metrics_in, read, root, run, skip, text};

const BOARDS: [&str; 6] = [
    "tessera-cluster",
    "tessera-control-plane",
    "tessera-job",
    "tessera-layout",
    "tessera-predictions",
    "tessera-queue",
];
/// Types of panels that every Grafana from 9 on has.
const PANELS: [&str; 3] = ["stat", "table", "timeseries"];

fn boards() -> Vec<(String, Value)> {
    let folder = root().join("packaging/observe/grafana/boards");
    let mut boards: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let board = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path.file_stem().unwrap().to_string_lossy().into_owned(), board)
        })
        .collect();
    boards.sort_by(|one, other| one.0.cmp(&other.0));
    boards
}

/// Returns every query of a board.
pub fn queries(board: &Value) -> Vec<String> {
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Returns every query of every board.
pub fn all_queries() -> Vec<(String, String)> {
    let queries_of = |(name, board): &(String, Value)| -> Vec<_> {
        queries(board).into_iter().map(|query| (name.clone(), query)).collect()
    };
    boards().iter().flat_map(queries_of).collect()
}

#[test]
fn every_board_has_the_form_that_grafana_insists_on() {
    let names: Vec<_> = boards().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, BOARDS);
    for (name, board) in boards() {
        assert_eq!(board["uid"], name.as_str(), "the address of a board is its file's name");
        assert!(board["schemaVersion"].as_u64().unwrap() >= 36, "{name}");
        for field in ["title", "description"] {
            assert!(board[field].as_str().is_some_and(|text| !text.is_empty()), "{name} {field}");
        }
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in board["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: {title} has another's id");
            assert!(PANELS.contains(&panel["type"].as_str().unwrap()), "{name}: {title}");
            assert!(panel["description"].as_str().is_some_and(|text| text.len() > 5), "{title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}: {title}");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{name}: {title} is wider than the board");
            for y in at("y")..at("y") + at("h") {
                for x in at("x")..at("x") + at("w") {
                    assert!(taken.insert((x, y)), "{name}: {title} covers another panel");
                }
            }
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{name}: {title}");
            let refs: BTreeSet<_> = targets.iter().map(|t| t["refId"].as_str().unwrap()).collect();
            assert_eq!(refs.len(), targets.len(), "{name}: {title}");
        }
    }
}

#[test]
fn grafanas_own_schema_knows_every_field_of_the_boards() {
    let python = std::env::var("TESSERA_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let import = ["-c", "import grafana_foundation_sdk"];
    let found = Command::new(&python).args(import).output();
    if !found.is_ok_and(|output| output.status.success()) {
        skip("boards are not compared with Grafana's schema (PyPI package grafana-foundation-sdk)");
        return;
    }
    let check = root().join("packaging/observe/check-boards");
    let folder = root().join("packaging/observe/grafana/boards");
    let files = BOARDS.map(|name| folder.join(format!("{name}.json")));
    run(Command::new(&python).arg(&check).args(&files));

    // A field that Grafana does not know must be found.
    let broken = tempfile::NamedTempFile::new().unwrap();
    let board = fs::read_to_string(&files[0]).unwrap();
    fs::write(broken.path(), board.replacen("\"title\"", "\"titel\"", 1)).unwrap();
    let checked = Command::new(&python).arg(&check).arg(broken.path()).output().unwrap();
    assert!(!checked.status.success() && text(&checked).contains("titel"));
}

#[test]
fn every_metric_in_a_board_exists_and_is_documented() {
    let known = known_metrics();
    let page = metrics_in(&read("docs/metrics.md"));
    for (board, query) in all_queries() {
        for metric in metrics_in(&query) {
            assert!(known.contains(&metric), "{board}: {metric} in {query}");
            assert!(page.contains(&metric), "{metric} is not in docs/metrics.md");
        }
    }
}

#[test]
fn every_metric_of_the_code_is_documented() {
    let page = metrics_in(&read("docs/metrics.md"));

    let missing: Vec<_> = known_metrics().difference(&page).cloned().collect();

    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
}

#[test]
fn the_provisioned_folder_is_the_one_that_the_package_installs() {
    let provider = read("packaging/observe/grafana/provisioning/dashboards/tessera.yaml");
    let build = read("packaging/build");

    assert!(provider.contains("path: /usr/share/tessera/grafana/boards"));
    assert!(build.contains("$tree/usr/share/tessera/"));
}

/// How long it may take until every query has data.
const DATA_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_real_prometheus_that_scrapes_a_running_cluster_answers_every_panel() {
    if !have("prometheus", "queries of boards are not run (Debian package prometheus)") {
        return;
    }
    let agent = ports::free();
    let cluster =
        Plan::new().node("n1", "a100-40gb").env("TESSERA_AGENT_HTTP", agent.to_string()).start();
    let folder = tempfile::tempdir().unwrap();
    let listens = ports::free();
    let controller = cluster.http();
    let token = folder.path().join("token");
    fs::write(&token, cluster.token_for("prometheus", "metrics")).unwrap();
    let settings = format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n\
         rule_files: [{}]\n\
         scrape_configs:\n\
         - job_name: tessera-controller\n  authorization: {{credentials_file: {}}}\n  \
         static_configs: [{{targets: [\"{controller}\"]}}]\n\
         - job_name: tessera-agent\n  authorization: {{credentials_file: {}}}\n  \
         static_configs: [{{targets: [\"{agent}\"]}}]\n",
        root().join("packaging/observe/prometheus/rules/tessera.yml").display(),
        token.display(),
        cluster.agent_data(0).join("metrics-token").display(),
    );
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, settings).unwrap();
    let mut prometheus = Daemon::new("prometheus", "/usr/bin/prometheus".into(), folder.path())
        .args(["--config.file".to_owned(), file.display().to_string()])
        .args(["--storage.tsdb.path".to_owned(), folder.path().join("data").display().to_string()])
        .args(["--web.listen-address".to_owned(), listens.to_string()]);
    prometheus.start();
    for _ in 0..3 {
        let job = cluster.submit(&script("sleep 0.3")).job_id;
        cluster.wait_job(job, SOON, "succeeded");
    }

    // Two jobs share a slice kernel by kernel, and one holds memory of its own slice.
    let step = "iterations 100000\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
    let piece = "iterations 1000000\nkernel piece dur=1ms\nrun piece 8x1x1/128x1x1\nsync\n";
    for (name, priority, steps) in [("high", 0, step), ("low", 7, piece)] {
        cluster.submit(&player(&cluster, name, priority, steps));
    }
    let holder = programs().path("tessera-sim-client").display().to_string();
    let memory = (1_u64 << 30).to_string();
    let held = SubmitRequest {
        gpu_memory_bytes: Some(2 << 30),
        ..command([holder.as_str(), "--memory-bytes", &memory, "--load-percent", "50"])
    };
    cluster.submit(&held);

    // Actions of operators have series from the first one on.
    console::done(&cluster, &["drain", "n1", "--reason", "to be counted"]);
    console::done(&cluster, &["undrain", "n1"]);

    let query_of = |query: &str| -> Option<Value> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?query={query}");
        let answer: Value = http::request(listens, "GET", &path, &[], None).ok()?.json();
        assert_eq!(answer["status"], "success", "{answer}");
        Some(answer["data"]["result"].clone())
    };
    // Every variable of a board has all of its values.
    let mut without_data: BTreeSet<_> = all_queries()
        .into_iter()
        .map(|(board, query)| (board, query.replace("$node", ".*").replace("$gpu", ".*")))
        .collect();
    // Rates need two scrapes, and some figures the first minute of a cluster.
    wait::within_time(DATA_WITHIN, || {
        without_data.retain(|(_, query)| {
            let found = query_of(query);
            found.is_none_or(|found| found.as_array().is_none_or(Vec::is_empty))
        });
        without_data.is_empty().then_some(())
    });
    let energy = query_of("tessera_gpu_energy_joules_total").unwrap();
    prometheus.stop();

    assert!(without_data.is_empty(), "no data: {without_data:#?}");
    assert!(energy.as_array().unwrap().len() >= 6, "both daemons show energy: {energy}");
}

#[test]
fn promtool_accepts_the_metrics_of_both_daemons() {
    if !have("promtool", "metrics are not checked (Debian package prometheus)") {
        return;
    }
    let agent = ports::free();
    let cluster =
        Plan::new().node("n1", "a100-40gb").env("TESSERA_AGENT_HTTP", agent.to_string()).start();
    let job = cluster.submit(&script("true")).job_id;
    cluster.wait_job(job, SOON, "succeeded");

    let token = cluster.token_for("prometheus", "metrics");
    let of_agent = fs::read_to_string(cluster.agent_data(0).join("metrics-token")).unwrap();
    for (address, token) in [(cluster.http(), token.as_str()), (agent, of_agent.trim())] {
        let bearer = format!("Bearer {token}");
        let proof = [("authorization", bearer.as_str())];
        let metrics =
            http::request(address, "GET", "/metrics", &proof, None).unwrap().expect(200).text();
        assert!(!metrics.contains("energy_joules_total gauge"), "energy is counted");
        let mut check = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        check.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
        let checked = check.wait_with_output().unwrap();
        assert!(checked.status.success(), "{address}: {}", text(&checked));
    }
}
