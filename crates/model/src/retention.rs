//! How long finished things (outputs, records, history) are kept.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// How long something is kept after its end: `7d`, `12h`, `30m`, `45s`, or `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RetentionTime {
    /// Until it is removed by hand.
    Forever,
    /// For this time after its end.
    For(Millis),
}

/// A text that is not a retention time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a retention time: expected a number with d, h, m or s, such as 7d, or forever"
)]
pub struct BadRetentionTime {
    text: String,
}

/// Unit letters with their lengths in seconds, longest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

impl RetentionTime {
    /// Keeps for a number of days.
    pub const fn days(days: u64) -> Self {
        Self::For(Millis::from_secs(days.saturating_mul(86_400)))
    }

    /// Returns whether a thing that ended at `ended` is to be removed at `now`, both on the same clock.
    pub fn is_over(self, ended: Millis, now: Millis) -> bool {
        match self {
            Self::Forever => false,
            Self::For(span) => now >= ended.plus(span),
        }
    }
}

impl FromStr for RetentionTime {
    type Err = BadRetentionTime;

    fn from_str(text: &str) -> Result<Self, BadRetentionTime> {
        let bad = || BadRetentionTime { text: text.to_owned() };
        if text == "forever" {
            return Ok(Self::Forever);
        }
        let unit = text.chars().next_back().ok_or_else(bad)?;
        let (letter, secs) =
            UNITS.into_iter().find(|(letter, _)| *letter == unit).ok_or_else(bad)?;
        let number: u64 = text.strip_suffix(letter).unwrap_or("").parse().map_err(|_| bad())?;
        // Milliseconds since 1970 are added to it.
        let millis = number.checked_mul(secs * 1_000).filter(|millis| *millis <= u64::MAX / 4);
        Ok(Self::For(Millis::new(millis.ok_or_else(bad)?)))
    }
}

impl fmt::Display for RetentionTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::For(span) = self else { return f.write_str("forever") };
        let secs = span.get() / 1_000;
        let whole = UNITS.into_iter().find(|(_, unit)| secs % unit == 0 && secs >= *unit);
        let (letter, unit) = whole.unwrap_or(('s', 1));
        write!(f, "{}{letter}", secs / unit)
    }
}

impl TryFrom<String> for RetentionTime {
    type Error = BadRetentionTime;

    fn try_from(text: String) -> Result<Self, BadRetentionTime> {
        text.parse()
    }
}

impl From<RetentionTime> for String {
    fn from(keep: RetentionTime) -> Self {
        keep.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_read_as_people_write_them() {
        let cases = [("7d", 604_800), ("12h", 43_200), ("30m", 1_800), ("45s", 45), ("0s", 0)];
        for (text, secs) in cases {
            let keep: RetentionTime = text.parse().unwrap();

            assert_eq!(
                (keep, keep.to_string().as_str()),
                (RetentionTime::For(Millis::from_secs(secs)), text)
            );
        }
        assert_eq!("forever".parse(), Ok(RetentionTime::Forever));
        for text in ["", "7", "d", "-1d", "7 d", "1.5d", "7w", "99999999999999999999d"] {
            assert!(
                text.parse::<RetentionTime>().unwrap_err().to_string().contains("such as 7d"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(secs in 0_u64..1 << 40) {
            let keep = RetentionTime::For(Millis::from_secs(secs));

            prop_assert_eq!(keep.to_string().parse(), Ok(keep));
        }

        #[test]
        fn nothing_goes_before_its_time(ended in 0_u64..1 << 45, secs in 0_u64..1 << 30) {
            let (keep, ended) = (RetentionTime::For(Millis::from_secs(secs)), Millis::new(ended));
            let due = ended.plus(Millis::from_secs(secs));

            prop_assert!(keep.is_over(ended, due));
            prop_assert!(secs == 0 || !keep.is_over(ended, due.minus(Millis::new(1))));
            prop_assert!(!RetentionTime::Forever.is_over(ended, due));
        }
    }
}
