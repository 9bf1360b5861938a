//! The newest state changes of jobs, numbered, so that a listener that was disconnected can
//! continue where it was.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::ports::JobChanges;
use tessera_control::commands::JobStateChange;
use tessera_model::number::index;
use tokio::runtime::Handle;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;

/// How many changes are kept: those of some minutes on a busy cluster, in a few megabytes.
const KEPT: usize = 65_536;
/// Maximum number of changes that a listener is given at once.
const BATCH: usize = 256;

/// The changes, and who is notified of new ones.
#[derive(Debug)]
pub(super) struct ChangeLog {
    kept: Mutex<Kept>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number of the newest change; the first has 1.
    newest: u64,
    /// The newest ones, oldest first.
    changes: VecDeque<JobStateChange>,
}

/// What a listener is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Changes, with the number of the first.
    Changes(u64, Vec<JobStateChange>),
    /// Changes were lost; the stream continues after this number.
    Missed(u64),
    /// Nothing is new.
    Nothing,
}

impl Kept {
    fn push(&mut self, change: JobStateChange, at_most: usize) {
        self.newest += 1;
        self.changes.push_back(change);
        while self.changes.len() > at_most {
            self.changes.pop_front();
        }
    }

    /// Forgets everything: changes before the next one are lost.
    fn lose(&mut self) {
        self.newest += 1;
        self.changes.clear();
    }

    fn after(&self, number: u64) -> Piece {
        let oldest = self.newest - self.changes.len() as u64;
        if number > self.newest || number < oldest {
            return Piece::Missed(self.newest);
        }
        let skipped = index(number - oldest);
        let changes: Vec<_> = self.changes.iter().skip(skipped).take(BATCH).copied().collect();
        if changes.is_empty() { Piece::Nothing } else { Piece::Changes(number + 1, changes) }
    }
}

impl ChangeLog {
    /// Begins to receive state changes, until the log is dropped.
    pub(super) fn over(changes: &broadcast::Sender<JobChanges>, runtime: &Handle) -> Arc<Self> {
        let log = Arc::new(Self { kept: Mutex::default(), newest: watch::channel(0).0 });
        runtime.spawn(receive(Arc::downgrade(&log), changes.subscribe()));
        log
    }

    /// Returns what came after a number.
    pub(super) fn after(&self, number: u64) -> Piece {
        self.lock().after(number)
    }

    /// Returns the number of the newest change.
    pub(super) fn newest(&self) -> u64 {
        self.lock().newest
    }

    /// Notifies of new changes. Subscribe **before** looking, so that none is missed in between.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn record(&self, received: Option<&[JobStateChange]>) {
        let newest = {
            let mut kept = self.lock();
            match received {
                Some(changes) => changes.iter().for_each(|change| kept.push(*change, KEPT)),
                None => kept.lose(),
            }
            kept.newest
        };
        self.newest.send_replace(newest);
    }

    /// Nothing in here can panic halfway, so a poisoned log is whole.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn receive(log: Weak<ChangeLog>, mut changes: broadcast::Receiver<JobChanges>) {
    loop {
        let received = changes.recv().await;
        let Some(log) = log.upgrade() else { return };
        match received {
            Ok(changes) => log.record(Some(&changes)),
            Err(RecvError::Lagged(_)) => log.record(None),
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_model::JobId;
    use tessera_model::life::JobState;

    use super::*;

    fn change(number: u64) -> JobStateChange {
        JobStateChange { job: JobId::from_number(number), attempt: None, state: JobState::Running }
    }

    fn kept(count: u64, at_most: usize) -> Kept {
        let mut kept = Kept::default();
        (1..=count).for_each(|number| kept.push(change(number), at_most));
        kept
    }

    #[test]
    fn a_listener_goes_on_behind_the_last_change_that_it_has() {
        let kept = kept(5, 10);

        assert_eq!(kept.after(3), Piece::Changes(4, vec![change(4), change(5)]));
        assert_eq!(kept.after(5), Piece::Nothing);
        assert_eq!(kept.after(0), Piece::Changes(1, (1..=5).map(change).collect()));
    }

    #[test]
    fn a_listener_that_was_away_for_too_long_is_told() {
        let mut kept = kept(9, 3);

        assert_eq!(kept.after(5), Piece::Missed(9));
        assert_eq!(kept.after(6), Piece::Changes(7, (7..=9).map(change).collect()));
        // The number of another controller's log.
        assert_eq!(kept.after(70), Piece::Missed(9));
        kept.lose();
        assert_eq!(kept.after(9), Piece::Missed(10));
    }
}
