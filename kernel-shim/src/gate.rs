//! The slice's gate page, which the agent serves on a Unix socket.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tessera_frames::gate::{GATE_BYTES, GatePage, ReportPace};
use tessera_kernel_queue::{Epoch, GateState, KernelIndex, LastLaunch, Nanos};
use tessera_wire::gate_page;

static PAGE: AtomicPtr<GatePage> = AtomicPtr::new(std::ptr::null_mut());
static PATH: OnceLock<PathBuf> = OnceLock::new();
/// The number of the mapped memory's inode, by which another agent's page is recognised. 0 for none.
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Gets the page for the first time. Without a page, messages alone end grants.
pub fn open(path: &Path) {
    let _ = PATH.set(path.to_owned());
    renew();
}

/// Gets the page of the queue that serves now: each agent has another one. Called at the start of a session, before
/// any grant of it.
pub fn renew() {
    let Some(path) = PATH.get() else { return };
    if let Err(why) = map(path) {
        PAGE.store(std::ptr::null_mut(), Ordering::Release);
        MAPPED.store(0, Ordering::Relaxed);
        crate::log::note(format_args!("no gate page, only messages end grants: {why}"));
    }
}

fn map(path: &Path) -> std::io::Result<()> {
    let memory = File::from(gate_page::fetch(path)?);
    let inode = memory.metadata()?.ino();
    if MAPPED.load(Ordering::Relaxed) == inode {
        return Ok(());
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (length, shared) = (GATE_BYTES, libc::MAP_SHARED);
    // SAFETY: a new mapping of an open descriptor; nothing else knows it.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), length, access, shared, memory.as_raw_fd(), 0) };
    if page == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // An earlier page stays mapped, because threads may be reading it: one page for each agent that served this process.
    PAGE.store(page.cast(), Ordering::Release);
    MAPPED.store(inode, Ordering::Relaxed);
    Ok(())
}

/// What a closed page shows: all grants are over, since its queue is.
const CLOSED: GateState = GateState { epoch: Epoch::new(u64::MAX), launches: u64::MAX };

fn mapped() -> Option<&'static GatePage> {
    // SAFETY: null or a mapping of the page's size and alignment that is never unmapped; the page
    // consists of atomic numbers, for which any bytes are valid. The memory is sealed: no process can
    // shorten it.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn page() -> Option<&'static GatePage> {
    mapped().filter(|page| page.is_sound())
}

/// Returns the state of the gate that grants are checked against.
pub fn state() -> GateState {
    let closed = || mapped().filter(|page| page.is_closed()).map(|_| CLOSED);
    page().map(GatePage::gate).or_else(closed).unwrap_or_default()
}

/// Returns the last launch of a holder.
pub fn last_launch() -> LastLaunch {
    page().map(GatePage::last_launch).unwrap_or_default()
}

/// Counts a launch of a holder, which ends gaps. Returns the count to report to the queue.
#[inline]
pub fn add_launch(kernel: KernelIndex, at: Nanos) -> u64 {
    page().map_or(0, |page| page.add_launch(kernel, at))
}

/// Wakes a filler that waits for this launch of a holder. Returns whether the queue needs its report at once; then this
/// caller, and no other, has it made.
#[inline]
pub fn announce_launch(count: u64) -> bool {
    let Some(page) = page() else { return false };
    let awaited = page.take_awaited(count);
    if awaited.by_filler {
        wake_all(page.ring());
    }
    awaited.by_queue
}

/// Threads of this process that sleep on the page, or are about to.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// Sleeps until a holder made a launch, this process' state changed, or the time is over. `must_wait` looks at that state
/// again: a change from now on ends the sleep.
pub fn sleep_until(launches: u64, span: Duration, must_wait: impl FnOnce() -> bool) {
    let Some(page) = page() else { return std::thread::sleep(span) };
    SLEEPERS.fetch_add(1, Ordering::SeqCst);
    let bell = page.await_launch(launches);
    if page.gate().launches < launches && must_wait() {
        let until = libc::timespec {
            tv_sec: span.as_secs().cast_signed(),
            tv_nsec: span.subsec_nanos().into(),
        };
        // SAFETY: a futex call on a number of the page, which is never unmapped, and a time of ours.
        unsafe {
            let place = std::ptr::from_ref(page.bell());
            libc::syscall(libc::SYS_futex, place, libc::FUTEX_WAIT, bell, &raw const until);
        }
    }
    SLEEPERS.fetch_sub(1, Ordering::SeqCst);
}

/// Wakes the threads of this process that sleep on the page, since its state changed. Those of others are woken as well
/// and look again.
pub fn wake_sleepers() {
    if SLEEPERS.load(Ordering::SeqCst) > 0
        && let Some(page) = page()
    {
        wake_all(page.ring());
    }
}

#[cold]
fn wake_all(bell: &AtomicU32) {
    // SAFETY: a futex call on a number of the page, which is never unmapped.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(bell),
            libc::FUTEX_WAKE,
            libc::c_int::MAX,
        );
    }
}

/// Returns how soon a holder reports.
#[inline]
pub fn report_pace() -> ReportPace {
    page().map_or(ReportPace::Prompt, GatePage::report_pace)
}

/// Returns the queue's last heartbeat on the page.
pub fn heartbeat() -> Option<Nanos> {
    page().map(GatePage::heartbeat)
}

/// Returns whether the queue's process lives, even if it waits for a processor: it serves the page. The system ends
/// that with the process, and not before.
#[cold]
pub fn is_served() -> bool {
    PATH.get().is_some_and(|path| gate_page::is_served(path))
}
