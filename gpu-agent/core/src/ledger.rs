//! The journal: its records, their encoding, and the state that results from them.
//!
//! A damaged journal yields exactly the records before the damage: the newest may be lost, but none
//! is invented.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::ExitRecord;
use tessera_frames::codec::{self, EncodeError};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, JobId};

/// The first bytes of a journal; the digit is the version of its format.
pub const HEADER: [u8; 8] = *b"TSRJRNL1";
const PREFIX: usize = 8;

/// Maximum number of tombstones that are kept. One is forgotten only after this many others: by
/// then every connection that could still carry its launch has ended.
pub const TOMBSTONES_MAX: usize = 20_000;

/// The facts about an attempt that are needed after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFacts {
    /// The attempt's id.
    pub attempt: AttemptId,
    /// The job that it belongs to.
    pub job: JobId,
    /// The generation that it was launched under.
    pub generation: u64,
    /// The GPU that it uses.
    pub gpu: GpuId,
    /// The instance that it uses; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// W3C trace context of its launch.
    pub traceparent: Option<String>,
}

/// One record of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JournalRecord {
    /// The attempt may be started (rule F9).
    Accepted(AttemptFacts),
    /// It ended without a shepherd that could record that.
    Ended {
        /// The attempt's id.
        attempt: AttemptId,
        /// How it ended.
        record: ExitRecord,
    },
    /// The controller has committed its end.
    Acknowledged {
        /// The attempt's id.
        attempt: AttemptId,
    },
    /// A tombstone: it must never start here (rule F8).
    Tombstone {
        /// The attempt's id.
        attempt: AttemptId,
    },
}

/// Tombstones: attempts that must never start (again). The oldest is forgotten first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    set: BTreeSet<AttemptId>,
    order: VecDeque<AttemptId>,
}

impl Tombstones {
    /// Adds a tombstone; returns the one that is forgotten for it, if any.
    pub fn add(&mut self, attempt: AttemptId) -> Option<AttemptId> {
        if self.set.insert(attempt) {
            self.order.push_back(attempt);
        }
        let forgotten = (self.order.len() > TOMBSTONES_MAX).then(|| self.order.pop_front())?;
        forgotten.inspect(|attempt| {
            self.set.remove(attempt);
        })
    }

    /// Returns whether an attempt must never start.
    pub fn contains(&self, attempt: AttemptId) -> bool {
        self.set.contains(&attempt)
    }
}

/// The state that results from a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttemptLedger {
    /// Attempts whose end the controller has not committed, with ends that only the journal has.
    pub live: BTreeMap<AttemptId, (AttemptFacts, Option<ExitRecord>)>,
    /// Attempts that must never start.
    pub tombstones: Tombstones,
}

impl AttemptLedger {
    /// Applies one record.
    pub fn apply(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Accepted(facts) => {
                self.live.insert(facts.attempt, (facts.clone(), None));
            }
            JournalRecord::Ended { attempt, record } => {
                if let Some((_, end)) = self.live.get_mut(attempt) {
                    *end = Some(record.clone());
                }
            }
            JournalRecord::Acknowledged { attempt } => {
                self.live.remove(attempt);
                self.tombstones.add(*attempt);
            }
            JournalRecord::Tombstone { attempt } => {
                self.tombstones.add(*attempt);
            }
        }
    }

    /// Returns the shortest list of records that results in the same state.
    pub fn records(&self) -> Vec<JournalRecord> {
        let tombstones = self.tombstones.order.iter();
        let tombstones = tombstones.map(|attempt| JournalRecord::Tombstone { attempt: *attempt });
        let live = self.live.values().flat_map(|(facts, end)| {
            let ended =
                end.clone().map(|record| JournalRecord::Ended { attempt: facts.attempt, record });
            [Some(JournalRecord::Accepted(facts.clone())), ended].into_iter().flatten()
        });
        tombstones.chain(live).collect()
    }
}

/// Appends a record's bytes: length, CRC over length and body, body.
///
/// # Errors
///
/// If the record is larger than a frame, which no frame can cause.
pub fn encode(record: &JournalRecord, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; PREFIX]);
    if let Err(error) = codec::encode(record, bytes) {
        bytes.truncate(start);
        return Err(error);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the codec's limit is 64 KiB")]
    let length = ((bytes.len() - start - PREFIX) as u32).to_le_bytes();
    bytes[start..start + 4].copy_from_slice(&length);
    let crc = checksum(length, &bytes[start + PREFIX..]);
    bytes[start + 4..start + PREFIX].copy_from_slice(&crc);
    Ok(())
}

