//! Which kernel a launch is of: name, grid and block (FIKIT §3.1), numbered as they appear.
//!
//! A launch looks its function's handle and sides up in a table without locks; what is not there
//! is named under a lock, once. Numbers and what the queue says of them stay for the process' life.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tessera_kernel_queue::{Dims, KernelId, KernelIndex, Nanos};

use crate::abi::Handle;
use crate::names;

/// Most kernels of one process: as many as the queue keeps of one task.
pub const KERNELS_MAX: usize = 4_096;

/// The number of kernels beyond that, and of those that have no name.
pub const UNKNOWN: u32 = 0xff_ffff;

/// A launch, as far as it says what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The function or kernel, or an instance of a graph.
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// What the queue said of a kernel; all zero before it said anything.
struct Known {
    /// Its index, plus one.
    index: AtomicU32,
    /// How long it takes, plus one.
    took: AtomicU64,
    /// Whether each of its launches is to be measured.
    measure: AtomicBool,
    /// Whether it may wait for a grant: see [`waits_for_peers`].
    never_waits: AtomicBool,
}

static KNOWN: [Known; KERNELS_MAX] = [const {
    Known {
        index: AtomicU32::new(0),
        took: AtomicU64::new(0),
        measure: AtomicBool::new(false),
        never_waits: AtomicBool::new(false),
    }
}; KERNELS_MAX];

struct Catalogue {
    numbers: HashMap<KernelId, u32>,
    kernels: Vec<KernelId>,
}

static CATALOGUE: Mutex<Option<Catalogue>> = Mutex::new(None);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns the number of a launch's kernel.
#[inline]
pub fn number(shape: &Shape) -> u32 {
    cache::find(shape).unwrap_or_else(|| meet(shape))
}

/// Names a kernel that the cache does not have.
#[cold]
fn meet(shape: &Shape) -> u32 {
    let generation = cache::generation();
    let name = names::of(shape.function);
    let number = KernelId::new(name, Dims(shape.grid), Dims(shape.block)).map_or(UNKNOWN, enter);
    cache::keep(shape, number, generation);
    number
}

fn enter(kernel: KernelId) -> u32 {
    let mut catalogue = CATALOGUE.lock().unwrap_or_else(PoisonError::into_inner);
    let catalogue =
        catalogue.get_or_insert_with(|| Catalogue { numbers: HashMap::new(), kernels: Vec::new() });
    if let Some(number) = catalogue.numbers.get(&kernel) {
        return *number;
    }
    let at = catalogue.kernels.len();
    if at >= KERNELS_MAX {
        return UNKNOWN;
    }
    let number = u32::try_from(at).unwrap_or(UNKNOWN);
    KNOWN[at].never_waits.store(waits_for_peers(kernel.name()), Ordering::Relaxed);
    catalogue.kernels.push(kernel.clone());
    catalogue.numbers.insert(kernel, number);
    COUNT.store(number + 1, Ordering::Release);
    number
}

/// Tells by its name whether a kernel waits on the device for one of another process: held back,
/// it would hold up that one, which is launched already.
fn waits_for_peers(name: &str) -> bool {
    ["nccl", "nvshmem"].iter().any(|library| {
        name.as_bytes()
            .windows(library.len())
            .any(|part| part.eq_ignore_ascii_case(library.as_bytes()))
    })
}

/// Returns how many kernels have numbers.
pub fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// Returns the kernel of a number.
pub fn kernel(number: u32) -> Option<KernelId> {
    let catalogue = CATALOGUE.lock().unwrap_or_else(PoisonError::into_inner);
    catalogue.as_ref()?.kernels.get(usize::try_from(number).ok()?).cloned()
}

fn known(number: u32) -> Option<&'static Known> {
    KNOWN.get(usize::try_from(number).ok()?)
}

/// Returns how long a kernel is expected to take.
pub fn took(number: u32) -> Option<Nanos> {
    known(number)?.took.load(Ordering::Relaxed).checked_sub(1).map(Nanos::new)
}

/// Tells whether each launch of a kernel is to be measured.
#[inline]
pub fn is_measured(number: u32) -> bool {
    known(number).is_some_and(|known| known.measure.load(Ordering::Relaxed))
}

/// Tells whether a kernel must not be held back.
pub fn never_waits(number: u32) -> bool {
    known(number).is_some_and(|known| known.never_waits.load(Ordering::Relaxed))
}

/// Returns what the queue calls a kernel.
pub fn index(number: u32) -> KernelIndex {
    let index = known(number).and_then(|known| known.index.load(Ordering::Relaxed).checked_sub(1));
    index.and_then(|index| u16::try_from(index).ok()).map_or(KernelIndex::UNKNOWN, KernelIndex::new)
}

/// Notes what the queue said of a kernel.
pub fn learn(number: u32, index: Option<KernelIndex>, took: Option<Nanos>, measure: bool) {
    let Some(known) = known(number) else { return };
    if let Some(index) = index {
        known.index.store(u32::from(index.get()) + 1, Ordering::Relaxed);
    }
    known.took.store(took.map_or(0, |took| took.get().saturating_add(1)), Ordering::Relaxed);
    known.measure.store(measure, Ordering::Relaxed);
}

