//! The oracle of double runs: a job takes a file lock while it runs, and records what it observed.
//!
//! Nothing of it is the product's: the kernel's `flock(2)` decides whether two ran at once, and
//! appended lines count how often the program began and completed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Results of the runs of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// How often the program began while it held the lock.
    pub started: u32,
    /// How often it completed.
    pub stopped: u32,
    /// How often it found the lock taken: two ran at once.
    pub doubled: u32,
}

/// Runs as a job: holds the lock of `key` in `folder` for as long as `hold`.
///
/// # Errors
///
/// If the files can't be written, or the lock is taken.
pub fn run(folder: &Path, key: &str, hold: Duration) -> io::Result<()> {
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(format!("{key}.lock")))?;
    // Sound: flock(2) takes a descriptor that `lock` keeps open.
    let taken = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0;
    if taken {
        record_event(folder, key, "doubled")?;
        return Err(io::Error::other("another run of this job holds the lock"));
    }
    record_event(folder, key, "started")?;
    std::thread::sleep(hold);
    record_event(folder, key, "stopped")
}

/// Reads what the runs of every job recorded.
///
/// # Errors
///
/// If the folder can't be read.
pub fn read(folder: &Path) -> io::Result<BTreeMap<String, Runs>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "runs") {
            continue;
        }
        let key = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut runs = Runs::default();
        for line in fs::read_to_string(&path)?.lines() {
            match line.split(' ').next() {
                Some("started") => runs.started += 1,
                Some("stopped") => runs.stopped += 1,
                Some("doubled") => runs.doubled += 1,
                Some(_) | None => return Err(io::Error::other(format!("{path:?}: {line:?}"))),
            }
        }
        all.insert(key, runs);
    }
    Ok(all)
}

/// One short write with `O_APPEND` is never torn by another.
fn record_event(folder: &Path, key: &str, what: &str) -> io::Result<()> {
    let mut file: File =
        OpenOptions::new().create(true).append(true).open(folder.join(format!("{key}.runs")))?;
    let pid = std::process::id();
    let attempt = std::env::var("TESSERA_ATTEMPT").unwrap_or_default();
    file.write_all(format!("{what} pid={pid} attempt={attempt}\n").as_bytes())
}
