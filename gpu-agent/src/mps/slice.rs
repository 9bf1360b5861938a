//! One shared slice: its daemon, its sharers, and their ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::ExitRecord;
use tessera_model::share::MpsShare;
use tessera_model::{AttemptId, BootId, SliceId};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::MpsSettings;
use super::daemon::{DaemonHealth, MpsDaemon, MpsStartError};
use crate::messages::NodeInput;
use crate::messages::mps::{MpsEvent, MpsOrder, SharerRequest};
use crate::shepherd::protocol::AccountNumbers;
use tessera_agent_core::mps::{JoinRefused, Sharers, client_environment, doubtful};

/// How often the daemon's process is looked for: costs no more than a read of `/proc`.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the daemon is queried. With the time that a command may take, a daemon that hangs is
/// noticed within 7 s (M5 demands 10 s).
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long a server in fault may take to recover once its clients are gone (M2).
const RECOVER_WITHIN: Duration = Duration::from_secs(3);
/// Name of the file by which a later agent finds a slice's sharers.
pub const NOTE: &str = "sharers.json";

/// What a later agent must know about a shared slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SliceNote {
    pub slice: SliceId,
    /// Whose sharers they are.
    pub user: String,
    /// The daemon's account; `None` for the agent's own.
    #[serde(default)]
    pub account: Option<AccountNumbers>,
    pub sharers: Vec<(AttemptId, MpsShare)>,
}

/// Why an attempt can't share the slice.
#[derive(Debug, thiserror::Error)]
enum ShareRefusal {
    #[error("jobs of {0} share the slice")]
    OtherUser(String),
    #[error(transparent)]
    Join(#[from] JoinRefused),
    #[error(transparent)]
    Start(#[from] MpsStartError),
    #[error("no daemon")]
    NoDaemon,
}

/// One slice.
pub struct SharedSlice {
    settings: MpsSettings,
    boot: BootId,
    slice: SliceId,
    user: String,
    /// The user's uid; `None` for the agent's own.
    uid: Option<u32>,
    node: mpsc::Sender<NodeInput>,
    orders: mpsc::Receiver<MpsOrder>,
    daemon: Option<MpsDaemon>,
    sharers: Sharers,
    /// Attempts that wait until the victims of a fault are gone.
    waiting: Vec<SharerRequest>,
}

impl SharedSlice {
    /// Creates a slice that no attempt shares yet.
    pub fn new(
        settings: MpsSettings,
        boot: BootId,
        slice: SliceId,
        node: mpsc::Sender<NodeInput>,
        orders: mpsc::Receiver<MpsOrder>,
    ) -> Self {
        Self {
            settings,
            boot,
            slice,
            user: String::new(),
            uid: None,
            node,
            orders,
            daemon: None,
            sharers: Sharers::default(),
            waiting: Vec::new(),
        }
    }

    /// Takes over what an earlier agent left in a folder.
    pub fn adopt(&mut self, note: SliceNote, folder: PathBuf) {
        self.user = note.user;
        for (attempt, share) in note.sharers {
            self.sharers.adopt(attempt, share);
        }
        self.uid = note.account.as_ref().map(|account| account.uid);
        let (slice, boot) = (self.slice.clone(), self.boot);
        self.daemon = Some(MpsDaemon::adopt(&self.settings, folder, slice, boot, note.account));
    }

    /// Serves until no attempt shares the slice any more.
    pub async fn run(mut self) {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checked_at = Instant::now();
        if let Some(daemon) = &mut self.daemon {
            // An earlier agent's.
            daemon.find_process().await;
        }
        loop {
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.carry_out(order).await,
                    None => break,
                },
                _ = look.tick(), if self.daemon.is_some() => {
                    let due = checked_at.elapsed() >= CHECK_EVERY;
                    let dead = self.daemon.as_ref().is_some_and(|daemon| !daemon.is_alive());
                    if self.sharers.fault().is_none() && (due || dead) {
                        self.look().await;
                        checked_at = Instant::now();
                    }
                }
            }
            if self.sharers.is_empty() && self.waiting.is_empty() {
                self.stop_daemon().await;
                // An order that has arrived in the meantime is still served; none can arrive after
                // this.
                if self.orders.is_empty() {
                    self.orders.close();
                }
            }
        }
    }

    async fn send(&self, event: MpsEvent) {
        // Fails only when the node itself is going down.
        let _ = self.node.send(NodeInput::Mps(event)).await;
    }

