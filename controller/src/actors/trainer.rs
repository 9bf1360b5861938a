//! Trains the models of how slices compare and of how fast co-located jobs are. It reads the store's
//! history on the threads of submits and reads, and trains again once enough runs have ended.

use std::sync::Arc;
use std::time::Duration;
use tessera_model::number::clamped;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::intake::Chain;
use super::prediction_metrics;
use crate::ports::ToPlacer;
use crate::store::kernel_profiles::{self, ReadTo};
use crate::store::predictions::{self, ModelSubject, SampleCount};
use crate::store::{self, ConnectOptions, Connection, StoreError};
use tessera_control::colocation::{self, ColocationModel};
use tessera_control::predictions::trained::RunTimeModel;

/// How many runs must have ended since the last training.
const NEW_RUNS: u64 = 16;

/// Starts training the model of slices on `runtime`. It looks for new runs once per `every`.
pub fn start_slice_trainer(
    runtime: &Handle,
    options: ConnectOptions,
    placer: mpsc::Sender<ToPlacer>,
    every: Duration,
) {
    runtime.spawn(async move {
        let mut known = SampleCount::default();
        loop {
            tokio::time::sleep(every).await;
            match train_slice_model(&options, known).await {
                Ok(None) => {}
                Ok(Some((count, trained))) => {
                    known = count;
                    let Some((model, accurate)) = trained else { continue };
                    if placer.send(ToPlacer::UseRunTimeModel { model, accurate }).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "the model of slices was not trained");
                }
            }
        }
    });
}

/// How often kernel profiles are read: a task is measured for some seconds at least.
const READ_EVERY: Duration = Duration::from_secs(10);

/// Reports to the placer how busy tasks are by their kernels' profiles, now and whenever they change.
/// It runs on `runtime`.
pub fn watch_kernels(runtime: &Handle, options: ConnectOptions, placer: mpsc::Sender<ToPlacer>) {
    runtime.spawn(async move {
        let mut watch = KernelWatch { options, placer, read: ReadTo::default() };
        loop {
            match watch.report_changes().await {
                Ok(PlacerGone) => return,
                // It continues where it stopped, on another connection.
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "kernel profiles were not read");
                }
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    });
}

/// The placer has ended.
struct PlacerGone;

struct KernelWatch {
    options: ConnectOptions,
    placer: mpsc::Sender<ToPlacer>,
    read: ReadTo,
}

impl KernelWatch {
    /// Reads changed profiles on one connection for as long as that works.
    async fn report_changes(&mut self) -> Result<PlacerGone, StoreError> {
        let mut connection = store::connect(&self.options).await?;
        loop {
            let (tasks, read) =
                kernel_profiles::read_task_loads(&mut connection, &self.read).await?;
            let more = read != self.read;
            if !tasks.is_empty()
                && self.placer.send(ToPlacer::RecordTaskLoad { tasks }).await.is_err()
            {
                return Ok(PlacerGone);
            }
            self.read = read;
            if !more {
                tokio::time::sleep(READ_EVERY).await;
            }
        }
    }
}

/// Trains a model if enough runs have ended since `known`. There is no model where the runs are too
/// few.
#[expect(clippy::disallowed_methods, reason = "measures how long a training took, for the log")]
async fn train_slice_model(
    options: &ConnectOptions,
    known: SampleCount,
) -> Result<Option<(SampleCount, Option<(Arc<RunTimeModel>, Vec<bool>)>)>, StoreError> {
    let mut connection = store::connect(options).await?;
    let count = predictions::count_samples(&mut connection).await?;
    if count.runs_since(known) < NEW_RUNS {
        return Ok(None);
    }
    let samples = predictions::read_run_samples(&mut connection).await?;
    let runs = samples.len();
    let begun = std::time::Instant::now();
    // Some seconds of one core where there are many runs.
    let model = tokio::task::spawn_blocking(move || RunTimeModel::from(&samples)).await;
    let Ok(Some(model)) = model else { return Ok(Some((count, None))) };
    if let Some(trained) = model.trained() {
        predictions::record_model(&mut connection, trained, ModelSubject::Slices).await?;
    }
    let accurate = predictions::read_outcomes(&mut connection, model.fingerprint()).await?;
    let fingerprint = format!("{:016x}", model.fingerprint());
    let took_ms: u64 = clamped(begun.elapsed().as_millis());
    tracing::info!(fingerprint, runs, took_ms, "trained the model of slices");
    Ok(Some((count, Some((Arc::new(model), accurate)))))
}

