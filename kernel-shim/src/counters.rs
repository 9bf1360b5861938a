//! The shim's counters, for tests, benchmarks and debuggers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{allocations, ring, state, terms};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $($(#[$doc])* pub static $name: AtomicU64 = AtomicU64::new(0);)+
    };
}

counters! {
    /// Launches that were reported to the queue.
    REPORTED,
    /// Launches that passed without a report.
    PASSED,
    /// Launches under grants.
    GRANTED,
    /// Launches of a filler that went without a grant.
    UNGRANTED,
    /// Longest wait of a launch, in nanoseconds.
    WAITED_MAX,
    /// Sessions that began.
    SESSIONS,
    /// Samples taken.
    SAMPLES,
    /// Functions that went unhooked, since the driver has a newer revision than the table.
    UNHOOKED,
    /// Device memory that the process holds, in bytes, as far as the shim saw.
    MEMORY_USED,
    /// The most device memory that it held, in bytes.
    MEMORY_PEAK,
    /// Kernels of a filler that are not known to be done.
    IN_FLIGHT,
    /// The number of the last launch.
    LAUNCHES,
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The number of counters.
const COUNT: usize = 16;

/// Writes up to `length` counters to `out` and returns how many there are.
///
/// Their order:
///
/// - state, role (0 for none, then as `Role`);
/// - reported, passed, granted, ungranted, longest wait, sessions, samples, lost records, unhooked;
/// - memory used, memory peak, in flight, launches;
/// - allocations of this library on the calling thread.
///
/// # Safety
///
/// `out` points to space for `length` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tessera_kernel_shim_counters(out: *mut u64, length: usize) -> usize {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let numbers: [u64; COUNT] = [
        u64::from(state::mode()),
        u64::from(terms::role()),
        read(&REPORTED),
        read(&PASSED),
        read(&GRANTED),
        read(&UNGRANTED),
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
        // SAFETY: the caller has space for `length` of them.
        unsafe { out.add(at).write(number) };
    }
    COUNT
}
