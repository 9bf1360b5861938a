//! The measuring stage: how long kernels take on the device, and how long it is idle between
//! them, by a pair of events around each launch (FIKIT §3.2).
//!
//! Pairs are looked at on the program's own threads, at later launches and when it waits: nothing
//! is ever waited for here. Two events with nothing between them show some time as well; the least
//! of a few such pairs is taken off. Who receives the samples drops each kernel's first.
//!
//! The events of a device that has nothing to do are stamped when the host gets to record them, so
//! a thread that is held up between them shows a kernel that lasts as much longer: such pairs are
//! known by the host's own clock, and left out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tessera_kernel_queue::Nanos;

use crate::counters::{self, count};
use crate::events::{Event, Pool, Seen};
use crate::ring::{self, Entry, Kind};
use crate::{abi, clock, kernels, session};

/// Most events: pairs for twice as many launches as a driver's queue holds on one stream.
const EVENTS_MAX: usize = 4_096;

/// Pairs without a kernel between them, for the offset. The least counts: events may be late, but
/// not early.
const EMPTY_PAIRS: u32 = 8;

/// Most pairs that one launch looks at, so that no launch pays for a long backlog.
const LOOKED_AT_MAX: usize = 8;

static TIMES: Pool = Pool::new(abi::EVENT_DEFAULT, EVENTS_MAX);

/// A host that takes so many times longer than usual between a pair's events was held up; if
/// that is more than this part of what they show, they say nothing of the kernel.
const HELD_UP_TIMES: u64 = 3;
const HELD_UP_PART: u64 = 20;

/// A pair of events around one launch.
#[derive(Clone, Copy)]
struct Pair {
    start: Event,
    end: Event,
    /// What the host took from before the first to behind the second.
    host: Nanos,
    /// The kernel; nothing for an empty pair.
    kernel: Option<u32>,
    launch: u64,
    /// Whether launches before and after it are measured too.
    chained: bool,
}

/// The last measured launch, until it is known when the next began.
#[derive(Clone, Copy)]
struct Last {
    end: Event,
    kernel: u32,
    before: Option<u32>,
    launch: u64,
    took: Nanos,
}

struct Stage {
    pairs: VecDeque<Pair>,
    last: Option<Last>,
}

static STAGE: Mutex<Stage> = Mutex::new(Stage { pairs: VecDeque::new(), last: None });
/// Whether a thread is looking at pairs: one at a time, so that they are looked at in order.
static LOOKING: AtomicBool = AtomicBool::new(false);
static EMPTY_LEFT: AtomicU32 = AtomicU32::new(EMPTY_PAIRS);
/// What an empty pair shows, in nanoseconds; the highest number until one was seen.
static OFFSET: AtomicU64 = AtomicU64::new(u64::MAX);
/// What the host usually takes for a pair, in nanoseconds: follows the median.
static USUAL: AtomicU64 = AtomicU64::new(0);
static TICK: AtomicU32 = AtomicU32::new(0);

fn stage() -> MutexGuard<'static, Stage> {
    STAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the memory that the stage will ever need.
pub fn prepare() {
    TIMES.prepare();
    stage().pairs.reserve_exact(EVENTS_MAX / 2);
}

/// The first half of a pair, before the launch.
#[derive(Debug)]
pub struct Begun {
    start: Event,
    end: Event,
    at: Nanos,
    chained: bool,
}

/// Tells whether a launch is to be measured: all of them in the measuring stage, later those of
/// kernels that have to be measured anew, and one in so many.
#[inline]
pub fn wants(kernel: u32, measures: bool) -> bool {
    if measures || kernels::is_measured(kernel) {
        return true;
    }
    let every = session::sample_every();
    every != 0 && TICK.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_multiple_of(every)
}

/// Begins to measure a launch that is about to be made.
#[cold]
pub fn begin(stream: abi::Handle, per_thread: bool, chained: bool) -> Option<Begun> {
    if session::captures() {
        return None;
    }
    look(LOOKED_AT_MAX);
    while EMPTY_LEFT.load(Ordering::Relaxed) > 0 {
        let left = EMPTY_LEFT.fetch_sub(1, Ordering::Relaxed);
        if left == 0 || left > EMPTY_PAIRS {
            EMPTY_LEFT.store(0, Ordering::Relaxed);
            break;
        }
        if let Some(begun) = pair(stream, per_thread, false) {
            finish(begun, None, 0, (stream, per_thread));
        }
    }
    pair(stream, per_thread, chained)
}

