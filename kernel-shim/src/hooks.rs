//! The hooked functions of the driver, each with its variant for per-thread default streams. All
//! call the driver's function of the same symbol and return its result.
//!
//! A hook reads an output parameter only if the driver returned success and the pointer is set.

use crate::abi::CudaResult;

/// Defines hooks. The body gets the driver's function as a closure without arguments. The module's `WHEN` has the states
/// in which they work.
macro_rules! hooks {
    ($($symbol:ident ($($name:ident : $kind:ty),* $(,)?) |$call:ident| $body:expr;)+) => { $(
        /// The hook for the driver's function of this name.
        ///
        /// # Safety
        ///
        /// As the driver's function.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($name: $kind),*) -> CudaResult {
            type Real = unsafe extern "C" fn($($kind),*) -> CudaResult;
            // SAFETY: the type of the function of this slot.
            let real: Real = unsafe { $crate::driver::real($crate::driver::table::slot::$symbol) };
            // SAFETY: the program's own arguments, handed on as they came.
            let $call = || unsafe { real($($name),*) };
            let Some(_scope) = $crate::driver::enter_hook(WHEN) else { return $call() };
            $body
        }
    )+ };
}

mod bootstrap;
mod capture;
mod graphs;
mod launches;
mod memory;
mod naming;
mod waiting;

pub use bootstrap::*;
pub use capture::*;
pub use graphs::*;
pub use launches::*;
pub use memory::*;
pub use naming::*;
pub use waiting::*;

/// Runs the shim's part if the driver's call succeeded.
fn after(code: CudaResult, work: impl FnOnce()) -> CudaResult {
    if code == crate::abi::SUCCESS {
        crate::state::guarded(work);
    }
    code
}

/// Reads what the driver wrote, if the program passed a pointer for it.
///
/// # Safety
///
/// `place` is null or was just written by the driver.
unsafe fn written<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: the caller's promise.
    (!place.is_null()).then(|| unsafe { place.read_unaligned() })
}
