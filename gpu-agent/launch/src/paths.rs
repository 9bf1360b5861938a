//! Opening files that a user named: never waits for the other end of a pipe, never follows the kernel's own
//! links, and takes regular files only.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::sys::check;

/// The destination of output that nobody reads. It is the only file that may be named without being a regular
/// one.
pub const NOWHERE: &str = "/dev/null";

/// Why a file is not opened.
#[derive(Debug)]
pub enum OpenError {
    /// It is something else than a file; what it is.
    NoFile(&'static str),
    /// The system refused.
    Refused(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        // Nobody reads the pipe, or the device of the node doesn't exist.
        match error.raw_os_error() {
            Some(libc::ENXIO) => Self::NoFile("a named pipe, a socket or a device"),
            _ => Self::Refused(error),
        }
    }
}

/// Opens a file for an output. Its content stays.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_output(path: &Path) -> Result<File, OpenError> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
    let file = open(path, flags, 0o666)?;
    check_kind(&file, path)?;
    // A program expects writes that block.
    // SAFETY: plain numbers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) })?;
    Ok(file)
}

/// Opens a file for a reader.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_reader(path: &Path) -> Result<File, OpenError> {
    let file = open(path, libc::O_RDONLY, 0)?;
    check_kind(&file, path)?;
    Ok(file)
}

/// Returns what distinguishes a file from every other: its file system, its number there, and when it was made.
/// That time is in nanoseconds since 1970, or zero where the file system doesn't keep it.
pub fn identity_of(file: &std::fs::Metadata) -> (u64, u64, u64) {
    let born = file.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.and_then(|born| u64::try_from(born.as_nanos()).ok()).unwrap_or(0);
    (file.dev(), file.ino(), born)
}

/// Opens a file for a reader if it is the one that the attempt writes to.
pub fn open_twin(path: &Path, written: &File) -> Option<File> {
    let twin = open_reader(path).ok()?;
    let (one, other) = (written.metadata().ok()?, twin.metadata().ok()?);
    let is_same = identity_of(&one) == identity_of(&other);
    (is_same && one.is_file()).then_some(twin)
}

fn check_kind(file: &File, path: &Path) -> Result<(), OpenError> {
    let kind = file.metadata()?.file_type();
    let is_allowed = kind.is_file() || path.as_os_str() == NOWHERE;
    match is_allowed {
        true => Ok(()),
        false if kind.is_fifo() => Err(OpenError::NoFile("a named pipe")),
        false if kind.is_dir() => Err(OpenError::NoFile("a folder")),
        false if kind.is_char_device() => Err(OpenError::NoFile("a device or a terminal")),
        false => Err(OpenError::NoFile("a device or a socket")),
    }
}

fn open(path: &Path, flags: libc::c_int, mode: u64) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the structure is plain numbers, for which zero means "not used".
    let mut how: libc::open_how = unsafe { MaybeUninit::zeroed().assume_init() };
    how.flags = u64::from(flags.cast_unsigned());
    how.mode = mode;
    how.resolve = libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: path and structure outlive the call.
    let opened = check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    })?;
    #[expect(clippy::cast_possible_truncation, reason = "descriptors are small numbers")]
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(opened as RawFd) })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_regular_files_and_the_null_device_are_opened_and_none_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pipe = at("pipe");
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string.
        check(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }).unwrap();

        assert!(matches!(open_output(&pipe), Err(OpenError::NoFile(_))));
        assert!(matches!(open_reader(&pipe), Err(OpenError::NoFile("a named pipe"))));
        assert!(matches!(open_output(Path::new("/dev/zero")), Err(OpenError::NoFile(_))));
        assert!(open_output(Path::new(NOWHERE)).is_ok());
        assert!(matches!(open_output(Path::new("/proc/self/fd/1")), Err(OpenError::Refused(_))));
        assert!(open_output(&at("no/file")).is_err());

        open_output(&at("file")).unwrap().write_all(b"one").unwrap();
        let mut file = open_output(&at("file")).unwrap();
        file.write_all(b"two").unwrap();
        assert_eq!(std::fs::read(at("file")).unwrap(), b"onetwo");
        assert!(open_twin(&at("file"), &file).is_some());
        std::fs::rename(at("file"), at("other")).unwrap();
        std::fs::write(at("file"), "another").unwrap();
        assert!(open_twin(&at("file"), &file).is_none(), "not the file that is written to");
    }
}
