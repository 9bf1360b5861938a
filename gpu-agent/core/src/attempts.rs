//! Every attempt of a node, from its launch order to the controller's acknowledgement.
//!
//! Rules of the fencing protocol that live here:
//!
//! - Launches need this node's generation (F7) and a lease.
//! - A tombstone refuses a launch forever (F8).
//! - An attempt is journalled before it is started, and an order that is repeated is only reported
//!   (F9).
//! - Ends are kept until they are acknowledged (F12).
//!
//! Nothing is started twice: every result of [`Attempts::launch`] other than a journal entry leaves
//! a tombstone.

mod fault_scope;
mod recovery;
mod refusal;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, ExitRecord, LaunchOrder, StopCause, ToController,
};
use tessera_model::life::Outcome;
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, GpuId, Millis};

use super::ledger::{AttemptFacts, JournalRecord, Tombstones};
use super::telemetry::meter::GpuTenancy;
use crate::shepherd::KillReason;
use crate::shepherd::never_ran_at;
use crate::shepherd::verdict::killed;

pub use fault_scope::FaultScope;
pub use recovery::{AttemptTrace, HeldAttempt};
pub use refusal::{LaunchRefusal, PlacementRefusal};

/// Maximum number of attempts that a node holds, running or ended and not yet acknowledged. It is
/// far above what its GPUs can run; a controller that sends more is faulty.
const ATTEMPTS_MAX: usize = 4096;

/// The actions for the caller, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptEffect {
    /// Send a frame, if a controller is connected.
    Send(ToController),
    /// Write a record to disk, and carry out the rest only after that.
    Record(JournalRecord, Vec<AttemptEffect>),
    /// Write a record to disk at any later time.
    RecordLater(JournalRecord),
    /// Write a record to disk soon, together with others, and carry out the rest after that.
    RecordSoon(JournalRecord, Vec<AttemptEffect>),
    /// The attempt's end is journalled, so its shepherd may forget it.
    EndJournalled(AttemptId),
    /// The attempt is journalled: [`Attempts::journalled`] returns what follows.
    Journalled(AttemptId),
    /// Hand the attempt to a shepherd.
    Spawn(Box<LaunchOrder>),
    /// Let the attempt's shepherd end it.
    Stop(AttemptId, StopCause),
    /// Let the attempt's shepherd kill it.
    Kill(AttemptId, KillReason),
    /// Send the attempt's shepherd its new time limit.
    Limit(AttemptId, Option<Millis>),
}

/// The facts by which launches are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConditions {
    /// The node's generation.
    pub generation: u64,
    /// Whether the node holds a lease now.
    pub leased: bool,
    /// The wall clock, for records.
    pub now_unix: Millis,
}

#[derive(Clone, Debug, PartialEq)]
enum AttemptPhase {
    /// Its record is on its way to the disk.
    Journalling(Box<LaunchOrder>),
    /// With a shepherd that hasn't reported yet that the program runs.
    Spawning,
    Running {
        pid: u32,
        started_unix: Millis,
    },
    Ended(ExitRecord),
}

#[derive(Clone, Debug, PartialEq)]
struct AttemptEntry {
    facts: AttemptFacts,
    phase: AttemptPhase,
    stop: Option<StopCause>,
    kill: Option<KillReason>,
}

/// All attempts of a node.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    entries: BTreeMap<AttemptId, AttemptEntry>,
    tombstones: Tombstones,
}

impl Attempts {
    /// Checks a launch order. `placement` is an error if something is wrong with the slice.
    pub fn launch(
        &mut self,
        order: Box<LaunchOrder>,
        facts: AttemptFacts,
        placement: Result<(), PlacementRefusal>,
        standing: LaunchConditions,
    ) -> Vec<AttemptEffect> {
        let attempt = order.attempt;
        if let Some(entry) = self.entries.get(&attempt) {
            return vec![entry.report()];
        }
        if self.tombstones.contains(attempt) {
            return vec![AttemptEffect::Send(ToController::Tombstoned { attempt })];
        }
        if let Err(refusal) = self.admit(&order, placement, standing) {
            return self.refuse(facts, &refusal, standing.now_unix);
        }
        let record = JournalRecord::Accepted(facts.clone());
        let phase = AttemptPhase::Journalling(order);
        self.entries.insert(attempt, AttemptEntry { facts, phase, stop: None, kill: None });
        vec![AttemptEffect::Record(record, vec![AttemptEffect::Journalled(attempt)])]
    }

