//! The way to a daemon's files and processes. An agent that is root, or of the daemon's account, uses them itself. Others
//! have a worker that the launcher starts as the daemon's user.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::control::ControlClient;
use super::messages::{DaemonFile, DaemonReply, DaemonRequest, DaemonTask, LogPiece, WorkerError};
use super::work::carry_out;
use crate::shepherd::protocol::AccountNumbers;
use crate::shepherd::socket::{frame_bytes, take_frame};

/// How much longer than its task a worker may take.
pub const WORKER_DELAY: Duration = Duration::from_secs(1);
/// How long a launcher that starts no worker may take to give its reason.
const REASON_WITHIN: Duration = Duration::from_secs(1);
/// Longest reason that is read.
const REASON_MAX: u64 = 4096;

/// The way to a daemon.
#[derive(Debug)]
pub enum DaemonAccess {
    /// By this process itself.
    Own,
    /// By a worker as the daemon's user.
    User(Box<UserWorker>),
}

/// A worker as a user. The user may stop, change or end it, since it is one of the user's processes. What it answers has a
/// limit in size and time, and is trusted as little as what the user's files contain.
#[derive(Debug)]
pub struct UserWorker {
    launcher: PathBuf,
    account: AccountNumbers,
    /// The folder in which the next start makes the daemon's own.
    make_in: Option<PathBuf>,
    running: Option<RunningWorker>,
}

#[derive(Debug)]
struct RunningWorker {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl DaemonAccess {
    /// Chooses the way to a daemon of an account.
    pub fn new(launcher: Option<&Path>, account: Option<&AccountNumbers>) -> Self {
        match (launcher, account) {
            (Some(launcher), Some(account)) => Self::User(Box::new(UserWorker {
                launcher: launcher.to_owned(),
                account: account.clone(),
                make_in: None,
                running: None,
            })),
            (None, _) | (_, None) => Self::Own,
        }
    }

    /// Does something with the daemon's files and processes.
    ///
    /// # Errors
    ///
    /// [`WorkerError`], after a second worker failed as well. The next request gets a new one.
    pub async fn request(
        &mut self,
        control: &ControlClient,
        task: DaemonTask,
    ) -> Result<DaemonReply, WorkerError> {
        match self {
            Self::Own => Ok(carry_out(DaemonRequest { control: control.clone(), task }).await),
            Self::User(worker) => {
                let control = ControlClient { account: None, ..control.clone() };
                worker.request(&DaemonRequest { control, task }).await
            }
        }
    }

    /// Reads a piece of a daemon's file; `None` if there is none.
    pub async fn read(
        &mut self,
        control: &ControlClient,
        file: DaemonFile,
        from: u64,
    ) -> Option<LogPiece> {
        match self.request(control, DaemonTask::Read { file, from }).await {
            Ok(DaemonReply::Piece(piece)) => piece,
            Ok(_) | Err(_) => None,
        }
    }

    /// Empties a daemon's file; returns whether that was done.
    pub async fn cut(&mut self, control: &ControlClient, file: DaemonFile) -> bool {
        matches!(self.request(control, DaemonTask::Cut(file)).await, Ok(DaemonReply::Done(true)))
    }
}

impl UserWorker {
    /// Starts the worker, which gets the user's folders in this one.
    ///
    /// # Errors
    ///
    /// [`WorkerError`].
    pub async fn make_folders(
        &mut self,
        folder: &Path,
        control: &ControlClient,
    ) -> Result<(), WorkerError> {
        self.make_in = Some(folder.to_owned());
        // Its answer shows that the launcher has made them.
        let control = ControlClient { account: None, ..control.clone() };
        let request = DaemonRequest { control, task: DaemonTask::Owners(Vec::new()) };
        self.request(&request).await.map(drop)
    }

    async fn request(&mut self, request: &DaemonRequest) -> Result<DaemonReply, WorkerError> {
        let is_old = self.running.is_some();
        match self.request_once(request).await {
            // Its user may have stopped or ended it since the last request.
            Err(_) if is_old && request.task.may_be_repeated() => self.request_once(request).await,
            answer => answer,
        }
    }

    async fn request_once(&mut self, request: &DaemonRequest) -> Result<DaemonReply, WorkerError> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let within = request.task.within() + WORKER_DELAY;
        match tokio::time::timeout(within, exchange(&mut running, request)).await {
            Ok(Ok(Some(reply))) => {
                self.running = Some(running);
                Ok(reply)
            }
            Ok(Ok(None)) => Err(WorkerError::Refused(running.reason().await)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(WorkerError::Silent { within }),
        }
    }

    fn start(&mut self) -> std::io::Result<RunningWorker> {
        let mut command = Command::new(&self.launcher);
        command
            .env_clear()
            .args(words(&self.account))
            .args(self.make_in.take())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(RunningWorker { child, input, output }),
            (None, _) | (_, None) => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Returns a launcher's arguments for the worker of an account.
pub fn words(account: &AccountNumbers) -> [String; 4] {
    let groups: Vec<_> = account.groups.iter().map(ToString::to_string).collect();
    [
        tessera_launch::user_worker::FLAG.to_owned(),
        account.uid.to_string(),
        account.gid.to_string(),
        groups.join(","),
    ]
}

impl RunningWorker {
    /// Reads why it does not run.
    async fn reason(mut self) -> String {
        let mut text = Vec::new();
        if let Some(errors) = self.child.stderr.take() {
            let mut errors = errors.take(REASON_MAX);
            // What was read before an error is text as well.
            let _ = tokio::time::timeout(REASON_WITHIN, errors.read_to_end(&mut text)).await;
        }
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        if text.is_empty() { "it ended".to_owned() } else { text }
    }
}

/// Exchanges one request; `None` if the worker has ended.
async fn exchange(
    worker: &mut RunningWorker,
    request: &DaemonRequest,
) -> std::io::Result<Option<DaemonReply>> {
    if worker.input.write_all(&frame_bytes(request)?).await.is_err() {
        return Ok(None);
    }
    let mut buffer = Vec::new();
    loop {
        if let Some(reply) = take_frame(&mut buffer)? {
            return Ok(Some(reply));
        }
        if worker.output.read_buf(&mut buffer).await? == 0 {
            return Ok(None);
        }
    }
}
