//! A holder brings the device back to its context before its pause ends.
//!
//! While a holder pauses, fillers run in other contexts. The device changes contexts only when a kernel is there, so
//! the holder's next kernel would wait for the switch: 153 µs on an H200 (`docs/benchmarks.md`). So the queue orders
//! the switch for when the pause is nearly over ([`tessera_frames::kernel::ToShim::Recall`]), and this launches an
//! empty kernel then. It runs on a separate stream that waits for no other.
//!
//! The driver is called on a separate thread: a call may block for long, and the session's thread must not. The
//! kernel is in no program's memory or stream, and its launches are not counted.

use std::ffi::{CStr, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tessera_frames::kernel::RECALL_KERNEL_NAME;
use tessera_kernel_queue::Nanos;

use crate::abi::{CudaResult, DriverHandle, STREAM_NON_BLOCKING, SUCCESS};
use crate::driver::table::slot;
use crate::ring::{self, RecordKind, RingRecord};
use crate::slack::TimerLateness;
use crate::{captures, clock, driver, gate, log, state, terms};

/// The name in the kernel of the thread that launches.
const THREAD_NAME: &str = "tessera-recall";
/// The driver's calls need some, above all its compiler.
const STACK_BYTES: usize = 1024 * 1024;
/// How long the end of the process waits for a call in progress.
const EXIT_PAUSES: u32 = 50;

/// The empty kernel, for every GPU since Maxwell.
const MODULE: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry tessera_recall()
{
ret;
}
";

/// When to bring the device back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecallOrder {
    at: Nanos,
    /// The gate's launches: if there are more, the pause has ended.
    launches: u64,
}

/// What the driver made in the program's context.
#[derive(Clone, Copy, Debug)]
struct RecallKernel {
    function: DriverHandle,
    stream: DriverHandle,
}

/// What calls need. Held during each call, so that the context is not destroyed meanwhile.
#[derive(Debug)]
enum CallState {
    /// No call was made in the present context.
    New,
    Ready(RecallKernel),
    /// The driver refused, or the process ends.
    Off,
}

static ORDER: Mutex<Option<RecallOrder>> = Mutex::new(None);
static ORDERED: Condvar = Condvar::new();
static CALLS: Mutex<CallState> = Mutex::new(CallState::New);
/// Whether the next launch of the program has to note its context.
static IS_CONTEXT_REQUESTED: AtomicBool = AtomicBool::new(false);
/// The context of the program's launches; 0 while it is not known.
static CONTEXT: AtomicUsize = AtomicUsize::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts an order of the queue, which replaces an earlier one.
pub fn accept(at: Nanos, launches: u64) {
    static STARTED: Once = Once::new();
    STARTED.call_once(start);
    if CONTEXT.load(Ordering::Relaxed) == 0 {
        IS_CONTEXT_REQUESTED.store(true, Ordering::Relaxed);
        return;
    }
    *lock(&ORDER) = Some(RecallOrder { at, launches });
    ORDERED.notify_one();
}

/// Notes the context of a program's launch, if an order waits for it.
#[inline]
pub fn note_launch() {
    if IS_CONTEXT_REQUESTED.load(Ordering::Relaxed) {
        note_context();
    }
}

#[cold]
fn note_context() {
    type GetCurrent = unsafe extern "C" fn(*mut DriverHandle) -> CudaResult;
    IS_CONTEXT_REQUESTED.store(false, Ordering::Relaxed);
    let mut context = 0;
    // SAFETY: the function's type; a place of ours.
    let code = unsafe { driver::real::<GetCurrent>(slot::cuCtxGetCurrent)(&raw mut context) };
    if code == SUCCESS {
        CONTEXT.store(context, Ordering::Relaxed);
    }
}

/// Forgets what belongs to the context. Called before the driver destroys it: it waits for a call in progress.
pub fn on_context_end() {
    let mut calls = lock(&CALLS);
    CONTEXT.store(0, Ordering::Relaxed);
    if let CallState::Ready(_) = *calls {
        *calls = CallState::New;
    }
}

/// While the result lives, no recall calls the driver. It waits for a call in progress.
pub fn hold_calls() -> impl Drop {
    lock(&CALLS)
}

