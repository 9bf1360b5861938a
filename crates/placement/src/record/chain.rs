//! The state after the records of a chain, the same for its writer and its reader.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_model::{JobId, Millis};

use super::answers::Answers;
use super::gpu_kind::{GpuKind, GpuKindRecord};
use super::{
    BadRecord, DecidingPolicy, FORMAT, FORMAT_MIN, GpuRecord, RecordedDecision, RoundRecord,
};
use crate::decision::Decision;
use crate::view::{ClusterView, GpuView, MigView, QueuedJob};

/// The cluster, the queue and the answers after a record of a chain.
#[derive(Clone, Debug)]
pub(super) struct ChainState {
    pub(super) policy: DecidingPolicy,
    /// Number of its records.
    pub(super) length: u64,
    /// When its first record was made.
    pub(super) began: Millis,
    pub(super) kinds: Vec<GpuKind>,
    pub(super) cluster: ClusterView,
    /// The waiting jobs, in service order.
    pub(super) queue: Vec<QueuedJob>,
    pub(super) answers: Answers,
    /// The last decision about each waiting job.
    pub(super) waits: BTreeMap<JobId, Decision>,
}

/// The order of a view.
pub(super) fn by_position(a: &GpuView, b: &GpuView) -> Ordering {
    (&a.node, a.index, &a.id).cmp(&(&b.node, b.index, &b.id))
}

pub(super) fn by_service_order(a: &QueuedJob, b: &QueuedJob) -> Ordering {
    a.key().cmp(&b.key())
}

impl ChainState {
    /// Begins a chain.
    pub(super) fn new(policy: DecidingPolicy, now: Millis) -> Self {
        Self {
            policy,
            length: 0,
            began: now,
            kinds: Vec::new(),
            cluster: ClusterView::default(),
            queue: Vec::new(),
            answers: Answers::default(),
            waits: BTreeMap::new(),
        }
    }

    /// Applies the input of a record's round, and returns the record's decisions.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it isn't the next record of the chain, or is damaged.
    pub(super) fn apply_input(
        &mut self,
        record: RoundRecord,
    ) -> Result<Vec<RecordedDecision>, BadRecord> {
        if !(FORMAT_MIN..=FORMAT).contains(&record.format) {
            return Err(BadRecord::Format { found: record.format });
        }
        if record.number != self.length {
            return Err(BadRecord::Gap { expected: self.length, found: record.number });
        }
        for GpuKindRecord { model, geometry } in record.kinds {
            let mig = geometry.map(MigView::new).transpose();
            let mig = mig.map_err(|_| BadRecord::Damaged { what: "a geometry" })?.map(Arc::new);
            self.kinds.push(GpuKind { model, mig });
        }
        let gpus: Result<Vec<GpuView>, _> =
            record.gpus.into_iter().map(|gpu| self.whole(gpu)).collect();
        self.apply_changes(Changes {
            gpus: gpus?,
            gpus_gone: record.gpus_gone,
            jobs: record.jobs,
            jobs_gone: record.jobs_gone,
        });
        self.cluster.power_cap = record.power_cap;
        self.answers.add(&record.answers);
        self.length += 1;
        Ok(record.decisions)
    }

    fn whole(&self, GpuRecord { kind, gpu }: GpuRecord) -> Result<GpuView, BadRecord> {
        let kind = usize::try_from(kind).ok().and_then(|kind| self.kinds.get(kind));
        let kind = kind.ok_or(BadRecord::Damaged { what: "the kind of a GPU" })?;
        Ok(GpuView { mig: kind.mig.clone(), ..gpu })
    }

    pub(super) fn apply_changes(&mut self, changes: Changes) {
        let Changes { gpus, gpus_gone, jobs, jobs_gone } = changes;
        replace(&mut self.cluster.gpus, gpus, gpus_gone, |gpu| gpu.id.clone(), by_position);
        replace(&mut self.queue, jobs, jobs_gone, |job| job.id, by_service_order);
    }

    /// Completes the decisions of a record, and keeps them for later records.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it refers to a decision that no record has.
    pub(super) fn complete_decisions(
        &mut self,
        recorded: Vec<RecordedDecision>,
    ) -> Result<Vec<Decision>, BadRecord> {
        let complete = recorded.into_iter().map(|recorded| match recorded {
            RecordedDecision::New(decision) => {
                remember(&mut self.waits, &decision);
                Ok(decision)
            }
            RecordedDecision::Same(job) => {
                let last = self.waits.get(&job).cloned();
                last.ok_or(BadRecord::Damaged { what: "the last decision about a job" })
            }
        });
        complete.collect()
    }
}

/// Records decisions; those that repeat the last one about a job are shortened.
pub(super) fn abridged(
    waits: &BTreeMap<JobId, Decision>,
    decisions: &[Decision],
) -> Vec<RecordedDecision> {
    let short = |decision: &Decision| match decision {
        Decision::Wait { job, .. } if waits.get(job) == Some(decision) => {
            RecordedDecision::Same(*job)
        }
        _ => RecordedDecision::New(decision.clone()),
    };
    decisions.iter().map(short).collect()
}

pub(super) fn remember(waits: &mut BTreeMap<JobId, Decision>, decision: &Decision) {
    match decision {
        Decision::Wait { job, .. } => {
            waits.insert(*job, decision.clone());
        }
        Decision::Start { job, .. } => {
            waits.remove(job);
        }
        Decision::Preempt { preemption, .. } => {
            waits.remove(&preemption.job);
        }
        Decision::Reshape { .. } => {}
    }
}

/// The changes since the record before.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) gpus: Vec<GpuView>,
    pub(super) gpus_gone: Vec<tessera_model::GpuId>,
    pub(super) jobs: Vec<QueuedJob>,
    pub(super) jobs_gone: Vec<JobId>,
}

/// Replaces changed entries and keeps the order.
fn replace<T, I: Ord>(
    list: &mut Vec<T>,
    changed: Vec<T>,
    gone: Vec<I>,
    id: impl Fn(&T) -> I,
    order: impl Fn(&T, &T) -> Ordering,
) {
    if changed.is_empty() && gone.is_empty() {
        return;
    }
    let mut out: BTreeSet<I> = gone.into_iter().collect();
    out.extend(changed.iter().map(&id));
    list.retain(|entry| !out.contains(&id(entry)));
    list.extend(changed);
    // The list is two sorted runs, which the sort merges.
    list.sort_by(order);
}
