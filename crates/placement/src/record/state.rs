//! What a chain has said so far: the same for who writes it and for who reads it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_model::{JobId, Millis};

use super::told::{Kind, KindRecord, Told};
use super::{BadRecord, Brain, FORMAT, GpuRecord, Record, Said};
use crate::decision::Decision;
use crate::view::{ClusterView, GpuView, MigView, QueuedJob};

/// The picture after a record of a chain.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) brain: Brain,
    /// Records so far.
    pub(super) length: u64,
    /// When its first was made.
    pub(super) began: Millis,
    pub(super) kinds: Vec<Kind>,
    pub(super) cluster: ClusterView,
    /// In service order.
    pub(super) queue: Vec<QueuedJob>,
    pub(super) told: Told,
    /// What was last said of each job that was told to wait.
    pub(super) waits: BTreeMap<JobId, Decision>,
}

/// The order of a view.
pub(super) fn by_place(a: &GpuView, b: &GpuView) -> Ordering {
    (&a.node, a.index, &a.id).cmp(&(&b.node, b.index, &b.id))
}

/// The order of service.
pub(super) fn by_service(a: &QueuedJob, b: &QueuedJob) -> Ordering {
    (a.priority, a.id).cmp(&(b.priority, b.id))
}

impl State {
    /// Begins a chain.
    pub(super) fn new(brain: Brain, now: Millis) -> Self {
        Self {
            brain,
            length: 0,
            began: now,
            kinds: Vec::new(),
            cluster: ClusterView::default(),
            queue: Vec::new(),
            told: Told::default(),
            waits: BTreeMap::new(),
        }
    }

    /// Adds what a record says of the round's input.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it isn't the next of the chain, or is damaged.
    pub(super) fn see(&mut self, record: Record) -> Result<Vec<Said>, BadRecord> {
        if record.format != FORMAT {
            return Err(BadRecord::Format { found: record.format });
        }
        if record.number != self.length {
            return Err(BadRecord::Gap { expected: self.length, found: record.number });
        }
        for KindRecord { model, geometry } in record.kinds {
            let mig = geometry.map(MigView::new).transpose();
            let mig = mig.map_err(|_| BadRecord::Damaged { what: "a geometry" })?.map(Arc::new);
            self.kinds.push(Kind { model, mig });
        }
        let gpus: Result<Vec<GpuView>, _> =
            record.gpus.into_iter().map(|gpu| self.whole(gpu)).collect();
        self.take_in(Changes {
            gpus: gpus?,
            gpus_gone: record.gpus_gone,
            jobs: record.jobs,
            jobs_gone: record.jobs_gone,
        });
        self.told.learn(&record.told);
        self.length += 1;
        Ok(record.said)
    }

    fn whole(&self, GpuRecord { kind, gpu }: GpuRecord) -> Result<GpuView, BadRecord> {
        let kind = usize::try_from(kind).ok().and_then(|kind| self.kinds.get(kind));
        let kind = kind.ok_or(BadRecord::Damaged { what: "the kind of a GPU" })?;
        Ok(GpuView { mig: kind.mig.clone(), ..gpu })
    }

    pub(super) fn take_in(&mut self, changes: Changes) {
        let Changes { gpus, gpus_gone, jobs, jobs_gone } = changes;
        replace(&mut self.cluster.gpus, gpus, gpus_gone, |gpu| gpu.id.clone(), by_place);
        replace(&mut self.queue, jobs, jobs_gone, |job| job.id, by_service);
    }

    /// Spells out what was decided, and remembers it.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it refers to what was never said.
    pub(super) fn hear(&mut self, said: Vec<Said>) -> Result<Vec<Decision>, BadRecord> {
        let spelt = said.into_iter().map(|said| match said {
            Said::New(decision) => {
                remember(&mut self.waits, &decision);
                Ok(decision)
            }
            Said::Same(job) => {
                let last = self.waits.get(&job).cloned();
                last.ok_or(BadRecord::Damaged { what: "what was said of a job" })
            }
        });
        spelt.collect()
    }
}

/// Writes decisions down, with those left out that repeat what was said.
pub(super) fn abridged(waits: &BTreeMap<JobId, Decision>, decisions: &[Decision]) -> Vec<Said> {
    let short = |decision: &Decision| match decision {
        Decision::Wait { job, .. } if waits.get(job) == Some(decision) => Said::Same(*job),
        _ => Said::New(decision.clone()),
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
        Decision::Reshape { .. } => {}
    }
}

/// What is other than before.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) gpus: Vec<GpuView>,
    pub(super) gpus_gone: Vec<tessera_model::GpuId>,
    pub(super) jobs: Vec<QueuedJob>,
    pub(super) jobs_gone: Vec<JobId>,
}

/// Puts changed entries in the place of the old ones, keeping the order.
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
    // Two runs in order: the sort merges them.
    list.sort_by(order);
}
