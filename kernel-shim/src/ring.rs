//! The ring of records from the program's threads to the session's thread. It has a fixed size, and
//! writers never wait.
//!
//! It is a bounded queue of many writers and one reader after Vyukov. The lap in each slot shows
//! whether the slot is free or full, and a writer takes a slot by moving the tail. When the ring is
//! full, launches of holders are dropped and counted. Records that threads wait for have reserved
//! slots.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::park::{ParkFlag, PauseFlag};

/// The number of slots. At 200,000 launches a second, the session's thread may be delayed for a third
/// of a second.
const SLOTS: usize = 64 * 1024;
const SLOTS_U64: u64 = 64 * 1024;

/// Slots reserved for records that must not be lost. Each blocked thread has at most a few, and
/// programs have at most some hundred threads.
const RESERVED: u64 = 2 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A launch without a grant. `extra` is the gate's count.
    Launch = 1,
    /// A request. `extra` is the grant that does not cover it, plus one.
    Request = 2,
    /// A launch under the grant `extra`.
    Started = 3,
    /// The oldest kernel in flight ended.
    Done = 4,
    /// Nothing is in flight. `extra` is the grant that is returned, plus one.
    Sync = 5,
    /// A kernel took `at`. `launch` is the kernel before it, `extra` the gap, each plus one.
    Sample = 6,
    /// The driver refused the launch.
    Failed = 7,
    /// A holder brings the device back to its context.
    Recalled = 8,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRecord {
    pub kind: RecordKind,
    /// The kernel's number in this process, or [`crate::kernel_catalog::UNKNOWN`].
    pub kernel: u32,
    /// The launch's number.
    pub launch: u64,
    /// The time, or a sample's duration, in nanoseconds.
    pub at: u64,
    /// A further number, depending on the kind.
    pub extra: u64,
}

/// 32 bytes. The first eight hold the lap, the kind and the kernel.
struct RingSlot([AtomicU64; 4]);

struct Ring {
    slots: [RingSlot; SLOTS],
    tail: CacheLine,
    head: CacheLine,
    lost: CacheLine,
}

/// A number on its own cache line.
#[repr(align(64))]
struct CacheLine(AtomicU64);

static RING: Ring = Ring {
    slots: [const { RingSlot([const { AtomicU64::new(0) }; 4]) }; SLOTS],
    tail: CacheLine(AtomicU64::new(0)),
    head: CacheLine(AtomicU64::new(0)),
    lost: CacheLine(AtomicU64::new(0)),
};

/// Whether the session's thread sleeps and must be woken by a write to [`BELL_FD`].
static PARKED: ParkFlag = ParkFlag::new(AtomicBool::new(false));
/// Whether the session's thread pauses between two looks at the records of a holder. Only urgent ones wake it.
static PAUSE: PauseFlag =
    PauseFlag::new(ParkFlag::new(AtomicBool::new(false)), AtomicBool::new(false));
/// An eventfd; below zero while there is none.
static BELL_FD: AtomicI32 = AtomicI32::new(-1);

/// Returns the number of records that were dropped because the ring was full.
pub fn lost() -> u64 {
    RING.lost.0.load(Ordering::Relaxed)
}

/// Adds a record and wakes the reader. Returns false if the ring is full.
#[inline]
pub fn push(entry: RingRecord) -> bool {
    let pushed = leave(entry);
    announce();
    pushed
}

/// Adds a record without waking the reader; [`announce`] must follow. Waking a thread takes longer
/// than everything else, and a launch need not wait for it.
#[inline]
pub fn leave(entry: RingRecord) -> bool {
    RING.push(entry)
}

/// Wakes the reader if it sleeps.
#[inline]
pub fn announce() {
    if PARKED.announce() {
        ring_bell();
    }
}

/// Writes to the bell if the session's thread sleeps.
#[cold]
pub fn wake_reader() {
    if PARKED.take() {
        ring_bell();
    }
}

#[cold]
fn ring_bell() {
    let bell = BELL_FD.load(Ordering::Relaxed);
    if bell >= 0 {
        let one: u64 = 1;
        // `write` is a cancellation point, at which a thread could end inside the shim.
        // SAFETY: eight bytes of ours. It can't block, since the count never gets that large.
        unsafe { libc::syscall(libc::SYS_write, bell, &raw const one, 8_usize) };
    }
}

/// Prepares the session's thread for a pause. Returns false if there is a record: any, or for a long pause an urgent one.
pub fn may_pause(is_long: bool) -> bool {
    PAUSE.may_pause(|| !is_long && !RING.is_empty())
}

/// Notes that the session's thread pauses no longer.
pub fn end_pause() {
    PAUSE.end();
}

/// Adds a record that the reader gets at once, even if it pauses.
pub fn push_urgent(entry: RingRecord) {
    push(entry);
    end_pause_early();
}

/// Wakes the reader if it pauses, so that it gets what was added until now.
#[cold]
pub fn end_pause_early() {
    if PAUSE.end_early() {
        ring_bell();
    }
}

/// Removes the oldest record. For the session's thread only.
pub fn pop() -> Option<RingRecord> {
    RING.pop()
}

/// Sets the eventfd that wakes the session's thread.
pub fn set_bell(bell: i32) {
    BELL_FD.store(bell, Ordering::Relaxed);
}

/// Prepares the session's thread for sleep. Returns false if there is a record.
pub fn may_park() -> bool {
    PARKED.may_park(|| RING.is_empty())
}

/// Notes that the session's thread is awake.
pub fn unpark() {
    PARKED.unpark();
}

