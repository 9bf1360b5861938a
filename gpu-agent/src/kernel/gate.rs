//! A slice's gate page, mapped by the endpoint and served to the slice's jobs.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::geteuid;
use tessera_agent_core::kernel::PageOwner;
use tessera_frames::gate::{GATE_BYTES, GatePage};
use tessera_model::SliceId;
use tessera_wire::gate_page::{self, PageServer};

/// Jobs of other accounts pass through the folder of pages, and list nothing.
const FOLDER_MODE: u32 = 0o711;

/// Returns the path of the socket on which a slice's jobs get its page.
pub fn path(folder: &Path, slice: &SliceId) -> PathBuf {
    // A slice's id has letters, digits and dashes only.
    folder.join(format!("{slice}.gate"))
}

/// Makes the folder of pages. Others may write into its parent, so a folder that they made is refused.
///
/// # Errors
///
/// The folder can't be made, or belongs to another account.
pub fn make_folder(folder: &Path) -> io::Result<()> {
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
                "{} is not a folder of this agent's account: remove it, or set kernel_gates",
                folder.display()
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
        }
        Err(error) => Err(error),
    }
}

/// A mapped page.
#[derive(Debug)]
pub struct MappedGate {
    page: NonNull<GatePage>,
    /// Hands the page to jobs. `None` for a page of another process.
    _server: Option<PageServer>,
}

impl MappedGate {
    /// Makes a slice's page, and serves it to its owner's processes until the end of this value.
    ///
    /// # Errors
    ///
    /// The page can't be made, mapped or served: the slice has no page.
    pub fn serve(folder: &Path, slice: &SliceId, owner: Option<PageOwner>) -> io::Result<Self> {
        make_folder(folder)?;
        let memory = gate_page::create()?;
        let page = map(&memory)?;
        let owner = owner.map(|owner| (owner.uid, owner.gid));
        let server = PageServer::start(&path(folder, slice), owner, memory);
        // Unmaps the page if it can't be served.
        let mut gate = Self { page, _server: None };
        gate._server = Some(server?);
        Ok(gate)
    }

    /// Maps the page of a slice that another one serves, as a job does.
    ///
    /// # Errors
    ///
    /// Nobody serves it, or not to this account.
    pub fn join(folder: &Path, slice: &SliceId) -> io::Result<Self> {
        let memory = gate_page::fetch(&path(folder, slice))?;
        Ok(Self { page: map(&memory)?, _server: None })
    }

    /// Returns the page.
    pub const fn page(&self) -> &GatePage {
        // SAFETY: mapped for as long as `self`, page-aligned and as large as a `GatePage`, of which any bytes
        // are a value. Other processes change it through atomics only, or break only numbers that may be
        // anything. The memory is sealed: no process can shorten it.
        unsafe { self.page.as_ref() }
    }
}

fn map(memory: &OwnedFd) -> io::Result<NonNull<GatePage>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
    let place = unsafe {
        mmap(std::ptr::null_mut(), GATE_BYTES, protection, MapFlags::SHARED, memory.as_fd(), 0)?
    };
    NonNull::new(place.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Drop for MappedGate {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nobody holds a reference beyond `self`.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), GATE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use tessera_kernel_queue::{Epoch, KernelIndex, Nanos};

    use super::*;

    fn slice() -> SliceId {
        "MIG-7".parse().unwrap()
    }

    #[test]
    fn a_page_is_the_same_for_every_process_that_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let served = MappedGate::serve(folder.path(), &slice(), None).unwrap();
        served.page().set_epoch(Epoch::new(5));
        served.page().open();

        let job = MappedGate::join(folder.path(), &slice()).unwrap();
        job.page().add_launch(KernelIndex::UNKNOWN, Nanos::ZERO);

        assert!(job.page().is_sound());
        assert_eq!(job.page().gate().epoch, Epoch::new(5));
        assert_eq!(served.page().gate().launches, 1);
    }

    #[test]
    fn the_next_agent_serves_its_own_page_at_the_same_place() {
        let folder = tempfile::tempdir().unwrap();
        let earlier = MappedGate::serve(folder.path(), &slice(), None).unwrap();
        let job = MappedGate::join(folder.path(), &slice()).unwrap();
        drop(earlier);
        assert!(MappedGate::join(folder.path(), &slice()).is_err());

        let next = MappedGate::serve(folder.path(), &slice(), None).unwrap();
        job.page().add_launch(KernelIndex::UNKNOWN, Nanos::ZERO);

        assert_eq!(
            next.page().gate().launches,
            0,
            "a job that has not joined again is not counted"
        );
        let again = MappedGate::join(folder.path(), &slice()).unwrap();
        again.page().add_launch(KernelIndex::UNKNOWN, Nanos::ZERO);
        assert_eq!(next.page().gate().launches, 1);
    }

    #[test]
    fn a_folder_or_socket_that_others_planted_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (real, planted) = (folder.path().join("real"), folder.path().join("planted"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &planted).unwrap();
        assert!(MappedGate::serve(&planted, &slice(), None).is_err());

        fs::write(folder.path().join("victim"), "victim").unwrap();
        std::os::unix::fs::symlink("../victim", path(&real, &slice())).unwrap();
        let _served = MappedGate::serve(&real, &slice(), None).unwrap();

        assert_eq!(fs::read_to_string(folder.path().join("victim")).unwrap(), "victim");
        assert!(MappedGate::join(&real, &slice()).is_ok());
    }
}
