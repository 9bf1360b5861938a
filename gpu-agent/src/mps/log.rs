//! A log that a daemon writes and the agent follows.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Maximum number of bytes that are read at once: more than a fault writes for 48 clients.
const READ_MAX: u64 = 256 * 1024;
/// Longest log that is kept: a daemon writes six lines for each question, 70 MB a day for a slice
/// that is looked at every 2 s.
const KEPT_MAX: u64 = 8 * 1024 * 1024;

/// Opens a daemon's file. The daemon's user may have put anything in its place, so only a plain
/// file that belongs to the folder's owner is used. The folder itself lies in one of the agent's.
///
/// # Errors
///
/// There is no such file.
pub fn open_own(path: &Path, options: &mut fs::OpenOptions) -> io::Result<fs::File> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let owner = path.parent().map(fs::metadata).transpose()?.map(|folder| folder.uid());
    let found = file.metadata()?;
    if found.is_file() && Some(found.uid()) == owner {
        Ok(file)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Reads the beginning of a daemon's file; nothing if there is none.
pub fn read_own(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open_own(path, fs::OpenOptions::new().read(true)) {
        // What was read before an error is text as well.
        let _ = file.take(READ_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One log, and how far it was read.
#[derive(Debug)]
pub struct FollowedLog {
    path: PathBuf,
    read: u64,
}

impl FollowedLog {
    /// Follows a log from its beginning; it may not be there yet.
    pub const fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// Returns the whole lines that were written since the last time. A log that can't be read
    /// reports nothing.
    pub fn new_lines(&mut self) -> String {
        let Ok((from, bytes)) = self.piece() else { return String::new() };
        // The last line may be half written: it is read again with its end.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.read = from + whole as u64;
        if self.read > KEPT_MAX {
            self.cut();
        }
        String::from_utf8_lossy(&bytes[..whole]).into_owned()
    }

    fn piece(&self) -> io::Result<(u64, Vec<u8>)> {
        let mut file = open_own(&self.path, fs::OpenOptions::new().read(true))?;
        let end = file.metadata()?.len();
        // A log that is shorter than the part that was read was restarted.
        let from = if self.read > end { 0 } else { self.read };
        let from = from.max(end.saturating_sub(READ_MAX));
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(READ_MAX).read_to_end(&mut bytes)?;
        Ok((from, bytes))
    }

    /// Empties the log: NVIDIA's daemons append to it, so they continue at its beginning.
    fn cut(&mut self) {
        let file = open_own(&self.path, fs::OpenOptions::new().write(true));
        if file.and_then(|file| file.set_len(0)).is_ok() {
            self.read = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn appended(path: &std::path::Path, text: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn nothing_that_a_user_puts_in_a_logs_place_is_read_or_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("secret"), "secret\n").unwrap();
        std::os::unix::fs::symlink(at("secret"), at("link")).unwrap();
        let pipe = std::ffi::CString::new(at("pipe").display().to_string()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);

        for name in ["link", "pipe", "."] {
            assert_eq!(FollowedLog::new(at(name)).new_lines(), "");
            assert_eq!(read_own(&at(name)), "");
        }
        FollowedLog::new(at("link")).cut();
        assert_eq!(fs::read_to_string(at("secret")).unwrap(), "secret\n");
    }

    #[test]
    fn each_whole_line_is_read_once_also_after_a_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = FollowedLog::new(path.clone());
        assert_eq!(log.new_lines(), "");

        appended(&path, "one\ntw");
        assert_eq!(log.new_lines(), "one\n");
        appended(&path, "o\n");
        assert_eq!(log.new_lines(), "two\n");

        appended(&path, &"x\n".repeat(usize::try_from(KEPT_MAX / 2).unwrap()));
        log.new_lines();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        appended(&path, "three\n");
        assert_eq!(log.new_lines(), "three\n");
    }
}
