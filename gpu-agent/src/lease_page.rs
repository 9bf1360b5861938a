//! The lease page: one small file from which every shepherd of a node reads until when its attempt
//! may run (rule F5). The agent writes it, and shepherds read it, whether the agent is alive or
//! not.
//!
//! It is always written in place, in one call, and checked by a CRC: shepherds keep it open.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use tessera_model::{BootId, Millis};

/// Its name in the data folder.
pub const FILE_NAME: &str = "lease";
const MAGIC: [u8; 8] = *b"TSRLEAS1";
// `tessera-launch` reads the page, too.
const LENGTH: usize = 8 + 8 + 8 + 16 + 4;
/// A read may coincide with a write; the next read then sees a whole page.
const READS_MAX: u32 = 8;

/// The content of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// The node's generation: attempts of any other must not run.
    pub generation: u64,
    /// Until when attempts may run, on the boot clock.
    pub deadline: Millis,
    /// The boot whose clock it is.
    pub boot: BootId,
}

impl StoredLease {
    /// Returns whether attempts of `generation` may run at `now`.
    pub fn allows(&self, generation: u64, boot: BootId, now: Millis) -> bool {
        self.generation == generation && self.boot == boot && now < self.deadline
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut page = [0; LENGTH];
        page[..8].copy_from_slice(&MAGIC);
        page[8..16].copy_from_slice(&self.generation.to_le_bytes());
        page[16..24].copy_from_slice(&self.deadline.get().to_le_bytes());
        page[24..40].copy_from_slice(self.boot.as_uuid().as_bytes());
        let crc = crc32fast::hash(&page[..40]);
        page[40..].copy_from_slice(&crc.to_le_bytes());
        page
    }

    fn decode(page: &[u8; LENGTH]) -> Option<Self> {
        let (body, crc) = page.split_first_chunk::<40>()?;
        if crc != crc32fast::hash(body).to_le_bytes() || body[..8] != MAGIC {
            return None;
        }
        Some(Self {
            generation: u64::from_le_bytes(*body[8..].first_chunk()?),
            deadline: Millis::new(u64::from_le_bytes(*body[16..].first_chunk()?)),
            boot: BootId::from_uuid(uuid::Uuid::from_bytes(*body[24..].first_chunk()?)),
        })
    }
}

/// The page of one node.
#[derive(Debug)]
pub struct LeasePage {
    file: File,
}

impl LeasePage {
    /// Opens the page for its only writer, making it if there is none.
    ///
    /// # Errors
    ///
    /// The data folder can't be written.
    pub fn open_writer(data: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(data.join(FILE_NAME))?;
        Ok(Self { file })
    }

    /// Opens the page for a shepherd.
    ///
    /// # Errors
    ///
    /// There is no page: then there is no lease either.
    pub fn open_reader(data: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(data.join(FILE_NAME))? })
    }

    /// Returns the descriptor by which a launcher reads the page.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes the page. Not synced: after a crash of the machine no attempt is left to read it.
    ///
    /// # Errors
    ///
    /// The disk refused; shepherds continue with the earlier content.
    pub fn write(&self, lease: &StoredLease) -> io::Result<()> {
        self.file.write_all_at(&lease.encode(), 0)
    }

    /// Reads the page; `None` if it holds nothing that can be trusted.
    pub fn read(&self) -> Option<StoredLease> {
        (0..READS_MAX).find_map(|_| {
            let mut page = [0; LENGTH];
            self.file.read_exact_at(&mut page, 0).ok()?;
            StoredLease::decode(&page)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lease(generation: u64, deadline: u64) -> StoredLease {
        StoredLease {
            generation,
            deadline: Millis::new(deadline),
            boot: BootId::from_uuid(uuid::Uuid::from_u128(7)),
        }
    }

    proptest! {
        #[test]
        fn a_page_reads_back_and_a_flipped_bit_is_noticed(
            generation: u64, deadline: u64, byte in 0..LENGTH, bit in 0..8_u32,
        ) {
            let lease = lease(generation, deadline);
            let mut page = lease.encode();

            prop_assert_eq!(StoredLease::decode(&page), Some(lease));
            page[byte] ^= 1 << bit;
            prop_assert_eq!(StoredLease::decode(&page), None);
        }
    }

    #[test]
    fn a_lease_allows_its_own_generation_until_its_deadline() {
        let lease = lease(3, 1_000);

        assert!(lease.allows(3, lease.boot, Millis::new(999)));
        assert!(!lease.allows(3, lease.boot, Millis::new(1_000)));
        assert!(!lease.allows(4, lease.boot, Millis::new(0)));
        assert!(!lease.allows(3, BootId::from_uuid(uuid::Uuid::nil()), Millis::new(0)));
    }

    #[test]
    fn an_empty_or_missing_page_is_no_lease() {
        let folder = tempfile::tempdir().unwrap();

        assert!(LeasePage::open_reader(folder.path()).is_err());
        assert_eq!(LeasePage::open_writer(folder.path()).unwrap().read(), None);
    }
}