/// Starts training the model of co-located jobs on `runtime`. It looks for new runs once per `every`.
pub fn start_colocation_trainer(
    runtime: &Handle,
    options: ConnectOptions,
    placer: mpsc::Sender<ToPlacer>,
    every: Duration,
) {
    runtime.spawn(async move {
        let mut trainer =
            ColocationTrainer { options, model: None, new_outcomes: None, ended: None };
        loop {
            tokio::time::sleep(every).await;
            match trainer.next_report().await {
                Ok(None) => {}
                Ok(Some(report)) => {
                    if placer.send(report).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "the model of co-locations was not trained");
                }
            }
        }
    });
}

struct ColocationTrainer {
    options: ConnectOptions,
    model: Option<Arc<ColocationModel>>,
    /// How many outcomes became known since the model was trained; `None` before the first training.
    new_outcomes: Option<u64>,
    /// How many attempts had ended when outcomes were last computed.
    ended: Option<i64>,
}

impl ColocationTrainer {
    /// Returns a report for the placer, if outcomes became known: a model may no longer be
    /// accurate.
    async fn next_report(&mut self) -> Result<Option<ToPlacer>, StoreError> {
        let mut connection = store::connect(&self.options).await?;
        let ended = store::colocations::count_ended(&mut connection).await?;
        if self.ended == Some(ended) {
            return Ok(None);
        }
        let report = self.train(&mut connection).await?;
        self.ended = Some(ended);
        Ok(report)
    }

    /// Computes outcomes of co-located attempts, and trains a model if enough of them are new.
    async fn train(&mut self, connection: &mut Connection) -> Result<Option<ToPlacer>, StoreError> {
        let runs = store::colocations::read_shared_runs(connection).await?;
        if runs.is_empty() {
            return Ok(None);
        }
        let alone = predictions::read_run_samples(connection).await?;
        let work = move || colocation::measure_outcomes(&runs, &alone).into_iter().unzip();
        let computed = tokio::task::spawn_blocking(work).await;
        let Ok((outcomes, rows)): Result<(Vec<_>, Vec<_>), _> = computed else { return Ok(None) };
        let recorded = store::colocations::record_outcomes(connection, &outcomes).await?;
        prediction_metrics::count_colocation_outcomes(recorded.outcomes);
        let recorded = recorded.all;
        if recorded == 0 && self.new_outcomes.is_some() {
            return Ok(None);
        }
        let new = self.new_outcomes.map(|new| new + recorded);
        self.new_outcomes = Some(new.unwrap_or(0));
        if new.is_none_or(|new| new >= NEW_RUNS) {
            let runs = rows.len();
            // A second of one core where there are many.
            let trained = tokio::task::spawn_blocking(move || ColocationModel::from(&rows)).await;
            self.new_outcomes = Some(0);
            if let Ok(Some(model)) = trained {
                let subject = ModelSubject::Colocation;
                predictions::record_model(connection, model.trained(), subject).await?;
                let fingerprint = format!("{:016x}", model.fingerprint());
                tracing::info!(fingerprint, runs, "trained the model of co-locations");
                self.model = Some(Arc::new(model));
            }
        }
        let Some(model) = self.model.clone() else { return Ok(None) };
        let accurate = store::colocations::read_outcomes(connection, model.fingerprint()).await?;
        Ok(Some(ToPlacer::UseColocationModel { model, accurate }))
    }
}
