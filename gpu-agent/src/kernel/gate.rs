//! A slice's gate page, mapped by the endpoint.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::geteuid;
use tessera_agent_core::kernel::PageOwner;
use tessera_frames::gate::{GATE_BYTES, GatePage};
use tessera_model::SliceId;

use super::torn_page;

/// Jobs of other accounts pass through the folder of pages, and list nothing.
const FOLDER_MODE: u32 = 0o711;

/// Returns the path of a slice's page.
pub fn path(folder: &Path, slice: &SliceId) -> PathBuf {
    // A slice's id has letters, digits and dashes only.
    folder.join(format!("{slice}.gate"))
}

/// Creates a slice's page for its owner, and opens it. An existing one of the same owner stays, because
/// jobs may have it mapped. A page of another owner is replaced.
///
/// # Errors
///
/// The folder can't be written, or belongs to another account: the slice has no page.
pub fn create(
    folder: &Path,
    slice: &SliceId,
    owner: Option<PageOwner>,
) -> io::Result<(PathBuf, File)> {
    make_folder(folder)?;
    let path = path(folder, slice);
    let uid = owner.map_or_else(|| geteuid().as_raw(), |owner| owner.uid);
    let file = match open_existing(&path, uid)? {
        Some(file) => file,
        None => {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            if let Some(owner) = owner {
                fchown(&file, Some(owner.uid), Some(owner.gid))?;
            }
            file
        }
    };
    let length = GATE_BYTES as u64;
    if file.metadata()?.len() != length {
        file.set_len(length)?;
    }
    Ok((path, file))
}

/// Makes the folder of pages. Others may write into its parent, so a folder that they made is refused.
fn make_folder(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Ok(()) => fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(folder)?;
            if found.is_dir() && found.uid() == geteuid().as_raw() {
                return Ok(());
            }
            let reason = format!(
                "{} is no folder of this agent's account: remove it, or set kernel_gates",
                folder.display()
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
        }
        Err(error) => Err(error),
    }
}

/// Opens a page if it is there and its owner's; removes what else has its name.
fn open_existing(path: &Path, uid: u32) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    if let Ok(file) = options.open(path) {
        let found = file.metadata()?;
        if found.is_file() && found.uid() == uid {
            return Ok(Some(file));
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(None),
    }
}

/// A mapped page.
#[derive(Debug)]
pub struct MappedGate {
    page: NonNull<GatePage>,
    /// Open as long as the page is mapped: this process holds a lock on it.
    _locked: File,
}

impl MappedGate {
    /// Maps a slice's page, which is created if necessary.
    ///
    /// # Errors
    ///
    /// The page can't be created or mapped: the slice has no page.
    pub fn open(folder: &Path, slice: &SliceId, owner: Option<PageOwner>) -> io::Result<Self> {
        let (_, file) = create(folder, slice, owner)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let place = unsafe {
            mmap(std::ptr::null_mut(), GATE_BYTES, protection, MapFlags::SHARED, &file, 0)?
        };
        let page = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        hold_lock(&file);
        let mapped = Self { page, _locked: file };
        torn_page::protect(page.as_ptr() as usize)?;
        Ok(mapped)
    }

    /// Returns the page.
    ///
    /// If a job truncates the file, the next access puts an empty page of this process in its place
    /// ([`torn_page`]). Then only messages end grants.
    pub const fn page(&self) -> &GatePage {
        // SAFETY: mapped for as long as `self`, page-aligned and as large as a `GatePage`, of which
        // any bytes are a value; other processes change it through atomics only, or break only
        // numbers that may be anything.
        unsafe { self.page.as_ref() }
    }
}

/// Locks a page's file until it is closed, at the latest by the system when this process ends. Shims see by
/// it that a silent queue is alive and waits for a processor.
fn hold_lock(file: &File) {
    // SAFETY: zeros are a valid description of a lock: the whole file, and no owner.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (WRITE_LOCK, WHOLE_FILE);
    // SAFETY: an open file and a structure of ours.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if locked != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "the gate page is locked by another process");
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "small numbers of the C interface, where the field is a short"
)]
const WRITE_LOCK: i16 = libc::F_WRLCK as i16;
#[expect(
    clippy::cast_possible_truncation,
    reason = "small numbers of the C interface, where the field is a short"
)]
const WHOLE_FILE: i16 = libc::SEEK_SET as i16;

impl Drop for MappedGate {
    fn drop(&mut self) {
        torn_page::forget(self.page.as_ptr() as usize);
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
        let one = MappedGate::open(folder.path(), &slice, None).unwrap();
        one.page().set_epoch(Epoch::new(5));
        one.page().open();

        let other = MappedGate::open(folder.path(), &slice, None).unwrap();
        other.page().add_launch();

        assert!(other.page().is_sound());
        assert_eq!(other.page().gate().epoch, Epoch::new(5));
        assert_eq!(one.page().gate().launches, 1);
    }

    #[test]
    fn a_job_that_truncates_its_page_ends_no_agent() {
        let folder = tempfile::tempdir().unwrap();
        let slice: SliceId = "MIG-7".parse().unwrap();
        let gate = MappedGate::open(folder.path(), &slice, None).unwrap();
        gate.page().open();

        OpenOptions::new().write(true).truncate(true).open(path(folder.path(), &slice)).unwrap();

        assert!(!gate.page().is_sound());
        gate.page().set_epoch(Epoch::new(7));
        assert_eq!(gate.page().gate().epoch, Epoch::new(7));
        drop(gate);
        let again = MappedGate::open(folder.path(), &slice, None).unwrap();
        again.page().open();
        assert!(again.page().is_sound());
    }

    #[test]
    fn a_folder_or_page_that_others_planted_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let slice: SliceId = "MIG-7".parse().unwrap();
        let (real, planted) = (folder.path().join("real"), folder.path().join("planted"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &planted).unwrap();
        assert!(create(&planted, &slice, None).is_err());

        fs::write(folder.path().join("victim"), "victim").unwrap();
        std::os::unix::fs::symlink("../victim", path(&real, &slice)).unwrap();
        create(&real, &slice, None).unwrap();

        assert_eq!(fs::read_to_string(folder.path().join("victim")).unwrap(), "victim");
        assert!(path(&real, &slice).symlink_metadata().unwrap().is_file());
    }
}
