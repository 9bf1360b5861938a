//! Trains the models of how slices compare and of how jobs do beside others, beside the leader's work:
//! from the store's history, on the threads of submits and reads, again once enough has ended since.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::foretold;
use super::intake::Chain;
use crate::core::company::{self, Crowded};
use crate::core::foresight::taught::Taught;
use crate::ports::ToPlacer;
use crate::store::foresight::{self, About, Progress};
use crate::store::kernels::{self, ReadTo};
use crate::store::{self, ConnectOptions, Connection, StoreError};

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
    if let Some(trained) = taught.trained() {
        foresight::keep_model(&mut connection, trained, About::Slices).await?;
    }
    let came = foresight::outcomes(&mut connection, taught.fingerprint()).await?;
    let fingerprint = format!("{:016x}", taught.fingerprint());
    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(fingerprint, runs, took_ms, "learned how slices compare");
    Ok(Some((progress, Some((Arc::new(taught), came)))))
}

/// Trains the model of how jobs do beside others. Runs on `runtime` and ends with it; a new model is
/// tried for that often.
pub fn start_company(
    runtime: &Handle,
    options: ConnectOptions,
    placer: mpsc::Sender<ToPlacer>,
    every: Duration,
) {
    runtime.spawn(async move {
        let mut lessons = CompanyLessons { options, model: None, fresh: None, over: None };
        loop {
            tokio::time::sleep(every).await;
            match lessons.next().await {
                Ok(None) => {}
                Ok(Some(news)) => {
                    if placer.send(news).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "nothing was learned of company");
                }
            }
        }
    });
}

struct CompanyLessons {
    options: ConnectOptions,
    model: Option<Arc<Crowded>>,
    /// Of how many attempts it became known how they did since the model was trained; `None` before
    /// the first time.
    fresh: Option<u64>,
    /// How many attempts were over when it was last looked at how they did.
    over: Option<i64>,
}

impl CompanyLessons {
    /// Returns what the placer is to know, if there is anything new: a model may have stopped to come
    /// true.
    async fn next(&mut self) -> Result<Option<ToPlacer>, StoreError> {
        let mut connection = store::connect(&self.options).await?;
        let over = store::company::over(&mut connection).await?;
        if self.over == Some(over) {
            return Ok(None);
        }
        let news = self.look(&mut connection).await?;
        self.over = Some(over);
        Ok(news)
    }

    /// Works out what came of attempts beside others, and trains a model if enough came.
    async fn look(&mut self, connection: &mut Connection) -> Result<Option<ToPlacer>, StoreError> {
        let runs = store::company::runs(connection).await?;
        if runs.is_empty() {
            return Ok(None);
        }
        let alone = foresight::lessons(connection).await?;
        let work = move || company::came(&runs, &alone).into_iter().unzip();
        let worked_out = tokio::task::spawn_blocking(work).await;
        let Ok((came, rows)): Result<(Vec<_>, Vec<_>), _> = worked_out else { return Ok(None) };
        let kept = store::company::keep(connection, &came).await?;
        foretold::count_company(kept.outcomes);
        let kept = kept.all;
        if kept == 0 && self.fresh.is_some() {
            return Ok(None);
        }
        let fresh = self.fresh.map(|fresh| fresh + kept);
        self.fresh = Some(fresh.unwrap_or(0));
        if fresh.is_none_or(|fresh| fresh >= NEW_RUNS) {
            let runs = rows.len();
            // A second of one core where there are many.
            let trained = tokio::task::spawn_blocking(move || Crowded::from(&rows)).await;
            self.fresh = Some(0);
            if let Ok(Some(model)) = trained {
                foresight::keep_model(connection, model.trained(), About::Company).await?;
                let fingerprint = format!("{:016x}", model.fingerprint());
                tracing::info!(fingerprint, runs, "learned how jobs do beside others");
                self.model = Some(Arc::new(model));
            }
        }
        let Some(model) = self.model.clone() else { return Ok(None) };
        let came = store::company::outcomes(connection, model.fingerprint()).await?;
        Ok(Some(ToPlacer::TeachCompany { model, came }))
    }
}
