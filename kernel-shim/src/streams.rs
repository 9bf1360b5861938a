//! Tracks which streams may have kernels in flight. A synchronising call starts a gap only if no
//! stream has any.
//!
//! Each stream stores the number of its last launch and of the last launch known to be done. If a
//! program has more streams than slots, only waits for the whole context count.
//!
//! These numbers are the order of departures to the driver, not of the launch calls. A launch may wait long for its grant,
//! and a call that waits for the device meanwhile doesn't wait for it. A launch gets a number before the driver is called
//! and a new one afterwards, because a wait that begins in between doesn't cover it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::abi::{DriverHandle, STREAM_LEGACY, STREAM_PER_THREAD};

/// Places. PyTorch keeps 32 streams of each priority at most.
const SLOTS: usize = 128;
/// The longest probe sequence.
const PROBES: usize = 16;

struct StreamSlot {
    stream: AtomicUsize,
    /// Whether waiting for the legacy stream waits for this one.
    blocks: AtomicBool,
    launched: AtomicU64,
    done: AtomicU64,
}

static STREAMS: [StreamSlot; SLOTS] = [const {
    StreamSlot {
        stream: AtomicUsize::new(0),
        blocks: AtomicBool::new(false),
        launched: AtomicU64::new(0),
        done: AtomicU64::new(0),
    }
}; SLOTS];

/// The last number that was given to a departure.
static DEPARTED: AtomicU64 = AtomicU64::new(0);

/// The latest launch on a stream that found no slot, and up to which those are done.
static OTHERS: AtomicU64 = AtomicU64::new(0);
static OTHERS_DONE: AtomicU64 = AtomicU64::new(0);

/// The number of recorded events that are tracked.
const EVENT_SLOTS: usize = 256;
struct RecordedEvent {
    event: AtomicUsize,
    stream: AtomicUsize,
    after: AtomicU64,
}

static RECORDED_EVENTS: [RecordedEvent; EVENT_SLOTS] = [const {
    RecordedEvent {
        event: AtomicUsize::new(0),
        stream: AtomicUsize::new(0),
        after: AtomicU64::new(0),
    }
}; EVENT_SLOTS];

/// Returns the stream that `stream` means in a function. 0 has another meaning in `_ptsz` functions.
pub fn meant(stream: DriverHandle, per_thread: bool) -> DriverHandle {
    match stream {
        0 if per_thread => own(),
        0 => STREAM_LEGACY,
        STREAM_PER_THREAD => own(),
        stream => stream,
    }
}

/// Returns a unique handle for this thread's default stream. It is odd, unlike real handles.
fn own() -> DriverHandle {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here).addr()) | 1
}

/// Records a launch on a stream, right before the driver is called and again right after it. Returns its number. Numbers
/// start at one.
#[inline]
pub fn record_launch(stream: DriverHandle) -> u64 {
    let number = DEPARTED.fetch_add(1, Ordering::Relaxed) + 1;
    match slot(stream) {
        Some(slot) => slot.launched.fetch_max(number, Ordering::Relaxed),
        None => OTHERS.fetch_max(number, Ordering::Relaxed),
    };
    number
}

/// Returns the last number: a call that starts now cannot wait for launches with later ones.
pub fn departed() -> u64 {
    DEPARTED.load(Ordering::Relaxed)
}

/// Returns on how many streams the program has launched so far. All without a slot count as one.
pub fn used() -> u32 {
    let is_used = |launched: &AtomicU64| u32::from(launched.load(Ordering::Relaxed) > 0);
    STREAMS.iter().map(|slot| is_used(&slot.launched)).sum::<u32>() + is_used(&OTHERS)
}

/// Records a new stream.
pub fn add_stream(stream: DriverHandle, blocks: bool) {
    if let Some(slot) = slot(stream) {
        slot.blocks.store(blocks, Ordering::Relaxed);
    }
}

/// Removes a destroyed stream: the driver waits for its kernels.
pub fn remove_stream(stream: DriverHandle) {
    if let Some(slot) = slot(stream) {
        slot.done.store(u64::MAX, Ordering::Relaxed);
        slot.launched.store(0, Ordering::Relaxed);
        slot.done.store(0, Ordering::Relaxed);
    }
}

/// Marks all launches up to `number` on a stream as done.
pub fn mark_done(stream: DriverHandle, number: u64) {
    if stream == STREAM_LEGACY {
        let blocking = |slot: &&StreamSlot| {
            let stream = slot.stream.load(Ordering::Relaxed);
            slot.blocks.load(Ordering::Relaxed) || stream & 1 != 0
        };
        for slot in STREAMS.iter().filter(blocking) {
            slot.done.fetch_max(number, Ordering::Relaxed);
        }
    } else if let Some(slot) = slot(stream) {
        slot.done.fetch_max(number, Ordering::Relaxed);
    }
}

/// Marks all launches up to `number` on all streams as done.
pub fn mark_all_done(number: u64) {
    for slot in &STREAMS {
        slot.done.fetch_max(number, Ordering::Relaxed);
    }
    OTHERS_DONE.fetch_max(number, Ordering::Relaxed);
}

/// Returns whether all launches are known to be done.
pub fn are_idle() -> bool {
    let idle = |launched: &AtomicU64, done: &AtomicU64| {
        launched.load(Ordering::Relaxed) <= done.load(Ordering::Relaxed)
    };
    idle(&OTHERS, &OTHERS_DONE) && STREAMS.iter().all(|slot| idle(&slot.launched, &slot.done))
}

/// Records that an event was recorded on a stream after `number` launches.
pub fn record_event(event: DriverHandle, stream: DriverHandle, number: u64) {
    let slot = &RECORDED_EVENTS[first_slot(event, EVENT_SLOTS)];
    slot.event.store(0, Ordering::Relaxed);
    slot.after.store(number, Ordering::Relaxed);
    slot.stream.store(stream, Ordering::Relaxed);
    slot.event.store(event, Ordering::Release);
}

/// Handles a reached event: the launches before it on its stream are done.
pub fn on_event(event: DriverHandle) {
    let slot = &RECORDED_EVENTS[first_slot(event, EVENT_SLOTS)];
    if slot.event.load(Ordering::Acquire) == event {
        mark_done(slot.stream.load(Ordering::Relaxed), slot.after.load(Ordering::Relaxed));
    }
}

fn slot(stream: DriverHandle) -> Option<&'static StreamSlot> {
    let first = first_slot(stream, SLOTS);
    for step in 0..PROBES {
        let slot = &STREAMS[(first + step) % SLOTS];
        let here = slot.stream.load(Ordering::Relaxed);
        if here == stream {
            return Some(slot);
        }
        if here == 0 {
            let taken =
                slot.stream.compare_exchange(0, stream, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() || taken == Err(stream) {
                return Some(slot);
            }
        }
    }
    None
}

fn first_slot(handle: DriverHandle, slots: usize) -> usize {
    // Handles are addresses, so their lowest bits vary little.
    (handle >> 4 ^ handle >> 12 ^ handle) % slots
}
