//! NVML for GPUs that aren't there: `libnvidia-ml.so.1`, with NVML's own C interface.
//!
//! A stand-in. It never reports success without reason. It enforces the rules of the device model
//! ([`tessera_stand_in::device`]) with the codes that `nvml.h` documents. It takes as long as the
//! hardware was measured to take ([`tessera_stand_in::latency`]), and fails on demand
//! ([`tessera_stand_in::faults`]). What it exports is listed in `NAMES`; programs that request
//! anything else find no symbol, as in a driver that is older than they are. It is set up by the
//! environment variables of [`tessera_stand_in`].
//!
//! Handles are numbers, never addresses: one that is stale or made up gives
//! `NVML_ERROR_INVALID_ARGUMENT`. No function unwinds; a bug in here gives
//! `NVML_ERROR_UNKNOWN`.
//!
//! Where it knows less than a driver:
//! - nothing needs root (a fault with code 4 stands in for that);
//! - an event set sees the XID errors of the fault list only.

#![allow(non_snake_case, reason = "NVML's names are not ours")]

mod abi;
mod compute;
mod device;
mod events;
mod gpm;
mod instances;
mod mig;
mod processes;
mod session;
mod system;

use std::sync::LazyLock;

/// Every function that a fault can name: all that the library exports except `nvmlErrorString`.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    [
        system::ENTRY_NAMES,
        system::NAMES,
        device::NAMES,
        mig::NAMES,
        instances::NAMES,
        compute::NAMES,
        processes::NAMES,
        events::NAMES,
        gpm::NAMES,
    ]
    .concat()
});
