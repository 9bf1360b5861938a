//! How exactly timers wake this process's threads: asked for, and learned.

use std::ffi::c_ulong;
use std::marker::PhantomData;

use tessera_kernel_queue::Nanos;

/// What the kernel may let a timer be late by meanwhile, in nanoseconds; zero would stand for the
/// program's own setting.
const LEAST: c_ulong = 1;

/// While this lives, timers wake the thread as exactly as the system can. Linux adds 50 µs by
/// default, so that wake-ups can be served together: as much as a filler's small kernel takes.
#[derive(Debug)]
pub struct Exact {
    before: c_ulong,
    /// The setting is a thread's: this must be dropped by the one that made it.
    of_this_thread: PhantomData<*const ()>,
}

impl Exact {
    /// Asks for exact timers until this is dropped.
    pub fn timers() -> Self {
        // SAFETY: neither call takes a pointer; they read and set one number of this thread.
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, LEAST) };
        let before = c_ulong::try_from(before).unwrap_or(0);
        Self { before, of_this_thread: PhantomData }
    }
}

impl Drop for Exact {
    fn drop(&mut self) {
        // SAFETY: as above. Zero, if the first call failed, sets the thread's default.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.before) };
    }
}

/// How late timers wake threads on this machine: later than nine of ten were so far.
///
/// A quantile by small steps (Robbins and Monro): a timer that was later raises it by nine parts,
/// one that was not lowers it by one. On bare metal it falls to microseconds; in a virtual machine
/// whose idle processors are given away, it rises to a hundred and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness(Nanos);

/// What one timer lowers it by.
const STEP: Nanos = Nanos::from_micros(1);
/// Looking for longer, without sleeping, would cost the host too much for what it gains.
const LATEST: Nanos = Nanos::from_micros(200);

impl Lateness {
    /// What threads are woken late by with Linux' settings.
    pub const fn new() -> Self {
        Self(Nanos::from_micros(60))
    }

    /// Returns it.
    pub const fn get(self) -> Nanos {
        self.0
    }

    /// Learns from a timer that woke a thread so much late.
    pub fn learn(&mut self, late: Nanos) {
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
            let _exact = Exact::timers();
            assert_eq!(slack(), 1);
        }
        assert_eq!(slack(), 70_000);
    }

    #[test]
    fn nine_of_ten_timers_are_no_later_than_the_lateness_learned() {
        let mut lateness = Lateness::new();
        let lates = |round: u64| Nanos::from_micros(round * 7_919 % 100);
        (0..2_000).for_each(|round| lateness.learn(lates(round)));
        let mut within = 0;
        for round in 2_000..3_000 {
            within += u32::from(lates(round) <= lateness.get());
            lateness.learn(lates(round));
        }
        assert!((850..=950).contains(&within), "{within} of 1,000");
    }

    #[test]
    fn lateness_stays_within_its_bounds() {
        let mut lateness = Lateness::new();
        (0..1_000).for_each(|_| lateness.learn(Nanos::MAX));
        assert_eq!(lateness.get(), LATEST);
        (0..1_000).for_each(|_| lateness.learn(Nanos::ZERO));
        assert_eq!(lateness.get(), STEP);
    }
}
