//! `tessera support-bundle`: what a maintainer needs to understand a cluster, without secrets.

mod local;
mod names;
mod redact;

use std::fs::{File, OpenOptions};
use std::hash::RandomState;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, Header};

use self::names::{KnownNames, Named, Pseudonyms};
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
/// Fields of other pages with names of jobs, which a maintainer does not need.
const JOB_NAMES: [&str; 2] = ["job_name", "name_id"];
/// Pages that are read for the names of users alone.
const PAGES_WITH_USERS: [&str; 3] =
    ["v1/jobs?state=active&limit=1000", "v1/report?by=user,account", "v1/audit?limit=1000"];

#[derive(Args)]
pub struct SupportBundle {
    /// File to write [default: tessera-support-SECONDS.tar.gz, with the seconds since 1970]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Keep the names of users, accounts and groups, and e-mail addresses
    #[arg(long)]
    with_names: bool,
}

/// One file of a bundle, before names are replaced.
enum Part {
    /// Only its values are texts.
    Page(Value),
    Text(String),
}

/// The contents of a bundle so far.
struct Bundle {
    redactor: Redactor,
    now: u64,
    parts: Vec<(String, Part)>,
    known: KnownNames,
    /// Parts that could not be collected, and why.
    missing: Vec<(String, String)>,
}

impl Bundle {
    fn new(token: Option<&str>, now: u64) -> Self {
        let redactor = Redactor::new(token);
        Self { redactor, now, parts: Vec::new(), known: KnownNames::default(), missing: Vec::new() }
    }

    /// Adds a page of the API as far as `keep` keeps it.
    fn add_page(&mut self, name: &str, text: &str, keep: impl FnOnce(&mut Value)) {
        match serde_json::from_str(text) {
            Ok(mut page) => {
                self.known.add_page(&page);
                keep(&mut page);
                self.parts.push((name.to_owned(), Part::Page(page)));
            }
            Err(_) => self.add_text(name, text),
        }
    }

    fn add_text(&mut self, name: &str, text: &str) {
        self.known.add_text(text);
        self.parts.push((name.to_owned(), Part::Text(text.to_owned())));
    }

    fn miss(&mut self, name: &str, why: &impl ToString) {
        self.missing.push((name.to_owned(), why.to_string()));
    }

    /// Adds the parts of this machine. Without names, settings lose their comments, too.
    fn add_local(&mut self, with_names: bool) {
        for (name, collected) in local::collect() {
            match collected {
                Ok(text) if name.ends_with(".json") => self.add_page(&name, &text, |_| {}),
                Ok(text) if name.ends_with(".toml") && !with_names => {
                    let settings = local::without_comments(&text);
                    if let Ok(table) = settings.parse() {
                        self.known.add_settings(&table);
                    }
                    self.add_text(&name, &settings);
                }
                Ok(text) => self.add_text(&name, &text),
                Err(why) => self.miss(&name, &why),
            }
        }
        self.known.add_system_accounts(&local::accounts());
        for user in local::own_names() {
            self.known.add(&user, Named::User);
        }
    }

