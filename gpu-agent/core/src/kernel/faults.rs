//! Which attempts may not join their slice's queue any more, because their frames ended it by a bug.
//!
//! A queue that starts again ends all sessions of its slice, so each bug costs all sharers. One that an attempt's frames
//! trigger comes back with its processes. After [`FAULTS_MAX`] of them within [`FAULTS_WITHIN`] the attempt is refused until
//! it is over: its launches run as on a driver without a queue, and the others go on. A process chooses its own number, so
//! its attempt counts.

use std::collections::{BTreeMap, VecDeque};

use tessera_kernel_queue::Nanos;
use tessera_model::AttemptId;

/// So many bugs in the frames of an attempt are survived.
pub const FAULTS_MAX: usize = 3;
/// The time in which they count.
pub const FAULTS_WITHIN: Nanos = Nanos::from_millis(10_000);

/// The bugs of each attempt that caused any.
#[derive(Clone, Debug, Default)]
pub struct QueueFaults {
    by_attempt: BTreeMap<AttemptId, VecDeque<Nanos>>,
}

impl QueueFaults {
    /// Records that frames of an attempt ended its queue. Returns whether the attempt is refused from now on.
    pub fn note(&mut self, attempt: AttemptId, now: Nanos) -> bool {
        let faults = self.by_attempt.entry(attempt).or_default();
        if faults.len() < FAULTS_MAX {
            faults.retain(|at| at.plus(FAULTS_WITHIN) > now);
            faults.push_back(now);
        }
        faults.len() >= FAULTS_MAX
    }

    /// Returns whether the processes of an attempt are refused.
    pub fn refuses(&self, attempt: AttemptId) -> bool {
        self.by_attempt.get(&attempt).is_some_and(|faults| faults.len() >= FAULTS_MAX)
    }

    /// Removes an attempt that is over.
    pub fn forget(&mut self, attempt: AttemptId) {
        self.by_attempt.remove(&attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Nanos {
        Nanos::from_millis(1_000 * seconds)
    }

    fn attempt(number: u128) -> AttemptId {
        AttemptId::from_uuid(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn an_attempt_is_refused_after_three_faults_within_ten_seconds_and_no_other_is() {
        let mut faults = QueueFaults::default();
        let noted: Vec<bool> = [1, 5, 10].map(|at| faults.note(attempt(1), secs(at))).into();
        assert_eq!(noted, [false, false, true]);
        assert!(!faults.note(attempt(2), secs(10)));

        assert!(faults.refuses(attempt(1)) && !faults.refuses(attempt(2)));
        assert!(faults.note(attempt(1), secs(1_000)), "it stays refused");
        faults.forget(attempt(1));
        assert!(!faults.refuses(attempt(1)));
    }

    #[test]
    fn rare_faults_refuse_nobody() {
        let mut faults = QueueFaults::default();

        assert!((0..20).all(|number| !faults.note(attempt(1), secs(5 * number))));
        assert!(!faults.refuses(attempt(1)));
    }
}