    fn admit(
        &self,
        order: &LaunchOrder,
        placement: Result<(), PlacementRefusal>,
        standing: LaunchConditions,
    ) -> Result<(), LaunchRefusal> {
        if order.generation != standing.generation {
            let (requested, own) = (order.generation, standing.generation);
            return Err(LaunchRefusal::OtherGeneration { own, requested });
        }
        if !standing.leased {
            return Err(LaunchRefusal::NoLease);
        }
        if self.entries.len() >= ATTEMPTS_MAX {
            return Err(LaunchRefusal::TooManyAttempts);
        }
        Ok(placement?)
    }

    /// Ends an attempt that will not be started. The tombstone is written first: a repeated order
    /// must not start an attempt that was reported as ended.
    fn refuse(
        &mut self,
        facts: AttemptFacts,
        refusal: &LaunchRefusal,
        now_unix: Millis,
    ) -> Vec<AttemptEffect> {
        let attempt = facts.attempt;
        let record = never_ran_at(now_unix, refusal.outcome(), refusal.to_string());
        let entry =
            AttemptEntry { facts, phase: AttemptPhase::Ended(record), stop: None, kill: None };
        let report = entry.report();
        self.tombstones.add(attempt);
        self.entries.insert(attempt, entry);
        vec![AttemptEffect::Record(JournalRecord::Tombstone { attempt }, vec![report])]
    }

    /// Continues with an attempt whose record is on disk.
    pub fn journalled(
        &mut self,
        attempt: AttemptId,
        standing: LaunchConditions,
    ) -> Vec<AttemptEffect> {
        let Some(entry) = self.entries.get_mut(&attempt) else { return Vec::new() };
        let AttemptPhase::Journalling(order) = &entry.phase else { return Vec::new() };
        let over = match (entry.kill, entry.stop) {
            (Some(reason), _) => Some(killed(reason)),
            (None, Some(StopCause::Cancel)) => Some((Outcome::Cancelled, String::new())),
            (
                None,
                Some(StopCause::Preempt | StopCause::Reshare | StopCause::Move | StopCause::Grow),
            ) => Some((Outcome::Preempted, String::new())),
            (None, None) if !standing.leased || order.generation != standing.generation => {
                Some((Outcome::NotStarted, "the node's lease expired".to_owned()))
            }
            (None, None) => None,
        };
        match over {
            Some((outcome, detail)) => {
                self.end_here(attempt, never_ran_at(standing.now_unix, outcome, detail))
            }
            None => {
                let order = order.clone();
                entry.phase = AttemptPhase::Spawning;
                vec![AttemptEffect::Spawn(order)]
            }
        }
    }

    /// Ends an attempt whose record could not be written to disk: it must not be started.
    pub fn not_journalled(
        &mut self,
        attempt: AttemptId,
        reason: &str,
        now_unix: Millis,
    ) -> Vec<AttemptEffect> {
        let Some(entry) = self.entries.get_mut(&attempt) else { return Vec::new() };
        let detail = format!("the node can't write its journal: {reason}");
        entry.phase = AttemptPhase::Ended(never_ran_at(now_unix, Outcome::NotStarted, detail));
        let report = entry.report();
        self.tombstones.add(attempt);
        vec![report]
    }

    /// Records that a program runs.
    pub fn started(
        &mut self,
        attempt: AttemptId,
        pid: u32,
        started_unix: Millis,
    ) -> Vec<AttemptEffect> {
        let Some(entry) = self.entries.get_mut(&attempt) else { return Vec::new() };
        if !matches!(entry.phase, AttemptPhase::Spawning) {
            return Vec::new();
        }
        entry.phase = AttemptPhase::Running { pid, started_unix };
        vec![entry.report()]
    }

    /// Records an end that a shepherd reports: it is sent at once, and journalled at the same time.
    /// The report doesn't have to wait for the journal. If the machine fails in between, either the
    /// controller has committed the end, or the result is that of a failure just before.
    pub fn ended_held(&mut self, attempt: AttemptId, record: ExitRecord) -> Vec<AttemptEffect> {
        let note = JournalRecord::Ended { attempt, record: record.clone() };
        match self.ended(attempt, record) {
            effects if effects.is_empty() => vec![AttemptEffect::EndJournalled(attempt)],
            mut effects => {
                effects.push(AttemptEffect::RecordSoon(
                    note,
                    vec![AttemptEffect::EndJournalled(attempt)],
                ));
                effects
            }
        }
    }

