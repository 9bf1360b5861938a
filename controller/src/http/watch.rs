//! Waiting for one job's next move.
//!
//! One task receives every state change and wakes the requests that wait for that very job. If
//! each waiting request received them all, a thousand would cost a thousand times as much.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tessera_model::JobId;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::futures::Notified;

use super::error::ApiError;
use crate::ports::JobChanges;
use tessera_control::commands::JobStateChange;

/// Maximum number of jobs that are waited for at once.
const WATCHED_MAX: usize = 4_096;

/// The jobs that requests wait for.
#[derive(Debug, Default)]
pub(super) struct Watch {
    watched: Mutex<HashMap<JobId, Arc<Notify>>>,
}

impl Watch {
    /// Begins to receive state changes, until the watch is dropped.
    pub(super) fn over(moved: &broadcast::Sender<JobChanges>, runtime: &Handle) -> Arc<Self> {
        let watch = Arc::new(Self::default());
        runtime.spawn(receive_changes(Arc::downgrade(&watch), moved.subscribe()));
        watch
    }

    /// Begins to wait for a job's moves.
    pub(super) fn on(self: &Arc<Self>, job: JobId) -> Result<Watching, ApiError> {
        let mut watched = self.lock();
        if watched.len() >= WATCHED_MAX && !watched.contains_key(&job) {
            return Err(ApiError::Overloaded { reason: "too many clients are waiting for jobs" });
        }
        let notify = Arc::clone(watched.entry(job).or_default());
        Ok(Watching { watch: Arc::clone(self), job, notify })
    }

    fn wake(&self, moved: &[JobStateChange]) {
        let watched = self.lock();
        // Usually few are waited for, and thousands of jobs may be submitted at once.
        if watched.is_empty() {
            return;
        }
        for notify in moved.iter().filter_map(|change| watched.get(&change.job)) {
            notify.notify_waiters();
        }
    }

    /// After moves were missed, everybody has to look.
    fn wake_all(&self) {
        self.lock().values().for_each(|notify| notify.notify_waiters());
    }

    /// Nothing in here can panic halfway, so a poisoned map is whole.
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Notify>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn receive_changes(watch: Weak<Watch>, mut moves: broadcast::Receiver<JobChanges>) {
    loop {
        let received = moves.recv().await;
        let Some(watch) = watch.upgrade() else { return };
        match received {
            Ok(moved) => watch.wake(&moved),
            Err(RecvError::Lagged(_)) => watch.wake_all(),
            Err(RecvError::Closed) => return,
        }
    }
}

/// A wait for the moves of one job.
#[derive(Debug)]
pub(super) struct Watching {
    watch: Arc<Watch>,
    job: JobId,
    notify: Arc<Notify>,
}

impl Watching {
    /// Waits for the next move. Call it **before** looking at the job: a move between the look
    /// and the wait is then not missed.
    pub(super) fn moved(&self) -> Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Entry::Occupied(entry) = self.watch.lock().entry(self.job)
            // The map's and this one: nobody else waits.
            && Arc::strong_count(entry.get()) <= 2
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tessera_model::life::JobState;
    use tokio::time::timeout;

    use super::*;

    fn moved(number: u64) -> JobStateChange {
        JobStateChange { job: JobId::from_number(number), attempt: None, state: JobState::Running }
    }

    #[tokio::test]
    async fn only_moves_of_the_watched_job_wake() {
        let (moves, _keep) = broadcast::channel(8);
        let watch = Watch::over(&moves, &Handle::current());
        let one = watch.on(JobId::from_number(1)).unwrap();
        let two = watch.on(JobId::from_number(2)).unwrap();
        let (first, second) = (one.moved(), two.moved());

        moves.send([moved(1)].into()).unwrap();

        timeout(Duration::from_secs(5), first).await.unwrap();
        assert!(timeout(Duration::from_millis(20), second).await.is_err());
    }

    #[tokio::test]
    async fn a_wait_that_ends_leaves_nothing_behind() {
        let (moves, _keep) = broadcast::channel(8);
        let watch = Watch::over(&moves, &Handle::current());
        let one = watch.on(JobId::from_number(1)).unwrap();
        let again = watch.on(JobId::from_number(1)).unwrap();

        drop(one);
        assert_eq!(watch.lock().len(), 1);
        drop(again);
        assert!(watch.lock().is_empty());
    }
}
