//! The session's thread: it sends records to the queue and handles the queue's frames.
//!
//! The first launch starts this thread, which has its own runtime. It blocks all signals, never calls
//! the driver, and is never joined. Without a queue it retries, soon at first and then four times a
//! second. A program is back under the queue within two seconds of the queue's return.
//!
//! All launches wait for this thread, and it runs for microseconds. So it names itself to the agent, which raises
//! its priority. The thread itself may not, and a limit (`RLIMIT_NICE`) would allow it to the whole program.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use tessera_frames::kernel::SESSION_THREAD_NAME;
use tessera_model::backoff::{Backoff, FailureCount};

use crate::settings::ShimSettings;
use crate::{first_session, log, ring, session, state};

mod link;
mod outbox;
mod pinned;

/// The device and its driver.
#[derive(Clone, Copy, Debug)]
pub struct CudaDevice {
    /// Its UUID, as reported by the driver.
    pub uuid: [u8; 16],
    /// The newest CUDA version that the driver supports.
    pub driver: u32,
}

impl CudaDevice {
    /// Returns the UUID in the usual notation, with the prefix of a whole device. A MIG instance
    /// has another prefix, but the driver does not report which one it is.
    pub fn name(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

/// Pauses between two attempts to reach the queue.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));

/// A session shorter than this counts as a failed attempt.
const STEADY: Duration = Duration::from_secs(1);

/// Enough for the runtime and TLS. Untouched pages cost nothing.
const STACK_BYTES: usize = 1024 * 1024;

/// How a session, or an attempt to get one, ended.
#[derive(Debug)]
enum SessionOver {
    /// Try again.
    Broken(String),
    /// The queue rejected this process: it runs without a queue.
    Unwanted(String),
    /// The process ends.
    Exit,
}

/// Starts the thread.
///
/// # Errors
///
/// The system's error: there is no thread and no eventfd.
pub fn start(settings: &'static ShimSettings, device: CudaDevice) -> std::io::Result<()> {
    // SAFETY: a plain call; the result is looked at.
    let bell = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if bell < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and is nobody else's.
    let bell = unsafe { OwnedFd::from_raw_fd(bell) };
    ring::set_bell(bell.as_raw_fd());
    let _quiet = SignalsBlocked::new();
    let thread =
        std::thread::Builder::new().name(SESSION_THREAD_NAME.to_owned()).stack_size(STACK_BYTES);
    let work = move || {
        if state::guarded(|| run(settings, device, bell)).is_none() {
            session::detach();
        }
        first_session::end_wait();
    };
    // Never joined: the process may end at any time.
    thread.spawn(work).map(drop)
}

/// While this lives, all signals are blocked on this thread and on threads that it starts.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: a set of plain numbers, filled by the calls below; both sets are ours.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that the system gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

fn run(settings: &ShimSettings, device: CudaDevice, bell: OwnedFd) {
    // With the default slack of 50 µs every short pause would be far too long.
    // SAFETY: changes this thread's own timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => return log::note(format_args!("no runtime: launches pass: {why}")),
    };
    runtime.block_on(async {
        let link = link::QueueLink::new(settings, device, bell);
        let link = match link {
            Ok(link) => link,
            Err(why) => return log::note(format_args!("no socket: launches pass: {why}")),
        };
        keep(link).await;
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "a session that ended soon counts as a failed attempt"
)]
async fn keep(mut link: link::QueueLink) {
    let mut failures = FailureCount::new(BACKOFF);
    let mut is_failure_logged = false;
    while state::mode() != state::DEAD {
        let begun = Instant::now();
        let over = link.session().await;
        session::detach();
        first_session::end_wait();
        match over {
            SessionOver::Broken(why) => {
                if !is_failure_logged {
                    log::note(format_args!("no session, retrying: {why}"));
                }
                is_failure_logged = true;
            }
            SessionOver::Unwanted(why) => {
                return log::note(format_args!("no session: launches pass: {why}"));
            }
            SessionOver::Exit => return,
        }
        if begun.elapsed() >= STEADY {
            failures.reset();
            is_failure_logged = false;
        }
        tokio::time::sleep(failures.count_failure()).await;
    }
}
