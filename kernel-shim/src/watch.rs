//! The watch of a program, for jobs with a queue and without: what the driver gave it, what the driver refused, and its
//! first launch. The agent's shepherd reads the lines, which predict what the job needs.
//!
//! It limits nothing, changes no result, and has no thread and no socket. Each line is one write to the attempt's named
//! pipe, which is opened for that write: a program may close any descriptor and use its number again. If the pipe is full,
//! the line is lost. After the first launch nothing is left on the path of launches; requests for memory are rare.
//!
//! ```text
//! d PID HELD PEAK GIVEN              bytes held now and at most, and how many requests were given
//! r PID REQUESTED HELD GIVEN         a request was refused
//! f PID HELD BLOCKS WARPS            the first launch: what was held, its blocks, and the warps of each
//! ```

use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::counters::{MEMORY_PEAK, MEMORY_USED};
use crate::kernel_cache::LaunchShape;
use crate::{clock, settings, state};

/// Time between two lines about memory that did not grow much.
const PERIOD_NS: u64 = 100_000_000;

/// A peak that grew by so much is reported at once, so that the highest one is known when a program is killed.
const GROWTH_BYTES_MIN: u64 = 16 << 20;

/// The same as a part of the reported peak: a 64th. So growth to the memory of any GPU takes some hundred
/// lines.
const GROWTH_PART: u64 = 64;

/// Threads of a warp.
const WARP: u64 = 32;

static PIPE: OnceLock<CString> = OnceLock::new();
static IS_ON: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);

/// Requests that were given.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// When the last line about memory was written, and the peak in it.
static WRITTEN_NS: AtomicU64 = AtomicU64::new(0);
static WRITTEN_PEAK: AtomicU64 = AtomicU64::new(0);
/// Whether the next request that is given shows that a refusal was survived.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Whether something happened since the last line.
static IS_STALE: AtomicBool = AtomicBool::new(false);

/// Begins the watch if the agent requests it. Returns whether it did. Called once, when the driver is opened.
pub fn begin() -> bool {
    let Some(pipe) = settings::watch_pipe() else { return false };
    if PIPE.set(pipe).is_err() {
        return false;
    }
    PID.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: both functions only store to atomic numbers and write to a pipe, which is allowed in a forked child and
    // at the end of a process.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        libc::atexit(at_exit);
    }
    IS_ON.store(true, Ordering::Release);
    true
}

/// Returns whether this process is watched.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A request for memory was given.
pub fn on_allocation() {
    let given = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
    let now = clock::now().get();
    let peak = MEMORY_PEAK.load(Ordering::Relaxed);
    let is_survival = REFUSED.swap(false, Ordering::Relaxed);
    let written = (WRITTEN_NS.load(Ordering::Relaxed), WRITTEN_PEAK.load(Ordering::Relaxed));
    if is_survival || is_due(now, peak, written) {
        write_memory(now, peak, given);
    } else {
        IS_STALE.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a line is due `now`, with this peak, after one that was written at a time with a peak.
const fn is_due(now: u64, peak: u64, (at, written): (u64, u64)) -> bool {
    let part = written / GROWTH_PART;
    let growth = if part > GROWTH_BYTES_MIN { part } else { GROWTH_BYTES_MIN };
    now.saturating_sub(at) >= PERIOD_NS || peak >= written.saturating_add(growth)
}

fn write_memory(now: u64, peak: u64, given: u64) {
    WRITTEN_NS.store(now, Ordering::Relaxed);
    WRITTEN_PEAK.store(peak, Ordering::Relaxed);
    IS_STALE.store(false, Ordering::Relaxed);
    let held = MEMORY_USED.load(Ordering::Relaxed);
    write(&format!("d {} {held} {peak} {given}\n", PID.load(Ordering::Relaxed)));
}

/// A request for memory was refused.
pub fn on_refusal(requested: u64) {
    // Each of several refusals in a row is reported, as when a program halves its request: they are rare.
    REFUSED.store(true, Ordering::Relaxed);
    let held = MEMORY_USED.load(Ordering::Relaxed);
    let given = GIVEN.load(Ordering::Relaxed);
    write(&format!("r {} {requested} {held} {given}\n", PID.load(Ordering::Relaxed)));
}

/// The first launch: what the program allocated before it needs no prediction.
#[cold]
pub fn on_first_launch(shape: &LaunchShape) {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    if !is_on() || IS_OVER.swap(true, Ordering::Relaxed) {
        return;
    }
    let product = |sides: [u32; 3]| sides.into_iter().map(u64::from).fold(1, u64::saturating_mul);
    let (blocks, warps) = (product(shape.grid), product(shape.block).div_ceil(WARP));
    let held = MEMORY_USED.load(Ordering::Relaxed);
    write(&format!("f {} {held} {blocks} {warps}\n", PID.load(Ordering::Relaxed)));
}

/// Writes a line: whole or not at all, and never waiting.
fn write(line: &str) {
    let Some(pipe) = PIPE.get() else { return };
    // SAFETY: a text that ends with a zero; the descriptor is this function's own, and closed by it. The program's
    // `errno` is kept, since it may look at it after a call of the driver.
    unsafe {
        let kept = *libc::__errno_location();
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let fd: c_int = libc::open(pipe.as_ptr(), flags);
        if fd >= 0 {
            libc::write(fd, line.as_ptr().cast(), line.len());
            libc::close(fd);
        }
        *libc::__errno_location() = kept;
    }
}

extern "C" fn in_child() {
    // Threads that held locks are gone, and the child's memory is not watched.
    IS_ON.store(false, Ordering::Relaxed);
    state::die();
}

extern "C" fn at_exit() {
    if is_on() && IS_STALE.load(Ordering::Relaxed) {
        let given = GIVEN.load(Ordering::Relaxed);
        write_memory(clock::now().get(), MEMORY_PEAK.load(Ordering::Relaxed), given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_line_is_due_after_a_tenth_of_a_second_or_when_the_peak_grew() {
        assert!(!is_due(99_999_999, 100 * MIB, (0, 100 * MIB)));
        assert!(is_due(100_000_000, 100 * MIB, (0, 100 * MIB)));
        assert!(is_due(1, 116 * MIB, (0, 100 * MIB)));
        assert!(!is_due(1, 4_100 * MIB, (0, 4_096 * MIB)), "less than a 64th");
    }

    #[test]
    fn the_growth_to_the_largest_gpu_fits_into_the_pipe() {
        let (mut peak, mut lines) = (0_u64, 0_usize);
        while peak < 288 << 30 {
            peak += (peak / GROWTH_PART).max(GROWTH_BYTES_MIN);
            lines += 1;
        }

        let longest = "d 4194304 309237645312 309237645312 1048576\n".len();
        assert!(lines * longest < 64 * 1024, "{lines} lines");
    }
}
