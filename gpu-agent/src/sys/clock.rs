//! The two clocks: the boot clock for every deadline, the wall clock for people.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tessera_model::{BootId, Millis};

/// Reads `CLOCK_BOOTTIME`: it goes on during suspend and never jumps.
pub fn boot_now() -> Millis {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let millis = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    Millis::new(seconds.saturating_mul(1000).saturating_add(millis))
}

/// Reads the wall clock, in milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn unix_now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns when something happened that the kernel noted in microseconds of its monotonic clock;
/// never in the future.
pub fn unix_at_monotonic(micros: u64) -> Millis {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let now = seconds.saturating_mul(1_000) + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    unix_now().minus(Millis::new(now.saturating_sub(micros / 1_000)))
}

/// Reads the kernel's name for this boot.
///
/// # Errors
///
/// The kernel doesn't give one out: nothing that needs proof of death can work here.
pub fn boot_id() -> io::Result<BootId> {
    boot_id_in(std::path::Path::new("/proc/sys/kernel/random/boot_id"))
}

/// Reads a boot's name from a file like the kernel's.
///
/// # Errors
///
/// The file can't be read or holds no such name.
pub fn boot_id_in(path: &std::path::Path) -> io::Result<BootId> {
    let text = std::fs::read_to_string(path)?;
    uuid::Uuid::try_parse(text.trim())
        .map(BootId::from_uuid)
        .map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))
}

/// Reads `CLOCK_MONOTONIC`: what kernels are timed by.
pub fn monotonic_now() -> tessera_kernel_queue::Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    tessera_kernel_queue::Nanos::new(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
