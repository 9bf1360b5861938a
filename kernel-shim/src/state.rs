//! How far the shim has come, and who is inside it.
//!
//! ```text
//! Cold ─► Inert                         no variables, or no driver: passes everything for ever
//!   └───► Passive ─► Detached ◄─► Active     first call; first launch; session with the queue
//! any ──► Dead                          exit, a forked child, a bug: passes everything
//! ```

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// Nothing was called yet.
pub const COLD: u32 = 0;
/// Not wanted here: everything is passed on.
pub const INERT: u32 = 1;
/// The driver is open; names, streams, captures and memory are followed.
pub const PASSIVE: u32 = 2;
/// The session's thread runs, and there is no session: launches pass.
pub const DETACHED: u32 = 3;
/// There is a session.
pub const ACTIVE: u32 = 4;
/// The process ends, or is a forked child, or the shim failed: everything is passed on.
pub const DEAD: u32 = 5;

static MODE: AtomicU32 = AtomicU32::new(COLD);

thread_local! {
    // Constant and without a destructor: it can be used from the first to the last moment of a
    // thread, and takes no memory.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns how far the shim has come.
#[inline]
pub fn mode() -> u32 {
    MODE.load(Ordering::Relaxed)
}

/// Goes from one state to another, if it is in the first.
pub fn turn(from: u32, to: u32) -> bool {
    MODE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Ends everything but passing on.
pub fn die() {
    MODE.store(DEAD, Ordering::Release);
}

/// This thread is in one of the shim's hooks: what the driver calls meanwhile is passed on.
#[derive(Debug)]
pub struct Within(());

/// Enters the shim; nothing if calls are to be passed on.
#[inline]
pub fn enter() -> Option<Within> {
    match mode() {
        PASSIVE | DETACHED | ACTIVE => {}
        COLD => {
            crate::driver::open();
            if !matches!(mode(), PASSIVE) {
                return None;
            }
        }
        _ => return None,
    }
    DEPTH.with(|depth| {
        (depth.get() == 0).then(|| {
            depth.set(1);
            Within(())
        })
    })
}

impl Drop for Within {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(0));
    }
}

/// Does something of the shim's own. A bug in it turns the shim off instead of ending the program.
#[inline]
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        die();
        crate::log::note(format_args!("a bug: off from now on, the program goes on without"));
    }
    done
}
