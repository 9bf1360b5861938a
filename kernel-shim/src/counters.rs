//! What the shim counts, for whoever looks into a process: tests, benchmarks, a debugger.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{allocations, ring, session, state};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $($(#[$doc])* pub static $name: AtomicU64 = AtomicU64::new(0);)+
    };
}

counters! {
    /// Launches that were told to the queue.
    TOLD,
    /// Launches that passed without being told.
    PASSED,
    /// Launches under grants.
    GRANTED,
    /// Launches that asked and went without a grant.
    UNASKED,
    /// Longest that a launch waited, in nanoseconds.
    WAITED_MAX,
    /// Sessions that began.
    SESSIONS,
    /// Samples taken.
    SAMPLES,
    /// Functions that the driver has in a newer revision than the table, and that went unhooked.
    UNHOOKED,
    /// Bytes on the device that the process holds, as far as it was seen.
    MEMORY_USED,
    /// The most that it held.
    MEMORY_PEAK,
    /// Kernels launched under grants or unasked and not known to be done.
    IN_FLIGHT,
    /// The launches' own numbers.
    LAUNCHES,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How many numbers there are.
const COUNT: usize = 16;

/// Writes up to `length` numbers to `out`; returns how many there are. In order: state, role (0
/// without one, then as `Role`), told, passed, granted, unasked, longest wait, sessions, samples,
/// lost records, unhooked, memory used, memory peak, in flight, launches, allocations of this
/// library on the calling thread.
///
/// # Safety
///
/// `out` has room for `length` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tessera_kernel_shim_counters(out: *mut u64, length: usize) -> usize {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let numbers: [u64; COUNT] = [
        u64::from(state::mode()),
        u64::from(session::role_number()),
        read(&TOLD),
        read(&PASSED),
        read(&GRANTED),
        read(&UNASKED),
        read(&WAITED_MAX),
        read(&SESSIONS),
        read(&SAMPLES),
        ring::lost(),
        read(&UNHOOKED),
        read(&MEMORY_USED),
        read(&MEMORY_PEAK),
        read(&IN_FLIGHT),
        read(&LAUNCHES),
        allocations::on_this_thread(),
    ];
    for (at, number) in numbers.into_iter().enumerate().take(length) {
        // SAFETY: the caller has room for `length` of them.
        unsafe { out.add(at).write(number) };
    }
    COUNT
}
