//! Whether predictions still are accurate.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::number::count;

/// Outcomes that are looked back at: a change shows within a few dozen runs.
pub const WINDOW: usize = 64;

/// Part of the outcomes that may miss their interval.
const MISSES: f64 = 0.1;

/// How unlikely the misses of a window must be for an alarm, if nothing had changed. With a new
/// window every outcome, a false alarm comes about once in some thousand outcomes.
const UNLIKELY: f64 = 0.001;

/// What to make of predictions now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictorTrust {
    /// They lie in their intervals as often as they should.
    #[default]
    Trusted,
    /// They don't: use conservative values until they do again, or a new model is trained.
    Alarmed,
}

/// The last outcomes of one model, and whether there is an alarm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftWatch {
    hits: VecDeque<bool>,
    trust: PredictorTrust,
}

impl DriftWatch {
    /// Begins with a new model, which is trusted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one outcome: whether it lay in its interval. Returns what to make of predictions now.
    ///
    /// The alarm is raised where so many misses among the last [`WINDOW`] are less likely than
    /// one in a thousand. It is taken back when a whole window misses no more than it may.
    pub fn take(&mut self, covered: bool) -> PredictorTrust {
        self.hits.push_back(covered);
        if self.hits.len() > WINDOW {
            self.hits.pop_front();
        }
        let misses = self.hits.iter().filter(|hit| !**hit).count();
        match self.trust {
            PredictorTrust::Trusted if tail(self.hits.len(), misses) < UNLIKELY => {
                self.trust = PredictorTrust::Alarmed;
                // What is judged from here on are the conservative values.
                self.hits.clear();
            }
            PredictorTrust::Alarmed
                if self.hits.len() == WINDOW && count(misses) <= MISSES * count(WINDOW) =>
            {
                self.trust = PredictorTrust::Trusted;
            }
            PredictorTrust::Trusted | PredictorTrust::Alarmed => {}
        }
        self.trust
    }

    /// Returns what to make of predictions now.
    pub const fn trust(&self) -> PredictorTrust {
        self.trust
    }
}

/// Returns how likely so many misses or more are among so many outcomes.
fn tail(outcomes: usize, misses: usize) -> f64 {
    let mut term = (1.0 - MISSES).powf(count(outcomes));
    let mut below = 0.0;
    for number in 0..misses {
        below += term;
        let left = outcomes.saturating_sub(number);
        term *= count(left) / count(number + 1) * (MISSES / (1.0 - MISSES));
    }
    (1.0 - below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SeededRng;

    fn outcomes(watch: &mut DriftWatch, missed: f64, count: usize, seed: u64) -> usize {
        let mut rng = SeededRng::new(seed);
        let mut alarmed = 0;
        for _ in 0..count {
            if watch.take(rng.unit() >= missed) == PredictorTrust::Alarmed {
                alarmed += 1;
            }
        }
        alarmed
    }

    #[test]
    fn predictions_that_keep_their_word_raise_no_alarm() {
        let alarms = (0..20).filter(|seed| outcomes(&mut DriftWatch::new(), 0.08, 300, *seed) > 0);
        assert!(alarms.count() <= 2);
    }

    #[test]
    fn half_of_the_outcomes_missing_is_noticed_within_a_few_dozen() {
        for seed in 0..50 {
            let mut watch = DriftWatch::new();
            outcomes(&mut watch, 0.0, 100, seed);
            outcomes(&mut watch, 0.5, 60, seed);
            assert_eq!(watch.trust(), PredictorTrust::Alarmed, "seed {seed}");
        }
    }

    #[test]
    fn an_alarm_ends_when_predictions_come_true_again() {
        let mut watch = DriftWatch::new();
        outcomes(&mut watch, 1.0, 20, 1);
        assert_eq!(watch.trust(), PredictorTrust::Alarmed);
        outcomes(&mut watch, 0.0, WINDOW, 1);
        assert_eq!(watch.trust(), PredictorTrust::Trusted);
    }
}
