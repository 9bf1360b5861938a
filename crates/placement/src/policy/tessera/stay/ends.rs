//! When running jobs are expected to end.

use std::collections::BTreeMap;

use tessera_model::mig::Slot;
use tessera_model::{JobId, Millis};

use super::super::rounding::float;
use crate::predictor::Knowledge;
use crate::view::GpuView;

/// How long a job about which nothing is known is assumed to run. Chosen: longer than nearly every job, so
/// that a place whose jobs have a known end is preferred. Among several places with unknown ends, the one
/// with the oldest last arrival is taken. It stays the oldest until it is free, so a reservation does not move
/// to another place for lack of knowledge. (That of a job that needs most of a GPU moves to one with fewer jobs.)
const UNKNOWN_RUN_MS: f64 = 7.0 * 24.0 * 3_600_000.0;

/// When a job ends, in milliseconds of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedEnd {
    /// About when.
    pub(super) at: f64,
    /// Whether that is based on a prediction or on a limit.
    pub(super) known: bool,
    /// When it came there.
    pub(super) since: f64,
    /// When the job was submitted; when it began, where that is not known.
    pub(super) submitted: f64,
}

/// Ends of jobs, each worked out once a round.
pub(super) struct Ends<'r> {
    knowledge: Knowledge<'r>,
    now: f64,
    known: BTreeMap<JobId, ExpectedEnd>,
}

impl<'r> Ends<'r> {
    pub(super) fn new(knowledge: Knowledge<'r>, now: Millis) -> Self {
        Self { knowledge, now: float(now), known: BTreeMap::new() }
    }

    /// Notes a job that this round starts.
    pub(super) fn begin(&mut self, job: JobId, takes_ms: f64, known: bool) {
        let takes = if known { takes_ms } else { UNKNOWN_RUN_MS };
        self.known.insert(
            job,
            ExpectedEnd { at: self.now + takes, known, since: self.now, submitted: self.now },
        );
    }

    /// Returns when a job on an instance ends.
    pub(super) fn of(&mut self, job: JobId, gpu: &GpuView, slot: Option<Slot>) -> ExpectedEnd {
        if let Some(known) = self.known.get(&job) {
            return *known;
        }
        let end = self.expect(job, gpu, slot);
        self.known.insert(job, end);
        end
    }

    fn expect(&self, job: JobId, gpu: &GpuView, slot: Option<Slot>) -> ExpectedEnd {
        let facts = self.knowledge.jobs.facts(job);
        let since = facts.since.map_or(self.now, float);
        let submitted = facts.submitted.map_or(since, float);
        let last = facts.limit.map(|limit| (since + float(limit)).max(self.now));
        let profile = || gpu.mig.as_deref()?.geometry.profile(slot?.profile);
        let run = profile().and_then(|on| self.knowledge.predictor.predict_run(job, gpu, on));
        let done = facts.done.map(|done| f64::from(done) / 1_000_000.0);
        let predicted =
            run.zip(done).map(|(run, done)| self.now + float(run.time) * (1.0 - done).max(0.0));
        match (predicted, last) {
            (Some(at), Some(last)) => {
                ExpectedEnd { at: at.min(last), known: true, since, submitted }
            }
            (Some(at), None) | (None, Some(at)) => {
                ExpectedEnd { at, known: true, since, submitted }
            }
            (None, None) => {
                let at = (since + UNKNOWN_RUN_MS).max(self.now + 1.0);
                ExpectedEnd { at, known: false, since, submitted }
            }
        }
    }
}
