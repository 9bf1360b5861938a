//! Forgets what ended long ago, a batch at a time, on the threads of submits and reads.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{IntCounterVec, Opts};
use tessera_model::{Keep, Millis};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::intake::Chain;
use crate::http::metrics;
use crate::store::{self, ConnectOptions, Connection, StoreError, history};

/// Counter: jobs and layout changes that were removed since they ended long ago, by `what`.
const REMOVED: &str = "tessera_history_removed_total";
/// Longest time between sweeps; a tenth of what is kept, where that is shorter.
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(600);
/// Shortest time between sweeps.
const SWEEP_EVERY_MIN: Duration = Duration::from_secs(1);
/// How long the database is left alone between batches: old rows are in no hurry.
const BATCH_PAUSE: Duration = Duration::from_millis(200);

static COUNTER: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let about = Opts::new(REMOVED, "Removed from the database, since they ended long ago.");
    let counter = IntCounterVec::new(about, &["what"]).expect("a constant name and label");
    metrics::registry().register(Box::new(counter.clone())).expect("a name that is used once");
    counter
});

/// Starts the sweeps on `runtime`; they end with it. `epoch` tells which one is held.
pub fn start(runtime: &Handle, options: ConnectOptions, epoch: watch::Receiver<u64>, keep: Keep) {
    let Keep::For(span) = keep else { return };
    for what in ["jobs", "layout_changes"] {
        COUNTER.with_label_values(&[what]).inc_by(0);
    }
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(sweep_every(span)).await;
            let done = match store::connect(&options).await {
                Ok(mut connection) => sweep(&mut connection, &epoch, span).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(error = %Chain(&error), "history not swept");
            }
        }
    });
}

fn sweep_every(span: Millis) -> Duration {
    (span.duration() / 10).clamp(SWEEP_EVERY_MIN, SWEEP_EVERY_MAX)
}

async fn sweep(
    connection: &mut Connection,
    epoch: &watch::Receiver<u64>,
    span: Millis,
) -> Result<(), StoreError> {
    let secs = span.duration().as_secs_f64();
    let held = || *epoch.borrow();
    let (mut jobs, mut layouts, mut after) = (0_u64, 0_u64, Some(0));
    while let Some(from) = after {
        let batch = history::remove_jobs(connection, held(), secs, from).await?;
        COUNTER.with_label_values(&["jobs"]).inc_by(batch.jobs);
        (jobs, after) = (jobs + batch.jobs, batch.next);
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    loop {
        let removed = history::remove_layouts(connection, held(), secs).await?;
        COUNTER.with_label_values(&["layout_changes"]).inc_by(removed);
        layouts += removed;
        if removed == 0 {
            break;
        }
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    if jobs + layouts > 0 {
        tracing::info!(jobs, layouts, "old history removed");
    }
    Ok(())
}
