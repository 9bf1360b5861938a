//! The journal's file and the thread that writes it. Whatever has queued up goes to the disk with
//! one sync, so that many launches at once cost as much as one.
//!
//! The file is extended in chunks of zeros. A sync within a chunk writes data alone, where one that
//! makes the file longer has the file system commit its own journal too.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::messages::NodeInput;
use tessera_agent_core::attempts::AttemptEffect;
use tessera_agent_core::ledger::{self, AttemptLedger, HEADER, JournalRecord};

/// Its name in the data folder.
pub const FILE_NAME: &str = "journal";
/// The journal grows by this much at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// How long a record of [`SyncUrgency::Soon`] may wait for others. That is about as long as a round
/// of the controller takes, so that under load the record shares the sync of the next launches.
const SOON: Duration = Duration::from_millis(10);
/// A journal longer than this is written again, with what still counts.
const COMPACT_BYTES: u64 = 8 * 1024 * 1024;
/// Batches that may wait: far more than a second's work.
const QUEUE: usize = 8192;
/// Maximum number of batches under one sync.
const GROUP_MAX: usize = 1024;

/// How soon a record must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncUrgency {
    /// With the next record that is in a hurry.
    Whenever,
    /// Within 10 ms, with others.
    Soon,
    /// At once.
    Now,
}

/// A record, and what is to be done once it is on disk.
#[derive(Debug)]
struct Batch {
    record: JournalRecord,
    haste: SyncUrgency,
    then: Vec<AttemptEffect>,
}

/// The way to the journal.
#[derive(Clone, Debug)]
pub struct Journal {
    queue: SyncSender<Batch>,
}

impl Journal {
    /// Queues a record; `then` comes back as [`NodeInput::Journalled`], or as
    /// [`NodeInput::NotJournalled`] if the disk refused.
    ///
    /// # Errors
    ///
    /// Returns `then` if the queue is full.
    pub fn append(
        &self,
        record: JournalRecord,
        haste: SyncUrgency,
        then: Vec<AttemptEffect>,
    ) -> Result<(), Vec<AttemptEffect>> {
        self.queue.try_send(Batch { record, haste, then }).map_err(|refused| match refused {
            std::sync::mpsc::TrySendError::Full(batch)
            | std::sync::mpsc::TrySendError::Disconnected(batch) => batch.then,
        })
    }
}

/// The file in which an agent records what it must not forget.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: File,
    /// Where the next record goes.
    length: u64,
    /// How long the file is; zeros from `length` on.
    extent: u64,
    compact_at: u64,
    ledger: AttemptLedger,
}

