//! The functions of the driver that are looked at, each with its twin for per-thread default
//! streams. All forward to the driver's function of the same symbol and return what it returns.
//!
//! None of them reads an out-parameter unless the driver's answer was success and it is there.

use crate::abi::Code;

/// Defines hooks: the body gets the driver's function as a closure without arguments.
macro_rules! hooks {
    ($($symbol:ident ($($name:ident : $kind:ty),* $(,)?) |$call:ident| $body:expr;)+) => { $(
        /// The driver's function of this name, looked at.
        ///
        /// # Safety
        ///
        /// As the driver's function.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($name: $kind),*) -> Code {
            type Real = unsafe extern "C" fn($($kind),*) -> Code;
            // SAFETY: the type of the function of this slot.
            let real: Real = unsafe { $crate::driver::real($crate::exports::slot::$symbol) };
            // SAFETY: the program's own arguments, handed on as they came.
            let $call = || unsafe { real($($name),*) };
            let Some(_within) = $crate::state::enter() else { return $call() };
            $body
        }
    )+ };
}

mod bootstrap;
pub mod capture;
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

/// Does the shim's part after the driver's, if that worked.
fn after(code: Code, work: impl FnOnce()) -> Code {
    if code == crate::abi::SUCCESS {
        crate::state::guarded(work);
    }
    code
}

/// Reads what the driver wrote, if the program asked for it.
///
/// # Safety
///
/// `place` is null or was just written by the driver.
unsafe fn written<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: the caller's promise.
    (!place.is_null()).then(|| unsafe { place.read_unaligned() })
}
