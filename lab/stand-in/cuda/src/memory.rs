//! Device memory: addresses are the process's own, so that copies and kernels work on it.
//!
//! One range of addresses is kept for all devices; what is freed goes back to the machine. Bytes
//! that a program writes take the same amount of the machine's memory; bytes that it only allocates
//! take none.

use std::collections::BTreeMap;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::abi::{CallResult, CudaCode, to_native};

/// The preferred size of the address range: more than all memory of a current node.
const RANGE_BYTES: u64 = 1 << 42;
/// The minimum size.
const RANGE_BYTES_MIN: u64 = 1 << 30;
/// Allocations begin at multiples of this, as the driver's do.
const GRAIN: u64 = 512;
/// Freed memory goes back in whole pages.
const PAGE: u64 = 4096;

/// Why addresses have a place in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// Memory of a device.
    Device,
    /// Memory that both sides use, and that the device accounts for.
    Managed,
    /// Pinned memory of the host.
    Host,
    /// Memory of the program that it had pinned.
    Registered,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAllocation {
    /// Where it begins.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: AllocationKind,
    /// The context to which it belongs.
    pub context: u64,
}

/// All memory that the driver knows about.
#[derive(Debug, Default)]
pub struct CudaMemory {
    known: BTreeMap<u64, MemoryAllocation>,
    /// Free ranges: beginning and size.
    free: BTreeMap<u64, u64>,
}

impl CudaMemory {
    /// Allocates; the caller decides where it is counted.
    pub fn allocate(&mut self, bytes: u64, kind: AllocationKind, context: u64) -> CallResult<u64> {
        if self.known.is_empty() && self.free.is_empty() {
            let (base, size) = reserve().ok_or(CudaCode::OUT_OF_MEMORY)?;
            self.free.insert(base, size);
        }
        let rounded =
            bytes.max(1).checked_next_multiple_of(GRAIN).ok_or(CudaCode::OUT_OF_MEMORY)?;
        let found = self.free.iter().find(|(_, size)| **size >= rounded);
        let (base, size) =
            found.map(|(base, size)| (*base, *size)).ok_or(CudaCode::OUT_OF_MEMORY)?;
        self.free.remove(&base);
        if size > rounded {
            self.free.insert(base + rounded, size - rounded);
        }
        self.known.insert(base, MemoryAllocation { base, bytes, kind, context });
        Ok(base)
    }

    /// Takes an allocation of these kinds back, by its beginning.
    pub fn free(&mut self, base: u64, kinds: &[AllocationKind]) -> CallResult<MemoryAllocation> {
        let found = self.known.get(&base).filter(|found| kinds.contains(&found.kind)).copied();
        let found = found.ok_or(CudaCode::INVALID_VALUE)?;
        self.known.remove(&base);
        if found.kind != AllocationKind::Registered {
            give_back(found);
            self.join(base, found.bytes.max(1).next_multiple_of(GRAIN));
        }
        Ok(found)
    }

    /// Takes back all that a context has, and returns the bytes of the device's.
    pub fn free_context(&mut self, context: u64) -> u64 {
        let of_context = self.known.values().filter(|a| a.context == context);
        let all: Vec<_> = of_context.copied().collect();
        let freed = all.iter().filter_map(|a| self.free(a.base, &[a.kind]).ok());
        let device =
            freed.filter(|a| matches!(a.kind, AllocationKind::Device | AllocationKind::Managed));
        device.map(|a| a.bytes).sum()
    }

    /// Takes note of memory that the program pins.
    pub fn register(&mut self, base: u64, bytes: u64, context: u64) -> CallResult {
        let end = base.checked_add(bytes).ok_or(CudaCode::INVALID_VALUE)?;
        let before = self.known.range(..end).next_back();
        if before.is_some_and(|(_, a)| a.base + a.bytes.max(1) > base) {
            return Err(CudaCode::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.known.insert(
            base,
            MemoryAllocation { base, bytes, kind: AllocationKind::Registered, context },
        );
        Ok(())
    }

    /// Finds the allocation in which an address is.
    pub fn at(&self, address: u64) -> Option<MemoryAllocation> {
        let (_, found) = self.known.range(..=address).next_back()?;
        (address - found.base < found.bytes.max(1)).then_some(*found)
    }

    /// Returns whether all of a range is within one allocation.
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        self.at(address).is_some_and(|found| {
            (address - found.base).checked_add(bytes).is_some_and(|end| end <= found.bytes)
        })
    }

    fn join(&mut self, base: u64, size: u64) {
        let (mut base, mut size) = (base, size);
        if let Some(next) = self.free.remove(&(base + size)) {
            size += next;
        }
        let before = self.free.range(..base).next_back().map(|(b, s)| (*b, *s));
        if let Some((earlier, its_size)) = before.filter(|(b, s)| b + s == base) {
            self.free.remove(&earlier);
            (base, size) = (earlier, size + its_size);
        }
        self.free.insert(base, size);
    }
}

/// Keeps a range of addresses for device memory, as large as the system lets.
fn reserve() -> Option<(u64, u64)> {
    let mut bytes = RANGE_BYTES;
    loop {
        let length = usize::try_from(bytes).ok()?;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new range at an address of the system's choice, which nobody else uses.
        match unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) } {
            Ok(base) => return Some((u64::try_from(base.addr()).ok()?, bytes)),
            Err(_) if bytes > RANGE_BYTES_MIN => bytes /= 2,
            Err(_) => return None,
        }
    }
}

