//! Kernel numbers by handle, grid and block, for readers without locks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use crate::abi::DriverHandle;

/// What a launch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// The function or kernel, or an instance of a graph.
    pub function: DriverHandle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// The number of slots, twice the number of kernels, and the longest probe sequence.
const SLOTS: usize = 8_192;
const PROBES: usize = 8;

/// The version is odd during a write. The key holds the handle and six sides in three numbers, the
/// value holds generation and kernel number.
struct CacheSlot {
    version: AtomicU64,
    key: [AtomicU64; 4],
    value: AtomicU64,
}

static TABLE: [CacheSlot; SLOTS] = [const {
    CacheSlot {
        version: AtomicU64::new(0),
        key: [const { AtomicU64::new(0) }; 4],
        value: AtomicU64::new(0),
    }
}; SLOTS];

/// Rises when handles may have changed their meaning. Slots of older generations are free.
static GENERATION: AtomicU32 = AtomicU32::new(1);
static WRITER: Mutex<()> = Mutex::new(());

/// Returns the current generation of handles.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire)
}

/// Invalidates the cache: handles may have other meanings from now on.
pub fn forget() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Returns the number of a launch's kernel, if it is in the cache.
#[inline]
pub fn find(shape: &LaunchShape) -> Option<u32> {
    let key = key(shape);
    let first = first_slot(&key);
    let generation = generation();
    for step in 0..PROBES {
        let slot = &TABLE[(first + step) % SLOTS];
        let version = slot.version.load(Ordering::Acquire);
        let same =
            slot.key.iter().zip(&key).all(|(have, want)| have.load(Ordering::Relaxed) == *want);
        let value = slot.value.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = version & 1 == 0 && slot.version.load(Ordering::Relaxed) == version;
        if same && whole && value >> 32 == u64::from(generation) {
            return u32::try_from(value & 0xffff_ffff).ok();
        }
    }
    None
}

/// Stores a number, unless handles got other meanings since `generation`.
pub fn keep(shape: &LaunchShape, number: u32, generation: u32) {
    let _writing = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    if generation != self::generation() {
        return;
    }
    let key = key(shape);
    let first = first_slot(&key);
    let stands = |step: &usize| {
        let slot = &TABLE[(first + step) % SLOTS];
        slot.value.load(Ordering::Relaxed) >> 32 != u64::from(generation)
    };
    // If all slots are taken, the first one is replaced.
    let step = (0..PROBES).find(stands).unwrap_or(0);
    let slot = &TABLE[(first + step) % SLOTS];
    let version = slot.version.load(Ordering::Relaxed);
    slot.version.store(version | 1, Ordering::Relaxed);
    fence(Ordering::Release);
    for (have, new) in slot.key.iter().zip(key) {
        have.store(new, Ordering::Relaxed);
    }
    let value = u64::from(generation) << 32 | u64::from(number);
    slot.value.store(value, Ordering::Relaxed);
    slot.version.store((version | 1).wrapping_add(1), Ordering::Release);
}

fn key(shape: &LaunchShape) -> [u64; 4] {
    let [gx, gy, gz] = shape.grid.map(u64::from);
    let [bx, by, bz] = shape.block.map(u64::from);
    let handle = shape.function as u64;
    [handle, gx << 32 | gy, gz << 32 | bx, by << 32 | bz]
}

fn first_slot(key: &[u64; 4]) -> usize {
    let mixed = key.iter().fold(0_u64, |mixed, part| {
        (mixed.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    (mixed >> 32) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_was_kept_is_found_until_handles_are_forgotten() {
        let shape = LaunchShape { function: 0x7000_1230, grid: [4, 5, 6], block: [7, 8, 9] };
        assert_eq!(find(&shape), None);

        keep(&shape, 77, generation());
        assert_eq!(find(&shape), Some(77));
        assert_eq!(find(&LaunchShape { grid: [4, 5, 7], ..shape }), None);

        forget();
        assert_eq!(find(&shape), None);
        keep(&shape, 78, generation() - 1);
        assert_eq!(find(&shape), None, "named before it was forgotten");
    }
}
