//! The device in memory that processes share: a file that each of them maps.
//!
//! A launch must cost no more than a driver's, so an update makes no system call unless two processes use the device at
//! once. The file's lock is a robust mutex: the kernel releases it when the process that holds it ends. The file has two
//! places for the device and a version that states which one counts. A writer fills the other place, then sets the
//! version. So a process that is killed at any point leaves a complete device.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use tessera_model::number::clamped;

use super::schedule::{DeviceRules, DeviceSchedule};
use crate::process::ProcessIdentity;
use pages::SharedPages;

mod pages;

/// How often it is checked whether other processes are alive. A killed one blocks the device for no
/// longer than this.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How far the device may be ahead of a process that read the clock before it had the lock.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A device, shared or not.
#[derive(Debug)]
pub struct SharedDevice {
    pages: Option<SharedPages>,
    rules: DeviceRules,
    /// The device as it was last read, and its version.
    device: DeviceSchedule,
    version: u64,
    looked_at: u64,
}

impl SharedDevice {
    /// Makes a device that only this process sees.
    pub fn private(rules: DeviceRules, now: u64) -> Self {
        Self {
            pages: None,
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
        Ok(Self { pages: Some(SharedPages::open(&file)?), ..Self::private(rules, now) })
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
        let Some(pages) = &mut self.pages else {
            before(&mut self.device);
            self.device.advance(now);
            return Ok(then(&mut self.device));
        };
        let mut pages = pages.lock()?;
        let version = pages.version();
        if version != self.version {
            self.version = version;
            // What can't be read is started over, and so are times of another boot. Others that read the clock later
            // may have been here first.
            self.device = DeviceSchedule::from_words(pages.words())
                .ok()
                .filter(|device| device.now() <= now.saturating_add(nanos(AHEAD_MAX)))
                .unwrap_or_else(|| DeviceSchedule::new(self.rules, now));
        }
        before(&mut self.device);
        self.device.advance(now);
        if now.saturating_sub(self.looked_at) >= nanos(LOOK_EVERY) {
            self.looked_at = now;
            self.device.bury(ProcessIdentity::is_alive);
        }
        let value = then(&mut self.device);
        // If it can't be written, the next update reads what is there.
        self.version = u64::MAX;
        self.version = pages.replace(&self.device.to_words())?;
        Ok(value)
    }

    /// Returns the device as it was after the last update.
    pub const fn device(&self) -> &DeviceSchedule {
        &self.device
    }
}

/// Returns a duration in nanoseconds; one of more than 584 years is as long as can be held.
pub fn nanos(duration: Duration) -> u64 {
    clamped(duration.as_nanos())
}
