//! The agent's side of the worker that waits for the driver's events: started, and started again
//! when it ends or reports nothing.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tessera_model::backoff::{Backoff, FailureCount};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout};
use tokio::sync::mpsc;

use super::client::{WorkerProgram, WorkerRole};
use super::watch::WatchMessage;
use crate::messages::gpu::{DriverNotice, ErrorSource, GpuAddress, ReportedError};
use crate::shepherd::socket::take_frame;
use crate::sys::clock;

/// A worker that reported nothing for this long hangs in the kernel.
const SILENT_AFTER: Duration = Duration::from_secs(15);
/// Pauses before another one is started.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Maximum number of killed workers that may still hang in the kernel before no new one is started.
const GHOSTS_MAX: usize = 3;

/// Forwards events for as long as there is a receiver.
pub async fn run(program: WorkerProgram, reported: mpsc::Sender<DriverNotice>) {
    let mut ghosts: Vec<Child> = Vec::new();
    let mut failures = FailureCount::new(BACKOFF);
    while !reported.is_closed() {
        ghosts.retain_mut(|ghost| !matches!(ghost.try_wait(), Ok(Some(_))));
        if ghosts.len() < GHOSTS_MAX {
            match start(&program) {
                Ok((mut child, output)) => {
                    if listen(output, &reported).await {
                        failures.reset();
                    }
                    // Not waited for: it may be stuck in the kernel. One of root's ends with its input.
                    let _ = child.start_kill();
                    drop(child.stdin.take());
                    ghosts.push(child);
                }
                Err(error) => tracing::error!(%error, "the events' worker can't be started"),
            }
        }
        tokio::time::sleep(failures.count_failure()).await;
    }
}

fn start(program: &WorkerProgram) -> io::Result<(Child, ChildStdout)> {
    let mut command = program.command(WorkerRole::Events);
    // Its failures are also reported by the other worker.
    let mut child = command.stderr(Stdio::null()).spawn()?;
    match child.stdout.take() {
        Some(output) => Ok((child, output)),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Passes on what a worker reports until it ends or falls silent; returns whether it ever reported
/// anything.
async fn listen(mut output: ChildStdout, reported: &mpsc::Sender<DriverNotice>) -> bool {
    let mut buffer = Vec::new();
    let mut spoke = false;
    loop {
        match take_frame::<WatchMessage>(&mut buffer) {
            Ok(Some(received)) => {
                spoke = true;
                if let Some(received) = notice_of(received)
                    && reported.send(received).await.is_err()
                {
                    return spoke;
                }
                continue;
            }
            Ok(None) => {}
            Err(_) => return spoke,
        }
        match tokio::time::timeout(SILENT_AFTER, output.read_buf(&mut buffer)).await {
            Ok(Ok(bytes)) if bytes > 0 => {}
            Ok(_) => return spoke,
            Err(_) => {
                tracing::warn!("the driver's events have stopped: listening again");
                return spoke;
            }
        }
    }
}

fn notice_of(received: WatchMessage) -> Option<DriverNotice> {
    match received {
        WatchMessage::Heartbeat => None,
        WatchMessage::Lost => Some(DriverNotice::Lost),
        WatchMessage::Xid { gpu, xid, instance } => Some(DriverNotice::Noticed(ReportedError {
            source: ErrorSource::Events,
            at_unix: clock::unix_now(),
            on: GpuAddress::Gpu(gpu),
            xid,
            instance,
            pid: None,
        })),
    }
}