/// Returns the number of the kernel that the queue calls by an index.
pub fn of_index(index: KernelIndex) -> Option<u32> {
    (0..count()).find(|number| self::index(*number) == index && index != KernelIndex::UNKNOWN)
}

/// Forgets what the queue said: a new session has indexes of its own.
pub fn unlearn() {
    for known in &KNOWN {
        known.index.store(0, Ordering::Relaxed);
        known.took.store(0, Ordering::Relaxed);
        known.measure.store(false, Ordering::Relaxed);
    }
}

/// Handles may mean something else from now on.
pub fn forget() {
    cache::forget();
}

/// Numbers by handle and sides, for readers without locks.
mod cache {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    use std::sync::{Mutex, PoisonError};

    use super::Shape;

    /// Places, and how far from its own a shape may stand: twice the kernels that have numbers.
    const PLACES: usize = 8_192;
    const PROBES: usize = 8;

    /// Written under a version that is odd meanwhile. Key: handle, six sides in three numbers;
    /// value: generation and number.
    struct Place {
        version: AtomicU64,
        key: [AtomicU64; 4],
        value: AtomicU64,
    }

    static PLACE: [Place; PLACES] = [const {
        Place {
            version: AtomicU64::new(0),
            key: [const { AtomicU64::new(0) }; 4],
            value: AtomicU64::new(0),
        }
    }; PLACES];

    /// Rises when handles may mean something else; places of older ones are free.
    static GENERATION: AtomicU32 = AtomicU32::new(1);
    static WRITER: Mutex<()> = Mutex::new(());

    pub fn generation() -> u32 {
        GENERATION.load(Ordering::Acquire)
    }

    pub fn forget() {
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    pub fn find(shape: &Shape) -> Option<u32> {
        let key = key(shape);
        let first = spot(&key);
        let generation = generation();
        for step in 0..PROBES {
            let place = &PLACE[(first + step) % PLACES];
            let version = place.version.load(Ordering::Acquire);
            let same = place
                .key
                .iter()
                .zip(&key)
                .all(|(have, want)| have.load(Ordering::Relaxed) == *want);
            let value = place.value.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            let whole = version & 1 == 0 && place.version.load(Ordering::Relaxed) == version;
            if same && whole && value >> 32 == u64::from(generation) {
                return u32::try_from(value & 0xffff_ffff).ok();
            }
        }
        None
    }

    pub fn keep(shape: &Shape, number: u32, generation: u32) {
        let _writing = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
        if generation != self::generation() {
            return;
        }
        let key = key(shape);
        let first = spot(&key);
        let stands = |step: &usize| {
            let place = &PLACE[(first + step) % PLACES];
            place.value.load(Ordering::Relaxed) >> 32 != u64::from(generation)
        };
        // All places taken: the first gives way.
        let step = (0..PROBES).find(stands).unwrap_or(0);
        let place = &PLACE[(first + step) % PLACES];
        let version = place.version.load(Ordering::Relaxed);
        place.version.store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (have, new) in place.key.iter().zip(key) {
            have.store(new, Ordering::Relaxed);
        }
        let value = u64::from(generation) << 32 | u64::from(number);
        place.value.store(value, Ordering::Relaxed);
        place.version.store((version | 1).wrapping_add(1), Ordering::Release);
    }

    fn key(shape: &Shape) -> [u64; 4] {
        let [gx, gy, gz] = shape.grid.map(u64::from);
        let [bx, by, bz] = shape.block.map(u64::from);
        let handle = u64::try_from(shape.function).unwrap_or(0);
        [handle, gx << 32 | gy, gz << 32 | bx, by << 32 | bz]
    }

    fn spot(key: &[u64; 4]) -> usize {
        let mixed = key.iter().fold(0_u64, |mixed, part| {
            (mixed.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        usize::try_from(mixed >> 32).unwrap_or(0) % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_communication_libraries_are_known_by_their_names() {
        assert!(waits_for_peers("ncclDevKernel_AllReduce_Sum_f32_RING_LL"));
        assert!(waits_for_peers("_Z20nvshmemi_proxy_kernel"));
        assert!(!waits_for_peers("_Z9saxpy_nclPf"));
    }

    #[test]
    fn a_shape_that_was_kept_is_found_until_handles_are_forgotten() {
        let shape = Shape { function: 0x7000_1230, grid: [4, 5, 6], block: [7, 8, 9] };
        assert_eq!(cache::find(&shape), None);

        cache::keep(&shape, 77, cache::generation());
        assert_eq!(cache::find(&shape), Some(77));
        assert_eq!(cache::find(&Shape { grid: [4, 5, 7], ..shape }), None);

        cache::forget();
        assert_eq!(cache::find(&shape), None);
        cache::keep(&shape, 78, cache::generation() - 1);
        assert_eq!(cache::find(&shape), None, "named before it was forgotten");
    }
}
