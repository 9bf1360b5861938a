//! Accepting submits: many requests share one commit.
//!
//! Several writers share the queue of calls: a free writer takes all waiting calls, commits them
//! together, and replies. While one waits for the disk, another can fill its batch.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};

use crate::memory::StoreMemory;
use crate::notifications::Outbox;
use crate::ports::SubmitCall;
use crate::requests::RequestError;
use crate::store::submit::{self, Committed, Numbers};
use crate::store::{self, ConnectOptions, Connection, StoreError, leader};
use tessera_control::rows::submitted::SubmittedJob;

/// Concurrent transactions: more only make smaller batches.
const WRITERS: usize = 2;
/// Maximum number of submits in one transaction: bounds the wait of the first.
const BATCH_MAX: usize = 512;
/// Maximum number of tasks in one transaction, so that a few large arrays don't delay small jobs.
const BATCH_TASKS_MAX: u32 = 20_000;
/// How often a batch is tried again after it met another writer.
const RETRIES: u32 = 3;

/// Starts the writers on `runtime`; they end when all senders of calls are gone.
pub fn start(
    runtime: &Handle,
    options: &ConnectOptions,
    memory: &Arc<StoreMemory>,
    calls: mpsc::Receiver<SubmitCall>,
    fresh: mpsc::Sender<Vec<SubmittedJob>>,
    outbox: &Outbox,
) {
    let calls = Arc::new(Mutex::new(calls));
    let numbers = Arc::new(Numbers::default());
    for _ in 0..WRITERS {
        let writer = Writer {
            options: options.clone(),
            memory: Arc::clone(memory),
            connection: None,
            calls: Arc::clone(&calls),
            fresh: fresh.clone(),
            numbers: Arc::clone(&numbers),
            outbox: outbox.clone(),
        };
        // Nothing holds the handle: a batch that has begun is always completed.
        runtime.spawn(writer.run());
    }
}

struct Writer {
    options: ConnectOptions,
    memory: Arc<StoreMemory>,
    /// Kept from batch to batch; none after an error.
    connection: Option<Connection>,
    calls: Arc<Mutex<mpsc::Receiver<SubmitCall>>>,
    fresh: mpsc::Sender<Vec<SubmittedJob>>,
    numbers: Arc<Numbers>,
    outbox: Outbox,
}

impl Writer {
    async fn run(mut self) {
        while let Some(batch) = self.next_batch().await {
            self.commit(batch).await;
        }
    }

    async fn next_batch(&self) -> Option<Vec<SubmitCall>> {
        let mut calls = self.calls.lock().await;
        let first = calls.recv().await?;
        let mut tasks = first.submission.tasks;
        let mut batch = vec![first];
        while batch.len() < BATCH_MAX && tasks < BATCH_TASKS_MAX {
            let Ok(call) = calls.try_recv() else { break };
            tasks = tasks.saturating_add(call.submission.tasks);
            batch.push(call);
        }
        Some(batch)
    }

    async fn commit(&mut self, batch: Vec<SubmitCall>) {
        let (submissions, replies): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|call| (call.submission, call.reply)).unzip();
        match self.insert(&submissions).await {
            Ok(committed) => {
                if !committed.queued.is_empty() {
                    // The placer reads the store at its start: none is lost if it is gone.
                    let _ = self.fresh.send(committed.queued).await;
                }
                for (reply, answer) in replies.into_iter().zip(committed.answers) {
                    // A client that hung up finds its job by its key.
                    let _ = reply.send(answer);
                }
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), jobs = submissions.len(), "submits not accepted");
                let refusal = refusal(&error);
                for reply in replies {
                    let _ = reply.send(Err(refusal.clone()));
                }
            }
        }
    }

    async fn insert(
        &mut self,
        submissions: &[crate::requests::NewSubmission],
    ) -> Result<Committed, StoreError> {
        let mut tries = 0;
        loop {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => {
                    // A rollback raises the job numbers: nothing is accepted before that.
                    let mut fresh = store::connect(&self.options).await?;
                    leader::check_lineage(&mut fresh, self.memory.known()).await?;
                    fresh
                }
            };
            let rules = self.outbox.rules();
            let numbers = &self.numbers;
            match submit::insert_submissions(&mut connection, submissions, numbers, rules).await {
                Ok(committed) => {
                    if committed.has_notifications {
                        self.outbox.wake();
                    }
                    self.connection = Some(connection);
                    return Ok(committed);
                }
                Err(StoreError::Conflict { .. }) if tries < RETRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

fn refusal(error: &StoreError) -> RequestError {
    match error {
        StoreError::KeyReused => RequestError::KeyReused,
        StoreError::Conflict { .. }
        | StoreError::Deposed { .. }
        | StoreError::RolledBack { .. }
        | StoreError::Corrupt { .. }
        | StoreError::Unavailable { .. } => {
            RequestError::Unavailable { reason: "the database did not accept the job".to_owned() }
        }
    }
}

/// An error with its causes, in one line.
pub struct Chain<'e>(pub &'e dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
