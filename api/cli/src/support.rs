//! `tessera support-bundle`: what a maintainer needs to understand a cluster, without secrets.

mod local;
mod redact;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, Header};

use self::redact::Redactor;
use crate::failure::CommandFailure;
use crate::session::CommandSession;

/// Pages of the API that are collected, with the names of their files.
const PAGES: [(&str, &str); 12] = [
    ("healthz", "api/healthz.txt"),
    ("readyz", "api/readyz.json"),
    ("metrics", "api/metrics.txt"),
    ("v1/info", "api/info.json"),
    ("v1/nodes", "api/nodes.json"),
    ("v1/gpus", "api/gpus.json"),
    ("v1/jobs/summary", "api/jobs-summary.json"),
    ("v1/layouts?limit=200", "api/layouts.json"),
    ("v1/decisions?limit=100", "api/decisions.json"),
    ("v1/cluster-events?limit=500", "api/cluster-events.json"),
    ("v1/predictions", "api/predictions.json"),
    ("v1/usage", "api/usage.json"),
];
/// Number of newest jobs that are listed.
const JOBS: &str = "v1/jobs?limit=500";
/// The stored fields of a job: neither names nor anything that a user wrote.
const JOB_FIELDS: [&str; 18] = [
    "id",
    "array_id",
    "array_index",
    "attempts",
    "class",
    "state",
    "reason",
    "exit_code",
    "gpu",
    "gpu_index",
    "gpu_request",
    "node",
    "priority",
    "profile",
    "slice",
    "submitted_at",
    "started_at",
    "ended_at",
];
/// Names of users and of jobs in other pages, which a maintainer does not need.
const PERSONAL: [&str; 7] =
    ["user", "by", "requested_by", "submitted_by", "principal", "name_id", "members"];

#[derive(Args)]
pub struct SupportBundle {
    /// File to write [default: tessera-support-SECONDS.tar.gz, with the seconds since 1970]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The contents of a bundle so far.
struct Bundle {
    redactor: Redactor,
    now: u64,
    files: Vec<(String, Vec<u8>)>,
    /// Parts that could not be collected, and why.
    missing: Vec<Value>,
}

impl Bundle {
    fn add(&mut self, name: &str, text: &str) {
        self.files.push((name.to_owned(), self.redactor.clean(text).into_bytes()));
    }

    fn miss(&mut self, name: &str, why: &impl ToString) {
        let why = self.redactor.clean(&why.to_string());
        self.missing.push(json!({ "file": name, "why": why }));
    }
}

impl SupportBundle {
    /// Collects everything and writes the file.
    pub async fn run(
        self,
        session: &CommandSession,
        token: Option<&str>,
        now: u64,
    ) -> Result<u8, CommandFailure> {
        let mut bundle =
            Bundle { redactor: Redactor::new(token), now, files: Vec::new(), missing: Vec::new() };
        collect_pages(session, &mut bundle).await;
        for (name, collected) in local::collect() {
            match collected {
                Ok(text) => bundle.add(&name, &text),
                Err(why) => bundle.miss(&name, &why.to_string()),
            }
        }
        let out = self.out.unwrap_or_else(|| format!("tessera-support-{now}.tar.gz").into());
        let (files, missing) = (bundle.files.len(), bundle.missing.len());
        write(bundle, &out)?;
        session.print(
            &json!({ "file": out, "files": files, "missing": missing }),
            |_| {
                let out = out.display();
                format!(
                    "{out}: {files} files; {missing} could not be collected (manifest.json lists them)\n\
                     It has no scripts, outputs, environments, tokens or keys. Records of jobs have no names of users, \
                     but accounts, settings and the journal may. Look through it before you send it: tar -xzf {out}\n"
                )
            },
        )?;
        Ok(0)
    }
}

async fn collect_pages(session: &CommandSession, bundle: &mut Bundle) {
    let mut nodes = Vec::new();
    for (path, name) in PAGES {
        match session.client.page(path).await {
            Ok(text) => {
                if path == "v1/nodes" {
                    nodes = names_of_nodes(&text);
                }
                bundle.add(name, &without_persons(&text));
            }
            Err(why) => bundle.miss(name, &why),
        }
    }
    match session.client.page(JOBS).await {
        Ok(text) => bundle.add("api/jobs.json", &without_programs(&text)),
        Err(why) => bundle.miss("api/jobs.json", &why),
    }
    for node in nodes {
        let name = format!("api/doctor/{node}.json");
        match session.client.page(&format!("v1/nodes/{node}/doctor")).await {
            Ok(text) => bundle.add(&name, &text),
            Err(why) => bundle.miss(&name, &why),
        }
    }
}

fn names_of_nodes(nodes: &str) -> Vec<String> {
    let Ok(listing) = serde_json::from_str::<Value>(nodes) else { return Vec::new() };
    let items = listing["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|node| Some(node["name"].as_str()?.to_owned())).collect()
}

/// Keeps what is in [`JOB_FIELDS`] of each job on a page.
fn without_programs(page: &str) -> String {
    let Ok(mut page) = serde_json::from_str::<Value>(page) else { return String::new() };
    for job in page["items"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = job.as_object_mut() {
            fields.retain(|name, _| JOB_FIELDS.contains(&name.as_str()));
        }
    }
    pretty(&page)
}

/// Replaces the names of users in a page of JSON; other texts are unchanged.
fn without_persons(page: &str) -> String {
    let Ok(mut page) = serde_json::from_str::<Value>(page) else { return page.to_owned() };
    forget_persons(&mut page);
    pretty(&page)
}

fn forget_persons(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if PERSONAL.contains(&name.as_str()) && !value.is_null() {
                    *value = "-".into();
                } else {
                    forget_persons(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(forget_persons),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn write(bundle: Bundle, out: &PathBuf) -> io::Result<()> {
    // Only its owner may read it, until the owner has checked it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(out)?;
    let mut tar = Builder::new(GzEncoder::new(file, Compression::default()));
    let manifest = json!({
        "tessera": env!("CARGO_PKG_VERSION"),
        "made_at_unix": bundle.now,
        "missing": bundle.missing,
    });
    let manifest = ("manifest.json".to_owned(), pretty(&manifest).into_bytes());
    for (name, text) in std::iter::once(manifest).chain(bundle.files) {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(bundle.now);
        tar.append_data(&mut header, format!("tessera-support/{name}"), text.as_slice())?;
    }
    let mut file: File = tar.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_user_is_kept_about_a_job() {
        let page = r#"{"items":[{"id":7,"state":"running","name":"paper-x","user":"ada",
            "script":"export KEY=1","reason_text":"by ada"}],"next_cursor":null}"#;

        let kept = without_programs(page);

        for word in ["paper-x", "ada", "KEY"] {
            assert!(!kept.contains(word), "{word} in {kept}");
        }
        assert!(kept.contains("running"));
    }

    #[test]
    fn names_of_users_are_removed_at_any_depth() {
        let page = r#"{"items":[{"drained":{"by":"ada","reason":"driver"},"state":"available"}]}"#;

        let kept = without_persons(page);

        assert!(!kept.contains("ada"), "{kept}");
        assert!(kept.contains("driver") && kept.contains("available"), "{kept}");
    }
}
