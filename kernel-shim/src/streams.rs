//! Which streams may have something in flight: a synchronising call means a gap only if nothing
//! is left on any stream.
//!
//! Each stream remembers the number of its latest launch, and up to which launch it is known to be
//! done. There are more streams than places only in odd programs: then only waiting for the whole
//! context counts.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::abi::{Handle, STREAM_LEGACY, STREAM_PER_THREAD};

/// Places. PyTorch keeps 32 streams of each priority at most.
const PLACES: usize = 128;
/// How far from its place a stream is looked for.
const PROBES: usize = 16;

struct Place {
    stream: AtomicUsize,
    /// Whether waiting for the legacy stream waits for this one.
    blocks: AtomicBool,
    launched: AtomicU64,
    done: AtomicU64,
}

static STREAMS: [Place; PLACES] = [const {
    Place {
        stream: AtomicUsize::new(0),
        blocks: AtomicBool::new(false),
        launched: AtomicU64::new(0),
        done: AtomicU64::new(0),
    }
}; PLACES];

/// The latest launch on a stream that found no place, and up to which those are done.
static OTHERS: AtomicU64 = AtomicU64::new(0);
static OTHERS_DONE: AtomicU64 = AtomicU64::new(0);

/// Events and what was launched before they were recorded.
const EVENTS: usize = 256;
struct Recorded {
    event: AtomicUsize,
    stream: AtomicUsize,
    after: AtomicU64,
}

static RECORDED: [Recorded; EVENTS] = [const {
    Recorded { event: AtomicUsize::new(0), stream: AtomicUsize::new(0), after: AtomicU64::new(0) }
}; EVENTS];

/// Returns the stream that a function means by `stream`: 0 is another one in `_ptsz` functions.
pub fn meant(stream: Handle, per_thread: bool) -> Handle {
    match stream {
        0 if per_thread => own(),
        0 => STREAM_LEGACY,
        STREAM_PER_THREAD => own(),
        stream => stream,
    }
}

/// A handle for this thread's default stream that no real stream has: its address is odd.
fn own() -> Handle {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here).addr()) | 1
}

/// Notes a launch on a stream; `number` counts from one.
#[inline]
pub fn launched(stream: Handle, number: u64) {
    match place(stream) {
        Some(place) => place.launched.fetch_max(number, Ordering::Relaxed),
        None => OTHERS.fetch_max(number, Ordering::Relaxed),
    };
}

/// A stream was made.
pub fn made(stream: Handle, blocks: bool) {
    if let Some(place) = place(stream) {
        place.blocks.store(blocks, Ordering::Relaxed);
    }
}

/// A stream is destroyed: what it had in flight is waited for by the driver.
pub fn destroyed(stream: Handle) {
    if let Some(place) = place(stream) {
        place.done.store(u64::MAX, Ordering::Relaxed);
        place.launched.store(0, Ordering::Relaxed);
        place.done.store(0, Ordering::Relaxed);
    }
}

/// All launches up to `number` on a stream are done.
pub fn done(stream: Handle, number: u64) {
    if stream == STREAM_LEGACY {
        let blocking = |place: &&Place| {
            let stream = place.stream.load(Ordering::Relaxed);
            place.blocks.load(Ordering::Relaxed) || stream & 1 != 0
        };
        for place in STREAMS.iter().filter(blocking) {
            place.done.fetch_max(number, Ordering::Relaxed);
        }
    } else if let Some(place) = place(stream) {
        place.done.fetch_max(number, Ordering::Relaxed);
    }
}

/// All launches up to `number` on all streams are done.
pub fn all_done(number: u64) {
    for place in &STREAMS {
        place.done.fetch_max(number, Ordering::Relaxed);
    }
    OTHERS_DONE.fetch_max(number, Ordering::Relaxed);
}

/// Tells whether nothing is in flight, as far as was waited for.
pub fn are_idle() -> bool {
    let idle = |launched: &AtomicU64, done: &AtomicU64| {
        launched.load(Ordering::Relaxed) <= done.load(Ordering::Relaxed)
    };
    idle(&OTHERS, &OTHERS_DONE) && STREAMS.iter().all(|place| idle(&place.launched, &place.done))
}

/// An event was recorded on a stream, when `number` launches had been made.
pub fn recorded(event: Handle, stream: Handle, number: u64) {
    let place = &RECORDED[spot(event, EVENTS)];
    place.event.store(0, Ordering::Relaxed);
    place.after.store(number, Ordering::Relaxed);
    place.stream.store(stream, Ordering::Relaxed);
    place.event.store(event, Ordering::Release);
}

/// An event has come: what was launched before it on its stream is done.
pub fn came(event: Handle) {
    let place = &RECORDED[spot(event, EVENTS)];
    if place.event.load(Ordering::Acquire) == event {
        done(place.stream.load(Ordering::Relaxed), place.after.load(Ordering::Relaxed));
    }
}

fn place(stream: Handle) -> Option<&'static Place> {
    let first = spot(stream, PLACES);
    for step in 0..PROBES {
        let place = &STREAMS[(first + step) % PLACES];
        let here = place.stream.load(Ordering::Relaxed);
        if here == stream {
            return Some(place);
        }
        if here == 0 {
            let taken =
                place.stream.compare_exchange(0, stream, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() || taken == Err(stream) {
                return Some(place);
            }
        }
    }
    None
}

fn spot(handle: Handle, places: usize) -> usize {
    // Handles are addresses: their lowest bits say little.
    (handle >> 4 ^ handle >> 12 ^ handle) % places
}
