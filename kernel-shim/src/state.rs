//! The state of the shim, and which threads are inside it.
//!
//! ```text
//! Cold ─► Inert                         no variables, or no driver: passes everything on
//!   ├───► Watching ─► Watched           first call; first launch: only memory is observed
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

/// There is no queue, and the first launch is awaited ([`crate::watch`]).
pub const WATCHING: u32 = 6;
/// There is no queue, and the first launch was reported: launches are passed on.
pub const WATCHED: u32 = 7;

/// The states in which a hook works, one bit for each: those with a queue.
pub const WITH_QUEUE: u32 = 1 << PASSIVE | 1 << DETACHED | 1 << ACTIVE;
/// The same for hooks of launches.
pub const UNTIL_LAUNCH: u32 = WITH_QUEUE | 1 << WATCHING;
/// The same for hooks that observe the whole program.
pub const ALWAYS: u32 = UNTIL_LAUNCH | 1 << WATCHED;

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

/// Returns whether a hook works now. `when` has a bit for each state in which it does.
#[inline]
pub fn is_one_of(when: u32) -> bool {
    when >> mode() & 1 != 0
}

/// Enters a hook that works in the state of the shim. `None` if the call must be passed on.
#[inline]
pub fn enter_hook() -> Option<HookScope> {
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
