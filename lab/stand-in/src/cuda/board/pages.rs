//! The mapped file: a lock, a version, and two places for a device's words.

use std::cell::UnsafeCell;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use uuid::Uuid;

/// Marks a file of this layout.
const LAYOUT: u64 = u64::from_le_bytes(*b"board 02");
/// Where the first place begins; the header is before it.
const FIRST_PLACE: usize = 4096;
/// Words of one place: far more than [`crate::cuda::schedule::CLIENTS_MAX`] busy clients need,
/// and a hole in the file as long as nobody writes them.
const PLACE_WORDS: usize = 1 << 21;
const FILE_BYTES: usize = FIRST_PLACE + 2 * PLACE_WORDS * size_of::<u64>();

/// The start of the file.
#[repr(C)]
struct BoardHeader {
    layout: AtomicU64,
    /// The machine's boot: a lock that was held when the machine stopped is held no longer.
    boot: UnsafeCell<[u8; 16]>,
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Counts the writes. The place that counts is that of an even or of an odd one.
    version: AtomicU64,
    /// How many words each of the places holds.
    lengths: [AtomicU64; 2],
}

/// A mapping of the file.
#[derive(Debug)]
pub struct SharedPages {
    start: NonNull<BoardHeader>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and all but the lock is used with the lock held.
unsafe impl Send for SharedPages {}

/// The mapping while its lock is held.
pub struct LockedPages<'p>(&'p SharedPages);

impl SharedPages {
    /// Maps a file, and makes it a new one if it has another layout or is from before the last boot.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(file: &File) -> io::Result<Self> {
        // A process that makes it is alone with it. This lock ends with the descriptor at the latest.
        fcntl_lock(file, FlockOperation::LockExclusive)?;
        let is_whole = file.metadata()?.len() == FILE_BYTES as u64;
        if !is_whole {
            file.set_len(FILE_BYTES as u64)?;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), FILE_BYTES, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Self { start };
        let boot = this_boot()?;
        let header = pages.header();
        // SAFETY: it is written below only, under the file's lock.
        let is_of_boot = unsafe { *header.boot.get() } == boot;
        if header.layout.load(Ordering::Acquire) != LAYOUT || !is_of_boot {
            header.layout.store(0, Ordering::Release);
            header.version.store(0, Ordering::Relaxed);
            header.lengths.iter().for_each(|length| length.store(0, Ordering::Relaxed));
            make_lock(header.lock.get())?;
            // SAFETY: as above.
            unsafe { *header.boot.get() = boot };
            header.layout.store(LAYOUT, Ordering::Release);
        }
        fcntl_lock(file, FlockOperation::Unlock)?;
        Ok(pages)
    }

    /// Waits for the lock.
    ///
    /// # Errors
    ///
    /// The lock is damaged.
    pub fn lock(&mut self) -> io::Result<LockedPages<'_>> {
        let lock = self.header().lock.get();
        // SAFETY: the lock was made before its layout was marked, and stays as long as the mapping.
        let outcome = match unsafe { libc::pthread_mutex_lock(lock) } {
            // Its holder was killed. The version shows a complete device.
            // SAFETY: as above; this thread holds the lock.
            libc::EOWNERDEAD => unsafe { libc::pthread_mutex_consistent(lock) },
            outcome => outcome,
        };
        succeed(outcome)?;
        Ok(LockedPages(self))
    }

    const fn header(&self) -> &BoardHeader {
        // SAFETY: the mapping is longer than the header and stays as long as `self`. All bits are valid.
        unsafe { self.start.as_ref() }
    }

    /// Returns the place of the words of a version.
    const fn place(&self, version: u64) -> NonNull<u64> {
        let first = FIRST_PLACE + (version % 2) as usize * PLACE_WORDS * size_of::<u64>();
        // SAFETY: within the mapping, and its start is aligned to a page.
        unsafe { self.start.cast::<u8>().add(first).cast() }
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, to which nothing refers any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), FILE_BYTES) };
    }
}

