//! The clock that the queue shares with its sessions.

use tessera_kernel_queue::Nanos;

/// Returns `CLOCK_MONOTONIC`.
#[inline]
pub fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours; this clock exists on every Linux, so the call can't fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Nanos::new(seconds.wrapping_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or(0))
}
