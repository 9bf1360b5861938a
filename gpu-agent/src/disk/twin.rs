//! A small file that is rewritten often: two copies in one file, overwritten alternately.
//!
//! A crash while one copy is written leaves the other. The file neither grows nor moves, so that a
//! sync writes data alone. A sync that replaces a file has the file system commit its own journal
//! twice, for the new file and for its name. Nor can a full disk refuse to overwrite a copy.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"TWIN";
/// Magic, checksum of what follows, number, length of the body.
const HEAD: usize = 24;
/// Space of one copy at first: more than a GPU's file with all the faults that it may hold.
const COPY_BYTES_MIN: usize = 32 * 1024;

/// The file, open for writing.
#[derive(Debug)]
pub struct Twin {
    path: PathBuf,
    file: File,
    /// Bytes of one copy, with its head.
    copy_bytes: usize,
    /// Of the newest copy; an even one is the first in the file.
    number: u64,
}

impl Twin {
    /// Reads what was last written; `None` if there is no file.
    ///
    /// # Errors
    ///
    /// The disk refused, or neither copy is whole: a person must examine it.
    pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
        match fs::read(path) {
            Ok(bytes) => newest(&bytes).map(|(_, body)| Some(body.to_vec())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the file; makes it with `body`, if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Twin::read`].
    pub fn open(path: &Path, body: &[u8]) -> io::Result<Self> {
        match fs::read(path) {
            Ok(bytes) => Ok(Self {
                path: path.to_owned(),
                file: OpenOptions::new().write(true).open(path)?,
                copy_bytes: bytes.len() / 2,
                number: newest(&bytes)?.0,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path, body, 0),
            Err(error) => Err(error),
        }
    }

    /// Writes over the older copy; it is on disk when this returns.
    ///
    /// # Errors
    ///
    /// The disk refused; the newest copy is untouched.
    pub fn put(&mut self, body: &[u8]) -> io::Result<()> {
        let number = self.number + 1;
        if HEAD + body.len() > self.copy_bytes {
            *self = make(&self.path, body, number)?;
            return Ok(());
        }
        self.file.write_all_at(&copy(number, body), offset(number, self.copy_bytes))?;
        self.file.sync_data()?;
        self.number = number;
        Ok(())
    }
}

/// Writes a file again, with space for twice as much as it holds.
fn make(path: &Path, body: &[u8], number: u64) -> io::Result<Twin> {
    let mut copy_bytes = COPY_BYTES_MIN;
    while copy_bytes < 2 * (HEAD + body.len()) {
        copy_bytes *= 2;
    }
    let temporary = path.with_extension("new");
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    // Zeros that are written now, and not a hole: or the first syncs would allocate.
    file.write_all_at(&vec![0; 2 * copy_bytes], 0)?;
    file.write_all_at(&copy(number, body), offset(number, copy_bytes))?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(Twin { path: path.to_owned(), file, copy_bytes, number })
}

fn offset(number: u64, copy_bytes: usize) -> u64 {
    if number.is_multiple_of(2) { 0 } else { copy_bytes as u64 }
}

fn copy(number: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &[0; 4]].concat();
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    let checksum = crc32fast::hash(&bytes[8..]).to_le_bytes();
    bytes[4..8].copy_from_slice(&checksum);
    bytes
}

/// Returns the whole copy with the highest number.
fn newest(bytes: &[u8]) -> io::Result<(u64, &[u8])> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let found = whole(first).into_iter().chain(whole(second)).max_by_key(|(number, _)| *number);
    found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "neither copy is whole"))
}

fn whole(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let number = u64::from_le_bytes(head[8..16].try_into().ok()?);
    let length = u64::from_le_bytes(head[16..].try_into().ok()?);
    let body = rest.get(..usize::try_from(length).ok()?)?;
    let checksum = crc32fast::hash(&bytes[8..HEAD + body.len()]).to_le_bytes();
    (head[..4] == MAGIC && head[4..8] == checksum).then_some((number, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever part of a write reaches the disk, either the earlier body or its own is read.
        #[test]
        fn a_torn_write_leaves_the_body_before_it(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 1..5),
            last in prop::collection::vec(any::<u8>(), 0..3_000),
            torn in any::<prop::sample::Index>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("twin");
            let mut twin = Twin::open(&path, b"first").unwrap();
            for body in &bodies {
                twin.put(body).unwrap();
            }
            let before = fs::read(&path).unwrap();
            twin.put(&last).unwrap();
            let after = fs::read(&path).unwrap();
            prop_assert_eq!(Twin::read(&path).unwrap(), Some(last.clone()));

            let start = usize::try_from(offset(twin.number, twin.copy_bytes)).unwrap();
            let cut = start + torn.index(HEAD + last.len());
            fs::write(&path, [&after[..cut], &before[cut..]].concat()).unwrap();

            let read = Twin::read(&path).unwrap();
            let own = after[..cut] == after[..] || read.as_ref() == Some(&last);
            prop_assert!(own || read.as_ref() == bodies.last(), "cut at {cut}");
            let mut twin = Twin::open(&path, b"never").unwrap();
            twin.put(b"next").unwrap();
            prop_assert_eq!(Twin::read(&path).unwrap(), Some(b"next".to_vec()));
        }
    }

    #[test]
    fn a_body_that_outgrows_its_room_gets_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("twin");
        assert_eq!(Twin::read(&path).unwrap(), None);
        let mut twin = Twin::open(&path, b"small").unwrap();
        let large = vec![7; 3 * COPY_BYTES_MIN];

        twin.put(&large).unwrap();
        twin.put(b"small again").unwrap();

        assert_eq!(Twin::read(&path).unwrap(), Some(b"small again".to_vec()));
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn a_file_of_which_no_copy_is_whole_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("twin");
        fs::write(&path, [0; 100]).unwrap();

        assert_eq!(Twin::read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(Twin::open(&path, b"new").is_err());
    }
}
