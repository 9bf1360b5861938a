//! The measuring stage: a pair of events around each launch measures the run time of kernels and the
//! gaps between them (FIKIT §3.2).
//!
//! The program's own threads read the pairs: at later launches, and when they wait for the device or for a grant. Nothing waits for
//! an event here. Two events with nothing between them show some time as well: the minimum of a few
//! empty pairs is subtracted. The queue drops the first sample of each kernel.
//!
//! An idle device stamps events when the host records them. A thread that is interrupted between them
//! would show a kernel that is too long. The host's clock reveals such pairs, which are dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tessera_kernel_queue::Nanos;

use crate::counters::{self, count};
use crate::events::{DriverEvent, EventPool, EventStatus};
use crate::ring::{self, RecordKind, RingRecord};
use crate::{abi, captures, clock, kernel_catalog, terms};

/// Most events: pairs for twice the launches that a driver's queue holds on one stream.
const EVENTS_MAX: usize = 4_096;

/// Empty pairs, for the offset. Their minimum counts, since events may be late but not early.
const EMPTY_PAIRS: u32 = 8;

/// Most pairs that one launch reads, so that no launch pays for a long backlog.
const PAIRS_AT_ONCE_MAX: usize = 8;

static TIMING_EVENTS: EventPool = EventPool::new(abi::EVENT_DEFAULT, EVENTS_MAX);

/// A pair is dropped if the host took so many times longer than usual between its events. The
/// host's time must also exceed one part in `HELD_UP_PART` of the measured time.
const HELD_UP_TIMES: u64 = 3;
const HELD_UP_PART: u64 = 20;

/// A pair of events around one launch.
#[derive(Clone, Copy)]
struct EventPair {
    start: DriverEvent,
    end: DriverEvent,
    /// Time on the host from before the first event to after the second.
    host: Nanos,
    /// The kernel; `None` for an empty pair.
    kernel: Option<u32>,
    launch: u64,
    /// Whether the launches before and after it are measured as well.
    chained: bool,
}

/// The last measured launch, until the start of the next one is known.
#[derive(Clone, Copy)]
struct LastMeasured {
    end: DriverEvent,
    kernel: u32,
    before: Option<u32>,
    launch: u64,
    took: Nanos,
}

struct MeasuringState {
    pairs: VecDeque<EventPair>,
    last: Option<LastMeasured>,
}

static STATE: Mutex<MeasuringState> =
    Mutex::new(MeasuringState { pairs: VecDeque::new(), last: None });
/// Whether a thread reads pairs. Only one does at a time, so that they are read in order.
static IS_LOOKING: AtomicBool = AtomicBool::new(false);
static EMPTY_LEFT: AtomicU32 = AtomicU32::new(EMPTY_PAIRS);
/// The minimum of the empty pairs, in nanoseconds; `u64::MAX` before the first.
static OFFSET: AtomicU64 = AtomicU64::new(u64::MAX);
/// The host's usual time for a pair, in nanoseconds. It follows the median.
static USUAL_HOST_TIME: AtomicU64 = AtomicU64::new(0);
static TICK: AtomicU32 = AtomicU32::new(0);

fn state() -> MutexGuard<'static, MeasuringState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates all memory that the stage will need.
pub fn prepare() {
    TIMING_EVENTS.prepare();
    state().pairs.reserve_exact(EVENTS_MAX / 2);
}

/// The first half of a pair, before the launch.
#[derive(Debug)]
pub struct StartedPair {
    start: DriverEvent,
    end: DriverEvent,
    at: Nanos,
    chained: bool,
}

/// Returns whether a launch is measured. Launches are measured of kernels whose times the queue does not know
/// well, and one launch in [`terms::sample_every`]. In the measuring stage and of fillers (`news`), so are launches
/// of new kernels, before the queue has reported anything of them.
///
/// Kernels that are known cost no events even in the measuring stage: some others may need many samples.
#[inline]
pub fn is_due(kernel: u32, news: bool) -> bool {
    if kernel_catalog::is_measured(kernel) || (news && !kernel_catalog::is_defined(kernel)) {
        return true;
    }
    let every = terms::sample_every();
    every != 0 && TICK.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_multiple_of(every)
}

/// Starts the measurement of a launch before it is made.
#[cold]
pub fn begin(stream: abi::DriverHandle, per_thread: bool, chained: bool) -> Option<StartedPair> {
    if captures::is_capturing() {
        return None;
    }
    look(PAIRS_AT_ONCE_MAX);
    while EMPTY_LEFT.load(Ordering::Relaxed) > 0 {
        let left = EMPTY_LEFT.fetch_sub(1, Ordering::Relaxed);
        if left == 0 || left > EMPTY_PAIRS {
            EMPTY_LEFT.store(0, Ordering::Relaxed);
            break;
        }
        if let Some(begun) = start_pair(stream, per_thread, false) {
            finish(begun, None, 0, (stream, per_thread));
        }
    }
    start_pair(stream, per_thread, chained)
}

