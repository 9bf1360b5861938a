//! The numbers of kernels. A kernel is identified by name, grid and block (FIKIT §3.1). When there is no place for more
//! shapes, those of one class share a number ([`KernelId::class`]), as they do in the profile of the task.
//!
//! A launch looks up its handle, grid and block in a cache without locks. A kernel that is not in the
//! cache is named under a lock. Numbers are valid until the process ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tessera_kernel_queue::limits;
use tessera_kernel_queue::need::{self, FunctionResources, LaunchSize};
use tessera_kernel_queue::{Dims, KernelId, KernelIndex, Nanos, ResourceNeed};

use crate::kernel_cache::{self, LaunchShape};
use crate::{names, resources};

/// Most kernels of one process: as many as the profile of a task holds.
pub const KERNELS_MAX: usize = limits::KERNELS_MAX as usize;
/// How many of them may be single shapes.
const SHAPES_MAX: usize = limits::SHAPES_MAX as usize;

/// The number of all further kernels, and of kernels without a name.
pub const UNKNOWN: u32 = 0xff_ffff;
/// The same for those that must not wait for grants.
const UNKNOWN_NEVER_WAITS: u32 = 0xff_fffe;

/// What the queue reported of a kernel, and what its launches need. All fields are zero at first.
struct KernelFacts {
    /// Its index, plus one.
    index: AtomicU32,
    /// Its predicted time, plus one.
    took: AtomicU64,
    /// Whether its launches are to be measured.
    measure: AtomicBool,
    /// How many of its launches were measured.
    samples: AtomicU32,
    /// Whether its need is to be reported.
    need_changed: AtomicBool,
    /// The most dynamic shared memory of its launches so far, in bytes.
    shared_bytes: AtomicU32,
    /// Whether it must not wait for a grant: see [`waits_for_peers`].
    never_waits: AtomicBool,
}

static FACTS: [KernelFacts; KERNELS_MAX] = [const {
    KernelFacts {
        index: AtomicU32::new(0),
        took: AtomicU64::new(0),
        measure: AtomicBool::new(false),
        samples: AtomicU32::new(0),
        need_changed: AtomicBool::new(false),
        shared_bytes: AtomicU32::new(0),
        never_waits: AtomicBool::new(false),
    }
}; KERNELS_MAX];

struct Catalog {
    numbers: HashMap<KernelId, u32>,
    kernels: Vec<CatalogKernel>,
}

#[derive(Clone)]
struct CatalogKernel {
    id: KernelId,
    /// What the driver reports about its function, if it does.
    resources: Option<FunctionResources>,
}

static CATALOG: Mutex<Option<Catalog>> = Mutex::new(None);
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Whether the need of any kernel is to be reported.
static NEEDS_CHANGED: AtomicBool = AtomicBool::new(false);

/// Returns the number of a launch's kernel. The caches make it fast.
#[inline]
pub fn number(shape: &LaunchShape) -> u32 {
    kernel_cache::find(shape).unwrap_or_else(|| name_kernel(shape))
}

/// Names a kernel that is not in the cache.
#[cold]
fn name_kernel(shape: &LaunchShape) -> u32 {
    let generation = kernel_cache::generation();
    let name = names::name_of(shape.function);
    let resources = names::resources_of(shape.function);
    let unknown = if waits_for_peers(&name) { UNKNOWN_NEVER_WAITS } else { UNKNOWN };
    let number = KernelId::new(name, Dims(shape.grid), Dims(shape.block))
        .ok()
        .and_then(|id| number_kernel(CatalogKernel { id, resources }))
        .unwrap_or(unknown);
    kernel_cache::keep(shape, number, generation);
    number
}

