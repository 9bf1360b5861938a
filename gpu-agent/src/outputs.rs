//! Removes what attempts left once it has been kept for long enough. That happens on a separate
//! thread, for a bounded number of attempts a sweep, and only after the controller has their ends.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tessera_frames::cluster::LogStream;
use tessera_model::{AttemptId, Bytes, Millis};

use crate::shepherd::files;
use crate::sys::clock;
use tessera_agent_core::retention::{KeptOutput, OutputRetention, RemovalReason, RetentionLimits};

/// Ends that may wait; further ones are found at the next start.
const NOTICES_QUEUED_MAX: usize = 16 * 1024;
/// How often ages are checked.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How long ends gather, so that a busy node doesn't wake this thread for each.
const GATHER_FOR: Duration = Duration::from_millis(100);
/// Maximum number of attempts that one sweep removes: a second's work for a slow disk.
const SWEEP_MAX: usize = 500;
/// The pause between sweeps that found more than they may remove.
const SWEEP_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of entries of a working folder whose sizes are added up.
const ENTRIES_MAX: usize = 10_000;
/// The space that outputs may take by default, as a part of the file system.
const SHARE_OF_DISK: u64 = 10;

/// The keeper of outputs; clones reach the same one.
#[derive(Clone, Debug)]
pub struct OutputKeeper {
    kept: Arc<Mutex<OutputRetention>>,
    reported: SyncSender<OutputNotice>,
}

#[derive(Debug)]
enum OutputNotice {
    /// What an earlier agent left, with the time of its last change, oldest first.
    Found(Vec<(SystemTime, AttemptId)>),
    /// An attempt's end was acknowledged.
    Over(AttemptId),
}

/// Returns the space that outputs may take by default: a tenth of their file system.
///
/// # Errors
///
/// The system's error.
pub fn share_of_disk(data: &Path) -> io::Result<Bytes> {
    let disk = rustix::fs::statvfs(data)?;
    Ok(Bytes::new(disk.f_blocks.saturating_mul(disk.f_frsize) / SHARE_OF_DISK))
}

impl OutputKeeper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub fn start(data: &Path, limits: RetentionLimits) -> io::Result<Self> {
        let kept = Arc::new(Mutex::new(OutputRetention::new(limits)));
        let (reported, receiver) = sync_channel(NOTICES_QUEUED_MAX);
        let (data, shared) = (data.to_owned(), Arc::clone(&kept));
        std::thread::Builder::new()
            .name("outputs".to_owned())
            .spawn(move || sweep_until_closed(&data, &shared, &receiver))?;
        Ok(Self { kept, reported })
    }

    /// Adds what an earlier agent left: attempts that are over, with the time of their last
    /// change, oldest first.
    pub fn found(&self, left: Vec<(SystemTime, AttemptId)>) {
        self.send(OutputNotice::Found(left));
    }

    /// An attempt's end was acknowledged: its output may be removed when its time has passed.
    pub fn over(&self, attempt: AttemptId) {
        self.send(OutputNotice::Over(attempt));
    }

    fn send(&self, reported: OutputNotice) {
        if self.reported.try_send(reported).is_err() {
            tracing::debug!("an output is looked at after the next start only");
        }
    }

    /// Returns why an output does not exist.
    pub fn explain(&self, attempt: AttemptId) -> String {
        lock(&self.kept).explain(attempt, clock::unix_now())
    }
}

fn lock(kept: &Mutex<OutputRetention>) -> MutexGuard<'_, OutputRetention> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix(moment: SystemTime) -> Millis {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    // A file may name any time: one beyond all clocks counts as the latest.
    u64::try_from(since.as_millis()).map_or(Millis::new(u64::MAX), Millis::new)
}

