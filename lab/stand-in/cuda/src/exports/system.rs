//! From `cuInit` to `cuGetProcAddress`.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::mps::client::{MpsClient, MpsError};
use tessera_stand_in::node::SimulatedNode;

use crate::abi::{CallResult, CudaCode, InPointer, OutPointer};
use crate::complaints::complain;
use crate::driver::{CudaDriver, driver};
use crate::gate::{self, cuda};
use crate::table::{SYMBOLS, SymbolSearch, find};
use crate::world::{MpsConnection, devices_of_process, mps_code};

/// The status that `cuGetProcAddress` returns.
const FOUND: i32 = 0;
const SYMBOL_NOT_FOUND: i32 = 1;
const VERSION_NOT_SUFFICIENT: i32 = 2;
/// Flag of `cuGetProcAddress`: the default stream is the thread's own.
const PER_THREAD: u64 = 2;

cuda! {
    fn cuInit(flags: u32) |call| {
        if flags != 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        if gate::is_forked() {
            return Err(CudaCode::NOT_INITIALIZED);
        }
        initialize(call.driver)
    }

    fn cuDriverGetVersion(version: OutPointer<i32>) |call| {
        version.set(call.driver.settings.version.cast_signed())
    }

    fn cuGetErrorName(error: i32, text: OutPointer<*const c_char>) |_call| {
        set_text(CudaCode(error).name_and_text().map(|(name, _)| name), text)
    }

    fn cuGetErrorString(error: i32, text: OutPointer<*const c_char>) |_call| {
        set_text(CudaCode(error).name_and_text().map(|(_, description)| description), text)
    }

    /// The first revision: what isn't found is an error.
    fn cuGetProcAddress(
        symbol: InPointer<c_char>,
        address: OutPointer<*mut c_void>,
        version: i32,
        flags: u64,
    ) |call| {
        match search(call.driver, symbol, address, version, flags)? {
            SymbolSearch::Found(_) => Ok(()),
            SymbolSearch::TooNew | SymbolSearch::Unknown => Err(CudaCode::NOT_FOUND),
        }
    }

    /// The second revision: what isn't found is null, and the status states why.
    fn cuGetProcAddress_v2(
        symbol: InPointer<c_char>,
        address: OutPointer<*mut c_void>,
        version: i32,
        flags: u64,
        status: OutPointer<i32>,
    ) |call| {
        status.offer(match search(call.driver, symbol, address, version, flags)? {
            SymbolSearch::Found(_) => FOUND,
            SymbolSearch::TooNew => VERSION_NOT_SUFFICIENT,
            SymbolSearch::Unknown => SYMBOL_NOT_FOUND,
        });
        Ok(())
    }

    /// There are no undocumented tables.
    fn cuGetExportTable(table: OutPointer<*const c_void>, _id: InPointer<[u8; 16]>) |_call| {
        table.offer(std::ptr::null());
        Err(CudaCode::NOT_FOUND)
    }
}

/// Lets `nanoseconds` of virtual time pass as if the program were busy with something else;
/// 801 with a real clock. Not a function of CUDA: for programs that replay gaps.
#[unsafe(no_mangle)]
pub extern "C" fn tesseraSimPass(nanoseconds: u64) -> i32 {
    let driver = driver();
    if !driver.settings.virtual_time {
        return CudaCode::NOT_SUPPORTED.0;
    }
    driver.know_thread();
    driver.pass_virtual_time(nanoseconds);
    CudaCode::SUCCESS.0
}

/// Returns the device's time in nanoseconds: virtual if its clock is, or else the machine's
/// monotonic clock. Not a function of CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn tesseraSimNow() -> u64 {
    driver().now()
}

fn initialize(driver: &CudaDriver) -> CallResult {
    if gate::is_ready() {
        return Ok(());
    }
    let refuse = |error: &str| {
        complain(error);
        CudaCode::UNKNOWN
    };
    if let Some(why) = &driver.broken {
        return Err(refuse(why));
    }
    let config = StandInConfig::from_env().map_err(|error| refuse(&error.to_string()))?;
    let node = SimulatedNode::open(&config).map_err(|error| refuse(&error.to_string()))?;
    let devices = devices_of_process(&node)?;
    if devices.is_empty() {
        return Err(CudaCode::NO_DEVICE);
    }
    let mps = match MpsClient::connect() {
        Ok(client) => Some(MpsConnection { cap: share_of_sms(&client), client, checked_at: 0 }),
        Err(MpsError::NoDaemon(_)) => None,
        Err(error) => return Err(mps_code(&error)),
    };
    let mut world = driver.world();
    if gate::is_ready() {
        return Ok(());
    }
    (world.node, world.devices, world.mps) = (Some(node), devices, mps);
    gate::open();
    Ok(())
}

/// Returns the share of the SMs that a client of an MPS server may use, in thousandths.
fn share_of_sms(client: &MpsClient) -> u32 {
    // A percentage as a part of a second has its thousandths in milliseconds.
    let part = Duration::try_from_secs_f64(client.percentage() / 100.0).unwrap_or(Duration::MAX);
    // A server that grants more than all grants all.
    u32::try_from(part.as_millis()).map_or(1_000, |thousandths| thousandths.clamp(1, 1_000))
}

fn set_text(text: Option<&'static CStr>, to: OutPointer<*const c_char>) -> CallResult {
    let Some(text) = text else {
        to.offer(std::ptr::null());
        return Err(CudaCode::INVALID_VALUE);
    };
    to.set(text.as_ptr())
}

fn search(
    driver: &CudaDriver,
    symbol: InPointer<c_char>,
    address: OutPointer<*mut c_void>,
    version: i32,
    flags: u64,
) -> CallResult<SymbolSearch> {
    let name = symbol.text()?;
    if address.is_null() || flags > PER_THREAD {
        return Err(CudaCode::INVALID_VALUE);
    }
    let version = u32::try_from(version).map_err(|_| CudaCode::INVALID_VALUE)?;
    if version > driver.settings.version {
        return Err(CudaCode::INVALID_VALUE);
    }
    let found = find(&name, version, flags == PER_THREAD);
    address.set(match found {
        SymbolSearch::Found(index) => SYMBOLS[index].address(),
        SymbolSearch::TooNew | SymbolSearch::Unknown => std::ptr::null_mut(),
    })?;
    Ok(found)
}
