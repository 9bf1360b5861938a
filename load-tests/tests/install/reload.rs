//! Settings that change while the controller serves.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use tessera_api_types::SubmitRequest;
use tessera_controller::reload::LIVE_KEYS;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::http;
use tessera_load_tests::programs::programs;

use super::tools::{read, text};

/// A cluster whose controller has a file of settings.
struct Rig {
    cluster: Cluster,
    file: PathBuf,
    _folder: TempDir,
}

impl Rig {
    fn new(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("controller.toml");
        fs::write(&file, settings).unwrap();
        let plan = Plan::new().node("n1", "a100-40gb");
        let cluster = plan.env("TESSERA_CONTROLLER_CONFIG", file.display().to_string()).start();
        Self { cluster, file, _folder: folder }
    }

    /// Writes the file and lets the controller read it, as `systemctl reload` does.
    fn reload(&self, settings: &str) -> Output {
        fs::write(&self.file, settings).unwrap();
        let pid = self.cluster.controller.pid().unwrap();
        Command::new(programs().path("tessera-controller"))
            .arg("--config")
            .arg(&self.file)
            .arg("--data")
            .arg(self.cluster.controller_data())
            .args(["reload", "--pid", &pid.to_string()])
            .output()
            .unwrap()
    }

    fn reloaded(&self, settings: &str) -> String {
        let done = self.reload(settings);
        assert!(done.status.success(), "{}", text(&done));
        text(&done)
    }

    fn refused(&self, settings: &str) -> String {
        let done = self.reload(settings);
        assert_eq!(done.status.code(), Some(1), "{}", text(&done));
        text(&done)
    }

    /// The status of a request under a name of the controller.
    fn status_under(&self, host: &str) -> u16 {
        let token = format!("Bearer {}", self.cluster.token_for("ada", "user"));
        let headers = [("authorization", token.as_str()), ("host", host)];
        http::request(self.cluster.http(), "GET", "/v1/info", &headers, None).unwrap().status
    }

    fn info(&self) -> Value {
        self.cluster.call("GET", "/v1/info", None).expect(200).json()
    }
}

#[test]
fn a_reload_changes_what_requests_are_compared_with_and_keeps_the_connections() {
    let rig = Rig::new("hosts = [\"old.lab\"]\n");
    assert_eq!((rig.status_under("old.lab"), rig.status_under("new.lab")), (200, 403));
    let job = rig.cluster.submit(&script("sleep 60")).job_id;
    rig.cluster.wait_job(job, SOON, "running");

    let shown = rig.reloaded(
        "hosts = [\"new.lab\"]\nshare-default = \"auto\"\nkeep-rounds = \"1d\"\n\
         [partitions]\ngpu = { nodes = \"n1\" }\n",
    );

    assert!(shown.contains("changed: hosts, keep-rounds, partitions, share-default"), "{shown}");
    assert_eq!((rig.status_under("old.lab"), rig.status_under("new.lab")), (403, 200));
    let info = rig.info();
    assert_eq!(info["share_default"], "auto");
    assert_eq!(info["partitions"][0]["name"], "gpu");
    let kept = rig.cluster.job(job);
    assert_eq!((kept.job.state.as_str(), kept.job.attempts), ("running", 1));
    assert!(
        rig.reloaded(&fs::read_to_string(&rig.file).unwrap()).contains("no setting has changed")
    );
}

#[test]
fn a_raised_quota_starts_the_job_that_waited_for_it() {
    let rig = Rig::new("[quotas]\nada = 1\n");
    let request = || SubmitRequest {
        user: Some("ada".into()),
        gpu_profile: Some("1g.5gb".into()),
        ..script("sleep 60")
    };
    let first = rig.cluster.submit(&request()).job_id;
    rig.cluster.wait_job(first, SOON, "running");
    let second = rig.cluster.submit(&request()).job_id;
    let waiting = rig.cluster.explain(second);
    assert!(json!(waiting).to_string().contains("quota"), "{waiting:?}");

    rig.reloaded("[quotas]\nada = 2\n");

    rig.cluster.wait_job(second, SOON, "running");
}

#[test]
fn a_reload_that_needs_a_restart_or_has_a_mistake_changes_nothing_and_names_it() {
    let rig = Rig::new("");

    for (settings, named) in [
        ("hosts = [\"new.lab\"]\nenergy = 30\n", "energy can't change while the controller serves"),
        ("hosts = [\"new.lab\"]\ntls-cert = \"/c\"\ntls-key = \"/k\"\n", "tls-cert, tls-key can't"),
        ("hosts = [\"new.lab\"]\npolcy = \"static\"\n", "polcy"),
        ("hosts = [\"new.lab\"]\n[accounts]\nlab = { members = [] }\n", "no members"),
    ] {
        let shown = rig.refused(settings);

        assert!(shown.contains(named), "{settings}: {shown}");
        assert_eq!(rig.status_under("new.lab"), 403, "{settings}");
    }
    rig.reloaded("hosts = [\"new.lab\"]\n");
    assert_eq!(rig.status_under("new.lab"), 200);
}

/// Keys of a page or file that a reload changes, as its lines mark them.
fn marked_keys(file: &str) -> BTreeSet<String> {
    let mut marked = BTreeSet::new();
    let mut is_live = false;
    for line in file.lines() {
        if line.is_empty() {
            is_live = false;
        } else if line.starts_with("# ") {
            is_live |= line.contains("(reload)");
        } else if is_live {
            let key = line.trim_start_matches('#').trim_start_matches('[');
            let end = key.find([' ', ']', '=']).unwrap_or(key.len());
            marked.insert(key[..end].to_owned());
        }
    }
    // Names within tables.
    marked.retain(|key| LIVE_KEYS.contains(&key.as_str()));
    marked
}

#[test]
fn the_settings_file_and_the_page_name_the_keys_that_a_reload_changes() {
    let live: BTreeSet<String> = LIVE_KEYS.iter().map(|key| (*key).to_owned()).collect();
    let page = read("docs/install.md");
    let (_, section) = page.split_once("\n## Change settings\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let file = read("packaging/etc/controller.toml");

    assert_eq!(marked_keys(&file), live);
    for key in &live {
        assert!(section.contains(&format!("`{key}`")), "docs/install.md does not name {key}");
    }
    let unmarked = file.split("\n\n").filter(|part| !part.contains("(reload)"));
    for part in unmarked.filter(|part| !part.starts_with("# Settings of")) {
        for line in part.lines().filter(|line| !line.starts_with("# ")) {
            let key = line.trim_start_matches(['#', '[']);
            let end = key.find([' ', ']', '=']).unwrap_or(key.len());
            assert!(
                !live.contains(&key[..end]),
                "{line} takes effect at a reload, and is not marked"
            );
        }
    }
}
