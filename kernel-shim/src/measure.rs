//! The measuring stage: a pair of events around each launch measures the run time of kernels and the
//! gaps between them (FIKIT §3.2).
//!
//! Few launches are measured, so that it costs a fixed small part of the program's time ([`crate::sampling`]). For the gap
//! after a kernel the next launch is measured as well.
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
use crate::sampling::{DEVICE_COST, SamplingBudget};
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
    /// The kernel before it in this process.
    before: Option<u32>,
    launch: u64,
    /// Whether the next launch is measured as well.
    leads: bool,
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
static BUDGET: SamplingBudget = SamplingBudget::full();
/// The launch that is measured because the one before it is; 0 if there is none.
static FOLLOWER: AtomicU64 = AtomicU64::new(0);
/// The last launch of the measuring stage: its number, shifted by [`KERNEL_BITS`], and its kernel.
static LAST_LAUNCH: AtomicU64 = AtomicU64::new(0);
/// Numbers of kernels have at most so many bits.
const KERNEL_BITS: u32 = 24;

fn state() -> MutexGuard<'static, MeasuringState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates all memory that the stage will need.
pub fn prepare() {
    TIMING_EVENTS.prepare();
    state().pairs.reserve_exact(EVENTS_MAX / 2);
}

/// A launch that is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct DueLaunch {
    /// The kernel before it, if that is known.
    before: Option<u32>,
    /// Whether the next launch is measured as well.
    leads: bool,
    at: Nanos,
}

/// The first half of a pair, before the launch.
#[derive(Debug)]
pub struct StartedPair {
    start: DriverEvent,
    end: DriverEvent,
    at: Nanos,
    due: DueLaunch,
}

/// Returns whether and how a launch is measured. Launches are measured of kernels whose times the queue does not know
/// well, and one launch in [`terms::sample_every`], as far as the budget pays for them. In the measuring stage and of
/// fillers, so are launches of new kernels, before the queue has reported anything of them. A launch that was granted by
/// its age is always measured: they are rare, and the program may look at the end long after it.
#[inline]
pub fn due((kernel, is_aged): (u32, bool), launch: u64, role: u32) -> Option<DueLaunch> {
    let is_stage = role == terms::MEASURE;
    let mut before = None;
    let mut follows = false;
    if is_stage {
        let this = (launch << KERNEL_BITS) | u64::from(kernel);
        before = before_launch(LAST_LAUNCH.swap(this, Ordering::Relaxed), launch);
        follows = FOLLOWER.load(Ordering::Relaxed) == launch;
    }
    let is_useful = is_aged || is_useful(kernel, is_stage || role == terms::FILL);
    if !is_useful && !follows {
        return None;
    }
    let at = clock::now();
    let is_allowed = is_useful && (BUDGET.allows(kernel_catalog::samples(kernel), at) || is_aged);
    if !is_allowed && !follows {
        return None;
    }
    kernel_catalog::count_sample(kernel);
    let leads = is_allowed && is_stage;
    if leads {
        FOLLOWER.store(launch + 1, Ordering::Relaxed);
    }
    Some(DueLaunch { before, leads, at })
}

/// Returns the kernel of the last launch, if that is the one before this.
const fn before_launch(last: u64, launch: u64) -> Option<u32> {
    let is_before = (last >> KERNEL_BITS) + 1 == launch && launch > 1;
    let kernel = (last & ((1 << KERNEL_BITS) - 1)) as u32;
    if is_before { Some(kernel) } else { None }
}

#[inline]
fn is_useful(kernel: u32, takes_new: bool) -> bool {
    if kernel_catalog::is_measured(kernel) || (takes_new && !kernel_catalog::is_defined(kernel)) {
        return true;
    }
    let every = terms::sample_every();
    every != 0 && TICK.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_multiple_of(every)
}

/// Starts the measurement of a launch before it is made.
#[cold]
pub fn begin(stream: abi::DriverHandle, per_thread: bool, due: DueLaunch) -> Option<StartedPair> {
    if captures::is_capturing() {
        return None;
    }
    let settled = settle_pairs(PAIRS_AT_ONCE_MAX);
    if settled.any_recorded {
        ring::announce();
    }
    while EMPTY_LEFT.load(Ordering::Relaxed) > 0 {
        let left = EMPTY_LEFT.fetch_sub(1, Ordering::Relaxed);
        if left == 0 || left > EMPTY_PAIRS {
            EMPTY_LEFT.store(0, Ordering::Relaxed);
            break;
        }
        if let Some(begun) = start_pair(stream, per_thread, due) {
            finish(begun, None, 0, (stream, per_thread));
        }
    }
    let begun = start_pair(stream, per_thread, due);
    let cost = clock::now().minus(due.at).plus(DEVICE_COST);
    BUDGET.take(cost, 1 + settled.pairs);
    begun
}

fn start_pair(stream: abi::DriverHandle, per_thread: bool, due: DueLaunch) -> Option<StartedPair> {
    let start = TIMING_EVENTS.take()?;
    let Some(end) = TIMING_EVENTS.take() else {
        TIMING_EVENTS.give_back(start);
        return None;
    };
    let at = clock::now();
    start.record(stream, per_thread).then_some(StartedPair { start, end, at, due })
}

/// Ends the measurement of a launch that was made.
pub fn end(begun: StartedPair, kernel: u32, launch: u64, on: (abi::DriverHandle, bool)) {
    finish(begun, Some(kernel), launch, on);
}

fn finish(begun: StartedPair, kernel: Option<u32>, launch: u64, on: (abi::DriverHandle, bool)) {
    let StartedPair { start, end, at, due } = begun;
    let launched = clock::now();
    if !end.record(on.0, on.1) {
        return abandon(StartedPair { start, end, at, due });
    }
    let now = clock::now();
    BUDGET.take(now.minus(launched), 1);
    let (host, DueLaunch { before, leads, .. }) = (now.minus(at), due);
    state().pairs.push_back(EventPair { start, end, host, kernel, before, launch, leads });
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
    if state().pairs.is_empty() {
        return false;
    }
    let at = clock::now();
    let settled = settle_pairs(most);
    BUDGET.take(clock::now().minus(at), settled.pairs);
    settled.any_recorded
}

/// What was done with the pairs.
#[derive(Clone, Copy, Debug, Default)]
struct SettledPairs {
    pairs: u64,
    /// Whether a sample was recorded.
    any_recorded: bool,
}

fn settle_pairs(most: usize) -> SettledPairs {
    let mut settled = SettledPairs::default();
    if captures::is_capturing() || IS_LOOKING.swap(true, Ordering::Acquire) {
        return settled;
    }
    for _ in 0..most {
        let Some(pair) = state().pairs.pop_front() else { break };
        match pair.end.status() {
            EventStatus::Pending => {
                state().pairs.push_front(pair);
                break;
            }
            EventStatus::Lost => {}
            EventStatus::Complete => settled.any_recorded |= settle(pair),
        }
        settled.pairs += 1;
    }
    IS_LOOKING.store(false, Ordering::Release);
    settled
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
    if let Some(last) = last {
        let gap =
            (last.launch + 1 == pair.launch).then(|| last.end.time_until(pair.start)).flatten();
        any |= record_sample(&last, gap.map(|gap| gap.minus(offset())));
        TIMING_EVENTS.give_back(last.end);
    }
    TIMING_EVENTS.give_back(pair.start);
    if is_held_up(pair.host, took) {
        TIMING_EVENTS.give_back(pair.end);
        return any;
    }
    let EventPair { end, before, launch, .. } = pair;
    let last = LastMeasured { end, kernel, before, launch, took };
    if pair.leads {
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
