//! How many tasks of holders may be delayed by kernels that fit no gap.
//!
//! The budget of ageing bounds the time that such kernels cost. It does not bound how many tasks they delay, and the
//! 99th percentile of the tasks' times depends on that. On a device with time slices, a kernel that needs more than one
//! gap delays each task until its end. So the delays are saved in advance, like the time. The queue sees no tasks, it
//! sees *periods*: the time between the ends of two gaps in which a holder waited for the device. A program that waits
//! several times in a task has several periods in it.

use crate::time::Nanos;

/// One period in this many may be delayed. With one in 100 the 99th percentile would be a delayed task. A fifth is left
/// for gaps that end early.
pub(super) const PERIODS_PER_DELAY: u64 = 125;

/// What the budgets of ageing paid for a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AgeingPrice {
    /// The holders' time.
    pub time: Nanos,
    /// The periods that it delays.
    pub delays: u64,
}

impl AgeingPrice {
    /// The price of a launch that the budgets of ageing don't pay for.
    pub const NOTHING: Self = Self { time: Nanos::ZERO, delays: 0 };
}

/// A token bucket of delays. Each period adds a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DelayBudget {
    /// In parts of a delay.
    saved: u64,
    owed: u64,
}

impl DelayBudget {
    /// Credits one period. Debts are repaid first, and `most` delays are saved at most.
    pub fn pass(&mut self, most: u64) {
        if self.owed > 0 {
            self.owed -= 1;
        } else if self.saved < most.saturating_mul(PERIODS_PER_DELAY) {
            self.saved += 1;
        }
    }

    /// Returns whether a launch that delays so many periods is paid for.
    pub const fn covers(&self, delays: u64) -> bool {
        self.owed == 0 && self.saved >= delays.saturating_mul(PERIODS_PER_DELAY)
    }

    /// Returns whether more periods were delayed than were saved.
    pub const fn is_in_debt(&self) -> bool {
        self.owed > 0
    }

    /// Takes delays. What was not saved becomes a debt.
    pub fn take(&mut self, delays: u64) {
        let cost = delays.saturating_mul(PERIODS_PER_DELAY);
        let paid = self.saved.min(cost);
        self.saved -= paid;
        self.owed = self.owed.saturating_add(cost - paid);
    }

    /// Replaces the predicted delays that were taken by the actual ones.
    pub fn settle(&mut self, taken: u64, real: u64) {
        let returned = taken.saturating_mul(PERIODS_PER_DELAY);
        let repaid = self.owed.min(returned);
        self.owed -= repaid;
        self.saved = self.saved.saturating_add(returned - repaid);
        self.take(real);
    }
}

/// The usual period of the holders, and the usual gap in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsualPeriod {
    last_end: Option<Nanos>,
    length: Option<Nanos>,
    gap: Option<Nanos>,
}

impl UsualPeriod {
    /// Learns from a gap that ended now.
    pub fn learn(&mut self, now: Nanos, gap: Nanos) {
        if let Some(last) = self.last_end.replace(now) {
            self.length = Some(smoothed(self.length, now.minus(last)));
        }
        self.gap = Some(smoothed(self.gap, gap));
    }

    /// Returns when the last gap ended.
    pub const fn last_end(&self) -> Option<Nanos> {
        self.last_end
    }

    /// Returns the length of a period, if two gaps have ended. A holder that has no gaps any more has longer ones.
    pub fn length(&self, now: Nanos) -> Option<Nanos> {
        let since = now.minus(self.last_end?);
        self.length.map(|length| length.max(since))
    }

    /// Returns how many periods a kernel delays that costs this much and fills the gaps between them. At least one.
    pub fn delayed_by(&self, cost: Nanos) -> u64 {
        let gap = self.gap.unwrap_or(Nanos::ZERO).get();
        if gap == 0 { 1 } else { cost.get().div_ceil(gap).max(1) }
    }
}

/// Returns a mean in which each value counts for an eighth. A pause of the program counts at most twice the mean.
fn smoothed(mean: Option<Nanos>, value: Nanos) -> Nanos {
    let Some(mean) = mean else { return value };
    let value = value.min(mean.times(2));
    let eighth = Nanos::new(mean.get() / 8);
    mean.minus(eighth).plus(Nanos::new(value.get() / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn delays_are_saved_before_they_are_taken_and_no_more_than_are_needed() {
        let mut budget = DelayBudget::default();
        let pass = |budget: &mut DelayBudget, periods: u64| {
            (0..periods).for_each(|_| budget.pass(3));
        };
        pass(&mut budget, 3 * PERIODS_PER_DELAY - 1);
        assert!(budget.covers(2) && !budget.covers(3));
        pass(&mut budget, 1_000);
        assert!(budget.covers(3) && !budget.covers(4));

        budget.take(3);
        assert!(!budget.covers(1) && !budget.is_in_debt());
        budget.settle(3, 1);
        assert!(budget.covers(2));
        budget.settle(0, 4);
        assert!(budget.is_in_debt());
        pass(&mut budget, 2 * PERIODS_PER_DELAY);
        assert!(!budget.is_in_debt() && !budget.covers(1));
    }

    #[test]
    fn a_kernel_delays_the_periods_whose_gaps_it_fills() {
        let mut period = UsualPeriod::default();
        assert_eq!((period.length(ms(1)), period.delayed_by(ms(50))), (None, 1));
        for task in 1..=100 {
            period.learn(ms(10 * task), ms(8));
        }

        assert_eq!(period.length(ms(1_004)), Some(ms(10)));
        assert_eq!([5, 8, 20, 50].map(|cost| period.delayed_by(ms(cost))), [1, 1, 3, 7]);
        // A holder without gaps since then.
        assert_eq!(period.length(ms(3_000)), Some(ms(2_000)));
        // One pause of the program changes little.
        period.learn(ms(3_000), ms(1_990));
        assert!(period.length(ms(3_000)).is_some_and(|length| length <= ms(12)));
    }
}
