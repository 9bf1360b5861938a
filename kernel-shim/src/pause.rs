//! The pause of the session's thread between two looks at the ring of a holder, which another thread may end.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::{self, Thread};
use std::time::Duration;

use crate::park::ParkFlag;

/// A thread that pauses, and others that may wake it.
pub struct ReaderPause {
    flag: ParkFlag,
    reader: Mutex<Option<Thread>>,
}

impl ReaderPause {
    /// Returns the pause of a reader that is awake.
    pub const fn new() -> Self {
        Self { flag: ParkFlag::new(AtomicBool::new(false)), reader: Mutex::new(None) }
    }

    /// Pauses the calling thread for at most `span`. It does not pause if there is a record.
    pub fn pause(&self, span: Duration, is_empty: impl FnOnce() -> bool) {
        if let Ok(mut reader) = self.reader.lock() {
            *reader = Some(thread::current());
        }
        if self.flag.may_park(is_empty) {
            thread::park_timeout(span);
        }
        self.flag.unpark();
    }

    /// Ends a pause. Called after a record was added that must not wait for the pause's end. It never waits itself.
    pub fn end(&self) {
        if self.flag.announce()
            && let Ok(reader) = self.reader.try_lock()
            && let Some(reader) = &*reader
        {
            reader.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Longer than any test may take.
    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn each_record_ends_the_pause_in_which_it_comes_or_the_next_one_does_not_begin() {
        let (pause, has_record) = (ReaderPause::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..1_000 {
                    // A pause may also end for no reason.
                    while !has_record.swap(false, Ordering::AcqRel) {
                        pause.pause(LONG, || !has_record.load(Ordering::Acquire));
                    }
                }
            });
            while !reader.is_finished() {
                has_record.store(true, Ordering::Release);
                pause.end();
                thread::yield_now();
            }
        });
    }

    #[test]
    fn a_reader_with_a_record_does_not_pause() {
        ReaderPause::new().pause(LONG, || false);
    }

    #[test]
    fn a_pause_that_nobody_ends_is_over_after_its_time() {
        let pause = ReaderPause::new();
        pause.pause(Duration::from_millis(1), || true);
        // Nobody pauses now.
        pause.end();
    }
}