/// Ends with the agent, which holds the other end.
fn sweep_until_closed(
    data: &Path,
    kept: &Mutex<OutputRetention>,
    receiver: &Receiver<OutputNotice>,
) {
    let mut wait = SWEEP_EVERY;
    loop {
        match receiver.recv_timeout(wait) {
            Ok(first) => {
                std::thread::sleep(GATHER_FOR);
                for reported in
                    std::iter::once(first).chain(receiver.try_iter().take(NOTICES_QUEUED_MAX))
                {
                    take_in(data, kept, reported);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let removed = sweep(data, kept);
        wait = if removed == SWEEP_MAX { SWEEP_PAUSE } else { SWEEP_EVERY };
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with the modification times of files, which the system sets"
)]
fn take_in(data: &Path, kept: &Mutex<OutputRetention>, reported: OutputNotice) {
    let found = match reported {
        OutputNotice::Found(found) => found,
        OutputNotice::Over(attempt) => vec![(SystemTime::now(), attempt)],
    };
    for (changed, attempt) in found {
        // Not under the lock: readers take it.
        let left = KeptOutput { attempt, over_unix: unix(changed), bytes: taken(data, attempt) };
        lock(kept).add(left);
    }
}

fn sweep(data: &Path, kept: &Mutex<OutputRetention>) -> usize {
    let due = lock(kept).due(clock::unix_now(), SWEEP_MAX);
    let mut bytes = 0_u64;
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (left, why) in &due {
        files::remove(data, left.attempt);
        bytes = bytes.saturating_add(left.bytes.get());
        *reasons.entry(reason_label(*why)).or_default() += 1;
    }
    if !due.is_empty() {
        let bytes = Bytes::new(bytes);
        tracing::info!(attempts = due.len(), %bytes, ?reasons, "outputs removed");
    }
    due.len()
}

const fn reason_label(why: RemovalReason) -> &'static str {
    match why {
        RemovalReason::Age => "age",
        RemovalReason::Bytes => "bytes",
        RemovalReason::Attempts => "attempts",
    }
}

/// Adds up the sizes of an attempt's files; links count without their targets.
fn taken(data: &Path, attempt: AttemptId) -> Bytes {
    let mut bytes = 0_u64;
    for stream in [LogStream::Stdout, LogStream::Stderr] {
        let file = files::output(data, attempt, stream).symlink_metadata();
        bytes = bytes.saturating_add(file.map_or(0, |found| found.len()));
    }
    let mut folders: Vec<PathBuf> = vec![files::folder(data, attempt)];
    let mut entries = 0;
    while let Some(folder) = folders.pop()
        && entries < ENTRIES_MAX
    {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            let Ok(found) = entry.path().symlink_metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            } else {
                bytes = bytes.saturating_add(found.len());
            }
        }
    }
    Bytes::new(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::RetentionTime;

    fn attempt(data: &Path, number: u128, text: &str) -> AttemptId {
        let id = AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        std::fs::create_dir_all(files::outputs(data)).unwrap();
        std::fs::create_dir_all(files::folder(data, id)).unwrap();
        std::fs::write(files::output(data, id, LogStream::Stdout), text).unwrap();
        id
    }

    fn there(data: &Path, id: AttemptId) -> bool {
        files::output(data, id, LogStream::Stdout).exists() || files::folder(data, id).exists()
    }

    fn wait_gone(data: &Path, id: AttemptId) {
        while there(data, id) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn outputs_go_oldest_first_once_their_ends_are_known_and_never_before() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let (old, first) = (attempt(data, 1, "0123456789"), attempt(data, 2, "0123456789"));
        let (second, live) = (attempt(data, 3, "0123456789"), attempt(data, 4, "0123456789"));
        let limits =
            RetentionLimits { age: RetentionTime::Forever, bytes: Bytes::new(20), attempts: 100 };

        let keeper = OutputKeeper::start(data, limits).unwrap();
        keeper.found(vec![(UNIX_EPOCH, old)]);
        keeper.over(first);
        keeper.over(second);
        wait_gone(data, old);

        assert!(there(data, first) && there(data, second) && there(data, live));
        let why = keeper.explain(old);
        assert!(why.contains("outputs took more than 20 B") && why.contains("s ago"), "{why}");
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the modification times of files, which the system sets"
    )]
    #[test]
    fn an_output_goes_when_it_is_old_enough() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let (old, young) = (attempt(data, 1, "x"), attempt(data, 2, "x"));
        let limits = RetentionLimits {
            age: RetentionTime::days(7),
            bytes: Bytes::new(1 << 40),
            attempts: 100,
        };

        let keeper = OutputKeeper::start(data, limits).unwrap();
        keeper.found(vec![(UNIX_EPOCH, old), (SystemTime::now(), young)]);
        wait_gone(data, old);

        assert!(there(data, young));
        assert!(keeper.explain(old).contains("after 7d"), "{}", keeper.explain(old));
    }
}
