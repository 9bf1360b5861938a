//! The pause of the session's thread between two looks at the ring of a holder, shorter than the runtime's timers can measure.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

/// A timer of the system. While a task waits for it, the other tasks of its thread run.
#[derive(Debug)]
pub struct PauseTimer {
    timer: AsyncFd<OwnedFd>,
}

impl PauseTimer {
    /// Creates a timer that is not set. Called within the runtime that waits for it.
    ///
    /// # Errors
    ///
    /// The system's error: there are too many open files.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: a plain call; the result is looked at.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if timer < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and is nobody else's. What is registered owns it.
        let timer = unsafe { AsyncFd::register(OwnedFd::from_raw_fd(timer)) }?;
        Ok(Self { timer })
    }

    /// Waits for this long. It may be dropped at any time.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub async fn wait(&self, span: Duration) -> io::Result<()> {
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: span.as_secs().cast_signed(),
                // Zero would stop the timer.
                tv_nsec: i64::from(span.subsec_nanos()).max(1),
            },
        };
        let timer = self.timer.get_ref().as_raw_fd();
        // SAFETY: a descriptor and a structure of ours.
        if unsafe { libc::timerfd_settime(timer, 0, &raw const once, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        loop {
            // It may still be ready from an earlier time that nobody waited for. Then there is nothing to read.
            let mut ready = self.timer.readable().await?;
            if let Ok(read) = ready.try_io(|timer| read_count(timer.get_ref())) {
                return read;
            }
        }
    }
}

/// Reads how often the timer rang. It must have, or the call would block.
fn read_count(timer: &OwnedFd) -> io::Result<()> {
    let mut count = 0_u64;
    // SAFETY: eight bytes of ours.
    let read = unsafe { libc::read(timer.as_raw_fd(), (&raw mut count).cast(), 8) };
    if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use tessera_kernel_queue::Nanos;

    use super::*;
    use crate::clock;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn a_wait_lasts_as_long_as_requested_also_after_one_that_was_given_up() {
        const SHORT: Duration = Duration::from_millis(2);
        const LONG: Duration = Duration::from_millis(20);
        run(async {
            let timer = PauseTimer::new().unwrap();
            for _ in 0..3 {
                tokio::select! {
                    biased;
                    waited = timer.wait(SHORT) => waited.unwrap(),
                    () = tokio::task::yield_now() => {}
                }
                // It rings, and nobody waits.
                std::thread::sleep(2 * SHORT);
                let begun = clock::now();
                timer.wait(LONG).await.unwrap();
                assert!(clock::now().minus(begun) >= Nanos::from_millis(20));
            }
            timer.wait(Duration::ZERO).await.unwrap();
        });
    }

    #[test]
    fn other_tasks_run_meanwhile() {
        run(async {
            let timer = PauseTimer::new().unwrap();
            let (tell, told) = tokio::sync::oneshot::channel();
            tokio::select! {
                biased;
                _ = timer.wait(Duration::from_secs(3_600)) => panic!("it waited for an hour"),
                told = async { tell.send(7).unwrap(); told.await } => assert_eq!(told, Ok(7)),
            }
        });
    }
}
