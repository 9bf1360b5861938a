//! Pages whose files jobs may truncate. An access to such a page ends a process with `SIGBUS`, unless it is
//! prepared: here an empty page of the process itself replaces the lost one.

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};
use tessera_frames::gate::GATE_BYTES;

/// Most pages at once: a node has at most 7 slices on each of 16 GPUs.
const PAGES_MAX: usize = 256;

/// Addresses of protected pages; 0 for none.
static PAGES: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];
/// Whether the handler is installed.
static INSTALLED: OnceLock<bool> = OnceLock::new();

/// Protects this process from the truncation of a page's file, until [`forget`].
///
/// # Errors
///
/// There are too many pages, or the system refused the handler.
pub fn protect(address: usize) -> io::Result<()> {
    if !*INSTALLED.get_or_init(install) {
        return Err(io::Error::other("no handler for truncated pages can be installed"));
    }
    let taken = PAGES
        .iter()
        .any(|page| page.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    taken.then_some(()).ok_or_else(|| io::Error::other("too many pages are mapped"))
}

/// Ends the protection of a page, before it is unmapped.
pub fn forget(address: usize) {
    for page in &PAGES {
        let _ = page.compare_exchange(address, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn install() -> bool {
    // SAFETY: a zeroed action is valid; the handler has the type that `SA_SIGINFO` demands, and does only
    // what a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = replace_page;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) == 0
    }
}

/// Maps an empty page over a lost one. Anything else ends the process, as without a handler.
extern "C" fn replace_page(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes a valid description of the fault.
    let at = unsafe { (*info).si_addr() } as usize & !(GATE_BYTES - 1);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let is_ours = at != 0 && PAGES.iter().any(|page| page.load(Ordering::Acquire) == at);
    // SAFETY: replaces only a page that was given to `protect`; it stays mapped, and any bytes are a page.
    let replaced = is_ours
        && unsafe { libc::mmap(at as *mut c_void, GATE_BYTES, access, flags, -1, 0) }
            != libc::MAP_FAILED;
    if !replaced {
        // SAFETY: plain numbers. The access is repeated, and ends the process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}
