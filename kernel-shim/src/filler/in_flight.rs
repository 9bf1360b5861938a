//! The filler's kernels in flight: when each ended is reported to the queue.

use std::sync::atomic::Ordering;

use tessera_kernel_queue::Nanos;

use super::state::{self, FillerState, InFlightKernel};
use crate::events::{EventPool, EventStatus};
use crate::ring::{self, RecordKind, RingRecord};
use crate::{abi, captures, clock, counters, kernel_catalog, measure};

/// Most kernels whose end is tracked: far more than a queue allows in flight.
const IN_FLIGHT_MAX: usize = 128;

/// A kernel is polled without sleeping until so long after its predicted end. How long before the
/// end polling starts depends on the lateness of timers.
const POLL_MAX: Nanos = Nanos::from_micros(150);
/// Pause between looks at a kernel that takes longer than predicted.
const OVERDUE_PAUSE: Nanos = Nanos::from_micros(100);

static END_EVENTS: EventPool = EventPool::new(abi::EVENT_DISABLE_TIMING, IN_FLIGHT_MAX);

/// Allocates all memory that tracking will need.
pub fn prepare() {
    END_EVENTS.prepare();
    state::lock().in_flight.reserve_exact(IN_FLIGHT_MAX + 1);
}

/// Returns how long to sleep before the next look at the oldest kernel; `None` for no sleep.
pub fn next_look(filler: &FillerState, now: Nanos) -> Option<Nanos> {
    let first = filler.in_flight.front()?;
    let ahead = first.predicted_end.minus(now);
    if ahead > Nanos::ZERO {
        return filler.sleep_before(ahead);
    }
    (now.minus(first.predicted_end) >= POLL_MAX).then_some(OVERDUE_PAUSE)
}

/// Tracks a kernel that was launched, with or without a grant.
pub fn add_kernel(departure: u64, kernel: u32, stream: abi::DriverHandle, per_thread: bool) {
    // During a capture of any stream, recording an event here is an error.
    let event = if captures::is_capturing() { None } else { END_EVENTS.take() };
    let event = event.filter(|event| event.record(stream, per_thread));
    let now = clock::now();
    let mut filler = state::lock();
    filler.departing = filler.departing.saturating_sub(1);
    if filler.in_flight.len() >= IN_FLIGHT_MAX {
        return;
    }
    let begins = filler.in_flight.back().map_or(now, |last| now.max(last.predicted_end));
    let predicted = kernel_catalog::predicted_time(kernel).unwrap_or(Nanos::ZERO);
    let predicted_end = begins.plus(predicted);
    filler.in_flight.push_back(InFlightKernel { departure, event, predicted_end });
    publish_count(&filler);
}

/// Handles a launch that the driver refused: it is not in flight.
pub fn on_refused_launch() {
    let mut filler = state::lock();
    filler.departing = filler.departing.saturating_sub(1);
    publish_count(&filler);
    drop(filler);
    state::wake();
}

/// Checks which kernels have ended, and reports them.
pub fn look() {
    if record_ends() {
        ring::announce();
    }
}

/// Records the kernels that have ended, oldest first, for the next [`ring::announce`]. Returns
/// whether there are any.
pub fn record_ends() -> bool {
    let mut any = false;
    if captures::is_capturing() {
        return any;
    }
    loop {
        let Some(first) = take_first() else { return any };
        // It is removed while the driver is called, so that no lock is held and no other thread
        // queries the same kernel. It still counts as in flight: otherwise another thread would launch next to it.
        let status = match first.event {
            Some(event) => event.status(),
            None if clock::now() >= first.predicted_end => EventStatus::Complete,
            None => EventStatus::Pending,
        };
        match status {
            EventStatus::Pending => {
                let mut filler = state::lock();
                filler.queried = filler.queried.saturating_sub(1);
                filler.in_flight.push_front(first);
                publish_count(&filler);
                return any;
            }
            EventStatus::Complete | EventStatus::Lost => {
                if let (Some(event), EventStatus::Complete) = (first.event, status) {
                    END_EVENTS.give_back(event);
                }
                let mut filler = state::lock();
                filler.queried = filler.queried.saturating_sub(1);
                publish_count(&filler);
                drop(filler);
                // Before its end, so that the next grant is based on it. A thread that waits for a grant makes no
                // launch at which it would be read otherwise.
                any |= measure::record_samples(usize::MAX);
                any |= ring::leave(RingRecord {
                    kind: RecordKind::Done,
                    kernel: 0,
                    launch: first.departure,
                    at: clock::now().get(),
                    extra: 0,
                });
                state::wake();
            }
        }
    }
}

/// Removes the oldest kernel from those in flight, to query it.
fn take_first() -> Option<InFlightKernel> {
    let mut filler = state::lock();
    let first = filler.in_flight.pop_front()?;
    filler.queried = filler.queried.saturating_add(1);
    Some(first)
}

/// Handles a synchronising call: all launches that had departed by `number` are done.
///
/// Returns the grant that is returned to the queue, because the program turns to other work and
/// other sessions wait.
pub fn on_sync(number: u64) -> Option<u64> {
    let mut filler = state::lock();
    while let Some(first) =
        filler.in_flight.front().copied().filter(|first| first.departure <= number)
    {
        filler.in_flight.pop_front();
        if let Some(event) = first.event {
            END_EVENTS.give_back(event);
        }
    }
    publish_count(&filler);
    let returned = filler.budget.grant().filter(|grant| grant.yields).map(|grant| grant.number);
    if returned.is_some() {
        filler.budget.clear();
    }
    drop(filler);
    state::wake();
    returned
}

/// Discards all events and kernels in flight: their context is gone.
pub fn on_context_end() {
    END_EVENTS.discard_all();
    let mut filler = state::lock();
    filler.in_flight.clear();
    publish_count(&filler);
}

fn publish_count(filler: &FillerState) {
    counters::IN_FLIGHT.store(filler.committed().into(), Ordering::Relaxed);
}
