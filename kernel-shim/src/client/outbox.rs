//! Packs what stands in the ring into frames.

use std::sync::atomic::Ordering;

use tessera_kernel_queue::{Nanos, Sample};
use tessera_wire::kernel::{RECORDS_BYTES_MAX, RECORDS_MAX, Record};

use crate::counters::{MEMORY_PEAK, MEMORY_USED, PASSED};
use crate::kernels;
use crate::ring::{self, Entry, Kind};

/// What was told in this session so far.
#[derive(Debug, Default)]
pub struct Outbox {
    defined: u32,
    lost: u64,
    passed: u64,
    memory: (u64, u64),
    /// A definition that did not fit into the frame before.
    kept: Option<Record>,
}

impl Outbox {
    /// Begins a session: what stands in the ring is of no session, and what passed meanwhile is
    /// nobody's business.
    pub fn begin() -> Self {
        while ring::pop().is_some() {}
        let passed = PASSED.load(Ordering::Relaxed);
        Self { lost: ring::lost(), passed, ..Self::default() }
    }

    /// Fills a frame: kernels first, so that later records can name them; `false` if there is
    /// more than fits.
    pub fn fill(&mut self, records: &mut Vec<Record>) -> bool {
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

    fn next(&mut self) -> Option<Record> {
        while self.defined < kernels::count() {
            let number = self.defined;
            self.defined += 1;
            if let Some(kernel) = kernels::kernel(number) {
                return Some(Record::Define { number, kernel });
            }
        }
        if let Some(entry) = ring::pop() {
            return Some(record(entry));
        }
        let lost = ring::lost();
        if lost > self.lost {
            let records = lost - std::mem::replace(&mut self.lost, lost);
            return Some(Record::Lost { records });
        }
        None
    }

    /// Adds what is told now and then: memory and launches that passed.
    pub fn fill_slow(&mut self, records: &mut Vec<Record>) {
        let memory = (MEMORY_USED.load(Ordering::Relaxed), MEMORY_PEAK.load(Ordering::Relaxed));
        if memory != self.memory {
            self.memory = memory;
            records.push(Record::Memory { used: memory.0, peak: memory.1 });
        }
        let passed = PASSED.load(Ordering::Relaxed);
        if passed > self.passed {
            let launches = passed - std::mem::replace(&mut self.passed, passed);
            records.push(Record::Passed { launches });
        }
    }
}

fn record(entry: Entry) -> Record {
    let Entry { kind, kernel, launch, at, extra } = entry;
    let time = Nanos::new(at);
    match kind {
        Kind::Launch => {
            Record::Launch { launch, kernel: kernels::index(kernel), count: extra, at: time }
        }
        Kind::Want => {
            let beyond = extra.checked_sub(1);
            Record::Want { launch, kernel: kernels::index(kernel), beyond, at: time }
        }
        Kind::Started => {
            Record::Started { launch, kernel: kernels::index(kernel), grant: extra, at: time }
        }
        Kind::Done => Record::Done { at: time },
        Kind::Sync => Record::Sync { returns: extra.checked_sub(1), at: time },
        Kind::Failed => Record::Failed { launch },
        Kind::Sample => {
            let before = launch.checked_sub(1).and_then(|before| u32::try_from(before).ok());
            Record::Sample(Sample {
                kernel: kernels::index(kernel),
                before: before.map(kernels::index),
                took: time,
                gap: extra.checked_sub(1).map(Nanos::new),
            })
        }
    }
}
