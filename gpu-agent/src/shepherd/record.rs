//! Exit records on disk, of attempts that ended while no agent could journal them: kept
//! until the controller has committed the end (rule F12).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::ExitRecord;
use tessera_frames::codec;
use tessera_model::{AttemptId, JobId};

use super::files::folder;

/// Its name in the attempt's folder.
pub const FILE_NAME: &str = "exit";
const MAGIC: [u8; 8] = *b"TSREXIT1";

/// An exit record with what it belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredExitRecord {
    /// The attempt's id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// How it ended.
    pub record: ExitRecord,
}

/// Writes a record and waits until it is on disk. One write, so that a crash leaves either the
/// whole record or one whose CRC is wrong.
///
/// # Errors
///
/// The disk refused: its holder must keep the record.
pub fn keep(data: &Path, kept: &StoredExitRecord) -> io::Result<()> {
    let mut body = Vec::with_capacity(256);
    codec::encode(kept, &mut body).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(body.len() + 12);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    let folder = folder(data, kept.attempt);
    let open = || {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(folder.join(FILE_NAME))
    };
    let mut file: File = open().or_else(|_| {
        std::fs::create_dir_all(&folder)?;
        open()
    })?;
    file.write_all(&bytes)?;
    file.sync_data()
}

/// Reads an attempt's record; `None` if there is none that can be trusted.
pub fn read(data: &Path, attempt: AttemptId) -> Option<StoredExitRecord> {
    let bytes = std::fs::read(folder(data, attempt).join(FILE_NAME)).ok()?;
    let body = bytes.strip_prefix(&MAGIC)?;
    let (crc, body) = body.split_first_chunk::<4>()?;
    if *crc != crc32fast::hash(body).to_le_bytes() {
        return None;
    }
    codec::decode::<StoredExitRecord>(body).ok().filter(|kept| kept.attempt == attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::life::{Outcome, ProgramExit};
    use tessera_model::{Bytes, Millis};

    fn kept() -> StoredExitRecord {
        StoredExitRecord {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(9)),
            job: JobId::from_number(4),
            record: ExitRecord {
                outcome: Outcome::Failed,
                exit: Some(ProgramExit::Code(3)),
                detail: String::new(),
                started_unix: Millis::new(1),
                ended_unix: Millis::new(2),
                user_time: Millis::ZERO,
                system_time: Millis::ZERO,
                max_rss: Bytes::new(4096),
            },
        }
    }

    #[test]
    fn a_record_reads_back_and_no_cut_of_it_does() {
        let data = tempfile::tempdir().unwrap();
        keep(data.path(), &kept()).unwrap();
        assert_eq!(read(data.path(), kept().attempt), Some(kept()));

        let path = folder(data.path(), kept().attempt).join(FILE_NAME);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(data.path(), kept().attempt), None, "cut at {length}");
        }
    }

    #[test]
    fn a_record_of_another_attempt_is_not_taken() {
        let data = tempfile::tempdir().unwrap();
        let other = AttemptId::from_uuid(uuid::Uuid::from_u128(10));
        keep(data.path(), &kept()).unwrap();
        std::fs::rename(folder(data.path(), kept().attempt), folder(data.path(), other)).unwrap();

        assert_eq!(read(data.path(), other), None);
    }
}
