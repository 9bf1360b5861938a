//! Logs in NVIDIA's form: `[2022-12-19 13:23:00.123 Control  6575] text`.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The first line of each log of the stand-in.
pub const BANNER: &str = "Tessera's stand-in for NVIDIA MPS: no GPU is used";

/// One log file.
#[derive(Debug)]
pub struct MpsLog {
    file: Mutex<Option<File>>,
    role: &'static str,
}

impl MpsLog {
    /// Opens a log; one that can't be written stays silent, as NVIDIA's does.
    pub fn open(folder: &Path, name: &str, role: &'static str) -> Self {
        let _ = fs::create_dir_all(folder);
        let path = folder.join(name);
        let new = !path.exists();
        let file = OpenOptions::new().append(true).create(true).open(path).ok();
        let log = Self { file: Mutex::new(file), role };
        if new {
            log.write(BANNER);
        }
        log
    }

    /// Writes one line.
    pub fn write(&self, text: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = file.as_mut() {
            let pid = std::process::id();
            let line = format!("[{} {} {pid:>5}] {text}\n", stamp(SystemTime::now()), self.role);
            let _ = file.write_all(line.as_bytes());
        }
    }
}

fn stamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, secs) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    let millis = since.subsec_millis();
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}")
}

/// Turns days since 1970 into a date.
///
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms".
const fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let next = if month <= 2 { 1 } else { 0 };
    (year + era * 400 + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_a_calendar_has_them() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (1_671_456_180, "2022-12-19 13:23:00.000"),
        ] {
            assert_eq!(stamp(UNIX_EPOCH + std::time::Duration::from_secs(secs)), text);
        }
    }
}
