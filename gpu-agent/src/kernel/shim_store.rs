//! The store of shims for jobs: copies named after their digest, which are never changed.
//!
//! Installing a newer shim over an older one would change the memory of all programs that have it
//! mapped, and end them. The copies are safe from that.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tessera_wire::kernel_identity::{sha256, to_hex};

use super::files::folder;

/// The name by which programs load the driver.
const NAME: &str = "libcuda.so.1";
/// Copies that no agent has used for so long are removed. Programs that have one mapped keep it. A job
/// that starts another program later runs it without a shim.
const UNUSED_FOR_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Copies the shim into the data folder if necessary, and returns the path of the copy.
///
/// # Errors
///
/// The shim can't be read, or the data folder can't be written.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with the modification times of files, which the system sets"
)]
pub fn store_shim(shim: &Path, data: &Path) -> io::Result<PathBuf> {
    let bytes = fs::read(shim)?;
    let store = folder(data).join("shims");
    let place = store.join(&to_hex(&sha256(&bytes))[..32]);
    let copy = place.join(NAME);
    fs::create_dir_all(&place)?;
    // Jobs of every account load it, whatever mask the agent was started with.
    for folder in [&store, &place] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    if fs::read(&copy).ok().as_deref() != Some(&bytes[..]) {
        let new = place.join("new");
        fs::write(&new, &bytes).and_then(|()| fs::rename(&new, &copy)).inspect_err(|_| {
            // A partial copy would occupy a disk that is full.
            let _ = fs::remove_file(&new);
        })?;
    }
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    // Some programs open the driver by the name without a version.
    let plain = place.join("libcuda.so");
    if !plain.is_symlink() {
        std::os::unix::fs::symlink(NAME, plain)?;
    }
    // The folder's modification time is the time of the last use.
    fs::File::open(&place)?.set_modified(SystemTime::now())?;
    remove_unused(&store, SystemTime::now());
    Ok(copy)
}

/// Removes copies that were not used for long. Failures are harmless.
fn remove_unused(store: &Path, now: SystemTime) {
    for place in fs::read_dir(store).into_iter().flatten().flatten() {
        let used = place.metadata().and_then(|meta| meta.modified());
        let age = used.ok().and_then(|used| now.duration_since(used).ok());
        if age.is_some_and(|age| age > UNUSED_FOR_MAX) {
            let _ = fs::remove_dir_all(place.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_jobs_were_given_stays_whatever_is_installed_over_the_shim() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("installed.so");
        fs::write(&shim, "old").unwrap();
        let old = store_shim(&shim, folder.path()).unwrap();
        assert_eq!(store_shim(&shim, folder.path()).unwrap(), old, "the same is stored once");

        fs::write(&shim, "new").unwrap();
        let new = store_shim(&shim, folder.path()).unwrap();

        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert_eq!(fs::read_to_string(&new).unwrap(), "new");
        assert_eq!(new.file_name().unwrap(), NAME);
        let plain = new.with_file_name("libcuda.so");
        assert_eq!(fs::read_to_string(plain).unwrap(), "new");
    }

    #[test]
    fn a_copy_that_was_damaged_is_put_right() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("installed.so");
        fs::write(&shim, "whole").unwrap();
        let copy = store_shim(&shim, folder.path()).unwrap();
        fs::write(&copy, "wh").unwrap();

        assert_eq!(store_shim(&shim, folder.path()).unwrap(), copy);

        assert_eq!(fs::read_to_string(copy).unwrap(), "whole");
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the modification times of files, which the system sets"
    )]
    #[test]
    fn copies_go_a_month_after_they_were_used_last() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("installed.so");
        fs::write(&shim, "shim").unwrap();
        let copy = store_shim(&shim, folder.path()).unwrap();
        let store = copy.parent().unwrap().parent().unwrap();

        remove_unused(store, SystemTime::now() + UNUSED_FOR_MAX / 2);
        assert!(copy.is_file());

        remove_unused(store, SystemTime::now() + 2 * UNUSED_FOR_MAX);
        assert!(!copy.exists());
    }
}
