//! Reads GPU errors from the kernel's log. This works even when the management library hangs.
//!
//! `/dev/kmsg` starts with the oldest record that the kernel still has. Records that an earlier agent
//! of this boot has read are skipped. At the first start ever, all old records are skipped.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tessera_model::{BootId, Millis};
use tokio::sync::mpsc;

use crate::disk;
use crate::messages::gpu::{DriverNotice, ErrorSource, GpuAddress, ReportedError};
use crate::sys::clock;
use tessera_agent_core::kernel_log::{LogRecord, record, xid};

/// Size of a read in bytes: more than the longest record of the kernel.
const CHUNK: usize = 8192;
/// Pause between reads. Errors must be noticed soon, but not at once.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Most errors that are handled within a second. A failing GPU may repeat an error by the thousand.
const PER_SECOND_MAX: u32 = 100;
/// Pause before the log is opened again after it failed.
const REOPEN_AFTER: Duration = Duration::from_secs(30);

/// The position up to which the log was read. It is stored for the next agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogPosition {
    boot: BootId,
    sequence: u64,
}

/// The location of the log and of its reader's state.
#[derive(Clone, Debug)]
pub struct KernelLog {
    /// The path of the log.
    pub path: PathBuf,
    /// The data folder.
    pub data: PathBuf,
    /// This boot.
    pub boot: BootId,
}

/// Reports the GPUs' errors for as long as there is a receiver.
pub async fn run(log: KernelLog, notices: mpsc::Sender<DriverNotice>) {
    let mut complained = false;
    while !notices.is_closed() {
        if let Err(error) = follow(&log, &notices).await
            && !std::mem::replace(&mut complained, true)
        {
            let path = log.path.display();
            tracing::warn!(%error, %path, "cannot read the kernel's log: only NVML reports errors");
        }
        tokio::time::sleep(REOPEN_AFTER).await;
    }
}

