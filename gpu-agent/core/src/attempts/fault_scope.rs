//! Attempts that a fault of their GPU ends.
//!
//! An error that a program caused fails that program. An error of the GPU ends every attempt on it,
//! which uses up no retries.

use tessera_frames::cluster::ExitRecord;
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, Millis};

use super::{AttemptEffect, AttemptEntry, AttemptPhase, Attempts};
use crate::shepherd::KillReason;
use crate::shepherd::verdict::killed;

/// A fault that ends attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultScope<'s> {
    /// The GPU that it belongs to.
    pub gpu: &'s GpuId,
    /// The affected instance; the whole GPU if none is named.
    pub slot: Option<Slot>,
    /// The attempt of the affected process.
    pub named: Option<AttemptId>,
    /// The affected process.
    pub pid: Option<u32>,
    /// When it occurred, on the wall clock.
    pub at_unix: Millis,
    /// How ends are recorded.
    pub reason: KillReason,
}

impl Attempts {
    /// Ends the attempts that a fault affects, and returns them.
    pub fn struck(&mut self, fault: &FaultScope<'_>) -> (Vec<AttemptId>, Vec<AttemptEffect>) {
        let there: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.facts.gpu == *fault.gpu && entry.could_be_hit(fault))
            .map(|(attempt, entry)| (*attempt, entry))
            .collect();
        let own_pid = |entry: &AttemptEntry| matches!(entry.phase, AttemptPhase::Running { pid, .. } if Some(pid) == fault.pid);
        let whole = matches!(fault.reason, KillReason::GpuFailed { .. });
        let reported: Vec<_> = there
            .iter()
            .filter(|(attempt, entry)| fault.named == Some(*attempt) || own_pid(entry))
            .map(|(attempt, _)| *attempt)
            .collect();
        let hit: Vec<_> = if whole || reported.is_empty() {
            // On a partitioned GPU, an error without an instance may have affected any of them, so
            // it ends none. A GPU that isn't partitioned has one instance, itself.
            let at = |entry: &AttemptEntry| whole || entry.facts.slot == fault.slot;
            there.iter().filter(|(_, entry)| at(entry)).map(|(attempt, _)| *attempt).collect()
        } else {
            reported
        };
        let mut effects = Vec::new();
        for attempt in &hit {
            let Some(entry) = self.entries.get_mut(attempt) else { continue };
            entry.kill = entry.kill.or(Some(fault.reason));
            if !matches!(entry.phase, AttemptPhase::Journalling(_)) {
                effects.push(AttemptEffect::Kill(*attempt, fault.reason));
            }
        }
        (hit, effects)
    }
}

impl AttemptEntry {
    /// Returns whether the attempt ran when the fault occurred. A fault of one program can't affect
    /// one that was started later; a failed GPU affects all.
    fn could_be_hit(&self, fault: &FaultScope<'_>) -> bool {
        let whole = matches!(fault.reason, KillReason::GpuFailed { .. });
        match self.phase {
            AttemptPhase::Journalling(_) | AttemptPhase::Spawning => whole,
            AttemptPhase::Running { started_unix, .. } => whole || started_unix <= fault.at_unix,
            AttemptPhase::Ended(_) => false,
        }
    }

    /// Returns the end with the fault as its cause, if a fault caused it: an affected program often
    /// ends by itself before it is killed.
    pub(super) fn with_cause(&self, record: ExitRecord) -> ExitRecord {
        let Some(reason @ (KillReason::Xid(_) | KillReason::GpuFailed { .. })) = self.kill else {
            return record;
        };
        if record.outcome != Outcome::Failed {
            return record;
        }
        let (outcome, detail) = killed(reason);
        ExitRecord { outcome, detail, ..record }
    }
}
