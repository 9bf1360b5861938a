//! What happened, on its way from the program's threads to the session's: a queue of fixed size
//! that no pusher ever waits for.
//!
//! A bounded queue of many writers and one reader after Vyukov: each slot says by its lap whether
//! it is free or full, and a writer takes one by moving the tail. When it is full, launches of
//! holders are dropped and counted; what threads wait for has places of its own.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};

/// Places: at 200,000 launches a second, a third of a second in which the session's thread may be
/// kept from running.
const SLOTS: usize = 64 * 1024;
const SLOTS_U64: u64 = 64 * 1024;

/// Places that are kept for what must not be lost. Each blocked thread has at most a few such
/// records under way, and programs have at most some hundred threads.
const KEPT: u64 = 2 * 1024;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A launch without a grant; `extra` is the gate's count.
    Launch = 1,
    /// A wait; `extra` is the grant that does not cover it, plus one.
    Want = 2,
    /// A launch under the grant `extra`.
    Started = 3,
    /// The oldest kernel in flight ended.
    Done = 4,
    /// Nothing is in flight; `extra` is the grant that is given back, plus one.
    Sync = 5,
    /// A kernel took `at`; `launch` is the kernel before it and `extra` the gap, plus one each.
    Sample = 6,
    /// The driver refused the launch.
    Failed = 7,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What.
    pub kind: Kind,
    /// The kernel's number in this process, or [`crate::kernels::UNKNOWN`].
    pub kernel: u32,
    /// The launch's number.
    pub launch: u64,
    /// When, or a sample's duration.
    pub at: u64,
    /// More, by the kind.
    pub extra: u64,
}

/// 32 bytes: the lap, the kind and the kernel in the first eight.
struct Slot([AtomicU64; 4]);

struct Ring {
    slots: [Slot; SLOTS],
    tail: Line,
    head: Line,
    lost: Line,
}

/// A number on a cache line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

static RING: Ring = Ring {
    slots: [const { Slot([const { AtomicU64::new(0) }; 4]) }; SLOTS],
    tail: Line(AtomicU64::new(0)),
    head: Line(AtomicU64::new(0)),
    lost: Line(AtomicU64::new(0)),
};

/// Whether the session's thread sleeps and has to be woken by writing to [`BELL`].
static PARKED: AtomicBool = AtomicBool::new(false);
/// An eventfd; below zero while there is none.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// Returns how many records found no room since the process began.
pub fn lost() -> u64 {
    RING.lost.0.load(Ordering::Relaxed)
}

/// Adds a record and has it carried away. False if there was no room.
#[inline]
pub fn push(entry: Entry) -> bool {
    let pushed = leave(entry);
    announce();
    pushed
}

/// Adds a record that [`announce`] follows: waking a thread takes longer than all the rest, and a
/// launch need not wait for that.
#[inline]
pub fn leave(entry: Entry) -> bool {
    RING.push(entry)
}

/// Has what was left carried away, if nobody is at it.
#[inline]
pub fn announce() {
    // Orders the record before the look at the bell; see `may_park`.
    fence(Ordering::SeqCst);
    if PARKED.load(Ordering::Relaxed) {
        ring();
    }
}

/// Wakes the session's thread if it sleeps.
#[cold]
pub fn ring() {
    let bell = BELL.load(Ordering::Relaxed);
    if PARKED.swap(false, Ordering::AcqRel) && bell >= 0 {
        let one: u64 = 1;
        // Not by `write`, at which a thread that was cancelled would end in the midst of the shim.
        // SAFETY: eight bytes of ours. It can't block: nobody counts that far.
        unsafe { libc::syscall(libc::SYS_write, bell, &raw const one, 8_usize) };
    }
}

/// Takes the oldest record. For the session's thread only.
pub fn pop() -> Option<Entry> {
    RING.pop()
}

/// Sets what wakes the session's thread.
pub fn set_bell(bell: i32) {
    BELL.store(bell, Ordering::Relaxed);
}