impl LockedPages<'_> {
    /// Returns how often the device was written.
    pub fn version(&self) -> u64 {
        self.0.header().version.load(Ordering::Acquire)
    }

    /// Returns the words of the device.
    pub fn words(&self) -> &[u64] {
        let version = self.version();
        let length = self.0.header().lengths[(version % 2) as usize].load(Ordering::Relaxed);
        let length = usize::try_from(length).map_or(PLACE_WORDS, |words| words.min(PLACE_WORDS));
        // SAFETY: within the place, and nobody writes while the lock is held.
        unsafe { std::slice::from_raw_parts(self.0.place(version).as_ptr(), length) }
    }

    /// Replaces the device; returns its version.
    ///
    /// # Errors
    ///
    /// The words are more than a place has.
    pub fn replace(&mut self, words: &[u64]) -> io::Result<u64> {
        if words.len() > PLACE_WORDS {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let header = self.0.header();
        let version = self.version() + 1;
        // SAFETY: within the place, to which nobody refers while this thread holds the lock.
        unsafe {
            std::ptr::copy_nonoverlapping(
                words.as_ptr(),
                self.0.place(version).as_ptr(),
                words.len(),
            );
        }
        header.lengths[(version % 2) as usize].store(words.len() as u64, Ordering::Relaxed);
        header.version.store(version, Ordering::Release);
        Ok(version)
    }
}

impl Drop for LockedPages<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread locked it, and the mapping is still there.
        let _ = unsafe { libc::pthread_mutex_unlock(self.0.header().lock.get()) };
    }
}

/// Makes a lock that processes share, and that does not stay held by one that is gone.
fn make_lock(lock: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes are made first, and nobody uses the lock before it is made.
    unsafe {
        succeed(libc::pthread_mutexattr_init(attributes))?;
        succeed(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
        succeed(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
        succeed(libc::pthread_mutex_init(lock, attributes))?;
        succeed(libc::pthread_mutexattr_destroy(attributes))
    }
}

fn succeed(outcome: i32) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(outcome)) }
}

fn this_boot() -> io::Result<[u8; 16]> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Uuid::parse_str(id.trim()).map(Uuid::into_bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(file: &File) -> SharedPages {
        SharedPages::open(file).unwrap()
    }

    #[test]
    fn what_one_mapping_writes_another_reads_in_either_place() {
        let file = tempfile::tempfile().unwrap();
        let (mut one, mut other) = (pages(&file), pages(&file));

        for (version, words) in (1..).zip([&[1, 2, 3][..], &[4], &[], &[5, 6]]) {
            assert_eq!(one.lock().unwrap().replace(words).unwrap(), version);
            let locked = other.lock().unwrap();
            assert_eq!((locked.version(), locked.words()), (version, words));
        }
    }

    #[test]
    fn more_than_a_place_holds_is_refused_and_changes_nothing() {
        let file = tempfile::tempfile().unwrap();
        let mut pages = pages(&file);
        pages.lock().unwrap().replace(&[7]).unwrap();

        let refused = pages.lock().unwrap().replace(&vec![0; PLACE_WORDS + 1]).unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(pages.lock().unwrap().words(), [7]);
    }

    #[test]
    fn a_file_of_another_boot_or_layout_begins_anew() {
        let of_layout = |header: &BoardHeader| header.layout.store(1, Ordering::Relaxed);
        // SAFETY: nobody else has the file.
        let of_boot = |header: &BoardHeader| unsafe { *header.boot.get() = [0; 16] };
        let changes: [&dyn Fn(&BoardHeader); 2] = [&of_layout, &of_boot];
        for change in changes {
            let file = tempfile::tempfile().unwrap();
            let mut old = pages(&file);
            old.lock().unwrap().replace(&[7]).unwrap();
            change(old.header());

            let mut new = pages(&file);

            assert_eq!(new.lock().unwrap().version(), 0);
        }
    }

    #[test]
    fn a_thread_that_ends_with_the_lock_leaves_it_to_the_next() {
        let file = tempfile::tempfile().unwrap();
        let mut pages = pages(&file);
        pages.lock().unwrap().replace(&[7]).unwrap();
        // A process that is killed unmaps nothing before.
        let dying = Box::leak(Box::new(SharedPages::open(&file).unwrap()));

        std::thread::spawn(move || std::mem::forget(dying.lock().unwrap())).join().unwrap();

        assert_eq!(pages.lock().unwrap().words(), [7]);
    }
}
