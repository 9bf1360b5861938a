//! Durations in the format of batch schedulers.

use std::fmt;
use std::str::FromStr;
use tessera_model::number::clamped;

use time::OffsetDateTime;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A time limit as people write it: `90` (minutes), `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`,
/// `D-HH:MM:SS`, or `UNLIMITED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// No limit; also written as `0`.
    Unlimited,
    /// A number of seconds.
    Secs(u64),
}

/// A text that is not a time limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a duration; write minutes (90), MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
)]
pub struct BadTimeLimit {
    text: String,
}

impl TimeLimit {
    /// Returns the limit in seconds, if there is one.
    pub const fn secs(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Secs(secs) => Some(secs),
        }
    }
}

impl FromStr for TimeLimit {
    type Err = BadTimeLimit;

    fn from_str(text: &str) -> Result<Self, BadTimeLimit> {
        if ["UNLIMITED", "INFINITE"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
            return Ok(Self::Unlimited);
        }
        match parse_secs(text) {
            Some(0) => Ok(Self::Unlimited),
            Some(secs) => Ok(Self::Secs(secs)),
            None => Err(BadTimeLimit { text: text.to_owned() }),
        }
    }
}

fn parse_secs(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(number).collect::<Option<Vec<_>>>()?;
    // The unit of a bare number depends on whether days precede it.
    let units: &[u64] = match (days, parts.len()) {
        (Some(_), 1) => &[HOUR],
        (Some(_), 2) => &[HOUR, MINUTE],
        (None, 1) => &[MINUTE],
        (None, 2) => &[MINUTE, 1],
        (_, 3) => &[HOUR, MINUTE, 1],
        _ => return None,
    };
    let whole_days = days.unwrap_or(0).checked_mul(DAY);
    parts
        .iter()
        .zip(units)
        .fold(whole_days, |sum, (part, unit)| sum?.checked_add(part.checked_mul(*unit)?))
}

fn number(text: &str) -> Option<u64> {
    // `parse` alone would take a sign.
    (text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Shows whole seconds as `squeue` does: `M:SS`, `H:MM:SS` or `D-HH:MM:SS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(pub u64);

impl Elapsed {
    /// Returns the time from `start` to `end`, zero if the clocks disagree.
    pub fn between(start: OffsetDateTime, end: OffsetDateTime) -> Self {
        Self(clamped((end - start).whole_seconds()))
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, hours) = (self.0 / DAY, self.0 % DAY / HOUR);
        let (minutes, secs) = (self.0 % HOUR / MINUTE, self.0 % MINUTE);
        let text = match (days, hours) {
            (0, 0) => format!("{minutes}:{secs:02}"),
            (0, _) => format!("{hours}:{minutes:02}:{secs:02}"),
            _ => format!("{days}-{hours:02}:{minutes:02}:{secs:02}"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_read_as_slurm_reads_them() {
        for (text, secs) in [
            ("90", 90 * MINUTE),
            ("1:30", 90),
            ("00:10:00", 600),
            ("24:00:00", DAY),
            ("2-12", 2 * DAY + 12 * HOUR),
            ("1-00:30", DAY + 30 * MINUTE),
            ("1-02:03:04", DAY + 2 * HOUR + 3 * MINUTE + 4),
        ] {
            assert_eq!(text.parse(), Ok(TimeLimit::Secs(secs)), "{text:?}");
        }
    }

    #[test]
    fn no_limit_has_three_spellings() {
        for text in ["0", "UNLIMITED", "infinite"] {
            assert_eq!(text.parse(), Ok(TimeLimit::Unlimited), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_the_forms() {
        for text in ["", ":", "1:", "-5", "+5", "1h", "1:2:3:4", "1-2-3", "1-1:2:3:4", "1.5"] {
            let refused = text.parse::<TimeLimit>().unwrap_err();

            assert!(refused.to_string().contains("HH:MM:SS"), "{text:?}");
        }
        assert!("99999999999999999999".parse::<TimeLimit>().is_err());
    }

    proptest! {
        #[test]
        fn a_shown_span_reads_back(secs in 1_u64..100 * DAY) {
            // Below one minute and an hour the shown form is `M:SS`, which limits read alike.
            prop_assert_eq!(Elapsed(secs).to_string().parse(), Ok(TimeLimit::Secs(secs)));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,20}") {
            let _ = text.parse::<TimeLimit>();
        }
    }
}
