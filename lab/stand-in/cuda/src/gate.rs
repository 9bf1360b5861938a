//! The gate that every call passes: initialised, not forked, not too new, counted, traced, and
//! subject to faults.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;

use tessera_stand_in::faults::FaultAction;

use crate::abi::{CallResult, CudaCode};
use crate::clock::monotonic_nanos;
use crate::complaints::complain;
use crate::driver::{CudaDriver, driver};
use crate::table::{SYMBOLS, index};
use crate::thread_state::is_in_host_function;

/// Whether the driver can be used.
static PHASE: AtomicU8 = AtomicU8::new(COLD);
const COLD: u8 = 0;
const READY: u8 = 1;
/// The child of a process that had a driver: its contexts are not the child's.
const FORKED: u8 = 2;
const OVER: u8 = 3;

/// Calls of each function, by its index.
pub static COUNTS: [AtomicU64; SYMBOLS.len()] = [const { AtomicU64::new(0) }; SYMBOLS.len()];

/// One call on its way.
#[derive(Clone, Copy)]
pub struct GateCall {
    /// Index of its function.
    pub symbol: usize,
    pub driver: &'static CudaDriver,
    /// When it began.
    pub began: u64,
}

impl GateCall {
    /// Returns whether stream 0 is the thread's own.
    pub const fn per_thread(&self) -> bool {
        SYMBOLS[self.symbol].per_thread
    }
}

/// Exports functions of the driver, alone or with the twin whose default stream is the thread's
/// own. Each body runs behind the gate.
macro_rules! cuda {
    () => {};
    (
        $(#[$doc:meta])*
        fn $name:ident / $twin:ident ($($args:tt)*) |$call:pat_param| $body:block
        $($rest:tt)*
    ) => {
        $crate::gate::export! { $(#[$doc])* $name ($($args)*) |$call| $body }
        $crate::gate::export! { $(#[$doc])* $twin ($($args)*) |$call| $body }
        $crate::gate::cuda! { $($rest)* }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident ($($args:tt)*) |$call:pat_param| $body:block
        $($rest:tt)*
    ) => {
        $crate::gate::export! { $(#[$doc])* $name ($($args)*) |$call| $body }
        $crate::gate::cuda! { $($rest)* }
    };
}
pub(crate) use cuda;

macro_rules! export {
    ($(#[$doc:meta])* $name:ident ($($arg:ident: $type:ty),* $(,)?) |$call:pat_param| $body:block) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            let symbol = $crate::table::index::$name;
            $crate::gate::pass(
                symbol,
                &[$((stringify!($arg), $crate::abi::TracedArgument::shown(&$arg))),*],
                |$call| $body,
            )
        }
    };
}
pub(crate) use export;

/// Lets a call through, and turns its outcome into the driver's. A panic becomes the unknown
/// error: unwinding into C would be undefined behaviour.
pub fn pass(
    symbol: usize,
    args: &[(&str, u64)],
    body: impl FnOnce(&GateCall) -> CallResult,
) -> i32 {
    let call = match catch_unwind(|| enter(symbol)) {
        Ok(Ok(call)) => call,
        Ok(Err(code)) => return code.0,
        Err(_) => return CudaCode::UNKNOWN.0,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        strike(&call)?;
        body(&call)
    }));
    let code = match outcome {
        Ok(Ok(())) => CudaCode::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CudaCode::UNKNOWN,
    };
    if let Some(trace) = &call.driver.trace {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            trace.call(SYMBOLS[symbol].symbol, args, call.began, code);
        }));
    }
    code.0
}

/// Refuses a function that isn't simulated, and prints a warning.
pub fn absent(symbol: usize) -> i32 {
    let _ = catch_unwind(|| {
        let driver = driver();
        COUNTS[symbol].fetch_add(1, Ordering::Relaxed);
        let name = SYMBOLS[symbol].symbol;
        if let Some(trace) = &driver.trace {
            trace.call(name, &[], monotonic_nanos(), CudaCode::NOT_SUPPORTED);
        }
        let why =
            if SYMBOLS[symbol].simulated { "newer than this driver" } else { "not simulated" };
        complain(&format!("{name} is {why}, so it returns 801, not supported"));
        if driver.settings.strict {
            std::process::abort();
        }
    });
    CudaCode::NOT_SUPPORTED.0
}

fn enter(symbol: usize) -> CallResult<GateCall> {
    COUNTS[symbol].fetch_add(1, Ordering::Relaxed);
    let found = &SYMBOLS[symbol];
    match PHASE.load(Ordering::Acquire) {
        READY => {}
        _ if needs_nothing(symbol) => {}
        OVER => return Err(CudaCode::DEINITIALIZED),
        _ => return Err(CudaCode::NOT_INITIALIZED),
    }
    if is_in_host_function() && !needs_nothing(symbol) {
        return Err(CudaCode::NOT_PERMITTED);
    }
    let driver = driver();
    if found.version > driver.settings.version {
        absent(symbol);
        return Err(CudaCode::NOT_SUPPORTED);
    }
    driver.know_thread();
    Ok(GateCall { symbol, driver, began: monotonic_nanos() })
}

/// Functions that may be called before `cuInit`.
const fn needs_nothing(symbol: usize) -> bool {
    matches!(
        symbol,
        index::cuInit
            | index::cuDriverGetVersion
            | index::cuGetErrorName
            | index::cuGetErrorString
            | index::cuGetProcAddress
            | index::cuGetProcAddress_v2
            | index::cuGetExportTable
    )
}

/// Applies the faults of the environment to a call.
fn strike(call: &GateCall) -> CallResult {
    for action in call.driver.faults.strike(SYMBOLS[call.symbol].symbol) {
        match action {
            FaultAction::Fail(code) => {
                // A rule has codes up to 999.
                let code = CudaCode(code.cast_signed());
                if code.is_sticky() {
                    call.driver.poison_current(code);
                }
                return Err(code);
            }
            FaultAction::Delay(time) => thread::sleep(time),
            FaultAction::Crash => std::process::abort(),
            FaultAction::Hang => loop {
                thread::park();
            },
            // Of NVML's calls, not of the driver's.
            FaultAction::LeavePending(_)
            | FaultAction::Ghost
            | FaultAction::Lose
            | FaultAction::Raise(_)
            | FaultAction::Recovery(_)
            | FaultAction::Remap(_) => {}
        }
    }
    Ok(())
}

/// Returns whether the driver is initialised in this process.
pub fn is_ready() -> bool {
    PHASE.load(Ordering::Acquire) == READY
}

/// Returns whether this process is the fork of one that had initialised the driver.
pub fn is_forked() -> bool {
    PHASE.load(Ordering::Acquire) == FORKED
}

/// Opens the gate, until the process exits or forks.
pub fn open() {
    extern "C" fn forked() {
        PHASE.store(FORKED, Ordering::Release);
    }
    extern "C" fn over() {
        PHASE.store(OVER, Ordering::Release);
        // As the driver does: an MPS server takes a client that just goes for a dead one.
        let _ = catch_unwind(|| driver().part());
    }
    PHASE.store(READY, Ordering::Release);
    // SAFETY: the handler of forks only stores a number, and that of exits doesn't unwind. If
    // they can't be registered, a fork would find a driver that isn't its own, which is the
    // caller's fault then as it is now.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(over);
    }
}
