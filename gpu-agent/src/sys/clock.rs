//! The two clocks: the boot clock for every deadline, the wall clock for people.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tessera_model::{BootId, Millis};

/// Reads `CLOCK_BOOTTIME`: it continues during suspend and never jumps.
pub fn boot_now() -> Millis {
    Millis::new(nanos_of(ClockId::Boottime) / 1_000_000)
}

/// Reads the wall clock, in seconds since 1970, as certificates have it.
pub fn unix_secs() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

/// Reads the wall clock, in milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "this is the wall clock that the agent passes on")]
pub fn unix_now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, reason = "584 million years of milliseconds fit")]
    let millis = since.as_millis() as u64;
    Millis::new(millis)
}

/// Converts a time in microseconds of the kernel's monotonic clock;
/// never in the future.
pub fn unix_at_monotonic(micros: u64) -> Millis {
    let now = nanos_of(ClockId::Monotonic) / 1_000_000;
    unix_now().minus(Millis::new(now.saturating_sub(micros / 1_000)))
}

/// Reads the kernel's name for this boot.
///
/// # Errors
///
/// The kernel doesn't provide one: nothing that needs proof of death can work here.
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
    tessera_kernel_queue::Nanos::new(nanos_of(ClockId::Monotonic))
}

/// Reads a clock that counts from the start of the machine: it is never negative, and 584 years of
/// nanoseconds fit.
fn nanos_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
