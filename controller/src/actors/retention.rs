//! Removes rows about what ended long ago, one batch at a time, on the threads of submits and
//! reads.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{IntCounterVec, Opts};
use tessera_model::{Millis, RetentionTime};
use tessera_telemetry::names::metric;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::intake::Chain;
use crate::http::metrics;
use crate::live::RetentionTimes;
use crate::store::{self, ConnectOptions, Connection, StoreError, audit, retention, rounds};

/// Longest time between sweeps; a tenth of what is kept, where that is shorter.
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(600);
/// Shortest time between sweeps.
const SWEEP_EVERY_MIN: Duration = Duration::from_secs(1);
/// Maximum number of bytes that recorded rounds take together, as they are stored: beyond it the
/// oldest go before their time.
const ROUNDS_BYTES_MAX: i64 = 1 << 30;
/// How long the database is left alone between batches: their removal is not urgent.
const BATCH_PAUSE: Duration = Duration::from_millis(200);

static COUNTER: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let about =
        Opts::new(metric::HISTORY_REMOVED, "Rows removed from the database because of their age.");
    let counter = IntCounterVec::new(about, &["what"]).expect("a constant name and label");
    metrics::registry().register(Box::new(counter.clone())).expect("a name that is used once");
    counter
});

/// Starts the sweeps on `runtime`. `epoch` is the epoch that this controller leads under.
pub fn start_sweeps(
    runtime: &Handle,
    options: ConnectOptions,
    epoch: watch::Receiver<u64>,
    mut kept: watch::Receiver<RetentionTimes>,
) {
    for what in ["jobs", "layout_plans", "rounds", "audit_entries"] {
        COUNTER.with_label_values(&[what]).inc_by(0);
    }
    runtime.spawn(async move {
        loop {
            let times = *kept.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep(sweep_every(times)) => {}
                // What is now kept for a shorter time is removed at once.
                Ok(()) = kept.changed() => {}
            }
            let times = *kept.borrow_and_update();
            let done = match store::connect(&options).await {
                Ok(mut connection) => sweep(&mut connection, &epoch, times).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(error = %Chain(&error), "old rows were not removed");
            }
        }
    });
}

fn sweep_every(kept: RetentionTimes) -> Duration {
    let tenth = |keep: RetentionTime| match keep {
        RetentionTime::For(span) => span.duration() / 10,
        RetentionTime::Forever => SWEEP_EVERY_MAX,
    };
    tenth(kept.history)
        .min(tenth(kept.rounds))
        .min(tenth(kept.audit))
        .clamp(SWEEP_EVERY_MIN, SWEEP_EVERY_MAX)
}

async fn sweep(
    connection: &mut Connection,
    epoch: &watch::Receiver<u64>,
    kept: RetentionTimes,
) -> Result<(), StoreError> {
    if let RetentionTime::For(span) = kept.history {
        sweep_jobs(connection, epoch, span).await?;
    }
    if let RetentionTime::For(span) = kept.audit {
        sweep_audit(connection, span).await?;
    }
    sweep_rounds(connection, epoch, kept.rounds).await
}

/// Entries are independent: it does no harm if two controllers remove them.
async fn sweep_audit(connection: &mut Connection, span: Millis) -> Result<(), StoreError> {
    loop {
        let gone = audit::remove_old(connection, span.duration().as_secs_f64()).await?;
        COUNTER.with_label_values(&["audit_entries"]).inc_by(gone);
        if gone == 0 {
            return Ok(());
        }
        tracing::info!(entries = gone, "removed old entries of the audit log");
        tokio::time::sleep(BATCH_PAUSE).await;
    }
}

async fn sweep_rounds(
    connection: &mut Connection,
    epoch: &watch::Receiver<u64>,
    keep: RetentionTime,
) -> Result<(), StoreError> {
    let keep_secs = match keep {
        RetentionTime::For(span) => Some(span.duration().as_secs_f64()),
        RetentionTime::Forever => None,
    };
    loop {
        let held = *epoch.borrow();
        let gone =
            rounds::remove_oldest_chain(connection, held, keep_secs, ROUNDS_BYTES_MAX).await?;
        COUNTER.with_label_values(&["rounds"]).inc_by(gone);
        if gone == 0 {
            return Ok(());
        }
        tracing::info!(rounds = gone, "removed old recorded rounds");
        tokio::time::sleep(BATCH_PAUSE).await;
    }
}

async fn sweep_jobs(
    connection: &mut Connection,
    epoch: &watch::Receiver<u64>,
    span: Millis,
) -> Result<(), StoreError> {
    let secs = span.duration().as_secs_f64();
    let held = || *epoch.borrow();
    let (mut jobs, mut layouts, mut after) = (0_u64, 0_u64, Some(0));
    while let Some(from) = after {
        let batch = retention::remove_jobs(connection, held(), secs, from).await?;
        COUNTER.with_label_values(&["jobs"]).inc_by(batch.jobs);
        (jobs, after) = (jobs + batch.jobs, batch.next);
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    loop {
        let removed = retention::remove_layout_plans(connection, held(), secs).await?;
        COUNTER.with_label_values(&["layout_plans"]).inc_by(removed);
        layouts += removed;
        if removed == 0 {
            break;
        }
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    if jobs + layouts > 0 {
        tracing::info!(jobs, layouts, "removed old jobs and layout plans");
    }
    Ok(())
}
