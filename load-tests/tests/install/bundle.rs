//! `tessera support-bundle`: what it has, and what it must not have.
//!
//! Parts of this machine, such as a journal, are those of `packaging/test-systemd`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::done;
use tessera_load_tests::programs::programs;

use super::tools::run;

/// Settings with users. Two of them never submit.
const SETTINGS: &str = "\
operators = [\"dora\", \"@gpu-heads\"]
[quotas]
erika = 14
[accounts]
lab-curie = { members = [\"carola\"], share = 2 }
";

/// Makes a bundle and returns what was printed, and its files by name.
fn bundle_of(cluster: &Cluster, options: &[&str]) -> (Value, BTreeMap<String, String>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar.gz");
    let token = cluster.token();
    let shown = run(Command::new(programs().path("tessera"))
        .args(["--url", &format!("http://{}", cluster.http()), "--token", &token])
        .args(["--json", "support-bundle", "--out"])
        .arg(&file)
        .args(options));

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
    (serde_json::from_str(&shown).unwrap(), texts)
}

fn assert_none_has(texts: &BTreeMap<String, String>, words: &[&str]) {
    for word in words {
        for (name, text) in texts {
            assert!(!text.contains(word.trim()), "{name} has {word}");
        }
    }
}

#[test]
fn a_support_bundle_has_the_clusters_state_without_secrets_and_without_names() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("controller.toml");
    fs::write(&settings, SETTINGS).unwrap();
    let cluster = Plan::new()
        .node("n1", "a100-40gb")
        .env("TESSERA_CONTROLLER_CONFIG", settings.display().to_string())
        .start();
    let mut request = script("echo output-of-the-job; sleep 1");
    request.name = Some("secret-project".to_owned());
    request.user = Some("carola".to_owned());
    request.env.insert("API_KEY".to_owned(), "value-of-the-key".to_owned());
    let job = cluster.submit(&request).job_id;
    cluster.wait_job(job, SOON, "succeeded");
    // One that is there while the bundle is made, and one that waits.
    let running = SubmitRequest { gpu_profile: Some("7g.40gb".to_owned()), ..script("sleep 600") };
    let running =
        SubmitRequest { name: request.name.clone(), user: request.user.clone(), ..running };
    let running = cluster.submit(&running).job_id;
    cluster.wait_job(running, SOON, "running");
    cluster.submit(&SubmitRequest {
        user: Some("frieda".to_owned()),
        gpu_whole: true,
        ..script("true")
    });
    let reason = "carola (carola@lab.example.org) asked";
    done(&cluster, &["drain", "n1", "--reason", reason]);

    let (shown, texts) = bundle_of(&cluster, &[]);

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
        &cluster.token(),
        "secret-project",
        "value-of-the-key",
        "API_KEY",
        "output-of-the-job",
        &fs::read_to_string(cluster.controller_data().join("token")).unwrap(),
        "PRIVATE KEY",
    ];
    assert_none_has(&texts, &secrets);
    assert_none_has(&texts, &["carola", "frieda", "erika", "lab-curie", "example.org"]);
    // One pseudonym in all parts, and a list that only its maker sees.
    let names = shown["names"].as_object().unwrap();
    let named = |name: &str| names.iter().find(|(_, of)| *of == name).unwrap().0.as_str();
    assert!(named("lab-curie").starts_with("account-"), "{names:?}");
    let carola = named("carola");
    assert!(carola.starts_with("user-"), "{names:?}");
    assert!(
        texts["api/usage.json"].contains(&format!("\"{carola}\"")),
        "{}",
        texts["api/usage.json"]
    );
    let address = named(&format!("{carola}@lab.example.org"));
    let expected = format!("{carola} ({address}) asked");
    for page in ["api/nodes.json", "api/cluster-events.json"] {
        assert!(texts[page].contains(&expected), "{page} has no {expected}: {}", texts[page]);
    }

    let (shown, texts) = bundle_of(&cluster, &["--with-names"]);

    assert_eq!(shown["names"], serde_json::json!({}));
    assert!(texts["api/usage.json"].contains("lab-curie"), "{}", texts["api/usage.json"]);
    assert!(texts["api/nodes.json"].contains(reason), "{}", texts["api/nodes.json"]);
    assert_none_has(&texts, &secrets);
}

#[test]
fn a_bundle_of_a_cluster_that_is_down_names_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar.gz");

    let shown = run(Command::new(programs().path("tessera"))
        .args(["--url", "http://127.0.0.1:9", "--json", "support-bundle", "--out"])
        .arg(&file));

    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["missing"].as_u64().unwrap() >= 12, "{shown}");
    let mut command = Command::new("tar");
    let manifest = run(command.arg("-xzOf").arg(&file).arg("tessera-support/manifest.json"));
    assert!(manifest.contains("api/nodes.json"), "{manifest}");
}
