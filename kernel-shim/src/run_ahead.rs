//! How far a program that has the slice to itself, or is measured, may launch ahead of the device.
//!
//! A launch that was made can't be withdrawn. So a program that begins waits for everything that another one
//! launched ahead: without a bound, a thousand kernels for each stream. Here it is [`AHEAD_MAX`] of predicted time, which
//! is less than a newcomer needs from its admission to its first launch. The device never idles for it: two marks may
//! always be ahead, so one kernel runs and the next one waits behind it.
//!
//! An event marks the end of each [`MARK_EVERY`] of predicted time. A launch that would exceed the bound waits for the
//! oldest mark. Kernels on several streams count one after another, so such programs may be less far ahead. A new
//! kernel counts as [`NEW_TIME`] until the queue has answered its definition. A kernel without a predicted time counts
//! as nothing, as does a new one if the queue takes long. Shapes for which there is no place count as their class does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tessera_kernel_queue::Nanos;

use crate::abi::{self, DriverHandle};
use crate::events::{DriverEvent, EventPool, EventStatus};
use crate::{captures, clock, kernel_catalog, ring, state, terms};

/// The most predicted time ahead of the device, unless two marks exceed it.
const AHEAD_MAX: Nanos = Nanos::from_millis(100);
/// The predicted time between two marks.
const MARK_EVERY: Nanos = Nanos::from_millis(10);
/// The marks that may be ahead, however long their kernels take.
const MARKS_MIN: usize = 2;
/// The most marks, with one to spare for each of many threads.
const MARKS_MAX: usize = 64;
/// The pause between looks at the oldest mark. Many times that is still ahead meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// The assumed time of a kernel that was not defined before.
const NEW_TIME: Nanos = Nanos::from_millis(1);
/// How long the queue's answer about new kernels is expected.
const ANSWER_MAX: Nanos = Nanos::from_millis(20);

static MARK_EVENTS: EventPool = EventPool::new(abi::EVENT_DISABLE_TIMING, MARKS_MAX);
/// Predicted nanoseconds of launches since the last mark.
static UNMARKED: AtomicU64 = AtomicU64::new(0);

/// The number of kernels when new ones were last announced, and the time of that.
static ANNOUNCED: AtomicU32 = AtomicU32::new(0);
static ANNOUNCED_AT: AtomicU64 = AtomicU64::new(0);

/// The end of some kernels.
#[derive(Clone, Copy)]
struct Mark {
    event: DriverEvent,
    /// The predicted time of the kernels before it and after the mark before.
    time: Nanos,
}

/// Oldest first.
static MARKS: Mutex<VecDeque<Mark>> = Mutex::new(VecDeque::new());

fn marks() -> MutexGuard<'static, VecDeque<Mark>> {
    MARKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates all memory that marks will need.
pub fn prepare() {
    MARK_EVENTS.prepare();
    marks().reserve_exact(MARKS_MAX + 1);
}

/// Returns whether launches of this role are bounded. A program is measured before it is free. The bound changes no sample
/// and no gap, since the device has work meanwhile.
#[inline]
pub const fn is_bounded(role: u32) -> bool {
    matches!(role, terms::FREE | terms::MEASURE)
}

/// Counts a launch of a program, and waits if it is too far ahead. Returns the time that the mark after the
/// launch stands for; zero if none is due.
#[inline]
pub fn count_launch(kernel: u32) -> Nanos {
    let took = kernel_catalog::predicted_time(kernel).unwrap_or_else(|| assumed_time(kernel));
    let unmarked = UNMARKED.fetch_add(took.get(), Ordering::Relaxed).saturating_add(took.get());
    if unmarked < MARK_EVERY.get() { Nanos::ZERO } else { begin_mark() }
}

/// Returns the assumed time of a kernel without a predicted one. If it is new, the session's thread defines it.
#[cold]
fn assumed_time(kernel: u32) -> Nanos {
    if kernel_catalog::is_defined(kernel) {
        return Nanos::ZERO;
    }
    let (count, now) = (kernel_catalog::count(), clock::now());
    if ANNOUNCED.swap(count, Ordering::Relaxed) != count {
        ANNOUNCED_AT.store(now.get(), Ordering::Relaxed);
        ring::announce();
    }
    let waited = now.minus(Nanos::new(ANNOUNCED_AT.load(Ordering::Relaxed)));
    if waited < ANSWER_MAX { NEW_TIME } else { Nanos::ZERO }
}

#[cold]
fn begin_mark() -> Nanos {
    let time = Nanos::new(UNMARKED.swap(0, Ordering::Relaxed));
    if time == Nanos::ZERO || captures::is_capturing() {
        // Another thread makes the mark, or an event would be an error.
        return Nanos::ZERO;
    }
    while !has_capacity(time) && state::mode() == state::ACTIVE && is_bounded(terms::role()) {
        std::thread::sleep(PAUSE);
    }
    time
}

/// Removes the marks that the device has reached. Returns whether one more of this time may be ahead.
fn has_capacity(time: Nanos) -> bool {
    loop {
        let Some(first) = marks().pop_front() else { return true };
        // It is removed while the driver is called, so that no lock is held.
        match first.event.status() {
            EventStatus::Complete => MARK_EVENTS.give_back(first.event),
            EventStatus::Lost => {}
            EventStatus::Pending => {
                let mut marks = marks();
                marks.push_front(first);
                let ahead = marks.iter().fold(time, |sum, mark| sum.plus(mark.time));
                return marks.len() < MARKS_MIN || ahead <= AHEAD_MAX;
            }
        }
    }
}

/// Sets the mark after a launch.
pub fn set_mark(time: Nanos, stream: DriverHandle, per_thread: bool) {
    let event = if captures::is_capturing() { None } else { MARK_EVENTS.take() };
    let Some(event) = event.filter(|event| event.record(stream, per_thread)) else { return };
    let mut marks = marks();
    if marks.len() < MARKS_MAX {
        marks.push_back(Mark { event, time });
    }
}

/// Discards all marks, since their context is gone.
pub fn on_context_end() {
    MARK_EVENTS.discard_all();
    marks().clear();
}
