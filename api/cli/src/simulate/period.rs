//! A period of a controller's history.

use std::str::FromStr;

use tessera_model::RetentionTime;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::failure::CommandFailure;

/// A time: relative to now, or absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryTime {
    /// Seconds before now.
    Ago(i64),
    /// An absolute time.
    At(OffsetDateTime),
}

/// A text that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid time: write how long ago (2h, 24h, 7d) or 2026-11-21T20:00:00Z")]
pub struct BadHistoryTime {
    text: String,
}

impl FromStr for HistoryTime {
    type Err = BadHistoryTime;

    fn from_str(text: &str) -> Result<Self, BadHistoryTime> {
        if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
            return Ok(Self::At(at));
        }
        let bad = || BadHistoryTime { text: text.to_owned() };
        match text.parse() {
            Ok(RetentionTime::For(span)) => i64::try_from(span.get() / 1_000).map(Self::Ago),
            Ok(RetentionTime::Forever) | Err(_) => return Err(bad()),
        }
        .map_err(|_| bad())
    }
}

impl HistoryTime {
    fn at(self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        match self {
            Self::Ago(secs) => now.checked_sub(Duration::seconds(secs)),
            Self::At(at) => Some(at),
        }
    }
}

/// A period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryPeriod {
    /// Its start.
    pub since: OffsetDateTime,
    /// Its end.
    pub until: OffsetDateTime,
}

impl HistoryPeriod {
    /// Resolves a period relative to `now`; without an end it ends now.
    ///
    /// # Errors
    ///
    /// [`CommandFailure::Usage`] if it has no length.
    pub fn new(
        since: HistoryTime,
        until: Option<HistoryTime>,
        now: OffsetDateTime,
    ) -> Result<Self, CommandFailure> {
        let out = || CommandFailure::usage("the time is out of range; choose a later one");
        let since = since.at(now).ok_or_else(out)?;
        let until = until.map_or(Some(now), |until| until.at(now)).ok_or_else(out)?;
        if since >= until {
            let (since, until) = (shown(since), shown(until));
            return Err(CommandFailure::usage(format!(
                "the period from {since} to {until} is empty: --since must be before {until}"
            )));
        }
        Ok(Self { since, until })
    }

    /// Returns whether a time is part of it.
    pub fn has(&self, at: OffsetDateTime) -> bool {
        self.since <= at && at <= self.until
    }

    /// Describes it as text.
    pub fn describe(&self) -> String {
        format!("from {} to {}", shown(self.since), shown(self.until))
    }
}

/// Formats a time to the second, in UTC.
pub fn shown(at: OffsetDateTime) -> String {
    let whole = at.to_offset(time::UtcOffset::UTC).replace_nanosecond(0).unwrap_or(at);
    whole.format(&Rfc3339).unwrap_or_else(|_| whole.to_string())
}

/// Formats a time exactly, for the API.
pub fn exact(at: OffsetDateTime) -> String {
    let utc = at.to_offset(time::UtcOffset::UTC);
    utc.format(&Rfc3339).unwrap_or_else(|_| utc.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> OffsetDateTime {
        OffsetDateTime::parse("2026-11-21T12:00:00Z", &Rfc3339).unwrap()
    }

    #[test]
    fn a_period_begins_a_duration_ago_or_at_a_time_and_ends_now() {
        let period = HistoryPeriod::new("2h".parse().unwrap(), None, noon()).unwrap();
        assert_eq!(period.describe(), "from 2026-11-21T10:00:00Z to 2026-11-21T12:00:00Z");

        let since = "2026-11-20T23:00:00+01:00".parse().unwrap();
        let period = HistoryPeriod::new(since, Some("1d".parse().unwrap()), noon());
        let refused = period.unwrap_err().to_string();
        assert!(refused.contains("2026-11-20T22:00:00Z to 2026-11-20T12:00:00Z"), "{refused}");
    }

    #[test]
    fn an_invalid_time_is_refused_with_what_is_expected() {
        for text in ["", "yesterday", "2", "forever", "2026-11-21"] {
            let refused = text.parse::<HistoryTime>().unwrap_err().to_string();
            assert!(refused.contains("24h"), "{refused}");
        }
    }
}
