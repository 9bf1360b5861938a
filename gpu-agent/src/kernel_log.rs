//! Reading the kernel's log for errors of GPUs: a second way to hear of them, which works when
//! the management library hangs.
//!
//! `/dev/kmsg` begins with the oldest record that the kernel still has. What an earlier agent of
//! this boot has seen is skipped; at the very first start everything old is: it happened before
//! the node was ours.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tessera_model::{BootId, Millis};
use tokio::sync::mpsc;

use crate::core::kernel_log::{LogRecord, record, xid};
use crate::disk;
use crate::gpus::{Noticed, Place, Source, Told};
use crate::sys::clock;

/// Longest record of the kernel, and more.
const CHUNK: usize = 8192;
/// How often the log is looked at: errors need not be heard of at once, only soon.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Errors that are taken in within a second; a GPU in trouble may repeat itself by the thousand.
const PER_SECOND_MAX: u32 = 100;
/// Pause before the log is opened again after it failed.
const REOPEN_AFTER: Duration = Duration::from_secs(30);

/// How far the log was read; survives the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    boot: BootId,
    sequence: u64,
}

/// Where the log is, and where its reader remembers things.
#[derive(Clone, Debug)]
pub struct KernelLog {
    /// The log.
    pub path: PathBuf,
    /// The data folder.
    pub data: PathBuf,
    /// This boot.
    pub boot: BootId,
}

/// Tells of the GPUs' errors for as long as somebody listens.
pub async fn run(log: KernelLog, told: mpsc::Sender<Told>) {
    let mut complained = false;
    while !told.is_closed() {
        if let Err(error) = follow(&log, &told).await
            && !std::mem::replace(&mut complained, true)
        {
            let path = log.path.display();
            tracing::warn!(%error, %path, "the kernel's log can't be read: events must do");
        }
        tokio::time::sleep(REOPEN_AFTER).await;
    }
}

async fn follow(log: &KernelLog, told: &mpsc::Sender<Told>) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(flags).open(&log.path)?;
    let mut reader = Reader::new(log);
    loop {
        match take(&mut file, &mut reader.buffer)? {
            Taken::Some => reader.tell(told).await?,
            // The oldest records are gone: the next read goes on with the first that is left.
            Taken::Overrun => tracing::warn!("the kernel's log was faster than its reader"),
            Taken::Nothing => {
                reader.caught_up();
                if told.is_closed() {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Some,
    Nothing,
    Overrun,
}

fn take(from: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<Taken> {
    let mut chunk = [0; CHUNK];
    match from.read(&mut chunk) {
        Ok(0) => Ok(Taken::Nothing),
        Ok(bytes) => {
            buffer.extend_from_slice(&chunk[..bytes]);
            Ok(Taken::Some)
        }
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Taken::Nothing),
            io::ErrorKind::BrokenPipe => Ok(Taken::Overrun),
            _ => Err(error),
        },
    }
}

struct Reader<'l> {
    log: &'l KernelLog,
    buffer: Vec<u8>,
    seen: Option<Seen>,
    /// The highest number that was read.
    newest: u64,
    caught_up: bool,
    /// The present second, and what was taken in during it.
    budget: (Millis, u32),
}

impl<'l> Reader<'l> {
    fn new(log: &'l KernelLog) -> Self {
        let seen = disk::load(&path(&log.data)).unwrap_or_else(|error| {
            tracing::warn!(%error, "how far the kernel's log was read is forgotten");
            None
        });
        Self {
            log,
            buffer: Vec::new(),
            seen,
            newest: 0,
            caught_up: false,
            budget: (Millis::ZERO, 0),
        }
    }

    /// Tells of the whole lines in the buffer.
    async fn tell(&mut self, told: &mpsc::Sender<Told>) -> io::Result<()> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            let Some(found) = record(&text) else { continue };
            self.newest = self.newest.max(found.sequence);
            let Some(noticed) = noticed(&found) else { continue };
            if !self.is_new(found.sequence) || !self.affords() {
                continue;
            }
            if told.send(Told::Noticed(noticed)).await.is_err() {
                return Ok(());
            }
        }
        // A line without end is no record of the kernel's.
        if self.buffer.len() > CHUNK {
            self.buffer.clear();
        }
        Ok(())
    }

    /// Whether a record is to be told of; remembers it.
    fn is_new(&mut self, sequence: u64) -> bool {
        let boot = self.log.boot;
        let new = match self.seen {
            Some(seen) if seen.boot == boot => sequence > seen.sequence,
            Some(_) => true,
            None => self.caught_up,
        };
        if new {
            self.remember(sequence);
        }
        new
    }

    /// Everything that was there at the start was read.
    fn caught_up(&mut self) {
        if !std::mem::replace(&mut self.caught_up, true) && self.seen.is_none() {
            self.remember(self.newest);
        }
    }

    fn remember(&mut self, sequence: u64) {
        let seen = Seen { boot: self.log.boot, sequence };
        self.seen = Some(seen);
        if let Err(error) = disk::save(&path(&self.log.data), &seen) {
            tracing::warn!(%error, "how far the kernel's log was read can't be kept");
        }
    }

    fn affords(&mut self) -> bool {
        let second = Millis::from_secs(clock::boot_now().get() / 1_000);
        if self.budget.0 != second {
            if self.budget.1 > PER_SECOND_MAX {
                let dropped = self.budget.1 - PER_SECOND_MAX;
                tracing::warn!(dropped, "too many errors in the kernel's log");
            }
            self.budget = (second, 0);
        }
        self.budget.1 = self.budget.1.saturating_add(1);
        self.budget.1 <= PER_SECOND_MAX
    }
}

