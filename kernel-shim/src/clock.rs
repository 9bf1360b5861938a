//! The clock that the queue shares with its sessions.

use tessera_kernel_queue::Nanos;

/// Returns `CLOCK_MONOTONIC`.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "the monotonic clock is never negative")]
pub fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours; this clock exists on every Linux, so the call can't fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Nanos::new((time.tv_sec as u64).wrapping_mul(1_000_000_000) + time.tv_nsec as u64)
}
