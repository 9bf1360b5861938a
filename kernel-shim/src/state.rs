//! The state of the shim, and which threads are inside it.
//!
//! ```text
//! Cold ─► Inert                         no variables, or no driver: passes everything on
//!   └───► Passive ─► Detached ◄─► Active     first call; first launch; session with the queue
//! any ──► Dead                          exit, forked child or bug: passes everything on
//! ```

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// The program has not called the driver yet.
pub const COLD: u32 = 0;
/// The shim has no task in this process: every call is passed on.
pub const INERT: u32 = 1;
/// The driver is open; names, streams, captures and memory are tracked.
pub const PASSIVE: u32 = 2;
/// The session's thread runs, and there is no session: launches pass.
pub const DETACHED: u32 = 3;
/// There is a session.
pub const ACTIVE: u32 = 4;
/// The process ends, is a forked child, or the shim failed: every call is passed on.
pub const DEAD: u32 = 5;

static MODE: AtomicU32 = AtomicU32::new(COLD);

thread_local! {
    // Constant and without a destructor: it is usable during the whole life of a thread, and
    // allocates nothing.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns the state of the shim.
#[inline]
pub fn mode() -> u32 {
    MODE.load(Ordering::Relaxed)
}

/// Changes the state from `from` to `to`. Returns false if the state is another one.
pub fn transition(from: u32, to: u32) -> bool {
    MODE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Turns the shim off: from now on every call is passed on.
pub fn die() {
    MODE.store(DEAD, Ordering::Release);
}

/// Marks this thread as inside a hook: nested calls from the driver are passed on.
#[derive(Debug)]
pub struct HookScope(());

/// Enters a hook after the driver was opened. `None` if the call must be passed on.
#[inline]
pub fn enter_hook() -> Option<HookScope> {
    if !matches!(mode(), PASSIVE | DETACHED | ACTIVE) {
        return None;
    }
    DEPTH.with(|depth| {
        (depth.get() == 0).then(|| {
            depth.set(1);
            HookScope(())
        })
    })
}

impl Drop for HookScope {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(0));
    }
}

/// Runs code of the shim. A panic in it turns the shim off instead of ending the program.
#[inline]
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        die();
        crate::log::note(format_args!("a bug: the shim is off, and the program runs without it"));
    }
    done
}
