//! The delivery of one channel: takes what is due, sends it, and removes it or has it tried again.

use std::convert::Infallible;
use std::sync::LazyLock;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};
use tessera_control::notifications::schedule::{
    AGE_MAX, AfterFailure, JITTER_WHOLE, WAITING_MAX, after_failure,
};
use tessera_control::notifications::{Channel, MarkVerdict, judge_mark};
use tessera_model::Millis;
use tessera_model::number::clamped;
use tessera_telemetry::names::metric;
use uuid::Uuid;

use super::Outbox;
use crate::clock;
use crate::http::metrics;
use crate::store::notifications::{self as rows, ClaimedNotification, FailedDelivery};
use crate::store::{self, ConnectOptions, Connection, StoreError};

/// How long to wait before the database is tried again.
const DATABASE_PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two looks at the outbox: its size is counted as often.
const LOOK_EVERY: Duration = Duration::from_secs(10);

struct Counters {
    ended: IntCounterVec,
    waiting: IntGaugeVec,
}

static COUNTERS: LazyLock<Counters> = LazyLock::new(|| {
    let about = Opts::new(metric::NOTIFICATIONS, "Tries to deliver mail and webhooks.");
    let ended =
        IntCounterVec::new(about, &["channel", "result"]).expect("a constant name and label");
    let about = Opts::new(metric::NOTIFICATIONS_WAITING, "Mail and webhooks to be delivered.");
    let waiting = IntGaugeVec::new(about, &["channel"]).expect("a constant name and label");
    let registry = metrics::registry();
    registry.register(Box::new(ended.clone())).expect("a name that is used once");
    registry.register(Box::new(waiting.clone())).expect("a name that is used once");
    Counters { ended, waiting }
});

/// What sends the notifications of a channel.
pub(super) trait Sender: Send + Sync {
    /// Maximum number of notifications that are sent at a time.
    const AT_A_TIME: i64;

    /// Sends one notification.
    fn send(&self, one: &ClaimedNotification) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The delivery of one channel.
pub(super) struct Delivery {
    channel: Channel,
    options: ConnectOptions,
    outbox: Outbox,
}

/// Results of notifications that were claimed.
#[derive(Default)]
struct Settled {
    /// Delivered, or not needed any more.
    over: Vec<Uuid>,
    failed: Vec<FailedDelivery>,
    given_up: Vec<Uuid>,
}

impl Delivery {
    pub(super) fn new(channel: Channel, options: ConnectOptions, outbox: Outbox) -> Self {
        for result in ["delivered", "failed", "given_up"] {
            COUNTERS.ended.with_label_values(&[channel.word(), result]).inc_by(0);
        }
        COUNTERS.waiting.with_label_values(&[channel.word()]).set(0);
        Self { channel, options, outbox }
    }

    /// Delivers until this process ends; without a sender, only forgets what is too old.
    pub(super) async fn run<S: Sender>(self, sender: Option<S>) {
        loop {
            let error = match &sender {
                Some(sender) => match self.deliver(sender).await {
                    Ok(never) => match never {},
                    Err(error) => error,
                },
                None => match self.forget().await {
                    Ok(()) => return,
                    Err(error) => error,
                },
            };
            let channel = self.channel.word();
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(channel, error, "notifications wait for the database");
            tokio::time::sleep(DATABASE_PAUSE).await;
        }
    }

    async fn forget(&self) -> Result<(), StoreError> {
        let mut connection = store::connect(&self.options).await?;
        let gone = rows::expire(&mut connection, self.channel, AGE_MAX).await?;
        self.count_given_up(gone, "this channel is not configured any more");
        Ok(())
    }

