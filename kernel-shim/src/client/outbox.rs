//! Packs the records of the ring into frames.

use std::sync::atomic::Ordering;

use tessera_frames::kernel::{PROTOCOL_WITH_NEEDS, RECORDS_BYTES_MAX, RECORDS_MAX, ShimRecord};
use tessera_kernel_queue::{KernelSample, Nanos};

use crate::counters::{MEMORY_PEAK, MEMORY_USED, PASSED};
use crate::ring::{self, RecordKind, RingRecord};
use crate::{kernel_catalog, streams};

/// What was reported in this session so far.
#[derive(Debug, Default)]
pub struct RecordOutbox {
    defined: u32,
    lost: u64,
    passed: u64,
    memory: (u64, u64),
    streams: u32,
    /// Whether the queue knows records about needs.
    sends_needs: bool,
    /// Where the search for changed needs goes on.
    need_next: u32,
    /// A record that did not fit into the last frame.
    kept: Option<ShimRecord>,
}

impl RecordOutbox {
    /// Begins a session of a protocol version. Records in the ring and launches that passed belong to no
    /// session and are skipped.
    pub fn begin(protocol: u16) -> Self {
        while ring::pop().is_some() {}
        let passed = PASSED.load(Ordering::Relaxed);
        let sends_needs = protocol >= PROTOCOL_WITH_NEEDS;
        Self { lost: ring::lost(), passed, sends_needs, ..Self::default() }
    }

    /// Fills a frame, with definitions of kernels first. Returns `false` if more records are left.
    pub fn fill(&mut self, records: &mut Vec<ShimRecord>) -> bool {
        let mut bytes = 0;
        loop {
            if records.len() >= RECORDS_MAX {
                return false;
            }
            let Some(record) = self.kept.take().or_else(|| self.next()) else { return true };
            bytes += record.frame_bytes();
            if bytes > RECORDS_BYTES_MAX && !records.is_empty() {
                self.kept = Some(record);
                return false;
            }
            records.push(record);
        }
    }

    fn next(&mut self) -> Option<ShimRecord> {
        while self.defined < kernel_catalog::count() {
            let number = self.defined;
            self.defined += 1;
            if let Some(kernel) = kernel_catalog::kernel(number) {
                return Some(ShimRecord::Define { number, kernel });
            }
        }
        // Before the requests that depend on them.
        if self.sends_needs
            && let Some((kernel, need)) = kernel_catalog::take_changed_need(&mut self.need_next)
        {
            return Some(ShimRecord::Need { kernel, need });
        }
        if let Some(entry) = ring::pop() {
            return Some(record(entry));
        }
        let lost = ring::lost();
        if lost > self.lost {
            let records = lost - std::mem::replace(&mut self.lost, lost);
            return Some(ShimRecord::Lost { records });
        }
        None
    }

    /// Adds the regular reports: memory, streams and launches that passed.
    pub fn fill_slow(&mut self, records: &mut Vec<ShimRecord>) {
        let memory = (MEMORY_USED.load(Ordering::Relaxed), MEMORY_PEAK.load(Ordering::Relaxed));
        if memory != self.memory {
            self.memory = memory;
            records.push(ShimRecord::Memory { used: memory.0, peak: memory.1 });
        }
        let streams = streams::used();
        if self.sends_needs && streams != self.streams {
            self.streams = streams;
            records.push(ShimRecord::Streams { streams });
        }
        let passed = PASSED.load(Ordering::Relaxed);
        if passed > self.passed {
            let launches = passed - std::mem::replace(&mut self.passed, passed);
            records.push(ShimRecord::Passed { launches });
        }
    }
}

fn record(entry: RingRecord) -> ShimRecord {
    let RingRecord { kind, kernel, launch, at, extra } = entry;
    let time = Nanos::new(at);
    match kind {
        RecordKind::Launch => ShimRecord::Launch {
            launch,
            kernel: kernel_catalog::index(kernel),
            count: extra,
            at: time,
        },
        RecordKind::Request => {
            let beyond = extra.checked_sub(1);
            ShimRecord::Request { launch, kernel: kernel_catalog::index(kernel), beyond, at: time }
        }
        RecordKind::Started => ShimRecord::Started {
            launch,
            kernel: kernel_catalog::index(kernel),
            grant: extra,
            at: time,
        },
        RecordKind::Done => ShimRecord::Done { at: time },
        RecordKind::Sync => ShimRecord::Sync { returns: extra.checked_sub(1), at: time },
        RecordKind::Failed => ShimRecord::Failed { launch },
        RecordKind::Recalled => ShimRecord::Recalled { at: time },
        RecordKind::Sample => {
            let before = launch.checked_sub(1).and_then(|before| u32::try_from(before).ok());
            ShimRecord::Sample(KernelSample {
                kernel: kernel_catalog::index(kernel),
                before: before.map(kernel_catalog::index),
                took: time,
                gap: extra.checked_sub(1).map(Nanos::new),
            })
        }
    }
}
