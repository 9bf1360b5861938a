//! Events of the driver's that the shim records beside the program's own work. Used on the
//! program's threads only, and never while any capture is under way: then they would be illegal.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tessera_kernel_queue::Nanos;

use crate::abi::{Code, Handle, NOT_READY, NOT_SUPPORTED, SUCCESS};
use crate::driver;
use crate::exports::slot;

/// Events of one kind, used again and again.
pub struct Pool {
    flags: u32,
    max: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    free: Vec<Handle>,
    made: usize,
    /// Rises when the context goes: events of before are the driver's to forget.
    generation: u32,
}

/// An event of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    handle: Handle,
    generation: u32,
}

/// Whether an event has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It has.
    Come,
    /// Not yet.
    Ahead,
    /// The driver refuses to say: the context is gone or broken.
    Lost,
}

impl Pool {
    /// Makes an empty pool of at most `max` events.
    pub const fn new(flags: u32, max: usize) -> Self {
        let inner = Inner { free: Vec::new(), made: 0, generation: 0 };
        Self { flags, max, inner: Mutex::new(inner) }
    }

    /// Takes the memory that the pool will ever need, so that launches take none.
    pub fn prepare(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free.reserve_exact(self.max);
    }

    /// Takes an event; nothing if all are in use or the driver makes none.
    pub fn take(&self) -> Option<Event> {
        let generation = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let generation = inner.generation;
            if let Some(handle) = inner.free.pop() {
                return Some(Event { handle, generation });
            }
            if inner.made >= self.max {
                return None;
            }
            inner.made += 1;
            generation
        };
        type Create = unsafe extern "C" fn(*mut Handle, u32) -> Code;
        let mut handle = 0;
        // SAFETY: the function's type; a place of ours.
        let code =
            unsafe { driver::real::<Create>(slot::cuEventCreate)(&raw mut handle, self.flags) };
        (code == SUCCESS).then_some(Event { handle, generation })
    }

    /// Gives an event back.
    pub fn give(&self, event: Event) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if event.generation == inner.generation {
            inner.free.push(event.handle);
        }
    }

    /// Forgets all events: their context is gone, and they with it.
    pub fn forget(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free.clear();
        inner.made = 0;
        inner.generation = inner.generation.wrapping_add(1);
    }
}

impl Event {
    /// Records the event on a stream; `per_thread` says how the program's function means 0.
    pub fn record(self, stream: Handle, per_thread: bool) -> bool {
        type Record = unsafe extern "C" fn(Handle, Handle) -> Code;
        let slot = if per_thread { slot::cuEventRecord_ptsz } else { slot::cuEventRecord };
        // SAFETY: the type of both functions; an event of ours and a stream of the program's that
        // it is just launching on.
        unsafe { driver::real::<Record>(slot)(self.handle, stream) == SUCCESS }
    }

    /// Looks whether the event has come.
    pub fn look(self) -> Seen {
        type Query = unsafe extern "C" fn(Handle) -> Code;
        // SAFETY: the function's type; an event of ours.
        match unsafe { driver::real::<Query>(slot::cuEventQuery)(self.handle) } {
            SUCCESS => Seen::Come,
            NOT_READY => Seen::Ahead,
            _ => Seen::Lost,
        }
    }

    /// Returns the time on the device from this event to another; zero if that came first.
    pub fn until(self, later: Self) -> Option<Nanos> {
        type Elapsed = unsafe extern "C" fn(*mut f32, Handle, Handle) -> Code;
        let mut milliseconds = 0.0_f32;
        // SAFETY: a place of ours, events of ours.
        let mut by = |by: Elapsed| unsafe { by(&raw mut milliseconds, self.handle, later.handle) };
        // SAFETY: both functions have this type.
        let (newer, older): (Option<Elapsed>, Elapsed) = unsafe {
            let newer = driver::real_if_there(slot::cuEventElapsedTime_v2);
            (newer, driver::real(slot::cuEventElapsedTime))
        };
        // A driver may export the newer revision and not carry it out.
        let code = match newer.map(&mut by) {
            Some(code) if code != NOT_SUPPORTED => code,
            _ => by(older),
        };
        if code != SUCCESS {
            return None;
        }
        // Below zero: kernels of two streams side by side.
        let span = Duration::try_from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3).ok()?;
        u64::try_from(span.as_nanos()).ok().map(Nanos::new)
    }
}
