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
    /// The most time for the plan of a batch, if its jobs are long.
    pub(crate) plan_for_max: Duration,
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

/// The part of the shortest job's time that the plan of a batch may take, if that is longer than [`Planner::improve_for`]:
/// the jobs start later by that.
const PLAN_PART: u32 = 1_000;
/// The most that the plan of a batch may take by its shortest job. Plans of 100 jobs gain nothing beyond.
const PLAN_FOR_MAX: Duration = Duration::from_millis(100);

/// How often a policy that migrates jobs runs although no job waits.
const REVIEW_EVERY: Millis = Millis::from_secs(2);

impl Planner {
    pub(crate) fn new(policy: Arc<dyn Policy>) -> Self {
        Self {
            policy,
            recorder: RoundRecorder::default(),
            stopwatch: Arc::new(Standstill),
            improve_for: IMPROVE_FOR,
            plan_for_max: PLAN_FOR_MAX,
            reviewed_at: None,
            power_cap: None,
            settled: SettledQueue::default(),
        }
    }

    /// Returns how long a round may search for the plan of a batch with such a shortest job.
    pub(crate) fn plan_for(&self, shortest: Millis) -> Duration {
        if self.improve_for.is_zero() {
            return Duration::ZERO;
        }
        self.improve_for.max((shortest.duration() / PLAN_PART).min(self.plan_for_max))
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
            // A query decides many times.
            plan_for_max: self.improve_for,
            reviewed_at: self.reviewed_at,
            power_cap: self.power_cap,
            settled: SettledQueue::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_of_long_jobs_may_take_longer_unless_nothing_may_be_improved() {
        let mut planner = Planner::new(Arc::from(tessera_placement::by_name("tessera").unwrap()));
        let plan_for = |planner: &Planner, secs| planner.plan_for(Millis::from_secs(secs));

        assert_eq!(plan_for(&planner, 1), IMPROVE_FOR);
        assert_eq!(plan_for(&planner, 40), Duration::from_millis(40));
        assert_eq!(plan_for(&planner, 86_400), PLAN_FOR_MAX);
        assert_eq!(plan_for(&planner.excerpt(), 86_400), IMPROVE_FOR);
        planner.improve_for = Duration::from_millis(500);
        assert_eq!(plan_for(&planner, 86_400), Duration::from_millis(500));
        planner.improve_for = Duration::ZERO;
        assert_eq!(plan_for(&planner, 86_400), Duration::ZERO);
    }
}
