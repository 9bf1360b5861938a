//! What a thread does to captures: `cuThreadExchangeStreamCaptureMode`.

use std::cell::Cell;

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(0) };
}

/// Returns the thread's mode.
pub fn get() -> i32 {
    MODE.get()
}

/// Changes it; returns what it was.
pub fn exchange(mode: i32) -> i32 {
    MODE.replace(mode)
}