/// Returns the number of a kernel, or of its class; `None` if there is no place for either.
#[expect(clippy::cast_possible_truncation, reason = "there are at most KERNELS_MAX kernels")]
fn number_kernel(mut kernel: CatalogKernel) -> Option<u32> {
    let mut catalog = CATALOG.lock().unwrap_or_else(PoisonError::into_inner);
    let catalog =
        catalog.get_or_insert_with(|| Catalog { numbers: HashMap::new(), kernels: Vec::new() });
    if catalog.kernels.len() >= SHAPES_MAX && !catalog.numbers.contains_key(&kernel.id) {
        kernel.id = kernel.id.class();
    }
    if let Some(number) = catalog.numbers.get(&kernel.id) {
        // Another function of the same name, or the same after the driver could be queried.
        if let Some(known) = catalog.kernels.get_mut(*number as usize)
            && let Some(resources) = kernel.resources
        {
            let larger = known.resources.map_or(resources, |known| known.max_of_each(resources));
            if known.resources != Some(larger) {
                known.resources = Some(larger);
                note_changed_need(*number);
            }
        }
        return Some(*number);
    }
    let at = catalog.kernels.len();
    if at >= KERNELS_MAX {
        return None;
    }
    let number = at as u32;
    FACTS[at].never_waits.store(waits_for_peers(kernel.id.name()), Ordering::Relaxed);
    catalog.numbers.insert(kernel.id.clone(), number);
    catalog.kernels.push(kernel);
    COUNT.store(number + 1, Ordering::Release);
    Some(number)
}

/// Returns whether a kernel waits on the device for a kernel of another process, by its name.
///
/// If it waited here, it would block the other kernel, which is already launched.
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
    entry(number).map(|kernel| kernel.id)
}

fn entry(number: u32) -> Option<CatalogKernel> {
    let catalog = CATALOG.lock().unwrap_or_else(PoisonError::into_inner);
    catalog.as_ref()?.kernels.get(usize::try_from(number).ok()?).cloned()
}

/// Records the dynamic shared memory of a launch, which is no part of a kernel's identity.
#[inline]
pub fn note_shared_memory(number: u32, bytes: u32) {
    if let Some(facts) = facts(number)
        && facts.shared_bytes.load(Ordering::Relaxed) < bytes
    {
        raise_shared_memory(number, bytes);
    }
}

#[cold]
fn raise_shared_memory(number: u32, bytes: u32) {
    if let Some(facts) = facts(number) {
        facts.shared_bytes.fetch_max(bytes, Ordering::Relaxed);
        note_changed_need(number);
    }
}

fn note_changed_need(number: u32) {
    if let Some(facts) = facts(number) {
        facts.need_changed.store(true, Ordering::Release);
        NEEDS_CHANGED.store(true, Ordering::Release);
    }
}

/// Returns a kernel whose need is to be reported, and its need. The queue knows the kernel's index. `next` is where
/// the search goes on, 0 at first: one search reports all kernels that changed before it.
pub fn take_changed_need(next: &mut u32) -> Option<(KernelIndex, ResourceNeed)> {
    loop {
        if *next == 0 && !NEEDS_CHANGED.swap(false, Ordering::AcqRel) {
            return None;
        }
        while *next < count() {
            let number = *next;
            *next += 1;
            let found = changed_need(number);
            if found.is_some() {
                return found;
            }
        }
        // A kernel behind the search may have changed meanwhile.
        *next = 0;
    }
}

fn changed_need(number: u32) -> Option<(KernelIndex, ResourceNeed)> {
    let (index, facts) = (index(number), facts(number)?);
    // Without an index it is reported when the queue has sent one.
    if index == KernelIndex::UNKNOWN
        || !facts.need_changed.load(Ordering::Relaxed)
        || !facts.need_changed.swap(false, Ordering::AcqRel)
    {
        return None;
    }
    Some((index, need_of(number, facts.shared_bytes.load(Ordering::Relaxed))?))
}

/// Returns what a kernel needs of the device; `None` if the driver did not report enough.
fn need_of(number: u32, shared_bytes: u32) -> Option<ResourceNeed> {
    let kernel = entry(number)?;
    let size = LaunchSize { grid: kernel.id.grid, block: kernel.id.block, shared_bytes };
    need::of_launch(&size, &kernel.resources?, resources::device_limits()?)
}

fn facts(number: u32) -> Option<&'static KernelFacts> {
    FACTS.get(usize::try_from(number).ok()?)
}

/// Returns a kernel's predicted time.
pub fn predicted_time(number: u32) -> Option<Nanos> {
    facts(number)?.took.load(Ordering::Relaxed).checked_sub(1).map(Nanos::new)
}

/// Returns how many launches of a kernel were measured. Kernels without a number count as well known.
#[inline]
pub fn samples(number: u32) -> u32 {
    facts(number).map_or(u32::MAX, |facts| facts.samples.load(Ordering::Relaxed))
}

