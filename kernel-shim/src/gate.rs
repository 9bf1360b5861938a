//! The slice's gate page, mapped if the agent has one for this process.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use tessera_kernel_queue::{Gate, Nanos};
use tessera_wire::gate::{GATE_BYTES, GatePage};

static PAGE: AtomicPtr<GatePage> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the page. Without one everything works, by messages alone.
pub fn open(path: &Path) {
    match map(path) {
        Ok(page) => PAGE.store(page, Ordering::Release),
        Err(why) => crate::log::note(format_args!("no gate page, messages must do: {why}")),
    }
}

fn map(path: &Path) -> std::io::Result<*mut GatePage> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() < u64::try_from(GATE_BYTES).unwrap_or(u64::MAX) {
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
    // is made of atomic numbers, for which any bytes are values. Should the file be made shorter
    // under it, the process gets SIGBUS: only who may write the page can do that, and that is the
    // agent and the attempts of this very slice.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() }?;
    page.is_sound().then_some(page)
}

/// Returns what grants are held against.
pub fn gate() -> Gate {
    page().map(GatePage::gate).unwrap_or_default()
}

/// Tells the fillers that a holder launches; returns the count to tell the queue.
#[inline]
pub fn add_launch() -> u64 {
    page().map_or(0, GatePage::add_launch)
}

/// Returns when the queue was last alive, as far as the page says.
pub fn beat() -> Option<Nanos> {
    page().map(GatePage::beat)
}
