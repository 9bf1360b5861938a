//! The machine's clock, and the precision of a thread's sleeps.

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};

/// Returns the machine's monotonic clock in nanoseconds.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The kernel counts this clock from the start of the machine.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Lets this thread's sleeps end when they should, not up to 50 µs later.
pub fn sharpen_timer() {
    thread_local! {
        static SHARP: Cell<bool> = const { Cell::new(false) };
    }
    if !SHARP.replace(true) {
        // If it is refused, sleeps are as long as the system makes them.
        // SAFETY: concerns no memory.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    }
}
