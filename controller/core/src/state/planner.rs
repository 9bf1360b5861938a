//! The placement policy, with what it needs in addition to the cluster: a time budget and a recorder.

use super::settled::SettledQueue;
use std::sync::Arc;
use std::time::Duration;
use tessera_model::Millis;
use tessera_placement::Policy;
use tessera_placement::power::PowerCap;
use tessera_placement::record::RoundRecorder;

/// The placement policy and the state for running it.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) policy: Arc<dyn Policy>,
    /// Records the policy's inputs and decisions.
    pub(crate) recorder: RoundRecorder,
    /// Measures the time that a round spends on better placements.
    pub(crate) stopwatch: Arc<dyn Stopwatch>,
    /// The most time that a round spends on that.
    pub(crate) improve_for: Duration,
    /// When the policy last ran although no job waited.
    pub(crate) reviewed_at: Option<Millis>,
    /// The most power that all GPUs may draw together.
    pub(crate) power_cap: Option<PowerCap>,
    /// The requests for which nothing could start, since the policy last ran.
    pub(crate) settled: SettledQueue,
}

/// A clock with an arbitrary start.
pub trait Stopwatch: Send + Sync + std::fmt::Debug {
    /// Returns the time that has passed.
    fn read(&self) -> Duration;
}

/// A stopwatch that always reads zero, for tests and replays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standstill;

impl Stopwatch for Standstill {
    fn read(&self) -> Duration {
        Duration::ZERO
    }
}

/// The default of how long a round may search for better placements.
pub(crate) const IMPROVE_FOR: Duration = Duration::from_millis(10);

/// How often a policy that migrates jobs runs although no job waits.
const REVIEW_EVERY: Millis = Millis::from_secs(2);

impl Planner {
    pub(crate) fn new(policy: Arc<dyn Policy>) -> Self {
        Self {
            policy,
            recorder: RoundRecorder::default(),
            stopwatch: Arc::new(Standstill),
            improve_for: IMPROVE_FOR,
            reviewed_at: None,
            power_cap: None,
            settled: SettledQueue::default(),
        }
    }

    /// Returns whether a policy that migrates jobs runs although no job waits: a better placement
    /// may be free for a running job.
    pub(crate) fn is_review_due(&self, now: Millis) -> bool {
        self.policy.moves() && self.reviewed_at.is_none_or(|last| now >= last.plus(REVIEW_EVERY))
    }

    /// Copies the parts that explain queries need: they are not recorded.
    pub(crate) fn excerpt(&self) -> Self {
        Self {
            policy: Arc::clone(&self.policy),
            recorder: RoundRecorder::default(),
            stopwatch: Arc::clone(&self.stopwatch),
            improve_for: self.improve_for,
            reviewed_at: self.reviewed_at,
            power_cap: self.power_cap,
            settled: SettledQueue::default(),
        }
    }
}