impl JournalFile {
    /// Opens the journal and reads its records. What follows a damaged record is cut off; a copy of
    /// the damaged file is kept for people to examine.
    ///
    /// # Errors
    ///
    /// The disk refused.
    pub fn open(data: &Path) -> io::Result<(Self, AttemptLedger)> {
        let path = data.join(FILE_NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (records, used) = ledger::decode(&bytes);
        let blank = bytes[used..].iter().all(|byte| *byte == 0);
        if !blank {
            let lost = bytes.len() - used;
            tracing::warn!(lost, "the journal's end was damaged and is cut off");
            fs::write(path.with_extension("damaged"), &bytes)?;
        }
        let mut sum = AttemptLedger::default();
        records.iter().for_each(|record| sum.apply(record));
        let mut journal = Self {
            file: open(&path)?,
            path,
            length: used as u64,
            extent: used as u64,
            compact_at: COMPACT_BYTES,
            ledger: sum.clone(),
        };
        journal.file.set_len(journal.length)?;
        if used == 0 {
            journal.write(&HEADER)?;
        }
        journal.file.sync_all()?;
        Ok((journal, sum))
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(self, node: mpsc::Sender<NodeInput>) -> io::Result<Journal> {
        let (queue, batches) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || self.run(&batches, &node))?;
        Ok(Journal { queue })
    }

    fn run(mut self, batches: &Receiver<Batch>, node: &mpsc::Sender<NodeInput>) {
        while let Some(group) = gather(batches) {
            let written = self.append(&group);
            let then: Vec<_> = group.into_iter().flat_map(|batch| batch.then).collect();
            if then.is_empty() {
                continue;
            }
            let reported = match written {
                Ok(()) => NodeInput::Journalled(then),
                Err(error) => NodeInput::NotJournalled { then, reason: error.to_string() },
            };
            if node.blocking_send(reported).is_err() {
                return;
            }
        }
    }

    fn append(&mut self, group: &[Batch]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(group.len() * 256);
        for batch in group {
            ledger::encode(&batch.record, &mut bytes).map_err(io::Error::other)?;
        }
        let before = self.length;
        let sync = group.iter().any(|batch| !batch.then.is_empty());
        let written =
            self.write(&bytes).and_then(|()| if sync { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            tracing::error!(%error, "the journal can't be written");
            // An incomplete record must not precede the next one.
            self.length = before;
            self.extent = before;
            let _ = self.file.set_len(before);
            return Err(error);
        }
        group.iter().for_each(|batch| self.ledger.apply(&batch.record));
        if self.length > self.compact_at {
            self.compact();
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.length + bytes.len() as u64;
        if end > self.extent {
            let zeros = vec![0; bytes.len().max(CHUNK_BYTES)];
            self.file.write_all_at(&zeros, self.length)?;
            self.extent = self.length + zeros.len() as u64;
        }
        self.file.write_all_at(bytes, self.length)?;
        self.length = end;
        Ok(())
    }

    /// Writes the journal again. If that fails, the old one stays, and continues to grow.
    fn compact(&mut self) {
        let temporary = self.path.with_extension("new");
        let rewrite = || -> io::Result<(File, u64)> {
            let mut bytes = HEADER.to_vec();
            for record in self.ledger.records() {
                ledger::encode(&record, &mut bytes).map_err(io::Error::other)?;
            }
            let _ = fs::remove_file(&temporary);
            let file = open(&temporary)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)?;
            if let Some(folder) = self.path.parent() {
                File::open(folder)?.sync_all()?;
            }
            Ok((file, bytes.len() as u64))
        };
        match rewrite() {
            Ok((file, length)) => {
                self.file = file;
                self.length = length;
                self.extent = length;
                self.compact_at = COMPACT_BYTES.max(length * 2);
            }
            Err(error) => {
                tracing::warn!(%error, "the journal could not be compacted");
                self.compact_at = self.length.saturating_mul(2);
            }
        }
    }
}

/// Waits for records, and for as long as the most urgent one allows for more; `None` once there is
/// no sender left.
#[expect(
    clippy::disallowed_methods,
    reason = "the disk sets the pace: records wait for others in real time"
)]
fn gather(batches: &Receiver<Batch>) -> Option<Vec<Batch>> {
    let first = batches.recv().ok()?;
    let hold = Instant::now() + SOON;
    let mut hasty = first.haste == SyncUrgency::Now;
    let mut group = vec![first];
    while group.len() < GROUP_MAX {
        let left =
            if hasty { Duration::ZERO } else { hold.saturating_duration_since(Instant::now()) };
        let Ok(batch) = batches.recv_timeout(left) else { break };
        hasty |= batch.haste == SyncUrgency::Now;
        group.push(batch);
    }
    Some(group)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::AttemptId;

    fn tombstone(number: u128) -> Batch {
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        Batch {
            record: JournalRecord::Tombstone { attempt },
            haste: SyncUrgency::Whenever,
            then: Vec::new(),
        }
    }

    #[test]
    fn a_journal_that_grew_long_is_written_anew_and_holds_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, empty) = JournalFile::open(folder.path()).unwrap();
        assert_eq!(empty, AttemptLedger::default());

        let mut longest = 0;
        for thousand in 0..170_u128 {
            let group: Vec<_> = (0..1000).map(|i| tombstone(thousand * 1000 + i)).collect();
            journal.append(&group).unwrap();
            longest = longest.max(journal.length);
        }
        let sum = journal.ledger.clone();
        drop(journal);

        let (journal, read) = JournalFile::open(folder.path()).unwrap();
        assert_eq!(read, sum);
        assert!(longest > 7 * 1024 * 1024 && journal.length < longest / 2);
    }

    #[test]
    fn what_stands_behind_a_damage_is_kept_aside_and_the_rest_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = JournalFile::open(folder.path()).unwrap();
        journal.append(&[tombstone(1)]).unwrap();
        drop(journal);
        let path = folder.path().join(FILE_NAME);
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        bytes[end..end + 10].copy_from_slice(b"half a rec");
        fs::write(&path, &bytes).unwrap();

        let (mut journal, sum) = JournalFile::open(folder.path()).unwrap();
        journal.append(&[tombstone(2)]).unwrap();
        drop(journal);

        assert!(sum.tombstones.contains(AttemptId::from_uuid(uuid::Uuid::from_u128(1))));
        let (_, sum) = JournalFile::open(folder.path()).unwrap();
        assert_eq!(sum.records().len(), 2);
        assert_eq!(fs::read(path.with_extension("damaged")).unwrap(), bytes);
    }
}