fn noticed(found: &LogRecord<'_>) -> Option<Noticed> {
    let error = xid(found.message)?;
    Some(Noticed {
        source: Source::KernelLog,
        at_unix: clock::unix_at_monotonic(found.micros),
        on: Place::Bus(error.bus),
        xid: error.xid,
        instance: error.instance,
        pid: error.pid,
    })
}

fn path(data: &Path) -> PathBuf {
    data.join("kernel-log.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const RECORD: &str = "2,77,1000,-;NVRM: Xid (PCI:0000:65:00): 31, pid=7, name=x, Ch 0\n";

    struct Script(VecDeque<io::Result<&'static str>>);

    impl Read for Script {
        fn read(&mut self, place: &mut [u8]) -> io::Result<usize> {
            let text = self.0.pop_front().unwrap_or(Err(io::ErrorKind::WouldBlock.into()))?;
            place[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }

    fn log(folder: &tempfile::TempDir, boot: u128) -> KernelLog {
        let boot = BootId::from_uuid(uuid::Uuid::from_u128(boot));
        KernelLog { path: folder.path().join("kmsg"), data: folder.path().to_owned(), boot }
    }

    #[test]
    fn an_overrun_is_survived_and_an_empty_log_waited_for() {
        let mut script = Script(VecDeque::from([
            Err(io::ErrorKind::BrokenPipe.into()),
            Ok("2,77,"),
            Err(io::ErrorKind::WouldBlock.into()),
        ]));
        let mut buffer = Vec::new();

        assert_eq!(take(&mut script, &mut buffer).unwrap(), Taken::Overrun);
        assert_eq!(take(&mut script, &mut buffer).unwrap(), Taken::Some);
        assert_eq!(take(&mut script, &mut buffer).unwrap(), Taken::Nothing);
        assert_eq!(buffer, b"2,77,");
    }

    #[tokio::test]
    async fn what_was_there_before_the_first_start_is_not_told_and_later_once() {
        let folder = tempfile::tempdir().unwrap();
        let (told, mut heard) = mpsc::channel(8);
        let first = log(&folder, 1);
        let mut reader = Reader::new(&first);
        reader.buffer.extend_from_slice(RECORD.as_bytes());
        reader.tell(&told).await.unwrap();
        reader.caught_up();
        reader.buffer.extend_from_slice(RECORD.replace("77", "80").as_bytes());
        reader.tell(&told).await.unwrap();
        assert!(matches!(heard.try_recv(), Ok(Told::Noticed(n)) if n.xid == 31));
        assert!(heard.try_recv().is_err(), "the older one is not told of");

        let mut again = Reader::new(&first);
        let both = [RECORD.replace("77", "80"), RECORD.replace("77", "81")].concat();
        again.buffer.extend_from_slice(both.as_bytes());
        again.tell(&told).await.unwrap();
        assert!(heard.try_recv().is_ok() && heard.try_recv().is_err(), "only the new one");

        let next = log(&folder, 2);
        let mut rebooted = Reader::new(&next);
        rebooted.buffer.extend_from_slice(RECORD.replace("77", "3").as_bytes());
        rebooted.tell(&told).await.unwrap();
        assert!(heard.try_recv().is_ok(), "a new boot counts from the beginning");
    }

    #[tokio::test]
    async fn a_flood_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (told, mut heard) = mpsc::channel(10_000);
        let log = log(&folder, 1);
        let mut reader = Reader::new(&log);
        reader.caught_up();
        // Within one second, unless the machine is very slow: then within two.
        for sequence in 0..500 {
            let line = RECORD.replace("77", &(sequence + 100).to_string());
            reader.buffer.extend_from_slice(line.as_bytes());
        }
        let began = clock::boot_now();
        reader.tell(&told).await.unwrap();
        let seconds = clock::boot_now().minus(began).get() / 1_000 + 2;

        let mut count = 0_u64;
        while heard.try_recv().is_ok() {
            count += 1;
        }
        assert!(count <= seconds * u64::from(PER_SECOND_MAX), "{count} in {seconds} s");
        assert!(count >= u64::from(PER_SECOND_MAX));
    }
}