/// Counts a launch of a kernel that is measured.
pub fn count_sample(number: u32) {
    if let Some(facts) = facts(number) {
        facts.samples.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns whether launches of a kernel are to be measured.
#[inline]
pub fn is_measured(number: u32) -> bool {
    facts(number).is_some_and(|facts| facts.measure.load(Ordering::Relaxed))
}

/// Returns whether the queue has reported anything of a kernel.
#[inline]
pub fn is_defined(number: u32) -> bool {
    facts(number).is_some_and(|facts| facts.index.load(Ordering::Relaxed) != 0)
}

/// Returns whether a kernel must not wait for grants.
pub fn never_waits(number: u32) -> bool {
    number == UNKNOWN_NEVER_WAITS
        || facts(number).is_some_and(|facts| facts.never_waits.load(Ordering::Relaxed))
}

/// Returns the queue's index of a kernel.
pub fn index(number: u32) -> KernelIndex {
    let index = facts(number).and_then(|facts| facts.index.load(Ordering::Relaxed).checked_sub(1));
    index.and_then(|index| u16::try_from(index).ok()).map_or(KernelIndex::UNKNOWN, KernelIndex::new)
}

/// Stores what the queue reported of a kernel.
pub fn set_facts(number: u32, index: Option<KernelIndex>, took: Option<Nanos>, measure: bool) {
    let Some(facts) = facts(number) else { return };
    if let Some(index) = index {
        facts.index.store(u32::from(index.get()) + 1, Ordering::Relaxed);
        note_changed_need(number);
    }
    facts.took.store(took.map_or(0, |took| took.get().saturating_add(1)), Ordering::Relaxed);
    facts.measure.store(measure, Ordering::Relaxed);
}

/// Returns the numbers of the kernels with this index. There are several if the queue has a class for them.
pub fn numbers_of(index: KernelIndex) -> impl Iterator<Item = u32> {
    (0..count())
        .filter(move |number| self::index(*number) == index && index != KernelIndex::UNKNOWN)
}

/// Discards the reports of the queue, since a new session has new indexes.
pub fn clear_facts() {
    for facts in &FACTS {
        facts.index.store(0, Ordering::Relaxed);
        facts.took.store(0, Ordering::Relaxed);
        facts.measure.store(false, Ordering::Relaxed);
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

    /// Numbers a kernel of a function with so many blocks.
    fn number_of_shape(name: &str, blocks: u32) -> Option<u32> {
        let id = KernelId::new(name, Dims([blocks, 1, 1]), Dims([128, 1, 1])).unwrap();
        number_kernel(CatalogKernel { id, resources: None })
    }

    #[test]
    fn shapes_beyond_all_places_share_the_numbers_of_their_classes_and_never_wait_if_their_function_never_does()
     {
        let first: Vec<_> = (1..=4_096).map(|blocks| number_of_shape("step", blocks)).collect();
        assert!((0..).zip(&first).all(|(at, number)| *number == Some(at)), "each has its own");
        set_facts(first[4_000].unwrap(), None, Some(Nanos::from_micros(9)), false);

        let late = number_of_shape("step", 5_000);

        assert_eq!(late, Some(4_096));
        assert_eq!(kernel(4_096).unwrap().grid, Dims([8_192, 1, 1]));
        assert_eq!((4_097..=8_192).find(|blocks| number_of_shape("step", *blocks) != late), None);
        assert_ne!(number_of_shape("step", 8_193), late);
        assert_eq!(number_of_shape("step", 3_000), Some(2_999), "it is known by its own shape");
        let grid = number_of_shape("ncclDevKernel_AllReduce", 24).unwrap();
        assert!(never_waits(grid));

        // The queue has one class for two numbers here.
        set_facts(7, Some(KernelIndex::new(3)), None, true);
        set_facts(grid, Some(KernelIndex::new(3)), None, true);
        assert_eq!(numbers_of(KernelIndex::new(3)).collect::<Vec<_>>(), [7, grid]);

        let others = (0..2_000).map(|name| number_of_shape(&format!("other {name}"), 3));
        assert!(others.collect::<Vec<_>>().ends_with(&[None]), "there is no place for all");
        assert!(never_waits(UNKNOWN_NEVER_WAITS) && !never_waits(UNKNOWN));
        assert_eq!(index(UNKNOWN_NEVER_WAITS), KernelIndex::UNKNOWN);
    }
}