impl Ring {
    fn push(&self, entry: RingRecord) -> bool {
        let keeps = !matches!(entry.kind, RecordKind::Launch | RecordKind::Sample);
        loop {
            let tail = self.tail.0.load(Ordering::Relaxed);
            if !keeps {
                let head = self.head.0.load(Ordering::Relaxed);
                if tail.wrapping_sub(head) >= SLOTS_U64 - RESERVED {
                    self.lost.0.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
            }
            let (slot, lap) = self.slot(tail);
            let seen = slot.0[0].load(Ordering::Acquire) >> 32;
            if seen == free(lap) {
                let next = tail.wrapping_add(1);
                let taken = self.tail.0.compare_exchange_weak(
                    tail,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if taken.is_ok() {
                    slot.0[1].store(entry.launch, Ordering::Relaxed);
                    slot.0[2].store(entry.at, Ordering::Relaxed);
                    slot.0[3].store(entry.extra, Ordering::Relaxed);
                    let kind = u64::from(entry.kind as u8) << 24;
                    let head = full(lap) << 32 | kind | u64::from(entry.kernel & 0xff_ffff);
                    slot.0[0].store(head, Ordering::Release);
                    return true;
                }
            } else if seen == full(lap.wrapping_sub(1)) {
                self.lost.0.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            std::hint::spin_loop();
        }
    }

    fn pop(&self) -> Option<RingRecord> {
        let head = self.head.0.load(Ordering::Relaxed);
        let (slot, lap) = self.slot(head);
        let first = slot.0[0].load(Ordering::Acquire);
        if first >> 32 != full(lap) {
            return None;
        }
        let entry = RingRecord {
            kind: kind(first >> 24 & 0xff)?,
            kernel: (first & 0xff_ffff) as u32,
            launch: slot.0[1].load(Ordering::Relaxed),
            at: slot.0[2].load(Ordering::Relaxed),
            extra: slot.0[3].load(Ordering::Relaxed),
        };
        slot.0[0].store(free(lap.wrapping_add(1)) << 32, Ordering::Release);
        self.head.0.store(head.wrapping_add(1), Ordering::Relaxed);
        Some(entry)
    }

    fn is_empty(&self) -> bool {
        let head = self.head.0.load(Ordering::Relaxed);
        let (slot, lap) = self.slot(head);
        slot.0[0].load(Ordering::Acquire) >> 32 != full(lap)
    }

    fn slot(&self, position: u64) -> (&RingSlot, u64) {
        let at = (position % SLOTS_U64) as usize;
        (&self.slots[at], position / SLOTS_U64)
    }
}

/// The upper half of a free slot in this lap: 31 bits of the lap, doubled.
fn free(lap: u64) -> u64 {
    (lap << 1) & 0xffff_ffff
}

/// The upper half of a full slot in this lap.
fn full(lap: u64) -> u64 {
    free(lap) | 1
}

fn kind(code: u64) -> Option<RecordKind> {
    Some(match code {
        1 => RecordKind::Launch,
        2 => RecordKind::Request,
        3 => RecordKind::Started,
        4 => RecordKind::Done,
        5 => RecordKind::Sync,
        6 => RecordKind::Sample,
        7 => RecordKind::Failed,
        8 => RecordKind::Recalled,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> &'static Ring {
        // Two mebibytes of zeros: an empty ring in its first lap.
        let empty: Box<Ring> = {
            let layout = std::alloc::Layout::new::<Ring>();
            // SAFETY: a ring is made of atomic numbers only, for which zeros are values.
            unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
        };
        Box::leak(empty)
    }

    fn entry(kind: RecordKind, launch: u64) -> RingRecord {
        RingRecord { kind, kernel: 0xab_cdef, launch, at: launch.wrapping_mul(3), extra: !launch }
    }

    #[test]
    fn records_come_out_as_they_went_in_over_many_laps() {
        let ring = ring();
        let kinds = [
            RecordKind::Launch,
            RecordKind::Request,
            RecordKind::Started,
            RecordKind::Done,
            RecordKind::Sync,
            RecordKind::Failed,
            RecordKind::Recalled,
        ];

        for launch in 0..3 * SLOTS_U64 + 7 {
            let entry = entry(kinds[usize::try_from(launch % 7).unwrap()], launch);
            assert!(ring.push(entry));
            assert_eq!(ring.pop(), Some(entry));
        }
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn a_full_ring_loses_launches_and_counts_them_but_keeps_places_for_waits() {
        let ring = ring();

        let pushed =
            (0..SLOTS_U64).filter(|launch| ring.push(entry(RecordKind::Launch, *launch))).count();

        assert_eq!(u64::try_from(pushed).unwrap(), SLOTS_U64 - RESERVED);
        assert_eq!(ring.lost.0.load(Ordering::Relaxed), RESERVED);
        assert!((0..RESERVED).all(|launch| ring.push(entry(RecordKind::Request, launch))));
        assert!(!ring.push(entry(RecordKind::Request, 0)));
        assert_eq!(ring.pop(), Some(entry(RecordKind::Launch, 0)));
        assert!(ring.push(entry(RecordKind::Request, 1)));
    }

    #[test]
    fn records_of_many_threads_arrive_once_and_in_each_threads_order() {
        const THREADS: u64 = 4;
        const EACH: u64 = 200_000;
        let ring = ring();

        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for number in 0..EACH {
                        while !ring.push(entry(RecordKind::Request, thread << 32 | number)) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 4];
            while next.iter().sum::<u64>() < THREADS * EACH {
                let Some(got) = ring.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                let thread = usize::try_from(got.launch >> 32).unwrap();
                assert_eq!(got, entry(RecordKind::Request, got.launch));
                assert_eq!(got.launch & 0xffff_ffff, next[thread]);
                next[thread] += 1;
            }
        });
        assert_eq!(ring.pop(), None);
    }
}
