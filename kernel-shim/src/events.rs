//! Driver events that the shim records around the program's own work. They are used only on the
//! program's threads, and never during a capture, where they would be errors.

use std::sync::{Mutex, PoisonError};

use tessera_kernel_queue::Nanos;

use crate::abi::{CudaResult, DriverHandle, NOT_READY, NOT_SUPPORTED, SUCCESS};
use crate::driver;
use crate::driver::table::slot;

/// A pool of reusable events of one kind.
pub struct EventPool {
    flags: u32,
    max: usize,
    state: Mutex<PoolState>,
}

struct PoolState {
    free: Vec<DriverHandle>,
    made: usize,
    /// Rises when the context ends: the driver has destroyed the earlier events.
    generation: u32,
}

/// An event of a pool.
#[derive(Clone, Copy, Debug)]
pub struct DriverEvent {
    handle: DriverHandle,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// The device has reached it.
    Complete,
    /// The device has not reached it.
    Pending,
    /// The driver returned an error: the context is gone or broken.
    Lost,
}

impl EventPool {
    /// Returns an empty pool of at most `max` events.
    pub const fn new(flags: u32, max: usize) -> Self {
        let state = PoolState { free: Vec::new(), made: 0, generation: 0 };
        Self { flags, max, state: Mutex::new(state) }
    }

    /// Allocates all memory that the pool will need, so that launches allocate nothing.
    pub fn prepare(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.reserve_exact(self.max);
    }

    /// Takes an event; `None` if all are in use or the driver creates none.
    pub fn take(&self) -> Option<DriverEvent> {
        let generation = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let generation = state.generation;
            if let Some(handle) = state.free.pop() {
                return Some(DriverEvent { handle, generation });
            }
            if state.made >= self.max {
                return None;
            }
            state.made += 1;
            generation
        };
        type CreateFn = unsafe extern "C" fn(*mut DriverHandle, u32) -> CudaResult;
        let mut handle = 0;
        // SAFETY: the function's type; a place of ours.
        let code =
            unsafe { driver::real::<CreateFn>(slot::cuEventCreate)(&raw mut handle, self.flags) };
        (code == SUCCESS).then_some(DriverEvent { handle, generation })
    }

    /// Returns an event to the pool.
    pub fn give_back(&self, event: DriverEvent) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if event.generation == state.generation {
            state.free.push(event.handle);
        }
    }

    /// Discards all events, since their context is gone.
    pub fn discard_all(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.clear();
        state.made = 0;
        state.generation = state.generation.wrapping_add(1);
    }
}

impl DriverEvent {
    /// Records the event on a stream. `per_thread`: whether stream 0 is the thread's own.
    pub fn record(self, stream: DriverHandle, per_thread: bool) -> bool {
        type RecordFn = unsafe extern "C" fn(DriverHandle, DriverHandle) -> CudaResult;
        let slot = if per_thread { slot::cuEventRecord_ptsz } else { slot::cuEventRecord };
        // SAFETY: the type of both functions; an event of ours and a stream of the program's that
        // it is just launching on.
        unsafe { driver::real::<RecordFn>(slot)(self.handle, stream) == SUCCESS }
    }

    /// Returns whether the device has reached the event.
    pub fn status(self) -> EventStatus {
        type QueryFn = unsafe extern "C" fn(DriverHandle) -> CudaResult;
        // SAFETY: the function's type; an event of ours.
        match unsafe { driver::real::<QueryFn>(slot::cuEventQuery)(self.handle) } {
            SUCCESS => EventStatus::Complete,
            NOT_READY => EventStatus::Pending,
            _ => EventStatus::Lost,
        }
    }

    /// Returns the time on the device from this event to another; zero if that one was first.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, not negative, and saturating beyond 584 years"
    )]
    pub fn time_until(self, later: Self) -> Option<Nanos> {
        type ElapsedFn = unsafe extern "C" fn(*mut f32, DriverHandle, DriverHandle) -> CudaResult;
        let mut milliseconds = 0.0_f32;
        // SAFETY: a place of ours, events of ours.
        let mut by =
            |by: ElapsedFn| unsafe { by(&raw mut milliseconds, self.handle, later.handle) };
        // SAFETY: both functions have this type.
        let (newer, older): (Option<ElapsedFn>, ElapsedFn) = unsafe {
            let newer = driver::real_if_there(slot::cuEventElapsedTime_v2);
            (newer, driver::real(slot::cuEventElapsedTime))
        };
        // A driver may export the newer revision without supporting it.
        let code = match newer.map(&mut by) {
            Some(code) if code != NOT_SUPPORTED => code,
            _ => by(older),
        };
        if code != SUCCESS {
            return None;
        }
        // A negative time means concurrent kernels of two streams.
        let nanos = (f64::from(milliseconds.max(0.0)) * 1e6).round();
        nanos.is_finite().then_some(Nanos::new(nanos as u64))
    }
}