    /// Records an end that is on disk.
    pub fn ended(&mut self, attempt: AttemptId, record: ExitRecord) -> Vec<AttemptEffect> {
        let Some(entry) = self.entries.get_mut(&attempt) else { return Vec::new() };
        if matches!(entry.phase, AttemptPhase::Ended(_)) {
            return Vec::new();
        }
        entry.phase = AttemptPhase::Ended(entry.with_cause(record));
        let mut effects = vec![entry.report()];
        if entry.kill == Some(KillReason::Revoked) {
            effects.extend(self.add_tombstone(attempt));
        }
        effects
    }

    /// Ends an attempt without a shepherd that could record its end.
    pub fn end_here(&mut self, attempt: AttemptId, record: ExitRecord) -> Vec<AttemptEffect> {
        let note = JournalRecord::Ended { attempt, record: record.clone() };
        match self.ended(attempt, record) {
            effects if effects.is_empty() => effects,
            effects => vec![AttemptEffect::Record(note, effects)],
        }
    }

    /// Ends an attempt at the controller's request.
    pub fn stop(&mut self, attempt: AttemptId, cause: StopCause) -> Vec<AttemptEffect> {
        let Some(entry) = self.entries.get_mut(&attempt) else {
            return self.answer_for_unknown(attempt);
        };
        match &entry.phase {
            AttemptPhase::Ended(_) => vec![entry.report()],
            // The request is kept until the attempt's record is on disk.
            AttemptPhase::Journalling(_) => {
                entry.stop = entry.stop.or(Some(cause));
                Vec::new()
            }
            AttemptPhase::Spawning | AttemptPhase::Running { .. } => {
                entry.stop = entry.stop.or(Some(cause));
                vec![AttemptEffect::Stop(attempt, cause)]
            }
        }
    }

    /// Gives a running attempt another time limit; any other keeps the limit of its launch.
    pub fn limit(&self, attempt: AttemptId, limit: Option<Millis>) -> Vec<AttemptEffect> {
        match self.entries.get(&attempt).map(|entry| &entry.phase) {
            Some(AttemptPhase::Running { .. }) => vec![AttemptEffect::Limit(attempt, limit)],
            _ => Vec::new(),
        }
    }

    fn answer_for_unknown(&self, attempt: AttemptId) -> Vec<AttemptEffect> {
        if self.tombstones.contains(attempt) {
            vec![AttemptEffect::Send(ToController::Tombstoned { attempt })]
        } else {
            Vec::new()
        }
    }

    /// Ensures that an attempt never starts here (rule F8).
    pub fn revoke(&mut self, attempt: AttemptId) -> Vec<AttemptEffect> {
        let Some(entry) = self.entries.get_mut(&attempt) else {
            return self.add_tombstone(attempt);
        };
        match &entry.phase {
            AttemptPhase::Ended(_) => {
                let mut effects = vec![entry.report()];
                effects.extend(self.add_tombstone(attempt));
                effects
            }
            AttemptPhase::Journalling(_) => {
                entry.kill = Some(KillReason::Revoked);
                Vec::new()
            }
            AttemptPhase::Spawning | AttemptPhase::Running { .. } => {
                entry.kill = Some(KillReason::Revoked);
                vec![AttemptEffect::Kill(attempt, KillReason::Revoked)]
            }
        }
    }

    fn add_tombstone(&mut self, attempt: AttemptId) -> Vec<AttemptEffect> {
        let reported = AttemptEffect::Send(ToController::Tombstoned { attempt });
        self.tombstones.add(attempt);
        vec![AttemptEffect::Record(JournalRecord::Tombstone { attempt }, vec![reported])]
    }

    /// Forgets an attempt whose end the controller has committed; returns whether it was known.
    pub fn acknowledged(&mut self, attempt: AttemptId) -> Vec<AttemptEffect> {
        let over =
            self.entries.get(&attempt).is_some_and(|e| matches!(e.phase, AttemptPhase::Ended(_)));
        if !over {
            return Vec::new();
        }
        self.entries.remove(&attempt);
        self.tombstones.add(attempt);
        vec![AttemptEffect::RecordLater(JournalRecord::Acknowledged { attempt })]
    }

