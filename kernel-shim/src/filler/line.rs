//! The queue of the threads that wait for grants. The first one requests a grant and uses it, the
//! others sleep. Otherwise they would wake each other for every kernel, and a program with many
//! threads would get less than one with a single thread.
//!
//! A kernel that fits no gap delays the others. So one more thread takes part for each [`PATIENCE`]
//! that the first one waits.

use std::collections::VecDeque;
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use tessera_kernel_queue::Nanos;
use tessera_model::number::clamped;

use super::state::FillerGuard;

/// How long the first thread waits before one more takes part.
const PATIENCE: Nanos = Nanos::from_millis(10);
/// Most threads that take part.
const ACTIVE_MAX: u64 = 8;
/// Longest sleep in the line, so that a dead queue is noticed.
const SLEEP_MAX: Nanos = Nanos::from_millis(10);
/// Threads that the line holds without allocating.
const THREADS_EXPECTED: usize = 256;
/// Bells of sleeping threads, by launch. Few share one.
const BELLS: usize = 64;

static TURN: [Condvar; BELLS] = [const { Condvar::new() }; BELLS];

/// The line, first thread first.
pub struct ThreadLine {
    /// Launches whose threads wait, in the order of their arrival.
    waiting: VecDeque<u64>,
    /// Since when the first one is the first.
    since: Nanos,
}

impl ThreadLine {
    /// Returns an empty line.
    pub const fn new() -> Self {
        Self { waiting: VecDeque::new(), since: Nanos::ZERO }
    }

    /// Allocates the memory of usual programs.
    pub fn prepare(&mut self) {
        self.waiting.reserve_exact(THREADS_EXPECTED);
    }

    /// Adds a launch whose thread waits.
    pub fn join(&mut self, launch: u64, now: Nanos) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.waiting.push_back(launch);
    }

    /// Removes a launch, and wakes the thread that takes part in its place.
    pub fn leave(&mut self, launch: u64, now: Nanos) {
        let active = self.active(now);
        let Some(at) = self.waiting.iter().position(|waiting| *waiting == launch) else { return };
        self.waiting.remove(at);
        if at == 0 {
            self.since = now;
        }
        for next in self.waiting.iter().take(active) {
            bell(*next).notify_all();
        }
    }

    /// Returns how long the thread of a launch sleeps; `None` if it takes part.
    pub fn wait_for_turn(&self, launch: u64, now: Nanos) -> Option<Nanos> {
        let place = self.waiting.iter().position(|waiting| *waiting == launch)?;
        if place < self.active(now) {
            return None;
        }
        let next = PATIENCE.minus(Nanos::new(now.minus(self.since).get() % PATIENCE.get()));
        Some(next.min(SLEEP_MAX).max(Nanos::from_micros(100)))
    }

    /// Returns how many threads take part.
    fn active(&self, now: Nanos) -> usize {
        let more = now.minus(self.since).get() / PATIENCE.get();
        // At most eight.
        clamped((1 + more).min(ACTIVE_MAX))
    }
}

/// Sleeps until a launch may take part.
pub fn sleep(filler: FillerGuard, launch: u64, span: Nanos) {
    let slept = bell(launch).wait_timeout(filler, Duration::from_nanos(span.get()));
    drop(slept.unwrap_or_else(PoisonError::into_inner));
}

/// Wakes all threads: the role changed, or the session ended.
pub fn wake_all() {
    TURN.iter().for_each(Condvar::notify_all);
}

#[expect(clippy::cast_possible_truncation, reason = "below the number of bells")]
fn bell(launch: u64) -> &'static Condvar {
    &TURN[(launch % BELLS as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn one_thread_takes_part_and_the_next_when_it_leaves() {
        let mut line = ThreadLine::new();
        (1..=8).for_each(|launch| line.join(launch, ms(1)));

        assert_eq!(line.wait_for_turn(1, ms(2)), None);
        assert!((2..=8).all(|launch| line.wait_for_turn(launch, ms(2)).is_some()));

        line.leave(1, ms(2));
        assert_eq!(line.wait_for_turn(2, ms(3)), None);
        assert!(line.wait_for_turn(3, ms(3)).is_some());
    }

    #[test]
    fn a_launch_that_waits_long_lets_others_take_part() {
        let mut line = ThreadLine::new();
        (1..=20).for_each(|launch| line.join(launch, ms(0)));

        let active =
            |now| (1..=20).filter(|launch| line.wait_for_turn(*launch, now).is_none()).count();

        assert_eq!((active(ms(9)), active(ms(10)), active(ms(35)), active(ms(500))), (1, 2, 4, 8));
    }
}
