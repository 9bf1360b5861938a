//! Settings that change while the controller serves, at `SIGHUP`.
//!
//! A reload takes effect as a whole or not at all: where a key changed that is read only at the start, nothing
//! changes, and the result names that key.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tessera_wire::tls::{self, RenewableCertificate};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::directory::Directory;
use crate::host_names::HostNames;
use crate::live::{LiveSettings, RetentionTimes};
use crate::ports::ToPlacer;
use crate::settings::{ServeArgs, Settings};

/// The keys that a reload changes. All others are read at the start only.
pub const LIVE_KEYS: [&str; 21] = [
    "accounts",
    "admins",
    "features",
    "hosts",
    "improve-for",
    "keep-audit",
    "keep-history",
    "keep-rounds",
    "memory-prediction",
    "migration-cooldown",
    "no-fair-share",
    "operators",
    "partitions",
    "power-cap",
    "preemption",
    "qos",
    "quotas",
    "share-default",
    "share-gpus",
    "tls-cert",
    "tls-key",
];

/// The file in the data folder with the result of the last reload.
const RESULT: &str = "reload.json";
/// How long `tessera-controller reload` waits for the result: a look at a busy database may take seconds.
const RESULT_WITHIN: Duration = Duration::from_secs(20);
/// How long it waits between looks for the result.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a reload found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadResult {
    /// The keys that have a new value.
    pub changed: Vec<String>,
    /// Why nothing changed.
    pub error: Option<String>,
}

/// Returns the keys that differ.
///
/// # Errors
///
/// A key differs that is read at the start only.
pub fn changed_keys(old: &Settings, new: &Settings) -> anyhow::Result<Vec<String>> {
    let (before, after) = (toml::Table::try_from(old)?, toml::Table::try_from(new)?);
    let mut changed: Vec<String> = before
        .keys()
        .chain(after.keys())
        .filter(|key| before.get(*key) != after.get(*key))
        .cloned()
        .collect();
    changed.sort();
    changed.dedup();
    // Files can be replaced by others, but a listener does not become an encrypted one.
    let is_live = |key: &String| {
        let is_file = key.starts_with("tls-");
        LIVE_KEYS.contains(&key.as_str())
            && (!is_file || before.contains_key(key) && after.contains_key(key))
    };
    let fixed: Vec<&str> = changed.iter().filter(|key| !is_live(key)).map(String::as_str).collect();
    if !fixed.is_empty() {
        bail!(
            "{} can't change while the controller serves: restart it, or undo the change (nothing \
             was changed)",
            fixed.join(", ")
        );
    }
    Ok(changed)
}

/// Where new settings go.
#[derive(Debug)]
pub struct LiveParts {
    /// What requests are compared with.
    pub live: watch::Sender<Arc<LiveSettings>>,
    /// How long ended things are kept.
    pub kept: watch::Sender<RetentionTimes>,
    /// Roles and accounts of users.
    pub directory: Arc<Directory>,
    /// What decides.
    pub placer: mpsc::Sender<ToPlacer>,
    /// The certificate of the REST API, if it comes from files.
    pub certificate: Option<RenewableCertificate>,
}

/// Returns what requests are compared with under these settings. `own` are this machine's names.
///
/// # Errors
///
/// An account is wrong.
pub fn live_settings(settings: &Settings, own: Vec<String>) -> anyhow::Result<LiveSettings> {
    Ok(LiveSettings {
        accounts: settings.accounts()?,
        site: settings.site.clone(),
        hosts: HostNames::with(settings.hosts.iter().cloned().chain(own)),
    })
}

/// Returns how long ended things are kept under these settings.
pub const fn retention_times(settings: &Settings) -> RetentionTimes {
    RetentionTimes {
        history: settings.keep_history,
        rounds: settings.keep_rounds,
        audit: settings.keep_audit,
    }
}

/// Reads the settings again at each `SIGHUP`.
#[derive(Debug)]
pub struct Reloader {
    arguments: ServeArgs,
    settings: Settings,
    own_names: Vec<String>,
    parts: LiveParts,
}

