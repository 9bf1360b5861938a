//! The journal's file and the thread that writes it: whatever has queued up goes to the disk
//! with one sync, so that many launches at once cost as much as one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::mpsc;

use crate::core::attempts::Effect;
use crate::core::ledger::{self, HEADER, Ledger, Record};
use crate::node::Input;

/// Its name in the data folder.
pub const FILE_NAME: &str = "journal";
/// A journal longer than this is written anew, with what still counts.
const COMPACT_BYTES: u64 = 8 * 1024 * 1024;
/// Batches that may wait: far more than a second's work.
const QUEUE: usize = 8192;
/// Most batches under one sync.
const GROUP_MAX: usize = 1024;

/// Records, and what is to be done once they are on disk.
#[derive(Debug)]
struct Batch {
    record: Record,
    then: Vec<Effect>,
}

/// The way to the journal.
#[derive(Clone, Debug)]
pub struct Journal {
    queue: SyncSender<Batch>,
}

impl Journal {
    /// Queues a record; `then` comes back as [`Input::Journalled`], or as
    /// [`Input::NotJournalled`] if the disk refused.
    ///
    /// # Errors
    ///
    /// Returns `then` if the queue is full.
    pub fn append(&self, record: Record, then: Vec<Effect>) -> Result<(), Vec<Effect>> {
        self.queue.try_send(Batch { record, then }).map_err(|refused| match refused {
            std::sync::mpsc::TrySendError::Full(batch)
            | std::sync::mpsc::TrySendError::Disconnected(batch) => batch.then,
        })
    }
}

/// The journal's file.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: File,
    length: u64,
    compact_at: u64,
    ledger: Ledger,
}

impl JournalFile {
    /// Opens the journal and reads what it says. What stands behind a damage is cut off; the
    /// damaged file is kept aside for people to look at.
    ///
    /// # Errors
    ///
    /// The disk refused.
    pub fn open(data: &Path) -> io::Result<(Self, Ledger)> {
        let path = data.join(FILE_NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (records, used) = ledger::decode(&bytes);
        if used < bytes.len() {
            let lost = bytes.len() - used;
            tracing::warn!(lost, "the journal's end was damaged and is cut off");
            fs::write(path.with_extension("damaged"), &bytes)?;
        }
        let mut sum = Ledger::default();
        records.iter().for_each(|record| sum.apply(record));
        let mut journal = Self {
            file: open_append(&path)?,
            path,
            length: u64::try_from(used).unwrap_or(0),
            compact_at: COMPACT_BYTES,
            ledger: sum.clone(),
        };
        if used == 0 {
            journal.file.set_len(0)?;
            journal.write(&HEADER)?;
        } else {
            journal.file.set_len(journal.length)?;
        }
        journal.file.sync_all()?;
        Ok((journal, sum))
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(self, node: mpsc::Sender<Input>) -> io::Result<Journal> {
        let (queue, batches) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || self.run(&batches, &node))?;
        Ok(Journal { queue })
    }

    fn run(mut self, batches: &Receiver<Batch>, node: &mpsc::Sender<Input>) {
        while let Ok(first) = batches.recv() {
            let mut group = vec![first];
            group.extend(batches.try_iter().take(GROUP_MAX));
            let written = self.append(&group);
            let then: Vec<_> = group.into_iter().flat_map(|batch| batch.then).collect();
            if then.is_empty() {
                continue;
            }
            let told = match written {
                Ok(()) => Input::Journalled(then),
                Err(error) => Input::NotJournalled { then, reason: error.to_string() },
            };
            if node.blocking_send(told).is_err() {
                return;
            }
        }
    }

    fn append(&mut self, group: &[Batch]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(group.len() * 256);
        for batch in group {
            ledger::encode(&batch.record, &mut bytes).map_err(io::Error::other)?;
        }
        let sync = group.iter().any(|batch| !batch.then.is_empty());
        let written =
            self.write(&bytes).and_then(|()| if sync { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            tracing::error!(%error, "the journal can't be written");
            // Half a record must not stand before the next one.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += u64::try_from(bytes.len()).unwrap_or(0);
        group.iter().for_each(|batch| self.ledger.apply(&batch.record));
        if self.length > self.compact_at {
            self.compact();
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        if self.length == 0 {
            self.length = u64::try_from(bytes.len()).unwrap_or(0);
        }
        Ok(())
    }

    /// Writes the journal anew. On any trouble the old one stays, and grows on.
    fn compact(&mut self) {
        let aside = self.path.with_extension("new");
        let rewrite = || -> io::Result<(File, u64)> {
            let mut bytes = HEADER.to_vec();
            for record in self.ledger.records() {
                ledger::encode(&record, &mut bytes).map_err(io::Error::other)?;
            }
            let _ = fs::remove_file(&aside);
            let mut file = open_append(&aside)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&aside, &self.path)?;
            if let Some(folder) = self.path.parent() {
                File::open(folder)?.sync_all()?;
            }
            Ok((file, u64::try_from(bytes.len()).unwrap_or(0)))
        };
        match rewrite() {
            Ok((file, length)) => {
                self.file = file;
                self.length = length;
                self.compact_at = COMPACT_BYTES.max(length * 2);
            }
            Err(error) => {
                tracing::warn!(%error, "the journal could not be compacted");
                self.compact_at = self.length.saturating_mul(2);
            }
        }
    }
}

fn open_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::AttemptId;

    fn tombstone(number: u128) -> Batch {
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        Batch { record: Record::Tombstone { attempt }, then: Vec::new() }
    }

    #[test]
    fn a_journal_that_grew_long_is_written_anew_and_says_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, empty) = JournalFile::open(folder.path()).unwrap();
        assert_eq!(empty, Ledger::default());

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
        bytes.extend_from_slice(b"half a rec");
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
