//! A log that a daemon writes and the agent follows.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::access::DaemonAccess;
use super::control::{ANSWER_MAX, ControlClient};
use super::messages::{DaemonFile, LogPiece};

/// Maximum number of bytes that are read between two checks: more than a fault writes for 48 clients.
const READ_MAX: u64 = 256 * 1024;
/// Longest piece that is read at once: less than a frame.
const PIECE_MAX: u64 = 32 * 1024;
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
    open_own(path, fs::OpenOptions::new().read(true)).map_or_else(|_| String::new(), beginning)
}

/// Reads the beginning of a file.
pub fn beginning(mut file: fs::File) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is text as well.
    let _ = file.rewind();
    let _ = file.take(ANSWER_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads a piece of a log from where the reader is. A log that is longer than is ever read between two checks is continued
/// at its end.
///
/// # Errors
///
/// There is no such file of the user's.
pub fn read_piece(path: &Path, read: u64) -> io::Result<LogPiece> {
    let mut file = open_own(path, fs::OpenOptions::new().read(true))?;
    let end = file.metadata()?.len();
    // A log that is shorter than the part that was read was restarted.
    let from = if read > end { 0 } else { read };
    let from = from.max(end.saturating_sub(READ_MAX));
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PIECE_MAX).read_to_end(&mut bytes)?;
    Ok(LogPiece { from, bytes })
}

/// Empties a log: NVIDIA's daemons append to it, so they continue at its beginning.
///
/// # Errors
///
/// There is no such file of the user's.
pub fn empty(path: &Path) -> io::Result<()> {
    open_own(path, fs::OpenOptions::new().write(true))?.set_len(0)
}

/// One log, and how far it was read.
#[derive(Debug)]
pub struct FollowedLog {
    file: DaemonFile,
    read: u64,
    is_there: bool,
}

impl FollowedLog {
    /// Follows a log from its beginning; it may not be there yet.
    pub const fn new(file: DaemonFile) -> Self {
        Self { file, read: 0, is_there: false }
    }

    /// Returns whether there was a log when it was read last.
    pub const fn is_there(&self) -> bool {
        self.is_there
    }

    /// Returns the whole lines that were written since the last time. A log that can't be read
    /// reports nothing.
    pub async fn new_lines(
        &mut self,
        access: &mut DaemonAccess,
        control: &ControlClient,
    ) -> String {
        let mut lines = String::new();
        for _ in 0..READ_MAX / PIECE_MAX {
            let piece = access.read(control, self.file, self.read).await;
            self.is_there = piece.is_some();
            let Some(LogPiece { from, bytes }) = piece else { break };
            let is_last = (bytes.len() as u64) < PIECE_MAX;
            // The last line may be half written: it is read again with its end.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            // No line of a daemon's is as long as a piece.
            let whole = if whole == 0 && !is_last { bytes.len() } else { whole };
            self.read = from + whole as u64;
            lines.push_str(&String::from_utf8_lossy(&bytes[..whole]));
            if is_last {
                break;
            }
        }
        if self.read > KEPT_MAX && access.cut(control, self.file).await {
            self.read = 0;
        }
        lines
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

    /// A daemon whose logs are in a folder of the agent's own.
    fn daemon(logs: &Path) -> (DaemonAccess, ControlClient) {
        let (program, pipes) = ("none".into(), logs.to_owned());
        let control = ControlClient { program, pipes, logs: logs.to_owned(), account: None };
        (DaemonAccess::Own, control)
    }

    #[tokio::test]
    async fn nothing_that_a_user_puts_in_a_logs_place_is_read_or_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("secret"), "secret\n").unwrap();
        std::os::unix::fs::symlink(at("secret"), at("link")).unwrap();
        let pipe = std::ffi::CString::new(at("pipe").display().to_string()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);

        for name in ["link", "pipe", "."] {
            assert!(read_piece(&at(name), 0).is_err());
            assert!(empty(&at(name)).is_err());
            assert_eq!(read_own(&at(name)), "");
        }
        assert_eq!(fs::read_to_string(at("secret")).unwrap(), "secret\n");

        std::os::unix::fs::symlink(at("secret"), at("server.log")).unwrap();
        let (mut access, control) = daemon(folder.path());
        let mut log = FollowedLog::new(DaemonFile::ServerLog);
        assert_eq!(log.new_lines(&mut access, &control).await, "");
        assert!(!log.is_there());
    }

    #[tokio::test]
    async fn each_whole_line_is_read_once_also_after_a_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let (mut access, control) = daemon(folder.path());
        let mut log = FollowedLog::new(DaemonFile::ServerLog);
        let mut read = async || log.new_lines(&mut access, &control).await;
        assert_eq!(read().await, "");

        appended(&path, "one\ntw");
        assert_eq!(read().await, "one\n");
        appended(&path, "o\n");
        assert_eq!(read().await, "two\n");
        // Longer than a piece.
        let many = "many\n".repeat(usize::try_from(PIECE_MAX / 2).unwrap());
        appended(&path, &many);
        assert!(read().await == many, "a line is missing or there twice");
        appended(&path, &"y".repeat(usize::try_from(PIECE_MAX).unwrap()));
        appended(&path, "\nnext\n");
        assert!(read().await.ends_with("\nnext\n"), "a line without end stops the reader");

        appended(&path, &"x\n".repeat(usize::try_from(KEPT_MAX / 2).unwrap()));
        read().await;
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        appended(&path, "three\n");
        assert_eq!(read().await, "three\n");
    }
}
