//! The agent's side of the worker that waits for the driver's events: started, and started anew
//! when it ends or says nothing.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;

use super::client::WorkerProgram;
use super::watch::Heard;
use crate::gpus::{Noticed, Place, Source, Told};
use crate::shepherd::socket::take_frame;
use crate::sys::clock;

/// A worker that said nothing for so long hangs in the kernel.
const SILENT_AFTER: Duration = Duration::from_secs(15);
/// Pause before another one is started, doubled each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Most killed workers that may still hang in the kernel before no new one is started.
const GHOSTS_MAX: usize = 3;

/// Tells of events for as long as somebody listens.
pub async fn run(program: WorkerProgram, told: mpsc::Sender<Told>) {
    let mut ghosts: Vec<Child> = Vec::new();
    let mut pause = PAUSE_MIN;
    while !told.is_closed() {
        ghosts.retain_mut(|ghost| !matches!(ghost.try_wait(), Ok(Some(_))));
        if ghosts.len() < GHOSTS_MAX {
            match start(&program) {
                Ok((mut child, output)) => {
                    if listen(output, &told).await {
                        pause = PAUSE_MIN;
                    }
                    // Not waited for: it may be stuck in the kernel.
                    let _ = child.start_kill();
                    ghosts.push(child);
                }
                Err(error) => tracing::error!(%error, "the events' worker can't be started"),
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn start(program: &WorkerProgram) -> io::Result<(Child, ChildStdout)> {
    let mut child = Command::new(&program.program)
        .arg("nvml-worker")
        .arg("--nvml")
        .arg(&program.library)
        .arg("--events")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // What it can't do, the other worker says too.
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    match child.stdout.take() {
        Some(output) => Ok((child, output)),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Passes on what a worker says until it ends or falls silent; returns whether it ever spoke.
async fn listen(mut output: ChildStdout, told: &mpsc::Sender<Told>) -> bool {
    let mut buffer = Vec::new();
    let mut spoke = false;
    loop {
        match take_frame::<Heard>(&mut buffer) {
            Ok(Some(heard)) => {
                spoke = true;
                if let Some(heard) = told_of(heard)
                    && told.send(heard).await.is_err()
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
                tracing::warn!("the driver's events have stopped: listening anew");
                return spoke;
            }
        }
    }
}

fn told_of(heard: Heard) -> Option<Told> {
    match heard {
        Heard::Beat => None,
        Heard::Lost => Some(Told::Lost),
        Heard::Xid { gpu, xid, instance } => Some(Told::Noticed(Noticed {
            source: Source::Events,
            at_unix: clock::unix_now(),
            on: Place::Gpu(gpu),
            xid,
            instance,
            pid: None,
        })),
    }
}
