//! The shim as jobs are given it: a copy under its own digest that nobody writes to again.
//!
//! Who installs a newer shim over an older one writes into memory of every program that has it
//! mapped, and ends them all. A copy that is named after what it holds can't be meant by that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tessera_wire::kernel::identity::{sha256, to_hex};

use super::files::folder;

/// The name that programs ask the loader for.
const NAME: &str = "libcuda.so.1";
/// Copies that no agent has used for so long go: programs that have one mapped keep it, and a job
/// that starts another program after a month finds none and runs without a shim.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// Puts a copy of the shim into the data folder, if it isn't there, and returns its path.
///
/// # Errors
///
/// The shim can't be read, or the data folder not be written.
pub fn shelve(shim: &Path, data: &Path) -> io::Result<PathBuf> {
    let bytes = fs::read(shim)?;
    let shelf = folder(data).join("shims");
    let place = shelf.join(&to_hex(&sha256(&bytes))[..32]);
    let copy = place.join(NAME);
    fs::create_dir_all(&place)?;
    if fs::read(&copy).ok().as_deref() != Some(&bytes[..]) {
        let new = place.join("new");
        fs::write(&new, &bytes).and_then(|()| fs::rename(&new, &copy)).inspect_err(|_| {
            // Half a copy would take what is left of a disk that is full.
            let _ = fs::remove_file(&new);
        })?;
    }
    // Some programs open the driver by the name without a version.
    let plain = place.join("libcuda.so");
    if !plain.is_symlink() {
        std::os::unix::fs::symlink(NAME, plain)?;
    }
    // Its folder's time says when it was used last.
    fs::File::open(&place)?.set_modified(SystemTime::now())?;
    sweep(&shelf, SystemTime::now());
    Ok(copy)
}

/// Removes copies that were not used for long. One that stays disturbs nobody.
fn sweep(shelf: &Path, now: SystemTime) {
    for place in fs::read_dir(shelf).into_iter().flatten().flatten() {
        let used = place.metadata().and_then(|meta| meta.modified());
        let age = used.ok().and_then(|used| now.duration_since(used).ok());
        if age.is_some_and(|age| age > KEPT_FOR) {
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
        let old = shelve(&shim, folder.path()).unwrap();
        assert_eq!(shelve(&shim, folder.path()).unwrap(), old, "the same is shelved once");

        fs::write(&shim, "new").unwrap();
        let new = shelve(&shim, folder.path()).unwrap();

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
        let copy = shelve(&shim, folder.path()).unwrap();
        fs::write(&copy, "wh").unwrap();

        assert_eq!(shelve(&shim, folder.path()).unwrap(), copy);

        assert_eq!(fs::read_to_string(copy).unwrap(), "whole");
    }

    #[test]
    fn copies_go_a_month_after_they_were_used_last() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("installed.so");
        fs::write(&shim, "shim").unwrap();
        let copy = shelve(&shim, folder.path()).unwrap();
        let shelf = copy.parent().unwrap().parent().unwrap();

        sweep(shelf, SystemTime::now() + KEPT_FOR / 2);
        assert!(copy.is_file());

        sweep(shelf, SystemTime::now() + 2 * KEPT_FOR);
        assert!(!copy.exists());
    }
}