    async fn deliver<S: Sender>(&self, sender: &S) -> Result<Infallible, StoreError> {
        let mut connection = store::connect(&self.options).await?;
        // Nobody else delivers while this controller leads: what is claimed was left by a former leader, or by this
        // task before it lost its connection.
        rows::release_claims(&mut connection, self.channel).await?;
        let mut counted = None;
        loop {
            while self.deliver_batch(&mut connection, sender).await? {}
            let now = clock::boot();
            if counted.is_none_or(|at: Millis| at.plus(millis(LOOK_EVERY)) <= now) {
                self.bound(&mut connection).await?;
                counted = Some(now);
            }
            let due = rows::wait_until_due(&mut connection, self.channel).await?;
            let pause = due.map_or(LOOK_EVERY, Millis::duration).min(LOOK_EVERY);
            tokio::select! {
                () = self.outbox.news(self.channel).notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Sends what is due, up to the most at a time. Returns whether more may be due.
    async fn deliver_batch<S: Sender>(
        &self,
        connection: &mut Connection,
        sender: &S,
    ) -> Result<bool, StoreError> {
        let claimed = rows::claim_due(connection, self.channel, S::AT_A_TIME).await?;
        if claimed.is_empty() {
            return Ok(false);
        }
        let mut settled = Settled::default();
        let mut due = Vec::with_capacity(claimed.len());
        for one in claimed {
            match judge(connection, &one).await? {
                MarkVerdict::Send => due.push(one),
                MarkVerdict::Drop => settled.over.push(one.id),
                MarkVerdict::Later(at) => {
                    let retry_in = at.minus(clock::unix());
                    settled.failed.push(FailedDelivery { id: one.id, retry_in, problem: None });
                }
            }
        }
        let sent = join_all(due.iter().map(|one| sender.send(one))).await;
        for (one, result) in due.iter().zip(sent) {
            self.settle(one, result, &mut settled);
        }
        rows::remove_delivered(connection, &settled.over).await?;
        rows::retry_later(connection, &settled.failed).await?;
        rows::give_up(connection, &settled.given_up).await?;
        Ok(true)
    }

    fn settle(&self, one: &ClaimedNotification, result: anyhow::Result<()>, to: &mut Settled) {
        let channel = self.channel.word();
        let count = |result| COUNTERS.ended.with_label_values(&[channel, result]).inc();
        let Err(error) = result else {
            count("delivered");
            to.over.push(one.id);
            return;
        };
        let (id, job, event, tries) = (one.id, one.job, &one.event, one.tries);
        let error = format!("{error:#}");
        count("failed");
        match after_failure(tries, one.age, jitter()) {
            AfterFailure::RetryIn(retry_in) => {
                tracing::warn!(channel, %id, %job, event, tries, error, "a notification was not delivered");
                to.failed.push(FailedDelivery { id, retry_in, problem: Some(error) });
            }
            AfterFailure::GiveUp => {
                count("given_up");
                tracing::error!(channel, %id, %job, event, tries, error, "a notification is given up");
                to.given_up.push(id);
            }
        }
    }

    /// Counts what waits, and gives up the oldest of too many.
    async fn bound(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let waiting = rows::waiting(connection, self.channel).await?;
        let beyond = waiting.saturating_sub(WAITING_MAX);
        if beyond > 0 {
            let gone = rows::remove_oldest(connection, self.channel, beyond).await?;
            self.count_given_up(gone, "too many wait");
        }
        let shown = clamped(waiting - beyond);
        COUNTERS.waiting.with_label_values(&[self.channel.word()]).set(shown);
        Ok(())
    }

    fn count_given_up(&self, count: u64, why: &str) {
        if count == 0 {
            return;
        }
        let channel = self.channel.word();
        COUNTERS.ended.with_label_values(&[channel, "given_up"]).inc_by(count);
        tracing::error!(channel, count, why, "notifications are given up");
    }
}

/// Decides whether a notification is sent now: one about a part of a time limit may have lost its reason.
async fn judge(
    connection: &mut Connection,
    one: &ClaimedNotification,
) -> Result<MarkVerdict, StoreError> {
    let (Some(attempt), Some(percent)) = (one.attempt, one.limit_percent()) else {
        return Ok(MarkVerdict::Send);
    };
    let running = rows::read_mark(connection, attempt).await?;
    Ok(judge_mark(percent, running.map(|mark| (mark.started, mark.limit)), clock::unix()))
}

/// Returns a random number below the whole of a jitter.
fn jitter() -> u16 {
    let (random, ..) = Uuid::new_v4().as_fields();
    clamped(random % u32::from(JITTER_WHOLE))
}

fn millis(span: Duration) -> Millis {
    Millis::new(tessera_model::number::clamped(span.as_millis()))
}
