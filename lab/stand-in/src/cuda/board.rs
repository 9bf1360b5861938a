//! The device in a file that processes share.
//!
//! The file has two places for the device and a header that states which one counts. A writer holds
//! the file's lock, which the kernel releases when the process ends. It writes the other place
//! and then the header: a process that is killed at any point leaves a complete device.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;
use tessera_model::number::clamped;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::schedule::{DeviceRules, DeviceSchedule};
use crate::process::ProcessIdentity;

/// Where the first place begins; the header is before it.
const FIRST_PLACE: u64 = 4096;
/// Bytes of one place: far more than [`super::schedule::CLIENTS_MAX`] busy clients need,
/// and a hole in the file as long as nobody writes it.
const PLACE_BYTES: usize = 1 << 24;

/// How often it is checked whether other processes are alive. A killed one blocks the device for no
/// longer than this.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How far the device may be ahead of a process that read the clock before it had the lock.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A device, shared or not.
#[derive(Debug)]
pub struct SharedDevice {
    file: Option<File>,
    rules: DeviceRules,
    /// The device as it was last read, and the version of the file.
    device: DeviceSchedule,
    version: u64,
    looked_at: u64,
}

impl SharedDevice {
    /// Makes a device that only this process sees.
    pub fn private(rules: DeviceRules, now: u64) -> Self {
        Self {
            file: None,
            rules,
            device: DeviceSchedule::new(rules, now),
            version: 0,
            looked_at: now,
        }
    }

    /// Opens the device in a file, and makes it if there is none or it can't be read. The rules
    /// are those of the process that made it.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(path: &Path, rules: DeviceRules, now: u64) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file: Some(file), ..Self::private(rules, now) })
    }

    /// Lets the time pass until `now` after `before` has put in what should have been there
    /// earlier, then does `then`.
    ///
    /// # Errors
    ///
    /// The operating system's; nothing is changed then.
    pub fn update<T>(
        &mut self,
        now: u64,
        before: impl FnOnce(&mut DeviceSchedule),
        then: impl FnOnce(&mut DeviceSchedule) -> T,
    ) -> io::Result<T> {
        let Some(file) = &self.file else {
            before(&mut self.device);
            self.device.advance(now);
            return Ok(then(&mut self.device));
        };
        fcntl_lock(file, FlockOperation::LockExclusive)?;
        let outcome = Self::read(file, self.version).map(|found| {
            if let Some((version, device)) = found {
                self.version = version;
                // Times of another boot mean nothing now. Others that read the clock later
                // may have been here first.
                self.device = device
                    .filter(|device| device.now() <= now.saturating_add(nanos(AHEAD_MAX)))
                    .unwrap_or_else(|| DeviceSchedule::new(self.rules, now));
            }
            before(&mut self.device);
            self.device.advance(now);
            if now.saturating_sub(self.looked_at) >= nanos(LOOK_EVERY) {
                self.looked_at = now;
                self.device.bury(ProcessIdentity::is_alive);
            }
            then(&mut self.device)
        });
        let written = outcome.and_then(|value| {
            Self::write(file, self.version + 1, &self.device)?;
            self.version += 1;
            Ok(value)
        });
        // Closing any other descriptor of the file would release the lock, too: there is none.
        fcntl_lock(file, FlockOperation::Unlock)?;
        written
    }

    /// Returns the device as it was after the last update.
    pub const fn device(&self) -> &DeviceSchedule {
        &self.device
    }

    /// Reads the device if it is another than that of `known`: its version, and itself if it can
    /// be read.
    fn read(file: &File, known: u64) -> io::Result<Option<(u64, Option<DeviceSchedule>)>> {
        let mut header = [0; 16];
        if read_up_to(file, &mut header, 0)? < header.len() {
            return Ok(Some((0, None)));
        }
        let [version, bytes] = words_of(&header)[..] else { return Ok(None) };
        if version == known {
            return Ok(None);
        }
        // No writer makes a longer place: the file is damaged, and the device begins again.
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= PLACE_BYTES) else {
            return Ok(Some((version, None)));
        };
        let mut text = vec![0; bytes];
        let length = read_up_to(file, &mut text, place(version))?;
        let device = DeviceSchedule::from_words(&words_of(&text[..length])).ok();
        Ok(Some((version, device)))
    }

    fn write(file: &File, version: u64, device: &DeviceSchedule) -> io::Result<()> {
        let text: Vec<u8> = device.to_words().iter().flat_map(|word| word.to_ne_bytes()).collect();
        if text.len() > PLACE_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all_at(&text, place(version))?;
        let header: Vec<u8> =
            [version, text.len() as u64].iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&header, 0)
    }
}

/// Returns a duration in nanoseconds; one of more than 584 years is as long as can be held.
pub fn nanos(duration: Duration) -> u64 {
    clamped(duration.as_nanos())
}

const fn place(version: u64) -> u64 {
    FIRST_PLACE + (version % 2) * PLACE_BYTES as u64
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let offset = at + done as u64;
        match file.read_at(&mut buffer[done..], offset) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
