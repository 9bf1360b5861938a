//! A slice's gate page, mapped by the endpoint.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tessera_frames::gate::{GATE_BYTES, GatePage};
use tessera_model::SliceId;

/// Returns the path of a slice's page.
pub fn path(folder: &Path, slice: &SliceId) -> PathBuf {
    // A slice's id has letters, digits and dashes only.
    folder.join(format!("{slice}.gate"))
}

/// Creates a slice's page. An existing one stays, because jobs may have it mapped.
///
/// # Errors
///
/// The folder can't be written: the slice has no page.
pub fn create(folder: &Path, slice: &SliceId) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = path(folder, slice);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)?;
    let length = GATE_BYTES as u64;
    if file.metadata()?.len() != length {
        file.set_len(length)?;
    }
    Ok(path)
}

/// A mapped page.
#[derive(Debug)]
pub struct MappedGate {
    page: NonNull<GatePage>,
}

impl MappedGate {
    /// Maps a slice's page, which is created if necessary.
    ///
    /// # Errors
    ///
    /// The page can't be created or mapped: the slice has no page.
    pub fn open(folder: &Path, slice: &SliceId) -> io::Result<Self> {
        let path = create(folder, slice)?;
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let place = unsafe {
            mmap(std::ptr::null_mut(), GATE_BYTES, protection, MapFlags::SHARED, &file, 0)?
        };
        let page = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { page })
    }

    /// Returns the page.
    ///
    /// If a job truncates the file, the next access ends this process. Jobs run as the agent's own
    /// user and could end the agent anyway.
    pub const fn page(&self) -> &GatePage {
        // SAFETY: mapped for as long as `self`, page-aligned and as large as a `GatePage`, of which
        // any bytes are a value; other processes change it through atomics only, or break only
        // numbers that may be anything.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for MappedGate {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; nobody holds a reference beyond `self`.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), GATE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use tessera_kernel_queue::Epoch;

    use super::*;

    #[test]
    fn a_page_is_the_same_for_everybody_who_maps_it_and_stays_when_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let slice: SliceId = "MIG-7".parse().unwrap();
        let one = MappedGate::open(folder.path(), &slice).unwrap();
        one.page().set_epoch(Epoch::new(5));
        one.page().open();

        let other = MappedGate::open(folder.path(), &slice).unwrap();
        other.page().add_launch();

        assert!(other.page().is_sound());
        assert_eq!(other.page().gate().epoch, Epoch::new(5));
        assert_eq!(one.page().gate().launches, 1);
    }
}
