//! The time that a holder may lose to other sessions: a token bucket that fills with time and is
//! emptied by costs.
//!
//! One bucket serves all threads, processes and sessions of a slice together. So the bound of the
//! loss doesn't depend on their number. Over any span the loss is at most the bucket's share of the
//! span, plus the bucket's content, plus the last launch's cost beyond its prediction.

use crate::time::Nanos;

/// A token bucket of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossBudget {
    saved: Nanos,
    owed: Nanos,
    /// Until when the time was credited.
    credited: Nanos,
}

impl LossBudget {
    /// Returns a bucket with this content.
    pub const fn full(saved: Nanos) -> Self {
        Self { saved, owed: Nanos::ZERO, credited: Nanos::ZERO }
    }

    /// Credits `thousandths` of the time since the last call. Debts are repaid first, and at most `most`
    /// is saved.
    pub fn pass(&mut self, now: Nanos, thousandths: u64, most: Nanos) {
        let earned = now.minus(self.credited).thousandths(thousandths);
        if earned == Nanos::ZERO {
            return;
        }
        self.credited = now;
        let repaid = self.owed.min(earned);
        self.owed = self.owed.minus(repaid);
        let saved = self.saved.plus(earned.minus(repaid));
        // Time that was saved for a costly launch is kept when the limit falls.
        self.saved = saved.min(most.max(self.saved));
    }

    /// Returns whether a launch of this cost is paid for.
    pub fn covers(&self, cost: Nanos) -> bool {
        self.owed == Nanos::ZERO && self.saved >= cost
    }

    /// Returns the saved time; zero while a debt exists.
    pub fn saved(&self) -> Nanos {
        if self.owed == Nanos::ZERO { self.saved } else { Nanos::ZERO }
    }

    /// Takes a cost. The part that was not saved becomes a debt.
    pub fn take(&mut self, cost: Nanos) {
        let paid = self.saved.min(cost);
        self.saved = self.saved.minus(paid);
        self.owed = self.owed.plus(cost.minus(paid));
    }

    /// Replaces the predicted cost that was taken by the launch's actual cost.
    pub fn settle(&mut self, taken: Nanos, real: Nanos) {
        let repaid = self.owed.min(taken);
        self.owed = self.owed.minus(repaid);
        self.saved = self.saved.plus(taken.minus(repaid));
        self.take(real);
    }

    /// Returns when a launch of this cost can be paid for, if no other cost is taken.
    pub fn covers_at(&self, cost: Nanos, now: Nanos, thousandths: u64) -> Nanos {
        let missing = self.owed.plus(cost.minus(self.saved));
        let rate = thousandths.max(1);
        now.plus(Nanos::new(missing.get().saturating_mul(1_000).div_ceil(rate)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn a_cost_is_paid_for_before_it_is_taken() {
        let mut budget = LossBudget::default();
        budget.pass(ms(900), 20, ms(20));
        assert!(!budget.covers(ms(20)));
        assert_eq!(budget.covers_at(ms(20), ms(900), 20), ms(1_000));
        budget.pass(ms(1_000), 20, ms(20));
        assert!(budget.covers(ms(20)));
        budget.take(ms(20));
        assert!(!budget.covers(Nanos::new(1)));
    }

    #[test]
    fn an_unpredicted_cost_is_repaid_before_time_is_saved() {
        let mut budget = LossBudget::default();
        budget.pass(ms(1_000), 20, ms(20));
        budget.take(ms(1));
        budget.settle(ms(1), ms(120));
        budget.pass(ms(5_900), 20, ms(20));
        assert_eq!(budget.saved(), Nanos::ZERO);
        budget.pass(ms(6_050), 20, ms(20));
        assert_eq!(budget.saved(), ms(1));
    }

    proptest! {
        /// The kernel plane's guarantee, for every order of passing time and launches.
        #[test]
        fn the_total_cost_never_exceeds_the_share_of_the_time_and_the_last_overrun(
            steps in prop::collection::vec((0_u64..50, 1_u64..200, 0_u64..300), 1..200),
        ) {
            let mut budget = LossBudget::default();
            let (mut now, mut lost, mut overrun) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
            for (pause, predicted, real) in steps {
                now = now.plus(ms(pause));
                budget.pass(now, 20, ms(20).max(ms(predicted)));
                if budget.covers(ms(predicted)) {
                    budget.take(ms(predicted));
                    budget.settle(ms(predicted), ms(real));
                    lost = lost.plus(ms(real));
                    overrun = ms(real).minus(ms(predicted));
                }
                prop_assert!(lost <= now.thousandths(20).plus(overrun), "{lost} by {now}");
            }
        }
    }
}
