//! Time in whole nanoseconds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A span of time, or a point on the machine's monotonic clock, in nanoseconds.
///
/// Sums and differences saturate: a time beyond the range means never.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(u64);

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// The longest span; as a point in time: never.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns a span from a number of nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns a span from a number of microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Returns a span from a number of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or zero where `other` is larger.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the span multiplied by `factor`.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Returns `thousandths` of the span, rounded down.
    #[must_use]
    pub const fn thousandths(self, thousandths: u64) -> Self {
        Self((self.0 / 1_000).saturating_mul(thousandths).saturating_add(
            // The remainder is below 1,000, so this product stays small for any sane share.
            (self.0 % 1_000).saturating_mul(thousandths) / 1_000,
        ))
    }
}

impl fmt::Display for Nanos {
    /// Shows microseconds with three decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:03} µs", self.0 / 1_000, self.0 % 1_000))
    }
}
