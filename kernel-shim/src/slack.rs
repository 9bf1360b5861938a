//! The accuracy of timers: requested from the kernel, and measured.

use std::ffi::c_ulong;
use std::marker::PhantomData;

use tessera_kernel_queue::Nanos;

/// The requested timer slack in nanoseconds. Zero would restore the program's own setting.
const LEAST: c_ulong = 1;

/// While this lives, timers wake the thread as accurately as the system can.
///
/// By default Linux adds 50 µs to combine wake-ups, which is as long as a small kernel.
#[derive(Debug)]
pub struct ExactTimers {
    before: c_ulong,
    /// The setting belongs to a thread, so the thread that made this must drop it.
    of_this_thread: PhantomData<*const ()>,
}

impl ExactTimers {
    /// Requests exact timers until this is dropped.
    pub fn request() -> Self {
        // SAFETY: neither call takes a pointer; they read and set one number of this thread.
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, LEAST) };
        // A failed call returns a negative number: zero restores the thread's default.
        let before = c_ulong::try_from(before).unwrap_or(0);
        Self { before, of_this_thread: PhantomData }
    }
}

impl Drop for ExactTimers {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.before) };
    }
}

/// The lateness of timers on this machine: the 90th percentile of the recent wake-ups.
///
/// It is estimated in small steps (Robbins and Monro): a later timer raises it by nine parts, any
/// other lowers it by one. On bare metal it falls to microseconds. In a virtual machine whose idle
/// processors are shared it rises above 100 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerLateness(Nanos);

/// The step by which one timer lowers it.
const STEP: Nanos = Nanos::from_micros(1);
/// The upper limit: polling for longer would cost the host more than it gains.
const LATEST: Nanos = Nanos::from_micros(200);

impl TimerLateness {
    /// Returns the initial value: the lateness with Linux' default settings.
    pub const fn new() -> Self {
        Self(Nanos::from_micros(60))
    }

    /// Returns the current estimate.
    pub const fn get(self) -> Nanos {
        self.0
    }

    /// Adapts to a timer that woke a thread this late.
    pub fn observe(&mut self, late: Nanos) {
        self.0 = if late > self.0 {
            self.0.plus(Nanos::new(STEP.get() * 9)).min(LATEST)
        } else {
            self.0.minus(STEP).max(STEP)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slack() -> i32 {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
    }

    #[test]
    fn the_programs_own_setting_is_back_afterwards() {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, c_ulong::from(70_000_u32)) };
        {
            let _exact = ExactTimers::request();
            assert_eq!(slack(), 1);
        }
        assert_eq!(slack(), 70_000);
    }

    #[test]
    fn nine_of_ten_timers_are_no_later_than_the_lateness_learned() {
        let mut lateness = TimerLateness::new();
        let lates = |round: u64| Nanos::from_micros(round * 7_919 % 100);
        (0..2_000).for_each(|round| lateness.observe(lates(round)));
        let mut within = 0;
        for round in 2_000..3_000 {
            within += u32::from(lates(round) <= lateness.get());
            lateness.observe(lates(round));
        }
        assert!((850..=950).contains(&within), "{within} of 1,000");
    }

    #[test]
    fn lateness_stays_within_its_bounds() {
        let mut lateness = TimerLateness::new();
        (0..1_000).for_each(|_| lateness.observe(Nanos::MAX));
        assert_eq!(lateness.get(), LATEST);
        (0..1_000).for_each(|_| lateness.observe(Nanos::ZERO));
        assert_eq!(lateness.get(), STEP);
    }
}