fn pair(stream: abi::Handle, per_thread: bool, chained: bool) -> Option<Begun> {
    let start = TIMES.take()?;
    let Some(end) = TIMES.take() else {
        TIMES.give(start);
        return None;
    };
    let at = clock::now();
    start.record(stream, per_thread).then_some(Begun { start, end, at, chained })
}

/// Ends measuring a launch that was made.
pub fn end(begun: Begun, kernel: u32, launch: u64, on: (abi::Handle, bool)) {
    finish(begun, Some(kernel), launch, on);
}

fn finish(begun: Begun, kernel: Option<u32>, launch: u64, on: (abi::Handle, bool)) {
    let Begun { start, end, at, chained } = begun;
    if !end.record(on.0, on.1) {
        return abandon(Begun { start, end, at, chained });
    }
    let host = clock::now().minus(at);
    stage().pairs.push_back(Pair { start, end, host, kernel, launch, chained });
}

/// Gives a pair up: the driver refused the launch.
pub fn abandon(begun: Begun) {
    TIMES.give(begun.start);
    TIMES.give(begun.end);
}

/// Looks at up to `most` pairs, oldest first, and tells what they show.
pub fn look(most: usize) {
    if session::captures() || LOOKING.swap(true, Ordering::Acquire) {
        return;
    }
    for _ in 0..most {
        let Some(pair) = stage().pairs.pop_front() else { break };
        match pair.end.look() {
            Seen::Ahead => {
                stage().pairs.push_front(pair);
                break;
            }
            Seen::Lost => {}
            Seen::Come => settle(pair),
        }
    }
    LOOKING.store(false, Ordering::Release);
}

fn settle(pair: Pair) {
    let Some(took) = pair.start.until(pair.end) else { return };
    let Some(kernel) = pair.kernel else {
        OFFSET.fetch_min(took.get(), Ordering::Relaxed);
        TIMES.give(pair.start);
        TIMES.give(pair.end);
        return;
    };
    let took = took.minus(offset());
    let last = stage().last.take();
    let follows = |last: &Last| pair.chained && last.launch + 1 == pair.launch;
    let before = last.as_ref().filter(|last| follows(last)).map(|last| last.kernel);
    if let Some(last) = last {
        let gap = follows(&last).then(|| last.end.until(pair.start)).flatten();
        tell(&last, gap.map(|gap| gap.minus(offset())));
        TIMES.give(last.end);
    }
    TIMES.give(pair.start);
    if is_held_up(pair.host, took) {
        TIMES.give(pair.end);
        return;
    }
    let last = Last { end: pair.end, kernel, before, launch: pair.launch, took };
    if pair.chained {
        stage().last = Some(last);
    } else {
        tell(&last, None);
        TIMES.give(last.end);
    }
}

/// Tells whether the host was held up so long that a pair says nothing of its kernel.
fn is_held_up(host: Nanos, shown: Nanos) -> bool {
    let host = host.get();
    let usual = match USUAL.load(Ordering::Relaxed) {
        0 => host,
        usual => usual,
    };
    let step = usual / 32 + 1;
    let next = if host > usual { usual + step } else { usual.saturating_sub(step).max(1) };
    USUAL.store(next, Ordering::Relaxed);
    host > usual.saturating_mul(HELD_UP_TIMES) && host > shown.get() / HELD_UP_PART
}

fn offset() -> Nanos {
    match OFFSET.load(Ordering::Relaxed) {
        u64::MAX => Nanos::ZERO,
        offset => Nanos::new(offset),
    }
}

fn tell(last: &Last, gap: Option<Nanos>) {
    count(&counters::SAMPLES);
    ring::push(Entry {
        kind: Kind::Sample,
        kernel: last.kernel,
        launch: last.before.map_or(0, |before| u64::from(before) + 1),
        at: last.took.get(),
        extra: gap.map_or(0, |gap| gap.get().saturating_add(1)),
    });
}

/// The context is gone, and with it events and what was to be measured.
pub fn forget() {
    TIMES.forget();
    let mut stage = stage();
    stage.pairs.clear();
    stage.last = None;
    EMPTY_LEFT.store(EMPTY_PAIRS, Ordering::Relaxed);
    OFFSET.store(u64::MAX, Ordering::Relaxed);
}