/// Returns an allocation's memory to the machine.
fn give_back(found: MemoryAllocation) {
    let start = found.base.next_multiple_of(PAGE);
    let end = (found.base + found.bytes) / PAGE * PAGE;
    let length = to_native(end.saturating_sub(start));
    if length > 0 {
        let start = ptr::with_exposed_provenance_mut(to_native(start));
        // SAFETY: whole pages of the range of device memory, in an allocation that no longer
        // exists. Without this they would only be given back later.
        let _ = unsafe { madvise(start, length, Advice::LinuxDontNeed) };
    }
}

/// Copies bytes between memory of any side; the ranges may overlap.
///
/// # Safety
///
/// The destination can be written and the source read for this many bytes.
pub unsafe fn copy(to: u64, from: u64, bytes: u64) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to_native(to));
    let from = ptr::with_exposed_provenance(to_native(from));
    // SAFETY: the caller's promise.
    unsafe { ptr::copy(from, to, to_native(bytes)) };
}

/// Reads a 64-bit word.
///
/// # Safety
///
/// The word can be read.
pub unsafe fn read_word(at: u64) -> u64 {
    let at = ptr::with_exposed_provenance::<u64>(to_native(at));
    // SAFETY: the caller's promise. Volatile, as a program may write it meanwhile.
    unsafe { at.read_volatile() }
}

/// Writes a 64-bit word.
///
/// # Safety
///
/// The word can be written.
pub unsafe fn write_word(at: u64, word: u64) {
    let at = ptr::with_exposed_provenance_mut::<u64>(to_native(at));
    // SAFETY: the caller's promise.
    unsafe { at.write_volatile(word) };
}

/// Fills memory with a pattern.
///
/// # Safety
///
/// The memory can be written for the pattern times the count.
pub unsafe fn fill(at: u64, pattern: &[u8], count: u64) {
    let length = pattern.len() as u64;
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        let at = ptr::with_exposed_provenance_mut::<u8>(to_native(at));
        let bytes = to_native(length * count);
        // SAFETY: the caller's promise.
        unsafe { at.write_bytes(pattern[0], bytes) };
        return;
    }
    for index in 0..count {
        let base = to_native(at + index * length);
        for (offset, byte) in pattern.iter().enumerate() {
            let to = ptr::with_exposed_provenance_mut::<u8>(base + offset);
            // SAFETY: the caller's promise.
            unsafe { to.write(*byte) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_is_whole_again_and_what_is_unknown_is_refused() {
        let mut memory = CudaMemory::default();
        let blocks: Vec<_> = (0..4)
            .map(|n| memory.allocate(1_000 + n, AllocationKind::Device, 1).unwrap())
            .collect();

        assert!(memory.holds(blocks[1] + 10, 991));
        assert!(!memory.holds(blocks[1] + 10, 992));
        assert_eq!(
            memory.free(blocks[1] + 1, &[AllocationKind::Device]),
            Err(CudaCode::INVALID_VALUE)
        );
        assert_eq!(memory.free(blocks[1], &[AllocationKind::Host]), Err(CudaCode::INVALID_VALUE));
        for block in [1, 3, 0, 2] {
            memory.free(blocks[block], &[AllocationKind::Device]).unwrap();
        }
        assert_eq!(memory.free.len(), 1);
        assert_eq!(memory.at(blocks[0]), None);
    }

    #[test]
    fn freed_memory_is_zero_when_it_comes_back_in_whole_pages() {
        let mut memory = CudaMemory::default();
        let first = memory.allocate(1 << 20, AllocationKind::Device, 1).unwrap();
        // SAFETY: the allocation just made.
        unsafe { fill(first, &[7], 1 << 20) };
        memory.free(first, &[AllocationKind::Device]).unwrap();
        let again = memory.allocate(1 << 20, AllocationKind::Device, 1).unwrap();

        assert_eq!(again, first);
        // SAFETY: the allocation just made.
        assert_eq!(unsafe { read_word(again + 8192) }, 0);
    }
}