/// Ends all calls before the driver ends with the process. It waits for a call in progress, but not for long.
pub fn stop() {
    for _ in 0..EXIT_PAUSES {
        if let Ok(mut calls) = CALLS.try_lock() {
            *calls = CallState::Off;
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts the thread, with the caller's blocked signals.
fn start() {
    let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(|| {
        state::guarded(run);
    });
    if let Err(why) = started {
        log::note(format_args!("no thread for recalls: pauses end with a context switch: {why}"));
    }
}

fn run() {
    // What the driver calls on this thread is no call of the program.
    let _scope = state::enter_hook();
    // With the default slack of 50 µs the switch would come late.
    // SAFETY: changes this thread's own timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
    let mut lateness = TimerLateness::new();
    loop {
        let order = next_order(&mut lateness);
        if state::mode() == state::DEAD {
            return;
        }
        if carry_out(order) == Outcome::Off {
            return;
        }
    }
}

/// Waits until the latest order is due. The kernel has to be there in time: 0.1 ms later the pause is over. So the thread
/// wakes as much earlier as timers are late, and then looks at the clock.
fn next_order(lateness: &mut TimerLateness) -> RecallOrder {
    loop {
        let due = next_near_order(lateness);
        if is_due(due) {
            return due;
        }
    }
}

/// Sleeps until the latest order is nearly due, and removes it.
fn next_near_order(lateness: &mut TimerLateness) -> RecallOrder {
    let mut order = lock(&ORDER);
    loop {
        let now = clock::now();
        match *order {
            None => order = ORDERED.wait(order).unwrap_or_else(PoisonError::into_inner),
            Some(due) if due.at <= now.plus(lateness.get()) => {
                *order = None;
                return due;
            }
            Some(due) => {
                let span = due.at.minus(now).minus(lateness.get());
                let woken = ORDERED.wait_timeout(order, Duration::from_nanos(span.get()));
                let (left, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
                order = left;
                if timeout.timed_out() {
                    lateness.observe(clock::now().minus(now).minus(span));
                }
            }
        }
    }
}

/// Looks at the clock until the order is due. Returns `false` if another order replaced it.
fn is_due(due: RecallOrder) -> bool {
    while clock::now() < due.at && gate::state().launches == due.launches {
        if lock(&ORDER).is_some() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// There will be no more calls.
    Off,
}

fn carry_out(order: RecallOrder) -> Outcome {
    let mut calls = lock(&CALLS);
    if let CallState::Off = *calls {
        return Outcome::Off;
    }
    let context = CONTEXT.load(Ordering::Relaxed);
    let is_pause = gate::state().launches == order.launches;
    let holds = matches!(terms::role(), terms::HOLD | terms::MEASURE);
    if context == 0 || !is_pause || !holds || captures::is_capturing() {
        return Outcome::Done;
    }
    if let CallState::New = *calls {
        *calls = match make(context) {
            Ok(made) => CallState::Ready(made),
            Err(code) => {
                log::note(format_args!(
                    "the driver made no kernel for recalls ({code}): pauses end with a context switch"
                ));
                CallState::Off
            }
        };
    }
    match *calls {
        CallState::Ready(made) if launch(made) == SUCCESS => {
            let at = clock::now().get();
            let kind = RecordKind::Recalled;
            ring::push(RingRecord { kind, kernel: 0, launch: 0, at, extra: 0 });
            Outcome::Done
        }
        CallState::Ready(_) | CallState::New => Outcome::Done,
        CallState::Off => Outcome::Off,
    }
}

/// Makes the kernel in a context, which becomes the calling thread's.
fn make(context: DriverHandle) -> Result<RecallKernel, CudaResult> {
    type SetCurrent = unsafe extern "C" fn(DriverHandle) -> CudaResult;
    type Load = unsafe extern "C" fn(*mut DriverHandle, *const c_void) -> CudaResult;
    type GetFunction =
        unsafe extern "C" fn(*mut DriverHandle, DriverHandle, *const libc::c_char) -> CudaResult;
    type CreateStream = unsafe extern "C" fn(*mut DriverHandle, c_uint) -> CudaResult;
    let check = |code: CudaResult| if code == SUCCESS { Ok(()) } else { Err(code) };
    let (mut module, mut function, mut stream) = (0, 0, 0);
    // SAFETY: the functions' types, places of ours, and texts that end with a zero. The context lives: the lock is held.
    unsafe {
        check(driver::real::<SetCurrent>(slot::cuCtxSetCurrent)(context))?;
        let load: Load = driver::real(slot::cuModuleLoadData);
        check(load(&raw mut module, MODULE.as_ptr().cast()))?;
        let find: GetFunction = driver::real(slot::cuModuleGetFunction);
        check(find(&raw mut function, module, RECALL_KERNEL_NAME.as_ptr()))?;
        let create: CreateStream = driver::real(slot::cuStreamCreate);
        check(create(&raw mut stream, STREAM_NON_BLOCKING))?;
    }
    Ok(RecallKernel { function, stream })
}

fn launch(made: RecallKernel) -> CudaResult {
    type Launch = unsafe extern "C" fn(
        DriverHandle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        DriverHandle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CudaResult;
    let none = std::ptr::null_mut();
    // SAFETY: the function's type; a kernel without parameters, and a stream of ours in the thread's context.
    unsafe {
        let call: Launch = driver::real(slot::cuLaunchKernel);
        call(made.function, 1, 1, 1, 1, 1, 1, 0, made.stream, none, none)
    }
}
