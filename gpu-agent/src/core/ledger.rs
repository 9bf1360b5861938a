//! What the journal says: its records, their bytes, and the state that they add up to.
//!
//! A damaged journal yields the records before the damage and none besides: it may forget the
//! newest, it never invents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, JobId};
use tessera_wire::codec::{self, EncodeError};
use tessera_wire::frames::ExitRecord;

/// First bytes of a journal; the digit is the version of its format.
pub const HEADER: [u8; 8] = *b"TSRJRNL1";
const PREFIX: usize = 8;

/// Most attempts that are remembered as never to be started again. One is forgotten only after
/// this many others: by then every connection that could still carry its launch is long gone.
pub const TOMBSTONES_MAX: usize = 20_000;

/// What must be known of an attempt after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Of which job.
    pub job: JobId,
    /// The generation that it was launched under.
    pub generation: u64,
    /// The GPU that it uses.
    pub gpu: GpuId,
    /// The instance that it uses; `None` for a whole GPU.
    pub slot: Option<Slot>,
    /// W3C trace context that its launch continued.
    pub traceparent: Option<String>,
}

/// One record of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// The attempt may be started from now on (rule F9).
    Accepted(Facts),
    /// It ended without a shepherd that could have written it down.
    Ended {
        /// Which attempt.
        attempt: AttemptId,
        /// How.
        record: ExitRecord,
    },
    /// The controller has committed its end.
    Acknowledged {
        /// Which attempt.
        attempt: AttemptId,
    },
    /// It must never start here (rule F8).
    Tombstone {
        /// Which attempt.
        attempt: AttemptId,
    },
}

/// Attempts that must never start (again), oldest forgotten first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    set: BTreeSet<AttemptId>,
    order: VecDeque<AttemptId>,
}

impl Tombstones {
    /// Adds one; returns the one that is forgotten for it, if any.
    pub fn add(&mut self, attempt: AttemptId) -> Option<AttemptId> {
        if self.set.insert(attempt) {
            self.order.push_back(attempt);
        }
        let forgotten = (self.order.len() > TOMBSTONES_MAX).then(|| self.order.pop_front())?;
        forgotten.inspect(|attempt| {
            self.set.remove(attempt);
        })
    }

    /// Tells whether an attempt must never start.
    pub fn contains(&self, attempt: AttemptId) -> bool {
        self.set.contains(&attempt)
    }
}

/// The state that a journal adds up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// Attempts whose end isn't committed by the controller, with an end that only the journal
    /// knows.
    pub live: BTreeMap<AttemptId, (Facts, Option<ExitRecord>)>,
    /// Attempts that must never start.
    pub tombstones: Tombstones,
}

impl Ledger {
    /// Takes one record in.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Accepted(facts) => {
                self.live.insert(facts.attempt, (facts.clone(), None));
            }
            Record::Ended { attempt, record } => {
                if let Some((_, end)) = self.live.get_mut(attempt) {
                    *end = Some(record.clone());
                }
            }
            Record::Acknowledged { attempt } => {
                self.live.remove(attempt);
                self.tombstones.add(*attempt);
            }
            Record::Tombstone { attempt } => {
                self.tombstones.add(*attempt);
            }
        }
    }

    /// Returns the shortest list of records that adds up to the same state.
    pub fn records(&self) -> Vec<Record> {
        let tombstones = self.tombstones.order.iter();
        let tombstones = tombstones.map(|attempt| Record::Tombstone { attempt: *attempt });
        let live = self.live.values().flat_map(|(facts, end)| {
            let ended = end.clone().map(|record| Record::Ended { attempt: facts.attempt, record });
            [Some(Record::Accepted(facts.clone())), ended].into_iter().flatten()
        });
        tombstones.chain(live).collect()
    }
}

/// Appends a record's bytes: length, CRC over length and body, body.
///
/// # Errors
///
/// The record is larger than a frame: it can't come from one.
pub fn encode(record: &Record, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; PREFIX]);
    if let Err(error) = codec::encode(record, bytes) {
        bytes.truncate(start);
        return Err(error);
    }
    let length = u32::try_from(bytes.len() - start - PREFIX).unwrap_or(u32::MAX).to_le_bytes();
    bytes[start..start + 4].copy_from_slice(&length);
    let crc = checksum(length, &bytes[start + PREFIX..]);
    bytes[start + 4..start + PREFIX].copy_from_slice(&crc);
    Ok(())
}

/// Reads a journal: the records before the first damage, and how many bytes they take.
pub fn decode(bytes: &[u8]) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let Some(mut rest) = bytes.strip_prefix(&HEADER) else { return (records, 0) };
    while let Some((record, used)) = decode_one(rest) {
        records.push(record);
        rest = &rest[used..];
    }
    (records, bytes.len() - rest.len())
}

fn decode_one(bytes: &[u8]) -> Option<(Record, usize)> {
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

    fn facts(number: u8) -> Facts {
        Facts {
            attempt: id(number),
            job: JobId::from_number(number.into()),
            generation: 1,
            gpu: "GPU-1".parse().unwrap(),
            slot: None,
            traceparent: None,
        }
    }

    fn record() -> impl Strategy<Value = Record> {
        (0..8_u8, 0..4_u8).prop_map(|(number, kind)| match kind {
            0 => Record::Accepted(facts(number)),
            1 => Record::Ended {
                attempt: id(number),
                record: crate::shepherd::job::never_ran(Outcome::Lost, "gone".into()),
            },
            2 => Record::Acknowledged { attempt: id(number) },
            _ => Record::Tombstone { attempt: id(number) },
        })
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        records.iter().for_each(|record| encode(record, &mut bytes).unwrap());
        bytes
    }

    fn sum(records: &[Record]) -> Ledger {
        let mut ledger = Ledger::default();
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
        fn noise_is_never_a_record(noise in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = HEADER.to_vec();
            bytes.extend_from_slice(&noise);

            prop_assert!(decode(&bytes).0.is_empty());
            prop_assert!(decode(&noise).0.is_empty());
        }

        #[test]
        fn a_compacted_journal_adds_up_to_the_same(records in prop::collection::vec(record(), 0..40)) {
            let whole = sum(&records);

            prop_assert_eq!(sum(&whole.records()), whole);
        }
    }

    #[test]
    fn what_was_acknowledged_must_never_start_again() {
        let ledger = sum(&[Record::Accepted(facts(1)), Record::Acknowledged { attempt: id(1) }]);

        assert!(ledger.live.is_empty());
        assert!(ledger.tombstones.contains(id(1)));
    }

    #[test]
    fn tombstones_are_bounded_and_the_oldest_goes_first() {
        let mut tombstones = Tombstones::default();
        let id = |n: usize| AttemptId::from_uuid(uuid::Uuid::from_u128(u128::try_from(n).unwrap()));
        for number in 0..=TOMBSTONES_MAX {
            tombstones.add(id(number));
        }

        assert!(!tombstones.contains(id(0)));
        assert!(tombstones.contains(id(1)));
    }
}