    /// Kills every attempt of another generation than `generation` (rule F11).
    pub fn kill_other_generations(&mut self, generation: u64) -> Vec<AttemptEffect> {
        let reason = KillReason::OldGeneration;
        let mut effects = Vec::new();
        for (attempt, entry) in &mut self.entries {
            if entry.facts.generation == generation || matches!(entry.phase, AttemptPhase::Ended(_))
            {
                continue;
            }
            entry.kill = entry.kill.or(Some(reason));
            if !matches!(entry.phase, AttemptPhase::Journalling(_)) {
                effects.push(AttemptEffect::Kill(*attempt, reason));
            }
        }
        effects
    }

    /// Returns whether anything of another generation than `generation` may still run.
    pub fn others_alive(&self, generation: u64) -> bool {
        self.alive().any(|entry| entry.facts.generation != generation)
    }

    fn alive(&self) -> impl Iterator<Item = &AttemptEntry> {
        self.entries.values().filter(|entry| !matches!(entry.phase, AttemptPhase::Ended(_)))
    }

    /// Returns whether an attempt that may run uses a slot (or, with MIG off, the GPU).
    pub fn uses(&self, gpu: &GpuId, slot: Option<Slot>) -> bool {
        self.alive()
            .any(|entry| entry.facts.gpu == *gpu && (slot.is_none() || entry.facts.slot == slot))
    }

    /// Returns the attempts that may be running.
    pub fn alive_ids(&self) -> Vec<AttemptId> {
        self.alive().map(|entry| entry.facts.attempt).collect()
    }

    /// Returns how many attempts may be running.
    pub fn alive_count(&self) -> usize {
        self.alive().count()
    }

    /// Returns a report for each attempt.
    pub fn reports(&self) -> Vec<ToController> {
        self.entries.values().map(|entry| ToController::Attempt(entry.attempt_report())).collect()
    }

    /// Returns the facts about an attempt that has not ended.
    pub fn facts_of_alive(&self, attempt: AttemptId) -> Option<&AttemptFacts> {
        let entry = self.entries.get(&attempt)?;
        (!matches!(entry.phase, AttemptPhase::Ended(_))).then_some(&entry.facts)
    }

    /// Returns the time span in which an attempt has its GPU; `None` if its program never ran.
    pub fn tenancy(&self, attempt: AttemptId) -> Option<GpuTenancy> {
        self.entries.get(&attempt)?.tenancy()
    }

    /// Returns the same for every attempt.
    pub fn tenancies(&self) -> Vec<GpuTenancy> {
        self.entries.values().filter_map(AttemptEntry::tenancy).collect()
    }

    /// Returns whether an attempt is known here: running, or ended and not yet acknowledged.
    pub fn holds(&self, attempt: AttemptId) -> bool {
        self.entries.contains_key(&attempt)
    }

    /// Returns whether an attempt may still write output.
    pub fn is_alive(&self, attempt: AttemptId) -> bool {
        self.entries
            .get(&attempt)
            .is_some_and(|entry| !matches!(entry.phase, AttemptPhase::Ended(_)))
    }
}

impl AttemptEntry {
    fn tenancy(&self) -> Option<GpuTenancy> {
        let (began, ended) = match &self.phase {
            AttemptPhase::Journalling(_) | AttemptPhase::Spawning => return None,
            AttemptPhase::Running { started_unix, .. } => (*started_unix, None),
            AttemptPhase::Ended(record) if record.started_unix == Millis::ZERO => return None,
            AttemptPhase::Ended(record) => (record.started_unix, Some(record.ended_unix)),
        };
        let AttemptFacts { attempt, job, gpu, slot, .. } = &self.facts;
        Some(GpuTenancy {
            attempt: *attempt,
            job: *job,
            gpu: gpu.clone(),
            slot: *slot,
            began,
            ended,
        })
    }

    fn report(&self) -> AttemptEffect {
        AttemptEffect::Send(ToController::Attempt(self.attempt_report()))
    }

    fn attempt_report(&self) -> AttemptReport {
        let status = match &self.phase {
            AttemptPhase::Journalling(_) | AttemptPhase::Spawning => AttemptStatus::Journalled,
            AttemptPhase::Running { pid, started_unix } => {
                AttemptStatus::Running { pid: *pid, started_unix: *started_unix }
            }
            AttemptPhase::Ended(record) => AttemptStatus::Ended(record.clone()),
        };
        AttemptReport { attempt: self.facts.attempt, job: self.facts.job, status }
    }
}
