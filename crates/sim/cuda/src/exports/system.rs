//! From `cuInit` to `cuGetProcAddress`.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use tessera_sim::config::Config;
use tessera_sim::mps::client::{Client, MpsError};
use tessera_sim::node::Node;

use crate::abi::{Code, In, Out, Outcome};
use crate::driver::{Driver, driver};
use crate::gate::{self, cuda};
use crate::table::{SYMBOLS, Search, find};
use crate::world::{Mps, devices_of_process, mps_code};

/// What `cuGetProcAddress` says of its search.
const FOUND: i32 = 0;
const SYMBOL_NOT_FOUND: i32 = 1;
const VERSION_NOT_SUFFICIENT: i32 = 2;
/// Flag of `cuGetProcAddress`: the default stream is the thread's own.
const PER_THREAD: u64 = 2;

cuda! {
    fn cuInit(flags: u32) |call| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if gate::is_forked() {
            return Err(Code::NOT_INITIALIZED);
        }
        initialize(call.driver)
    }

    fn cuDriverGetVersion(version: Out<i32>) |call| {
        version.set(i32::try_from(call.driver.settings.version).unwrap_or(0))
    }

    fn cuGetErrorName(error: i32, text: Out<*const c_char>) |_call| {
        tell(Code(error).told().map(|(name, _)| name), text)
    }

    fn cuGetErrorString(error: i32, text: Out<*const c_char>) |_call| {
        tell(Code(error).told().map(|(_, says)| says), text)
    }

    /// The first revision: what isn't found is an error.
    fn cuGetProcAddress(
        symbol: In<c_char>,
        address: Out<*mut c_void>,
        version: i32,
        flags: u64,
    ) |call| {
        match search(call.driver, symbol, address, version, flags)? {
            Search::Found(_) => Ok(()),
            Search::TooNew | Search::Unknown => Err(Code::NOT_FOUND),
        }
    }

    /// The second revision: what isn't found is null, and the status says why.
    fn cuGetProcAddress_v2(
        symbol: In<c_char>,
        address: Out<*mut c_void>,
        version: i32,
        flags: u64,
        status: Out<i32>,
    ) |call| {
        status.offer(match search(call.driver, symbol, address, version, flags)? {
            Search::Found(_) => FOUND,
            Search::TooNew => VERSION_NOT_SUFFICIENT,
            Search::Unknown => SYMBOL_NOT_FOUND,
        });
        Ok(())
    }

    /// There are no undocumented tables.
    fn cuGetExportTable(table: Out<*const c_void>, _id: In<[u8; 16]>) |_call| {
        table.offer(std::ptr::null());
        Err(Code::NOT_FOUND)
    }
}

/// Lets `nanoseconds` of virtual time pass as if the program were busy with something else;
/// 801 with a real clock. No function of CUDA's: for programs that replay gaps.
#[unsafe(no_mangle)]
pub extern "C" fn tesseraSimPass(nanoseconds: u64) -> i32 {
    let driver = driver();
    if !driver.settings.virtual_time {
        return Code::NOT_SUPPORTED.0;
    }
    driver.know_thread();
    driver.pass_virtual_time(nanoseconds);
    Code::SUCCESS.0
}

/// Returns the device's time in nanoseconds: virtual if its clock is, or else the machine's
/// monotonic clock. No function of CUDA's.
#[unsafe(no_mangle)]
pub extern "C" fn tesseraSimNow() -> u64 {
    driver().now()
}

fn initialize(driver: &Driver) -> Outcome {
    if gate::is_ready() {
        return Ok(());
    }
    let complain = |error: &str| {
        driver.complain(error);
        Code::UNKNOWN
    };
    if let Some(why) = &driver.broken {
        return Err(complain(why));
    }
    let config = Config::from_env().map_err(|error| complain(&error.to_string()))?;
    let node = Node::open(&config).map_err(|error| complain(&error.to_string()))?;
    let devices = devices_of_process(&node)?;
    if devices.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    let mps = match Client::connect() {
        Ok(client) => Some(Mps { cap: share_of_sms(&client), client, asked_at: 0 }),
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
fn share_of_sms(client: &Client) -> u32 {
    // A percentage as a part of a second has its thousandths in milliseconds.
    let part = Duration::try_from_secs_f64(client.percentage() / 100.0).unwrap_or(Duration::MAX);
    u32::try_from(part.as_millis()).unwrap_or(1_000).clamp(1, 1_000)
}

fn tell(text: Option<&'static CStr>, to: Out<*const c_char>) -> Outcome {
    let Some(text) = text else {
        to.offer(std::ptr::null());
        return Err(Code::INVALID_VALUE);
    };
    to.set(text.as_ptr())
}

fn search(
    driver: &Driver,
    symbol: In<c_char>,
    address: Out<*mut c_void>,
    version: i32,
    flags: u64,
) -> Outcome<Search> {
    let name = symbol.text()?;
    if address.is_null() || flags > PER_THREAD {
        return Err(Code::INVALID_VALUE);
    }
    let version = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    if version > driver.settings.version {
        return Err(Code::INVALID_VALUE);
    }
    let found = find(&name, version, flags == PER_THREAD);
    address.set(match found {
        Search::Found(index) => SYMBOLS[index].address(),
        Search::TooNew | Search::Unknown => std::ptr::null_mut(),
    })?;
    Ok(found)
}
