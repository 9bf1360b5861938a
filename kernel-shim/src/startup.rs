//! The start of the session's thread ([`crate::client`]): when the program looks up its first function, or at its
//! first launch, which waits for the first session.

use std::ffi::c_int;

use tessera_model::number::clamped;

use crate::abi::{CudaResult, SUCCESS};
use crate::client::{self, CudaDevice};
use crate::driver::table::slot;
use crate::{
    driver, filler, first_session, gate, log, measure, recall, resources, ring, run_ahead,
    settings, state,
};

/// Starts the session's thread. The calling thread's context determines the device.
pub fn start_session_thread() {
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
    measure::prepare();
    run_ahead::prepare();
    if let Some(path) = &settings.gate {
        gate::open(path);
    }
    // Without a served page there is no queue: then nothing waits.
    if gate::is_served() {
        first_session::begin_wait();
    }
    if let Err(why) = client::start(settings, device) {
        log::note(format_args!("the session's thread cannot start, the shim is off: {why}"));
        state::die();
        first_session::end_wait();
    }
}

extern "C" fn in_child() {
    // The session's thread exists only in the parent, and threads that held locks are gone. Only
    // passing calls on is safe.
    state::die();
}

extern "C" fn at_exit() {
    state::die();
    recall::stop();
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
    resources::note_device(ordinal);
    // Version 0 is no driver's: a negative one is unknown.
    Some(CudaDevice { uuid, driver: clamped(version) })
}
