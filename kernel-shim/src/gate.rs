//! The slice's gate page, mapped if the agent provides one.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use tessera_frames::gate::{GATE_BYTES, GatePage};
use tessera_kernel_queue::{GateState, Nanos};

static PAGE: AtomicPtr<GatePage> = AtomicPtr::new(std::ptr::null_mut());
static PATH: OnceLock<PathBuf> = OnceLock::new();

/// Maps the page. Without a page, messages alone end grants.
pub fn open(path: &Path) {
    match map(path) {
        Ok(page) => {
            PAGE.store(page, Ordering::Release);
            let _ = PATH.set(path.to_owned());
        }
        Err(why) => crate::log::note(format_args!("no gate page, only messages end grants: {why}")),
    }
}

fn map(path: &Path) -> std::io::Result<*mut GatePage> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() < GATE_BYTES as u64 {
        return Err(std::io::Error::other("the file is shorter than a page"));
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file; nothing else knows it.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), GATE_BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if page == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(page.cast())
}

fn page() -> Option<&'static GatePage> {
    // SAFETY: null or a mapping of the page's size and alignment that is never unmapped; the page
    // consists of atomic numbers, for which any bytes are valid. If the file is truncated, the
    // process gets SIGBUS. Only the agent and the attempts of this slice can truncate it.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() }?;
    page.is_sound().then_some(page)
}

/// Returns the state of the gate that grants are checked against.
pub fn state() -> GateState {
    page().map(GatePage::gate).unwrap_or_default()
}

/// Counts a launch of a holder, which ends gaps. Returns the count to report to the queue.
#[inline]
pub fn add_launch() -> u64 {
    page().map_or(0, GatePage::add_launch)
}

/// Returns the queue's last heartbeat on the page.
pub fn heartbeat() -> Option<Nanos> {
    page().map(GatePage::heartbeat)
}

/// Returns whether the process of the queue holds its lock on the page's file. The system ends the lock with
/// the process, and not before.
#[cold]
pub fn is_held_by_queue() -> bool {
    let Some(file) = PATH.get().and_then(|path| std::fs::File::open(path).ok()) else {
        return false;
    };
    // SAFETY: zeros are a valid description of a lock: the whole file, and no owner.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (READ_LOCK, WHOLE_FILE);
    // SAFETY: an open file and a structure of ours. It only asks.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    outcome == 0 && lock.l_type == WRITE_LOCK
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "small numbers of the C interface, where the field is a short"
)]
const READ_LOCK: i16 = libc::F_RDLCK as i16;
#[expect(
    clippy::cast_possible_truncation,
    reason = "small numbers of the C interface, where the field is a short"
)]
const WRITE_LOCK: i16 = libc::F_WRLCK as i16;
#[expect(
    clippy::cast_possible_truncation,
    reason = "small numbers of the C interface, where the field is a short"
)]
const WHOLE_FILE: i16 = libc::SEEK_SET as i16;