async fn follow(log: &KernelLog, notices: &mpsc::Sender<DriverNotice>) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(flags).open(&log.path)?;
    let mut reader = LogReader::new(log);
    loop {
        match read_chunk(&mut file, &mut reader.buffer)? {
            LogRead::Some => reader.report_errors(notices).await?,
            // The oldest records are gone: the next read continues with the first one that is left.
            LogRead::Overrun => tracing::warn!(
                "records of the kernel's log were lost: it was faster than its reader"
            ),
            LogRead::Nothing => {
                reader.caught_up();
                if notices.is_closed() {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogRead {
    Some,
    Nothing,
    Overrun,
}

fn read_chunk(from: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<LogRead> {
    let mut chunk = [0; CHUNK];
    match from.read(&mut chunk) {
        Ok(0) => Ok(LogRead::Nothing),
        Ok(bytes) => {
            buffer.extend_from_slice(&chunk[..bytes]);
            Ok(LogRead::Some)
        }
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(LogRead::Nothing),
            io::ErrorKind::BrokenPipe => Ok(LogRead::Overrun),
            _ => Err(error),
        },
    }
}

struct LogReader<'l> {
    log: &'l KernelLog,
    buffer: Vec<u8>,
    seen: Option<LogPosition>,
    /// The highest sequence number that was read.
    newest: u64,
    caught_up: bool,
    /// The current second, and the number of errors in it.
    budget: (Millis, u32),
}

impl<'l> LogReader<'l> {
    fn new(log: &'l KernelLog) -> Self {
        let seen = disk::load(&path(&log.data)).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot load the position in the kernel's log");
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

    /// Reports the errors in the whole lines in the buffer.
    async fn report_errors(&mut self, notices: &mpsc::Sender<DriverNotice>) -> io::Result<()> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            let Some(found) = record(&text) else { continue };
            self.newest = self.newest.max(found.sequence);
            let Some(noticed) = noticed(&found) else { continue };
            if !self.is_new(found.sequence) || !self.is_within_limit() {
                continue;
            }
            if notices.send(DriverNotice::Noticed(noticed)).await.is_err() {
                return Ok(());
            }
        }
        // A line without an end is not a record of the kernel.
        if self.buffer.len() > CHUNK {
            self.buffer.clear();
        }
        Ok(())
    }

    /// Returns whether a record is new, and stores its position.
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

    /// Records that all records from before the start were read.
    fn caught_up(&mut self) {
        if !std::mem::replace(&mut self.caught_up, true) && self.seen.is_none() {
            self.remember(self.newest);
        }
    }

    fn remember(&mut self, sequence: u64) {
        let seen = LogPosition { boot: self.log.boot, sequence };
        self.seen = Some(seen);
        if let Err(error) = disk::save(&path(&self.log.data), &seen) {
            tracing::warn!(%error, "cannot store the position in the kernel's log");
        }
    }

    fn is_within_limit(&mut self) -> bool {
        let second = Millis::from_secs(clock::boot_now().get() / 1_000);
        if self.budget.0 != second {
            if self.budget.1 > PER_SECOND_MAX {
                let dropped = self.budget.1 - PER_SECOND_MAX;
                tracing::warn!(dropped, "too many errors in the kernel's log: some were dropped");
            }
            self.budget = (second, 0);
        }
        self.budget.1 = self.budget.1.saturating_add(1);
        self.budget.1 <= PER_SECOND_MAX
    }
}

fn noticed(found: &LogRecord<'_>) -> Option<ReportedError> {
    let error = xid(found.message)?;
    Some(ReportedError {
        source: ErrorSource::KernelLog,
        at_unix: clock::unix_at_monotonic(found.micros),
        on: GpuAddress::Bus(error.bus),
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

        assert_eq!(read_chunk(&mut script, &mut buffer).unwrap(), LogRead::Overrun);
        assert_eq!(read_chunk(&mut script, &mut buffer).unwrap(), LogRead::Some);
        assert_eq!(read_chunk(&mut script, &mut buffer).unwrap(), LogRead::Nothing);
        assert_eq!(buffer, b"2,77,");
    }

    #[tokio::test]
    async fn what_was_there_before_the_first_start_is_not_told_and_later_once() {
        let folder = tempfile::tempdir().unwrap();
        let (notices, mut received) = mpsc::channel(8);
        let first = log(&folder, 1);
        let mut reader = LogReader::new(&first);
        reader.buffer.extend_from_slice(RECORD.as_bytes());
        reader.report_errors(&notices).await.unwrap();
        reader.caught_up();
        reader.buffer.extend_from_slice(RECORD.replace("77", "80").as_bytes());
        reader.report_errors(&notices).await.unwrap();
        assert!(matches!(received.try_recv(), Ok(DriverNotice::Noticed(n)) if n.xid == 31));
        assert!(received.try_recv().is_err(), "the older line is not reported");

        let mut again = LogReader::new(&first);
        let both = [RECORD.replace("77", "80"), RECORD.replace("77", "81")].concat();
        again.buffer.extend_from_slice(both.as_bytes());
        again.report_errors(&notices).await.unwrap();
        assert!(received.try_recv().is_ok() && received.try_recv().is_err(), "only the new one");

        let next = log(&folder, 2);
        let mut rebooted = LogReader::new(&next);
        rebooted.buffer.extend_from_slice(RECORD.replace("77", "3").as_bytes());
        rebooted.report_errors(&notices).await.unwrap();
        assert!(received.try_recv().is_ok(), "a new boot counts from the beginning");
    }

    #[tokio::test]
    async fn a_flood_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (notices, mut received) = mpsc::channel(10_000);
        let log = log(&folder, 1);
        let mut reader = LogReader::new(&log);
        reader.caught_up();
        // Within one second, unless the machine is very slow: then within two.
        for sequence in 0..500 {
            let line = RECORD.replace("77", &(sequence + 100).to_string());
            reader.buffer.extend_from_slice(line.as_bytes());
        }
        let began = clock::boot_now();
        reader.report_errors(&notices).await.unwrap();
        let seconds = clock::boot_now().minus(began).get() / 1_000 + 2;

        let mut count = 0_u64;
        while received.try_recv().is_ok() {
            count += 1;
        }
        assert!(count <= seconds * u64::from(PER_SECOND_MAX), "{count} in {seconds} s");
        assert!(count >= u64::from(PER_SECOND_MAX));
    }
}
