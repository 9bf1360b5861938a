//! Detects whether predictions are still accurate.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::number::count;

/// How many recent outcomes are considered: a change shows within a few dozen runs.
pub const WINDOW: usize = 64;

/// The part of the outcomes that may be outside of their interval.
const MISSES: f64 = 0.1;

/// The probability of a window's misses, without any change, below which an alarm is raised. With a
/// new window for every outcome, a false alarm occurs about once in some thousand outcomes.
const UNLIKELY: f64 = 0.001;

/// Whether predictions can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictorTrust {
    /// Outcomes are in their intervals as often as expected.
    #[default]
    Trusted,
    /// They are not: use conservative values until they are again, or until a new model is trained.
    Alarmed,
}

/// The last outcomes of one model, and whether an alarm is active.
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

    /// Records whether one outcome was in its interval. Returns whether predictions can be used.
    ///
    /// The alarm is raised when the probability of the misses among the last [`WINDOW`] is below
    /// one in a thousand. It ends when a whole window has no more misses than allowed.
    pub fn take(&mut self, covered: bool) -> PredictorTrust {
        self.hits.push_back(covered);
        if self.hits.len() > WINDOW {
            self.hits.pop_front();
        }
        let misses = self.hits.iter().filter(|hit| !**hit).count();
        match self.trust {
            PredictorTrust::Trusted if tail(self.hits.len(), misses) < UNLIKELY => {
                self.trust = PredictorTrust::Alarmed;
                // Later outcomes are those of the conservative values.
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

    /// Returns whether predictions can be used.
    pub const fn trust(&self) -> PredictorTrust {
        self.trust
    }
}

/// Returns the probability of at least this many misses among this many outcomes.
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
    fn accurate_predictions_raise_no_alarm() {
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
    fn an_alarm_ends_when_predictions_are_accurate_again() {
        let mut watch = DriftWatch::new();
        outcomes(&mut watch, 1.0, 20, 1);
        assert_eq!(watch.trust(), PredictorTrust::Alarmed);
        outcomes(&mut watch, 0.0, WINDOW, 1);
        assert_eq!(watch.trust(), PredictorTrust::Trusted);
    }
}
