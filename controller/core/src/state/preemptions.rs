//! Jobs that are being sent back to the queue, and those that were.

use std::collections::BTreeMap;
use tessera_model::{AttemptId, JobId, Millis};
use tessera_placement::preemption::PreemptionRules;

/// The class rules, with what they have caused.
#[derive(Clone, Debug)]
pub(crate) struct Preemptions {
    pub(crate) rules: PreemptionRules,
    /// Attempts that are requested to end.
    pub(crate) requests: BTreeMap<AttemptId, PreemptionRequest>,
    /// Unfinished jobs that were sent back before.
    pub(crate) sent_back: BTreeMap<JobId, SentBack>,
}

/// A request to an attempt to end, so that another job gets its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreemptionRequest {
    /// The job that gets the place.
    pub(crate) by: JobId,
    /// Whether the attempt's work is kept in a checkpoint.
    pub(crate) saves: bool,
    pub(crate) since: Millis,
}

/// An unfinished job that was sent back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentBack {
    pub(crate) times: u32,
    /// The job that got its place last.
    pub(crate) by: JobId,
    /// Since when it waits; `None` once it runs again.
    pub(crate) waits_since: Option<Millis>,
}

impl Default for Preemptions {
    fn default() -> Self {
        let (requests, sent_back) = (BTreeMap::new(), BTreeMap::new());
        Self { rules: PreemptionRules::OFF, requests, sent_back }
    }
}

impl Preemptions {
    /// Forgets everything but the rules, since the state is read again from the store.
    pub(crate) fn forget(&mut self) {
        *self = Self { rules: self.rules, ..Self::default() };
    }

    /// Returns how often a job was sent back.
    pub(crate) fn times(&self, job: JobId) -> u32 {
        self.sent_back.get(&job).map_or(0, |sent_back| sent_back.times)
    }

    /// Records that a job was sent back.
    pub(crate) fn record_sent_back(&mut self, job: JobId, by: JobId, now: Millis) {
        let times = self.times(job) + 1;
        self.sent_back.insert(job, SentBack { times, by, waits_since: Some(now) });
    }

    /// Records that a job runs. Returns whether it was sent back before, and had not run since.
    pub(crate) fn record_start(&mut self, job: JobId) -> bool {
        let sent_back = self.sent_back.get_mut(&job);
        sent_back.and_then(|sent_back| sent_back.waits_since.take()).is_some()
    }
}
