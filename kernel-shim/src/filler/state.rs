//! The state that the threads of a filler share.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tessera_kernel_queue::{GrantBudget, Nanos};
use tessera_model::number::clamped;

use super::line::ThreadLine;
use super::signal::Signalled;
use crate::events::DriverEvent;
use crate::slack::TimerLateness;

pub type FillerGuard = MutexGuard<'static, FillerState>;

pub struct FillerState {
    pub budget: GrantBudget,
    /// Oldest first.
    pub in_flight: VecDeque<InFlightKernel>,
    /// Launches that have a permit and are not in `in_flight` yet.
    pub departing: u16,
    /// Kernels in flight that are not in `in_flight`, because a thread queries whether they have ended.
    pub queried: u16,
    /// Launches that the queue refused.
    pub refused: VecDeque<u64>,
    pub lateness: TimerLateness,
    /// The threads that wait.
    pub line: ThreadLine,
}

/// A kernel that was launched and is not known to be done.
#[derive(Clone, Copy)]
pub struct InFlightKernel {
    /// Its number among the launches that departed (`crate::streams`).
    pub departure: u64,
    /// Signals its end. Without an event it counts as done at its predicted end.
    pub event: Option<DriverEvent>,
    pub predicted_end: Nanos,
}

/// The state, and the bell of the threads that wait.
static FILLER: Signalled<FillerState> = Signalled::new(
    Mutex::new(FillerState {
        budget: GrantBudget::new(),
        in_flight: VecDeque::new(),
        departing: 0,
        queried: 0,
        refused: VecDeque::new(),
        lateness: TimerLateness::new(),
        line: ThreadLine::new(),
    }),
    Condvar::new(),
);

pub fn lock() -> FillerGuard {
    FILLER.lock()
}

/// Has all waiting threads look again.
pub fn wake() {
    FILLER.wake();
    crate::gate::wake_sleepers();
}

/// Sleeps until something changed. Returns whether the time is over.
pub fn sleep(state: FillerGuard, span: Duration) -> (FillerGuard, bool) {
    FILLER.sleep(state, span)
}

impl FillerState {
    /// Returns how many kernels are in flight or about to be launched.
    pub fn committed(&self) -> u16 {
        // A count beyond the range is beyond every grant's limit as well.
        let here = clamped::<u16>(self.in_flight.len()).saturating_add(self.departing);
        here.saturating_add(self.queried)
    }

    /// Returns how long to sleep before something that happens after `ahead`; `None` if timers are too
    /// coarse.
    pub fn sleep_before(&self, ahead: Nanos) -> Option<Nanos> {
        let lateness = self.lateness.get();
        (ahead > lateness).then(|| ahead.minus(lateness))
    }
}
