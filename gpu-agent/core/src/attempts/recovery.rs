//! Attempts after a restart of the agent, from the journal, the shepherds and the exit records on
//! disk.

use tessera_frames::cluster::{AttemptStatus, ExitRecord};
use tessera_model::life::Outcome;
use tessera_model::{AttemptId, Millis};

use super::super::ledger::{AttemptFacts, AttemptLedger, JournalRecord};
use super::{AttemptEffect, AttemptEntry, AttemptPhase, Attempts};
use crate::shepherd::never_ran_at;

/// The attempt that a shepherd reports to have.
pub use crate::shepherd::HeldAttempt;

/// What is on disk about a journalled attempt without a shepherd.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptTrace {
    /// Its exit record.
    Ended(ExitRecord),
    /// Its folder, which its shepherd created just before the start: it may have run.
    Begun,
    /// Nothing: it was never started.
    None,
}

impl Attempts {
    /// Restores the attempts of the last agent of this node.
    ///
    /// `held` has the attempts of shepherds, and `trace` reads the disk for the others. No
    /// processes of attempts without a shepherd may still run.
    pub fn recover(
        ledger: AttemptLedger,
        held: Vec<HeldAttempt>,
        trace: impl Fn(AttemptId) -> AttemptTrace,
        now_unix: Millis,
    ) -> (Self, Vec<AttemptEffect>) {
        let mut attempts =
            Self { entries: std::collections::BTreeMap::new(), tombstones: ledger.tombstones };
        let mut effects = Vec::new();
        for held in held {
            let known = ledger.live.get(&held.attempt).map(|(facts, _)| facts.clone());
            let phase = match held.status.clone() {
                // Its files are being opened.
                AttemptStatus::Journalled => AttemptPhase::Spawning,
                AttemptStatus::Running { pid, started_unix } => {
                    AttemptPhase::Running { pid, started_unix }
                }
                AttemptStatus::Ended(record) => AttemptPhase::Ended(record),
            };
            let facts = known.unwrap_or_else(|| {
                // The journal was damaged, but the process exists, which counts more.
                effects.push(AttemptEffect::RecordLater(JournalRecord::Accepted(facts_of(&held))));
                facts_of(&held)
            });
            attempts
                .entries
                .insert(held.attempt, AttemptEntry { facts, phase, stop: None, kill: None });
        }
        for (attempt, (facts, end)) in ledger.live {
            if attempts.entries.contains_key(&attempt) {
                continue;
            }
            let (record, note) = match (end, trace(attempt)) {
                (Some(record), _) | (None, AttemptTrace::Ended(record)) => (record, false),
                (None, AttemptTrace::Begun) => {
                    let detail = "its shepherd died while the agent was away".to_owned();
                    (never_ran_at(now_unix, Outcome::Lost, detail), true)
                }
                (None, AttemptTrace::None) => {
                    let detail = "the agent died before it was started".to_owned();
                    (never_ran_at(now_unix, Outcome::NotStarted, detail), true)
                }
            };
            if note {
                effects.push(AttemptEffect::RecordLater(JournalRecord::Ended {
                    attempt,
                    record: record.clone(),
                }));
            }
            let phase = AttemptPhase::Ended(record);
            attempts.entries.insert(attempt, AttemptEntry { facts, phase, stop: None, kill: None });
        }
        (attempts, effects)
    }
}

fn facts_of(held: &HeldAttempt) -> AttemptFacts {
    AttemptFacts {
        attempt: held.attempt,
        job: held.job,
        generation: held.generation,
        gpu: held.gpu.clone(),
        slot: held.slot,
        traceparent: None,
    }
}