fn start_pair(stream: abi::DriverHandle, per_thread: bool, chained: bool) -> Option<StartedPair> {
    let start = TIMING_EVENTS.take()?;
    let Some(end) = TIMING_EVENTS.take() else {
        TIMING_EVENTS.give_back(start);
        return None;
    };
    let at = clock::now();
    start.record(stream, per_thread).then_some(StartedPair { start, end, at, chained })
}

/// Ends the measurement of a launch that was made.
pub fn end(begun: StartedPair, kernel: u32, launch: u64, on: (abi::DriverHandle, bool)) {
    finish(begun, Some(kernel), launch, on);
}

fn finish(begun: StartedPair, kernel: Option<u32>, launch: u64, on: (abi::DriverHandle, bool)) {
    let StartedPair { start, end, at, chained } = begun;
    if !end.record(on.0, on.1) {
        return abandon(StartedPair { start, end, at, chained });
    }
    let host = clock::now().minus(at);
    state().pairs.push_back(EventPair { start, end, host, kernel, launch, chained });
}

/// Discards a pair, since the driver refused the launch.
pub fn abandon(begun: StartedPair) {
    TIMING_EVENTS.give_back(begun.start);
    TIMING_EVENTS.give_back(begun.end);
}

/// Reads up to `most` pairs, oldest first, and reports their samples.
pub fn look(most: usize) {
    if record_samples(most) {
        ring::announce();
    }
}

/// Reads up to `most` pairs, oldest first, and records their samples for the next [`ring::announce`]. Returns
/// whether there are any.
pub fn record_samples(most: usize) -> bool {
    let mut any = false;
    if captures::is_capturing() || IS_LOOKING.swap(true, Ordering::Acquire) {
        return any;
    }
    for _ in 0..most {
        let Some(pair) = state().pairs.pop_front() else { break };
        match pair.end.status() {
            EventStatus::Pending => {
                state().pairs.push_front(pair);
                break;
            }
            EventStatus::Lost => {}
            EventStatus::Complete => any |= settle(pair),
        }
    }
    IS_LOOKING.store(false, Ordering::Release);
    any
}

/// Settles a pair whose events have happened. Returns whether a sample was recorded.
fn settle(pair: EventPair) -> bool {
    let Some(took) = pair.start.time_until(pair.end) else { return false };
    let Some(kernel) = pair.kernel else {
        OFFSET.fetch_min(took.get(), Ordering::Relaxed);
        TIMING_EVENTS.give_back(pair.start);
        TIMING_EVENTS.give_back(pair.end);
        return false;
    };
    let mut any = false;
    let took = took.minus(offset());
    let last = state().last.take();
    let follows = |last: &LastMeasured| pair.chained && last.launch + 1 == pair.launch;
    let before = last.as_ref().filter(|last| follows(last)).map(|last| last.kernel);
    if let Some(last) = last {
        let gap = follows(&last).then(|| last.end.time_until(pair.start)).flatten();
        any |= record_sample(&last, gap.map(|gap| gap.minus(offset())));
        TIMING_EVENTS.give_back(last.end);
    }
    TIMING_EVENTS.give_back(pair.start);
    if is_held_up(pair.host, took) {
        TIMING_EVENTS.give_back(pair.end);
        return any;
    }
    let last = LastMeasured { end: pair.end, kernel, before, launch: pair.launch, took };
    if pair.chained {
        state().last = Some(last);
    } else {
        any |= record_sample(&last, None);
        TIMING_EVENTS.give_back(last.end);
    }
    any
}

/// Returns whether the host was interrupted for so long that the pair is useless.
fn is_held_up(host: Nanos, shown: Nanos) -> bool {
    let host = host.get();
    let usual = match USUAL_HOST_TIME.load(Ordering::Relaxed) {
        0 => host,
        usual => usual,
    };
    let step = usual / 32 + 1;
    let next = if host > usual { usual + step } else { usual.saturating_sub(step).max(1) };
    USUAL_HOST_TIME.store(next, Ordering::Relaxed);
    host > usual.saturating_mul(HELD_UP_TIMES) && host > shown.get() / HELD_UP_PART
}

fn offset() -> Nanos {
    match OFFSET.load(Ordering::Relaxed) {
        u64::MAX => Nanos::ZERO,
        offset => Nanos::new(offset),
    }
}

fn record_sample(last: &LastMeasured, gap: Option<Nanos>) -> bool {
    count(&counters::SAMPLES);
    ring::leave(RingRecord {
        kind: RecordKind::Sample,
        kernel: last.kernel,
        launch: last.before.map_or(0, |before| u64::from(before) + 1),
        at: last.took.get(),
        extra: gap.map_or(0, |gap| gap.get().saturating_add(1)),
    })
}

/// Discards all pairs and events, since their context is gone.
pub fn forget() {
    TIMING_EVENTS.discard_all();
    let mut state = state();
    state.pairs.clear();
    state.last = None;
    EMPTY_LEFT.store(EMPTY_PAIRS, Ordering::Relaxed);
    OFFSET.store(u64::MAX, Ordering::Relaxed);
}
