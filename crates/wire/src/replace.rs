//! Files that belong together, such as a key and its certificate, replaced so that a crash leaves all of
//! the old ones or all of the new ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::tls::{TlsError, write_private};

/// Writes files into a folder in place of those of the same names. Only their owner can read them.
///
/// The first file's name also names the set. [`finish_replacing`] puts right what a crash left.
///
/// # Errors
///
/// [`TlsError::Write`].
pub fn replace_together(folder: &Path, files: &[(&str, &str)]) -> Result<(), TlsError> {
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    finish_replacing(folder, &names)?;
    for (name, text) in files {
        write_private(&fresh(folder, name), text.as_bytes())?;
    }
    // From here on the new files count, whatever happens.
    write_private(&mark(folder, &names), b"complete\n")?;
    sync(folder)?;
    finish_replacing(folder, &names)
}

/// Puts right what a crash within [`replace_together`] left. The names are in the same order.
///
/// # Errors
///
/// [`TlsError::Write`].
pub fn finish_replacing(folder: &Path, names: &[&str]) -> Result<(), TlsError> {
    let complete = mark(folder, names);
    let counts = complete.exists();
    let mut changed = counts;
    for name in names {
        let path = fresh(folder, name);
        let done = match counts {
            true => fs::rename(&path, folder.join(name)),
            false => fs::remove_file(&path),
        };
        match done {
            Ok(()) => changed = true,
            // Renamed before the crash, or never written.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(write_error(&path, cause)),
        }
    }
    if !changed {
        return Ok(());
    }
    sync(folder)?;
    match fs::remove_file(&complete) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(write_error(&complete, error)),
        _ => Ok(()),
    }
}

fn fresh(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.new"))
}

fn mark(folder: &Path, names: &[&str]) -> PathBuf {
    folder.join(format!("{}.complete", names.first().unwrap_or(&"files")))
}

fn sync(folder: &Path) -> Result<(), TlsError> {
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| write_error(folder, cause))
}

fn write_error(path: &Path, cause: io::Error) -> TlsError {
    TlsError::Write { path: path.display().to_string(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["key", "certificate"];

    fn read(folder: &Path) -> [String; 2] {
        NAMES.map(|name| fs::read_to_string(folder.join(name)).unwrap())
    }

    #[test]
    fn a_crash_at_any_point_leaves_all_old_or_all_new_files() {
        // What is in the folder after each step of a replacement.
        let steps: [&[(&str, &str)]; 5] = [
            &[("key.new", "k2")],
            &[("key.new", "k2"), ("certificate.new", "c2")],
            &[("key.new", "k2"), ("certificate.new", "c2"), ("key.complete", "")],
            &[("key", "k2"), ("certificate.new", "c2"), ("key.complete", "")],
            &[("key", "k2"), ("certificate", "c2"), ("key.complete", "")],
        ];
        for (step, files) in steps.iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            replace_together(folder.path(), &[("key", "k1"), ("certificate", "c1")]).unwrap();
            for (name, text) in *files {
                fs::write(folder.path().join(name), text).unwrap();
            }

            finish_replacing(folder.path(), &NAMES).unwrap();

            let expected = if step < 2 { ["k1", "c1"] } else { ["k2", "c2"] };
            assert_eq!(read(folder.path()), expected, "step {step}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "step {step}");
        }
    }

    #[test]
    fn only_the_owner_reads_the_files() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();

        replace_together(folder.path(), &[("key", "k1"), ("certificate", "c1")]).unwrap();

        let mode = fs::metadata(folder.path().join("key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