impl Reloader {
    /// Reloads from what the controller was started with.
    pub const fn new(
        arguments: ServeArgs,
        settings: Settings,
        own_names: Vec<String>,
        parts: LiveParts,
    ) -> Self {
        Self { arguments, settings, own_names, parts }
    }

    /// Serves the signals that arrive. They are counted from the moment that `hangups` was made.
    pub async fn run(mut self, mut hangups: tokio::signal::unix::Signal) {
        while hangups.recv().await.is_some() {
            tessera_telemetry::service::notify_reloading();
            let result = match self.reload().await {
                Ok(changed) => {
                    tracing::info!(changed = changed.join(", "), "reloaded the settings");
                    ReloadResult { changed, error: None }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "the settings were not reloaded");
                    ReloadResult { changed: Vec::new(), error: Some(error) }
                }
            };
            tessera_telemetry::service::notify_reloaded(&result.status());
            if let Err(error) = result.save(&self.settings.data) {
                tracing::warn!(%error, "the result of the reload was not written");
            }
        }
    }

    async fn reload(&mut self) -> anyhow::Result<Vec<String>> {
        let new = Settings::resolve(&self.arguments)?;
        let changed = changed_keys(&self.settings, &new)?;
        let live = live_settings(&new, self.own_names.clone())?;
        if let Some(certificate) = &self.parts.certificate
            && let (Some(chain), Some(key)) = (&new.tls_cert, &new.tls_key)
        {
            // The files may have changed under the same names. They are the last thing that can fail.
            certificate.replace(&tls::rest_identity_from_files(chain, key)?)?;
        }
        let own_uid = rustix::process::geteuid().as_raw();
        self.parts.directory.replace_rules(new.appointments(own_uid), live.accounts.clone());
        let accounts = live.accounts.clone();
        self.parts.live.send_replace(Arc::new(live));
        self.parts.kept.send_replace(retention_times(&new));
        let placer = ToPlacer::UseSettings { settings: new.placement(), accounts };
        self.parts.placer.send(placer).await.context("the controller is stopping")?;
        self.settings = new;
        Ok(changed)
    }
}

impl ReloadResult {
    fn status(&self) -> String {
        match (&self.error, self.changed.is_empty()) {
            (Some(error), _) => format!("serving; not reloaded: {error}"),
            (None, true) => "serving; reloaded, and no setting had changed".to_owned(),
            (None, false) => format!("serving; reloaded {}", self.changed.join(", ")),
        }
    }

    fn save(&self, data: &Path) -> anyhow::Result<()> {
        let new = data.join("reload.json.new");
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        Ok(std::fs::rename(new, data.join(RESULT))?)
    }
}

/// Starts to count `SIGHUP`, which would end the controller otherwise.
///
/// # Errors
///
/// The system has no place for another handler.
pub fn hangups() -> std::io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::hangup())
}

/// Lets a running controller reload, and waits for the result.
///
/// # Errors
///
/// There is no such controller, or it could not use the settings.
pub fn request(arguments: &ServeArgs, pid: i32) -> anyhow::Result<ReloadResult> {
    // A mistake in the file is found before the controller reads it.
    let data: PathBuf = Settings::resolve(arguments)?.data;
    let result = data.join(RESULT);
    let _ = std::fs::remove_file(&result);
    let process = Pid::from_raw(pid).with_context(|| format!("{pid} is not a process id"))?;
    rustix::process::kill_process(process, Signal::HUP)
        .with_context(|| format!("process {pid} can't be signalled"))?;
    // Each wait may last longer than it should, and then the whole does.
    for _ in 0..RESULT_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
        if let Ok(text) = std::fs::read(&result) {
            return Ok(serde_json::from_slice(&text)?);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    bail!(
        "process {pid} left no result in {} within {} s: see its log; after a change of `data`, restart it",
        result.display(),
        RESULT_WITHIN.as_secs()
    )
}