    /// Replaces secrets, and names by pseudonyms unless they stay. Returns the files and the pseudonyms.
    fn finish(self, with_names: bool) -> (Vec<(String, Vec<u8>)>, Pseudonyms) {
        let mut pseudonyms = match with_names {
            true => Pseudonyms::default(),
            false => self.known.pseudonyms(&RandomState::new()),
        };
        let mut clean = |text: &str| {
            let text = self.redactor.clean(text);
            if with_names { text } else { pseudonyms.replace(&text) }
        };
        let missing: Vec<_> = self.missing.iter().map(|(name, why)| (name, clean(why))).collect();
        let files = self.parts.into_iter().map(|(name, part)| {
            let text = match part {
                Part::Text(text) => clean(&text),
                Part::Page(mut page) => {
                    change_texts(&mut page, &mut clean);
                    // The name of a field shows what is a secret, too.
                    self.redactor.clean(&pretty(&page))
                }
            };
            (name, text.into_bytes())
        });
        let manifest = json!({
            "tessera": env!("CARGO_PKG_VERSION"),
            "made_at_unix": self.now,
            "names": if with_names { "kept" } else { "replaced" },
            "missing": missing
                .iter()
                .map(|(name, why)| json!({ "file": name, "why": why }))
                .collect::<Vec<_>>(),
        });
        let manifest = ("manifest.json".to_owned(), pretty(&manifest).into_bytes());
        let files = std::iter::once(manifest).chain(files).collect();
        (files, pseudonyms)
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
        let mut bundle = Bundle::new(token, now);
        collect_pages(session, &mut bundle).await;
        bundle.add_local(self.with_names);
        let missing = bundle.missing.len();
        let (files, pseudonyms) = bundle.finish(self.with_names);
        let out = self.out.unwrap_or_else(|| format!("tessera-support-{now}.tar.gz").into());
        write(&files, &out, now)?;
        let names = pseudonyms.meanings();
        // The manifest is not counted.
        let files = files.len() - 1;
        session.print(
            &json!({ "file": out, "files": files, "missing": missing, "names": names }),
            |_| {
                let out = out.display();
                let about = match self.with_names {
                    true => "Users, accounts and addresses have their names.".to_owned(),
                    false => format!(
                        "{} users, accounts, groups and addresses have pseudonyms; --json prints whose they are.",
                        names.len()
                    ),
                };
                format!(
                    "{out}: {files} files; {missing} could not be collected (manifest.json lists them)\n\
                     It has no scripts, outputs, environments, names of jobs, tokens or keys.\n{about}\n\
                     Look through it before you send it: tar -xzf {out}\n"
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
                bundle.add_page(name, &text, forget_jobs);
            }
            Err(why) => bundle.miss(name, &why),
        }
    }
    match session.client.page(JOBS).await {
        Ok(text) => bundle.add_page("api/jobs.json", &text, forget_programs),
        Err(why) => bundle.miss("api/jobs.json", &why),
    }
    for node in nodes {
        let name = format!("api/doctor/{node}.json");
        match session.client.page(&format!("v1/nodes/{node}/doctor")).await {
            Ok(text) => bundle.add_page(&name, &text, |_| {}),
            Err(why) => bundle.miss(&name, &why),
        }
    }
    for path in PAGES_WITH_USERS {
        // Not everyone may read all of them.
        let page = session.client.page(path).await.ok();
        if let Some(page) = page.and_then(|page| serde_json::from_str(&page).ok()) {
            bundle.known.add_page(&page);
        }
    }
}

fn names_of_nodes(nodes: &str) -> Vec<String> {
    let Ok(listing) = serde_json::from_str::<Value>(nodes) else { return Vec::new() };
    let items = listing["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|node| Some(node["name"].as_str()?.to_owned())).collect()
}

/// Keeps what is in [`JOB_FIELDS`] of each job on a page.
fn forget_programs(page: &mut Value) {
    for job in page["items"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = job.as_object_mut() {
            fields.retain(|name, _| JOB_FIELDS.contains(&name.as_str()));
        }
    }
}

/// Replaces the names of jobs at any depth.
fn forget_jobs(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if JOB_NAMES.contains(&name.as_str()) && !value.is_null() {
                    *value = "-".into();
                } else {
                    forget_jobs(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(forget_jobs),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn change_texts(value: &mut Value, change: &mut impl FnMut(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Object(fields) => fields.values_mut().for_each(|value| change_texts(value, change)),
        Value::Array(items) => items.iter_mut().for_each(|item| change_texts(item, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn write(files: &[(String, Vec<u8>)], out: &Path, now: u64) -> io::Result<()> {
    // Only its owner may read it, until the owner has checked it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(out)?;
    let mut tar = Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        tar.append_data(&mut header, format!("tessera-support/{name}"), text.as_slice())?;
    }
    let mut file: File = tar.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bundle: Bundle, with_names: bool) -> String {
        let (files, _) = bundle.finish(with_names);
        files.iter().map(|(_, text)| String::from_utf8_lossy(text)).collect()
    }

    #[test]
    fn no_text_of_a_user_is_kept_about_a_job() {
        let page = r#"{"items":[{"id":7,"state":"running","name":"paper-x","user":"ada",
            "script":"export KEY=1","reason_text":"by ada"}],"next_cursor":null}"#;
        let mut bundle = Bundle::new(None, 0);

        bundle.add_page("api/jobs.json", page, forget_programs);

        let kept = texts(bundle, true);
        for word in ["paper-x", "ada", "KEY"] {
            assert!(!kept.contains(word), "{word} in {kept}");
        }
        assert!(kept.contains("running"));
    }

    #[test]
    fn a_user_has_the_same_pseudonym_in_all_parts() {
        let part = |bundle: &mut Bundle| {
            let page =
                r#"{"items":[{"drained":{"by":"ada","reason":"driver"},"job_name":"paper-x"}]}"#;
            bundle.add_page("api/nodes.json", page, forget_jobs);
            bundle
                .add_text("local/journal.txt", "audit principal=\"ada\" object=/v1/jobs?user=ada");
            bundle.miss("local/x.txt", &"ada may not read it");
        };
        let (mut bundle, mut with) = (Bundle::new(None, 0), Bundle::new(None, 0));
        part(&mut bundle);
        part(&mut with);

        let (kept, with) = (texts(bundle, false), texts(with, true));

        assert!(!kept.contains("ada") && !kept.contains("paper-x"), "{kept}");
        assert_eq!(kept.matches("user-1").count(), 4, "{kept}");
        assert!(kept.contains("driver"), "{kept}");
        assert_eq!(with.matches("ada").count(), 4, "{with}");
        assert!(!with.contains("paper-x"), "{with}");
    }

    #[test]
    fn a_secret_with_a_users_name_in_it_is_removed_whole() {
        let mut bundle = Bundle::new(Some("ada-0123456789"), 0);
        bundle.known.add("ada", Named::User);

        bundle.add_page("api/x.json", r#"{"text":"ada-0123456789","password":"ada-x"}"#, |_| {});

        let kept = texts(bundle, false);
        assert!(!kept.contains("0123456789") && !kept.contains("user-1-x"), "{kept}");
    }
}