/// Reads a journal: the records before the first damage, and how many bytes they take.
pub fn decode(bytes: &[u8]) -> (Vec<JournalRecord>, usize) {
    let mut records = Vec::new();
    let Some(mut rest) = bytes.strip_prefix(&HEADER) else { return (records, 0) };
    while let Some((record, used)) = decode_one(rest) {
        records.push(record);
        rest = &rest[used..];
    }
    (records, bytes.len() - rest.len())
}

fn decode_one(bytes: &[u8]) -> Option<(JournalRecord, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let body = rest.get(..size)?;
    if checksum(*length, body) != *crc {
        return None;
    }
    Some((codec::decode(body).ok()?, PREFIX + size))
}

fn checksum(length: [u8; 4], body: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tessera_model::life::Outcome;

    fn id(number: u8) -> AttemptId {
        AttemptId::from_uuid(uuid::Uuid::from_u128(number.into()))
    }

    fn facts(number: u8) -> AttemptFacts {
        AttemptFacts {
            attempt: id(number),
            job: JobId::from_number(number.into()),
            generation: 1,
            gpu: "GPU-1".parse().unwrap(),
            slot: None,
            traceparent: None,
        }
    }

    fn record() -> impl Strategy<Value = JournalRecord> {
        (0..8_u8, 0..4_u8).prop_map(|(number, kind)| match kind {
            0 => JournalRecord::Accepted(facts(number)),
            1 => JournalRecord::Ended {
                attempt: id(number),
                record: crate::shepherd::never_ran_at(
                    tessera_model::Millis::ZERO,
                    Outcome::Lost,
                    "gone".into(),
                ),
            },
            2 => JournalRecord::Acknowledged { attempt: id(number) },
            _ => JournalRecord::Tombstone { attempt: id(number) },
        })
    }

    fn written(records: &[JournalRecord]) -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        records.iter().for_each(|record| encode(record, &mut bytes).unwrap());
        bytes
    }

    fn sum(records: &[JournalRecord]) -> AttemptLedger {
        let mut ledger = AttemptLedger::default();
        records.iter().for_each(|record| ledger.apply(record));
        ledger
    }

    proptest! {
        #[test]
        fn a_cut_journal_yields_a_prefix(
            records in prop::collection::vec(record(), 0..20), cut: prop::sample::Index,
        ) {
            let bytes = written(&records);
            let length = cut.index(bytes.len() + 1);

            let (read, used) = decode(&bytes[..length]);

            prop_assert_eq!(&read[..], &records[..read.len()]);
            prop_assert!(used <= length);
            if length == bytes.len() {
                prop_assert_eq!(read.len(), records.len());
            }
        }

        #[test]
        fn a_flipped_bit_yields_a_prefix_and_never_an_invention(
            records in prop::collection::vec(record(), 1..20),
            place: prop::sample::Index,
            bit in 0..8_u32,
        ) {
            let mut bytes = written(&records);
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;

            let (read, _) = decode(&bytes);

            prop_assert!(read.len() < records.len());
            prop_assert_eq!(&read[..], &records[..read.len()]);
        }

        #[test]
        fn random_bytes_are_never_a_record(noise in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = HEADER.to_vec();
            bytes.extend_from_slice(&noise);

            prop_assert!(decode(&bytes).0.is_empty());
            prop_assert!(decode(&noise).0.is_empty());
        }

        #[test]
        fn a_compacted_journal_results_in_the_same_state(records in prop::collection::vec(record(), 0..40)) {
            let whole = sum(&records);

            prop_assert_eq!(sum(&whole.records()), whole);
        }
    }

    #[test]
    fn an_acknowledged_attempt_must_never_start_again() {
        let ledger = sum(&[
            JournalRecord::Accepted(facts(1)),
            JournalRecord::Acknowledged { attempt: id(1) },
        ]);

        assert!(ledger.live.is_empty());
        assert!(ledger.tombstones.contains(id(1)));
    }

    #[test]
    fn tombstones_are_bounded_and_the_oldest_is_removed_first() {
        let mut tombstones = Tombstones::default();
        let id = |n: usize| AttemptId::from_uuid(uuid::Uuid::from_u128(u128::try_from(n).unwrap()));
        for number in 0..=TOMBSTONES_MAX {
            tombstones.add(id(number));
        }

        assert!(!tombstones.contains(id(0)));
        assert!(tombstones.contains(id(1)));
    }
}
