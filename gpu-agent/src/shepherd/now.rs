//! Which attempt a shepherd began last. Written before anything else of it is done: an attempt that
//! no shepherd names here, and that has no other file, never ran.
//!
//! It has to outlive processes, not the machine: nothing that began before a reboot runs after it,
//! so no sync is needed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tessera_model::AttemptId;
use uuid::Uuid;

/// The file, as its shepherd writes it.
#[derive(Debug)]
pub struct NowFile(File);

impl NowFile {
    /// Makes the file; it names no attempt yet.
    ///
    /// # Errors
    ///
    /// The disk refused: nothing may be begun.
    pub fn create(data: &Path, shepherd: Uuid) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path(data, shepherd))?;
        // The block is taken now: naming an attempt later can't fail for lack of space.
        file.write_all_at(&[0; 16], 0)?;
        Ok(Self(file))
    }

    /// Names the attempt that is about to begin.
    pub fn write(&self, attempt: AttemptId) {
        // Overwriting a block of the page cache fails only on a broken disk. At worst the attempt is then
        // reported as never begun, and only if shepherd and agent die as well.
        let _ = self.0.write_all_at(attempt.as_uuid().as_bytes(), 0);
    }
}

/// Reads what a shepherd began last; `None` if nothing.
pub fn read(data: &Path, shepherd: Uuid) -> Option<AttemptId> {
    read_file(&path(data, shepherd))
}

/// Reads what every shepherd, dead or alive, began last.
pub fn read_all(data: &Path) -> BTreeMap<AttemptId, PathBuf> {
    let Ok(entries) = fs::read_dir(data.join("shepherds")) else { return BTreeMap::new() };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "now"))
        .filter_map(|path| Some((read_file(&path)?, path)))
        .collect()
}

fn read_file(path: &Path) -> Option<AttemptId> {
    let uuid = Uuid::from_slice(&fs::read(path).ok()?).ok()?;
    (!uuid.is_nil()).then(|| AttemptId::from_uuid(uuid))
}

/// Returns the path of the file that names the attempt which a shepherd began last.
pub fn path(data: &Path, shepherd: Uuid) -> PathBuf {
    data.join("shepherds").join(format!("{}.now", shepherd.simple()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_attempt_of_each_shepherd_is_named_and_none_before_the_first() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("shepherds")).unwrap();
        let attempt = |number| AttemptId::from_uuid(Uuid::from_u128(number));
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));

        let file = NowFile::create(data.path(), one).unwrap();
        NowFile::create(data.path(), two).unwrap();
        assert_eq!(read(data.path(), one), None);
        file.write(attempt(7));
        file.write(attempt(8));

        assert_eq!(read(data.path(), one), Some(attempt(8)));
        let all = read_all(data.path());
        assert_eq!(all.into_keys().collect::<Vec<_>>(), [attempt(8)]);
    }
}
