//! The named pipe in which companions of an attempt's processes report their memory.
//!
//! It is read when the shepherd wakes anyway, and not polled: a program that floods it costs nothing. Its 64 KiB hold
//! some minutes of one process's reports, and the companion drops what does not fit.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tessera_agent_core::companion::CompanionReadings;
use tessera_model::readings::MemoryReading;
use tessera_model::{AttemptId, Millis};

/// Maximum number of bytes that are read at once: the capacity of a pipe.
const READ_BYTES_MAX: usize = 64 * 1024;

/// The pipe of one attempt; removed with it.
#[derive(Debug)]
pub struct MemoryPipe {
    path: PathBuf,
    file: File,
    readings: CompanionReadings,
}

/// The pipe of an attempt that has ended. It keeps its name until another attempt gets it: a new one would need another
/// file.
#[derive(Debug)]
pub struct SparePipe(MemoryPipe);

impl MemoryPipe {
    /// Makes the pipe of an attempt. Its name is the attempt's id, which no other job knows; the account of the job
    /// only writes. A spare one has to be of the same account, since processes that opened it may still write.
    ///
    /// # Errors
    ///
    /// The disk refused: the attempt runs without it.
    pub fn make(data: &Path, attempt: AttemptId, spare: Option<SparePipe>) -> io::Result<Self> {
        let folder = data.join("pipes");
        let path = folder.join(attempt.as_uuid().simple().to_string());
        if let Some(SparePipe(mut pipe)) = spare
            && fs::rename(&pipe.path, &path).is_ok()
        {
            pipe.path = path;
            // What came after the last report of its former attempt.
            pipe.drain(Millis::ZERO);
            pipe.readings = CompanionReadings::default();
            return Ok(pipe);
        }
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))?;
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        // The umask would remove rights that others need.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622))?;
        // Open for both, so that it has a reader for as long as it exists, and never an end.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(&path)?;
        Ok(Self { path, file, readings: CompanionReadings::default() })
    }

    /// Keeps it for another attempt of the same account.
    pub fn into_spare(self) -> SparePipe {
        SparePipe(self)
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a framework reserves memory in advance.
    pub fn is_preallocated(&self) -> bool {
        self.readings.preallocated().is_some()
    }

    /// Takes the iterations that were read since the last time, as they are reported at `at_unix`.
    pub fn take_trail(&mut self, at_unix: Millis) -> Vec<MemoryReading> {
        self.readings.take_trail(at_unix)
    }

    /// Returns what was taken in.
    pub const fn readings(&self) -> &CompanionReadings {
        &self.readings
    }

    /// Takes in what was reported until `now`.
    pub fn drain(&mut self, now: Millis) -> &CompanionReadings {
        let mut bytes = [0; 4_096];
        let mut read = 0;
        while read < READ_BYTES_MAX {
            match self.file.read(&mut bytes) {
                Ok(length) if length > 0 => {
                    self.readings.take(&bytes[..length], now);
                    read += length;
                }
                Ok(_) | Err(_) => break,
            }
        }
        &self.readings
    }
}

impl Drop for MemoryPipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_pipe_ends_with_its_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(7));
        let mut pipe = MemoryPipe::make(folder.path(), attempt, None).unwrap();
        let path = pipe.path().to_owned();
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();

        writer.write_all(b"m 1 0 3 10 20 15\n").unwrap();

        assert_eq!(pipe.drain(Millis::ZERO).memory().unwrap().iteration, 3);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o622);
        drop(pipe);
        assert!(!path.exists());
    }

    #[test]
    fn the_next_attempt_of_the_account_gets_the_same_pipe_without_what_is_left_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = |number| AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        let mut first = MemoryPipe::make(folder.path(), attempt(7), None).unwrap();
        let old_path = first.path().to_owned();
        let mut writer = OpenOptions::new().write(true).open(&old_path).unwrap();
        writer.write_all(b"m 1 0 3 10 20 15\n").unwrap();
        first.drain(Millis::ZERO);
        writer.write_all(b"m 1 0 4 10 20 15\nm 1 0").unwrap();

        let mut next =
            MemoryPipe::make(folder.path(), attempt(8), Some(first.into_spare())).unwrap();

        assert!(!old_path.exists());
        assert_eq!(next.drain(Millis::ZERO).memory(), None);
        let mut writer = OpenOptions::new().write(true).open(next.path()).unwrap();
        writer.write_all(b"m 1 0 5 10 20 15\n").unwrap();
        assert_eq!(next.drain(Millis::ZERO).memory().unwrap().iteration, 5);
    }
}
