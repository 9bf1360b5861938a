//! Records rounds.

use std::cmp::Ordering;

use tessera_model::Millis;

use super::answers::Answers;
use super::chain::{ChainState, Changes, abridged, by_position, by_service_order, remember};
use super::gpu_kind::{GpuKind, add_kinds, number_of};
use super::{
    AnswerRecorder, CHAIN_MAX, CHAIN_SPAN, DecidingPolicy, FORMAT, GpuRecord, RecordedDecision,
    RoundRecord,
};
use crate::decision::Decision;
use crate::policy::Policy;
use crate::predictor::Knowledge;
use crate::view::{ClusterView, GpuView, QueuedJob};

/// Records rounds, one after another.
///
/// For each round: [`Self::record_answers`], let the policy decide, [`Self::prepare_record`]. If the round has
/// a result, [`Self::keep_record`] and store the record. Otherwise drop it: the next record has
/// what changed since the last one that was kept.
#[derive(Debug, Default)]
pub struct RoundRecorder {
    state: Option<ChainState>,
}

/// A record of a round. It is dropped if the round has no result.
#[derive(Debug)]
pub struct PendingRecord {
    record: RoundRecord,
    kinds: Vec<GpuKind>,
    /// The chain that starts with it, if it starts one.
    new_chain: Option<ChainState>,
}

/// Everything that a policy is given for one round.
#[derive(Clone, Copy, Debug)]
pub struct RoundInput<'a> {
    /// The cluster, in the order of views.
    pub cluster: &'a ClusterView,
    /// The jobs that the policy got, in the order of service.
    pub queue: &'a [&'a QueuedJob],
    /// The time on the leader's boot clock.
    pub now: Millis,
    /// The most jobs that may start.
    pub starts_max: usize,
}

impl RoundRecorder {
    /// Begins a new chain with the next round, for example after a record could not be stored.
    pub fn begin_new_chain(&mut self) {
        self.state = None;
    }

    /// Records the answers that a policy gets in a round about this cluster.
    pub fn record_answers<'k>(
        &self,
        knowledge: Knowledge<'k>,
        cluster: &ClusterView,
        now: Millis,
    ) -> AnswerRecorder<'k> {
        let known = self.open_chain(now).map(|state| state.kinds.clone());
        let mut kinds = known.unwrap_or_default();
        add_kinds(&mut kinds, cluster);
        AnswerRecorder::new(knowledge, kinds)
    }

    /// Makes the record of a round from its input, the answers that the policy got, and its decisions.
    pub fn prepare_record(
        &self,
        policy: &dyn Policy,
        input: RoundInput<'_>,
        answers: AnswerRecorder<'_>,
        decisions: &[Decision],
    ) -> PendingRecord {
        let (kinds, answers) = answers.into_parts();
        match self.open_chain(input.now) {
            Some(state) => {
                let record = record_of(state, input, (&kinds, &answers), decisions);
                PendingRecord { record, kinds, new_chain: None }
            }
            None => {
                let chain = ChainState::new(DecidingPolicy::describe(policy), input.now);
                let mut record = record_of(&chain, input, (&kinds, &answers), decisions);
                record.policy = Some(chain.policy.clone());
                PendingRecord { record, kinds, new_chain: Some(chain) }
            }
        }
    }

    /// Keeps a record: the next one has the changes since it.
    pub fn keep_record(&mut self, pending: PendingRecord) -> RoundRecord {
        let PendingRecord { record, kinds, new_chain } = pending;
        if new_chain.is_some() {
            self.state = new_chain;
        }
        let Some(state) = &mut self.state else { return record };
        state.kinds = kinds;
        state.apply_changes(Changes {
            gpus: record.gpus.iter().map(|changed| changed.gpu.clone()).collect(),
            gpus_gone: record.gpus_gone.clone(),
            jobs: record.jobs.clone(),
            jobs_gone: record.jobs_gone.clone(),
        });
        state.answers.add(&record.answers);
        for recorded in &record.decisions {
            if let RecordedDecision::New(decision) = recorded {
                remember(&mut state.waits, decision);
            }
        }
        state.length += 1;
        record
    }

    /// Returns the chain that the next record belongs to, unless it begins a new one.
    fn open_chain(&self, now: Millis) -> Option<&ChainState> {
        let young =
            |state: &&ChainState| state.length < CHAIN_MAX && now < state.began.plus(CHAIN_SPAN);
        self.state.as_ref().filter(young)
    }
}

fn record_of(
    state: &ChainState,
    input: RoundInput<'_>,
    (kinds, answers): (&[GpuKind], &Answers),
    decisions: &[Decision],
) -> RoundRecord {
    let (gpus, gpus_gone) =
        difference(state.cluster.gpus.iter(), input.cluster.gpus.iter(), by_position);
    let (jobs, jobs_gone) =
        difference(state.queue.iter(), input.queue.iter().copied(), by_service_order);
    let numbered = |gpu: &GpuView| GpuRecord {
        // All kinds of the view were added when the round began.
        kind: number_of(kinds, gpu).unwrap_or(u32::MAX),
        gpu: gpu.clone(),
    };
    RoundRecord {
        format: FORMAT,
        number: state.length,
        policy: None,
        now: input.now,
        starts_max: input.starts_max,
        power_cap: input.cluster.power_cap,
        kinds: kinds[state.kinds.len()..].iter().map(GpuKind::record).collect(),
        gpus: gpus.into_iter().map(numbered).collect(),
        gpus_gone: gpus_gone.into_iter().map(|gpu| gpu.id.clone()).collect(),
        jobs: jobs.into_iter().cloned().collect(),
        jobs_gone: jobs_gone.into_iter().map(|job| job.id).collect(),
        answers: answers.since(&state.answers),
        decisions: abridged(&state.waits, decisions),
    }
}

/// Returns the entries of `now` that are new or changed since `before`, and those that were
/// removed, in order.
fn difference<'a, T: PartialEq>(
    before: impl Iterator<Item = &'a T>,
    now: impl Iterator<Item = &'a T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> (Vec<&'a T>, Vec<&'a T>) {
    let (mut changed, mut gone) = (Vec::new(), Vec::new());
    let mut before = before.peekable();
    for entry in now {
        while let Some(old) = before.next_if(|old| order(old, entry).is_lt()) {
            gone.push(old);
        }
        match before.next_if(|old| order(old, entry).is_eq()) {
            Some(old) if old == entry => {}
            _ => changed.push(entry),
        }
    }
    gone.extend(before);
    (changed, gone)
}
