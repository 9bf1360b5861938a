//! The agent's side of the worker: a queue, a deadline for each request, and a new worker when
//! one doesn't answer.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use tessera_launch::client::probe;
use tessera_model::GpuId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use super::counts::RequestCounts;
use super::messages::{NvmlReply, NvmlRequest};
use crate::accounts::is_setuid;
use crate::config::AgentConfig;
use crate::shepherd::socket::{frame_bytes, take_frame};
use tessera_agent_core::nvml::error::NvmlCallError;
use tessera_agent_core::nvml::sample::GpuSample;

/// How long the driver may take to answer a read.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to change something.
const MUTATE_WITHIN: Duration = Duration::from_secs(30);
/// After this many workers hung on one GPU, it is not queried for a while: killed workers may stay
/// in the kernel forever, and must not accumulate.
const HANGS_MAX: u32 = 3;
/// How long it is not queried.
const LEFT_ALONE: Duration = Duration::from_secs(60);
/// Maximum number of killed workers that may still hang in the kernel before no new one is started.
const GHOSTS_MAX: usize = 16;
/// Requests that may wait; each GPU has at most one.
const QUEUE: usize = 64;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlFailed {
    /// The library refused.
    #[error("{0}")]
    Refused(NvmlCallError),
    /// The driver didn't answer in time, or crashed the worker.
    #[error("the driver doesn't answer")]
    NoAnswer,
}

/// The way to the worker.
#[derive(Clone, Debug)]
pub struct NvmlClient {
    queue: mpsc::Sender<QueuedRequest>,
    /// Requests that wait until no other request does.
    samples: mpsc::Sender<QueuedRequest>,
    counts: RequestCounts,
}

#[derive(Debug)]
struct QueuedRequest {
    request: NvmlRequest,
    answer: oneshot::Sender<Result<NvmlReply, NvmlFailed>>,
}

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// The agent's own program.
    pub program: PathBuf,
    /// Path or name of NVML's library, for the worker to load.
    pub library: OsString,
    /// The launcher that starts it as root; `None` to start it with this agent's own rights.
    pub launcher: Option<PathBuf>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerRole {
    /// It answers requests.
    Requests,
    /// It listens to the driver's events.
    Events,
}

impl WorkerProgram {
    /// Describes the worker of an agent with these settings.
    pub fn new(program: PathBuf, config: &AgentConfig) -> Self {
        let launcher = may_launch_as_root(&config.launch).then(|| config.launch.clone());
        Self { program, library: config.nvml.clone().into_os_string(), launcher }
    }

    /// Makes the worker's command. It ends with its input, also if it is root's: root's processes can't be killed
    /// from here.
    pub(super) fn command(&self, role: WorkerRole) -> Command {
        let mut command = match &self.launcher {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.env_clear().arg(tessera_launch::worker::FLAG).arg(&self.library);
                command
            }
            None => {
                let mut command = Command::new(&self.program);
                command.arg("nvml-worker").arg("--nvml").arg(&self.library);
                command
            }
        };
        if role == WorkerRole::Events {
            command.arg("--events");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }
}

/// Returns whether the launcher starts the worker as root for an agent that isn't.
pub fn may_launch_as_root(launch: &Path) -> bool {
    !geteuid().is_root() && is_setuid(launch) && probe(launch).nvml_worker
}

impl NvmlClient {
    /// Starts the task that owns the worker.
    pub fn start(program: WorkerProgram) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let (samples, sample_requests) = mpsc::channel(1);
        let counts = RequestCounts::default();
        tokio::task::spawn_local(serve(program, jobs, sample_requests, counts.clone()));
        Self { queue, samples, counts }
    }

    /// Returns how often the worker was queried, and with which results.
    pub const fn counts(&self) -> &RequestCounts {
        &self.counts
    }

    /// Samples a GPU, once nothing else waits for the worker.
    ///
    /// # Errors
    ///
    /// [`NvmlFailed`].
    pub async fn sample(&self, gpu: GpuId) -> Result<GpuSample, NvmlFailed> {
        match send_request(&self.samples, NvmlRequest::Sample(gpu)).await? {
            NvmlReply::Sample(sample) => Ok(*sample),
            NvmlReply::Gpus(_)
            | NvmlReply::Gpu(_)
            | NvmlReply::One(_)
            | NvmlReply::Advice(_)
            | NvmlReply::Done
            | NvmlReply::Failed(_) => Err(NvmlFailed::NoAnswer),
        }
    }

    /// Queries the worker.
    ///
    /// # Errors
    ///
    /// [`NvmlFailed`].
    pub async fn request(&self, request: NvmlRequest) -> Result<NvmlReply, NvmlFailed> {
        send_request(&self.queue, request).await
    }
}

