//! The process' session with the queue of its slice: begun by the first launch, carried on by a
//! thread of its own ([`crate::client`]).

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use tessera_kernel_queue::{Nanos, Role};
use tessera_wire::kernel::Welcome;

use crate::abi::{Code, SUCCESS};
use crate::client::{self, Device};
use crate::exports::slot;
use crate::{driver, fill, gate, log, ring, settings, state};

/// Numbers of roles, for one load on the launch path; zero is none.
pub const MEASURE: u32 = 1;
/// See [`Role::Free`].
pub const FREE: u32 = 2;
/// See [`Role::Hold`].
pub const HOLD: u32 = 3;
/// See [`Role::Ask`].
pub const ASK: u32 = 4;

/// Longest that a launch may wait whatever the queue says.
const WAIT_MAX: Nanos = Nanos::from_millis(1_000);

static ROLE: AtomicU32 = AtomicU32::new(0);
static WAIT_BOUND: AtomicU64 = AtomicU64::new(0);
static SAMPLE_EVERY: AtomicU32 = AtomicU32::new(0);
/// Captures under way in the process.
static CAPTURES: AtomicI32 = AtomicI32::new(0);
/// The last launch whose end was told by a sync.
static SYNCED: AtomicU64 = AtomicU64::new(0);

/// Returns how the process may launch.
#[inline]
pub fn role() -> u32 {
    ROLE.load(Ordering::Relaxed)
}

/// Returns the role for the counters.
pub fn role_number() -> u32 {
    role()
}

/// Tells whether launches have to ask.
pub fn asks() -> bool {
    state::mode() == state::ACTIVE && role() == ASK
}

/// Takes a role.
pub fn set_role(role: Role) {
    let number = match role {
        Role::Measure => MEASURE,
        Role::Free => FREE,
        Role::Hold => HOLD,
        Role::Ask => ASK,
    };
    ROLE.store(number, Ordering::Relaxed);
    fill::wake();
}

/// Returns how long one launch may wait.
pub fn wait_max() -> Nanos {
    Nanos::new(WAIT_BOUND.load(Ordering::Relaxed))
}

/// Returns of how many launches one is measured in the sharing stage; 0 for none.
#[inline]
pub fn sample_every() -> u32 {
    SAMPLE_EVERY.load(Ordering::Relaxed)
}

/// Tells whether any capture is under way: then calls that look harmless are errors.
#[inline]
pub fn captures() -> bool {
    CAPTURES.load(Ordering::Relaxed) > 0
}

/// A capture began or ended.
pub fn count_captures(more: i32) {
    CAPTURES.fetch_add(more, Ordering::Relaxed);
}

/// Tells whether there were launches since the last sync that was told.
pub fn is_news(number: u64) -> bool {
    SYNCED.fetch_max(number, Ordering::Relaxed) < number
}

/// The queue let the process in.
pub fn welcome(welcome: &Welcome) {
    WAIT_BOUND.store(welcome.wait_max.min(WAIT_MAX).get(), Ordering::Relaxed);
    SAMPLE_EVERY.store(welcome.sample_every, Ordering::Relaxed);
    fill::begin_session();
    set_role(welcome.role);
    state::turn(state::DETACHED, state::ACTIVE);
    crate::counters::count(&crate::counters::SESSIONS);
    fill::wake();
    log::note(format_args!("session {}, role {:?}", welcome.session, welcome.role));
}

/// The session is over: launches pass.
pub fn detach() {
    state::turn(state::ACTIVE, state::DETACHED);
    ROLE.store(0, Ordering::Relaxed);
    fill::wake();
}

/// Begins: on the thread of the process' first launch, whose context says which device it is.
pub fn begin() {
    let Some(device) = device() else { return };
    let Some(settings) = settings::settings() else { return };
    if !state::turn(state::PASSIVE, state::DETACHED) {
        return;
    }
    // SAFETY: both functions only store to one atomic number, which is allowed in a forked child
    // and at the end of a process.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        libc::atexit(at_exit);
    }
    fill::prepare();
    crate::measure::prepare();
    if let Some(path) = &settings.gate {
        gate::open(path);
    }
    if let Err(why) = client::start(settings, device) {
        log::note(format_args!("no thread for the session: off: {why}"));
        state::die();
    }
}

extern "C" fn in_child() {
    // The session's thread is in the parent only, and locks may be held by threads that are not
    // here: nothing but passing on is safe.
    state::die();
}

extern "C" fn at_exit() {
    state::die();
    ring::ring();
}

/// Asks the driver which device the calling thread's context is on.
fn device() -> Option<Device> {
    type GetDevice = unsafe extern "C" fn(*mut c_int) -> Code;
    type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> Code;
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> Code;
    let (mut ordinal, mut uuid, mut version) = (0, [0; 16], 0);
    // SAFETY: the functions' types, and places of ours. The second revision of the UUID's names
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
    Some(Device { uuid, driver: u32::try_from(version).unwrap_or(0) })
}