/// The session's thread wants to sleep until the bell: false if there is a record after all.
pub fn may_park() -> bool {
    PARKED.store(true, Ordering::Relaxed);
    // With the fence in `push`: either the pusher sees the flag or this sees the record.
    fence(Ordering::SeqCst);
    if RING.is_empty() {
        return true;
    }
    PARKED.store(false, Ordering::Relaxed);
    false
}

/// The session's thread is awake, for whatever reason.
pub fn unpark() {
    PARKED.store(false, Ordering::Relaxed);
}

impl Ring {
    fn push(&self, entry: Entry) -> bool {
        let keeps = !matches!(entry.kind, Kind::Launch | Kind::Sample);
        loop {
            let tail = self.tail.0.load(Ordering::Relaxed);
            if !keeps {
                let head = self.head.0.load(Ordering::Relaxed);
                if tail.wrapping_sub(head) >= SLOTS_U64 - KEPT {
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
                    let kind = u64::from(code(entry.kind)) << 24;
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

    fn pop(&self) -> Option<Entry> {
        let head = self.head.0.load(Ordering::Relaxed);
        let (slot, lap) = self.slot(head);
        let first = slot.0[0].load(Ordering::Acquire);
        if first >> 32 != full(lap) {
            return None;
        }
        let entry = Entry {
            kind: kind(first >> 24 & 0xff)?,
            kernel: u32::try_from(first & 0xff_ffff).unwrap_or(0),
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

    fn slot(&self, position: u64) -> (&Slot, u64) {
        let at = usize::try_from(position % SLOTS_U64).unwrap_or(0);
        (&self.slots[at], position / SLOTS_U64)
    }
}

/// What a free slot's upper half says in this lap: 31 bits of it, doubled.
fn free(lap: u64) -> u64 {
    (lap << 1) & 0xffff_ffff
}

/// What a full slot's upper half says in this lap.
fn full(lap: u64) -> u64 {
    free(lap) | 1
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Launch => 1,
        Kind::Want => 2,
        Kind::Started => 3,
        Kind::Done => 4,
        Kind::Sync => 5,
        Kind::Sample => 6,
        Kind::Failed => 7,
    }
}

fn kind(code: u64) -> Option<Kind> {
    Some(match code {
        1 => Kind::Launch,
        2 => Kind::Want,
        3 => Kind::Started,
        4 => Kind::Done,
        5 => Kind::Sync,
        6 => Kind::Sample,
        7 => Kind::Failed,
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

    fn entry(kind: Kind, launch: u64) -> Entry {
        Entry { kind, kernel: 0xab_cdef, launch, at: launch.wrapping_mul(3), extra: !launch }
    }

    #[test]
    fn records_come_out_as_they_went_in_over_many_laps() {
        let ring = ring();
        let kinds = [Kind::Launch, Kind::Want, Kind::Started, Kind::Done, Kind::Sync, Kind::Failed];

        for launch in 0..3 * SLOTS_U64 + 7 {
            let entry = entry(kinds[usize::try_from(launch % 6).unwrap()], launch);
            assert!(ring.push(entry));
            assert_eq!(ring.pop(), Some(entry));
        }
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn a_full_ring_loses_launches_and_counts_them_but_keeps_room_for_waits() {
        let ring = ring();

        let pushed =
            (0..SLOTS_U64).filter(|launch| ring.push(entry(Kind::Launch, *launch))).count();

        assert_eq!(u64::try_from(pushed).unwrap(), SLOTS_U64 - KEPT);
        assert_eq!(ring.lost.0.load(Ordering::Relaxed), KEPT);
        assert!((0..KEPT).all(|launch| ring.push(entry(Kind::Want, launch))));
        assert!(!ring.push(entry(Kind::Want, 0)));
        assert_eq!(ring.pop(), Some(entry(Kind::Launch, 0)));
        assert!(ring.push(entry(Kind::Want, 1)));
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
                        while !ring.push(entry(Kind::Want, thread << 32 | number)) {
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
                assert_eq!(got, entry(Kind::Want, got.launch));
                assert_eq!(got.launch & 0xffff_ffff, next[thread]);
                next[thread] += 1;
            }
        });
        assert_eq!(ring.pop(), None);
    }
}
