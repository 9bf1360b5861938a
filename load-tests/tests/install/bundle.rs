//! `tessera support-bundle`: what it has, and what it must not have.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tessera_load_tests::cluster::{Plan, SOON, script};
use tessera_load_tests::programs::programs;

use super::tools::run;

#[test]
fn a_support_bundle_has_the_clusters_state_and_no_secret() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let mut request = script("echo output-of-the-job; sleep 1");
    request.name = Some("secret-project".to_owned());
    request.env.insert("API_KEY".to_owned(), "value-of-the-key".to_owned());
    let job = cluster.submit(&request).job_id;
    cluster.wait_job(job, SOON, "succeeded");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar.gz");
    let token = cluster.token();

    run(Command::new(programs().path("tessera"))
        .args(["--url", &format!("http://{}", cluster.http()), "--token", &token])
        .arg("support-bundle")
        .arg("--out")
        .arg(&file));

    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may read it");
    run(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(folder.path()));
    let mut texts = BTreeMap::new();
    let mut open = vec![folder.path().join("tessera-support")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let name = path.strip_prefix(folder.path().join("tessera-support")).unwrap().to_owned();
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            texts.insert(name.display().to_string(), text);
        }
    }
    for (name, part) in [
        ("manifest.json", env!("CARGO_PKG_VERSION")),
        ("api/nodes.json", "n1"),
        ("api/gpus.json", "A100"),
        ("api/jobs.json", "succeeded"),
        ("api/layouts.json", "create"),
        ("api/metrics.txt", "tessera_build_info"),
        ("api/doctor/n1.json", "findings"),
        ("local/uname.txt", "Linux"),
    ] {
        assert!(texts[name].contains(part), "{name} has no {part}: {}", texts[name]);
    }
    let secrets = [
        &token,
        "secret-project",
        "value-of-the-key",
        "API_KEY",
        "output-of-the-job",
        &fs::read_to_string(cluster.controller_data().join("token")).unwrap(),
        "PRIVATE KEY",
    ];
    for secret in secrets {
        for (name, text) in &texts {
            assert!(!text.contains(secret.trim()), "{name} has {secret}");
        }
    }
}

#[test]
fn a_bundle_of_a_cluster_that_is_down_names_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar.gz");

    let shown = run(Command::new(programs().path("tessera"))
        .args(["--url", "http://127.0.0.1:9", "--json", "support-bundle", "--out"])
        .arg(&file));

    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["missing"].as_u64().unwrap() >= 12, "{shown}");
    let mut command = Command::new("tar");
    let manifest = run(command.arg("-xzOf").arg(&file).arg("tessera-support/manifest.json"));
    assert!(manifest.contains("api/nodes.json"), "{manifest}");
}