    async fn carry_out(&mut self, order: MpsOrder) {
        match order {
            MpsOrder::Share(request) if self.sharers.fault().is_some() => {
                self.waiting.push(request);
            }
            MpsOrder::Share(request) => self.admit(request).await,
            MpsOrder::Running { attempt, pid } => self.sharers.set_owner(pid, attempt),
            MpsOrder::Ended { attempt, record } => self.ended(attempt, record).await,
            MpsOrder::Adopt(_) => {}
        }
    }

    async fn admit(&mut self, request: SharerRequest) {
        let attempt = request.attempt;
        let admitted = self.add_sharer(&request).await;
        match admitted {
            Ok(environment) => {
                let before_kill = self.before_kill(attempt);
                self.send(MpsEvent::Ready { attempt, environment, before_kill }).await;
            }
            Err(refusal) => {
                let reason = refusal.to_string();
                self.sharers.leave(attempt);
                self.write_note();
                self.send(MpsEvent::Refused { attempt, reason }).await;
            }
        }
    }

    /// Adds a sharer, and starts the daemon if there is none; returns the variables of the sharer's
    /// clients.
    async fn add_sharer(
        &mut self,
        request: &SharerRequest,
    ) -> Result<Vec<(String, String)>, ShareRefusal> {
        let uid = request.account.as_ref().map(|account| account.uid);
        let is_same = self.user == request.user && self.uid == uid;
        if self.sharers.is_empty() {
            if !is_same {
                self.stop_daemon().await;
            }
            self.user.clone_from(&request.user);
            self.uid = uid;
        } else if !is_same {
            return Err(ShareRefusal::OtherUser(self.user.clone()));
        }
        self.sharers.join(request.attempt, request.share, request.order)?;
        if self.daemon.as_ref().is_some_and(|daemon| !daemon.is_alive()) {
            self.stop_daemon().await;
        }
        if self.daemon.is_none() {
            let name = uuid::Uuid::new_v4().simple().to_string();
            let folder = self.settings.data.join("mps").join(&name[..8]);
            let made = fs::create_dir_all(&folder);
            made.map_err(|cause| MpsStartError::Folder { path: folder.clone(), cause })?;
            let (slice, boot) = (self.slice.clone(), self.boot);
            let account = request.account.clone();
            let daemon = MpsDaemon::start(&self.settings, folder, slice, boot, account).await?;
            tracing::info!(slice = %self.slice, user = self.user, "the slice is shared");
            self.daemon = Some(daemon);
        }
        self.write_note();
        let daemon = self.daemon.as_ref().ok_or(ShareRefusal::NoDaemon)?;
        let path = |path: &PathBuf| path.display().to_string();
        let (pipes, logs) = (path(&daemon.control.pipes), path(&daemon.control.logs));
        let environment = client_environment(request.share, request.order, &pipes, &logs);
        Ok(environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// Returns what ends an attempt's clients in the order that NVIDIA prescribes.
    fn before_kill(&self, attempt: AttemptId) -> Vec<String> {
        let Some(daemon) = &self.daemon else { return Vec::new() };
        let Ok(own) = std::env::current_exe() else { return Vec::new() };
        let mut command = vec![
            own.display().to_string(),
            "mps-terminate".to_owned(),
            "--control".to_owned(),
            daemon.control.program.display().to_string(),
            "--pipes".to_owned(),
            daemon.control.pipes.display().to_string(),
            "--attempt".to_owned(),
            attempt.to_string(),
        ];
        if let Some(account) = daemon.account() {
            let groups: Vec<_> = account.groups.iter().map(ToString::to_string).collect();
            command.push(format!("--uid={}", account.uid));
            command.push(format!("--gid={}", account.gid));
            command.push(format!("--groups={}", groups.join(",")));
            if let Some(launcher) = &self.settings.launcher {
                command.push(format!("--launch={}", launcher.display()));
            }
        }
        command
    }

    /// Checks the daemon, and records which attempts its clients belong to.
    async fn look(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        match daemon.health().await {
            DaemonHealth::Good => {
                if let Ok(clients) = daemon.clients().await {
                    self.learn(&clients).await;
                }
            }
            DaemonHealth::Faulted(reported) => {
                if let Ok(clients) = daemon.clients().await {
                    self.learn(&clients).await;
                }
                let why = "a client's fault stopped the slice's MPS server";
                let alone = self.sharers.members().keys().next().copied();
                let alone = alone.filter(|_| self.sharers.members().len() == 1);
                self.fail(why, &reported.culprits).await;
                // There was no other attempt.
                if let Some(attempt) = alone {
                    self.sharers.blame(attempt);
                }
            }
            DaemonHealth::Dead(why) => self.fail(&why, &BTreeSet::new()).await,
        }
    }

    async fn learn(&mut self, clients: &[u32]) {
        let new = clients.iter().copied().filter(|pid| !self.sharers.knows(*pid)).collect();
        let Some(daemon) = &mut self.daemon else { return };
        for (pid, attempt) in daemon.owners(new).await {
            if self.sharers.has(attempt) {
                self.sharers.set_owner(pid, attempt);
            }
        }
    }

    async fn fail(&mut self, why: &str, culprits: &BTreeSet<u32>) {
        if self.sharers.is_empty() {
            // No attempt is affected; the next sharer gets a new daemon.
            self.stop_daemon().await;
            return;
        }
        let victims = self.sharers.fail(why, culprits);
        if victims.is_empty() {
            return;
        }
        tracing::warn!(slice = %self.slice, why, attempts = victims.len(), "sharers end");
        super::counts::count_fault();
        self.send(MpsEvent::Fault { attempts: victims }).await;
    }

    async fn ended(&mut self, attempt: AttemptId, record: Option<Box<ExitRecord>>) {
        self.waiting.retain(|request| request.attempt != attempt);
        let Some(record) = record else {
            if self.sharers.has(attempt) && self.sharers.members().len() > 1 {
                self.verify(attempt).await;
            }
            self.forget(attempt).await;
            return;
        };
        if doubtful(&record) {
            // A fault in its log counts from now on, whichever side noticed it first.
            if self.sharers.fault().is_none() {
                self.look().await;
            }
            if self.sharers.fault().is_none() && self.sharers.members().len() > 1 {
                self.verify(attempt).await;
            }
        }
        let judged = self.sharers.judge(attempt, *record);
        self.forget(attempt).await;
        self.send(MpsEvent::Judged { attempt, record: Box::new(judged) }).await;
    }

    /// A client died by itself: its co-runners are checked, not assumed to be healthy (M4).
    async fn verify(&mut self, dead: AttemptId) {
        let Some(daemon) = &mut self.daemon else { return };
        if let Err(error) = daemon.canary(&self.settings).await {
            // A canary that found the server in fault reports nothing new.
            self.look().await;
            if self.sharers.fault().is_none() {
                let why = format!("a client died, and the slice's MPS server is broken: {error}");
                let fault = self.sharers.fail(&why, &BTreeSet::new());
                let victims = fault.into_iter().filter(|victim| *victim != dead).collect();
                self.sharers.blame(dead);
                super::counts::count_fault();
                self.send(MpsEvent::Fault { attempts: victims }).await;
            }
        }
    }

    /// Removes a sharer. After the last one the daemon is stopped before the end is reported, so
    /// that the slice is free when the controller assumes so.
    async fn forget(&mut self, attempt: AttemptId) {
        let faulty = self.sharers.fault().is_some();
        self.sharers.leave(attempt);
        self.write_note();
        if !self.sharers.is_empty() {
            return;
        }
        if !faulty || self.waiting.is_empty() || !self.recovers().await {
            self.stop_daemon().await;
        }
        for request in std::mem::take(&mut self.waiting) {
            self.admit(request).await;
        }
    }

    /// Waits for a server to leave its fault, now that its clients are gone (M2).
    async fn recovers(&mut self) -> bool {
        let Some(daemon) = &mut self.daemon else { return false };
        daemon.is_alive()
            && daemon.wait_active(RECOVER_WITHIN).await.is_ok()
            && daemon.canary(&self.settings).await.is_ok()
    }

    async fn stop_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop().await;
        }
    }

    fn write_note(&self) {
        let Some(daemon) = &self.daemon else { return };
        let sharers = self.sharers.members().iter().map(|(a, share)| (*a, *share)).collect();
        let (slice, user) = (self.slice.clone(), self.user.clone());
        let note = SliceNote { slice, user, account: daemon.account().cloned(), sharers };
        let path = daemon.folder().join(NOTE);
        let temporary = path.with_extension("new");
        let text = serde_json::to_string(&note).unwrap_or_default();
        let mut options = fs::OpenOptions::new();
        let written = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            // Only a later agent misses it: it then ends the daemon, and the attempts with it.
            tracing::error!(%error, path = %path.display(), "the sharers can't be recorded");
        }
    }
}
