//! The session's thread: carries records to the queue and its words back.
//!
//! One thread with a runtime of its own, made by the first launch; it blocks all signals, calls
//! nothing of the driver's, and is never waited for. When the queue is away it tries again, soon
//! at first and then four times a second, so that a program is under the queue again well within
//! two seconds of its return.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use crate::settings::Settings;
use crate::{log, ring, session, state};

mod link;
mod outbox;
mod pinned;

/// The device and its driver.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Its UUID, as the driver says.
    pub uuid: [u8; 16],
    /// The newest CUDA that the driver has.
    pub driver: u32,
}

impl Device {
    /// Returns the UUID in its usual writing. Whether it is a whole device's or a MIG instance's,
    /// which have other prefixes, is not to be known here.
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

/// First and longest time between two tries to reach the queue.
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_millis(250);

/// A session that lasted for less than this counts as a failed try.
const STEADY: Duration = Duration::from_secs(1);

/// Enough for the runtime and TLS; what is not touched costs nothing.
const STACK_BYTES: usize = 1024 * 1024;

/// How a session, or a try to get one, ended.
#[derive(Debug)]
enum Over {
    /// Try again.
    Broken(String),
    /// The queue does not want this process: it runs on without.
    Unwanted(String),
    /// The process ends.
    Exit,
}

/// Starts the thread.
///
/// # Errors
///
/// What the system says: there is no thread and no bell.
pub fn start(settings: &'static Settings, device: Device) -> std::io::Result<()> {
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
        std::thread::Builder::new().name("tessera-queue".to_owned()).stack_size(STACK_BYTES);
    let work = move || {
        if state::guarded(|| run(settings, device, bell)).is_none() {
            session::detach();
        }
    };
    // Never joined: the process may end at any moment of it.
    thread.spawn(work).map(drop)
}

/// All signals are blocked on this thread, and on those that it starts meanwhile.
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

fn run(settings: &Settings, device: Device, bell: OwnedFd) {
    // Timers that are late by 50 µs would make every pause of ours half as long again.
    // SAFETY: changes this thread's own timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => return log::note(format_args!("no runtime: launches pass: {why}")),
    };
    runtime.block_on(async {
        let link = link::Link::new(settings, device, bell);
        let link = match link {
            Ok(link) => link,
            Err(why) => return log::note(format_args!("no socket: launches pass: {why}")),
        };
        keep(link).await;
    });
}

async fn keep(mut link: link::Link) {
    let mut back_off = BACK_OFF_MIN;
    let mut told = false;
    while state::mode() != state::DEAD {
        let begun = Instant::now();
        let over = link.session().await;
        session::detach();
        match over {
            Over::Broken(why) => {
                if !told {
                    log::note(format_args!("no session, will try again: {why}"));
                }
                told = true;
            }
            Over::Unwanted(why) => {
                return log::note(format_args!("no session, and none wanted: {why}"));
            }
            Over::Exit => return,
        }
        if begun.elapsed() >= STEADY {
            (back_off, told) = (BACK_OFF_MIN, false);
        }
        tokio::time::sleep(back_off).await;
        back_off = (2 * back_off).min(BACK_OFF_MAX);
    }
}