async fn send_request(
    queue: &mpsc::Sender<QueuedRequest>,
    request: NvmlRequest,
) -> Result<NvmlReply, NvmlFailed> {
    let (answer, answered) = oneshot::channel();
    let sent = queue.send(QueuedRequest { request, answer }).await;
    sent.map_err(|_| NvmlFailed::NoAnswer)?;
    match answered.await.map_err(|_| NvmlFailed::NoAnswer)?? {
        NvmlReply::Failed(fault) => Err(NvmlFailed::Refused(fault)),
        reply => Ok(reply),
    }
}

struct WorkerProcess {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

#[derive(Default)]
struct RequestDeadlines {
    hangs: u32,
    until: Option<Instant>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a GPU whose driver hangs is left alone for a real minute"
)]
async fn serve(
    program: WorkerProgram,
    mut jobs: mpsc::Receiver<QueuedRequest>,
    mut samples: mpsc::Receiver<QueuedRequest>,
    counts: RequestCounts,
) {
    let mut worker = None;
    let mut ghosts: Vec<Child> = Vec::new();
    let mut patience = BTreeMap::<Option<GpuId>, RequestDeadlines>::new();
    loop {
        // A sample is never served before other requests: it is the only one that can wait.
        let next = tokio::select! {
            biased;
            job = jobs.recv() => job,
            Some(job) = samples.recv() => Some(job),
        };
        let Some(QueuedRequest { request, answer }) = next else { return };
        let patience = patience.entry(request.gpu().cloned()).or_default();
        if patience.until.is_some_and(|until| Instant::now() < until) {
            let _ = answer.send(Err(NvmlFailed::NoAnswer));
            continue;
        }
        let replied = attempt(&program, &mut worker, &mut ghosts, &request).await;
        match &replied {
            Ok(_) => *patience = RequestDeadlines::default(),
            Err(_) => {
                patience.hangs += 1;
                tracing::warn!(hangs = patience.hangs, ?request, "the driver doesn't answer");
                if patience.hangs >= HANGS_MAX {
                    patience.until = Some(Instant::now() + LEFT_ALONE);
                }
            }
        }
        counts.count(&request, &replied);
        // Fails if the reader is gone.
        let _ = answer.send(replied);
    }
}

async fn attempt(
    program: &WorkerProgram,
    worker: &mut Option<WorkerProcess>,
    ghosts: &mut Vec<Child>,
    request: &NvmlRequest,
) -> Result<NvmlReply, NvmlFailed> {
    let mut running = match worker.take() {
        Some(running) => running,
        None => {
            ghosts.retain_mut(|ghost| !matches!(ghost.try_wait(), Ok(Some(_))));
            if ghosts.len() >= GHOSTS_MAX {
                return Err(NvmlFailed::NoAnswer);
            }
            start(program).map_err(|error| {
                tracing::error!(%error, "the NVML worker can't be started");
                NvmlFailed::NoAnswer
            })?
        }
    };
    let within = if request.mutates() { MUTATE_WITHIN } else { READ_WITHIN };
    match tokio::time::timeout(within, exchange(&mut running, request)).await {
        Ok(Ok(reply)) => {
            *worker = Some(running);
            Ok(reply)
        }
        Ok(Err(_)) | Err(_) => {
            // Not waited for: it may be stuck in the kernel.
            let _ = running.child.start_kill();
            ghosts.push(running.child);
            Err(NvmlFailed::NoAnswer)
        }
    }
}

fn start(program: &WorkerProgram) -> io::Result<WorkerProcess> {
    let mut child = program.command(WorkerRole::Requests).spawn()?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(input), Some(output)) => Ok(WorkerProcess { child, input, output }),
        (None, _) | (_, None) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

async fn exchange(worker: &mut WorkerProcess, request: &NvmlRequest) -> io::Result<NvmlReply> {
    worker.input.write_all(&frame_bytes(request)?).await?;
    let mut buffer = Vec::new();
    loop {
        if let Some(reply) = take_frame(&mut buffer)? {
            return Ok(reply);
        }
        if worker.output.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
