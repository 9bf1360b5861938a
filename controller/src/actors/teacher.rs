//! Trains the model of how slices compare, beside the leader's work: from the store's history, on the
//! threads of submits and reads, again once enough has ended since.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::intake::Chain;
use crate::core::foresight::taught::Taught;
use crate::ports::ToPlacer;
use crate::store::foresight::{self, Progress};
use crate::store::kernels::{self, ReadTo};
use crate::store::{self, ConnectOptions, StoreError};

/// Runs that have to have ended since the last time.
const NEW_RUNS: u64 = 16;

/// Starts it on `runtime`; it ends with it. A new model is tried for that often.
pub fn start(
    runtime: &Handle,
    options: ConnectOptions,
    placer: mpsc::Sender<ToPlacer>,
    every: Duration,
) {
    runtime.spawn(async move {
        let mut known = Progress::default();
        loop {
            tokio::time::sleep(every).await;
            match lesson(&options, known).await {
                Ok(None) => {}
                Ok(Some((progress, taught))) => {
                    known = progress;
                    let Some((taught, came)) = taught else { continue };
                    if placer.send(ToPlacer::Teach { taught, came }).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(error = %Chain(&error), "nothing was learned"),
            }
        }
    });
}

/// How often it is looked how busy tasks are: a task is measured for some seconds at least.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Tells the placer how busy tasks are by their kernels' profiles, now and whenever they change. Runs
/// on `runtime` and ends with it.
pub fn watch_kernels(runtime: &Handle, options: ConnectOptions, placer: mpsc::Sender<ToPlacer>) {
    runtime.spawn(async move {
        let mut watch = KernelWatch { options, placer, read: ReadTo::default() };
        loop {
            match watch.look().await {
                Ok(Gone) => return,
                // With another connection, from where the last one came to.
                Err(error) => tracing::warn!(error = %Chain(&error), "kernels were not looked at"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

/// Whoever was to be told is gone.
struct Gone;

struct KernelWatch {
    options: ConnectOptions,
    placer: mpsc::Sender<ToPlacer>,
    read: ReadTo,
}

impl KernelWatch {
    /// Looks on one connection, again and again, as long as that works.
    async fn look(&mut self) -> Result<Gone, StoreError> {
        let mut connection = store::connect(&self.options).await?;
        loop {
            let (tasks, read) = kernels::busy(&mut connection, &self.read).await?;
            let more = read != self.read;
            if !tasks.is_empty() && self.placer.send(ToPlacer::Busy { tasks }).await.is_err() {
                return Ok(Gone);
            }
            self.read = read;
            if !more {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// Trains a model if enough has ended since `known`; it may be too little to learn from.
async fn lesson(
    options: &ConnectOptions,
    known: Progress,
) -> Result<Option<(Progress, Option<(Arc<Taught>, Vec<bool>)>)>, StoreError> {
    let mut connection = store::connect(options).await?;
    let progress = foresight::progress(&mut connection).await?;
    if progress.runs_since(known) < NEW_RUNS {
        return Ok(None);
    }
    let lessons = foresight::lessons(&mut connection).await?;
    let runs = lessons.len();
    let begun = std::time::Instant::now();
    // Some seconds of one core where there are many runs.
    let taught = tokio::task::spawn_blocking(move || Taught::from(&lessons)).await;
    let Ok(Some(taught)) = taught else { return Ok(Some((progress, None))) };
    foresight::keep_model(&mut connection, &taught).await?;
    let came = foresight::outcomes(&mut connection, taught.fingerprint()).await?;
    let fingerprint = format!("{:016x}", taught.fingerprint());
    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(fingerprint, runs, took_ms, "learned how slices compare");
    Ok(Some((progress, Some((Arc::new(taught), came)))))
}
