//! The process' session with the queue of its slice. The first launch begins it, and a thread of its
//! own ([`crate::client`]) runs it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use tessera_frames::kernel::ShimWelcome;
use tessera_kernel_queue::{Nanos, Role};

use crate::abi::{CudaResult, SUCCESS};
use crate::client::{self, CudaDevice};
use crate::exports::slot;
use crate::{driver, filler, gate, log, ring, settings, state};

/// Roles as numbers, so that the launch path needs one load. Zero is no role.
pub const MEASURE: u32 = 1;
/// See [`Role::Free`].
pub const FREE: u32 = 2;
/// See [`Role::Hold`].
pub const HOLD: u32 = 3;
/// See [`Role::Fill`].
pub const FILL: u32 = 4;

/// Longest wait of a launch, whatever the queue sends.
const WAIT_MAX: Nanos = Nanos::from_millis(1_000);

static ROLE: AtomicU32 = AtomicU32::new(0);
static WAIT_BOUND: AtomicU64 = AtomicU64::new(0);
static SAMPLE_EVERY: AtomicU32 = AtomicU32::new(0);
/// The number of captures in progress in the process.
static CAPTURES: AtomicI32 = AtomicI32::new(0);
/// The last launch whose end was reported by a sync.
static SYNCED: AtomicU64 = AtomicU64::new(0);

/// Returns the role of the process.
#[inline]
pub fn role() -> u32 {
    ROLE.load(Ordering::Relaxed)
}

/// Returns the role as a number, for the counters.
pub fn role_number() -> u32 {
    role()
}

/// Returns whether launches need grants.
pub fn is_filler() -> bool {
    state::mode() == state::ACTIVE && role() == FILL
}

/// Sets the role.
pub fn set_role(role: Role) {
    let number = match role {
        Role::Measure => MEASURE,
        Role::Free => FREE,
        Role::Hold => HOLD,
        Role::Fill => FILL,
    };
    ROLE.store(number, Ordering::Relaxed);
    filler::wake();
}

/// Returns the longest wait of one launch.
pub fn wait_max() -> Nanos {
    Nanos::new(WAIT_BOUND.load(Ordering::Relaxed))
}

/// Returns the sampling interval in launches during the sharing stage; 0 for no samples.
#[inline]
pub fn sample_every() -> u32 {
    SAMPLE_EVERY.load(Ordering::Relaxed)
}

/// Returns whether any capture is in progress: then many calls are errors.
#[inline]
pub fn is_capturing() -> bool {
    CAPTURES.load(Ordering::Relaxed) > 0
}

/// Counts the start or end of a capture.
pub fn count_captures(more: i32) {
    CAPTURES.fetch_add(more, Ordering::Relaxed);
}

/// Marks launches up to `number` as synced. Returns whether any of them was not.
pub fn mark_synced(number: u64) -> bool {
    SYNCED.fetch_max(number, Ordering::Relaxed) < number
}

/// Begins the session after the queue accepted the process.
pub fn welcome(welcome: &ShimWelcome) {
    WAIT_BOUND.store(welcome.wait_max.min(WAIT_MAX).get(), Ordering::Relaxed);
    SAMPLE_EVERY.store(welcome.sample_every, Ordering::Relaxed);
    filler::begin_session();
    set_role(welcome.role);
    state::transition(state::DETACHED, state::ACTIVE);
    crate::counters::count(&crate::counters::SESSIONS);
    filler::wake();
    log::note(format_args!("session {}, role {:?}", welcome.session, welcome.role));
}

/// Ends the session: launches pass.
pub fn detach() {
    state::transition(state::ACTIVE, state::DETACHED);
    ROLE.store(0, Ordering::Relaxed);
    filler::wake();
}

/// Starts the session's thread. The context of the first launch determines the device.
pub fn begin() {
    let Some(device) = device() else { return };
    let Some(settings) = settings::settings() else { return };
    if !state::transition(state::PASSIVE, state::DETACHED) {
        return;
    }
    // SAFETY: both functions only store to one atomic number, which is allowed in a forked child
    // and at the end of a process.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        libc::atexit(at_exit);
    }
    filler::prepare();
    crate::measure::prepare();
    if let Some(path) = &settings.gate {
        gate::open(path);
    }
    if let Err(why) = client::start(settings, device) {
        log::note(format_args!("the session's thread cannot start, the shim is off: {why}"));
        state::die();
    }
}

extern "C" fn in_child() {
    // The session's thread exists only in the parent, and threads that held locks are gone. Only
    // passing calls on is safe.
    state::die();
}

extern "C" fn at_exit() {
    state::die();
    ring::wake_reader();
}

/// Returns the device of the calling thread's context.
fn device() -> Option<CudaDevice> {
    type GetDevice = unsafe extern "C" fn(*mut c_int) -> CudaResult;
    type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> CudaResult;
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> CudaResult;
    let (mut ordinal, mut uuid, mut version) = (0, [0; 16], 0);
    // SAFETY: the functions' types, and places of ours. The second revision of the UUID query names
    // the MIG instance where the first names its parent.
    unsafe {
        let get_device: GetDevice = driver::real(slot::cuCtxGetDevice);
        if get_device(&raw mut ordinal) != SUCCESS {
            return None;
        }
        let get_uuid: GetUuid = driver::real_if_there(slot::cuDeviceGetUuid_v2)
            .unwrap_or_else(|| driver::real(slot::cuDeviceGetUuid));
        if get_uuid(&raw mut uuid, ordinal) != SUCCESS {
            return None;
        }
        let get_version: GetVersion = driver::real(slot::cuDriverGetVersion);
        get_version(&raw mut version);
    }
    Some(CudaDevice { uuid, driver: u32::try_from(version).unwrap_or(0) })
}
