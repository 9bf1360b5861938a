//! Who writes rounds down.

use std::cmp::Ordering;

use tessera_model::Millis;

use super::state::{Changes, State, abridged, by_place, by_service, remember};
use super::told::{Kind, Told, add_kinds, number_of};
use super::{Brain, CHAIN_MAX, CHAIN_SPAN, FORMAT, GpuRecord, Heard, Record, Said};
use crate::decision::Decision;
use crate::forecast::Forecast;
use crate::policy::Policy;
use crate::view::{ClusterView, GpuView, QueuedJob};

/// Writes rounds down, one after another.
///
/// Per round: [`Self::listen`] to the forecast, ask the policy, [`Self::draft`]. If the round
/// comes to anything, [`Self::keep`] the draft and store its record; else drop it, and the next
/// record will say what changed since the last that was kept.
#[derive(Debug, Default)]
pub struct Recorder {
    state: Option<State>,
}

/// A round that was decided, before it is known whether anything comes of it.
#[derive(Debug)]
pub struct Draft {
    record: Record,
    kinds: Vec<Kind>,
    /// The chain that it begins.
    fresh: Option<State>,
}

/// What a round was about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The cluster, in the order of views.
    pub cluster: &'a ClusterView,
    /// The jobs that were shown, in the order of service.
    pub queue: &'a [&'a QueuedJob],
    /// When.
    pub now: Millis,
    /// How many jobs might start.
    pub starts_max: usize,
}

impl Recorder {
    /// Begins a new chain with the next round: records that were made may not have been stored.
    pub fn forget(&mut self) {
        self.state = None;
    }

    /// Listens to what a forecast says in a round about this cluster.
    pub fn listen<'f>(
        &self,
        forecast: &'f dyn Forecast,
        cluster: &ClusterView,
        now: Millis,
    ) -> Heard<'f> {
        let known = self.goes_on(now).map(|state| state.kinds.clone());
        let mut kinds = known.unwrap_or_default();
        add_kinds(&mut kinds, cluster);
        Heard::new(forecast, kinds)
    }

    /// Writes a round down: what the policy was asked and heard, and what it decided.
    pub fn draft(
        &self,
        policy: &dyn Policy,
        asked: Asked<'_>,
        heard: Heard<'_>,
        decisions: &[Decision],
    ) -> Draft {
        let (kinds, told) = heard.into_parts();
        match self.goes_on(asked.now) {
            Some(state) => {
                let record = written(state, asked, (&kinds, &told), decisions);
                Draft { record, kinds, fresh: None }
            }
            None => {
                let fresh = State::new(Brain::of(policy), asked.now);
                let mut record = written(&fresh, asked, (&kinds, &told), decisions);
                record.brain = Some(fresh.brain.clone());
                Draft { record, kinds, fresh: Some(fresh) }
            }
        }
    }

    /// Keeps a draft: the next record adds to it.
    pub fn keep(&mut self, draft: Draft) -> Record {
        let Draft { record, kinds, fresh } = draft;
        if fresh.is_some() {
            self.state = fresh;
        }
        let Some(state) = &mut self.state else { return record };
        state.kinds = kinds;
        state.take_in(Changes {
            gpus: record.gpus.iter().map(|changed| changed.gpu.clone()).collect(),
            gpus_gone: record.gpus_gone.clone(),
            jobs: record.jobs.clone(),
            jobs_gone: record.jobs_gone.clone(),
        });
        state.told.learn(&record.told);
        for said in &record.said {
            if let Said::New(decision) = said {
                remember(&mut state.waits, decision);
            }
        }
        state.length += 1;
        record
    }

    fn goes_on(&self, now: Millis) -> Option<&State> {
        let young = |state: &&State| state.length < CHAIN_MAX && now < state.began.plus(CHAIN_SPAN);
        self.state.as_ref().filter(young)
    }
}

fn written(
    state: &State,
    asked: Asked<'_>,
    (kinds, told): (&[Kind], &Told),
    decisions: &[Decision],
) -> Record {
    let (gpus, gpus_gone) =
        difference(state.cluster.gpus.iter(), asked.cluster.gpus.iter(), by_place);
    let (jobs, jobs_gone) = difference(state.queue.iter(), asked.queue.iter().copied(), by_service);
    let numbered = |gpu: &GpuView| GpuRecord {
        // Every kind of the view was added as the round began.
        kind: number_of(kinds, gpu).unwrap_or(u32::MAX),
        gpu: gpu.clone(),
    };
    Record {
        format: FORMAT,
        number: state.length,
        brain: None,
        now: asked.now,
        starts_max: asked.starts_max,
        kinds: kinds[state.kinds.len()..].iter().map(Kind::record).collect(),
        gpus: gpus.into_iter().map(numbered).collect(),
        gpus_gone: gpus_gone.into_iter().map(|gpu| gpu.id.clone()).collect(),
        jobs: jobs.into_iter().cloned().collect(),
        jobs_gone: jobs_gone.into_iter().map(|job| job.id).collect(),
        told: told.since(&state.told),
        said: abridged(&state.waits, decisions),
    }
}

/// Returns what `now` has that `before` hasn't, or has otherwise, and what is gone; both in order.
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
